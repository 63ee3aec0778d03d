"""Grey pixels that are drawn black or white. Nothing is stored: each draw is a function of a key, a row and a place."""

import numpy as np
from numpy.typing import NDArray

from bype.data.order import Rows, mix


def draw_bits(grey: NDArray[np.uint8], rows: Rows, key: int) -> NDArray[np.uint8]:
    """Draw pixels (N, ...) of some rows black or white, with the grey value as the probability of white.

    A pure function of the key, the row and the pixel's place: which rows are drawn together makes no difference.

    Examples
    --------
    >>> draw_bits(np.array([[0, 100, 100, 255]], dtype=np.uint8), np.array([8]), key=1)
    array([[  0,   0, 255, 255]], dtype=uint8)
    """
    size = grey[0].size if len(grey) else 1
    places = rows.astype(np.uint64)[:, None] * np.uint64(size) + np.arange(size, dtype=np.uint64)
    words = mix(places ^ mix(np.array([key], dtype=np.uint64)))
    # 24 bits, scaled to 0..254: a byte of 0 is never above them, one of 255 always.
    levels = (((words >> np.uint64(40)) * np.uint64(255)) >> np.uint64(24)).astype(np.uint8)
    return np.where(grey > levels.reshape(grey.shape), np.uint8(255), np.uint8(0))
