"""Mixtures of very many components, scored by the components that matter, with a certified bound on the others.

Shape letters: ``K`` draws, ``B`` examples, ``M`` components, ``C`` candidates of an example, ``D`` latent dimensions,
``P`` dimensions in which the components differ, ``H`` bins of distances, ``T`` points of a table.
"""

import math

import torch
from torch import Tensor

from bype.distributions import NormalMixture

_LOG_TWO_PI = math.log(2 * math.pi)
_BLOCK_ELEMENTS = 2**20
_BINS = 512
_TABLE_POINTS = 256
_SMALL_SPREAD = 1.0
"""Directions in which component means spread less than so many standard deviations of a component count as narrow."""


class ComponentIndex:
    """What the bounds of one mixture need, worked out once.

    Parameters
    ----------
    mixture
        With one variance shared by all components.
    """

    def __init__(self, mixture: NormalMixture) -> None:
        if mixture.log_variance.ndim:
            raise ValueError("components must share one variance; score a mixture with variances of their own in full")
        self.mixture = mixture
        means_MD = mixture.means.double()
        self.centre = means_MD.mean(0)
        variance = float(mixture.log_variance.double().exp())
        covariance = (means_MD - self.centre).T @ (means_MD - self.centre) / len(means_MD)
        spread, directions = torch.linalg.eigh(covariance)
        wide = spread > _SMALL_SPREAD**2 * variance
        self.variance = variance
        self.wide_DP = directions[:, wide]
        self.narrow_DQ = directions[:, ~wide]
        self.wide_MP = (means_MD - self.centre) @ self.wide_DP
        self.narrow_radius = float(((means_MD - self.centre) @ self.narrow_DQ).norm(dim=1).max())

    def __len__(self) -> int:
        return len(self.wide_MP)


class NearbyMixture:
    r"""A large mixture, as draws near to given examples see it.

    The density of a draw z of example b is summed over the components nearest to the example's latent mean:
    a lower bound. For each other component m, in the directions P in which components differ and the rest Q,

    .. math::

        \|z - c_m\|^2 \ge (\|P(\mu_b - c_m)\| - \|P(z - \mu_b)\|)_+^2 + (\|Q(z - \bar c)\| - r)_+^2,

    with r the largest :math:`\|Q(c_m - \bar c)\|`. That bounds all of them together by a function of two numbers.

    Parameters
    ----------
    index
        Of the mixture.
    centres
        (B, D), the latent means of the examples.
    num_candidates
        C, how many components are summed for each.
    """

    def __init__(self, index: ComponentIndex, centres: Tensor, num_candidates: int) -> None:
        self._index = index
        self._centres_BD = centres.double()
        mixture = index.mixture
        centres_BP = (self._centres_BD - index.centre) @ index.wide_DP
        distance_BM = torch.cdist(centres_BP, index.wide_MP, compute_mode="donot_use_mm_for_euclid_dist")
        count = min(num_candidates, len(index))
        nearest_BC = distance_BM.topk(count, largest=False).indices
        self._means_BCD = mixture.means[nearest_BC]
        self._log_weights_BC = mixture.log_weights[nearest_BC]
        log_weights_BM = mixture.log_weights.double().expand_as(distance_BM).clone()
        log_weights_BM.scatter_(1, nearest_BC, -torch.inf)
        self._table_BT, self._step_B = self._tabulate(distance_BM, log_weights_BM)

    def _tabulate(self, distance_BM: Tensor, log_weights_BM: Tensor) -> tuple[Tensor, Tensor]:
        """Return log sum_m w_m exp(-(distance_m - t)_+^2 / 2 variance) of the components left out, by t."""
        width_B = distance_BM.amax(1).clamp_min(1e-30) / _BINS
        bin_BM = (distance_BM / width_B[:, None]).long().clamp_max(_BINS - 1)  # each bin counts at its lower edge
        weight_BH = torch.zeros(len(distance_BM), _BINS, dtype=torch.float64, device=distance_BM.device)
        weight_BH.scatter_add_(1, bin_BM, log_weights_BM.exp())
        edge_H = torch.arange(_BINS, device=distance_BM.device)
        step_B = distance_BM.amax(1).clamp_min(1e-30) / (_TABLE_POINTS - 1)
        moved_T = torch.arange(_TABLE_POINTS, device=distance_BM.device)
        gap_BTH = (edge_H * width_B[:, None])[:, None, :] - (moved_T * step_B[:, None])[:, :, None]
        exponent_BTH = -gap_BTH.clamp_min(0).square() / (2 * self._index.variance)
        return torch.logsumexp(exponent_BTH + weight_BH.log()[:, None, :], 2), step_B

    def log_prob(self, value: Tensor) -> Tensor:
        """Return a lower bound (K, B) on the log density of ``value`` (K, B, D)."""
        centres_BD = self._centres_BD.to(value.dtype)
        columns = [
            _log_sum(
                value[:, b] - centres_BD[b], self._means_BCD[b] - centres_BD[b], log_weights_C, self._index.variance
            )
            for b, log_weights_C in enumerate(self._log_weights_BC.to(value.dtype))
        ]
        return torch.stack(columns, 1) + self._log_normaliser(value)

    def excess(self, value: Tensor, log_prob: Tensor) -> Tensor:
        """Return by how much the true log density may exceed ``log_prob``, at most: (K, B)."""
        moved_KB = ((value - self._centres_BD).double() @ self._index.wide_DP).norm(dim=2)
        narrow_KB = ((value - self._index.centre).double() @ self._index.narrow_DQ).norm(dim=2)
        point_KB = (moved_KB / self._step_B).ceil().long()  # the table grows with t, so the next point is a bound
        table_BT = torch.cat([self._table_BT, self._table_BT.new_zeros(len(self._table_BT), 1)], 1)
        neglected_KB = table_BT.gather(1, point_KB.T.clamp_max(_TABLE_POINTS)).T
        narrow_KB = (narrow_KB - self._index.narrow_radius).clamp_min(0).square() / (2 * self._index.variance)
        log_upper = neglected_KB - narrow_KB + self._log_normaliser(value)
        return torch.nn.functional.softplus(log_upper - log_prob.double())

    def _log_normaliser(self, value: Tensor) -> float:
        return -0.5 * value.shape[-1] * (_LOG_TWO_PI + math.log(self._index.variance))


def _log_sum(rows_KD: Tensor, means_CD: Tensor, log_weights_C: Tensor, variance: float) -> Tensor:
    """Return log sum_c w_c exp(-|row - mean_c|^2 / 2 variance), (K,)."""
    precision = 1 / variance
    bias_C = log_weights_C - 0.5 * precision * means_CD.square().sum(1)
    sums = []
    for part_KD in torch.split(rows_KD, max(1, _BLOCK_ELEMENTS // len(means_CD))):
        with torch.autocast(rows_KD.device.type, enabled=False):
            joint_KC = torch.addmm(bias_C, precision * part_KD, means_CD.T)
        largest_K1 = joint_KC.amax(1, keepdim=True)
        sums.append(joint_KC.sub_(largest_K1).exp_().sum(1).log_() + largest_K1[:, 0])
    return torch.cat(sums) - 0.5 * precision * rows_KD.square().sum(1)
