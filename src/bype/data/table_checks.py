"""What is wrong with the columns of a table: too many digits for float32, or a few numbers far from all others."""

import math

import numpy as np
from numpy.typing import NDArray

from bype.data.sources.base import SourceError

_LARGEST_LOSS = 0.01
"""Of a column's standard deviation: what the spacing of float32 numbers may be."""
_CONSTANT = 1e-12
"""A range this small, relative to the numbers themselves, is rounding in float64: the column is constant."""
_NAMED = 3
_LARGEST_RATIO = 100.0
"""Of the standard deviation to that of the middle half: columns of real tables have up to 70 without a mistake."""
_NORMAL_MIDDLE = 1.349
"""The quartiles of a normal distribution are so many standard deviations apart."""
_SAMPLED_NUMBERS = 2**21
_FEWEST_ROWS = 64


class TableChecks:
    """Watches the columns of a table as they are read, in constant memory.

    Float32, in which a store holds them, has about 7 digits. A column of numbers around 1e8 that differ by 1 would
    become constant. To the model, so would small numbers beside one of 1e8, because it divides by the standard
    deviation.

    Examples
    --------
    >>> checks = TableChecks(1)
    >>> checks.add(np.array([[1e8], [1e8 + 1], [1e8 + 2]]))
    >>> checks.require_digits("table", ("time",))
    Traceback (most recent call last):
    bype.data.sources.base.SourceError: table: float32 has too few digits for column 'time' (about 1e+08, standard \
deviation 0.816); subtract a constant first, such as the mean, for instance with scikit-learn: \
StandardScaler().fit_transform(table)
    """

    def __init__(self, num_columns: int) -> None:
        self._count = 0
        self._mean, self._squares = np.zeros(num_columns), np.zeros(num_columns)
        self._low, self._high = np.full(num_columns, math.inf), np.full(num_columns, -math.inf)
        self._sample, self._stride = np.empty((0, num_columns)), 1
        self._most_rows = max(_FEWEST_ROWS, _SAMPLED_NUMBERS // max(1, num_columns))

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
        self._sample = np.concatenate([self._sample, values[-self._count % self._stride :: self._stride]])
        while len(self._sample) > self._most_rows:
            self._sample, self._stride = self._sample[::2], 2 * self._stride
        self._count = count

    def require_digits(self, table: str, names: tuple[str, ...]) -> None:
        """Refuse the table if columns would lose their digits; ``names`` are those of the columns, if they have any."""
        magnitude = np.maximum(np.abs(self._low), np.abs(self._high))
        spread = self._spread
        is_blurred = np.spacing(magnitude.astype(np.float32)) > _LARGEST_LOSS * spread
        found = np.flatnonzero(is_blurred & (self._high - self._low > _CONSTANT * magnitude))
        if not len(found):
            return
        about = [f"about {magnitude[k]:.3g}, standard deviation {spread[k]:.3g}" for k in found[:_NAMED]]
        raise SourceError(
            f"{table}: float32 has too few digits for {_named(found, names, about)}; subtract a constant first, "
            f"such as the mean, for instance with scikit-learn: StandardScaler().fit_transform(table)"
        )

    def far_numbers(self, names: tuple[str, ...]) -> str:
        """Name the columns in which a few numbers are so far from all others that these look alike; "" if none."""
        if not self._count:
            return ""
        low, high = np.quantile(self._sample, [0.25, 0.75], axis=0)
        found = np.flatnonzero((high > low) & (self._spread * _NORMAL_MIDDLE > _LARGEST_RATIO * (high - low)))
        if not len(found):
            return ""
        about = [
            f"from {self._low[k]:.4g} to {self._high[k]:.4g}, half of them between {low[k]:.4g} and {high[k]:.4g}"
            for k in found[:_NAMED]
        ]
        return (
            f"a few numbers are far from all others, so that the others look alike to the model, in "
            f"{_named(found, names, about)}; if they are mistakes or stand for missing values, remove these rows; if "
            f"they are real, use logarithms or ranks"
        )

    @property
    def _spread(self) -> NDArray[np.float64]:
        """The standard deviation of each column."""
        return np.sqrt(self._squares / max(1, self._count))


def _named(found: NDArray[np.intp], names: tuple[str, ...], about: list[str]) -> str:
    """Name the first columns, and what is to be said about each."""
    shown = ", ".join(
        f"column {repr(names[k]) if names else k} ({text})" for k, text in zip(found, about, strict=False)
    )
    return shown + (f" and {len(found) - len(about)} more" if len(found) > len(about) else "")
