"""Weighted mixtures of normals over the latent space.

Shape letters: ``B`` rows to score, ``M`` mixture components, ``D`` latent dimensions, ``...`` any leading dimensions.
Every log density is in nats, summed over the ``D`` latent dimensions.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bype.distributions import DiagonalNormal, require_dimensions
from bype.mixtures import kernels
from bype.randomness import Randomness, uniform


class NormalMixture:
    r"""Weighted mixture of normals, :math:`p(z) = \sum_m \pi_m N(z \mid \mu_m, \sigma_m^2)` (the paper's Eq. 12).

    Scores are exact up to rounding: about a hundredth of a nat in float32, more with a gradient if components are very
    narrow. Memory stays bounded for any number of components.

    Parameters
    ----------
    means
        (M, D).
    log_variance
        () for one isotropic variance that all components share, or (M, D) if each has its own diagonal.
    log_weights
        (M,). A weight of zero is ``-inf``: such a component is never drawn, and no gradient becomes NaN because of it.
    normalise
        Make the weights sum to one. Set it to False if they do so already, or if this is a part of a larger mixture.

    Examples
    --------
    >>> mixture = NormalMixture(torch.tensor([[-1.0], [1.0]]), torch.tensor(0.0), torch.zeros(2))
    >>> mixture.log_prob(torch.zeros(1))
    tensor(-1.4189)
    """

    row_ids: Tensor | None = None
    """(B,), in a batch of mixtures that leave components out: the id of each."""

    def __init__(self, means: Tensor, log_variance: Tensor, log_weights: Tensor, *, normalise: bool = True) -> None:
        if means.ndim != 2 or len(means) < 1 or log_weights.shape != means.shape[:1]:
            raise ValueError(
                f"a mixture needs means (M, D) and log_weights (M,) of at least one component, "
                f"not {tuple(means.shape)} and {tuple(log_weights.shape)}"
            )
        if log_variance.shape not in ((), means.shape):
            raise ValueError(
                f"log_variance must be a scalar or shaped like the means {tuple(means.shape)}, "
                f"not {tuple(log_variance.shape)}"
            )
        if means.dtype.itemsize < 4:  # half precision, as an encoder under autocast gives it
            means, log_variance = means.float(), log_variance.float()
        self.means = means
        # A shared variance is a parameter that an optimiser changes in place; this mixture stays what it is.
        self.log_variance = log_variance.clone() if log_variance.ndim == 0 else log_variance
        self.log_weights = log_weights - torch.logsumexp(log_weights, 0) if normalise else log_weights
        self._components = kernels.Components(self.means, self.log_variance, self.log_weights)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (...) of ``value`` (..., D)."""
        return kernels.log_prob(self._components, *self._rows(value)).reshape(value.shape[:-1])

    def responsibilities(self, value: Tensor) -> Tensor:
        r"""Return the probability of each component given ``value`` (..., D), as (..., M); each row sums to one.

        .. math:: r_m(z) = \pi_m N(z \mid \mu_m, \sigma_m^2) / p(z)
        """
        joint = kernels.log_joint(self._components, *self._rows(value))
        return joint.softmax(-1).reshape(*value.shape[:-1], len(self.means))

    def _rows(self, value: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what kernels take: rows (B, D), and the ids of the rows if they leave components out."""
        require_dimensions(value, self.means.shape[1])
        rows = value.reshape(-1, value.shape[-1])
        if self.row_ids is None:
            return rows, None
        if value.shape[-2] != len(self.row_ids):
            raise ValueError(f"this mixture scores {len(self.row_ids)} rows at a time, not {value.shape[-2]}")
        return rows, self.row_ids.expand(value.shape[:-1]).flatten()

    def of_components(self, numbers: Tensor) -> "NormalMixture":
        """Return the mixture of some components, with the weights that they have among each other."""
        log_variance = self.log_variance if self.log_variance.ndim == 0 else self.log_variance[numbers]
        return NormalMixture(self.means[numbers], log_variance, self.log_weights[numbers])

    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw (*shape, D) without gradient: a component by its weight, then a point of that component."""
        return self.component(self.sample_components(shape, generator=generator)).sample(generator=generator)

    @torch.no_grad()
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


class LeaveOneOutMixture(NormalMixture):
    r"""A mixture of which each row to score leaves out its own components, and the others share their weight.

    .. math:: p_b(z) = \sum_{m: i_m \ne j_b} \pi_m N(z \mid \mu_m, \sigma_m^2) \Big/ \sum_{m: i_m \ne j_b} \pi_m

    It is a batch of ``B`` mixtures, one a row: ``log_prob`` takes (..., B, D).

    Parameters
    ----------
    means, log_variance, log_weights
        As for :class:`NormalMixture`.
    component_ids
        (M,), :math:`i`: which example each component stands for; the same example may appear several times.
    row_ids
        (B,), :math:`j`: which example each row is. Its components do not count for that row.

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

    row_ids: Tensor

    def __init__(
        self, means: Tensor, log_variance: Tensor, log_weights: Tensor, component_ids: Tensor, row_ids: Tensor
    ) -> None:
        super().__init__(means, log_variance, log_weights)
        self.component_ids = component_ids
        self.row_ids = row_ids
        self._components = replace(self._components, ids=component_ids)
        weights_M = self.log_weights.double().exp()
        kept = [
            torch.where(ids[:, None] == component_ids, 0.0, weights_M).sum(1)
            for ids in torch.split(row_ids, max(1, kernels.BLOCK_ELEMENTS // len(weights_M)))
        ]
        self._log_kept = torch.cat(kept).log().to(self.means.dtype)
        if self._log_kept.isneginf().any():
            raise ValueError(
                "leave-one-out leaves a row without any component: every exemplar is the row's own example; "
                "draw more exemplars, or use more than one training example"
            )

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (..., B) of ``value`` (..., B, D), row b without example ``row_ids[b]``."""
        return super().log_prob(value) - self._log_kept

    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw (*shape, B, D) without gradient, row b from the mixture without example ``row_ids[b]``."""
        index = self.sample_components((*shape, len(self.row_ids)), generator=generator)
        while (own := self.component_ids[index] == self.row_ids).any():
            index = torch.where(own, self.sample_components(own.shape, generator=generator), index)
        return self.component(index).sample(generator=generator)
