"""Coordinate ascent on the ELBO: the pseudocoreset that makes the prior fit the posteriors best.

Shape letters: ``M`` pseudo-points, ``B`` examples, ``D`` latent dimensions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bype.distributed import Group
from bype.mixtures import NormalMixture
from bype.models.base import LatentModel
from bype.priors.base import encode_points
from bype.pseudocoreset.adam import average_, direction
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.prior import pseudocoreset_prior_of
from bype.pseudocoreset.rule import PeriodicRule
from bype.randomness import RowRandomness


class ELBOAscent(PeriodicRule):
    r"""Maximise :math:`E_x E_{q(z \mid x)} \log p(z \mid U, w)` over points and weights, the network held fixed.

    That is the only term of the ELBO in which the pseudocoreset appears, so each update ascends what training ascends.
    Weights follow EM: the best weights for given points are the mean responsibilities, of which a decaying average
    over batches is kept. Points follow Adam on the gradient through the encoder. An update that makes the KL term of
    validation examples larger is taken back.

    Parameters
    ----------
    pseudocoreset
        What will be updated; it gives the shapes of the moments.
    step_size
        Of Adam on the points, at the first step of an update; it falls linearly to a tenth over ``num_steps``.
    num_steps
        The number of batches in an update, over which the step size falls.
    weight_rate
        How much of the newest batch's responsibilities enters the weights.
    every, batch_size
        As for :class:`~bype.pseudocoreset.rule.Rule`.

    Examples
    --------
    >>> from bype.models import mlp_vae
    >>> from bype.pseudocoreset.prior import PseudocoresetPrior
    >>> prior = PseudocoresetPrior(Pseudocoreset(torch.rand(4, 1, 28, 28), total=1000))
    >>> rule = ELBOAscent(prior.pseudocoreset, num_steps=2)
    >>> rule.update(mlp_vae((1, 28, 28), prior), torch.rand(2, 10, 1, 28, 28))["steps"]
    2
    """

    steps_in_update: Tensor
    mean: Tensor
    square: Tensor

    def __init__(
        self,
        pseudocoreset: Pseudocoreset,
        step_size: float = 0.01,
        num_steps: int = 200,
        weight_rate: float = 0.05,
        every: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(every, batch_size, num_steps)
        if not (step_size > 0 and num_steps > 0 and 0 < weight_rate <= 1):
            raise ValueError("step_size and num_steps must be positive, weight_rate between 0 and 1")
        self.step_size = step_size
        self.num_steps = num_steps
        self.weight_rate = weight_rate
        self.register_buffer("steps_in_update", torch.tensor(0))
        self.register_buffer("mean", torch.zeros_like(pseudocoreset.points))
        self.register_buffer("square", torch.zeros_like(pseudocoreset.points))

    def start_update(self) -> None:
        """Begin an update: the moments belong to a network that has changed since."""
        self.steps_in_update.zero_()
        self.mean.zero_()
        self.square.zero_()

    def accepts(self, kl_before: float, kl_after: float) -> bool:
        return kl_after <= kl_before

    def update_step(
        self, model: LatentModel, x: Tensor, *, generator: RowRandomness = None, group: Group | None = None
    ) -> float:
        """Take one step with a batch of training examples, and return the mean of log p(z) before it."""
        pseudocoreset = pseudocoreset_prior_of(model).pseudocoreset
        with torch.no_grad():
            z = model.encode(x).sample(generator=generator)
        gradient = ascent_gradient(model, z, group)
        self.steps_in_update += 1
        weights = torch.lerp(pseudocoreset.probabilities, gradient.responsibilities, self.weight_rate)
        points = pseudocoreset.points + self._displacement(gradient.points)
        pseudocoreset.assign(points, weights * pseudocoreset.total)
        return gradient.objective

    def _displacement(self, gradient: Tensor) -> Tensor:
        average_(self.mean, self.square, gradient)
        j = int(self.steps_in_update)
        share = min(1.0, (j - 1) / self.num_steps)
        return direction(self.mean, self.square, j).mul_(self.step_size * (1 - 0.9 * share))


@dataclass(frozen=True, eq=False)
class AscentGradient:
    """What an ascent needs of the mean of log p(z) over latents."""

    objective: float
    """The mean itself."""
    points: Tensor
    """(M, *data_shape), its gradient in the points."""
    responsibilities: Tensor
    """(M,), float64, the mean responsibilities; they sum to one."""


def ascent_gradient(model: LatentModel, z: Tensor, group: Group | None = None) -> AscentGradient:
    """Return what an ascent needs of the mean of log p(z | U, w) over latents (B, D) of all processes in a group."""
    prior = pseudocoreset_prior_of(model)
    pseudocoreset = prior.pseudocoreset
    points = pseudocoreset.points.detach().requires_grad_()
    log_weights = pseudocoreset.probabilities.log().requires_grad_()
    with torch.enable_grad():
        means = encode_points(model.encode, points).mean
        total = NormalMixture(means, prior.log_variance.detach(), log_weights).log_prob(z.detach()).sum()
        in_points, in_log_weights = torch.autograd.grad(total, (points, log_weights))
    objective, count = total.detach().double(), torch.tensor(len(z), dtype=torch.float64, device=z.device)
    if group is not None:
        group.sum_([in_points, in_log_weights, objective, count])
    if not count > 0:
        raise ValueError("an ascent needs at least one training example in each step")
    # The gradient in the log of unnormalised weights is the mean responsibility less the weight itself.
    responsibilities = (in_log_weights / count + pseudocoreset.probabilities).clamp_min(0)
    return AscentGradient(float(objective / count), in_points / float(count), responsibilities / responsibilities.sum())
