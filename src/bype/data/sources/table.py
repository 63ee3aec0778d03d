"""Tables of numbers in .csv files."""

import csv
import gzip
import itertools
import math
import operator
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bype.data.sources.base import (
    AS_FOR_TRAINING,
    CHUNK_BYTES,
    FILL_GAPS,
    MAX_CLASSES,
    REPLACE_INFINITE,
    Chunk,
    Pool,
    Source,
    SourceError,
    SourceOptions,
    no_column,
    numbered,
    require_distinct,
    wanted_columns,
)
from bype.data.sources.classes import FEW_ROWS, GAPS, in_order, notes_on_classes, number_in

_ENCODE_TEXT = (
    "name it with --label if it is the label; turn dates into numbers, and remove thousands separators; turn other "
    "text into numbers first, for instance with pandas.get_dummies(table, columns=[...], dtype=float)"
)
_WRITE_POINTS = "write numbers with decimal points, and without thousands separators"
_CHUNK_LINES = 4096
_MAX_LINE_CHARACTERS = 2**24
"""A store has no room for the names of the columns that a longer line would have."""
_CELL_BYTES = 40
"""What a number takes as an object of Python, in a list."""


def open_table(path: Path, options: SourceOptions) -> Source:
    """Open a table: every column is a feature, except the one that ``options.label`` names.

    Without a first line of names, ``options.columns`` are looked for only if the table has one column more: the labels.
    """
    table = _Table(path, options)
    pool = Pool(None, table.num_rows, lambda: numbered(table.chunks()), validation=0.1, test=0.1)
    return Source(
        f"table {path.name}",
        (len(table.features),),
        "float32",
        (pool,),
        table.label_column is not None,
        tuple(table.classes),
        tuple(table.features),
        unused=tuple(table.unused),
        notes=notes_on_classes(options.label or "", table.classes, table.num_rows),
    )


class _Table:
    """A table, read once to count lines and classes."""

    def __init__(self, path: Path, options: SourceOptions) -> None:
        label, wanted = options.label, options.columns
        self.path = path
        self._delimiter = "\t" if path.name.lower().endswith((".tsv", ".tsv.gz")) else ","
        _, first = next(self._cells(), (0, []))
        if not first:
            raise SourceError(f"{path} is empty")
        self._refuse_other_separator(first)
        self._for_text = AS_FOR_TRAINING if options.is_for_a_model else _ENCODE_TEXT
        self.has_header = _is_header(path, first)
        self.columns = first if self.has_header else [f"column {k}" for k in range(len(first))]
        if not all(name.strip() for name in self.columns):
            raise SourceError(
                f"{path}: column {[bool(name.strip()) for name in first].index(False) + 1} has no name; if it is the "
                f"index of a pandas table, write the file with to_csv(..., index=False), else give it a name"
            )
        if label is not None and label not in self.columns:
            raise no_column(path, label, self.columns)
        self.label_column = None if label is None else self.columns.index(label)
        self.features = [name for k, name in enumerate(self.columns) if k != self.label_column]
        has_labels = len(self.columns) == len(wanted) + 1  # else columns without names are features, in their order
        if (self.has_header or has_labels) and not set(wanted).isdisjoint(self.columns):
            self.features = wanted_columns(path, self.columns, wanted)
        used = {label, *self.features}
        require_distinct(path, [name for name in self.columns if name in used])
        place_of = {name: place for place, name in enumerate(self.columns)}
        self._places = [place_of[name] for name in self.features]
        self.unused = [name for name in self.columns if name not in used]
        if not self.features:
            raise SourceError(f"{path} has no column of features")
        classes: set[str] = set()
        self.num_rows = 0
        names = _Outside(first) if not self.has_header else None
        for line, cells in self._lines():
            self.num_rows += 1
            if names is not None and self.num_rows > 1:
                names.compare(cells)
            if self.label_column is not None:
                if not (name := cells[self.label_column].strip()):
                    raise SourceError(f"{path}, line {line}: {label!r} is empty; fill it in, or leave the line out")
                classes.add(name)
                if len(classes) > MAX_CLASSES:
                    raise SourceError(f"{path}: {label!r} has over {MAX_CLASSES} values; choose another --label")
        if self.num_rows == 0:
            raise SourceError(f"{path} has no lines below its header")
        if names is not None and names.are_likely(self.num_rows):
            raise SourceError(
                f"{path}: the first line, {', '.join(first[:3])}, ..., seems to hold the names of the columns, but "
                f"they are numbers; put a letter before each name; if the line is an example, "
                f"write a line of names above it"
            )
        self.classes = in_order(classes)

    def _refuse_other_separator(self, first: list[str]) -> None:
        for other, name in ((";", "';'"), ("\t", "tabs")):
            if len(first) == 1 and other in first[0]:
                way_out = "call it .tsv" if other == "\t" else "write it with commas, and with decimal points"
                raise SourceError(f"{self.path}: its columns seem to be separated by {name}; {way_out}")

    def _cells(self) -> Iterator[tuple[int, list[str]]]:
        """Read all lines that are not blank, with their numbers."""
        opening = gzip.open if self.path.suffix.lower() == ".gz" else open
        with opening(self.path, "rt", newline="", encoding="utf-8-sig") as file:
            left, text = _MAX_LINE_CHARACTERS, ""

            def lines() -> Iterator[str]:
                nonlocal left, text
                while text := file.readline(left + 1):
                    left -= len(text)  # quotes may hold a break, so that a line of cells has several of text
                    if left < 0:
                        raise SourceError(
                            f"{self.path}, line {reader.line_num + 1}: over {_MAX_LINE_CHARACTERS:,} characters in a "
                            f"line; give each example a line of its own"
                        )
                    yield text

            reader = csv.reader(lines(), delimiter=self._delimiter, strict=True, skipinitialspace=True)
            try:
                for cells in reader:
                    left = _MAX_LINE_CHARACTERS
                    if cells:
                        yield reader.line_num, cells
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"{self.path} is not UTF-8 text (after line {reader.line_num}); save it as UTF-8"
                ) from error
            except csv.Error as error:
                if reader.line_num <= 1:  # with another separator, quotes end in the middle of a cell
                    self._refuse_other_separator(text.split(self._delimiter))
                raise SourceError(
                    f"{self.path}, line {reader.line_num}: {error}; check the quotes in that line and before it"
                ) from error
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise SourceError(f"{self.path}, line {reader.line_num}: {error}") from error

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Read the lines of examples."""
        lines = self._cells()
        if self.has_header:
            next(lines)
        for line, cells in lines:
            if len(cells) != len(self.columns):
                raise SourceError(
                    f"{self.path}, line {line}: {len(cells)} cells instead of {len(self.columns)}; correct that line"
                )
            yield line, cells

    def chunks(self) -> Iterator[Chunk]:
        numbers = {name: k for k, name in enumerate(self.classes)}
        most = max(1, min(_CHUNK_LINES, CHUNK_BYTES // (_CELL_BYTES * len(self.columns))))
        rows: list[list[float]] = []
        labels: list[int] = []
        for line, cells in self._lines():
            if self.label_column is not None:
                labels.append(numbers[cells[self.label_column].strip()])
            cells = [cells[place] for place in self._places]
            values = [number_in(cell) for cell in cells]
            if None in values:
                column, cell = self.features[values.index(None)], cells[values.index(None)]
                remedy = _remedy(cell, self._for_text)
                raise SourceError(f"{self.path}, line {line}: column {column!r} holds {cell!r}, not a number; {remedy}")
            rows.append(values)  # type: ignore[arg-type]
            if len(rows) == most:
                yield self._chunk(rows, labels)
                rows, labels = [], []
        if rows:
            yield self._chunk(rows, labels)

    def _chunk(self, rows: list[list[float]], labels: list[int]) -> Chunk:
        has_labels = self.label_column is not None
        return Chunk(np.array(rows), np.array(labels, dtype=np.int32) if has_labels else None)


class _Outside:
    """Tells whether a first line of numbers is likely to hold names of columns, such as years or wavelengths.

    They increase from column to column, and no other row has a number as large, or none as small, in any column.
    """

    def __init__(self, first: list[str]) -> None:
        numbers = [number_in(cell) for cell in first]
        known = [number for number in numbers if number is not None]
        increase = len(known) > 2 and all(a < b for a, b in itertools.pairwise(known))
        self._numbers = known if increase else []
        self._is_above, self._is_below = [increase] * len(known), [increase] * len(known)

    def compare(self, cells: list[str]) -> None:
        """Compare with the cells of another line."""
        if not self._numbers:
            return
        for place, (number, cell) in enumerate(zip(self._numbers, cells, strict=True)):
            other = number_in(cell)
            if other is not None:
                self._is_above[place] &= number > other
                self._is_below[place] &= number < other
        if not all(map(operator.or_, self._is_above, self._is_below)):
            self._numbers = []

    def are_likely(self, num_rows: int) -> bool:
        """Tell what came out; a few rows say nothing."""
        return bool(self._numbers) and num_rows > FEW_ROWS


def _is_header(path: Path, first: list[str]) -> bool:
    """Tell whether the first line holds names: they are no numbers. An example must not be taken for names.

    The numbers from 0 on are names too: so pandas calls the columns of an array.
    """
    if len(first) > 2 and first == [str(k) for k in range(len(first))]:
        return True
    are_numbers = [number_in(cell) is not None for cell in first]
    if all(are_numbers):
        return False
    if any(are_numbers) or all(cell.strip().lower() in GAPS for cell in first):
        strange = first[are_numbers.index(False)]
        raise SourceError(
            f"{path}: the first line is neither names nor numbers, it holds {strange[:40]!r} among numbers or gaps; "
            f"give the file a header line without numbers, and name the label column with --label; or use numbers only"
        )
    return True


def _remedy(cell: str, for_text: str) -> str:
    """Say what to do about a cell that holds no number; ``for_text``, if it holds text."""
    if "_" in cell:
        return for_text
    if cell.strip().lower() in ("true", "false"):
        return "write True and False as 1 and 0, for instance with pandas: table.astype(float)"
    try:
        return FILL_GAPS if math.isnan(float(cell)) else REPLACE_INFINITE
    except ValueError:
        if re.fullmatch(r"[-+\d.,' ]*\d,\d+", cell.strip()):
            return _WRITE_POINTS
        return FILL_GAPS if cell.strip().lower() in GAPS else for_text
