"""The names of classes: their order, and what seems to be wrong with them."""

import math
import re
from collections.abc import Iterable, Sequence

from bype.data.sources.base import LARGEST_NUMBER

GAPS = ("", "?", "-", "na", "n/a", "nan", "null", "none", "inf", "-inf")
"""What people write where a value is missing."""
FEW_ROWS = 20


def in_order(classes: Iterable[str]) -> list[str]:
    """Return names of classes in their order: whole numbers by size, others as text."""
    found = set(classes)
    if all(re.fullmatch(r"-?\d+", name) for name in found):
        return sorted(found, key=lambda name: (int(name), name))
    return sorted(found)


def notes_on_classes(column: str, classes: Sequence[str], num_rows: int) -> list[str]:
    """Return what seems to be wrong with the classes that a column of labels holds."""
    notes = []
    if FEW_ROWS < len(classes) <= num_rows < 2 * len(classes):
        notes.append(
            f"column {column!r} has {len(classes)} different values in {num_rows} rows, so it seems to hold no "
            f"classes; if so, leave out --label"
        )
    if gaps := [name for name in classes if name.strip().lower() in GAPS]:
        notes.append(
            f"column {column!r} holds {', '.join(map(repr, gaps))}, which is taken as a class; if it stands for a "
            f"missing label, fill it in or leave these rows out"
        )
    alike: dict[str | float, list[str]] = {}
    for name in classes:
        value = number_in(name)
        alike.setdefault(name.strip().casefold() if value is None else value, []).append(name)
    if pairs := [names for names in alike.values() if len(names) > 1]:
        shown = "; ".join(", ".join(map(repr, names)) for names in pairs[:3])
        notes.append(f"column {column!r} has classes that may be the same: {shown}; if so, write them alike")
    return notes


def number_in(cell: str) -> float | None:
    """Return the number that a cell of a table holds, if it holds one that a store can keep."""
    try:
        value = float(cell)
    except ValueError:
        return None
    if "_" in cell:  # a code such as 12_05, which Python reads as 1205
        return None
    return value if math.isfinite(value) and abs(value) < LARGEST_NUMBER else None
