"""Move the pseudocoreset at every training step: targets follow the posteriors, points follow their targets.

Shape letters: ``M`` pseudo-points, ``L`` live ones, ``D`` latent dimensions.
"""

import torch
from torch import Tensor, nn

from bype.coreset.adam import average_, direction
from bype.models.base import LatentModel
from bype.priors.tracked import TrackedPseudocoresetPrior, TrackedStep

_EPSILON = 1e-10
"""Gradients in a target are small: a component has a five-hundredth of the mass, and less."""
_ROUNDING = 0.01
"""How far the sum of mean responsibilities may be from one."""
_MOST_STEPS = 320
"""A point that waits longer until it moves again does not move further: the gradient says nothing so far away."""


class Tracking(nn.Module):
    r"""Ascend :math:`E_x E_{q(z \mid x)} \log p(z \mid U, w)` at every step of training, in the latent space.

    Each pseudo-point has a latent target :math:`c_m`, at which it stands in the mixture while it is not encoded. A
    training step gives the gradient in all targets that count, without encoding them; Adam moves them along it. When a
    point's turn comes, once in T steps, it is encoded, and the loss of that step gets the term

    .. math:: \frac{\beta}{2} \, (T - 1) \, \frac{w_m}{N} \, \frac{\|\mu(u_m) - c_m\|^2}{\sigma^2},

    which stands for the curvature of the T - 1 steps in which it stood aside. The gradient of both moves the encoder,
    and, in one round of four, the point, by Adam; then the target begins anew at :math:`\mu(u_m)`. So encoder and point
    follow what many batches asked of the component. Weights follow EM: they are a decaying average of the mean
    responsibilities.

    The gradient of an encoder says little about how data look, so points would gather noise. When a point moves, it
    is therefore mixed with a little of what the decoder makes of :math:`\mu(u_m)`.

    Parameters
    ----------
    model
        With a :class:`~bype.priors.TrackedPseudocoresetPrior`, which will be moved.
    step_size
        Of Adam on the points, for each training step: a point that moves once in 128 steps moves 128 times as far, but
        not more than 320 times.
    target_step_size
        Of Adam on the targets, in latent units.
    memory
        Weights are an average over about so many examples for each component.
    decoded_rate
        How much of its own reconstruction enters a point, for each training step, up to 320 of them.
    """

    num_target_steps: Tensor
    num_point_steps: Tensor
    target_mean: Tensor
    target_square: Tensor
    point_mean: Tensor
    point_square: Tensor

    def __init__(
        self,
        model: LatentModel,
        step_size: float = 1e-4,
        target_step_size: float = 0.02,
        memory: float = 20.0,
        decoded_rate: float = 2.5e-4,
    ) -> None:
        super().__init__()
        if not (step_size > 0 and target_step_size > 0 and memory > 0 and 0 <= decoded_rate <= 1):
            raise ValueError("step sizes and memory must be positive, decoded_rate between 0 and 1")
        self._models = [model]  # in a list, since it is no part of this module and saved elsewhere
        prior = self._prior()
        self.step_size = step_size
        self.target_step_size = target_step_size
        self.memory = memory
        self.decoded_rate = decoded_rate
        for name in ("num_target_steps", "num_point_steps"):
            self.register_buffer(name, prior.targets.new_zeros(len(prior.targets), 1))
        for name, like in (("target", prior.targets), ("point", prior.pseudocoreset.points.flatten(1))):
            self.register_buffer(f"{name}_mean", torch.zeros_like(like))
            self.register_buffer(f"{name}_square", torch.zeros_like(like))

    def _prior(self) -> TrackedPseudocoresetPrior:
        prior = self._models[0].prior
        if not isinstance(prior, TrackedPseudocoresetPrior):
            raise ValueError(f"{type(prior).__name__} has no targets; use TrackedPseudocoresetPrior")
        return prior

    def shared(self, is_first: bool) -> list[Tensor]:
        """Return what processes that share a batch are to sum, in place, before each of them takes the step.

        These are the gradients, and where the live points are, which the first process alone tells: others may have
        encoded them with another last digit, since they did so beside other examples.
        """
        last = self._prior().newest_step()
        if not is_first:
            last.places.zero_()
        gradients = [last.mixture_means.grad, last.log_weights.grad, last.points.grad]
        return [last.places, *(gradient for gradient in gradients if gradient is not None)]

    def pull(self, beta: float) -> Tensor:
        """Return the term that brings live points to their targets, to be added to the loss of this training step.

        Parameters
        ----------
        beta
            The weight of the KL terms in that loss.
        """
        if not beta > 0:
            raise ValueError(
                f"beta must be positive, not {beta}: without KL terms there is nothing to follow; "
                f"count epochs from 1 in a warm-up"
            )
        prior = self._prior()
        last = prior.newest_step()
        weights = prior.pseudocoreset.probabilities[last.rows].to(last.means.dtype)
        stiffness = weights * (torch.exp(-prior.log_variance.detach()) * (beta * (prior.num_turns - 1)))
        gap = last.means - prior.targets[last.rows]
        pull: Tensor = 0.5 * stiffness @ gap.square().sum(1)
        return pull

    @torch.no_grad()
    def step(self, beta: float, num_examples: int) -> None:
        """Move targets, live points and weights by the gradients of the loss and the pull.

        They must be those of one forward pass and of the mean over its examples, so a scaled loss is to be unscaled
        first, and a batch that comes in parts has as many steps.

        Parameters
        ----------
        beta
            The weight of the KL terms in the loss.
        num_examples
            In the batch that gave the gradients.
        """
        prior = self._prior()
        last = prior.newest_step()
        in_means, in_log_weights = last.mixture_means.grad, last.log_weights.grad
        if in_means is None or in_log_weights is None:
            raise RuntimeError("there are no gradients: call backward on the loss and the pull before this step")
        if last.points.grad is not None:
            self._move_points(prior, last, last.points.grad)
        # The gradient in the log of a weight is minus the mean responsibility, times beta.
        if not abs(float(in_log_weights.sum()) / beta + 1) < _ROUNDING:
            raise ValueError(
                "the gradients are not those of the mean loss of one batch, with this beta: mean responsibilities add "
                "up to one; unscale gradients before this step, and take it after each forward pass"
            )
        members = last.members
        rate = min(1.0, num_examples / (self.memory * len(prior.targets)))
        weights = prior.pseudocoreset.probabilities * (1 - rate)
        weights[members] -= in_log_weights * (rate / beta)
        prior.pseudocoreset.reweight(weights)
        prior.advance()
        self.num_target_steps[members] += 1
        mean, square, targets = (part[members] for part in (self.target_mean, self.target_square, prior.targets))
        average_(mean, square, in_means)
        targets.sub_(direction(mean, square, self.num_target_steps[members], _EPSILON), alpha=self.target_step_size)
        if isinstance(members, Tensor):  # these are copies, where all members count they are views
            self.target_mean[members], self.target_square[members], prior.targets[members] = mean, square, targets

    def _move_points(self, prior: TrackedPseudocoresetPrior, last: TrackedStep, gradient: Tensor) -> None:
        rows = last.rows
        self.num_point_steps[rows] += 1
        mean, square = self.point_mean[rows], self.point_square[rows]  # views: they are changed in place
        average_(mean, square, gradient.flatten(1))
        num_steps = min(prior.steps_between_moves, _MOST_STEPS)
        moved = direction(mean, square, self.num_point_steps[rows], _EPSILON).mul_(self.step_size * num_steps)
        points = last.points - moved.reshape(last.points.shape)
        share = min(1.0, self.decoded_rate * num_steps)
        prior.pseudocoreset.move(rows, torch.lerp(points, self._decoded(last.places), share))

    def _decoded(self, latents: Tensor) -> Tensor:
        (model,) = self._models
        return model.unflatten(model.likelihood.mean(model.decode(latents, at_mean=True)))
