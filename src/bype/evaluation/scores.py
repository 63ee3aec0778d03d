"""The log-likelihood of single examples, which depends on no other example."""

import copy
import math

import torch
from torch import Tensor

from bype.distributions import Distribution
from bype.evaluation.generation import embed
from bype.models.base import LatentModel
from bype.objective import importance_weighted_bound
from bype.randomness import SharedRows, generator_for

ROWS_AT_ONCE = 32
"""Examples to score at once: each is decoded as many times as the next number says."""
_DRAWS_AT_ONCE = 25


def log_likelihood_by_shared_draws(model: LatentModel, x: Tensor, num_draws: int, prior: Distribution) -> Tensor:
    """Estimate log p(x) (B,) of examples (B, *data_shape) with draws that are the same for every example.

    So the value of an example does not depend on what is scored beside it, nor in which order. It is that of a density
    wherever there is one: the squared error is normalised, and a probability of bytes is spread over their bins.
    """
    bound = importance_weighted_bound(
        model,
        x,
        num_draws,
        prior=prior,
        max_rows=_DRAWS_AT_ONCE * len(x),  # it must not depend on the examples, or the draws would
        generator=SharedRows(generator_for(0, "scores")),
    )
    return bound.log_likelihood + log_normaliser(model)


def log_normaliser(model: LatentModel) -> float:
    """Return what makes the log-likelihood of an example that of a density; 0 if no constant does."""
    return math.prod(model.data_shape) * (model.likelihood.log_normaliser or 0.0)


class Scorer:
    """A model in float64 with its prior, for results that depend neither on the order nor on the grouping of examples.

    Every example is scored with the same draws of noise. So their Monte Carlo errors are alike, and a difference
    between two examples is known better than each value.

    Parameters
    ----------
    model
        The model; it is copied.
    """

    @torch.no_grad()
    def __init__(self, model: LatentModel) -> None:
        self.model = copy.deepcopy(model).double()
        self.prior = self.model.prior_distribution()

    def embed(self, x: Tensor) -> Tensor:
        """Return the embeddings (B, D) of examples (B, *data_shape)."""
        return embed(self.model, x.to(self.model.device, torch.float64))

    def log_likelihood(self, x: Tensor, num_draws: int) -> Tensor:
        """Return importance-weighted estimates of log p(x) (B,) for examples (B, *data_shape), in nats."""
        chunks = [rows.to(self.model.device, torch.float64) for rows in torch.split(x, ROWS_AT_ONCE)]
        return torch.cat([log_likelihood_by_shared_draws(self.model, rows, num_draws, self.prior) for rows in chunks])
