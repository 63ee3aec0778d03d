"""Making stores and looking at them."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bype.cli.options import (
    Flag,
    MaybeCount,
    MaybeName,
    MaybePath,
    UsageError,
    parse,
    require_free,
    without_default,
)
from bype.cli.output import result, say

if TYPE_CHECKING:
    from bype.data.prepare import Prepared


@dataclass(frozen=True)
class _Prepare:
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """Read one of these:
    a folder of images; each folder in it is a class
    a folder with files of MNIST, Fashion-MNIST, CIFAR-10
    a .npy, .npz, .csv or .parquet file
    a folder of .parquet files
    hf:OWNER/NAME@REVISION on Hugging Face"""
    out: Path
    """Write the store here; it must not exist yet"""
    size: MaybeCount = None
    """Crop images to a square, and resize them to N x N pixels"""
    label: MaybeName = None
    """Take labels from this column of a table; in parquet the default is the column called label"""
    validation: Annotated[
        float | None,
        without_default(
            "NUMBER",
            "Set apart this many examples for validation; below 1, this share of them. If left out: a tenth, or 10,000 "
            "of MNIST and CIFAR-10; none if the data have a validation split",
        ),
    ] = None
    test: Annotated[
        float | None,
        without_default(
            "NUMBER",
            "Set apart this many examples for test; below 1, this share of them. If left out: a tenth; none if the "
            "data have a test split",
        ),
    ] = None
    seed: int = 0
    """Set the seed that decides which examples are set apart"""
    binarise: Flag = False
    """Read grey pixels as black or white, drawn by their grey value; training draws them anew in each step"""


def data_prepare(words: list[str]) -> int:
    """Make a store."""
    options = parse(_Prepare, words, "bype data prepare", "Turn images, arrays or a table into a store.")
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
            binarise=options.binarise,
            progress=progress,
        )
    say_findings(prepared)
    counts = ", ".join(f"{split.num_rows:,} {name}" for name, split in prepared.manifest.splits.items())
    say(f"{options.out}: {prepared.manifest.source}, examples of shape {prepared.manifest.shape}, {counts}")
    manifest = prepared.manifest
    result(
        out=options.out,
        source=manifest.source,
        shape=manifest.shape,
        dtype=manifest.dtype,
        classes=manifest.classes,
        examples={name: split.num_rows for name, split in manifest.splits.items()},
        skipped=list(prepared.skipped),
        unused=list(prepared.unused),
        notes=list(prepared.notes),
    )
    return 0


def say_findings(prepared: "Prepared") -> None:
    """Print what could not be read and why, what is not taken, and what seems to be wrong with the data."""
    skipped, unused = prepared.skipped, prepared.unused
    for line in skipped[:20]:
        say(f"skipped {line}", sys.stderr)
    if len(skipped) > 20:
        print(f"skipped {len(skipped) - 20} more", file=sys.stderr)
    if unused:
        more = f" and {len(unused) - 10} more" if len(unused) > 10 else ""
        say(f"not used: {', '.join(unused[:10])}{more}", sys.stderr)
    for note in prepared.notes:
        say(f"note: {note}", sys.stderr)


@dataclass(frozen=True)
class _Check:
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
    """Check this store"""
    sheet: MaybePath = None
    """Write some images of each class to this .png file"""
    force: Flag = False
    """Replace the file at --sheet"""


def data_check(words: list[str]) -> int:
    """Check a store."""
    options = parse(_Check, words, "bype data check", "Verify a store and show what is in it.")
    from bype.data.check import check, contact_sheet
    from bype.data.files import write_atomic
    from bype.data.store import Store
    from bype.plates import is_image_shape, png

    store = Store(options.folder)
    if options.sheet is not None:
        if options.sheet.suffix != ".png":
            raise UsageError(f"cannot write a picture to {options.sheet}; choose a name that ends in .png")
        if not is_image_shape(store.manifest.shape):
            raise UsageError(f"{options.folder} holds no images; leave out --sheet")
        require_free(options.sheet, options.force, "--sheet")
    found = check(store)
    for line in found.lines():
        say(line)
    result(**dataclasses.asdict(found))
    if options.sheet is not None:
        write_atomic(options.sheet, png(contact_sheet(store)))
        print(f"contact sheet: {options.sheet}")
    return 0
