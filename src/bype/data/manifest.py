"""The manifest of a store: shapes, counts, splits and checksums, checked when read.

A store is not trusted: sizes are checked before they are used, and the name of a shard is fixed by its split and
number.
"""

import hashlib
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from bype.data.files import FileError, to_json

SPLITS = ("train", "validation", "test")
DTYPES: dict[str, np.dtype[Any]] = {"uint8": np.dtype("u1"), "binarised": np.dtype("u1"), "float32": np.dtype("<f4")}
PIXELS = ("uint8", "binarised")
"""The dtypes of images."""
LABEL_DTYPE = np.dtype("<i4")

_MAX_ROW_BYTES = 2**28


class StoreError(FileError):
    """A store that cannot be used, and why."""


@dataclass(frozen=True)
class Shard:
    """Some consecutive rows of a split."""

    name: str
    rows: int
    """The number of rows."""
    sha256: str


@dataclass(frozen=True)
class SplitManifest:
    """The shards of one split, and of its labels if it has them."""

    rows: tuple[Shard, ...]
    labels: tuple[Shard, ...]

    def __post_init__(self) -> None:
        """Check the numbers of rows, and that every row has a label or none has one."""
        counts, labels = ([shard.rows for shard in shards] for shards in (self.rows, self.labels))
        require(bool(counts) and all(count > 0 for count in counts), "a split and its shards need at least one row")
        require(not labels or labels == counts, "the numbers of labels and of rows differ")

    @property
    def num_rows(self) -> int:
        """The number of examples."""
        return sum(shard.rows for shard in self.rows)


@dataclass(frozen=True)
class Manifest:
    """What is in a store.

    Attributes
    ----------
    shape
        Of one example: (channels, height, width) for images, (features,) for vectors.
    dtype
        ``uint8`` for pixels, ``float32`` for features; ``binarised`` for pixels that are read as black or white, drawn
        with their grey value as the probability of white.
    classes
        Names of the labels 0, 1, …; empty without labels.
    names
        Names of the features, if they have any.
    source
        What the store was made from, in words.
    splits
        By name: ``train``, and in most stores ``validation`` and ``test``.
    """

    format: Literal["bype-store"] = field(default="bype-store", kw_only=True)
    version: Literal[1] = field(default=1, kw_only=True)
    shape: tuple[int, ...]
    dtype: str
    classes: tuple[str, ...]
    names: tuple[str, ...]
    source: str
    splits: dict[str, SplitManifest]

    def __post_init__(self) -> None:
        """Check the sizes and the names of shards."""
        check_examples(self.shape, self.dtype, self.names)
        known = "train" in self.splits and set(self.splits) <= set(SPLITS)
        require(known, f"splits must be train and some of {', '.join(SPLITS[1:])}")
        for split, content in self.splits.items():
            for kind, shards in (("rows", content.rows), ("labels", content.labels)):
                for number, shard in enumerate(shards):
                    name = shard_name(split, number, kind)
                    require(shard.name == name, f"shard {number} of the {kind} of {split} is not named {name}")

    @property
    def num_examples(self) -> int:
        """The examples of all splits."""
        return sum(split.num_rows for split in self.splits.values())

    @property
    def row_bytes(self) -> int:
        """The bytes of one example on disk."""
        return math.prod(self.shape) * int(DTYPES[self.dtype].itemsize)

    def to_bytes(self) -> bytes:
        """Return the manifest as it is written, always the same for the same content."""
        return to_json(asdict(self))

    @property
    def fingerprint(self) -> str:
        """A hash of all content, by which a run recognises its data."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def require(condition: bool, message: str) -> None:
    """Refuse a store unless a condition holds."""
    if not condition:
        raise StoreError(message)


def check_examples(shape: tuple[int, ...], dtype: str, names: tuple[str, ...]) -> None:
    """Refuse a shape or a dtype that no store has, and names that are not one for each feature."""
    require(len(shape) in (1, 3) and min(shape) > 0, "shape must be 1 or 3 positive numbers")
    require(dtype in DTYPES, f"dtype must be {' or '.join(DTYPES)}")
    row_bytes = math.prod(shape) * DTYPES[dtype].itemsize
    require(row_bytes <= _MAX_ROW_BYTES, f"shape: one example would take more than {_MAX_ROW_BYTES >> 20} MiB")
    require(dtype != "binarised" or (len(shape), shape[0]) == (3, 1), "dtype: only grey images can be binarised")
    require(len(names) in (0, shape[0]), f"names must be empty, or one for each of {shape[0]} features")


def shard_name(split: str, number: int, kind: str) -> str:
    """Return a shard's file name; a store has no others."""
    return f"{split}-{number:06d}.{kind}"
