"""A store: a folder with a manifest and with examples as rows of bytes, in shards.

Rows are read one by one at their positions, so memory does not grow with the number of examples. A store is not
trusted: nothing in it is executed, and no name leads outside its folder.
"""

import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bype.data.bits import draw_bits
from bype.data.decode import decode_file
from bype.data.files import MAX_JSON_BYTES, FileError, read_bounded
from bype.data.manifest import DTYPES, LABEL_DTYPE, Manifest, Shard, StoreError, shard_name
from bype.data.order import Rows, derive_key
from bype.data.origins import origins_of, verify_origins
from bype.data.stored import AGAIN, open_stored, verify_stored
from bype.system import read_at, will_read
from bype.wording import did_you_mean

_MAPPED_BYTES = 2**28
"""A split this small is read through a memory map. In a huge file, each random row would cost a page fault of
milliseconds, where a positioned read takes microseconds."""


class Split:
    """The examples of one split of a store, read by row number."""

    def __init__(self, folder: Path, manifest: Manifest, name: str) -> None:
        self.name = name
        self.shape = manifest.shape
        self.fingerprint = manifest.fingerprint  # of the whole store
        self._folder = folder
        self._dtype = DTYPES[manifest.dtype]
        self.is_binarised = manifest.dtype == "binarised"
        self._content = manifest.splits[name]
        self._row_bytes = manifest.row_bytes
        self.classes = manifest.classes
        self._ends = np.cumsum([shard.rows for shard in self._content.rows], dtype=np.int64)
        opened: list[int] = []
        weakref.finalize(self, _close_all, opened)
        self._files = _open_shards(folder, self._content.rows, self._row_bytes, opened)
        self._label_files = _open_shards(folder, self._content.labels, LABEL_DTYPE.itemsize, opened)
        self._map: NDArray[np.uint8] | None = None
        if len(self._files) == 1 and 0 < len(self) * self._row_bytes <= _MAPPED_BYTES:
            mapped = mmap.mmap(self._files[0], 0, access=mmap.ACCESS_READ)
            self._map = np.frombuffer(mapped, dtype=np.uint8).reshape(len(self), self._row_bytes)

    def __len__(self) -> int:
        return self._content.num_rows

    @property
    def has_labels(self) -> bool:
        """Whether each example has a label."""
        return bool(self._label_files)

    @property
    def row_bytes(self) -> int:
        """The bytes of one example on disk."""
        return self._row_bytes

    def read(self, rows: Rows, bits_key: int | None = None) -> NDArray[Any]:
        """Return the examples (len(rows), *shape), as they are on disk; of a binarised store, drawn black and white.

        Parameters
        ----------
        rows
            The row numbers.
        bits_key
            Each key gives other draws of the pixels of a binarised store; without one, the draws are always the same.
        """
        self._check(rows)
        raw = self._read(self._files, rows, self._row_bytes) if self._map is None else self._map[rows]
        examples = raw.view(self._dtype).reshape(len(rows), *self.shape)
        if not self.is_binarised:
            return examples
        return draw_bits(examples, rows, derive_key("bits", self.name) if bits_key is None else bits_key)

    def labels(self, rows: Rows) -> NDArray[np.int32]:
        """Return the labels (len(rows),)."""
        if not self.has_labels:
            raise StoreError(f"split {self.name} has no labels")
        self._check(rows)
        labels = self._read(self._label_files, rows, LABEL_DTYPE.itemsize).view(LABEL_DTYPE).reshape(-1)
        if len(labels) and not (labels.min() >= 0 and labels.max() < len(self.classes)):
            raise StoreError(f"split {self.name} has labels of classes that {self._folder} does not name; {AGAIN}")
        return labels

    def origins(self, rows: Rows) -> NDArray[Any] | None:
        """Return where examples came from, files or rows of the source; ``None`` if the store does not know."""
        self._check(rows)
        return origins_of(self._folder, self.name, len(self), rows)

    def check_origins(self) -> Literal["rows", "names"] | None:
        """Refuse files of origins that are damaged, and return of what kind they are."""
        found = self.origins(np.empty(0, dtype=np.int64))
        if found is None:
            return None
        return "rows" if found.dtype.kind == "i" else "names"

    def will_need(self, first_row: int, num_rows: int) -> None:
        """Tell the system that these rows will be read soon, so that it reads them in sequence."""
        stop = min(first_row + num_rows, len(self))
        while first_row < stop:
            shard = int(np.searchsorted(self._ends, first_row, side="right"))
            start = int(self._ends[shard - 1]) if shard else 0
            count = min(stop, int(self._ends[shard])) - first_row
            offset = (first_row - start) * self._row_bytes
            will_read(self._files[shard], offset, count * self._row_bytes)
            first_row += count

    def _check(self, rows: Rows) -> None:
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows must be between 0 and {len(self) - 1}")

    def _read(self, files: list[int], rows: Rows, row_bytes: int) -> NDArray[np.uint8]:
        buffer = np.empty((len(rows), row_bytes), dtype=np.uint8)
        if len(rows) == 0:
            return buffer
        shards = np.searchsorted(self._ends, rows, side="right")
        starts = np.concatenate([[0], self._ends])[shards]
        view = memoryview(buffer.data).cast("B")
        descriptors = [files[shard] for shard in shards.tolist()]
        position = 0
        for number, offset in enumerate(((rows - starts) * row_bytes).tolist()):
            end = position + row_bytes
            if read_at(descriptors[number], view[position:end], offset) != row_bytes:
                raise StoreError(f"split {self.name} ends before row {rows[number]}: a shard was cut off")
            position = end
        return buffer


def _open_shards(folder: Path, shards: Sequence[Shard], row_bytes: int, opened: list[int]) -> list[int]:
    """Open shards, and add each to what is open: if one fails, those before it are closed too."""
    for shard in shards:
        path = folder / shard.name
        descriptor, size = open_stored(path)
        opened.append(descriptor)
        if size != shard.rows * row_bytes:
            raise StoreError(f"{path} has {size} bytes where the manifest says {shard.rows * row_bytes}; {AGAIN}")
    return opened[len(opened) - len(shards) :]


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def is_store(place: Path | str) -> bool:
    """Tell whether a place is a store, and not data that one could be made of; also if the store is damaged."""
    manifest = Path(place) / "manifest.json"
    if not manifest.is_file():
        return False
    if (manifest.parent / shard_name("train", 0, "rows")).exists():
        return True
    try:
        return b'"bype-store"' in read_bounded(manifest, MAX_JSON_BYTES)
    except FileError:  # galleries of pictures have manifests too, of any size
        return False


class Store:
    """A folder with a manifest and shards.

    Parameters
    ----------
    folder
        The folder.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        path = self.folder / "manifest.json"
        if not path.exists():
            raise StoreError(
                f"{self.folder} is not a bype store, it has no manifest.json; make one with: bype data prepare"
            )
        try:
            self.manifest = decode_file(Manifest, path)
        except FileError as error:
            is_run = (self.folder / "config.json").exists()
            hint = "this is a run; give the store that it was trained on" if is_run else AGAIN
            raise StoreError(f"{error}; {hint}") from error

    def split(self, name: str) -> Split:
        """Open a split."""
        if name not in self.manifest.splits:
            near = did_you_mean(name, self.manifest.splits)
            raise StoreError(f"{self.folder} has no split {name}; it has {', '.join(self.manifest.splits)}{near}")
        return Split(self.folder, self.manifest, name)

    @property
    def default_split(self) -> str:
        """The split to look at if none is named: test, or else validation, or else train."""
        return next(name for name in ("test", "validation", "train") if name in self.manifest.splits)

    def verify(self) -> None:
        """Read every byte and compare with the checksums."""
        for name, content in self.manifest.splits.items():
            self.split(name)  # checks the sizes
            for shard in (*content.rows, *content.labels):
                verify_stored(self.folder / shard.name, shard.sha256)
        verify_origins(self.folder)
