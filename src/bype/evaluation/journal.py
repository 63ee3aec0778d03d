"""A journal of a long computation: what is in it need not be computed again."""

import fcntl
import hashlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bype.data.files import WRITE_FLAGS, FileError

_MAX_LINE_BYTES = 2**22
_MAX_BYTES = 2**30


def journal_path(folder: Path, purpose: str, identity: dict[str, Any]) -> Path:
    """Return where to keep a computation's journal: each has a file of its own, so that none is lost to another."""
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"{purpose}-{name}.journal"


class Journal:
    """Lines of JSON, the first of which says what the rest belongs to.

    Parameters
    ----------
    path
        Its file. One that belongs to something else is begun anew.
    identity
        What the lines belong to.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self._path = path
        self.entries: list[dict[str, Any]] = []
        self._file = os.fdopen(os.open(path, WRITE_FLAGS, 0o644), "wb")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise FileError(f"another process is measuring this; it keeps {path}") from None
        whole = self._read(identity)
        self._file.truncate(whole)
        self._file.seek(whole)
        if whole == 0:
            self.write(identity)

    def _read(self, identity: dict[str, Any]) -> int:
        """Read the lines that are whole, and return the length of them."""
        if self._path.is_symlink() or not self._path.is_file() or self._path.stat().st_size > _MAX_BYTES:
            return 0
        whole = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b"")):
                try:
                    entry = json.loads(line) if line.endswith(b"\n") else None
                except (ValueError, RecursionError):
                    entry = None
                if not isinstance(entry, dict) or (number == 0 and entry != identity):
                    break
                if number:
                    self.entries.append(entry)
                whole += len(line)
        return whole

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, entry: dict[str, Any]) -> None:
        """Add a line."""
        self._file.write((json.dumps(entry) + "\n").encode())
        self._file.flush()

    def remove(self) -> None:
        """Forget it all: the computation is done."""
        self._path.unlink(missing_ok=True)
