"""Mixtures to test with, and their density one component at a time."""

import math

import torch
from torch import Tensor

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
