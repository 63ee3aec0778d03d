"""Parquet files: columns of numbers, or a column of images as in data sets on the Hugging Face hub."""

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bype.data.decode import decode
from bype.data.files import name_of, parse_json
from bype.data.sources.base import (
    AS_FOR_TRAINING,
    MAX_CLASSES,
    Chunk,
    Pool,
    Source,
    SourceError,
    SourceOptions,
    as_floats,
    can_be_stored,
    no_column,
    numbered,
    remedy_for,
    require_distinct,
    require_package,
    shares,
    split_named,
    wanted_columns,
)
from bype.data.sources.classes import in_order, notes_on_classes
from bype.data.sources.image_files import ImageFile, open_image_files

_NO_NUMBERS = "drop it, or name it with --label if it is the label"
_BATCH_ROWS = 1024
_BATCH_PICTURES = 16
"""A photograph may take megabytes."""


def is_parquet_folder(folder: Path) -> bool:
    """Tell whether a folder holds parquet files."""
    return next(_parquet_files(folder), None) is not None


def _parquet_files(folder: Path) -> Iterator[Path]:
    """Find the parquet files in a folder, without hidden ones: editors keep copies of files in hidden folders."""
    for path in folder.rglob("*.[pP][aAqQ]*"):  # not "*": a folder may hold a million images
        if path.suffix.lower() not in (".parquet", ".pq") or not path.is_file():
            continue
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def open_parquet(path: Path, options: SourceOptions) -> Source:
    """Open a parquet file, or a folder of them.

    If a column holds images, these are the examples. Otherwise all columns are features: numbers, or lists of
    numbers of one length. The column called ``label``, or the one that ``options.label`` names, is the label. Files
    or folders named after splits, such as train-00000.parquet, are these splits.
    """
    files = sorted(_parquet_files(path)) if path.is_dir() else [path]
    _refuse_partitions(path, files)
    by_split: dict[str | None, list[Path]] = {}
    for file in files:
        by_split.setdefault(_split_of(file.relative_to(path)), []).append(file)
    if len(by_split) > 1 and (None in by_split or "train" not in by_split):
        raise SourceError(
            f"{path}: some files are named after splits and others are not, or none is for train; rename the files"
        )
    if None not in by_split:
        _refuse_configurations(path, by_split)
    if len(by_split) == 1:
        by_split = {None: files}
    folder = path if path.is_dir() else path.parent
    has_names = len(files) > 1  # of several files, a row alone says too little
    tables = {split: _Table(folder, own, options, has_names) for split, own in by_split.items()}
    first, *others = tables.values()
    for other in others:
        if other.columns != first.columns:
            raise SourceError(f"{other.files[0]} has different columns from {first.files[0]}")
        other.features = first.features  # in one order: each file may have its own
    if options.size is not None and first.picture_column is None:
        raise SourceError(f"--size is for images, and {path} has no column of pictures; leave it out")
    name = f"parquet {name_of(path)}"
    classes, numbers = _classes([*tables.values()])
    if first.picture_column is not None:
        splits = {split: (lambda table=table: table.pictures(numbers)) for split, table in tables.items()}
        opened = open_image_files(name, splits, options, tuple(classes or ()), numbers is not None)
        return replace(opened, unused=first.unused)
    width = first.width()
    pools = tuple(
        Pool(
            None if split == "train" else split,
            table.num_rows,
            lambda table=table: numbered(table.chunks(width, numbers)),  # type: ignore[misc]
            *shares(tables, split),
        )
        for split, table in tables.items()
    )
    names = first.features if width == len(first.features) else []
    noted = () if options.is_for_a_model else classes or ()
    return Source(
        name,
        (width,),
        "float32",
        pools,
        numbers is not None,
        tuple(classes or ()),
        tuple(names),
        unused=first.unused,
        notes=notes_on_classes(first.label or "", noted, sum(table.num_rows for table in tables.values())),
    )


def _refuse_partitions(path: Path, files: Sequence[Path]) -> None:
    """Refuse a column that is in the names of folders only."""
    for file in files:
        for part in file.relative_to(path).parts[:-1]:
            if "=" in part.strip("="):
                column = part.partition("=")[0]
                raise SourceError(
                    f"{path}: column {column!r} is in the names of folders ({part}) and not in the files; write one "
                    f"file with all columns, for instance with pandas: "
                    f"pandas.read_parquet({name_of(path)!r}).to_parquet('all.parquet')"
                )


def _refuse_configurations(path: Path, by_split: Mapping[str | None, list[Path]]) -> None:
    """Refuse several data sets in one folder: their splits may share examples."""
    files = [file.relative_to(path) for own in by_split.values() for file in own]
    places = {"/".join(part for part in file.parts[:-1] if split_named(part) is None) or "." for file in files}
    if len(places) > 1:
        named = ", ".join(sorted(places))
        raise SourceError(f"{path} has files of splits in several folders ({named}); give one of these folders")


def _split_of(path: Path) -> str | None:
    words = map(split_named, reversed([*path.parts[:-1], path.stem]))
    return next((word for word in words if word is not None), None)


def _classes(tables: Sequence["_Table"]) -> tuple[list[str] | None, dict[Any, int] | None]:
    """Return the names of the classes, and the number of the class of each label; nothing if there are no labels."""
    first = tables[0]
    if first.label is None:
        return None, None
    known = first.class_names()
    names = [] if known is None else known
    numbers: dict[Any, int] = {(k if first.has_number_labels else name): k for k, name in enumerate(names)}
    if known is not None and not first.may_lack_labels:
        return names, numbers
    try:
        found = {label for table in tables for label in table.distinct_labels()}
    except SourceError:
        if not first.may_lack_labels:
            raise
        found = None
    if found is None or (known is not None and not found <= set(numbers)):
        for table in tables:
            table.leave_labels()
        return None, None
    if known is not None:
        return names, numbers
    labels = sorted(found) if first.has_number_labels else in_order(found)
    return [*map(str, labels)], {label: k for k, label in enumerate(labels)}


class _Table:
    """Parquet files of one split, read as a stream of batches."""

    def __init__(self, folder: Path, files: Sequence[Path], options: SourceOptions, has_names: bool) -> None:
        require_package("pyarrow")
        label = options.label
        self._arrow = importlib.import_module("pyarrow")
        self._parquet = importlib.import_module("pyarrow.parquet")
        self.files = files
        self._folder, self._has_names = folder, has_names
        schemas = []
        self.num_rows = 0
        for path in files:
            try:
                with self._parquet.ParquetFile(path) as file:
                    schemas.append(file.schema_arrow)
                    self.num_rows += file.metadata.num_rows
            except (OSError, UnicodeDecodeError, self._arrow.ArrowException) as error:
                raise SourceError(f"cannot read {path}: {error}") from error
            if not schemas[-1].equals(schemas[0]):
                raise SourceError(f"{path} has different columns from {files[0]}")
        if self.num_rows == 0:
            raise SourceError(f"{files[0]} has no rows")
        self._schema = schemas[0]
        self.columns = {field.name: str(field.type) for field in self._schema}
        if label is not None and label not in self.columns:
            raise no_column(files[0], label, [*self.columns])
        is_usual = "label" in self.columns and "label" not in options.columns
        self.label = label if label is not None else "label" if is_usual else None
        self.may_lack_labels = label is None and options.is_for_a_model
        """Whether a model takes these examples, which needs no labels."""
        index = self._index_columns()
        left_out = {self.label} | index
        types = self._arrow.types
        if self.label is not None:
            kind = self._schema.field(self.label).type
            if not (types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)):
                if not self.may_lack_labels:
                    raise SourceError(
                        f"{files[0]}: column {self.label!r} holds {kind}; labels must be whole numbers or text: "
                        f"cast them"
                    )
                self.label = None
        self.has_number_labels = self.label is not None and types.is_integer(self._schema.field(self.label).type)
        pictures = [field.name for field in self._schema if field.name != self.label and self._is_picture(field.type)]
        if len(pictures) > 1:
            raise SourceError(f"{files[0]} has several columns of images: {', '.join(pictures)}; keep one")
        self.picture_column = pictures[0] if pictures else None
        self.features = [] if pictures else [name for name in self.columns if name not in left_out]
        if not set(options.columns).isdisjoint(self.features):
            self.features = wanted_columns(files[0], self.columns, options.columns)
        known = {self.label, *self.features, *pictures} | index
        self.unused: tuple[str, ...] = tuple(name for name in self.columns if name not in known)
        used = {self.label, self.picture_column, *self.features}
        require_distinct(files[0], [name for name in self._schema.names if name in used])
        is_for_features = bool(options.columns) or len(options.shape or ()) == 1  # what a trained model takes
        for name in self.features:
            self._require_numbers(name, AS_FOR_TRAINING if is_for_features else _NO_NUMBERS)
        if not pictures and not self.features:
            raise SourceError(f"{files[0]} has neither images nor features")

    def _is_picture(self, kind: Any) -> bool:
        types = self._arrow.types
        if types.is_struct(kind):
            fields = [kind.field(k) for k in range(kind.num_fields)]
            return any(field.name == "bytes" and self._is_binary(field.type) for field in fields)
        return self._is_binary(kind)

    def _is_binary(self, kind: Any) -> bool:
        return bool(self._arrow.types.is_binary(kind) or self._arrow.types.is_large_binary(kind))

    def _require_numbers(self, name: str, remedy: str) -> None:
        types, kind = self._arrow.types, self._schema.field(name).type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            kind = kind.value_type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise SourceError(f"{self.files[0]}: column {name!r} holds {kind}, neither numbers nor images; {remedy}")

    def _index_columns(self) -> set[str]:
        """Return the columns that pandas wrote for the index of a table, which numbers its rows."""
        try:
            written = parse_json((self._schema.metadata or {}).get(b"pandas", b"{}"))
            known = {name for name in written.get("index_columns", []) if isinstance(name, str)}
        except (ValueError, AttributeError, TypeError):
            known = set()
        return known | {name for name in self.columns if re.fullmatch(r"__index_level_\d+__", name)}

    def leave_labels(self) -> None:
        """Take no labels from the files."""
        self.unused, self.label = (*self.unused, str(self.label)), None

    def class_names(self) -> list[str] | None:
        """Return the names of the classes, if the files come from the hub and contain them."""
        try:
            known = parse_json((self._schema.metadata or {}).get(b"huggingface", b"{}"))
            return decode(list[str], known["info"]["features"][self.label]["names"])
        except (ValueError, KeyError, TypeError):
            return None

    def _batches(self, columns: list[str]) -> Iterator[tuple[str, int, Any]]:
        """Go through the rows: a file's name, the number of a batch's first row in it, and the batch."""
        size = _BATCH_PICTURES if self.picture_column in columns else _BATCH_ROWS
        for path in self.files:
            first = 0
            try:
                with self._parquet.ParquetFile(path) as file:
                    for batch in file.iter_batches(batch_size=size, columns=columns):
                        yield path.relative_to(self._folder).as_posix(), first, batch
                        first += batch.num_rows
            except (OSError, UnicodeDecodeError, self._arrow.ArrowException) as error:
                raise SourceError(f"cannot read {path}: {error}") from error

    def distinct_labels(self) -> set[Any]:
        """Return the labels that occur."""
        distinct: set[Any] = set()
        for name, first, batch in self._batches([self.label or ""]):
            labels = batch.column(0).to_pylist()
            is_missing = [label is None or (isinstance(label, str) and not label.strip()) for label in labels]
            if True in is_missing:
                row = first + is_missing.index(True)
                raise SourceError(
                    f"{name}: column {self.label!r} has no label in row {row}; fill it in, or leave the row out"
                )
            distinct |= set(labels)
            if len(distinct) > MAX_CLASSES:
                raise SourceError(f"column {self.label!r} has over {MAX_CLASSES} values; choose another --label")
        return distinct

    def _labels(self, name: str, first: int, batch: Any, numbers: Mapping[Any, int] | None) -> NDArray[np.int32] | None:
        if numbers is None:
            return None
        labels = batch.column(self.label).to_pylist()
        found = [numbers.get(label, -1) for label in labels]
        if -1 in found:
            row = found.index(-1)
            raise SourceError(
                f"{name}: column {self.label!r}, row {first + row}, holds {labels[row]!r}, which is no class of the "
                f"data set; leave such rows out, or the column if you want no labels"
            )
        return np.array(found, dtype=np.int32)

    def pictures(self, numbers: Mapping[Any, int] | None) -> Iterator[ImageFile]:
        """Go through the images."""
        columns = [name for name in (self.picture_column, self.label) if name is not None]
        for name, first, batch in self._batches(columns):
            labels = self._labels(name, first, batch, numbers)
            for k, value in enumerate(batch.column(self.picture_column).to_pylist()):
                content = value.get("bytes") if isinstance(value, dict) else value
                yield ImageFile(
                    f"{name} row {first + k}", BytesIO(content or b""), 0 if labels is None else int(labels[k])
                )

    def width(self) -> int:
        """Return how many features a row has."""
        name, _, batch = next(self._batches(self.features), ("", 0, None))
        if batch is None:
            raise SourceError(f"{self.files[0]} is damaged: its rows are missing; copy or download it again")
        return int(self._rows(name, 0, batch.slice(0, 1)).shape[1])

    def _rows(self, file: str, first: int, batch: Any) -> NDArray[np.floating]:
        parts = []
        for name in self.features:
            column = batch.column(name)
            if self._arrow.types.is_nested(column.type):
                if column.null_count or len({len(value) for value in column}) > 1:
                    raise SourceError(f"{file}: lists in column {name!r} differ in length from row {first} on")
                part = column.flatten().to_numpy(zero_copy_only=False).reshape(batch.num_rows, -1)
            else:
                part = column.to_numpy(zero_copy_only=False)[:, None]
            part = as_floats(part)
            if not can_be_stored(part).all():
                row = first + int(np.flatnonzero(~can_be_stored(part).all(1))[0])
                remedy = remedy_for(part[row - first])
                raise SourceError(f"{file}: column {name!r}, row {row}: not a finite number; {remedy}")
            parts.append(part)
        return np.concatenate(parts, axis=1)

    def chunks(self, width: int, numbers: Mapping[Any, int] | None) -> Iterator[Chunk]:
        """Read features and labels."""
        columns = [*self.features, *([self.label] if numbers is not None and self.label else [])]
        for name, first, batch in self._batches(columns):
            rows = self._rows(name, first, batch)
            if rows.shape[1] != width:
                raise SourceError(f"{name}: from row {first} on, rows have {rows.shape[1]} features instead of {width}")
            names = [f"{name} row {first + k}" for k in range(len(rows))] if self._has_names else None
            yield Chunk(rows, self._labels(name, first, batch, numbers), names)
