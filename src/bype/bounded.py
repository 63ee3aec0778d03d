"""Mixtures of very many components, summed from the nearest on until the rest can be shown not to matter.

Shape letters: ``K`` draws, ``B`` examples, ``M`` components, ``C`` components of a block, ``D`` latent dimensions,
``P`` dimensions in which the components differ, ``Q`` the others.
"""

import math

import torch
from torch import Tensor

from bype.distributions import LOG_TWO_PI
from bype.mixtures import NormalMixture

_BLOCK = 2048
_SMALL_SPREAD = 1.0
"""Directions in which component means spread less than so many standard deviations of a component count as narrow."""
_NEGLIGIBLE = 9.0
"""What is smaller than the sum so far by this many nats is left out, and added to the bound."""


class ComponentIndex:
    """What the bounds of one mixture need, worked out once.

    Parameters
    ----------
    mixture
        With one variance shared by all components; those of no weight are left out.
    """

    def __init__(self, mixture: NormalMixture) -> None:
        if mixture.log_variance.ndim:
            raise ValueError("components must share one variance; score a mixture with variances of their own in full")
        counts = mixture.log_weights > -torch.inf
        self.mixture = NormalMixture(
            mixture.means[counts], mixture.log_variance, mixture.log_weights[counts], take_as_they_are=True
        )
        means_MD = self.mixture.means.double()
        self.centre = means_MD.mean(0)
        self.variance = float(mixture.log_variance.double().exp())
        covariance = (means_MD - self.centre).T @ (means_MD - self.centre) / len(means_MD)
        spread, directions = torch.linalg.eigh(covariance)
        wide = spread > _SMALL_SPREAD**2 * self.variance
        self.wide_DP = directions[:, wide]
        self.narrow_DQ = directions[:, ~wide]
        self.wide_MP = (means_MD - self.centre) @ self.wide_DP
        self.narrow_radius = float(((means_MD - self.centre) @ self.narrow_DQ).norm(dim=1).max())

    def __len__(self) -> int:
        return len(self.wide_MP)


class NearbyMixture:
    r"""A large mixture, as draws near to given examples see it.

    Components are summed in the order of their distance from an example's latent mean :math:`\mu`, block by block. For
    a draw z and all components from distance :math:`\rho` on, in the directions P in which components differ and the
    rest Q,

    .. math:: \|z - c_m\|^2 \ge (\rho - \|P(z - \mu)\|)_+^2 + (\|Q(z - \bar c)\| - r)_+^2,

    with r the largest :math:`\|Q(c_m - \bar c)\|`. Once that makes them negligible for every draw, the sum ends: it is
    a lower bound, and what was left out is bounded for certain.

    Parameters
    ----------
    index
        Of the mixture.
    centres
        (B, D), the latent means of the examples.
    """

    def __init__(self, index: ComponentIndex, centres: Tensor) -> None:
        self._index = index
        self._centres_BD = centres.double()
        centres_BP = (self._centres_BD - index.centre) @ index.wide_DP
        distance_BM = torch.cdist(centres_BP, index.wide_MP, compute_mode="donot_use_mm_for_euclid_dist")
        self._distance_BM, self._order_BM = distance_BM.sort(1)
        self.num_summed = 0
        """How many components were summed at most so far."""

    def bounds(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return a lower bound (K, B) on the log density of ``value`` (K, B, D), and how much is missing at most."""
        columns = [self._bounds(b, value[:, b]) for b in range(len(self._centres_BD))]
        return torch.stack([lower for lower, _ in columns], 1), torch.stack([excess for _, excess in columns], 1)

    def _bounds(self, b: int, rows_KD: Tensor) -> tuple[Tensor, Tensor]:
        index, dtype = self._index, rows_KD.dtype
        moved_K = ((rows_KD - self._centres_BD[b]).double() @ index.wide_DP).norm(dim=1)
        narrow_K = ((rows_KD - index.centre).double() @ index.narrow_DQ).norm(dim=1) - index.narrow_radius
        narrow_K = narrow_K.clamp_min(0).square()
        centre_D = self._centres_BD[b].to(dtype)
        rows_KD = rows_KD - centre_D
        precision = 1 / index.variance
        square_K = 0.5 * precision * rows_KD.square().sum(1)
        log_sum_K = torch.full_like(square_K, -torch.inf)
        log_missing_K = torch.full_like(square_K, -torch.inf)
        weights_M = index.mixture.log_weights[self._order_BM[b]]
        log_rest = weights_M.double().flip(0).logcumsumexp(0).flip(0)  # of all components from here on
        for first in range(0, len(index), _BLOCK):
            gap_K = (self._distance_BM[b, first] - moved_K).clamp_min(0).square()
            log_bound_K = (log_rest[first] - 0.5 * precision * (gap_K + narrow_K)).to(dtype)
            if (log_bound_K < log_sum_K - _NEGLIGIBLE).all():
                log_missing_K = torch.logaddexp(log_missing_K, log_bound_K)
                break
            stop = min(first + _BLOCK, len(index))
            self.num_summed = max(self.num_summed, stop)
            means_CD = index.mixture.means[self._order_BM[b, first:stop]].to(dtype) - centre_D
            bias_C = weights_M[first:stop].to(dtype) - 0.5 * precision * means_CD.square().sum(1)
            with torch.autocast(rows_KD.device.type, enabled=False):
                exponent_KC = torch.addmm(bias_C, rows_KD, (precision * means_CD).T)
            largest_K = exponent_KC.amax(1)
            log_at_most_K = largest_K + math.log(stop - first) - square_K
            if (log_at_most_K < log_sum_K - _NEGLIGIBLE).all():
                log_missing_K = torch.logaddexp(log_missing_K, log_at_most_K)
                continue
            block_K = exponent_KC.sub_(largest_K[:, None]).exp_().sum(1).log_() + largest_K - square_K
            log_sum_K = torch.logaddexp(log_sum_K, block_K)
        log_normaliser = -0.5 * rows_KD.shape[1] * (LOG_TWO_PI + math.log(index.variance))
        return log_sum_K + log_normaliser, torch.nn.functional.softplus(log_missing_K - log_sum_K)
