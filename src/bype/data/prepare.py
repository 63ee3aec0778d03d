"""From a source to a store."""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bype.console import Report, no_report
from bype.data.files import printable
from bype.data.manifest import DTYPES, SPLITS, Manifest, check_examples
from bype.data.order import KeyedPermutation, Rows, derive_key
from bype.data.sources import DifferentSizesError, Pool, Source, SourceError, SourceOptions, open_source, resizes
from bype.data.sources.base import can_be_stored, remedy_for
from bype.data.table_checks import TableChecks
from bype.data.writer import StoreWriter

_DARK = 32
"""Bytes of usual images reach further than this."""
_LARGEST_SIDE = 64


@dataclass(frozen=True)
class Prepared:
    """A store that was made."""

    manifest: Manifest
    skipped: tuple[str, ...]
    """What could not be read, and why."""
    notes: tuple[str, ...] = ()
    """What seems to be wrong with the examples as a whole."""
    unused: tuple[str, ...] = ()
    """Columns or arrays that were not taken."""


def prepare(
    source: Path | str | Source,
    out: Path | str,
    options: SourceOptions = SourceOptions(),  # noqa: B008 - frozen
    *,
    validation: float | None = None,
    test: float | None = None,
    seed: int = 0,
    binarise: bool = False,
    is_for_training: bool = True,
    progress: Report = no_report,
) -> Prepared:
    """Turn a user's data into a store.

    Parameters
    ----------
    source
        A folder, a file, or a data set on the hub, see :func:`bype.data.sources.open_source`; or a source of your own.
    out
        Where the store will be; it must not exist.
    options
        What the user says about the data.
    validation, test
        How many examples, or below 1 what share, are set apart; the source's own default if left out.
    seed
        Decides which examples are set apart, where that is random.
    binarise
        Whether each pixel is read as black or white, drawn with its grey value as the probability of white.
    is_for_training
        Whether the columns of a table are checked: those whose digits float32 cannot hold are refused, and a note
        names those with numbers far from all others. A trained model has its own scale of each column.
    progress
        Called with the number of examples done and in all.
    """
    out = Path(out)
    opened = source if isinstance(source, Source) else open_source(source, options)
    if binarise and (opened.dtype != "uint8" or opened.shape[0] != 1):
        raise SourceError("only grey images can be drawn black and white; leave out --binarise")
    dtype = "binarised" if binarise else opened.dtype
    for split, apart in (("validation", validation), ("test", test)):
        if apart and any(pool.split == split for pool in opened.pools):
            raise SourceError(f"{opened.description} has a {split} split of its own; leave out --{split}")
    check_examples(opened.shape, dtype, opened.names)  # before a row of gigabytes is read
    total = sum(pool.num_rows for pool in opened.pools)
    _check_space(opened, total, out)
    checks = TableChecks(*opened.shape) if len(opened.shape) == 1 and is_for_training else None
    done = brightest = 0
    with StoreWriter(
        out,
        opened.shape,
        dtype,
        classes=tuple(map(printable, opened.classes)),
        names=opened.names,
        source=printable(opened.description),
        has_labels=opened.has_labels,
    ) as writer:
        for number, pool in enumerate(opened.pools):
            split_of = _division(pool, validation, test, derive_key(seed, "division", number))
            for positions, chunk in pool.read():
                if opened.dtype == "float32" and not can_be_stored(chunk.rows).all():
                    raise SourceError(f"{opened.description} has numbers that are not finite; {remedy_for(chunk.rows)}")
                if checks is not None:
                    checks.add(chunk.rows)
                if is_for_training and dtype == "uint8" and chunk.origins is None:  # in files of images, white is known
                    brightest = max(brightest, int(chunk.rows.max(initial=0)))
                split_numbers = split_of(positions)
                origins = chunk.origins or positions.tolist()
                for split_number, split in enumerate(SPLITS):
                    chosen = split_numbers == split_number
                    if chosen.any():
                        labels = None if chunk.labels is None else chunk.labels[chosen]
                        rows = np.asarray(chunk.rows[chosen], dtype=DTYPES[opened.dtype])
                        writer.append(split, rows, labels, [origins[k] for k in np.flatnonzero(chosen)])
                done += len(positions)
                progress(done, total)
        if done == 0 and opened.skipped:
            raise SourceError(f"none of the {total} examples can be read; the first: {opened.skipped[0]}")
        if checks is not None:
            checks.require_digits(opened.description, opened.names)
    if writer.manifest is None:
        raise RuntimeError("the writer did not finish")
    far = "" if checks is None else checks.far_numbers(opened.names)
    notes = (*opened.notes, *filter(None, (far, _note_of_darkness(brightest))))
    return Prepared(writer.manifest, tuple(opened.skipped), notes, opened.unused)


def _note_of_darkness(brightest: int) -> str:
    """Return a note on bytes that all are nearly black, as numbers from 0 to 16 are, or nothing."""
    if not 0 < brightest < _DARK:
        return ""
    return (
        f"the largest byte of all images is {brightest}, and 255 is white, so they are nearly black; multiply them by "
        f"{255 // brightest} first"
    )


def with_workable_size(source: Path | str, options: SourceOptions) -> tuple[SourceOptions, str]:
    """Return the options with a size, and why, if images are too large for a quick training, or differ in size.

    Arrays have the size that their maker chose.
    """
    if options.size is not None or not resizes(source):
        return options, ""
    try:
        shape = open_source(source, options).shape
    except DifferentSizesError as error:
        return replace(options, size=_LARGEST_SIDE), f"images have different sizes ({error.example})"
    if len(shape) != 3 or max(shape[1:]) <= _LARGEST_SIDE:
        return options, ""
    return replace(options, size=_LARGEST_SIDE), f"images are {shape[2]}x{shape[1]}"


def train_positions(source: Source, seed: int, test: float | None = None) -> Rows:
    """Return which examples of the source :func:`prepare` puts into the train split, in order.

    They are counted over all pools, without those that cannot be read: as they are when the whole source is encoded.
    """
    ((number, pool),) = ((k, pool) for k, pool in enumerate(source.pools) if pool.split in (None, "train"))
    split_of = _division(pool, None, test, derive_key(seed, "division", number))
    pools = source.pools[: number + 1]
    readable = [np.arange(each.num_rows, dtype=np.int64) for each in pools]
    if source.skipped:  # positions count what could not be read; which these are is found by reading
        readable = [np.concatenate([np.empty(0, np.int64), *(found for found, _ in each.read())]) for each in pools]
    return np.flatnonzero(split_of(readable[-1]) == 0) + sum(map(len, readable[:-1]))


def _division(pool: Pool, validation: float | None, test: float | None, key: int) -> Callable[[Rows], Rows]:
    """Return a function from positions in a pool to numbers of splits: 0 train, 1 validation, 2 test."""
    if pool.split is not None:
        number = SPLITS.index(pool.split)
        return lambda positions: np.full(len(positions), number, dtype=np.int64)
    num_validation = _number(pool.validation if validation is None else validation, pool.num_rows, "validation")
    num_test = _number(pool.test if test is None else test, pool.num_rows, "test")
    num_train = pool.num_rows - num_validation - num_test
    if num_train < 1:
        apart = f"{num_validation} for validation and {num_test} for test"
        raise SourceError(
            f"{pool.num_rows} examples less {apart} leave no train split; give more examples, or set fewer apart"
        )
    order = KeyedPermutation(pool.num_rows, key)

    def split_of(positions: Rows) -> Rows:
        place = order(positions) if pool.shuffled else positions
        return np.searchsorted([num_train, num_train + num_validation], place, side="right").astype(np.int64)

    return split_of


def _number(value: float, num_rows: int, name: str) -> int:
    """Return the number of examples that a count means, or a share if it is below 1."""
    if not math.isfinite(value) or value < 0 or (value >= 1 and value != int(value)):
        raise SourceError(f"--{name} must be a share below 1 or a whole number of examples, not {value}")
    if value >= 1 or value == 0:
        return int(value)
    return max(1, round(value * num_rows)) if num_rows > 1 else 0


def _check_space(source: Source, total: int, out: Path) -> None:
    place = next(parent for parent in out.absolute().parents if parent.exists())
    needed = total * (int(np.prod(source.shape)) * DTYPES[source.dtype].itemsize + 4)
    free = shutil.disk_usage(place).free
    if needed > free:
        raise SourceError(f"the store needs {needed / 1e9:.1f} GB, but {place} has {free / 1e9:.1f} GB free")
