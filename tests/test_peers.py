"""Scores of other libraries' models are made from importance weights in closed form where there is one."""

import math
from types import SimpleNamespace

import torch
from torch import nn

from peers import Draws, draw

PIXELS, LATENTS, NOISE = 6, 2, 0.01


class Linear(nn.Module):
    """Probabilistic PCA with orthogonal loadings: its posterior is a normal with a diagonal covariance."""

    def __init__(self) -> None:
        super().__init__()
        directions = torch.linalg.qr(torch.randn(PIXELS, LATENTS, dtype=torch.float64))[0]
        self.loadings = directions * torch.tensor([0.1, 0.05], dtype=torch.float64)

    def encoder(self, x):
        precision = 1 + self.loadings.square().sum(0) / NOISE
        mean = (x.flatten(1) - 0.5) @ self.loadings / NOISE / precision
        return SimpleNamespace(embedding=mean, log_covariance=-precision.log().expand_as(mean))

    def decoder(self, z):
        return SimpleNamespace(reconstruction=(0.5 + z @ self.loadings.T).reshape(-1, 1, 2, 3))

    def log_prior(self, z):
        return -0.5 * z.square().sum(-1)


def test_weights_under_the_exact_posterior_are_the_density():
    torch.manual_seed(0)
    model = Linear()
    # More examples than fit in a block, and more draws than are decoded at once.
    x = 0.5 + 0.1 * torch.randn(18, 1, 2, 3, dtype=torch.float64)
    found = draw(model, x, 130)
    covariance = model.loadings @ model.loadings.T + NOISE * torch.eye(PIXELS, dtype=torch.float64)
    centre = torch.full((PIXELS,), 0.5, dtype=torch.float64)
    exact = torch.distributions.MultivariateNormal(centre, covariance).log_prob(x.flatten(1))
    assert found.log_ratio.shape == (130, 18)
    # Every weight is p(x) itself, up to the rounding of float64.
    torch.testing.assert_close(found.log_weights(NOISE), exact.expand(130, 18), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.log_likelihood(NOISE), exact, rtol=0, atol=1e-9)


def test_the_best_variance_is_that_of_the_errors():
    torch.manual_seed(0)
    errors = 0.04 * torch.randn(1000, PIXELS, dtype=torch.float64)
    draws = Draws(errors.square().sum(1)[None], torch.zeros(1, 1000, dtype=torch.float64), PIXELS)
    assert math.isclose(draws.best_variance(), float(errors.var(correction=0)), rel_tol=0.02)  # the grid's step is 1 %
    scored = torch.distributions.Normal(0.0, errors.square().mean().sqrt()).log_prob(errors).sum(1).mean()
    assert math.isclose(draws.negative_elbo(), -float(scored), rel_tol=1e-9)
