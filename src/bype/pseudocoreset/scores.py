"""Sums over the log-likelihoods of all pairs (example, latent draw), without the array of all pairs' pixels.

Shape letters: ``M`` examples or pseudo-points, ``S`` latent draws, ``d`` numbers in one example.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from bype.likelihoods import Likelihood, LinearLikelihood

_CHUNK_ELEMENTS = 2**19
"""The largest piece of an M x S x d array that exists at once: 4 MB in float64."""


class Scores(ABC):
    """Log p(x | z_s) for S latents, whose decoder outputs are given, summed in float64.

    A term of log p that does not depend on z may be left out: it cancels in everything that is computed from these.
    """

    @abstractmethod
    def sum_over_examples(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return sum_m w_m log p(x_m | z_s), (S,), for examples (M, d) and weights (M,)."""

    @abstractmethod
    def sum_over_draws(self, x: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Return a_m = sum_s r_s log p(x_m | z_s), (M,), and its gradient in x_m, (M, d), for coefficients (S,).

        The coefficients must sum to zero.
        """


class LinearScores(Scores):
    """The closed form for likelihoods that are linear in x: no pair is ever formed, cost (M + S) d."""

    def __init__(self, likelihood: LinearLikelihood, output: Tensor) -> None:
        with torch.no_grad():
            form = likelihood.natural_form(output)
        self._eta, self._log_partition = form.eta.double(), form.log_partition.double()

    def sum_over_examples(self, x: Tensor, weights: Tensor) -> Tensor:
        weights = weights.double()
        weighted = self._eta.new_zeros(self._eta.shape[1])
        for rows in _slices(len(x), _CHUNK_ELEMENTS // x.shape[1]):
            weighted += weights[rows] @ x[rows].double()
        return self._eta @ weighted - weights.sum() * self._log_partition

    def sum_over_draws(self, x: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        direction = coefficients @ self._eta
        chunks = _slices(len(x), _CHUNK_ELEMENTS // x.shape[1])
        scores = torch.cat([x[rows].double() @ direction for rows in chunks])
        return scores - coefficients @ self._log_partition, direction.to(x.dtype).expand_as(x)


class PairwiseScores(Scores):
    """The general form, through autograd, over pieces of the pairs; each pair in the precision of the network."""

    def __init__(self, likelihood: Likelihood, output: Tensor) -> None:
        self._likelihood = likelihood
        self._output = output

    @torch.no_grad()
    def sum_over_examples(self, x: Tensor, weights: Tensor) -> Tensor:
        weights = weights.double()
        total = weights.new_zeros(len(self._output))
        for rows, draws in self._pieces(len(x)):
            total[draws] += weights[rows] @ self._pairs(x[rows], draws).double()
        return total

    def sum_over_draws(self, x: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        scores = coefficients.new_zeros(len(x))
        gradient = torch.zeros_like(x)
        for rows, draws in self._pieces(len(x)):
            part = x[rows].detach().requires_grad_()
            with torch.enable_grad():
                score = self._pairs(part, draws).double() @ coefficients[draws]
                (piece,) = torch.autograd.grad(score.sum(), part)
            scores[rows] += score.detach()
            gradient[rows] += piece
        return scores, gradient

    def _pairs(self, x: Tensor, draws: slice) -> Tensor:
        return self._likelihood.log_prob(x[:, None], self._output[None, draws])

    def _pieces(self, num_examples: int) -> list[tuple[slice, slice]]:
        num_draws, num_dimensions = self._output.shape
        draw_step = min(num_draws, max(1, _CHUNK_ELEMENTS // num_dimensions))
        row_step = _CHUNK_ELEMENTS // (num_dimensions * draw_step)
        return [(rows, draws) for rows in _slices(num_examples, row_step) for draws in _slices(num_draws, draw_step)]


def _slices(total: int, step: int) -> list[slice]:
    step = max(1, step)
    return [slice(first, first + step) for first in range(0, total, step)]


def scores_of(likelihood: Likelihood, output: Tensor) -> Scores:
    """Return the closed form where the likelihood has one, else the general form."""
    if isinstance(likelihood, LinearLikelihood):
        return LinearScores(likelihood, output)
    return PairwiseScores(likelihood, output)
