"""The order in which examples are seen: a pure function of (seed, epoch, position), in constant memory.

Nothing is stored, so any process can ask for any part of any epoch's order, and a resumed run sees the same
examples as one that was never interrupted.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Words = NDArray[np.uint64]

_SORTED_BELOW = 1024
"""Domains smaller than this are shuffled by sorting, because a Feistel network on few bits mixes badly."""
_NUM_ROUNDS = 8


def derive_key(*parts: int | str) -> int:
    """Return 64 bits that depend on all parts, the same on every machine and in every version.

    Examples
    --------
    >>> derive_key(0, "order", 3)
    2695112745344236468
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def mix(words: Words) -> Words:
    """Scramble 64-bit words one to one (the finaliser of splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class KeyedPermutation:
    """A pseudorandom permutation of range(size), computed element by element.

    A balanced Feistel network on the next power of four, with cycle walking: values outside the range are
    permuted again until they fall inside.

    Parameters
    ----------
    size
        How many numbers are permuted; up to 2^62.
    key
        64 bits from :func:`derive_key`.

    Examples
    --------
    >>> KeyedPermutation(5, key=1)(np.arange(5))
    array([0, 1, 3, 2, 4])
    """

    def __init__(self, size: int, key: int) -> None:
        if not 1 <= size <= 2**62:
            raise ValueError(f"a permutation needs between 1 and 2^62 elements, not {size}")
        self.size = size
        self._table: Rows | None = None
        self._inverse_table: Rows | None = None
        if size < _SORTED_BELOW:
            # mix is one to one, so no two elements compare equal and the order is unique.
            words = mix(np.arange(size, dtype=np.uint64) + mix(np.array([key], dtype=np.uint64)))
            self._table = np.argsort(words).astype(np.int64)
            self._inverse_table = np.argsort(self._table).astype(np.int64)
        self._half_bits = np.uint64(((size - 1).bit_length() + 1) // 2)
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        self._round_keys = mix(np.arange(1, _NUM_ROUNDS + 1, dtype=np.uint64) * np.uint64(key | 1) + np.uint64(key))

    def __call__(self, positions: Rows) -> Rows:
        """Return the element at each position."""
        if self._table is not None:
            return self._table[positions]
        return self._walk(positions, forward=True)

    def inverse(self, elements: Rows) -> Rows:
        """Return the position of each element."""
        if self._inverse_table is not None:
            return self._inverse_table[elements]
        return self._walk(elements, forward=False)

    def _walk(self, numbers: Rows, forward: bool) -> Rows:
        words = self._feistel(numbers.astype(np.uint64), forward)
        outside = words >= np.uint64(self.size)
        while outside.any():
            words[outside] = self._feistel(words[outside], forward)
            outside = words >= np.uint64(self.size)
        return words.astype(np.int64)

    def _feistel(self, words: Words, forward: bool) -> Words:
        left, right = words >> self._half_bits, words & self._mask
        if forward:
            for key in self._round_keys:
                left, right = right, left ^ (mix(right ^ key) & self._mask)
        else:
            for key in self._round_keys[::-1]:
                left, right = right ^ (mix(left ^ key) & self._mask), left
        return (left << self._half_bits) | right


@dataclass(frozen=True)
class Window:
    """Rows that are shuffled together."""

    stop: int
    """The position in the epoch at which the next window begins."""
    blocks: list[int]


@dataclass(frozen=True)
class Order:
    """The order of all examples in each epoch, shuffled in two levels.

    Blocks of neighbouring rows are permuted; then the rows are permuted inside windows of a few blocks. A window
    that holds all blocks is a full shuffle. A smaller one lets a disk read whole blocks in sequence.

    Parameters
    ----------
    num_rows
        N.
    seed
        Together with the epoch, determines everything.
    block_rows
        Rows in a block.
    window_blocks
        Blocks in a window; ``None`` for all of them.
    """

    num_rows: int
    seed: int
    block_rows: int = 1024
    window_blocks: int | None = None

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.num_rows < 1 or self.block_rows < 1 or (self.window_blocks is not None and self.window_blocks < 1):
            raise ValueError(
                f"num_rows, block_rows and window_blocks must be positive, "
                f"not {self.num_rows}, {self.block_rows} and {self.window_blocks}"
            )

    @property
    def num_blocks(self) -> int:
        """How many blocks there are, the last of which may be short."""
        return -(-self.num_rows // self.block_rows)

    @property
    def _window_width(self) -> int:
        return self.window_blocks or self.num_blocks

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        """Return the rows at positions [start, stop) of an epoch."""
        if not 0 <= start <= stop <= self.num_rows:
            raise ValueError(f"positions [{start}, {stop}) are not inside an epoch of {self.num_rows}")
        positions = np.arange(start, stop, dtype=np.int64)
        if self.window_blocks is None or self.window_blocks >= self.num_blocks:
            return KeyedPermutation(self.num_rows, derive_key(self.seed, "rows", epoch))(positions)
        return self._windowed(epoch, positions)

    def window_at(self, epoch: int, position: int) -> Window:
        """Return the window that holds a position of an epoch."""
        (window,), _, short_slot, lacking = self._windows(epoch, np.array([position], dtype=np.int64))
        window, width = int(window), self._window_width
        slots = np.arange(window * width, min((window + 1) * width, self.num_blocks), dtype=np.int64)
        end_of_full_blocks = int(slots[-1] + 1) * self.block_rows
        stop = end_of_full_blocks - (lacking if short_slot <= slots[-1] else 0)
        return Window(stop, self._block_order(epoch)(slots).tolist())

    def _block_order(self, epoch: int) -> KeyedPermutation:
        return KeyedPermutation(self.num_blocks, derive_key(self.seed, "blocks", epoch))

    def _windows(self, epoch: int, positions: Rows) -> tuple[Rows, Rows, int, int]:
        """Return each position's window and place in it, the slot of the short block, and how much it lacks."""
        width = self._window_width * self.block_rows
        lacking = self.num_blocks * self.block_rows - self.num_rows
        short_slot = int(self._block_order(epoch).inverse(np.array([self.num_blocks - 1], dtype=np.int64))[0])
        # As if the short block were full: positions behind its window move up by what it lacks.
        end_of_short_window = (short_slot * self.block_rows // width + 1) * width - lacking
        full = positions + np.where(positions >= end_of_short_window, lacking, 0)
        return full // width, full % width, short_slot, lacking

    def _windowed(self, epoch: int, positions: Rows) -> Rows:
        windows, places, short_slot, lacking = self._windows(epoch, positions)
        width = self._window_width * self.block_rows
        rows = np.empty_like(positions)
        blocks = self._block_order(epoch)
        for window in np.unique(windows):
            inside = windows == window
            first_slot = int(window) * self._window_width
            size = min(width, self.num_blocks * self.block_rows - int(window) * width)
            has_short = first_slot <= short_slot < first_slot + self._window_width
            size -= lacking if has_short else 0
            shuffled = KeyedPermutation(size, derive_key(self.seed, "window", epoch, int(window)))(places[inside])
            if has_short:
                end_of_short = (short_slot - first_slot + 1) * self.block_rows - lacking
                shuffled = shuffled + np.where(shuffled >= end_of_short, lacking, 0)
            slots = first_slot + shuffled // self.block_rows
            rows[inside] = blocks(slots) * self.block_rows + shuffled % self.block_rows
        return rows
