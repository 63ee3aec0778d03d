"""What the commands have in common."""

from typing import TypeVar

import tyro

Options = TypeVar("Options")


class UsageError(ValueError):
    """A request that makes no sense, and the way out."""


def parse(options: type[Options], words: list[str], prog: str, description: str) -> Options:
    """Read the words of a command line into a dataclass."""
    return tyro.cli(options, args=words, prog=prog, description=description, config=(tyro.conf.FlagCreatePairsOff,))
