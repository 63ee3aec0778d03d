"""Examples that are in memory already."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bype.data.sources.base import CHUNK_BYTES, Chunk, Pool, Source, numbered


def source_of(
    rows: NDArray[Any],
    labels: NDArray[np.int32] | None = None,
    *,
    classes: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
) -> Source:
    """Return examples as a source. A tenth of them is drawn for validation, and none for test.

    Parameters
    ----------
    rows
        (N, *shape): bytes, or floats, which a store holds in float32.
    labels
        (N,), numbers of classes.
    classes
        The names of the classes.
    names
        The names of the features.
    """

    def chunks() -> Any:
        step = max(1, CHUNK_BYTES // max(1, rows[0].nbytes))
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            yield Chunk(rows[part], None if labels is None else labels[part])

    pool = Pool(None, len(rows), lambda: numbered(chunks()), validation=0.1)
    dtype = "uint8" if rows.dtype == np.uint8 else "float32"
    return Source("arrays in memory", rows.shape[1:], dtype, (pool,), labels is not None, classes, names)
