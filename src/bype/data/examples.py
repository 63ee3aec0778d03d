"""Examples of a store as a model sees them, and batches of them in the run's order."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bype.data.manifest import PIXELS
from bype.data.order import Order, Rows
from bype.data.store import Split
from bype.plates import to_bytes
from bype.span import steps_per_epoch

_BLOCK_BYTES = 2**20
_ORDER_CHUNK = 2**13


class StoreSource:
    """A split of a store as an example source: bytes become (byte + 0.5) / 256, features stay as they are."""

    def __init__(self, split: Split, device: torch.device | str = "cpu") -> None:
        self.split = split
        self._device = torch.device(device)

    def __len__(self) -> int:
        return len(self.split)

    def take(self, indices: Tensor) -> Tensor:
        """Return the examples with these row numbers."""
        return self.read(indices.cpu().numpy())

    def read(self, rows: Rows, bits_key: int | None = None) -> Tensor:
        """Return the examples with these row numbers; ``bits_key`` is that of :meth:`bype.data.store.Split.read`."""
        return as_model_input(torch.from_numpy(self.split.read(rows, bits_key)).to(self._device))


def as_model_input(examples: Tensor) -> Tensor:
    """Turn examples of a store into what a model sees: bytes become (byte + 0.5) / 256, features stay as they are."""
    return examples.float().add_(0.5).mul_(1 / 256) if examples.dtype == torch.uint8 else examples


def as_stored(examples: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Turn examples as a model sees them into what a store of ``dtype`` holds: the inverse of ``as_model_input``."""
    return to_bytes(examples) if dtype in PIXELS else examples.astype(np.float32)


def spread_rows(total: int, most: int) -> Rows:
    """Return all row numbers below ``total``, or ``most`` that are evenly spread."""
    if most >= total:
        return np.arange(total)
    return np.unique(np.linspace(0, total - 1, most).round().astype(np.int64))


class TrainingOrder:
    """The rows of each training step, computed some thousands at a time."""

    def __init__(self, split: Split, seed: int, batch_size: int, window_blocks: int | None) -> None:
        self._split = split
        block_rows = max(1, _BLOCK_BYTES // split.row_bytes)
        self._order = Order(len(split), seed, block_rows, window_blocks)
        self._is_windowed = window_blocks is not None
        self._batch_size = batch_size
        self.steps_per_epoch = steps_per_epoch(len(split), batch_size)
        self._chunk: tuple[int, int, Rows] = (-1, 0, np.empty(0, dtype=np.int64))
        self._announced_epoch, self._window_stop, self._next_window_stop = -1, 0, 0

    def rows(self, step: int) -> Rows:
        """Return the rows of a step, counted from zero; the last batch of an epoch may be short."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        start = batch * self._batch_size
        stop = min(start + self._batch_size, len(self._split))
        if self._is_windowed:
            self._announce(epoch, start)
        chunk_epoch, chunk_start, chunk = self._chunk
        if chunk_epoch != epoch or not (chunk_start <= start and stop <= chunk_start + len(chunk)):
            chunk = self._order.rows(epoch, start, min(max(stop, start + _ORDER_CHUNK), len(self._split)))
            chunk_start = start
            self._chunk = (epoch, start, chunk)
        return chunk[start - chunk_start : stop - chunk_start]

    def _announce(self, epoch: int, position: int) -> None:
        """Ask the system to read this window's blocks in sequence, and the next window's while this one is used."""
        if epoch != self._announced_epoch:
            self._announced_epoch = epoch
            self._window_stop = self._read_ahead(epoch, position)
        elif position >= self._window_stop:
            self._window_stop = self._next_window_stop
        else:
            return
        if self._window_stop < len(self._split):
            self._next_window_stop = self._read_ahead(epoch, self._window_stop)

    def _read_ahead(self, epoch: int, position: int) -> int:
        window = self._order.window_at(epoch, position)
        for block in window.blocks:
            self._split.will_need(block * self._order.block_rows, self._order.block_rows)
        return window.stop
