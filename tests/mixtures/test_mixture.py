"""The mixture against brute force, and its samples against its density."""

import pytest
import torch
from scipy import stats

from bype.mixtures import LeaveOneOutMixture, NormalMixture, kernels
from small_mixtures import brute_force, make_mixture

F64 = torch.float64


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("block", [1, 3, 4, 2**22])
def test_mixture_equals_brute_force_in_value_and_gradient(shared, block, monkeypatch):
    # A block of one to four elements cuts rows and components everywhere; the floor of 512 columns must go too.
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", block)
    monkeypatch.setattr(kernels, "_MIN_COMPONENTS", 1)
    means, log_variance, weights = make_mixture(shared)
    z = torch.randn(2, 4, 3, dtype=F64, generator=torch.Generator().manual_seed(6))
    leaves = [t.requires_grad_() for t in (z, means, log_variance, weights)]
    cotangent = torch.randn(2, 4, dtype=F64, generator=torch.Generator().manual_seed(7))

    exact = brute_force(z, means, log_variance, weights)
    exact_gradient = torch.autograd.grad((exact * cotangent).sum(), leaves)
    ours = NormalMixture(means, log_variance, weights.log()).log_prob(z)
    our_gradient = torch.autograd.grad((ours * cotangent).sum(), leaves)

    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-10)
    for mine, theirs in zip(our_gradient, exact_gradient, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shared", [True, False])
def test_responsibilities_are_the_gradient_of_the_log_density_in_the_log_weights(shared):
    means, log_variance, weights = make_mixture(shared)
    z = torch.randn(2, 4, 3, dtype=F64, generator=torch.Generator().manual_seed(6))
    log_weights = weights.log().requires_grad_()
    found = NormalMixture(means, log_variance, log_weights).responsibilities(z)
    exact = brute_force(z, means, log_variance, log_weights.exp())
    for place in ((0, 0), (1, 3)):
        (gradient,) = torch.autograd.grad(exact[place], log_weights, retain_graph=True)
        # Normalising the weights takes their share from each gradient.
        torch.testing.assert_close(found[place], gradient + weights / weights.sum(), rtol=0, atol=1e-12)


def test_responsibilities_leave_out_what_the_density_leaves_out():
    means, log_variance, weights = make_mixture(True)
    ids = torch.tensor([4, 2, 9, 2, 5, 7, 4])
    mixture = LeaveOneOutMixture(means, log_variance, weights.log(), ids, row_ids=torch.tensor([2, 3]))
    found = mixture.responsibilities(torch.zeros(5, 2, 3, dtype=F64))
    assert found.shape == (5, 2, 7)
    assert found[:, 0, ids == 2].sum() == 0
    torch.testing.assert_close(found.sum(-1), torch.ones(5, 2, dtype=F64))
    rest = NormalMixture(means, log_variance, weights.log()).of_components(torch.nonzero(ids != 2)[:, 0])
    torch.testing.assert_close(found[0, 0, ids != 2], rest.responsibilities(torch.zeros(3, dtype=F64)))


@pytest.mark.parametrize("shared", [True, False])
def test_the_gradient_mode_alone_changes_no_score(shared):
    """In a notebook gradients are on, and nothing asks for one: scores are as exact as without."""
    means, rows = 5 * torch.randn(200, 30), 5 * torch.randn(50, 30)
    log_variance = torch.tensor(-9.0) if shared else torch.full((200, 30), -9.0)
    mixture = NormalMixture(means, log_variance, torch.zeros(200))
    with torch.no_grad():
        expected = mixture.log_prob(rows)
    assert torch.equal(mixture.log_prob(rows), expected)
    assert mixture.log_prob(rows.requires_grad_()).requires_grad


def test_zero_weight_components_are_never_drawn_and_the_others_by_weight():
    log_weights = torch.tensor([0.0, 1.0, 0.0, 3.0, 2.0, 0.0], dtype=F64).log()
    mixture = NormalMixture(torch.zeros(6, 1, dtype=F64), torch.zeros((), dtype=F64), log_weights)
    drawn = mixture.sample_components((6000,), generator=torch.Generator().manual_seed(1))
    counts = torch.bincount(drawn, minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert stats.chisquare(counts[[1, 3, 4]].numpy(), [1000, 3000, 2000]).pvalue > 1e-3


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("block", [4, 2**22])
def test_leave_one_out_equals_a_naive_loop_over_rows(shared, block, monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", block)
    monkeypatch.setattr(kernels, "_MIN_COMPONENTS", 1)
    means, log_variance, weights = (t.requires_grad_() for t in make_mixture(shared))
    component_ids = torch.tensor([4, 2, 9, 2, 5, 7, 4])
    row_ids = torch.tensor([2, 3, 4])
    z = torch.randn(5, 3, 3, dtype=F64, generator=torch.Generator().manual_seed(6))
    mixture = LeaveOneOutMixture(means, log_variance, weights.log(), component_ids, row_ids)
    expected = torch.empty(5, 3, dtype=F64)
    for sample in range(5):
        for row in range(3):
            keep = [m for m in range(7) if component_ids[m] != row_ids[row]]
            own_variance = log_variance if shared else log_variance[keep]
            expected[sample, row] = brute_force(z[sample, row], means[keep], own_variance, weights[keep])
    torch.testing.assert_close(mixture.log_prob(z), expected, rtol=0, atol=1e-10)
    leaves = [means, log_variance, weights]
    ours = torch.autograd.grad(mixture.log_prob(z).sum(), leaves)
    for mine, theirs in zip(ours, torch.autograd.grad(expected.sum(), leaves), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


def test_leave_one_out_in_blocks_and_in_samples(monkeypatch):
    component_ids = torch.tensor([0, 1, 2, 2])
    mixture = LeaveOneOutMixture(
        torch.tensor([[0.0], [10.0], [20.0], [20.0]], dtype=F64),
        torch.tensor(-8.0, dtype=F64),
        torch.zeros(4),
        component_ids,
        torch.tensor([2, 0]),
    )
    drawn = mixture.sample((3000,), generator=torch.Generator().manual_seed(0)).squeeze(-1).round()
    assert set(drawn[:, 0].tolist()) == {0.0, 10.0}
    assert stats.chisquare([(drawn[:, 1] == v).sum() for v in (10, 20)], [1000, 2000]).pvalue > 1e-3

    z = torch.tensor([[10.0], [20.0]], dtype=F64)
    whole = mixture.log_prob(z.expand(6, 2, 1))
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 3)
    monkeypatch.setattr(kernels, "_MIN_COMPONENTS", 1)
    torch.testing.assert_close(mixture.log_prob(z.expand(6, 2, 1)), whole)


def test_leave_one_out_refuses_a_row_with_nothing_left():
    ids = torch.tensor([3, 3])
    with pytest.raises(ValueError, match="draw more exemplars"):
        LeaveOneOutMixture(torch.zeros(2, 1), torch.tensor(0.0), torch.zeros(2), ids, ids)


def test_leave_one_out_refuses_another_number_of_rows():
    ids = torch.tensor([0, 1, 2])
    mixture = LeaveOneOutMixture(torch.zeros(3, 1), torch.tensor(0.0), torch.zeros(3), ids, ids)
    with pytest.raises(ValueError, match="scores 3 rows"):
        mixture.log_prob(torch.zeros(1, 1))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="means"):
        NormalMixture(torch.zeros(3, 2), torch.tensor(0.0), torch.zeros(4))
    with pytest.raises(ValueError, match="log_variance"):
        NormalMixture(torch.zeros(3, 2), torch.zeros(3), torch.zeros(3))


def test_a_mixture_has_a_component():
    with pytest.raises(ValueError, match="at least one component"):
        NormalMixture(torch.zeros(0, 3), torch.tensor(0.0), torch.zeros(0))


def test_no_rows_give_no_densities():
    mixture = NormalMixture(torch.zeros(3, 2), torch.tensor(0.0), torch.zeros(3))
    assert mixture.log_prob(torch.zeros(0, 2)).shape == (0,)


@pytest.mark.parametrize("with_gradient", [False, True])
def test_a_mixture_stays_what_it_is_when_an_optimiser_moves_its_variance(with_gradient):
    log_variance = torch.nn.Parameter(torch.tensor(0.0))
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with torch.set_grad_enabled(with_gradient):
        mixture = NormalMixture(torch.zeros(4, 3), log_variance, torch.zeros(4))
        before = mixture.log_prob(z).detach()
        with torch.no_grad():
            log_variance.add_(1.0)
        assert torch.equal(mixture.log_prob(z).detach(), before)


@pytest.mark.parametrize("dimensions", [1, 3])
def test_latents_of_other_dimensions_are_refused(dimensions):
    ids = torch.arange(4)
    parts = torch.zeros(4, 30), torch.tensor(0.0), torch.zeros(4)
    for mixture in (NormalMixture(*parts), LeaveOneOutMixture(*parts, ids, ids + 10)):
        with pytest.raises(ValueError, match=f"{dimensions} dimensions and this distribution 30.*same latent_dim"):
            mixture.log_prob(torch.zeros(4, dimensions))


def test_weights_are_taken_as_they_are_if_asked_to():
    means, log_variance, weights = make_mixture(shared=True)
    z = torch.randn(4, 3, dtype=F64, generator=torch.Generator().manual_seed(6))
    as_given = NormalMixture(means, log_variance, weights.log(), normalise=False).log_prob(z)
    expected = brute_force(z, means, log_variance, weights) + weights.sum().log()
    torch.testing.assert_close(as_given, expected)


def test_samples_carry_no_gradient():
    means = torch.zeros(4, 3, requires_grad=True)
    parts = means, torch.tensor(0.0, requires_grad=True), torch.zeros(4, requires_grad=True)
    assert not NormalMixture(*parts).sample((5,)).requires_grad
    assert not LeaveOneOutMixture(*parts, torch.arange(4), torch.arange(2)).sample((5,)).requires_grad
