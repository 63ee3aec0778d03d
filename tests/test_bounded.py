"""Large mixtures scored by nearby components: never above the exact value, never below it by more than the bound."""

import pytest
import torch

from bype.bounded import ComponentIndex, NearbyMixture
from bype.distributions import NormalMixture

F64 = torch.float64


def make_mixture(num_components: int, seed: int = 0) -> NormalMixture:
    """Means that differ in some directions of a rotated space, and hardly in the others."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.tensor([2.0, 2.0, 1.5, 1.0, 0.02, 0.01, 0.0, 0.0], dtype=F64)
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=F64, generator=generator)).Q
    means = (torch.randn(num_components, 8, dtype=F64, generator=generator) * scales) @ rotation + 0.3
    weights = torch.rand(num_components, dtype=F64, generator=generator).log()
    return NormalMixture(means, torch.tensor(-3.0, dtype=F64), weights)


@pytest.mark.parametrize("num_candidates", [1, 10, 100, 2000])
@pytest.mark.parametrize("noise", [0.1, 0.25, 1.0])
def test_the_exact_density_lies_between_the_bounds(num_candidates, noise):
    mixture = make_mixture(2000)
    generator = torch.Generator().manual_seed(1)
    centres = mixture.means[:6] + 0.05 * torch.randn(6, 8, dtype=F64, generator=generator)
    z = centres + noise * torch.randn(50, 6, 8, dtype=F64, generator=generator)
    near = NearbyMixture(ComponentIndex(mixture), centres, num_candidates)
    lower = near.log_prob(z)
    excess = near.excess(z, lower)
    exact = mixture.log_prob(z)
    assert (lower <= exact + 1e-9).all()
    assert (exact <= lower + excess + 1e-9).all()
    if num_candidates == 2000:
        torch.testing.assert_close(lower, exact)
        assert (excess < 1e-9).all()


def test_few_candidates_suffice_for_draws_of_a_narrow_posterior():
    mixture = make_mixture(20_000)
    generator = torch.Generator().manual_seed(1)
    centres = mixture.means[:6]
    z = centres + 0.22 * torch.randn(200, 6, 8, dtype=F64, generator=generator)  # as wide as a component
    near = NearbyMixture(ComponentIndex(mixture), centres, 4000)
    lower = near.log_prob(z)
    assert (mixture.log_prob(z) - lower).max() < 1e-3
    assert near.excess(z, lower).mean() < 0.05


def test_variances_of_their_own_are_refused():
    mixture = NormalMixture(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(ValueError, match="share one variance"):
        ComponentIndex(mixture)
