"""What all commands share."""

from pathlib import Path
from typing import Annotated, TypeVar

import tyro

Options = TypeVar("Options")


def quiet(metavar: str) -> object:
    """Name an option's value, and do not show its default, which is None or empty."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
MaybePath = Annotated[Path | None, quiet("PATH")]
MaybeName = Annotated[str | None, quiet("NAME")]
MaybeCount = Annotated[int | None, quiet("N")]
MaybeNumber = Annotated[float | None, quiet("NUMBER")]
ExampleNames = Annotated[tuple[str, ...], quiet("EXAMPLE ...")]
Numbers = Annotated[tuple[int, ...], quiet("N ...")]


class UsageError(ValueError):
    """A request that makes no sense, and the way out."""


def parse(options: type[Options], words: list[str], prog: str, description: str) -> Options:
    """Read the words of a command line into a dataclass."""
    return tyro.cli(options, args=words, prog=prog, description=description, config=(tyro.conf.FlagCreatePairsOff,))


def shard_of(text: str) -> tuple[int, int]:
    """Read which part of the work this worker does."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UsageError(f"--shard must be I/N with I from 0 to N - 1, such as 2/8, not {text!r}")
    return int(number), int(count)
