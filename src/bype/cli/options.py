"""What all commands share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

from bype.cli.output import HELP, wrapped

Options = TypeVar("Options")
_MAX_SEED = 2**63 - 1
"""What a generator of torch takes."""


def without_default(metavar: str, help: str | None = None) -> object:  # noqa: A002 - as tyro calls it
    """Name an option's value, and do not show its default, which is None or empty."""
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint="")


MaybePath = Annotated[Path | None, without_default("PATH")]
MaybeName = Annotated[str | None, without_default("NAME")]
MaybeCount = Annotated[int | None, without_default("N")]
ExampleNames = Annotated[tuple[str, ...], without_default("EXAMPLE ...")]
Numbers = Annotated[tuple[int, ...], without_default("N ...")]


# Options that several commands have, with their help.
RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="Open this run directory")]
OtherStore = Annotated[
    Path | None, without_default("PATH", "Use this store instead of the one that the run was trained on")
]
MovedStore = Annotated[
    Path | None, without_default("PATH", "Look here for the store that the run was trained on, if it has moved")
]
SplitOfRows = Annotated[
    str | None,
    without_default(
        "NAME", "Take row numbers from this split; if left out, from test, or else validation, or else train"
    ),
]
Device = Annotated[str, tyro.conf.arg(help="Compute on cpu, or on cuda for a GPU")]
Seed = Annotated[int, tyro.conf.arg(help="Set the seed of all random numbers")]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
Force = Annotated[bool, tyro.conf.arg(help="Replace what is at --out", help_behavior_hint="")]

_EXAMPLES = {
    "bype data prepare": "bype data prepare photos --size 32 --out store",
    "bype data check": "bype data check store --sheet sheet.png",
    "bype recipes": "bype recipes",
    "bype train [RECIPE]": "bype train mnist/vae/bype --data store --out run --length '20 epochs' --warm-up '9 epochs'",
    "bype fit": "bype fit photos --out run --minutes 5",
    "bype evaluate": "bype evaluate run --samples 500 --images 1000",
    "bype augment": "bype augment run --epochs 20 --seeds 1",
    "bype sample": "bype sample run --like 0 --count 9 --out more.png",
    "bype reconstruct": "bype reconstruct run --out pairs.png",
    "bype interpolate": "bype interpolate run --between 3 7 --out way.png",
    "bype coreset": "bype coreset run --out coreset",
    "bype embed": "bype embed run --split train --out embedding",
    "bype export": "bype export run --out model",
    "bype score": "bype score run --split test --out scores.csv",
    "bype audit": "bype audit run --out audit.html",
    "bype share": "bype share run --to OWNER/NAME --private",
    "bype fetch": "bype fetch OWNER/NAME --out run",
    "bype reproduce": "bype reproduce table1 --only fashion-mnist/vae --reduced --stores stores --out reproduced",
    "bype reproduce list": "bype reproduce list --out reproduced",
    "bype reproduce cost": "bype reproduce cost --only vae",
    "bype reproduce page": "bype reproduce page --out results/paper --page docs/results/paper.md",
    "bype report": "bype report run other-run --out report.html",
}


class UsageError(ValueError):
    """A request that makes no sense, and the way out."""


def parse(options: type[Options], words: list[str], prog: str, description: str) -> Options:
    """Read the words of a command line into a dataclass; help ends with an example. A seed must be in range."""
    example = f"\n\nExample: {_EXAMPLES[prog]}" if prog in _EXAMPLES else ""
    text = "\n\n".join(wrapped(part) for part in [*description.split("\n\n"), HELP]) + example
    with _without_colours() if "NO_COLOR" in os.environ else nullcontext():
        made = tyro.cli(options, args=words, prog=prog, description=text, config=(tyro.conf.FlagCreatePairsOff,))
    for name, value in vars(made).items():
        if value == () and (flag := f"--{name.replace('_', '-')}") in words:
            raise UsageError(f"{flag} needs at least one value")
    if not 0 <= (seed := getattr(made, "seed", 0)) <= _MAX_SEED:
        raise UsageError(f"--seed must be between 0 and {_MAX_SEED}, not {seed}")
    return made


@contextmanager
def _without_colours() -> Iterator[None]:
    """Make tyro treat the terminal as one without colours: tyro does not know NO_COLOR."""
    before = os.environ.get("TERM")
    os.environ["TERM"] = "dumb"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TERM"]
        else:
            os.environ["TERM"] = before


def require_store(data: Path | None) -> None:
    """Refuse a --data that is no store, where one is expected."""
    from bype.data.store import is_store

    if data is not None and not is_store(data):
        raise UsageError(f"{data} is no store; leave out --data, or make a store with: bype data prepare")


def require_writable(run: Path) -> None:
    """Refuse a run whose folder cannot take the results, before any work is done."""
    if not os.access(run, os.W_OK):
        raise UsageError(f"cannot write to {run}, where the results go; copy the run to a folder of your own")


def require_free(path: Path, force: bool, flag: str = "--out") -> None:
    """Refuse a path that exists or cannot be written, before any work is done."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists; choose another {flag}, or replace it with --force")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; choose another {flag}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; make it, or choose another {flag}")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write to {folder}; choose another {flag}")


def shard_of(text: str) -> tuple[int, int]:
    """Read which part of the work this worker does."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UsageError(f"--shard must be I/N with I from 0 to N - 1, such as 2/8, not {text!r}")
    return int(number), int(count)
