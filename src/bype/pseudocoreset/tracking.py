"""Tracking: a pseudocoreset that follows every training step, at little more than the cost of a Gaussian prior.

The prior and the rule that trains it belong together. Targets follow the posteriors, points follow their targets.

Shape letters: ``M`` pseudo-points, ``L`` live ones, ``C`` those that count in a step, ``D`` latent dimensions.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bype.mixtures import NormalMixture
from bype.models.base import LatentModel
from bype.networks.dense import is_dropping
from bype.objective import ELBOTerms
from bype.priors.base import Encode, Prior, TrainingBatch, encode_points
from bype.pseudocoreset.adam import portable_average_, portable_direction
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.prior import PseudocoresetPrior
from bype.pseudocoreset.rule import Rule

_ROUNDS = 4
"""A point moves in one round of this many: its gradient is the costliest, and points may move slowly."""
_EPSILON = 1e-10
"""Gradients in a target are small: a component has a five-hundredth of the mass, and less."""
_ROUNDING = 0.01
"""How far the sum of mean responsibilities may be from one."""
_MOST_STEPS = 320
"""A point that waits for more steps than this does not move further: its gradient holds only near the point."""
_LONG_REST = 100
"""After so many losses without a step of the rule, a training loop has probably forgotten the rule."""


@dataclass(frozen=True, eq=False)
class TrackedStep:
    """What a training step put into the mixture. The gradients tell where all of it should move."""

    rows: slice
    """The live pseudo-points, L of the M."""
    points: Tensor
    """(L, *data_shape), a leaf; it has a gradient in the rounds in which points move."""
    means: Tensor
    """(L, D), where the encoder puts them, with gradient."""
    members: Tensor | slice
    """The components that count in this step, C of the M, or all."""
    mixture_means: Tensor
    """(C, D), the targets, and ``means`` where points are live; it retains its gradient."""
    log_weights: Tensor
    """(C,), a leaf with gradient; those that stand for others count for them too."""


class TrackedMixture(NormalMixture):
    """The mixture of one training step, with what the step put into it."""

    def __init__(self, made: TrackedStep, log_variance: Tensor) -> None:
        super().__init__(made.mixture_means, log_variance, made.log_weights, normalise=False)
        self.made = made


class LabelledMixture(TrackedMixture):
    r"""The mixture of one training step, where the components of a class score its examples alone.

    .. math:: \log p(z \mid y) = \log \sum_{m : y_m = y} w_m N(z \mid \mu_m, \sigma^2) - \log \sum_{m : y_m = y} w_m

    No gradient passes the last term, so that the gradient in the log of a weight is a mean responsibility, as it is
    without labels.

    Parameters
    ----------
    made, log_variance
        As for :class:`TrackedMixture`.
    component_labels, row_labels
        (M,) and (B,), the classes of the components and of the rows that are scored.
    """

    row_ids: Tensor

    def __init__(self, made: TrackedStep, log_variance: Tensor, component_labels: Tensor, row_labels: Tensor) -> None:
        super().__init__(made, log_variance)
        self._components = replace(self._components, ids=component_labels, only_own=True)
        self.row_ids = row_labels
        mass = torch.zeros(int(component_labels.max()) + 1, dtype=torch.float64, device=component_labels.device)
        mass.index_add_(0, component_labels.long(), made.log_weights.detach().double().exp())
        rows = row_labels.long()
        if (rows >= len(mass)).any() or not mass[rows].all():
            raise ValueError("an example has a class without pseudo-points; give each class a point")
        self._log_mass = mass.log().to(self.means.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (..., B) of ``value`` (..., B, D), row b by the components of its class."""
        return super().log_prob(value) - self._log_mass[self.row_ids.long()]


class TrackedPseudocoresetPrior(PseudocoresetPrior):
    r"""The prior of ByPE-VAE, with a latent target :math:`c_m` for each pseudo-point.

    In a training step only ``num_live`` pseudo-points are encoded, with gradient, in turn; the others stand at their
    targets. It must be trained with :class:`Tracking`, which moves targets, weights and live points after each step. To
    evaluate and sample, every point is encoded, and targets do not count.

    Parameters
    ----------
    pseudocoreset
        The points and weights.
    latent_dim
        D.
    num_live
        How many are encoded in a training step; all of them if there are no more.
    num_scored
        For very many points: in a training step only about this many components count, and take turns to stand for
        all; all of them if left out.

    Examples
    --------
    >>> pseudocoreset = Pseudocoreset(torch.rand(500, 1, 28, 28), total=50_000)
    >>> prior = TrackedPseudocoresetPrior(pseudocoreset, latent_dim=40, num_live=16)
    >>> prior.num_turns  # training steps until a point is encoded again
    32
    """

    targets: Tensor
    turn: Tensor
    part: Tensor

    def __init__(
        self, pseudocoreset: Pseudocoreset, latent_dim: int, num_live: int = 16, num_scored: int | None = None
    ) -> None:
        super().__init__(pseudocoreset)
        if num_live < 1:
            raise ValueError(f"num_live must be at least 1, not {num_live}")
        if num_scored is not None and num_scored < 1:
            raise ValueError(f"num_scored must be at least 1, not {num_scored}")
        if num_scored is not None and pseudocoreset.labels is not None:
            raise ValueError("points with labels cannot take turns to stand for all; leave num_scored out")
        self.num_live = min(num_live, len(pseudocoreset))
        self.register_buffer("targets", pseudocoreset.points.new_zeros(len(pseudocoreset), latent_dim))
        self.num_parts = 1 if num_scored is None else max(1, len(pseudocoreset) // num_scored)
        # Otherwise a point would be live, or move, in the turns of some parts only.
        while math.gcd(self.num_parts, self.steps_between_moves) > 1:
            self.num_parts += 1
        self.register_buffer("turn", torch.tensor(-1))
        self.register_buffer("part", torch.tensor(0) if self.num_parts > 1 else None)
        self._steps_at_rest = 0

    @torch.no_grad()
    def refresh(self, encode: Encode) -> None:
        """Put every target where the encoder puts its point. The first training step does so by itself."""
        means = encode_points(encode, self.pseudocoreset.points).mean
        if means.shape != self.targets.shape:
            raise ValueError(f"the encoder has {means.shape[1]} latents, and this prior {self.targets.shape[1]}")
        self.targets.copy_(means)

    @torch.no_grad()
    def advance(self, rows: slice, places: Tensor) -> None:
        """End a training step: targets of live points start again at ``places``, and other points have their turn."""
        self._steps_at_rest = 0
        self.targets[rows] = places
        self.turn.copy_((self.turn.clamp_min(0) + 1) % self.steps_between_moves)
        if self.num_parts > 1:
            self.part.copy_((self.part + 1) % self.num_parts)

    @property
    def num_turns(self) -> int:
        """How many training steps it takes until a point is live again."""
        return -(-len(self.targets) // self.num_live)

    @property
    def steps_between_moves(self) -> int:
        """How many training steps it takes until a point moves again."""
        return _ROUNDS * self.num_turns

    def _live_points(self) -> tuple[slice, Tensor]:
        """Return which points have their turn, and these points: with gradient in one round of four."""
        round_, place = divmod(max(0, int(self.turn)), self.num_turns)
        rows = slice(place * self.num_live, min((place + 1) * self.num_live, len(self.targets)))
        points = self.pseudocoreset.points[rows]
        return rows, points.clone().requires_grad_() if (round_ + place) % _ROUNDS == 0 else points

    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> NormalMixture:
        if batch is None:
            return super().forward(encode)
        self._warn_if_nothing_moves()
        if self.turn < 0:
            self.refresh(encode)
            batch.group.copy_first_([self.targets])
        rows, points = self._live_points()
        means = encode_points(encode, points, batch).mean
        members, first, weights = self._members(rows)
        resting = self.targets[members]
        mixture_means = torch.cat([resting[:first], means, resting[first + len(means) :]])
        log_weights = weights.log().to(means.dtype).requires_grad_()
        if torch.is_grad_enabled():
            if mixture_means.requires_grad:
                mixture_means.retain_grad()
            else:  # the network is frozen, and no point moves in this step
                mixture_means.requires_grad_()
        made = TrackedStep(rows, points, means, members, mixture_means, log_weights)
        labels = self.pseudocoreset.labels
        if labels is None:
            return TrackedMixture(made, self.log_variance)
        if batch.labels is None:
            raise ValueError("these points have labels, so a training step needs the labels of its examples too")
        return LabelledMixture(made, self.log_variance, labels, batch.labels.to(labels.device))

    def _warn_if_nothing_moves(self) -> None:
        self._steps_at_rest += torch.is_grad_enabled()
        if self._steps_at_rest == _LONG_REST:
            warnings.warn(
                f"no point has moved in {_LONG_REST} training steps; after each of them, call step(model, terms) of "
                f"the rule Tracking",
                stacklevel=2,
            )

    @torch.no_grad()
    def _members(self, rows: slice) -> tuple[Tensor | slice, int, Tensor]:
        """Return the components that count, in order, the place of the first live one among them, and their weights.

        If components are cut into parts, one part counts in a step, its weights times the number of parts; live points
        count once.
        Over as many steps each component counts as it should, so that the density is right on average.
        """
        weights = self.pseudocoreset.probabilities
        if self.num_parts == 1:
            return slice(None), rows.start, weights
        counts = torch.zeros(len(weights), device=weights.device)
        counts[int(self.part) :: self.num_parts] = self.num_parts
        counts[rows] = 1
        members = counts.nonzero()[:, 0]
        return members, int(torch.searchsorted(members, rows.start)), weights[members] * counts[members]


class Tracking(Rule):
    r"""Ascend :math:`E_x E_{q(z \mid x)} \log p(z \mid U, w)` at every step of training, in the latent space.

    Each pseudo-point has a latent target :math:`c_m`, at which it stands in the mixture while it is not encoded. A
    training step gives the gradient in all targets that count, without encoding them; Adam moves them along it. When a
    point's turn comes, once in T steps, it is encoded, and the loss of that step gets the term

    .. math:: \frac{\beta}{2} \, (T - 1) \, \frac{w_m}{N} \, \frac{\|\mu(u_m) - c_m\|^2}{\sigma^2},

    which is as curved as EM's bound on the loss of the T - 1 steps in which the point was not encoded, around the
    target. Only :math:`\mu(u_m)` has a gradient in it. The gradient of both moves the encoder and, in one round of
    four, the point, by Adam. Then the target starts again at :math:`\mu(u_m)`, of the point before this move. So
    encoder and point follow the gradients of many batches. Weights follow EM: they are a decaying average of the mean
    responsibilities.

    The gradient of an encoder says little about how data look, so points would gather noise. When a point moves, it
    is therefore mixed with a little of what the decoder makes of :math:`\mu(u_m)`.

    Parameters
    ----------
    prior
        Of the models that it will be used with; it gives the shapes of the moments.
    step_size
        Of Adam on the points, for each training step: a point that moves once in 128 steps moves 128 times as far, but
        not more than 320 times.
    target_step_size
        Of Adam on the targets, in latent units.
    memory
        Weights are an average over about this many examples for each component.
    decoded_rate
        How much of its own reconstruction enters a point, for each training step, up to 320 of them.

    Examples
    --------
    >>> from bype.models import mlp_vae
    >>> from bype.objective import ELBO
    >>> prior = TrackedPseudocoresetPrior(Pseudocoreset(torch.rand(20, 1, 28, 28), total=400), latent_dim=40)
    >>> model, rule = mlp_vae((1, 28, 28), prior), Tracking(prior)
    >>> optimiser = torch.optim.Adam(model.parameters(), lr=5e-4)
    >>> terms = ELBO(model)(torch.rand(10, 1, 28, 28), indices=torch.arange(10))
    >>> (terms.loss + rule.loss_term(model, terms)).backward()
    >>> rule.step(model, terms)
    >>> optimiser.step()
    """

    target_powers: Tensor
    point_powers: Tensor
    target_mean: Tensor
    target_square: Tensor
    point_mean: Tensor
    point_square: Tensor

    def __init__(
        self,
        prior: TrackedPseudocoresetPrior,
        step_size: float = 1e-4,
        target_step_size: float = 0.02,
        memory: float = 20.0,
        decoded_rate: float = 2.5e-4,
    ) -> None:
        super().__init__()
        _require_targets(prior)
        if not (step_size > 0 and target_step_size > 0 and memory > 0 and 0 <= decoded_rate <= 1):
            raise ValueError("step sizes and memory must be positive, decoded_rate between 0 and 1")
        self.step_size = step_size
        self.target_step_size = target_step_size
        self.memory = memory
        self.decoded_rate = decoded_rate
        for name in ("target_powers", "point_powers"):
            self.register_buffer(name, prior.targets.new_ones(len(prior.targets), 2))
        for name, like in (("target", prior.targets), ("point", prior.pseudocoreset.points.flatten(1))):
            self.register_buffer(f"{name}_mean", torch.zeros_like(like))
            self.register_buffer(f"{name}_square", torch.zeros_like(like))

    def loss_term(self, model: LatentModel, terms: ELBOTerms) -> Tensor:
        """Return the term that brings live points to their targets."""
        if not terms.beta > 0:
            raise ValueError(
                f"beta must be positive, not {terms.beta}: without KL terms there is nothing to follow; "
                f"count epochs from 1 in a warm-up"
            )
        prior, made = _tracked(model, terms)
        weights = prior.pseudocoreset.probabilities[made.rows].to(made.means.dtype)
        stiffness = weights * (torch.exp(-prior.log_variance.detach()) * (terms.beta * (prior.num_turns - 1)))
        gap = made.means - prior.targets[made.rows]
        return 0.5 * stiffness @ gap.square().sum(1)

    @torch.no_grad()
    def to_sum(self, model: LatentModel, terms: ELBOTerms, is_first: bool = True) -> list[Tensor]:
        """Return where live points are, the gradients, and if points move, what the decoder makes of them.

        Only process 0 sends the places of live points: in other processes their last digits may differ.
        """
        _, made = _tracked(model, terms)
        in_means, in_log_weights, in_points = made.mixture_means.grad, made.log_weights.grad, made.points.grad
        if in_means is None or in_log_weights is None:
            raise RuntimeError("there are no gradients: call backward on the loss and the rule's term before this step")
        places = torch.zeros_like(made.means)
        if is_first:  # a target belongs to the whole network, not to what the dropout of one step leaves of it
            places = model.encode(made.points).mean if is_dropping(model) else made.means.detach().clone()
        if in_points is None:
            return [places, in_means, in_log_weights]
        decoded = _decoded(model, places) if is_first else torch.zeros_like(in_points)
        return [places, in_means, in_log_weights, in_points, decoded]

    @torch.no_grad()
    def step(self, model: LatentModel, terms: ELBOTerms, summed: Sequence[Tensor] | None = None) -> None:
        """Move targets, live points and weights by the gradients of the loss and :meth:`loss_term`.

        The gradients must come from one forward pass and from the mean over its examples. So unscale a scaled loss
        first; if a batch comes in parts, take a step for each part.

        Parameters
        ----------
        model, terms
            The model and what the objective returned for it.
        summed
            What :meth:`to_sum` returned, summed over all processes; a single process may leave it out.
        """
        prior, made = _tracked(model, terms)
        places, in_means, in_log_weights, *moves = self.to_sum(model, terms) if summed is None else summed
        # The gradient in the log of a weight is minus the mean responsibility, times beta.
        if not abs(float(in_log_weights.sum()) / terms.beta + 1) < _ROUNDING:
            raise ValueError(
                "the gradients are not those of the mean loss of one batch: mean responsibilities add up to one; "
                "unscale gradients before this step, and take it after each forward pass"
            )
        if not (places - prior.targets[made.rows]).square().sum().isfinite():
            raise ValueError("pseudo-points are infinitely far from their targets; try a smaller learning_rate")
        if not all(numbers.sum().isfinite() for numbers in (in_means, *moves)):
            raise ValueError("gradients of the pseudocoreset are not finite; try a smaller learning_rate")
        if moves:
            self._move_points(prior, made, *moves)
        members = made.members
        rate = min(1.0, terms.num_examples / (self.memory * len(prior.targets)))
        before = prior.pseudocoreset.probabilities
        weights = before * (1 - rate)
        weights[members] -= in_log_weights * (rate / terms.beta)
        if (labels := prior.pseudocoreset.labels) is not None:
            weights = _with_class_masses_of(before, weights, labels.long())
        prior.pseudocoreset.reweight(weights)
        prior.advance(made.rows, places)
        moved = self.target_mean, self.target_square, self.target_powers, prior.targets
        mean, square, powers, targets = (part[members] for part in moved)
        portable_average_(mean, square, powers, in_means)
        targets.sub_(portable_direction(mean, square, powers, _EPSILON).mul_(self.target_step_size))
        if isinstance(members, Tensor):  # these are copies; where all members count they are views
            for whole, part in zip(moved, (mean, square, powers, targets), strict=True):
                whole[members] = part
        made.mixture_means.grad = made.log_weights.grad = made.points.grad = None  # no step is taken twice

    def _move_points(
        self, prior: TrackedPseudocoresetPrior, made: TrackedStep, gradient: Tensor, decoded: Tensor
    ) -> None:
        rows = made.rows
        parts = self.point_mean[rows], self.point_square[rows], self.point_powers[rows]  # views: they change in place
        portable_average_(*parts, gradient.flatten(1))
        num_steps = min(prior.steps_between_moves, _MOST_STEPS)
        moved = portable_direction(*parts, _EPSILON).mul_(self.step_size * num_steps)
        points = made.points - moved.reshape(made.points.shape)
        share = min(1.0, self.decoded_rate * num_steps)
        # Not by lerp, which processors of different kinds round differently.
        prior.pseudocoreset.move(rows, points * (1 - share) + decoded * share)


def _tracked(model: LatentModel, terms: ELBOTerms) -> tuple[TrackedPseudocoresetPrior, TrackedStep]:
    """Return a model's prior and what the training step of these terms put into it, or say what is wrong."""
    prior = _require_targets(model.prior)
    if not isinstance(terms.prior, TrackedMixture):
        raise ValueError("these terms are not of a training step: compute the loss with indices first")
    return prior, terms.prior.made


def _require_targets(prior: Prior) -> TrackedPseudocoresetPrior:
    if not isinstance(prior, TrackedPseudocoresetPrior):
        raise ValueError(f"{type(prior).__name__} has no targets; use TrackedPseudocoresetPrior")
    return prior


def _decoded(model: LatentModel, latents: Tensor) -> Tensor:
    return model.unflatten(model.likelihood.mean(model.decode(latents, at_mean=True)))


def _with_class_masses_of(before: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
    """Give each class the mass that it had: its share of the data, which a batch knows less well."""
    masses = before.new_zeros(2, int(labels.max()) + 1)
    had, has = masses.index_add_(1, labels, torch.stack([before, weights]))[:, labels]
    return torch.where(has > 0, weights * (had / has), before)
