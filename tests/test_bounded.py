"""Large mixtures summed from the nearest components on: between the exact value and it, no more than was told."""

import pytest
import torch

from bype import bounded
from bype.bounded import ComponentIndex, NearbyMixture
from bype.mixtures import NormalMixture

F64 = torch.float64


def make_mixture(num_components: int, log_variance: float = -3.0) -> NormalMixture:
    """Means that differ in some directions of a rotated space, and hardly in the others."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([2.0, 2.0, 1.5, 1.0, 0.02, 0.01, 0.0, 0.0], dtype=F64)
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=F64, generator=generator)).Q
    means = (torch.randn(num_components, 8, dtype=F64, generator=generator) * scales) @ rotation + 0.3
    weights = torch.rand(num_components, dtype=F64, generator=generator).log()
    return NormalMixture(means, torch.tensor(log_variance, dtype=F64), weights)


@pytest.mark.parametrize("negligible", [-2.0, 1.0, 9.0])
@pytest.mark.parametrize("noise", [0.05, 0.25, 1.0])
@pytest.mark.parametrize("log_variance", [-5.0, -3.0, 0.0])
def test_the_exact_density_lies_between_the_bounds(negligible, noise, log_variance, monkeypatch):
    """Small margins for what is negligible make the bounds work hard, and they must still hold."""
    monkeypatch.setattr(bounded, "_NEGLIGIBLE", negligible)
    monkeypatch.setattr(bounded, "_BLOCK", 64)
    mixture = make_mixture(2000, log_variance)
    generator = torch.Generator().manual_seed(1)
    centres = mixture.means[:6] + 0.05 * torch.randn(6, 8, dtype=F64, generator=generator)
    z = centres + noise * torch.randn(50, 6, 8, dtype=F64, generator=generator)
    lower, excess = NearbyMixture(ComponentIndex(mixture), centres).bounds(z)
    exact = mixture.log_prob(z)
    assert (lower <= exact + 1e-9).all()
    assert (exact <= lower + excess + 1e-9).all()
    if negligible == 9.0:
        assert excess.max() < 6e-3
        torch.testing.assert_close(lower, exact, atol=6e-3, rtol=0)


def test_few_components_are_summed_for_draws_of_a_narrow_posterior(monkeypatch):
    monkeypatch.setattr(bounded, "_BLOCK", 500)
    mixture = make_mixture(20_000, -5.0)
    centres = mixture.means[:4]
    z = centres + 0.08 * torch.randn(100, 4, 8, dtype=F64, generator=torch.Generator().manual_seed(1))
    near = NearbyMixture(ComponentIndex(mixture), centres)
    lower, excess = near.bounds(z)
    torch.testing.assert_close(lower, mixture.log_prob(z), atol=1e-3, rtol=0)
    assert excess.max() < 1e-3
    assert near.num_summed < 10_000


def test_single_precision_is_close():
    mixture = make_mixture(5000)
    single = NormalMixture(mixture.means.float(), mixture.log_variance.float(), mixture.log_weights.float())
    centres = mixture.means[:4]
    z = centres + 0.2 * torch.randn(100, 4, 8, dtype=F64, generator=torch.Generator().manual_seed(1))
    lower, excess = NearbyMixture(ComponentIndex(single), centres.float()).bounds(z.float())
    exact = mixture.log_prob(z)
    torch.testing.assert_close(lower.double(), exact, atol=2e-4, rtol=0)
    assert (exact <= lower + excess + 2e-5).all()  # seven digits of numbers around ten


def test_components_of_no_weight_do_not_count(monkeypatch):
    monkeypatch.setattr(bounded, "_BLOCK", 4)
    mixture = make_mixture(60)
    centres = mixture.means[:1]
    weights = mixture.log_weights.clone()
    weights[(mixture.means - centres).norm(dim=1).argsort()[:8]] = -torch.inf  # two whole blocks, the nearest
    mixture = NormalMixture(mixture.means, mixture.log_variance, weights)
    z = centres + 0.2 * torch.randn(30, 1, 8, dtype=F64, generator=torch.Generator().manual_seed(1))
    lower, excess = NearbyMixture(ComponentIndex(mixture), centres).bounds(z)
    exact = mixture.log_prob(z)
    assert (lower <= exact + 1e-9).all()
    assert (exact <= lower + excess + 1e-9).all()


def test_variances_of_their_own_are_refused():
    mixture = NormalMixture(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(ValueError, match="share one variance"):
        ComponentIndex(mixture)
