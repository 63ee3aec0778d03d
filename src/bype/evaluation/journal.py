"""A journal of a long computation: its entries need not be computed again."""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from bype.data.decode import decode
from bype.data.files import WRITE_FLAGS, FileError, parse_json
from bype.system import lock, open_file

_MAX_LINE_BYTES = 2**22

Entry = TypeVar("Entry")


def journal_path(folder: Path, purpose: str, identity: dict[str, Any]) -> Path:
    """Return where to keep a computation's journal: each has its own file, so that none overwrites another."""
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"{purpose}-{name}.journal"


class Journal(Generic[Entry]):
    """Lines of JSON, the first of which says what the rest belongs to.

    The file is not trusted: lines that are not valid entries are left out.

    Parameters
    ----------
    path
        The file. If it belongs to something else, its content is discarded.
    identity
        What the lines belong to.
    kind
        The dataclass of the lines.
    max_bytes
        More than the computation can have written; the content of a larger file is discarded.
    """

    def __init__(self, path: Path, identity: dict[str, Any], kind: type[Entry], max_bytes: int) -> None:
        self._path = path
        self.entries: list[Entry] = []
        self._file = os.fdopen(open_file(path, WRITE_FLAGS), "wb")
        if lock(self._file.fileno()) is False:
            self._file.close()
            raise FileError(f"another process is measuring this and holds {path}; wait for it")
        whole = self._read(identity, kind, max_bytes)
        self._file.truncate(whole)
        self._file.seek(whole)
        if whole == 0:
            self.write(identity)

    def _read(self, identity: dict[str, Any], kind: type[Entry], max_bytes: int) -> int:
        """Read the complete lines, and return their length in bytes."""
        if self._path.is_symlink() or not self._path.is_file() or self._path.stat().st_size > max_bytes:
            return 0
        whole = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b"")):
                try:
                    content = parse_json(line) if line.endswith(b"\n") else None
                except FileError:
                    content = None
                if not isinstance(content, dict) or (number == 0 and content != identity):
                    break
                if number:
                    with suppress(ValueError):
                        self.entries.append(decode(kind, content))
                whole += len(line)
        return whole

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, entry: Entry | dict[str, Any]) -> None:
        """Add a line."""
        self._file.write((json.dumps(entry, default=asdict) + "\n").encode())
        self._file.flush()

    def remove(self) -> None:
        """Remove the file: the computation is done."""
        self._path.unlink(missing_ok=True)
