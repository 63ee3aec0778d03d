"""Linear models with Gaussian noise: probabilistic PCA and factor analysis. Their likelihood has a closed form.

Shape letters: ``B`` examples, ``d`` numbers in one example, ``D`` latents.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bype.data.scaling import Batches, mean_and_variance

_EXACT_DIMENSIONS = 1024
"""Up to this many numbers in an example the whole covariance matrix is computed; beyond, only its leading part."""
_SPARE_DIRECTIONS = 16
_PASSES = 4
_FACTOR_STEPS = 300
_FEW_STEPS = 8
"""Of factor analysis without the covariance matrix: each takes two passes over the data."""


@dataclass(frozen=True, eq=False)
class LinearGaussian:
    r"""The model :math:`x = c + W z + \epsilon` with :math:`z \sim N(0, I)`, :math:`\epsilon \sim N(0, \Psi)`.

    The columns of :math:`\Psi^{-1/2} W` are orthogonal, so that posteriors have diagonal covariance.

    References
    ----------
    M. Tipping and C. Bishop, Probabilistic Principal Component Analysis, JRSS B 1999.

    Examples
    --------
    >>> x = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 1, 1, 1, 1])
    >>> model = probabilistic_pca(lambda: [x], 1)
    >>> model.noise.shape, bool((model.log_prob(x).mean() - 5 * model.log_prob(x[:1])).isfinite())
    (torch.Size([5]), True)
    """

    center: Tensor
    """(d,), c."""
    loadings: Tensor
    """(d, D), W."""
    noise: Tensor
    """(d,), the diagonal of Psi."""

    @classmethod
    def of(cls, center: Tensor, loadings: Tensor, noise: Tensor) -> "LinearGaussian":
        """Return the model with its latents rotated so that posteriors have diagonal covariance."""
        rotation = torch.linalg.eigh((loadings / noise[:, None]).T @ loadings).eigenvectors.flip(1)
        return cls(center, loadings @ rotation, noise)

    @property
    def projection(self) -> Tensor:
        """(D, d), the matrix that maps x - c to the posterior mean."""
        return self.posterior_variance[:, None] * (self.loadings / self.noise[:, None]).T

    @property
    def posterior_variance(self) -> Tensor:
        """(D,), the same for all x."""
        return 1 / (1 + (self.loadings.square() / self.noise[:, None]).sum(0))

    @property
    def variance(self) -> Tensor:
        """(d,), of each dimension of x."""
        return self.loadings.square().sum(1) + self.noise

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log p(x) (B,) of examples (B, d), in nats."""
        centred = x.to(self.center.dtype) - self.center
        latents = centred @ self.projection.T
        squares = (centred.square() / self.noise).sum(1) - (latents.square() / self.posterior_variance).sum(1)
        log_volume = self.noise.log().sum() - self.posterior_variance.log().sum()
        return -0.5 * (squares + log_volume + len(self.center) * math.log(2 * math.pi))

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return the expected examples (B, d) at the posterior means of examples (B, d)."""
        return self.center + (x.to(self.center.dtype) - self.center) @ self.projection.T @ self.loadings.T


def probabilistic_pca(
    batches: Batches, num_latents: int, floor: float = 1e-12, noise_variance: float | None = None
) -> LinearGaussian:
    """Fit a linear model whose noise has one variance, by maximum likelihood.

    The leading principal components of large examples are found by subspace iteration, in a few passes over the data.

    Parameters
    ----------
    batches
        The examples.
    num_latents
        D, below the number of dimensions.
    floor
        The smallest variance of the noise.
    noise_variance
        The variance of the noise, if it is known. Directions in which the data vary less get no loadings.
    """
    center, variance, count = mean_and_variance(batches)
    num_latents = min(num_latents, len(center) - 1, count - 1)
    if len(center) <= _EXACT_DIMENSIONS:
        values, vectors = _leading(covariance(batches, center), num_latents)
    else:
        values, vectors = _subspace_iteration(batches, center, count, num_latents)
    noise = ((variance.sum() - values.sum()) / (len(center) - num_latents)).clamp_min(floor)
    if noise_variance is not None:
        noise = torch.full_like(noise, noise_variance)
    loadings = vectors * (values - noise).clamp_min(0).sqrt()
    return LinearGaussian.of(center, loadings, noise.expand_as(center))


def factor_analysis(batches: Batches, num_latents: int, floor: float = 1e-12) -> LinearGaussian:
    """Fit a linear model whose noise has a variance of each dimension's own, by maximum likelihood.

    Each step maximises the likelihood in the loadings, given the noise, and then sets the noise to what the loadings
    leave of each variance. Large examples take fewer steps, each in a few passes over the data.

    Parameters
    ----------
    batches
        The examples.
    num_latents
        D, below the number of dimensions.
    floor
        The smallest variance of the noise.

    References
    ----------
    D. Barber, Bayesian Reasoning and Machine Learning, 2012, Algorithm 21.1.
    """
    center, variance, count = mean_and_variance(batches)
    num_latents = min(num_latents, len(center) - 1, count - 1)
    if len(center) <= _EXACT_DIMENSIONS:
        matrix, steps = covariance(batches, center), _FACTOR_STEPS if len(center) <= 300 else _FACTOR_STEPS // 10
    else:
        matrix, steps = None, _FEW_STEPS

    def leading(root: Tensor, loadings: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest eigenvalues of the covariance of x / root, and their vectors; they are near loadings."""
        if matrix is not None:
            return _leading(matrix / root / root[:, None], num_latents)
        scaled = root.float()
        near, passes = ((loadings / root[:, None]).float(), 2) if loadings.any() else (None, _PASSES)
        return _subspace_iteration(
            lambda: (x / scaled for x in batches()), center / root, count, num_latents, near, passes
        )

    # From the noise of PCA, steps can stay for long where a latent explains one dimension and nothing else.
    noise, loadings = variance.clamp_min(floor), variance.new_zeros(len(variance), num_latents)
    for _ in range(steps):
        root = noise.sqrt()
        values, vectors = leading(root, loadings)
        loadings = root[:, None] * vectors * (values - 1).clamp_min(0).sqrt()
        before, noise = noise, (variance - loadings.square().sum(1)).clamp_min(floor)
        if (noise.log() - before.log()).abs().max() < 1e-5:
            break
    return LinearGaussian.of(center, loadings, noise)


def covariance(batches: Batches, center: Tensor) -> Tensor:
    """Return the covariance matrix (d, d) in float64."""
    total, count = torch.zeros(len(center), len(center), dtype=torch.float64), 0
    for x in batches():
        centred = x.double() - center
        total, count = total + centred.T @ centred, count + len(x)
    return total / count


def _leading(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalues (count,) and their vectors (d, count), the largest first."""
    values, vectors = torch.linalg.eigh(matrix)
    kept = slice(len(values) - count, None)  # -count would keep all if count is 0
    return values[kept].flip(0), vectors[:, kept].flip(1)


def _subspace_iteration(
    batches: Batches, center: Tensor, count: int, num_latents: int, near: Tensor | None = None, passes: int = _PASSES
) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalues of the covariance, and their vectors; ``near`` are directions to start from."""
    width = min(num_latents + _SPARE_DIRECTIONS, len(center), count)
    basis = torch.randn(len(center), width, generator=torch.Generator().manual_seed(0))
    if near is not None:
        basis[:, : near.shape[1]] = near
    for _ in range(passes):
        basis = torch.linalg.qr(basis).Q
        product = torch.zeros_like(basis)
        for x in batches():
            centred = (x - center.to(x.dtype)).float()
            product += centred.T @ (centred @ basis)
        last, basis = basis, product / count
    values, rotation = _leading((last.T.double() @ basis.double() + basis.T.double() @ last.double()) / 2, num_latents)
    return values, last.double() @ rotation
