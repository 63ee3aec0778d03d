"""The inverted file against an exact search."""

import torch

from bype.inverted import InvertedFile


def clustered(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = 5 * torch.randn(20, 6, generator=generator)
    return centres[torch.randint(20, (count,), generator=generator)] + torch.randn(count, 6, generator=generator)


def built(means: torch.Tensor) -> InvertedFile:
    index = InvertedFile(*means.shape)
    index.build(means)
    return index


def test_every_component_has_one_place():
    means = clustered(3000)
    index = built(means)
    ids = index._cells().flatten()
    assert sorted(ids[ids < 3000].tolist()) == list(range(3000))
    nearest = torch.cdist(means, index.centres).argmin(1)
    assert torch.equal(index.cell_of.long(), nearest)


def test_with_all_cells_probed_the_search_is_exact():
    means = clustered(2000)
    rows = means[::200] + 0.5
    ids = built(means).nearest(rows, means, count=15, num_probes=100)
    exact = torch.cdist(rows, means).topk(15, largest=False).indices
    assert [sorted(a) for a in ids.tolist()] == [sorted(b) for b in exact.tolist()]


def test_a_few_cells_find_most():
    means = clustered(20000)
    rows = means[::400] + 0.1
    ids = built(means).nearest(rows, means, count=10, num_probes=8)
    exact = torch.cdist(rows, means).topk(10, largest=False).indices
    found = sum(len(set(a) & set(b)) for a, b in zip(ids.tolist(), exact.tolist(), strict=True))
    assert found > 0.9 * exact.numel()


def test_the_state_brings_back_the_same_search():
    means = clustered(3000)
    index, again = built(means), InvertedFile(3000, 6)
    again.nearest(means[:1], means, 1, 1)  # what it remembers of the state before must go
    again.load_state_dict(index.state_dict())
    assert torch.equal(index.nearest(means[:9], means, 7, 3), again.nearest(means[:9], means, 7, 3))


def test_few_components_are_one_cell():
    means = clustered(30)
    assert torch.equal(built(means).nearest(means, means, 1, 4)[:, 0], torch.arange(30))
    assert built(means).nearest(means, means, 50, 4).shape == (30, 30)
