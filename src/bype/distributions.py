"""Distributions over the latent space: the diagonal normal and weighted mixtures of normals.

Shape letters: ``B`` rows to score, ``M`` mixture components, ``D`` latent dimensions, ``F`` features made of
them, ``...`` any leading dimensions. Every log density is in nats, summed over the ``D`` latent dimensions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Randomness = torch.Generator | None
"""Where random numbers come from: a generator, or ``None`` for PyTorch's global one."""

_LOG_TWO_PI = math.log(2 * math.pi)
_BLOCK_ELEMENTS = 2**22
"""The largest rows x components block that a mixture holds at once: 16 MB in float32."""
_MIN_COMPONENTS = 512
"""Narrower blocks than this would spend their time in overhead: fewer rows are taken instead."""


def standard_normal(shape: Sequence[int], *, like: Tensor, generator: Randomness = None) -> Tensor:
    """Draw standard normal numbers with the dtype and device of ``like``.

    They are drawn where the generator lives and then moved, so one seed gives one result on every device.
    """
    device = like.device if generator is None else generator.device
    return torch.randn(shape, dtype=like.dtype, device=device, generator=generator).to(like.device)


def uniform(shape: Sequence[int], *, device: torch.device, generator: Randomness = None) -> Tensor:
    """Draw float64 numbers uniform on [0, 1), where the generator lives, and move them to ``device``."""
    source = device if generator is None else generator.device
    return torch.rand(shape, dtype=torch.float64, device=source, generator=generator).to(device)


class Distribution(Protocol):
    """What a prior returns: one object that scores latents and samples them."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (...) of ``value`` (..., D)."""

    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw latents of shape (*shape, ..., D)."""


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

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (...) of ``value`` (..., D)."""
        squared = (value - self.mean).square() * torch.exp(-self.log_variance)
        return -0.5 * (squared + self.log_variance + _LOG_TWO_PI).sum(-1)

    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw (*shape, ..., D), reparameterised: gradients reach mean and variance."""
        noise = standard_normal((*shape, *self.mean.shape), like=self.mean, generator=generator)
        return self.mean + noise * torch.exp(0.5 * self.log_variance)


class NormalMixture:
    r"""Weighted mixture of normals, :math:`p(z) = \sum_m \pi_m N(z \mid \mu_m, \sigma_m^2)` (the paper's Eq. 12).

    Scoring is exact. It runs over blocks of rows and components, and a gradient recomputes each block
    instead of storing it, so memory stays bounded for any number of components.

    Parameters
    ----------
    means
        (M, D).
    log_variance
        () for one isotropic variance shared by all components, or (M, D) for a diagonal of each one's own.
    log_weights
        (M,), on any scale: they are normalised here. A weight of zero is ``-inf``; such a component is
        never drawn, and no gradient becomes NaN because of it.

    Examples
    --------
    >>> mixture = NormalMixture(torch.tensor([[-1.0], [1.0]]), torch.tensor(0.0), torch.zeros(2))
    >>> mixture.log_prob(torch.zeros(1))
    tensor(-1.4189)
    """

    def __init__(self, means: Tensor, log_variance: Tensor, log_weights: Tensor) -> None:
        if means.ndim != 2 or log_weights.shape != means.shape[:1]:
            raise ValueError(
                f"a mixture needs means (M, D) and log_weights (M,), "
                f"not {tuple(means.shape)} and {tuple(log_weights.shape)}"
            )
        if log_variance.shape not in ((), means.shape):
            raise ValueError(
                f"log_variance must be a scalar or shaped like the means {tuple(means.shape)}, "
                f"not {tuple(log_variance.shape)}"
            )
        self.means = means
        self.log_variance = log_variance
        self.log_weights = log_weights - torch.logsumexp(log_weights, 0)
        # log(weight x density) of row b under component m is made of one product: features_b . coefficients_m +
        # bias_m + constant_b. Expanding squares loses the fewest digits near the origin, hence the centre.
        self._centre = means.detach().mean(0)
        mean_MD = means - self._centre
        num_dimensions = means.shape[1]
        self._precision = torch.exp(-log_variance)
        scaled_MD = self._precision * mean_MD
        if log_variance.ndim == 0:
            self._coefficients_MF = mean_MD
            log_determinant = num_dimensions * log_variance
        else:
            self._coefficients_MF = torch.cat([scaled_MD, -0.5 * self._precision], 1)
            log_determinant = log_variance.sum(1)
        # A block whose weights are all zero would have log-sum-exp -inf, and NaN for a gradient.
        finite_log_weights_M = self.log_weights.to(means.dtype).clamp_min(_lowest(means.dtype))
        normaliser_M = (scaled_MD * mean_MD).sum(1) + num_dimensions * _LOG_TWO_PI + log_determinant
        self._bias_M = finite_log_weights_M - 0.5 * normaliser_M

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (...) of ``value`` (..., D)."""
        num_components, num_dimensions = self.means.shape
        rows_BD = value.reshape(-1, num_dimensions)
        component_step = min(num_components, max(_MIN_COMPONENTS, _BLOCK_ELEMENTS // max(1, len(rows_BD))))
        component_blocks = _slices(num_components, component_step)
        row_blocks = _slices(len(rows_BD), max(1, _BLOCK_ELEMENTS // component_step))
        several = len(component_blocks) * len(row_blocks) > 1
        score = self._recomputed_block if several and torch.is_grad_enabled() else self._block
        log_prob_B = torch.cat(
            [
                torch.logsumexp(torch.stack([score(rows_BD, rows, part) for part in component_blocks]), 0)
                for rows in row_blocks
            ]
        )
        return log_prob_B.reshape(value.shape[:-1])

    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw (*shape, D): a component by its weight, then a point of that component."""
        return self.component(self.sample_components(shape, generator=generator)).sample(generator=generator)

    def sample_components(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw component numbers by weight, by inverting the cumulative weights in float64."""
        support = torch.nonzero(self.log_weights > -torch.inf).squeeze(1)
        cumulative = self.log_weights[support].double().exp().cumsum(0)
        position = uniform(shape, device=self.means.device, generator=generator) * cumulative[-1]
        # Rounding can lift the largest uniform number onto the total itself.
        return support[torch.searchsorted(cumulative, position, right=True).clamp_max(len(support) - 1)]

    def component(self, index: int | Tensor) -> DiagonalNormal:
        """Return the component or components numbered ``index``."""
        mean = self.means[index]
        shared = self.log_variance.ndim == 0
        return DiagonalNormal(mean, self.log_variance.expand_as(mean) if shared else self.log_variance[index])

    def _block(self, rows_BD: Tensor, rows: slice, components: slice) -> Tensor:
        """Return the log density of some rows under some components, with their weights: (rows,)."""
        offset_BD = rows_BD[rows] - self._centre
        if self.log_variance.ndim == 0:
            features_BF = self._precision * offset_BD
            constant_B = -0.5 * (features_BF * offset_BD).sum(1)
            return torch.logsumexp(self._joint(features_BF, rows, components), 1) + constant_B
        features_BF = torch.cat([offset_BD, offset_BD.square()], 1)
        return torch.logsumexp(self._joint(features_BF, rows, components), 1)

    def _recomputed_block(self, rows_BD: Tensor, rows: slice, components: slice) -> Tensor:
        """Return the same, keeping nothing for the gradient but the result."""
        block: Tensor = checkpoint(
            self._block, rows_BD, rows, components, use_reentrant=False, preserve_rng_state=False
        )
        return block

    def _joint(self, features_BF: Tensor, rows: slice, components: slice) -> Tensor:
        """Return log(weight x density), up to a constant of each row: (rows, components)."""
        return torch.addmm(self._bias_M[components], features_BF, self._coefficients_MF[components].T)


class LeaveOneOutMixture(NormalMixture):
    """A mixture in which each row to score leaves out its own component, and the others share its weight.

    It is a batch of ``B`` mixtures, one a row: ``log_prob`` takes (..., B, D).

    Parameters
    ----------
    component_ids
        (M,): which example each component stands for; the same example may appear several times.
    row_ids
        (B,): which example each row is. Its components do not count for that row.

    Examples
    --------
    >>> mixture = LeaveOneOutMixture(
    ...     means=torch.tensor([[-1.0], [1.0]]),
    ...     log_variance=torch.tensor(0.0),
    ...     log_weights=torch.zeros(2),
    ...     component_ids=torch.tensor([7, 8]),
    ...     row_ids=torch.tensor([8]),
    ... )
    >>> mixture.log_prob(torch.tensor([[-1.0]]))  # only the component of example 7 is left
    tensor([-0.9189])
    """

    def __init__(
        self, means: Tensor, log_variance: Tensor, log_weights: Tensor, component_ids: Tensor, row_ids: Tensor
    ) -> None:
        super().__init__(means, log_variance, log_weights)
        self.component_ids = component_ids
        self.row_ids = row_ids
        weights_M = self.log_weights.double().exp()
        kept = [
            torch.where(self._own(row_ids[rows], slice(None)), 0.0, weights_M).sum(1)
            for rows in _slices(len(row_ids), max(1, _BLOCK_ELEMENTS // len(weights_M)))
        ]
        self._log_kept = torch.cat(kept).log().to(means.dtype)
        if self._log_kept.isneginf().any():
            raise ValueError(
                "leave-one-out leaves a row without any component: every exemplar is the row's own example; "
                "draw more exemplars, or use more than one training example"
            )

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (..., B) of ``value`` (..., B, D), row b without example ``row_ids[b]``."""
        return super().log_prob(value) - self._log_kept

    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw (*shape, B, D), row b from the mixture without example ``row_ids[b]``."""
        index = self.sample_components((*shape, len(self.row_ids)), generator=generator)
        while (own := self.component_ids[index] == self.row_ids).any():
            index = torch.where(own, self.sample_components(own.shape, generator=generator), index)
        return self.component(index).sample(generator=generator)

    def _own(self, row_ids: Tensor, components: slice) -> Tensor:
        return row_ids[:, None] == self.component_ids[components]

    def _joint(self, features_BF: Tensor, rows: slice, components: slice) -> Tensor:
        joint_BM = super()._joint(features_BF, rows, components)
        position = torch.arange(rows.start, rows.start + len(joint_BM), device=joint_BM.device)
        own_BM = self._own(self.row_ids[position % len(self.row_ids)], components)
        return joint_BM.masked_fill(own_BM, _lowest(joint_BM.dtype))


def _lowest(dtype: torch.dtype) -> float:
    """Return a finite stand-in for log 0: its exponential is zero, its gradient is not NaN."""
    return torch.finfo(dtype).min / 4


def _slices(total: int, step: int) -> list[slice]:
    return [slice(first, first + step) for first in range(0, max(1, total), step)]
