"""The mixture against brute force, and its samples against its density."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from bype import mixtures
from bype.distributions import DiagonalNormal, StandardNormal
from bype.mixtures import LeaveOneOutMixture, NormalMixture

F64 = torch.float64


def brute_force(z: Tensor, means: Tensor, log_variance: Tensor, weights: Tensor) -> Tensor:
    """One density at a time through scipy-like arithmetic: no products expanded, no log-sum-exp, no blocks."""
    variance = log_variance.exp().expand_as(means)
    rows = []
    for row in z.reshape(-1, z.shape[-1]):
        density = torch.zeros((), dtype=z.dtype)
        for mean, var, weight in zip(means, variance, weights, strict=True):
            normaliser = torch.prod(torch.sqrt(2 * math.pi * var))
            density = density + weight / weights.sum() * torch.exp(-((row - mean) ** 2 / (2 * var)).sum()) / normaliser
        rows.append(density.log())
    return torch.stack(rows).reshape(z.shape[:-1])


def make_mixture(shared: bool, num_components: int = 7, dim: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    means = torch.randn(num_components, dim, dtype=F64, generator=generator) + 2
    log_variance = 0.3 * torch.randn(() if shared else (num_components, dim), dtype=F64, generator=generator)
    weights = torch.rand(num_components, dtype=F64, generator=generator)
    return means, log_variance, weights


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("block", [1, 3, 4, 2**22])
def test_mixture_equals_brute_force_in_value_and_gradient(shared, block, monkeypatch):
    # A block of one to four elements cuts rows and components everywhere; the floor of 512 columns must go too.
    monkeypatch.setattr(mixtures, "_BLOCK_ELEMENTS", block)
    monkeypatch.setattr(mixtures, "_MIN_COMPONENTS", 1)
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
def test_float32_stays_close_to_float64_far_from_the_origin(shared):
    # The paper's smallest log-variance and a cloud of latents far from zero: what expanded squares do worst.
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(500, 40, dtype=F64, generator=generator) + 10
    log_variance = torch.full(() if shared else (500, 40), -6.0, dtype=F64)
    z = means[:100] + 0.05 * torch.randn(100, 40, dtype=F64, generator=generator)
    means, z = means.float().double(), z.float().double()  # the same numbers for both
    exact = NormalMixture(means, log_variance, torch.zeros(500, dtype=F64)).log_prob(z)
    single = NormalMixture(means.float(), log_variance.float(), torch.zeros(500)).log_prob(z.float())
    # float32 has 1.2e-7 relative precision; the squares reach |z|^2 / sigma^2 = 40 * 400 = 16,000.
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=0.01)


@pytest.mark.parametrize("block", [1, 2**22])
def test_zero_weights_leave_value_and_gradient_finite(block, monkeypatch):
    monkeypatch.setattr(mixtures, "_BLOCK_ELEMENTS", block)
    monkeypatch.setattr(mixtures, "_MIN_COMPONENTS", 1)
    means, log_variance, weights = make_mixture(shared=True)
    log_weights = weights.log().index_fill(0, torch.tensor([0, 3, 6]), -torch.inf)
    z = torch.randn(4, 3, dtype=F64, generator=torch.Generator().manual_seed(6))
    leaves = [t.requires_grad_() for t in (z, means, log_variance, log_weights)]
    log_prob = NormalMixture(means, log_variance, log_weights).log_prob(z)
    gradients = torch.autograd.grad(log_prob.sum(), leaves)
    keep = torch.tensor([1, 2, 4, 5])
    torch.testing.assert_close(log_prob, brute_force(z, means[keep], log_variance, weights[keep]), rtol=0, atol=1e-10)
    assert all(g.isfinite().all() for g in gradients)
    assert gradients[1][[0, 3, 6]].abs().max() < 1e-20
    assert (gradients[3][[0, 3, 6]] == 0).all()


def test_zero_weight_components_are_never_drawn_and_the_others_by_weight():
    log_weights = torch.tensor([0.0, 1.0, 0.0, 3.0, 2.0, 0.0], dtype=F64).log()
    mixture = NormalMixture(torch.zeros(6, 1, dtype=F64), torch.zeros((), dtype=F64), log_weights)
    drawn = mixture.sample_components((6000,), generator=torch.Generator().manual_seed(1))
    counts = torch.bincount(drawn, minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert stats.chisquare(counts[[1, 3, 4]].numpy(), [1000, 3000, 2000]).pvalue > 1e-3


def test_a_million_components_score_and_backpropagate_in_bounded_memory():
    # 64 rows x 10^6 components are 256 MB in float32 for each intermediate that autograd would keep.
    means = torch.randn(1_000_000, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mixture = NormalMixture(means, torch.tensor(-2.0), torch.zeros(1_000_000))
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        log_prob = mixture.log_prob(torch.zeros(64, 2))
    assert saved < 5 * means.numel()
    (gradient,) = torch.autograd.grad(log_prob.sum(), means)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("block", [4, 2**22])
def test_leave_one_out_equals_a_naive_loop_over_rows(shared, block, monkeypatch):
    monkeypatch.setattr(mixtures, "_BLOCK_ELEMENTS", block)
    monkeypatch.setattr(mixtures, "_MIN_COMPONENTS", 1)
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
    monkeypatch.setattr(mixtures, "_BLOCK_ELEMENTS", 3)
    monkeypatch.setattr(mixtures, "_MIN_COMPONENTS", 1)
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


@pytest.mark.parametrize("with_gradient", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_autocast_does_not_round_the_density(shared, with_gradient):
    means, log_variance, weights = (t.float() for t in make_mixture(shared))
    z = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    expected = NormalMixture(means, log_variance, weights.log()).log_prob(z)
    with torch.set_grad_enabled(with_gradient), torch.autocast("cpu", dtype=torch.bfloat16):
        inside = NormalMixture(means, log_variance, weights.log()).log_prob(z)
        if with_gradient:
            assert torch.equal(inside, expected)
        torch.testing.assert_close(inside, expected, rtol=1e-5, atol=1e-5)  # without, squares are summed another way
        half = NormalMixture(means.bfloat16(), log_variance.bfloat16(), weights.log()).log_prob(z)
        assert half.dtype == torch.float32
        assert half.isfinite().all()


def test_autocast_does_not_round_single_normals():
    z = 3 * torch.randn(200, 40, generator=torch.Generator().manual_seed(0))
    normal, standard = DiagonalNormal(z, torch.zeros_like(z)), StandardNormal(torch.zeros(40))
    expected = standard.log_prob(z), normal.sample_and_score(generator=torch.Generator().manual_seed(1))[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = standard.log_prob(z), normal.sample_and_score(generator=torch.Generator().manual_seed(1))[1]
    for ours, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("shared", [True, False])
def test_very_far_components_have_no_gradient_rather_than_a_denormal_one(shared):
    """Numbers next to the smallest one make products many times slower, in every layer that they reach."""
    means = torch.tensor([[0.0], [13.8]], requires_grad=True)  # exp(-95) of the nearest
    log_variance = torch.zeros(()) if shared else torch.zeros(2, 1)
    NormalMixture(means, log_variance, torch.zeros(2)).log_prob(torch.tensor([[0.1]])).sum().backward()
    assert means.grad[0] != 0
    assert means.grad[1].abs() == 0 or means.grad[1].abs() > torch.finfo(torch.float32).tiny


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


def test_diagonal_normal_against_scipy():
    mean, log_variance = torch.tensor([0.5, -1.0], dtype=F64), torch.tensor([-0.4, 0.8], dtype=F64)
    z = torch.tensor([[0.1, 0.2], [3.0, -2.0]], dtype=F64)
    expected = stats.multivariate_normal(mean.numpy(), log_variance.exp().diag().numpy()).logpdf(z.numpy())
    torch.testing.assert_close(DiagonalNormal(mean, log_variance).log_prob(z), torch.from_numpy(expected))
    drawn = DiagonalNormal(mean, log_variance).sample((20_000,), generator=torch.Generator().manual_seed(0))
    for d in range(2):
        assert stats.kstest(drawn[:, d], stats.norm(mean[d], log_variance[d].div(2).exp()).cdf).pvalue > 1e-3


def test_a_draw_scored_at_once_against_scoring_it():
    mean = torch.randn(5, 3, dtype=F64, requires_grad=True)
    log_variance = torch.randn(5, 3, dtype=F64, requires_grad=True)
    normal = DiagonalNormal(mean, log_variance)
    drawn, score = normal.sample_and_score((4,), generator=torch.Generator().manual_seed(1))
    expected = normal.log_prob(drawn)
    torch.testing.assert_close(score, expected)
    weights = torch.randn(4, 5, dtype=F64)
    ours = torch.autograd.grad((score * weights).sum(), (mean, log_variance), retain_graph=True, allow_unused=True)
    assert ours[0] is None  # moving the mean moves the draw along: the density stays
    theirs = torch.autograd.grad((expected * weights).sum(), (mean, log_variance))
    torch.testing.assert_close(theirs[0], torch.zeros_like(mean))
    torch.testing.assert_close(ours[1], theirs[1])


def test_standard_normal_is_the_diagonal_normal_at_zero():
    zeros = torch.zeros(3, dtype=F64)
    z = torch.randn(4, 2, 3, dtype=F64)
    torch.testing.assert_close(StandardNormal(zeros).log_prob(z), DiagonalNormal(zeros, zeros).log_prob(z))
    drawn = StandardNormal(zeros).sample((5, 2), generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn, DiagonalNormal(zeros, zeros).sample((5, 2), generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("log_variance", [-4.0, 0.0, 3.0])
def test_scoring_without_gradient_is_scoring_with_one_near_and_far(dtype, log_variance):
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(300, 6, dtype=dtype, generator=generator)
    weights = torch.rand(300, dtype=dtype, generator=generator).log()
    weights[5] = -torch.inf
    mixture = NormalMixture(means, torch.tensor(log_variance, dtype=dtype), weights)
    distances = torch.logspace(-2, 4, 200, dtype=dtype)[:, None]
    z = means[:200] + distances * torch.nn.functional.normalize(torch.randn(200, 6, generator=generator).to(dtype))
    with_gradient = mixture.log_prob(z)
    with torch.no_grad():
        without = mixture.log_prob(z)
    tolerance = {"rtol": 3e-6, "atol": 3e-4} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-9}
    torch.testing.assert_close(without, with_gradient, **tolerance)


@pytest.mark.parametrize("log_variance", [-4.0, -10.0, -14.0])
def test_narrow_components_do_not_cost_digits(log_variance):
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(200, 40, generator=generator)
    rows = means[:50] + math.exp(log_variance / 2) * torch.randn(50, 40, generator=generator)
    shared = torch.tensor(log_variance)
    exact = NormalMixture(means.double(), shared.double(), torch.zeros(200).double()).log_prob(rows.double())
    with torch.no_grad():
        found = NormalMixture(means, shared, torch.zeros(200)).log_prob(rows)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=0.01)


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


@pytest.mark.parametrize("shared", [True, False])
def test_rows_may_be_scored_twice_with_a_gradient(shared):
    means, log_variance, weights = make_mixture(shared)
    leaf = means.clone().requires_grad_()
    mixture = NormalMixture(leaf, log_variance, weights.log())
    z = torch.randn(5, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    mixture.log_prob(z).sum().backward()
    once = leaf.grad.clone()
    mixture.log_prob(z).sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * once)


@pytest.mark.parametrize("log_variance", [-1000.0, 1000.0, torch.inf, torch.nan])
def test_a_variance_that_broke_down_gives_numbers_that_say_so(log_variance):
    leaf = torch.tensor(log_variance, requires_grad=True)
    scored = NormalMixture(torch.ones(4, 3), leaf, torch.zeros(4)).log_prob(torch.zeros(5, 3))
    scored.sum().backward()
    assert not (scored > -400).any()
