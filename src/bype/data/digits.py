"""Whether float32, in which a store holds features, has enough digits for the columns of a table."""

import math

import numpy as np
from numpy.typing import NDArray

from bype.data.sources.base import SourceError

_LARGEST_LOSS = 0.01
"""Of a column's standard deviation: what the spacing of float32 numbers may be."""
_CONSTANT = 1e-12
"""A range this small, relative to the numbers themselves, is rounding in float64: the column is constant."""
_NAMED = 3


class Digits:
    """Watches the columns of a table as they are read, in constant memory, and refuses those that float32 would blur.

    Float32 has about 7 digits. A column of numbers around 1e8 that differ by 1 would become constant.

    Examples
    --------
    >>> digits = Digits(1)
    >>> digits.add(np.array([[1e8], [1e8 + 1], [1e8 + 2]]))
    >>> digits.require("table", ("time",))
    Traceback (most recent call last):
    bype.data.sources.base.SourceError: table: float32 has too few digits for column 'time' (about 1e+08, standard \
deviation 0.816); subtract a constant first, such as the mean, for instance with scikit-learn: \
StandardScaler().fit_transform(table)
    """

    def __init__(self, num_columns: int) -> None:
        self._count = 0
        self._mean, self._squares = np.zeros(num_columns), np.zeros(num_columns)
        self._low, self._high = np.full(num_columns, math.inf), np.full(num_columns, -math.inf)

    def add(self, rows: NDArray[np.floating]) -> None:
        """Count rows (n, columns), of float64 where that is what the user has."""
        if not len(rows):
            return
        values = rows.astype(np.float64)
        mean = values.mean(0)
        count, shift = self._count + len(values), mean - self._mean
        # The variance of two parts together, without a mean of squares, which would lose the digits of a small spread.
        self._squares += np.square(values - mean).sum(0) + np.square(shift) * self._count * len(values) / count
        self._mean += shift * len(values) / count
        self._low, self._high = np.minimum(self._low, values.min(0)), np.maximum(self._high, values.max(0))
        self._count = count

    def require(self, table: str, names: tuple[str, ...]) -> None:
        """Refuse the table if columns would lose their digits; ``names`` are those of the columns, if they have any."""
        magnitude = np.maximum(np.abs(self._low), np.abs(self._high))
        spread = np.sqrt(self._squares / max(1, self._count))
        is_blurred = np.spacing(magnitude.astype(np.float32)) > _LARGEST_LOSS * spread
        found = np.flatnonzero(is_blurred & (self._high - self._low > _CONSTANT * magnitude))
        if not len(found):
            return
        shown = ", ".join(
            f"column {repr(names[k]) if names else k} (about {magnitude[k]:.3g}, standard deviation {spread[k]:.3g})"
            for k in found[:_NAMED]
        )
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise SourceError(
            f"{table}: float32 has too few digits for {shown}{more}; subtract a constant first, such as the mean, "
            f"for instance with scikit-learn: StandardScaler().fit_transform(table)"
        )
