"""Arrays of one length as the content of a file."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def to_npz(columns: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the content of an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **columns)  # type: ignore[arg-type]
    return buffer.getvalue()


def to_parquet(columns: Mapping[str, Any]) -> bytes:
    """Return the content of a parquet file; columns are lists, or arrays of pyarrow."""
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(columns)), buffer)
    return buffer.getvalue()
