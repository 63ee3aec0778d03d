"""The order of examples: a permutation, mixed well, in constant memory, the same for ever."""

import itertools
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from bype.data.order import KeyedPermutation, Order, derive_key


def test_every_size_up_to_4096_is_a_bijection_with_its_inverse():
    for size in range(1, 4097):
        permutation = KeyedPermutation(size, derive_key(size))
        elements = permutation(np.arange(size))
        assert np.array_equal(np.bincount(elements, minlength=size), np.ones(size))
        assert np.array_equal(permutation.inverse(elements), np.arange(size))


def test_frozen_vectors():
    # A change here changes every run that was ever begun.
    assert derive_key(7, "rows", 3) == 6757672831478113843
    assert KeyedPermutation(10, 1)(np.arange(10)).tolist() == [8, 6, 7, 9, 0, 5, 1, 3, 2, 4]
    assert KeyedPermutation(50_000, 1)(np.arange(5)).tolist() == [33392, 3893, 47339, 7278, 46267]
    assert KeyedPermutation(10**9, 1)(np.arange(5)).tolist() == [490663124, 390622595, 112235491, 276862458, 714877659]
    assert Order(50_000, seed=3).rows(2, 100, 105).tolist() == [31993, 49681, 1383, 14154, 15613]
    assert Order(10**9, seed=3, window_blocks=64).rows(2, 10**6, 10**6 + 5).tolist() == [
        136322334,
        904760165,
        507173420,
        149458658,
        400281654,
    ]


@pytest.mark.parametrize("size", [100, 1500, 5000])
def test_positions_and_neighbours_are_uniform(size):
    # Over many keys: where element 0 goes, and how far apart two neighbours land.
    num_keys, bins = 4000, 20
    places, distances = [], []
    for key in range(num_keys):
        first, second = KeyedPermutation(size, derive_key("test", key))(np.array([0, 1]))
        places.append(first * bins // size)
        distances.append((second - first) % size * bins // size)
    # A distance of zero cannot be, so the first bin holds one value less.
    values = np.bincount(np.arange(1, size) * bins // size, minlength=bins)
    assert stats.chisquare(np.bincount(places, minlength=bins)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(distances, minlength=bins), values / values.sum() * num_keys).pvalue > 1e-3


@pytest.mark.parametrize("num_rows", [1, 5, 100, 1023, 1100])
@pytest.mark.parametrize("block_rows", [2, 7, 64, 1000])
@pytest.mark.parametrize("window_blocks", [None, 1, 3, 10])
def test_an_epoch_holds_every_row_once_however_it_is_cut(num_rows, block_rows, window_blocks):
    order = Order(num_rows, seed=3, block_rows=block_rows, window_blocks=window_blocks)
    for epoch in (0, 1):
        rows = order.rows(epoch, 0, num_rows)
        assert sorted(rows.tolist()) == list(range(num_rows))
        cuts = sorted({0, num_rows // 3, num_rows // 2, num_rows})
        parts = [order.rows(epoch, a, b) for a, b in itertools.pairwise(cuts)]
        assert np.array_equal(np.concatenate(parts), rows)
    if num_rows >= 100:
        assert not np.array_equal(order.rows(0, 0, num_rows), order.rows(1, 0, num_rows))


def test_rows_of_a_window_come_from_its_blocks():
    order = Order(10_050, seed=1, block_rows=100, window_blocks=8)
    position = 0
    for number in range(13):
        window = order.window_at(0, position)
        assert order.window_at(0, window.stop - 1) == window
        rows = order.rows(0, position, window.stop)
        assert set(rows // 100) == set(window.blocks)
        assert len(rows) == sum(100 if block < 100 else 50 for block in window.blocks)
        assert len(window.blocks) == (8 if number < 12 else 5)
        position = window.stop
    assert position == 10_050


def test_a_billion_rows_take_no_memory():

    order = Order(10**9, seed=0, window_blocks=64)
    tracemalloc.start()
    seen = set()
    for epoch in range(3):
        rows = order.rows(epoch, 777_000_000, 777_000_100)
        assert ((rows >= 0) & (rows < 10**9)).all()
        seen |= set(rows.tolist())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen) == 300
    assert peak < 2**20


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="between 1"):
        KeyedPermutation(0, 1)
    with pytest.raises(ValueError, match="positive"):
        Order(10, seed=0, block_rows=0)
    with pytest.raises(ValueError, match="inside an epoch"):
        Order(10, seed=0).rows(0, 5, 11)
