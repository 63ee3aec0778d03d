"""The pseudocoreset's prior for training at little more than the cost of a Gaussian one.

Shape letters: ``M`` pseudo-points, ``L`` live ones, ``C`` those that count in a step, ``D`` latent dimensions.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bype.inverted import InvertedFile
from bype.mixtures import NormalMixture
from bype.priors.base import Encode, TrainingBatch, encode_points, encoded_beside, few_points
from bype.priors.pseudocoreset import Pseudocoreset, PseudocoresetPrior

_ROUNDS = 4
"""A point moves in one round of so many: its gradient is the dearest, and it need not hurry."""
_INDEX_LIFE = 200
"""Training steps until components are sorted into cells anew, if there are not very many."""
_SORTED_IN_A_STEP = 500
"""Of very many components, for so many each one step longer, so that sorting adds the same to every step."""


@dataclass(frozen=True, eq=False)
class TrackedStep:
    """What a training step put into the mixture; the gradients tell where all of it should move."""

    rows: slice
    """The live pseudo-points, L of the M."""
    points: Tensor
    """(L, *data_shape), a leaf; it has a gradient in the rounds in which points move."""
    means: Tensor
    """(L, D), where the encoder puts them, with gradient."""
    places: Tensor
    """(L, D), the same numbers without it."""
    members: Tensor | slice
    """The components that count in this step, C of the M, or all."""
    mixture_means: Tensor
    """(C, D), the targets, and ``means`` where points are live; it retains its gradient."""
    log_weights: Tensor
    """(C,), a leaf with gradient; those that stand for others count for them too."""


class TrackedPseudocoresetPrior(PseudocoresetPrior):
    r"""The same prior, with a latent target :math:`c_m` for each pseudo-point.

    In a training step only ``num_live`` pseudo-points are encoded, with gradient, in turn; the others stand at their
    targets. It must be trained with :class:`bype.coreset.Tracking`, which moves targets, weights and live points after
    each step, so that targets follow the posteriors and points follow their targets; nothing changes in between. To
    evaluate and sample, every point is encoded, and targets do not count.

    Parameters
    ----------
    pseudocoreset
        The points and weights.
    latent_dim
        D.
    num_live
        How many are encoded in a training step; all of them if there are no more.
    num_near
        For very many components: in a training step so many near to each example count, found by an inverted file, and
        about as many of the far ones, which take turns to stand for all of them; 0 for all components.
    """

    targets: Tensor
    turn: Tensor
    index_age: Tensor

    def __init__(self, pseudocoreset: Pseudocoreset, latent_dim: int, num_live: int = 16, num_near: int = 0) -> None:
        super().__init__(pseudocoreset)
        if num_live < 1:
            raise ValueError(f"num_live must be at least 1, not {num_live}")
        if num_near < 0:
            raise ValueError(f"num_near must not be negative, not {num_near}")
        self.num_live = min(num_live, len(pseudocoreset))
        self.num_near = num_near
        self.register_buffer("targets", pseudocoreset.points.new_zeros(len(pseudocoreset), latent_dim))
        self.register_buffer("turn", torch.tensor(-1))
        self.index = InvertedFile(len(pseudocoreset), latent_dim) if num_near else None
        self.register_buffer("index_age", torch.tensor(0) if num_near else None)
        self.last: TrackedStep | None = None
        """The newest training step."""
        self._live: tuple[slice, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copy without what belongs to a step under way: its tensors are part of a graph."""
        return {**self.__dict__, "last": None, "_live": None}

    @torch.no_grad()
    def refresh(self, encode: Encode) -> None:
        """Put every target where the encoder puts its point. The first training step does so by itself."""
        self.targets.copy_(encode_points(encode, self.pseudocoreset.points).mean)
        if self.index is not None:
            self.index.build(self.targets)

    def newest_step(self) -> TrackedStep:
        """Return the training step under way, or say that there is none."""
        if self.last is None:
            raise RuntimeError("there is no training step to follow: compute the loss with indices first")
        return self.last

    @torch.no_grad()
    def advance(self) -> None:
        """End the newest training step: targets of live points begin anew where these are; others have their turn."""
        last = self.newest_step()
        self.targets[last.rows] = last.places
        self.turn.copy_((self.turn.clamp_min(0) + 1) % self.steps_between_moves)
        self.last = None
        if self.index is not None:
            self.index_age += 1
            if self._is_index_old(int(self.index_age)):
                self.index.build(self.targets)

    def _is_index_old(self, age: int) -> bool:
        """Tell whether components are to be sorted anew: now and then, and at first, when latents move fast, often."""
        life = max(_INDEX_LIFE, len(self.targets) // _SORTED_IN_A_STEP)
        tens, rest = divmod(age, 10)
        return age % life == 0 or (age < life and rest == 0 and tens & (tens - 1) == 0)

    @property
    def num_turns(self) -> int:
        """How many training steps it takes until a point is live again."""
        return -(-len(self.targets) // self.num_live)

    @property
    def steps_between_moves(self) -> int:
        """How many training steps it takes until a point moves again."""
        return _ROUNDS * self.num_turns

    def points_beside(self) -> Tensor | None:
        """Return the points whose turn it is."""
        return few_points(self._live_points()[1])

    def _live_points(self) -> tuple[slice, Tensor]:
        """Return whose turn it is, and these points: in one round of four, spread over the steps, with gradient."""
        round_, place = divmod(max(0, int(self.turn)), self.num_turns)
        rows = slice(place * self.num_live, min((place + 1) * self.num_live, len(self.targets)))
        points = self.pseudocoreset.points[rows]
        self._live = rows, points.clone().requires_grad_() if (round_ + place) % _ROUNDS == 0 else points
        return self._live

    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> NormalMixture:
        if batch is None:
            return super().forward(encode)
        if self.turn < 0:
            self.refresh(encode)
        rows, points = self._live_points() if batch.beside is None or self._live is None else self._live
        means = encoded_beside(encode, points, batch).mean
        members, first, weights = self._members(rows, batch)
        resting = self.targets[members]
        mixture_means = torch.cat([resting[:first], means, resting[first + len(means) :]])
        log_weights = weights.log().to(means.dtype).requires_grad_()
        if torch.is_grad_enabled():
            if mixture_means.requires_grad:
                mixture_means.retain_grad()
            else:  # the network is frozen, and no point moves in this step
                mixture_means.requires_grad_()
            places = means.detach().clone()
            self.last = TrackedStep(rows, points, means, places, members, mixture_means, log_weights)
        return NormalMixture(mixture_means, self.log_variance, log_weights, take_as_they_are=True)

    @torch.no_grad()
    def _members(self, rows: slice, batch: TrainingBatch) -> tuple[Tensor | slice, int, Tensor]:
        """Return the components that count, in order, the place of the first live one among them, and their weights."""
        weights = self.pseudocoreset.probabilities
        counts = None if self.index is None else self._counts(self.index, rows, batch)
        if counts is None:
            return slice(None), rows.start, weights
        members = counts.nonzero()[:, 0]
        return members, int(torch.searchsorted(members, rows.start)), weights[members] * counts[members]

    def _counts(self, index: InvertedFile, rows: slice, batch: TrainingBatch) -> Tensor | None:
        """Tell how often each component (M,) counts in this step: live and near ones once; nothing if all do.

        Of the far ones a part counts as often as there are parts, and the parts take turns: over as many steps each
        component has its due, so that the density is right on average.
        """
        means = batch.whole_means()
        num_parts = len(self.targets) // max(1, self.num_near * len(means))
        if num_parts < 2:
            return None
        counts = self.targets.new_zeros(len(self.targets))
        counts[int(self.index_age) % num_parts :: num_parts] = num_parts
        counts[index.nearest(means, self.targets, self.num_near).flatten()] = 1
        counts[rows] = 1
        return counts
