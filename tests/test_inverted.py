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


def test_every_component_has_a_place_in_cells_of_one_size():
    means = clustered(3000)
    index = built(means)
    assert index.cells.shape == (32, 94)
    places = index.cells.flatten().tolist()
    assert set(places) == set(range(3000))
    assert len(places) - 3000 < 32  # what fills them up


def test_cells_hold_what_is_near_to_each_other():
    means = clustered(8000)
    index = built(means)
    within = (means[index.cells] - index.centres[:, None]).square().sum(2).mean()
    assert within < 0.3 * (means - means.mean(0)).square().sum(1).mean()


def test_with_all_cells_probed_the_search_is_exact():
    means = clustered(2048)
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
    assert found > 0.8 * exact.numel()


def test_the_state_brings_back_the_same_search():
    means = clustered(3000)
    index, again = built(means), InvertedFile(3000, 6)
    again.load_state_dict(index.state_dict())
    assert torch.equal(index.nearest(means[:9], means, 7, 3), again.nearest(means[:9], means, 7, 3))


def test_few_components_are_one_cell():
    means = clustered(30)
    assert torch.equal(built(means).nearest(means, means, 1, 4)[:, 0], torch.arange(30))
    assert built(means).nearest(means, means, 50, 4).shape == (30, 30)


def test_autocast_does_not_change_what_is_near():
    means = clustered(3000)
    index = built(means)
    with torch.autocast("cpu", torch.bfloat16):
        found = index.nearest(means[:50] + 0.5, means, count=15)
    assert torch.equal(found, index.nearest(means[:50] + 0.5, means, count=15))
