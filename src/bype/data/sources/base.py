"""What all sources share."""

import importlib.util
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bype.wording import did_you_mean

CHUNK_BYTES = 2**22
MAX_CLASSES = 100_000
SPLIT_NAMES = {"train": "train", "training": "train", "validation": "validation", "valid": "validation",
               "val": "validation", "dev": "validation", "test": "test", "testing": "test"}  # fmt: skip
"""Words that say which split a file or a folder is, in lower case."""

_NAMED = 10


class SourceError(ValueError):
    """Data that cannot be read, and why."""


class DifferentSizesError(SourceError):
    """Images of different sizes, and no size was chosen; ``example`` names two of them."""

    def __init__(self, example: str) -> None:
        super().__init__(f"the images have different sizes: {example}; choose one with --size, for instance --size 64")
        self.example = example


class Chunk(NamedTuple):
    """Some examples of a source: rows (n, *shape), labels (n,) if there are any, and origins.

    An origin is a name, such as that of an image file. Without origins, examples are known by their positions.

    Pixels are bytes. Features are floats with all the digits that the user has: a store holds float32, and ``prepare``
    refuses columns for which these are too few.
    """

    rows: NDArray[Any]
    labels: NDArray[np.int32] | None = None
    origins: list[str] | None = None


@dataclass(frozen=True)
class Pool:
    """Examples that are still to be divided into splits, or that form one split.

    Attributes
    ----------
    split
        ``None`` if they are to be divided, else the split that they all belong to.
    num_rows
        How many there are, including those that turn out to be unreadable.
    read
        Starts reading them: chunks of examples, each with the positions in the pool that it holds. Examples
        that cannot be read are left out.
    validation
        How many of them, or what share, become the validation split by default.
    test
        The same for the test split.
    shuffled
        Whether validation and test examples are drawn at random; otherwise they are the last ones.
    """

    split: str | None
    num_rows: int
    read: Callable[[], Iterator[tuple[NDArray[np.int64], Chunk]]]
    validation: float = 0.0
    test: float = 0.0
    shuffled: bool = True


@dataclass(frozen=True)
class Source:
    """Examples of one shape from one place."""

    description: str
    shape: tuple[int, ...]
    dtype: str
    pools: tuple[Pool, ...]
    has_labels: bool
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    skipped: list[str] = field(default_factory=list)
    """What could not be read, and why; filled while reading."""
    notes: list[str] = field(default_factory=list)
    """What seems to be wrong with the examples as a whole; filled while reading."""
    unused: tuple[str, ...] = ()
    """Columns of a table, or arrays of an archive, that are not taken."""
    why_no_labels: str = ""
    """Why the examples have none, if they seem to be in folders of classes."""


@dataclass(frozen=True)
class SourceOptions:
    """What a user may set about the data."""

    label: str | None = None
    """The column of a table that holds the label."""
    size: int | None = None
    """Crop images to a square, and resize them to this height and width."""
    shape: tuple[int, ...] | None = None
    """Of the examples that a model takes: images are brought to it."""
    columns: tuple[str, ...] = ()
    """The features that a model takes: those columns of a table with names are taken, in this order."""

    @property
    def is_for_a_model(self) -> bool:
        """Whether a trained model takes the examples."""
        return bool(self.columns or self.shape)


def shares(splits: Collection[str | None], split: str | None) -> tuple[float, float]:
    """Return the default shares of a split for validation and test: a tenth for each that does not exist yet."""
    if split not in (None, "train"):
        return 0.0, 0.0
    return tuple(0.0 if name in splits else 0.1 for name in ("validation", "test"))  # type: ignore[return-value]


def split_named(name: str) -> str | None:
    """Return the split that a name such as ``train2017`` or ``test-00000`` has a word for, if there is one."""
    return next((SPLIT_NAMES[word] for word in re.split(r"[^a-z]+", name.lower()) if word in SPLIT_NAMES), None)


def no_column(file: Path, label: str, names: Sequence[str]) -> SourceError:
    """Return the error that there is no such column; of many names only the first are listed, and the nearest."""
    return SourceError(f"{file} has no column {label!r}; it has {_listed(names)}{did_you_mean(label, names)}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} others" if len(names) > _NAMED else "")


def wanted_columns(file: Path, names: Collection[str], wanted: tuple[str, ...]) -> list[str]:
    """Return the columns that a model takes, or say which are not there."""
    there = set(names)
    lacking = [name for name in wanted if name not in there]
    if len(lacking) == 1:
        name = lacking[0]
        raise SourceError(f"{file} has no column {name!r}, which the model takes{did_you_mean(name, names)}")
    if lacking:
        some = _listed([repr(name) for name in lacking])
        raise SourceError(
            f"{file} lacks {len(lacking)} of the {len(wanted)} columns that the model takes: {some}; "
            f"rename columns or add them, in any order"
        )
    return list(wanted)


def require_distinct(file: Path, names: Collection[str]) -> None:
    """Refuse columns of one name: nobody could say which of them is meant."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SourceError(f"{file} has several columns called {name!r}; give each a name of its own")
        seen.add(name)


FILL_GAPS = "fill gaps first, for instance with scikit-learn: SimpleImputer().fit_transform(table)"
"""What to do about a table with gaps."""
AS_FOR_TRAINING = (
    "the model takes numbers: write them as for training, dates and other text as the same numbers, without thousands "
    "separators and units; remove the column if the model was trained without it"
)
"""What to do about text in a table that a trained model takes."""
REPLACE_INFINITE = "replace infinite values by numbers, or by nan and then impute"
"""What to do about a table with numbers that are too large: scikit-learn fills gaps only."""


LARGEST_NUMBER = 3e38
"""A store holds features in float32."""


def as_floats(numbers: NDArray[Any]) -> NDArray[np.floating]:
    """Return numbers as floats without losing a digit: in float32 where that is enough, else in float64."""
    kind = np.float64 if numbers.dtype == object else np.result_type(numbers.dtype, np.float32)
    return numbers.astype(kind, copy=False)


def can_be_stored(numbers: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Tell which numbers are finite in float32."""
    return np.asarray(np.abs(numbers) < np.float64(LARGEST_NUMBER))  # float16 cannot hold that limit


def remedy_for(numbers: NDArray[np.floating]) -> str:
    """Say what to do about numbers of which some cannot be stored."""
    return REPLACE_INFINITE if (np.abs(numbers) >= np.float64(LARGEST_NUMBER)).any() else FILL_GAPS


def require_package(name: str) -> None:
    """Raise an error if a package that an optional part of bype needs is not installed."""
    if importlib.util.find_spec(name) is None:
        raise SourceError(f"this needs {name}; install it with: pip install {name.replace('_', '-')}")


def numbered(chunks: Iterator[Chunk]) -> Iterator[tuple[NDArray[np.int64], Chunk]]:
    """Give each example its position, for chunks that leave no example out."""
    start = 0
    for chunk in chunks:
        yield np.arange(start, start + len(chunk.rows), dtype=np.int64), chunk
        start += len(chunk.rows)
