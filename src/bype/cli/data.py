"""Making stores and looking at them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bype.cli.options import MaybeCount, MaybeName, MaybeNumber, MaybePath, parse

if TYPE_CHECKING:
    from bype.data.store import Store

_WIDEST = 100


@dataclass(frozen=True)
class _Prepare:
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """a folder of images (folders in it are classes), a folder with the files of MNIST, Fashion-MNIST or CIFAR-10, a
    .npy, .npz, .csv or .parquet file or a folder of the last, or hf:OWNER/NAME@REVISION on the Hugging Face hub"""
    out: Path
    """the store to make; it must not exist"""
    size: MaybeCount = None
    """resize images to so many pixels in height and width, cutting off what is not square"""
    label: MaybeName = None
    """the column of a table that holds the label; in parquet the one called label if left out"""
    validation: MaybeNumber = None
    """examples to set apart for validation: a number, or below 1 a share"""
    test: MaybeNumber = None
    """the same for test"""
    seed: int = 0
    """for which ones are set apart"""


def data_prepare(words: list[str]) -> int:
    """Make a store."""
    options = parse(_Prepare, words, "bype data prepare", "Turn what you have into a store.")
    from bype.console import progress_bar
    from bype.data.prepare import prepare
    from bype.data.sources import SourceOptions

    with progress_bar("preparing") as progress:
        prepared = prepare(
            options.source,
            options.out,
            SourceOptions(label=options.label, size=options.size),
            validation=options.validation,
            test=options.test,
            seed=options.seed,
            progress=progress,
        )
    say_skipped(prepared.skipped)
    counts = ", ".join(f"{split.num_rows:,} {name}" for name, split in prepared.manifest.splits.items())
    print(f"{options.out}: {prepared.manifest.source}, examples of shape {prepared.manifest.shape}, {counts}")
    return 0


def say_skipped(skipped: Sequence[str]) -> None:
    """Say what could not be read, and why: the first twenty, and how many more."""
    for line in skipped[:20]:
        print(f"skipped {line}", file=sys.stderr)
    if len(skipped) > 20:
        print(f"skipped {len(skipped) - 20} more", file=sys.stderr)


def warn_of_scales(store: "Store") -> None:
    """Say so if some columns of a table would drown the others."""
    from bype.training.rows import spread_rows

    split = store.split("train")
    if len(split.shape) == 3:
        return
    spread = split.read(spread_rows(len(split), 1000)).std(0)
    if spread.max() > _WIDEST * spread[spread > 0].min(initial=spread.max()):
        print(
            f"warning: column {spread.argmax() + 1} spreads more than {_WIDEST} times as wide as others, and the model "
            f"will look at it alone; bring columns to a common scale first"
        )


@dataclass(frozen=True)
class _Check:
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
    """the store"""
    sheet: MaybePath = None
    """write a contact sheet of images of each class to this PNG file"""


def data_check(words: list[str]) -> int:
    """Look at a store."""
    options = parse(_Check, words, "bype data check", "Verify a store and show what is in it.")
    from bype.data.check import check, contact_sheet
    from bype.data.store import Store

    store = Store(options.folder)
    for line in check(store):
        print(line)
    if options.sheet is not None:
        contact_sheet(store).save(options.sheet)
        print(f"contact sheet: {options.sheet}")
    return 0
