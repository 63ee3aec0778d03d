"""Class labels that a user may hand to ``fit``."""

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import column_or_1d

MISSING = "it has missing values"


@dataclass(frozen=True)
class Labels:
    """Class numbers (N,) and the labels that they stand for; or nothing, and why."""

    numbers: NDArray[np.int32] | None = None
    classes: tuple[Any, ...] = ()
    why_none: str = ""
    """Why ``y`` was not taken as labels, if it was given."""


def labels_of(y: Any) -> Labels:
    """Return the class labels in ``y``: what scikit-learn calls a binary or a multiclass target.

    Numbers must be whole. With fewer than two examples for each value on average, ``y`` is no labels; of floats, which
    the target of a regression may be, with fewer than ten.
    """
    if y is None:
        return Labels()
    try:
        values = np.asarray(y)
    except ValueError:  # lists of several lengths
        return Labels(why_none="it is not one column")
    if values.ndim == 2 and values.shape[1] == 1:
        values = column_or_1d(values, warn=True)
    if values.ndim != 1:
        return Labels(why_none="it is not one column")
    if _has_gaps(values):
        return Labels(why_none=MISSING)
    if values.dtype.kind in "OT":
        values = _plain(values)
    if values.dtype.kind not in "biufU":
        return Labels(why_none="it holds neither text alone nor whole numbers alone")
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.floor(values))).all():
        return Labels(why_none="it holds numbers that are not whole")
    classes, numbers = np.unique(values, return_inverse=True)
    if (10 if values.dtype.kind == "f" else 2) * len(classes) > len(values):
        return Labels(why_none=f"it has {len(classes)} different values in {len(values)} examples")
    names = classes.tolist()
    return Labels(numbers.astype(np.int32), tuple(map(int, names) if values.dtype.kind == "f" else names))


def _has_gaps(values: NDArray[Any]) -> bool:
    if values.dtype.kind == "f":
        return bool(np.isnan(values).any())
    return values.dtype.kind == "O" and any(map(_is_gap, values.tolist()))


def _is_gap(item: Any) -> bool:
    differs = item != item  # as nan does from itself; of pandas.NA even that is unknown
    return item is None or not isinstance(differs, (bool, np.bool_)) or bool(differs)


def _plain(objects: NDArray[Any]) -> NDArray[Any]:
    """Return Python objects (N,) as text or numbers, if they are all of one kind."""
    items = objects.tolist()
    if all(isinstance(item, str) for item in items):
        return np.array(items, dtype=str)
    return np.array(items) if all(isinstance(item, (Real, np.bool_)) for item in items) else objects
