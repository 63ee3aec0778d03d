"""Normals against scipy, and draws against their densities."""

import pytest
import torch
from scipy import stats

from bype.distributions import DiagonalNormal, StandardNormal, TorchDistribution

F64 = torch.float64


def test_autocast_does_not_round_single_normals():
    z = 3 * torch.randn(200, 40, generator=torch.Generator().manual_seed(0))
    normal, standard = DiagonalNormal(z, torch.zeros_like(z)), StandardNormal(torch.zeros(40))
    expected = standard.log_prob(z), normal.rsample_and_score(generator=torch.Generator().manual_seed(1))[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = standard.log_prob(z), normal.rsample_and_score(generator=torch.Generator().manual_seed(1))[1]
    for ours, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-5)


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
    drawn, score = normal.rsample_and_score((4,), generator=torch.Generator().manual_seed(1))
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


def test_a_reparameterised_draw_is_the_draw_with_a_gradient():
    mean, log_variance = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    normal = DiagonalNormal(mean, log_variance)
    with_gradient = normal.rsample((4,), generator=torch.Generator().manual_seed(0))
    without = normal.sample((4,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(with_gradient, without)
    assert not without.requires_grad
    in_mean, in_log_variance = torch.autograd.grad(with_gradient.sum(), (mean, log_variance))
    assert torch.equal(in_mean, torch.full((3,), 4.0))
    torch.testing.assert_close(in_log_variance, 0.5 * without.sum(0))  # half the deviation from the mean, which is 0


@pytest.mark.parametrize("normal", [StandardNormal(torch.zeros(30)), DiagonalNormal(*torch.zeros(2, 5, 30))])
@pytest.mark.parametrize("dimensions", [1, 3])
def test_latents_of_other_dimensions_are_refused(normal, dimensions):
    with pytest.raises(ValueError, match=f"{dimensions} dimensions and this distribution 30.*same latent_dim"):
        normal.log_prob(torch.zeros(5, dimensions))


def test_a_distribution_of_torch_serves_a_prior():
    parts = torch.distributions.Independent(torch.distributions.Normal(torch.tensor([[-2.0], [2.0]]), 1.0), 1)
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(torch.tensor([0.3, 0.7])), parts)
    ours = TorchDistribution(mixture)
    z = torch.randn(4, 3, 1)
    torch.testing.assert_close(ours.log_prob(z), mixture.log_prob(z))
    before = torch.get_rng_state()
    drawn = ours.sample((5_000,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(before, torch.get_rng_state())  # the caller's own random numbers go on as they were
    assert torch.equal(drawn, ours.sample((5_000,), generator=torch.Generator().manual_seed(0)))
    assert not torch.equal(drawn, ours.sample((5_000,), generator=torch.Generator().manual_seed(1)))
    exact = stats.norm(-2, 1).cdf, stats.norm(2, 1).cdf
    assert stats.kstest(drawn[:, 0], lambda x: 0.3 * exact[0](x) + 0.7 * exact[1](x)).pvalue > 1e-3
    assert ours.sample((2,)).shape == (2, 1)


def test_a_distribution_of_torch_must_score_all_dimensions_together():
    with pytest.raises(ValueError, match=r"give Independent\(distribution, 1\)"):
        TorchDistribution(torch.distributions.Normal(torch.zeros(3), 1.0))
    with pytest.raises(ValueError, match="latents have 4 dimensions and this distribution 3"):
        TorchDistribution(torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3))).log_prob(torch.zeros(4))
