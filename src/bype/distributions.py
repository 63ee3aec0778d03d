"""Distributions over the latent space: what each one offers, and the standard and the diagonal normal.

Shape letters: ``D`` latent dimensions, ``...`` any leading dimensions. Every log density is in nats, summed over the
``D`` latent dimensions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bype.randomness import Noise, Randomness, seeded, standard_normal

LOG_TWO_PI = math.log(2 * math.pi)


class Distribution(Protocol):
    """What a prior returns: one object that scores latents and samples them."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (...) of ``value`` (..., D)."""

    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw latents of shape (*shape, ..., D), without gradient."""


def squared_length(value: Tensor) -> Tensor:
    """Return the sums of squares (...) of ``value`` (..., D), in full precision also under autocast."""
    if torch.is_autocast_enabled(value.device.type):  # which would round a product to half of its digits
        return value.square().sum(-1)
    return torch.linalg.vecdot(value, value)


def require_dimensions(value: Tensor, num_dimensions: int) -> None:
    """Refuse latents (..., D) if the distribution has another D: broadcasting could hide this."""
    if value.shape[-1] != num_dimensions:
        raise ValueError(
            f"latents have {value.shape[-1]} dimensions and this distribution {num_dimensions}: "
            f"give the prior and the networks the same latent_dim"
        )


@dataclass(frozen=True, eq=False)
class DiagonalNormal:
    r"""Normal distribution with independent dimensions, :math:`N(z \mid \mu, \mathrm{diag}\,\sigma^2)`.

    Leading dimensions of the parameters are independent distributions, one per row.

    Parameters
    ----------
    mean, log_variance
        (..., D) each.

    Examples
    --------
    >>> normal = DiagonalNormal(torch.zeros(2), torch.zeros(2))
    >>> normal.log_prob(torch.zeros(2))
    tensor(-1.8379)
    """

    mean: Tensor
    log_variance: Tensor

    def __post_init__(self) -> None:
        """Convert half precision, which networks return under autocast: sums of densities need more digits."""
        if self.mean.dtype.itemsize < 4:
            object.__setattr__(self, "mean", self.mean.float())
            object.__setattr__(self, "log_variance", self.log_variance.float())

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (...) of ``value`` (..., D)."""
        require_dimensions(value, self.mean.shape[-1])
        squared = (value - self.mean).square() * torch.exp(-self.log_variance)
        return -0.5 * (squared + self.log_variance + LOG_TWO_PI).sum(-1)

    @torch.no_grad()
    def sample(self, shape: Sequence[int] = (), *, generator: Noise = None) -> Tensor:
        """Draw (*shape, ..., D) without gradient."""
        return self.rsample(shape, generator=generator)

    def rsample(self, shape: Sequence[int] = (), *, generator: Noise = None) -> Tensor:
        """Draw (*shape, ..., D), reparameterised: gradients reach mean and variance."""
        return self.rsample_and_score(shape, generator=generator)[0]

    def rsample_and_score(self, shape: Sequence[int] = (), *, generator: Noise = None) -> tuple[Tensor, Tensor]:
        """Draw (*shape, ..., D) as :meth:`rsample` does, and return it with its log density (*shape, ...).

        The deviation from the mean, in standard deviations, is the noise itself, so the density comes at half the cost
        of :meth:`log_prob`; its gradient is the same.
        """
        noise = standard_normal((*shape, *self.mean.shape), like=self.mean, generator=generator)
        value = self.mean + noise * torch.exp(0.5 * self.log_variance)
        log_two_pi = self.mean.shape[-1] * LOG_TWO_PI
        return value, -0.5 * (squared_length(noise) + self.log_variance.sum(-1) + log_two_pi)


@dataclass(frozen=True, eq=False)
class StandardNormal:
    """The normal distribution N(0, I).

    Parameters
    ----------
    origin
        (D,), its mean: zeros of the dtype and on the device that samples are to have.

    Examples
    --------
    >>> StandardNormal(torch.zeros(2)).log_prob(torch.zeros(2))
    tensor(-1.8379)
    """

    origin: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (...) of ``value`` (..., D)."""
        require_dimensions(value, len(self.origin))
        return -0.5 * (squared_length(value) + value.shape[-1] * LOG_TWO_PI)

    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw (*shape, D)."""
        return standard_normal((*shape, *self.origin.shape), like=self.origin, generator=generator)


@dataclass(frozen=True, eq=False)
class TorchDistribution:
    """A distribution of ``torch.distributions``, or of a library with this interface such as zuko, as a prior's.

    Those draw from PyTorch's global generator alone. Here a given generator decides what is drawn.

    Parameters
    ----------
    distribution
        Its events have the D latent dimensions; where dimensions are independent, wrap it in ``Independent(..., 1)``.

    Examples
    --------
    >>> normal = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    >>> ours = TorchDistribution(normal)
    >>> ours.log_prob(torch.zeros(5, 2)).shape
    torch.Size([5])
    >>> ours.sample((3,), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([3, 2])
    """

    distribution: torch.distributions.Distribution

    def __post_init__(self) -> None:
        """Refuse a distribution that scores each dimension apart: its sums would be wrong or of another shape."""
        if len(self.distribution.event_shape) != 1:
            raise ValueError(
                f"a prior scores all latent dimensions together; give Independent(distribution, 1), not an event shape "
                f"of {tuple(self.distribution.event_shape)}"
            )

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (...) of ``value`` (..., D)."""
        require_dimensions(value, self.distribution.event_shape[0])
        return self.distribution.log_prob(value)

    @torch.no_grad()
    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw (*shape, D) without gradient."""
        size = torch.Size(shape)
        if generator is None:
            return self.distribution.sample(size)
        with seeded(int(torch.randint(2**62, (), generator=generator, device=generator.device))):
            return self.distribution.sample(size)
