"""Writing a store, in constant memory and all or nothing."""

import hashlib
import math
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bype.data.files import MAX_JSON_BYTES, WRITE_FLAGS, write_synced
from bype.data.manifest import (
    DTYPES,
    LABEL_DTYPE,
    SPLITS,
    Manifest,
    Shard,
    SplitManifest,
    StoreError,
    require,
    shard_name,
)
from bype.data.origins import Origin, OriginsWriter
from bype.system import lock, open_file, sync_folder

_SHARD_BYTES = 2**28
_SHARDS_OF_A_SIZE = 16
"""After so many shards, shards are twice as large: ten terabytes are then some hundred files, which all stay open."""
_MAX_MANIFEST_BYTES = 3 * MAX_JSON_BYTES // 4
"""The config of a run holds the same names, with more spaces, and has room for them too."""
_LOCK = "lock"


def partial_of(folder: Path) -> Path:
    """Return where a store is written before it is complete."""
    folder = folder.absolute()  # '.' has no name
    return folder.with_name(f".{folder.name}.partial")


class StoreWriter:
    """Writes a store in a temporary folder and moves it to its place when it is complete.

    Use it as a context manager: an error, or an interruption, leaves nothing behind.
    """

    def __init__(
        self,
        folder: Path | str,
        shape: tuple[int, ...],
        dtype: str,
        *,
        classes: tuple[str, ...] = (),
        names: tuple[str, ...] = (),
        source: str,
        has_labels: bool,
    ) -> None:
        self._folder = Path(folder)
        self._partial = partial_of(self._folder)
        self._lock: int | None = None
        self._shape, self._dtype, self._classes, self._names, self._source = shape, dtype, classes, names, source
        self._has_labels = has_labels
        self._shards: dict[str, dict[str, list[Shard]]] = {}
        self._open: dict[tuple[str, str], _ShardWriter] = {}
        self._origins = OriginsWriter(self._partial)
        self.manifest: Manifest | None = None

    def __enter__(self) -> Self:
        require(not self._folder.exists(), f"{self._folder} exists already; remove it, or choose another folder")
        if self._partial.exists():
            self._claim()
            self._remove_partial()  # left by a process that was killed
        self._partial.mkdir(parents=True)
        self._claim()
        return self

    def _claim(self) -> None:
        """Lock the partial folder, or say that a living process writes to it."""
        path = self._partial / _LOCK
        is_new = not path.exists()
        descriptor = open_file(path, WRITE_FLAGS)
        is_locked = lock(descriptor)
        if is_locked is None and not is_new:  # this disk has no locks, so nobody can tell
            os.close(descriptor)
            raise StoreError(
                f"another process may be preparing {self._folder}; wait for it, or choose another folder; if none "
                f"is at work, remove {self._partial}"
            )
        if is_locked is False or not (path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())):
            os.close(descriptor)
            raise StoreError(f"another process is preparing {self._folder}; wait for it, or choose another folder")
        self._lock = descriptor

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove_partial(self, ignore_errors: bool = False) -> None:
        if sys.platform == "win32":
            self._release()  # Windows removes no open file
        shutil.rmtree(self._partial, ignore_errors=ignore_errors)
        self._release()

    def append(
        self,
        split: str,
        rows: NDArray[Any],
        labels: NDArray[Any] | None = None,
        origins: Sequence[Origin] | None = None,
    ) -> None:
        """Add examples (n, *shape) to a split, with their labels (n,) and the row or the name of each in its source."""
        if rows.shape[1:] != self._shape or rows.dtype != DTYPES[self._dtype]:
            raise ValueError(f"rows must be {self._dtype} of shape {self._shape}, not {rows.dtype} of {rows.shape[1:]}")
        if self._has_labels:
            if labels is None or len(labels) != len(rows):
                raise ValueError("every row needs a label")
            if len(labels) and not 0 <= labels.min() <= labels.max() < len(self._classes):
                raise ValueError(f"labels must be numbers of the {len(self._classes)} classes, not {labels.max()}")
        if origins is not None and len(origins) != len(rows):
            raise ValueError("every row needs an origin")
        self._write(split, "rows", np.ascontiguousarray(rows).reshape(len(rows), -1))
        if self._has_labels and labels is not None:
            self._write(split, "labels", labels.astype(LABEL_DTYPE).reshape(-1, 1))
        if origins is not None:
            self._origins.append(split, origins)

    def _write(self, split: str, kind: str, rows: NDArray[Any]) -> None:
        while len(rows):
            writer = self._open.get((split, kind))
            if writer is None:
                number = len(self._shards.setdefault(split, {"rows": [], "labels": []})[kind])
                size = _SHARD_BYTES << (number // _SHARDS_OF_A_SIZE)
                capacity = max(1, size // (math.prod(self._shape) * DTYPES[self._dtype].itemsize))
                writer = _ShardWriter(self._partial / shard_name(split, number, kind), capacity)
                self._open[split, kind] = writer
            part = rows[: writer.capacity - writer.num_rows]
            writer.write(part)
            rows = rows[len(part) :]
            if writer.num_rows == writer.capacity:
                self._close(split, kind)

    def _close(self, split: str, kind: str) -> None:
        self._shards[split][kind].append(self._open.pop((split, kind)).close())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with ExitStack() as files:  # closes all of them, even if one raises
                files.callback(self._origins.close)
                for key in list(self._open):
                    files.callback(self._close, *key)
            if error is None:
                self._finish()
        finally:
            self._remove_partial(ignore_errors=True)

    def _finish(self) -> None:
        require("train" in self._shards, "there are no examples for the train split")
        splits = {
            name: SplitManifest(tuple(kinds["rows"]), tuple(kinds["labels"]))
            for name in SPLITS
            if (kinds := self._shards.get(name))
        }
        self.manifest = Manifest(self._shape, self._dtype, self._classes, self._names, self._source, splits)
        content = self.manifest.to_bytes()
        require(
            len(content) <= _MAX_MANIFEST_BYTES,
            f"the names of columns and classes take {len(content):,} bytes, more than the {_MAX_MANIFEST_BYTES:,} that "
            f"a store may have; give shorter names, or leave them out",
        )
        self._origins.finish({name: split.num_rows for name, split in splits.items()})
        write_synced(self._partial / "manifest.json", content)
        if sys.platform == "win32":
            self._release()  # Windows moves no open file
        self._partial.rename(self._folder)
        (self._folder / _LOCK).unlink()
        sync_folder(self._folder.parent)


class _ShardWriter:
    """One shard being written, with its checksum."""

    def __init__(self, path: Path, capacity: int) -> None:
        self.num_rows, self.capacity = 0, capacity
        self._path = path
        self._file = path.open("wb")
        self._digest = hashlib.sha256()

    def write(self, rows: NDArray[Any]) -> None:
        content = np.ascontiguousarray(rows)
        self._file.write(content.data)
        self._digest.update(content.data)
        self.num_rows += len(rows)

    def close(self) -> Shard:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        return Shard(self._path.name, self.num_rows, self._digest.hexdigest())
