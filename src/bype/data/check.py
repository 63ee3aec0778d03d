"""Checking a store: whether it is complete, and what is in it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bype.data.manifest import StoreError
from bype.data.sources.base import CHUNK_BYTES
from bype.data.store import Split, Store
from bype.plates import is_image_shape, plate, stored_to_bytes

_CHUNK_ROWS = 4096
_LARGEST_NUMBER_BYTES = 8
"""Pixels that are drawn black or white take so many bytes on the way."""
_SHEET_COLUMNS = 10


@dataclass(frozen=True)
class SplitSummary:
    """What is in a split."""

    examples: int
    lowest: float
    highest: float
    mean: float
    labels: dict[str, int]
    """How many examples each class has."""


@dataclass(frozen=True)
class StoreSummary:
    """What is in a store whose checksums match."""

    store: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    splits: dict[str, SplitSummary]

    def lines(self) -> Iterator[str]:
        """Describe it in lines."""
        yield f"{self.store}: {self.source}; all checksums match"
        yield f"examples: {self.dtype} of shape {self.shape}"
        for name, split in self.splits.items():
            values = f"values from {split.lowest:g} to {split.highest:g}, mean {split.mean:.4g}"
            yield f"{name}: {split.examples:,} examples, {values}"
            if split.labels:
                yield f"  labels: {', '.join(f'{label} {count:,}' for label, count in split.labels.items())}"


def check(store: Store) -> StoreSummary:
    """Verify the checksums, then look at every example."""
    store.verify()
    manifest = store.manifest
    splits = {name: _summary(store.split(name), manifest.classes) for name in manifest.splits}
    return StoreSummary(str(store.folder), manifest.source, manifest.shape, manifest.dtype, splits)


def _summary(split: Split, classes: tuple[str, ...]) -> SplitSummary:
    low, high, total = np.inf, -np.inf, 0.0
    counts = np.zeros(len(classes), dtype=np.int64)
    step = max(1, min(_CHUNK_ROWS, CHUNK_BYTES // (math.prod(split.shape) * _LARGEST_NUMBER_BYTES)))
    for first in range(0, len(split), step):
        rows = np.arange(first, min(first + step, len(split)), dtype=np.int64)
        examples = split.read(rows)
        if not np.isfinite(examples).all():
            raise StoreError(f"the split {split.name} holds numbers that are not finite; prepare the data again")
        low, high = min(low, float(examples.min())), max(high, float(examples.max()))
        total += float(examples.mean(dtype=np.float64)) * len(rows)
        if split.has_labels:
            counts += np.bincount(split.labels(rows), minlength=len(counts))
    labels = dict(zip(classes, counts.tolist(), strict=True)) if split.has_labels else {}
    return SplitSummary(len(split), low, high, total / len(split), labels)


def contact_sheet(store: Store) -> Image.Image:
    """Return the first images of each class, a line for each class; without labels, the first hundred."""
    split = store.split("train")
    if not is_image_shape(split.shape):
        raise StoreError(f"{store.folder} has no images to show, its examples have the shape {split.shape}")
    return plate([stored_to_bytes(split.read(rows)) for rows in _chosen_rows(store)])


def _chosen_rows(store: Store) -> list[NDArray[np.int64]]:
    split = store.split("train")
    if not split.has_labels:
        rows = np.arange(min(len(split), _SHEET_COLUMNS**2), dtype=np.int64)
        return [rows[first : first + _SHEET_COLUMNS] for first in range(0, len(rows), _SHEET_COLUMNS)]
    chosen: list[list[int]] = [[] for _ in store.manifest.classes]
    for first in range(0, len(split), _CHUNK_ROWS):
        labels = split.labels(np.arange(first, min(first + _CHUNK_ROWS, len(split)), dtype=np.int64))
        for label in np.unique(labels):
            found = first + np.flatnonzero(labels == label)[: _SHEET_COLUMNS - len(chosen[label])]
            chosen[label] += found.tolist()
    return [np.array(rows, dtype=np.int64) for rows in chosen]
