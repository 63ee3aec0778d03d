"""What a run remembers of the data that it was trained on."""

import re
from dataclasses import dataclass, replace
from typing import Self

from bype.data.files import printable
from bype.data.manifest import check_examples, require
from bype.data.store import Store

_NUMBERED = re.compile(r"column \d+")
"""The name of a column in a table without a first line of names."""


@dataclass(frozen=True)
class DataIdentity:
    """Enough to find the data again, to recognise them, and to use the model without them."""

    store: str
    """Its folder; empty if the run came without it, or if the path is no text."""
    fingerprint: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    num_train: int
    classes: tuple[str, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that a store may hold such examples."""
        check_examples(self.shape, self.dtype, self.names)
        require(self.num_train >= 1, f"num_train must be at least 1, not {self.num_train}")

    def class_number(self, name: str) -> int:
        """Return the label of a class."""
        if name not in self.classes:
            known = (
                f"there are {', '.join(self.classes)}"
                if self.classes
                else ("the run has no classes: its images were not in subfolders, or no column of labels was named")
            )
            raise ValueError(f"there is no class {name!r}; {known}")
        return self.classes.index(name)

    def without_place(self) -> Self:
        """Return the same without the store's folder: a path names users and machines."""
        return replace(self, store="")

    def columns_to_find(self) -> tuple[str, ...]:
        """Return the columns to look for in a new table; none, if they were only numbered and all were features."""
        numbered = tuple(f"column {k}" for k in range(len(self.names)))
        return () if self.names == numbered and not self.classes else self.names

    def column_names(self) -> list[str]:
        """Return the names of the columns of a table, which may be their numbers."""
        return list(self.names) or [f"column {k}" for k in range(self.shape[0])]

    @classmethod
    def of(cls, store: Store) -> Self:
        """Describe a store."""
        manifest, place = store.manifest, str(store.folder.absolute())
        return cls(
            store=place if printable(place) == place else "",  # JSON keeps no path that is no UTF-8
            fingerprint=manifest.fingerprint,
            source=manifest.source,
            shape=manifest.shape,
            dtype=manifest.dtype,
            num_train=manifest.splits["train"].num_rows,
            classes=manifest.classes,
            names=manifest.names,
        )


def own_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of columns, or none if they were only numbered.

    Examples
    --------
    >>> own_names(("column 0", "column 1"))
    ()
    """
    return () if all(map(_NUMBERED.fullmatch, names)) else names


def different_column(trained: tuple[str, ...], found: tuple[str, ...]) -> str | None:
    """Say in which column two tables of one shape differ; nothing, if they agree, or if one of them has no names.

    Examples
    --------
    >>> different_column(("mass", "length"), ("length", "mass"))
    "column 0 is called 'length' instead of 'mass'"
    """
    if not own_names(trained) or not own_names(found):
        return None
    pairs = enumerate(zip(trained, found, strict=True))
    return next((f"column {k} is called {new!r} instead of {old!r}" for k, (old, new) in pairs if old != new), None)
