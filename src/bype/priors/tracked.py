"""The pseudocoreset's prior for training at little more than the cost of a Gaussian one.

Shape letters: ``M`` pseudo-points, ``L`` live ones, ``C`` those that count in a step, ``D`` latent dimensions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bype.inverted import InvertedFile
from bype.mixtures import NormalMixture
from bype.priors.base import Encode, TrainingBatch, encode_points
from bype.priors.pseudocoreset import Pseudocoreset, PseudocoresetPrior

_ROUNDS = 4
"""Points move in one round of so many: their gradient is the dearest, and they need not hurry."""
_PROBES = 6
"""Cells that are searched for each example."""
_INDEX_LIFE = 1000
"""Training steps until components are sorted into cells anew."""


@dataclass(frozen=True, eq=False)
class TrackedStep:
    """What a training step put into the mixture; the gradients tell where all of it should move."""

    rows: slice
    """The live pseudo-points, L of the M."""
    points: Tensor
    """(L, *data_shape), a leaf; it has a gradient in the rounds in which points move."""
    means: Tensor
    """(L, D), where the encoder puts them, with gradient."""
    aims: Tensor
    """(L, D), where they would have to be: their targets until this step."""
    members: Tensor | slice
    """The components that count in this step, C of the M, or all."""
    mixture_means: Tensor
    """(C, D), the targets, and ``means`` where points are live; it retains its gradient."""
    log_weights: Tensor
    """(C,), a leaf with gradient."""


class TrackedPseudocoresetPrior(PseudocoresetPrior):
    r"""The same prior, with a latent target :math:`c_m` for each pseudo-point.

    In a training step only ``num_live`` pseudo-points are encoded, with gradient, in turn; the others stand at their
    targets. :class:`bype.coreset.Tracking` moves targets, weights and live points after each step, so that targets
    follow the posteriors and points follow their targets. To evaluate and sample, every point is encoded, and targets
    do not count.

    Parameters
    ----------
    pseudocoreset
        The points and weights.
    latent_dim
        D.
    num_live
        How many are encoded in a training step; all of them if there are no more.
    num_near
        For very many components: only so many near to each example count in a training step, and what the far ones
        would add is left out; 0 for all. They are found by an inverted file.
    """

    targets: Tensor
    turn: Tensor
    index_age: Tensor

    def __init__(self, pseudocoreset: Pseudocoreset, latent_dim: int, num_live: int = 16, num_near: int = 0) -> None:
        super().__init__(pseudocoreset)
        if num_live < 1:
            raise ValueError(f"num_live must be at least 1, not {num_live}")
        self.num_live = min(num_live, len(pseudocoreset))
        self.register_buffer("targets", torch.zeros(len(pseudocoreset), latent_dim))
        self.register_buffer("turn", torch.tensor(-1))
        self.num_near = num_near
        self.index = InvertedFile(len(pseudocoreset), latent_dim) if num_near else None
        self.register_buffer("index_age", torch.tensor(0) if num_near else None)
        self.last: TrackedStep | None = None
        """The newest training step."""

    @torch.no_grad()
    def refresh(self, encode: Encode) -> None:
        """Put every target where the encoder puts its point. The first training step does so by itself."""
        self.targets.copy_(encode_points(encode, self.pseudocoreset.points).mean)

    @property
    def num_turns(self) -> int:
        """How many training steps it takes until a point is live again."""
        return -(-len(self.targets) // self.num_live)

    def points_beside(self) -> Tensor:
        """Return the points whose turn it is."""
        turn = max(0, int(self.turn))
        first = turn % self.num_turns * self.num_live
        rows = slice(first, min(first + self.num_live, len(self.targets)))
        points = self.pseudocoreset.points[rows]
        self._live = rows, points.clone().requires_grad_() if turn < self.num_turns else points
        return self._live[1]

    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> NormalMixture:
        if batch is None:
            return super().forward(encode)
        if self.turn < 0:
            self.refresh(encode)
        means = (encode(self.points_beside()) if batch.beside is None else batch.beside).mean
        rows, points = self._live
        self.turn.copy_((self.turn.clamp_min(0) + 1) % (_ROUNDS * self.num_turns))
        aims = self.targets[rows].clone()
        self.targets[rows] = means.detach()
        members, first = self._members(rows, batch)
        resting = self.targets[members]
        mixture_means = torch.cat([resting[:first], means, resting[first + len(means) :]])
        log_weights = self.pseudocoreset.probabilities[members].log().to(means.dtype).requires_grad_()
        if torch.is_grad_enabled():
            mixture_means.retain_grad()
            self.last = TrackedStep(rows, points, means, aims, members, mixture_means, log_weights)
        return NormalMixture(mixture_means, self.log_variance, log_weights, take_as_they_are=True)

    @torch.no_grad()
    def _members(self, rows: slice, batch: TrainingBatch) -> tuple[Tensor | slice, int]:
        """Return the components that count, in order, and the place of the first live one among them."""
        if self.index is None:
            return slice(None), rows.start
        if self.index_age % _INDEX_LIFE == 0:
            self.index.build(self.targets)
        self.index_age += 1
        near = self.index.nearest(batch.means, self.targets, self.num_near, _PROBES).flatten()
        live = torch.arange(rows.start, rows.stop, device=near.device)
        members = torch.unique(torch.cat([near, live]))
        return members, int(torch.searchsorted(members, rows.start))
