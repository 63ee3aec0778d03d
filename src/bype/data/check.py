"""Checking a store: whether it is complete, and what is in it."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bype.data.manifest import StoreError
from bype.data.store import Store
from bype.plates import is_image_shape, plate

_CHUNK_ROWS = 4096
_SHEET_COLUMNS = 10


def check(store: Store) -> Iterator[str]:
    """Verify the checksums, then describe in lines what the store holds."""
    store.verify()
    manifest = store.manifest
    yield f"{store.folder}: {manifest.source}; all checksums match"
    yield f"examples: {manifest.dtype} of shape {manifest.shape}"
    for name in manifest.splits:
        split = store.split(name)
        low, high, total = np.inf, -np.inf, 0.0
        counts = np.zeros(len(manifest.classes), dtype=np.int64)
        for first in range(0, len(split), _CHUNK_ROWS):
            rows = np.arange(first, min(first + _CHUNK_ROWS, len(split)), dtype=np.int64)
            examples = split.read(rows)
            low, high = min(low, float(examples.min())), max(high, float(examples.max()))
            total += float(examples.mean(dtype=np.float64)) * len(rows)
            if split.has_labels:
                counts += np.bincount(split.labels(rows), minlength=len(counts))
        yield f"{name}: {len(split):,} examples, values from {low:g} to {high:g}, mean {total / len(split):.4g}"
        if split.has_labels:
            shares = (f"{label} {count:,}" for label, count in zip(manifest.classes, counts, strict=True))
            yield f"  labels: {', '.join(shares)}"


def contact_sheet(store: Store) -> Image.Image:
    """Return the first images of each class, a line for each class; without labels, the first hundred."""
    split = store.split("train")
    if not is_image_shape(split.shape):
        raise StoreError(f"{store.folder} has no images to show, its examples have the shape {split.shape}")
    return plate([split.read(rows) for rows in _chosen_rows(store)])


def _chosen_rows(store: Store) -> list[NDArray[np.int64]]:
    split = store.split("train")
    if not split.has_labels:
        rows = np.arange(min(len(split), _SHEET_COLUMNS**2), dtype=np.int64)
        return [rows[first : first + _SHEET_COLUMNS] for first in range(0, len(rows), _SHEET_COLUMNS)]
    labels = split.labels(np.arange(min(len(split), 100 * _CHUNK_ROWS), dtype=np.int64))
    return [
        np.flatnonzero(labels == label)[:_SHEET_COLUMNS].astype(np.int64)
        for label in range(len(store.manifest.classes))
    ]
