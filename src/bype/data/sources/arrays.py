"""NumPy arrays, .npy and .npz, read as streams."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy_format

from bype.data.sources.base import (
    CHUNK_BYTES,
    MAX_CLASSES,
    Chunk,
    Pool,
    Source,
    SourceError,
    SourceOptions,
    as_floats,
    can_be_stored,
    numbered,
    remedy_for,
)
from bype.data.sources.classes import in_order

_EXAMPLE_NAMES = ("x", "images", "data", "features")
_LABEL_NAMES = ("y", "label", "labels", "target", "targets")
_DAMAGED = (zipfile.BadZipFile, zlib.error, tokenize.TokenError)
_VALIDATION_NAMES = ("val", "valid", "validation")


def open_arrays(path: Path, options: SourceOptions) -> Source:
    """Open an array of examples, or an archive with examples and labels.

    In an archive the examples are called x, images, data or features, the labels y, label, labels, target or targets;
    or there are x_train, y_train, x_test and y_test, and perhaps x_val and y_val.
    """
    arrays = _Arrays(path)
    if {"x_train", "x_test"} <= set(arrays.headers):
        pairs = [(None, "x_train", "y_train"), ("test", "x_test", "y_test")]
        held_out = next((name for name in _VALIDATION_NAMES if f"x_{name}" in arrays.headers), None)
        if held_out is not None:
            pairs[0] = ("train", "x_train", "y_train")
            pairs.append(("validation", f"x_{held_out}", f"y_{held_out}"))
    else:
        named = [name for name in _EXAMPLE_NAMES if name in arrays.headers]
        examples = named[0] if named else next(iter(arrays.headers)) if len(arrays.headers) == 1 else None
        if examples is None:
            raise SourceError(
                f"{path} holds {', '.join(arrays.headers)}; call the examples {' or '.join(_EXAMPLE_NAMES)}, "
                f"the labels {' or '.join(_LABEL_NAMES)}; or the examples x_train and x_test, the labels y_train and "
                f"y_test"
            )
        pairs = [(None, examples, next((name for name in _LABEL_NAMES if name in arrays.headers), ""))]
    labelled = [labels in arrays.headers for _, _, labels in pairs]
    has_labels = all(labelled)
    if any(labelled) and not has_labels:
        missing = next(labels for _, _, labels in pairs if labels not in arrays.headers)
        raise SourceError(f"{path} has labels for some splits, but no {missing}; add it, or leave all labels out")
    unused = tuple(name for name in arrays.headers if not any(name in pair[1:] for pair in pairs))
    for name in arrays.headers:
        if name not in unused:
            arrays.require_usable(name, is_label=any(name == labels for _, _, labels in pairs))
    for _, examples, labels in pairs:
        if has_labels and arrays.headers[examples][0][0] != arrays.headers[labels][0][0]:
            lengths = [arrays.headers[name][0][0] for name in (examples, labels)]
            raise SourceError(f"{path}: {examples} has {lengths[0]:,} rows, {labels} has {lengths[1]:,}; give as many")
    layouts = {layout(path, *arrays.headers[examples]) for _, examples, _ in pairs}
    if len(layouts) > 1:
        raise SourceError(f"the arrays in {path} have different shapes or types")
    shape, dtype, channels_last = layouts.pop()
    numbers = arrays.numbers_of_classes([labels for _, _, labels in pairs]) if has_labels else {}
    pools = tuple(
        Pool(
            split,
            arrays.headers[examples][0][0],
            lambda examples=examples, labels=labels: numbered(  # type: ignore[misc]
                arrays.chunks(examples, labels if has_labels else None, numbers, shape, dtype, channels_last)
            ),
            validation=0.1 if split is None else 0.0,
            test=0.1 if split is None and len(pairs) == 1 else 0.0,
        )
        for split, examples, labels in pairs
    )
    classes = tuple(map(str, numbers))
    return Source(f"arrays in {path.name}", shape, dtype, pools, has_labels, classes, unused=unused)


Label = int | str
_MAX_LABEL_BYTES = 4_000
"""Text takes four bytes for each character."""

Header = tuple[tuple[int, ...], np.dtype[Any]]
_MAX_COLUMN_MAJOR_BYTES = 2**32
"""Arrays in Fortran order are held in memory, since their rows are not in one piece; larger ones are refused."""


def layout(path: Path | str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[tuple[int, ...], str, bool]:
    """Return the shape of one example, how it is stored, and whether channels come last."""
    if len(shape) == 2:
        if dtype.kind not in "fiu":
            way_out = "; save x.astype(float)" if dtype.kind == "b" else ""
            raise SourceError(f"{path}: features must be numbers, not {dtype}{way_out}")
        return shape[1:], "float32", False
    if len(shape) not in (3, 4) or dtype != np.uint8:
        way_out = "turn images x from 0 to 1 into bytes with (255 * x).round().astype('uint8')"
        if dtype.kind in "iu":
            way_out = "if these are pixels x from 0 to 255, turn them into bytes with x.astype('uint8')"
        if len(shape) == 1:
            way_out = "if these are rows x of one feature, give x[:, None]"
        raise SourceError(
            f"{path}: an array of shape {shape} and type {dtype} is neither images (uint8, (N, height, width), "
            f"(N, height, width, channels) or (N, channels, height, width)) nor features ((N, features)); {way_out}"
        )
    if len(shape) == 3:
        return (1, *shape[1:]), "uint8", False
    if shape[3] == 4 and shape[1] not in (1, 3):
        raise SourceError(f"{path}: images of shape {shape[1:]} seem to have an alpha channel; remove it")
    if shape[3] in (1, 3):
        return (shape[3], shape[1], shape[2]), "uint8", True
    if shape[1] in (1, 3):
        return shape[1:], "uint8", False
    raise SourceError(
        f"{path}: images of shape {shape[1:]} have neither 1 nor 3 channels, first or last; "
        f"keep 1 or 3 channels, or give features: array.reshape(len(array), -1)"
    )


class _Arrays:
    """The arrays of a .npy or .npz file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._members = {"x": None} if path.suffix.lower() == ".npy" else self._archive_members()
        self.headers: dict[str, Header] = {}
        self._is_column_major: dict[str, bool] = {}
        for name in self._members:
            with self._open(name) as (_, header, is_column_major):
                self.headers[name], self._is_column_major[name] = header, is_column_major
        if not self.headers:
            raise SourceError(f"{path} holds no arrays")

    def _archive_members(self) -> dict[str, str | None]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                members: dict[str, str | None] = {
                    name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")
                }
                lower = {name.lower(): member for name, member in members.items()}
                return lower if len(lower) == len(members) else members  # X is as good as x
        except (zipfile.BadZipFile, NotImplementedError, OSError) as error:
            raise SourceError(f"cannot read {self.path}: {error}") from error

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], Header, bool]]:
        """Open an array at its first number, with its header and whether it is in Fortran order."""
        member = self._members[name]
        try:
            if member is None:
                with self.path.open("rb") as file:
                    yield file, *self._read_header(file)
            else:
                with zipfile.ZipFile(self.path) as archive, archive.open(member) as file:
                    yield file, *self._read_header(file)
        except (*_DAMAGED, OSError, EOFError, ValueError, RuntimeError) as error:
            if isinstance(error, SourceError):
                raise
            raise SourceError(f"cannot read {self.path}: {error}") from error

    def _read_header(self, file: IO[bytes]) -> tuple[Header, bool]:
        version = npy_format.read_magic(file)
        if version == (1, 0):
            shape, column_major, dtype = npy_format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, column_major, dtype = npy_format.read_array_header_2_0(file)
        else:
            raise SourceError(f"{self.path} has an unknown version of NumPy's format, {version}")
        return (shape, dtype), column_major and len(shape) > 1

    def require_usable(self, name: str, is_label: bool) -> None:
        """Refuse an array that cannot be read as a stream."""
        shape, dtype = self.headers[name]
        what = f"{self.path}: the array {name!r}" if self.path.suffix.lower() == ".npz" else f"{self.path}: the array"
        if dtype.hasobject:
            kinds = "numbers or text; save it as one of these: array.astype(str)"
            kinds = kinds if is_label else "numbers; save it as numbers: array.astype(float)"
            raise SourceError(f"{what} holds Python objects, not {kinds}")
        if not shape or 0 in shape:
            raise SourceError(f"{what} has shape {shape}, which has no examples")
        if self._is_column_major[name] and math.prod(shape) * dtype.itemsize > _MAX_COLUMN_MAJOR_BYTES:
            raise SourceError(f"{what} is large and in Fortran order; save it with np.ascontiguousarray(array)")

    def _blocks(self, name: str) -> Iterator[np.ndarray[Any, Any]]:
        with self._open(name) as (file, (shape, dtype), is_column_major):
            step = max(1, CHUNK_BYTES // (math.prod(shape[1:]) * dtype.itemsize))
            whole = self._exactly(file, shape, dtype, "F") if is_column_major else None
            for first in range(0, shape[0], step):
                count = min(step, shape[0] - first)
                if whole is None:
                    yield self._exactly(file, (count, *shape[1:]), dtype, "C")
                else:
                    yield np.ascontiguousarray(whole[first : first + count])
            if file.read(1):  # at the end of its file, an archive also compares the checksum
                raise SourceError(f"{self.path}: the array {name!r} is longer than its header says; save it again")

    def _exactly(
        self, file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], order: Literal["C", "F"]
    ) -> np.ndarray[Any, Any]:
        size = math.prod(shape) * dtype.itemsize
        content = file.read(size)
        if len(content) != size:
            raise SourceError(f"{self.path} ends too early: it was cut off; copy or download it again")
        return np.frombuffer(content, dtype).reshape(shape, order=order)

    def _rows_of(self, name: str) -> Iterator[Label]:
        for block in self._blocks(name):
            yield from block.tolist()

    def numbers_of_classes(self, names: Sequence[str]) -> dict[Label, int]:
        """Return the number of the class of each label that occurs in arrays of labels."""
        found = [self._distinct_labels(name) for name in names]
        if len({self.headers[name][1].kind == "U" for name in names}) > 1:
            raise SourceError(f"{self.path}: {' and '.join(names)} hold numbers and text; make them alike")
        labels: list[Any] = sorted(set().union(*found))
        if "" in labels:
            raise SourceError(f"{self.path}: {' or '.join(names)} has an empty label; fill it in, or leave its row out")
        if labels and isinstance(labels[0], str):
            labels = in_order(labels)
        return {label: number for number, label in enumerate(labels)}

    def _distinct_labels(self, name: str) -> set[Label]:
        shape, dtype = self.headers[name]
        if len(shape) != 1 or dtype.kind not in "iuU" or not 0 < dtype.itemsize <= _MAX_LABEL_BYTES:
            is_table, is_column = len(shape) == 2, shape[1:] == (1,)
            better = "y.ravel()" if is_column else "y.argmax(1), if they are one-hot" if is_table else "y.astype(int)"
            better = "y.astype(str)" if dtype.kind == "S" else better
            raise SourceError(
                f"{self.path}: labels must be whole numbers, or text of up to {_MAX_LABEL_BYTES // 4} characters, one "
                f"for each example, not {dtype} of shape {shape}; save {better}"
            )
        found: set[Label] = set()
        for block in self._blocks(name):
            try:
                found |= {*np.unique(block).tolist()}
                "".join(map(str, found)).encode()
            except (ValueError, SystemError) as error:  # a damaged file, or a half of a character
                raise SourceError(f"{self.path}: the array {name!r} holds labels that are no text: {error}") from error
            if len(found) > MAX_CLASSES:
                raise SourceError(
                    f"{self.path}: the array {name!r} has over {MAX_CLASSES:,} values, so it does not hold classes; "
                    f"leave it out"
                )
        return found

    def chunks(
        self,
        examples: str,
        labels: str | None,
        numbers: Mapping[Label, int],
        shape: tuple[int, ...],
        dtype: str,
        channels_last: bool,
    ) -> Iterator[Chunk]:
        """Read examples and labels side by side; ``numbers`` are those of the classes, by label."""
        label_stream = self._rows_of(labels) if labels else None
        first = 0
        for block in self._blocks(examples):
            rows = block.transpose(0, 3, 1, 2) if channels_last else block.reshape(len(block), *shape)
            rows = as_floats(rows) if dtype == "float32" else rows
            if dtype == "float32" and not (known := can_be_stored(rows)).all():
                number = first + int(np.argmin(known.reshape(len(rows), -1).all(1)))
                remedy = remedy_for(rows[number - first])
                raise SourceError(f"{self.path}: example {number} holds a number that is not finite; {remedy}")
            targets = None
            if label_stream is not None:
                targets = np.array([numbers[label] for label in islice(label_stream, len(rows))], dtype=np.int32)
            yield Chunk(rows, targets)
            first += len(rows)
