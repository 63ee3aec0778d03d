"""PSVI: the pseudocoreset update that the paper publishes, Algorithm 2.

Shape letters: ``M`` pseudo-points, ``S`` latent draws, ``B`` examples, ``d`` numbers in one example.
"""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from bype.distributed import Group
from bype.models.base import LatentModel
from bype.pseudocoreset.prior import pseudocoreset_prior_of
from bype.pseudocoreset.rule import PeriodicRule
from bype.pseudocoreset.scores import Scores, scores_of
from bype.pseudocoreset.step_sizes import Steps
from bype.randomness import BatchSlice, RowRandomness, SharedRows


class Centring(Enum):
    """Over what the gradient in a pseudo-point is centred."""

    SAMPLES = "samples"
    """Over the latent draws, as Algorithm 2 says."""
    PIXELS = "pixels"
    """Over the pixels, as the authors' program does; for comparison."""


@dataclass(frozen=True, eq=False)
class PSVIGradient:
    r"""The gradient of Algorithm 2: that of :math:`J = \frac{1}{2S} \sum_s r_s^2` with the draws held fixed.

    Eq. 18 and 19 take their covariances under the product of likelihoods, Eq. 16. Here, as in the authors' program, the
    draws are from the mixture, Eq. 12.
    """

    points: Tensor
    """(M, d)."""
    weights: Tensor
    """(M,), float64."""
    objective: float
    """J at the draws that were used."""


@torch.no_grad()
def psvi_gradient(
    scores: Scores,
    points: Tensor,
    weights: Tensor,
    data_score: Tensor,
    centring: Centring = Centring.SAMPLES,
) -> PSVIGradient:
    r"""Return the gradient of the PSVI objective in points and weights, with the latent draws held fixed.

    With :math:`r_s` the centred difference of data and pseudo-data log-likelihoods at draw s, it is
    :math:`-\frac1S \sum_s r_s \log p(u_m \mid z_s)` in :math:`w_m`, and in :math:`u_m` the same with
    :math:`w_m \nabla_u \log p`. Since :math:`\sum_s r_s = 0`, centring the other factor changes nothing.

    Parameters
    ----------
    scores
        Log-likelihoods at the S draws.
    points, weights
        (M, d) and (M,).
    data_score
        (S,), log p of all N examples at each draw: of a batch of B, the sum times N / B.
    centring
        Over what the gradient in the points is centred.
    """
    difference = data_score - scores.sum_over_examples(points, weights)
    residual = difference - difference.mean()
    num_draws = len(residual)
    weight_sums, point_sums = scores.sum_over_draws(points, residual)
    if centring is Centring.PIXELS:
        point_sums = point_sums - point_sums.mean(1, keepdim=True)
    return PSVIGradient(
        points=point_sums * (-weights / num_draws).to(points.dtype)[:, None],
        weights=-weight_sums / num_draws,
        objective=float(residual.square().mean() / 2),
    )


class PSVI(PeriodicRule):
    r"""The published rule: match the log-likelihood of the pseudocoreset to that of the data (Algorithm 2).

    Each step descends :math:`J = \frac{1}{2S} \sum_s r_s^2`, see :func:`psvi_gradient`. One batch in an update is
    Algorithm 2 as printed; a pass over the training examples is what the authors ran. For the likelihoods of the paper
    it moves every point along one common direction, and a single mean image would satisfy it: see the page on the
    degeneracy of the published objective. It is here because the paper's numbers rest on it.

    Parameters
    ----------
    steps
        :class:`InverseTimeSteps` as printed, or :class:`RestartedAdam` as the authors ran it.
    num_samples
        S, latent draws in a step, at least 2; as many as pseudo-points if left out.
    centring
        Over what the gradient in the points is centred.
    every, batch_size, num_batches
        As for :class:`~bype.pseudocoreset.rule.Rule`.

    References
    ----------
    D. Manousakas, Z. Xu, C. Mascolo and T. Campbell, Bayesian Pseudocoresets, NeurIPS 2020.

    Examples
    --------
    >>> from bype.models import mlp_vae
    >>> from bype.pseudocoreset.coreset import Pseudocoreset
    >>> from bype.pseudocoreset.prior import PseudocoresetPrior
    >>> from bype.pseudocoreset.step_sizes import RestartedAdam
    >>> pseudocoreset = Pseudocoreset(torch.rand(4, 1, 28, 28), total=1000)
    >>> rule = PSVI(RestartedAdam(pseudocoreset, step_size=0.1))
    >>> model = mlp_vae((1, 28, 28), PseudocoresetPrior(pseudocoreset))
    >>> rule.update(model, torch.rand(2, 10, 1, 28, 28))["steps"]
    2
    """

    def __init__(
        self,
        steps: Steps,
        num_samples: int | None = None,
        centring: Centring = Centring.SAMPLES,
        every: str | None = None,
        batch_size: int | None = None,
        num_batches: int | None = None,
    ) -> None:
        super().__init__(every, batch_size, num_batches)
        self.steps = steps
        self.num_samples = num_samples
        self.centring = centring

    def start_update(self) -> None:
        self.steps.start_update()

    @torch.no_grad()
    def update_step(
        self, model: LatentModel, x: Tensor, *, generator: RowRandomness = None, group: Group | None = None
    ) -> float:
        """Take one gradient step with a batch of training examples, and return J before it.

        The latents are the same in all processes that share the batch.
        """
        group = group or Group()
        generator = generator.generator if isinstance(generator, BatchSlice | SharedRows) else generator
        pseudocoreset = pseudocoreset_prior_of(model).pseudocoreset
        num_samples = len(pseudocoreset) if self.num_samples is None else self.num_samples
        if num_samples < 2:
            raise ValueError(f"a step needs at least 2 draws to centre over, not {num_samples}: pass num_samples")
        draws = model.prior_distribution().sample((num_samples,), generator=generator)
        # Decoding draws the levels below the top once: values and gradients rest on the same latents.
        scores = scores_of(model.likelihood, model.decode(draws, generator=generator))
        examples = model.flatten(x)
        points, weights = model.flatten(pseudocoreset.points), pseudocoreset.weights
        data_score, count = (
            scores.sum_over_examples(examples, weights.new_ones(len(examples))),
            weights.new_tensor(len(x)),
        )
        group.sum_([data_score, count])
        if count == 0:
            raise ValueError("a step needs at least one training example")
        data_score *= pseudocoreset.total / count
        gradient = psvi_gradient(scores, points, weights, data_score, self.centring)
        point_step, weight_step = self.steps(gradient.points, gradient.weights)
        pseudocoreset.assign(model.unflatten(points + point_step), (weights + weight_step).clamp_min(0))
        return gradient.objective
