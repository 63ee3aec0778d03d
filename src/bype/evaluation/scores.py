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


def log_likelihood_by_shared_draws(
    model: LatentModel, x: Tensor, num_draws: int, prior: Distribution, training_rows: Tensor | None = None
) -> Tensor:
    """Estimate log p(x) (B,) of examples (B, *data_shape) with draws that are the same for every example.

    So the value of an example does not depend on what is scored beside it, nor in which order. It is that of a density
    wherever there is one: the squared error is normalised, and a probability of bytes is spread over their bins.
    Examples that the model was trained on, the ``training_rows``, are left out of a prior that is made of them.
    """
    found = [torch.empty(0, dtype=torch.float64, device=x.device)]
    for first in range(0, len(x), ROWS_AT_ONCE):
        few = slice(first, first + ROWS_AT_ONCE)
        own = prior if training_rows is None else model.prior.leave_out(prior, training_rows[few])
        max_rows = _DRAWS_AT_ONCE * len(x[few])  # it must not depend on the examples, or the draws would
        draws = SharedRows(generator_for(0, "scores"))
        bound = importance_weighted_bound(model, x[few], num_draws, prior=own, max_rows=max_rows, generator=draws)
        found.append(bound.log_likelihood)
    return torch.cat(found) + log_normaliser(model)


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
        x = x.to(self.model.device, torch.float64)
        return log_likelihood_by_shared_draws(self.model, x, num_draws, self.prior)
