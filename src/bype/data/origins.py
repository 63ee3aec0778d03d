"""Where each example of a store came from: the name of an image file, or the row of a table or array.

Each split has a file of one number for each example: its row in the source or, if it has a name, where the name ends in
a second file. No result depends on them, so they are no part of a store's fingerprint, and a store may have none.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bype.data.decode import decode_file
from bype.data.files import FileError, harmless, to_json, write_synced
from bype.data.manifest import SPLITS, StoreError, require
from bype.data.order import Rows
from bype.data.stored import AGAIN, open_stored, verify_stored
from bype.system import read_at

_INDEX = "origins.json"
_NUMBER = np.dtype("<i8")
_LONGEST_NAME = 4096
"""In bytes; no path is longer."""

Origin = int | str


@dataclass(frozen=True)
class SplitOrigins:
    """The origins of the examples of one split."""

    rows: int
    """The number of examples."""
    numbers_sha256: str
    names_sha256: str
    """Empty if the examples have rows and no names."""


@dataclass(frozen=True)
class Origins:
    """The content of ``origins.json``."""

    format: Literal["bype-origins"] = field(default="bype-origins", kw_only=True)
    version: Literal[1] = field(default=1, kw_only=True)
    kind: Literal["rows", "names"]
    splits: dict[str, SplitOrigins]

    def __post_init__(self) -> None:
        """Check the names of the splits."""
        require(set(self.splits) <= set(SPLITS), f"splits must be some of {', '.join(SPLITS)}")


class OriginsWriter:
    """Writes the origins of a store's examples: numbers of rows, or names, as they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = ExitStack()
        self._written: dict[Path, tuple[IO[bytes], Any]] = {}
        self._counts: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._kinds: set[type] = set()

    def append(self, split: str, origins: Sequence[Origin]) -> None:
        """Add the origins of the next examples of a split."""
        self._kinds |= set(map(type, origins))
        if len(self._kinds) > 1:
            raise ValueError("origins must be all rows or all names")
        self._counts[split] = self._counts.get(split, 0) + len(origins)
        if self._kinds == {str}:
            names = [_to_bytes(str(origin)) for origin in origins]
            if max(map(len, names), default=0) > _LONGEST_NAME:
                raise ValueError(f"the name of an example has more than {_LONGEST_NAME:,} bytes")
            ends = self._ends.get(split, 0) + np.cumsum([len(name) for name in names], dtype=_NUMBER)
            self._ends[split] = int(ends[-1]) if len(ends) else self._ends.get(split, 0)
            self._write(_names_file(self._folder, split), b"".join(names))
            origins = ends.tolist()
        self._write(_numbers_file(self._folder, split), np.array(origins, dtype=_NUMBER).tobytes())

    def _write(self, path: Path, content: bytes) -> None:
        if path not in self._written:
            self._written[path] = self._files.enter_context(path.open("wb")), hashlib.sha256()
        file, digest = self._written[path]
        file.write(content)
        digest.update(content)

    def close(self) -> None:
        """Close the files."""
        with self._files:
            for file, _ in self._written.values():
                file.flush()
                os.fsync(file.fileno())

    def finish(self, rows: dict[str, int]) -> None:
        """Write the index, unless there are no origins; ``rows`` has the number of examples of each split."""
        if not self._counts:
            return
        if self._counts != rows:
            raise ValueError("every example needs an origin, or none has one")
        digests = {path: digest.hexdigest() for path, (_, digest) in self._written.items()}
        splits = {
            split: SplitOrigins(
                count, digests[_numbers_file(self._folder, split)], digests.get(_names_file(self._folder, split), "")
            )
            for split, count in rows.items()
        }
        index = Origins("names" if self._kinds == {str} else "rows", splits)
        write_synced(self._folder / _INDEX, to_json(asdict(index)))


def origins_of(folder: Path, split: str, num_rows: int, rows: Rows) -> NDArray[Any] | None:
    """Return where examples came from: an array of rows or of names; ``None`` if the store does not know.

    Parameters
    ----------
    folder, split
        The store and the name of the split.
    num_rows
        How many examples the split has.
    rows
        The examples.
    """
    index = _read_index(folder)
    if index is None or split not in index.splits:
        return None
    path = _numbers_file(folder, split)
    with ExitStack() as files:
        numbers, size = _open(path, files)
        fits = size == num_rows * _NUMBER.itemsize == index.splits[split].rows * _NUMBER.itemsize
        require(fits, f"{path} has {size} bytes and not {_NUMBER.itemsize} for each of {num_rows} examples; {AGAIN}")
        if index.kind == "rows":
            return _numbers(numbers, rows)
        names, size = _open(_names_file(folder, split), files)
        ends = _numbers(numbers, rows)
        starts = np.where(rows > 0, _numbers(numbers, np.maximum(rows - 1, 0)), 0)
        fit = (starts >= 0) & (starts <= ends) & (ends <= size) & (ends - starts <= _LONGEST_NAME)
        require(bool(fit.all()), f"{path} does not match the names; {AGAIN}")
        found = [_bytes(names, int(a), int(b - a)) for a, b in zip(starts, ends, strict=True)]
    return np.array([name.decode(errors="backslashreplace") for name in found], dtype=np.str_)


def name_examples(rows: Rows, origins: NDArray[Any] | None) -> list[str]:
    """Return what a user may call examples: their files, or their rows in the source; else their rows in the split."""
    if origins is None:
        return [f"row {row}" for row in rows.tolist()]
    if origins.dtype.kind == "i":
        return [f"row {origin} of the source" for origin in origins.tolist()]
    return [harmless(name) for name in origins.tolist()]


def verify_origins(folder: Path) -> None:
    """Read every byte and compare with the checksums."""
    index = _read_index(folder)
    for split, content in {} if index is None else index.splits.items():
        files = {_numbers_file(folder, split): content.numbers_sha256, _names_file(folder, split): content.names_sha256}
        for path, expected in files.items():
            if expected:
                verify_stored(path, expected)


def _to_bytes(name: str) -> bytes:
    """Return a name as its bytes on the disk, which need not be text."""
    try:
        return name.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # half of a character, which Windows allows
        return name.encode(errors="backslashreplace")


def _numbers_file(folder: Path, split: str) -> Path:
    return folder / f"{split}.origins"


def _names_file(folder: Path, split: str) -> Path:
    return folder / f"{split}.names"


def _read_index(folder: Path) -> Origins | None:
    if not (folder / _INDEX).exists():
        return None
    try:
        return decode_file(Origins, folder / _INDEX)
    except FileError as error:
        raise StoreError(f"{error}; {AGAIN}") from error


def _open(path: Path, files: ExitStack) -> tuple[int, int]:
    """Open a file, to be closed with ``files``, and return its descriptor and its size."""
    descriptor, size = open_stored(path)
    files.callback(os.close, descriptor)
    return descriptor, size


def _numbers(descriptor: int, rows: Rows) -> NDArray[np.int64]:
    """Return the numbers of some rows. Rows that follow one another are read at once."""
    found = np.empty(len(rows), dtype=np.int64)
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    for part in np.split(np.arange(len(rows)), breaks):
        if len(part):
            content = _bytes(descriptor, int(rows[part[0]]) * _NUMBER.itemsize, len(part) * _NUMBER.itemsize)
            found[part] = np.frombuffer(content, dtype=_NUMBER)
    return found


def _bytes(descriptor: int, offset: int, length: int) -> bytes:
    buffer = bytearray(length)
    require(read_at(descriptor, memoryview(buffer), offset) == length, f"a file of origins was cut off; {AGAIN}")
    return bytes(buffer)
