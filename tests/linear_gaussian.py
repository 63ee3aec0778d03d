"""Models in which everything is linear and Gaussian, so that log p(x) is known exactly.

x = A z1 + C z2 + b + noise, z1 = E z2 + noise (the HVAE), or x = A z + b + noise (the VAE), with a standard
normal or a mixture for the prior of the top latent.
"""

import math

import torch
from torch import Tensor, nn

from bype.likelihoods import FixedGaussian
from bype.models import VAE, HierarchicalVAE
from bype.priors import Prior

F64 = torch.float64


class LinearNormal(nn.Module):
    """Mean linear in the input, log-variance constant."""

    def __init__(self, weight: Tensor, bias: Tensor, variance: Tensor) -> None:
        super().__init__()
        self.weight, self.bias, self.log_variance = (nn.Parameter(t) for t in (weight, bias, variance.log()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x @ self.weight.T + self.bias
        return mean, self.log_variance.expand_as(mean)


class Affine(nn.Module):
    """The decoder: a sum of linear maps."""

    def __init__(self, bias: Tensor, *weights: Tensor) -> None:
        super().__init__()
        self.bias = nn.Parameter(bias)
        self.weights = nn.ParameterList(weights)

    def forward(self, *latents: Tensor) -> Tensor:
        return self.bias + sum(z @ w.T for z, w in zip(latents, self.weights, strict=True))


class LinearJointEncoder(nn.Module):
    """q(z1 | x, z2): x alone is embedded, z2 added afterwards."""

    def __init__(self, from_x: Tensor, from_top: Tensor, bias: Tensor, variance: Tensor) -> None:
        super().__init__()
        self.from_x, self.from_top, self.bias = (nn.Parameter(t) for t in (from_x, from_top, bias))
        self.log_variance = nn.Parameter(variance.log())

    def embed(self, x: Tensor) -> Tensor:
        return x @ self.from_x.T

    def forward(self, features: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        mean = features + top @ self.from_top.T + self.bias
        return mean, self.log_variance.expand_as(mean)


def orthogonal_columns(rows: int, columns: int, seed: int) -> Tensor:
    """A matrix with orthogonal columns of different lengths: then posteriors have diagonal covariance."""
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(rows, columns, dtype=F64, generator=generator))
    return q * torch.linspace(0.6, 1.4, columns, dtype=F64)


def linear_vae(prior: Prior, error: float, noise_variance: float = 0.3, dim: int = 2, size: int = 5) -> VAE:
    """Return a linear VAE whose q is the exact posterior under N(0, I), up to an ``error`` in its mean and variance."""
    a, b = orthogonal_columns(size, dim, seed=1), torch.linspace(-0.5, 0.5, size, dtype=F64)
    precision = 1 + (a**2).sum(0) / noise_variance
    gain = a.T / noise_variance / precision[:, None]
    encoder = LinearNormal((1 + error) * gain, -(1 + error) * gain @ b, (1 + error) / precision)
    return VAE((size,), FixedGaussian(noise_variance, mean_range=None), prior, encoder, Affine(b, a)).double()


def linear_hvae(prior: Prior, error: float, noise_variance: float = 0.3, size: int = 6) -> HierarchicalVAE:
    """Return a linear model of two levels; its q(z2 | x) and q(z1 | x, z2) are exact up to ``error``."""
    columns = orthogonal_columns(size, 4, seed=2)
    a, c, b = columns[:, :2], columns[:, 2:], torch.linspace(-0.5, 0.5, size, dtype=F64)
    e, lower_variance = torch.eye(2, dtype=F64) * torch.tensor([0.7, -0.4], dtype=F64), torch.full((2,), 0.5, dtype=F64)
    # q(z2 | x) with z1 integrated out: x = (A E + C) z2 + b + A eps1 + noise.
    joint = a @ e + c
    covariance = noise_variance * torch.eye(size, dtype=F64) + a @ torch.diag(lower_variance) @ a.T
    precision = torch.eye(2, dtype=F64) + joint.T @ torch.linalg.solve(covariance, joint)
    gain = torch.linalg.solve(precision, torch.linalg.solve(covariance, joint).T)
    encoder = LinearNormal(
        (1 + error) * gain, -(1 + error) * gain @ b, (1 + error) * torch.linalg.inv(precision).diag()
    )
    # q(z1 | x, z2): prior E z2 with variance 0.5, then x - C z2 - b = A z1 + noise.
    lower_precision = 1 / lower_variance + (a**2).sum(0) / noise_variance
    from_x = a.T / noise_variance / lower_precision[:, None]
    from_top = e / (lower_variance * lower_precision)[:, None] - from_x @ c
    joint_encoder = LinearJointEncoder((1 + error) * from_x, from_top, -from_x @ b, (1 + error) / lower_precision)
    return HierarchicalVAE(
        (size,),
        FixedGaussian(noise_variance, mean_range=None),
        prior,
        encoder,
        joint_encoder,
        LinearNormal(e, torch.zeros(2, dtype=F64), lower_variance),
        Affine(b, a, c),
    ).double()


def exact_log_likelihood(
    model: VAE | HierarchicalVAE, x: Tensor, means: Tensor, variance: float, weights: Tensor
) -> Tensor:
    """Log p(x) when the top latent has the mixture prior sum_m w_m N(means_m, variance I)."""
    noise = model.likelihood.variance * torch.eye(x.shape[1], dtype=F64)
    if isinstance(model, VAE):
        (a,) = model.decoder.weights
        joint, below = a, noise
    else:
        a, c = model.decoder.weights
        joint = a @ model.conditional.weight + c
        below = noise + a @ torch.diag(model.conditional.log_variance.exp()) @ a.T
    covariance = below + variance * joint @ joint.T
    per_component = [
        torch.distributions.MultivariateNormal(joint @ mean + model.decoder.bias, covariance).log_prob(x)
        for mean in means
    ]
    return torch.logsumexp(torch.stack(per_component) + (weights / weights.sum()).log()[:, None], 0).detach()


def three_standard_errors(values: Tensor) -> float:
    """Of the mean of independent values."""
    return 3 * values.std().item() / math.sqrt(len(values))
