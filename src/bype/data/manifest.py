"""The manifest of a store: shapes, counts, splits and checksums, checked when read.

A store may come from a stranger: sizes are bounded before they are believed, and a shard has no name but the one
that its place gives it.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bype.data.files import FileError, to_json

FORMAT = "bype-store"
FORMAT_VERSION = 1
SPLITS = ("train", "validation", "test")
DTYPES: dict[str, np.dtype[Any]] = {"uint8": np.dtype("u1"), "float32": np.dtype("<f4")}
LABEL_DTYPE = np.dtype("<i4")

_MAX_ROW_BYTES = 2**28


class StoreError(FileError):
    """A store that cannot be used, and why."""


@dataclass(frozen=True)
class Shard:
    """Some consecutive rows of a split."""

    name: str
    num_rows: int
    sha256: str


@dataclass(frozen=True)
class SplitManifest:
    """The shards of one split, and of its labels if it has them."""

    rows: tuple[Shard, ...]
    labels: tuple[Shard, ...]

    @property
    def num_rows(self) -> int:
        """The number of examples."""
        return sum(shard.num_rows for shard in self.rows)


@dataclass(frozen=True)
class Manifest:
    """What is in a store.

    Attributes
    ----------
    shape
        Of one example: (channels, height, width) for images, (features,) for vectors.
    dtype
        ``uint8`` for pixels, ``float32`` for features.
    classes
        Names of the labels 0, 1, …; empty without labels.
    names
        Names of the features, if they have any.
    source
        What the store was made from, in words.
    splits
        By name: ``train``, and mostly ``validation`` and ``test``.
    """

    shape: tuple[int, ...]
    dtype: str
    classes: tuple[str, ...]
    names: tuple[str, ...]
    source: str
    splits: dict[str, SplitManifest]

    @property
    def row_bytes(self) -> int:
        """The bytes of one example on disk."""
        return math.prod(self.shape) * int(DTYPES[self.dtype].itemsize)

    def to_bytes(self) -> bytes:
        """Return the manifest as it is written, always the same for the same content."""
        shards = {
            split: {
                kind: [{"name": s.name, "rows": s.num_rows, "sha256": s.sha256} for s in getattr(content, kind)]
                for kind in ("rows", "labels")
            }
            for split, content in self.splits.items()
        }
        fields = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "classes": list(self.classes),
            "names": list(self.names),
            "source": self.source,
            "splits": shards,
        }
        return to_json(fields)

    @property
    def fingerprint(self) -> str:
        """A hash of all content, by which a run recognises its data."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_fields(cls, fields: Any) -> "Manifest":
        """Check what was read from a manifest."""
        require(isinstance(fields, dict) and fields.get("format") == FORMAT, "this is not the manifest of a bype store")
        require(
            fields.get("version") == FORMAT_VERSION,
            f"the store has format version {fields.get('version')!r}, this bype reads version {FORMAT_VERSION}; "
            f"prepare the data again",
        )
        shape, dtype = fields.get("shape"), fields.get("dtype")
        require(
            isinstance(shape, list) and len(shape) in (1, 3) and all(_is_count(n) and n > 0 for n in shape),
            "the manifest's shape must be 1 or 3 positive numbers",
        )
        require(isinstance(dtype, str) and dtype in DTYPES, "the manifest's dtype must be uint8 or float32")
        require(
            math.prod(shape) * DTYPES[dtype].itemsize <= _MAX_ROW_BYTES,
            f"one example would take more than {_MAX_ROW_BYTES >> 20} MiB",
        )
        for key in ("classes", "names"):
            names = fields.get(key)
            require(
                isinstance(names, list) and all(isinstance(n, str) for n in names), f"the manifest's {key} must be text"
            )
        require(isinstance(fields.get("source"), str), "the manifest's source must be text")
        splits = fields.get("splits")
        require(
            isinstance(splits, dict) and "train" in splits and set(splits) <= set(SPLITS),
            f"the manifest's splits must be train and some of {SPLITS}",
        )
        return cls(
            shape=tuple(shape),
            dtype=dtype,
            classes=tuple(fields["classes"]),
            names=tuple(fields["names"]),
            source=fields["source"],
            splits={name: _split_from(name, content) for name, content in splits.items()},
        )


def require(condition: bool, message: str) -> None:
    """Refuse a store unless a condition holds."""
    if not condition:
        raise StoreError(message)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _split_from(split: str, content: Any) -> SplitManifest:
    require(isinstance(content, dict), f"the manifest's split {split} is broken")
    kinds: dict[str, tuple[Shard, ...]] = {}
    for kind in ("rows", "labels"):
        shards = content.get(kind)
        require(isinstance(shards, list), f"the manifest's split {split} lists no {kind}")
        for number, shard in enumerate(shards):
            require(
                isinstance(shard, dict)
                and shard.get("name") == shard_name(split, number, kind)
                and _is_count(shard.get("rows"))
                and isinstance(shard.get("sha256"), str),
                f"entry {number} of {kind} in split {split} of the manifest is broken",
            )
        kinds[kind] = tuple(Shard(s["name"], s["rows"], s["sha256"]) for s in shards)
    counts = [[shard.num_rows for shard in kinds[kind]] for kind in ("rows", "labels")]
    require(not counts[1] or counts[0] == counts[1], f"split {split} has other numbers of labels than of rows")
    return SplitManifest(**kinds)


def shard_name(split: str, number: int, kind: str) -> str:
    """Return a shard's file name; a store has no others."""
    return f"{split}-{number:06d}.{kind}"
