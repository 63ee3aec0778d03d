"""Where each example of a store came from: the name of an image file, or the row of a table or array.

They are lines of text beside the shards, one file for each split. No result depends on them, so they are no part of a
store's fingerprint, and a store may have none.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bype.data.decode import decode_file
from bype.data.files import READ_FLAGS, FileError, parse_json, to_json, write_synced
from bype.data.manifest import SPLITS, Shard, StoreError, require
from bype.data.order import Rows
from bype.system import open_file

_INDEX = "origins.json"
_LONGEST_LINE = 2**16


@dataclass(frozen=True)
class Origins:
    """The content of ``origins.json``."""

    format: Literal["bype-origins"] = field(default="bype-origins", kw_only=True)
    version: Literal[1] = field(default=1, kw_only=True)
    splits: dict[str, Shard]

    def __post_init__(self) -> None:
        """Check the names of the files."""
        for split, shard in self.splits.items():
            known = split in SPLITS and shard.name == _file_name(split)
            require(known, f"the origins of {split} must be in {_file_name(split)}")


class OriginsWriter:
    """Writes the origins of a store's examples, as many as come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._digests: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def append(self, split: str, origins: Sequence[str]) -> None:
        """Add the origins of the next examples of a split."""
        if split not in self._files:
            self._files[split] = (self._folder / _file_name(split)).open("wb")
            self._digests[split], self._counts[split] = hashlib.sha256(), 0
        content = "".join(json.dumps(_printable(origin)) + "\n" for origin in origins).encode()
        self._files[split].write(content)
        self._digests[split].update(content)
        self._counts[split] += len(origins)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def finish(self, rows: dict[str, int]) -> None:
        """Write the index, unless there are no origins; ``rows`` has the number of examples of each split."""
        if not self._counts:
            return
        if self._counts != rows:
            raise ValueError("every example needs an origin, or none has one")
        shards = {s: Shard(_file_name(s), self._counts[s], self._digests[s].hexdigest()) for s in rows}
        write_synced(self._folder / _INDEX, to_json(asdict(Origins(shards))))


def origins_of(folder: Path, split: str, rows: Rows) -> list[str] | None:
    """Return where examples of a split came from; ``None`` if the store does not know."""
    found = _read_index(folder)
    if found is None or split not in found.splits:
        return None
    wanted: dict[int, str] = dict.fromkeys(rows.tolist(), "")
    last = max(wanted, default=-1)
    path = folder / found.splits[split].name
    with _open(path) as file:
        for number in range(last + 1):
            line = file.readline(_LONGEST_LINE)
            require(line.endswith(b"\n"), f"{path} ends before line {number}, or has too long a line; {_AGAIN}")
            if number in wanted:
                wanted[number] = _text(path, number, line)
    return [wanted[row] for row in rows.tolist()]


def origin_column(origins: list[str]) -> NDArray[Any]:
    """Return origins as a column of a table: whole numbers if they all are rows, else text."""
    return np.array([int(origin) for origin in origins] if all(map(str.isdecimal, origins)) else origins)


def name_examples(rows: Rows, origins: Sequence[str] | None) -> list[str]:
    """Return what a user may call examples: their files, or their rows in the source; else their rows in the split."""
    if origins is None:
        return [f"row {row}" for row in rows.tolist()]
    return [f"row {origin} of the source" if origin.isdecimal() else origin for origin in origins]


def verify_origins(folder: Path) -> None:
    """Read every byte and compare with the checksums."""
    found = _read_index(folder)
    for shard in () if found is None else found.splits.values():
        with _open(folder / shard.name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        require(digest == shard.sha256, f"{folder / shard.name} has changed since it was written; {_AGAIN}")


_AGAIN = "prepare the data again"


def _file_name(split: str) -> str:
    return f"{split}.origins"


def _read_index(folder: Path) -> Origins | None:
    if not (folder / _INDEX).exists():
        return None
    try:
        return decode_file(Origins, folder / _INDEX)
    except FileError as error:
        raise StoreError(f"{error}; {_AGAIN}") from error


def _open(path: Path) -> BufferedReader:
    try:
        return os.fdopen(open_file(path, READ_FLAGS), "rb")
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}") from error


def _text(path: Path, number: int, line: bytes) -> str:
    try:
        text = parse_json(line)
    except FileError:
        text = None
    require(isinstance(text, str), f"{path}, line {number}: not a text in quotes; {_AGAIN}")
    return _printable(text)


def _printable(text: str) -> str:
    """Return text without what a terminal would take for a command, or what no file can hold."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
