"""The evidence lower bound by named terms, and the importance-weighted bound.

Shape letters: ``K`` draws, ``B`` examples. All values are nats per example.
"""

import math
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from bype.bounded import NearbyMixture
from bype.distributions import DiagonalNormal, Distribution, Randomness, RowRandomness
from bype.models.base import LatentModel, Posterior
from bype.priors.base import Gather, TrainingBatch

_CACHED_NUMBERS = 2**19


@dataclass(frozen=True, eq=False)
class ELBOTerms:
    """The evidence lower bound of each example of a batch, term by term."""

    reconstruction: Tensor
    """(B,), log p(x | latents); on the likelihood's own scale, which may be unnormalised."""
    kl: dict[str, Tensor]
    """Level by level, the top first: (B,), log q - log p at one draw. It is an estimate and may be negative."""
    beta: float = 1.0
    """The weight of the KL terms in the loss."""

    @property
    def total_kl(self) -> Tensor:
        """(B,), the KL terms of all levels together."""
        return reduce(torch.add, self.kl.values())

    @property
    def elbo(self) -> Tensor:
        """(B,), the bound itself, whatever beta is."""
        return self.reconstruction - self.total_kl

    @property
    def loss(self) -> Tensor:
        """What training minimises: the mean over the batch of -reconstruction + beta * KL."""
        return self.loss_share(len(self.reconstruction))

    def loss_share(self, num_examples: int) -> Tensor:
        """Return what these examples add to the loss of a larger batch, of ``num_examples`` in all."""
        return (self.beta * self.total_kl - self.reconstruction).sum() / num_examples


class ELBO(nn.Module):
    """The objective of the paper, Eq. 13, as a module around a model.

    Everything that a training step differentiates, the prior's own encodings included, happens in this one
    forward pass, so that it can be wrapped as a whole.

    Examples
    --------
    >>> from bype.models import mlp_vae
    >>> from bype.priors import GaussianPrior
    >>> terms = ELBO(mlp_vae((1, 28, 28), GaussianPrior(40)))(torch.rand(5, 1, 28, 28))
    >>> terms.elbo.shape, list(terms.kl)
    (torch.Size([5]), ['z'])
    """

    def __init__(self, model: LatentModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        x: Tensor,
        *,
        indices: Tensor | None = None,
        prior: Distribution | None = None,
        beta: float = 1.0,
        generator: RowRandomness = None,
        prior_generator: Randomness = None,
        gather: Gather | None = None,
    ) -> ELBOTerms:
        """Return the terms for examples (B, *data_shape), with one draw of the latents each.

        Parameters
        ----------
        x
            The examples.
        indices
            In training: the rows of the training set that they are, so that the prior can leave them out.
        prior
            In evaluation: what ``model.prior_distribution()`` returned, to compute it once for many batches.
        beta
            The weight of the KL terms in the loss.
        generator
            For the draws of the latents; a :class:`BatchSlice` if other processes hold the rest of the batch.
        prior_generator
            For what the prior draws in a training step.
        gather
            Joins the rows of all processes, if others hold the rest of the batch.
        """
        if indices is not None and prior is not None:
            raise ValueError("give indices to train, or prior to evaluate, not both")
        needs_indices = self.model.prior.needs_training_batch and torch.is_grad_enabled()
        if needs_indices and indices is None and prior is None:
            raise ValueError(
                f"{type(self.model.prior).__name__} leaves each example out of its own prior in training: "
                f"pass indices, its row in the training set; to evaluate, use torch.no_grad() or pass prior"
            )
        if indices is None:
            posterior = self.model.posterior(x)
            prior = self.model.prior_distribution() if prior is None else prior
        else:
            posterior, beside = self._encode_beside(x, self.model.prior.points_beside())
            batch = TrainingBatch(indices, posterior.top.mean.detach(), prior_generator, beside, gather)
            prior = self.model.prior_distribution(batch)
        terms, _ = _scored_draws(self.model, x, posterior, prior, 1, generator)
        return ELBOTerms(terms.reconstruction[0], {level: kl[0] for level, kl in terms.kl.items()}, beta)

    def _encode_beside(self, x: Tensor, points: Tensor | None) -> tuple[Posterior, DiagonalNormal | None]:
        """Encode examples and the prior's points in one call: every weight's gradient is then one product."""
        if points is None:
            return self.model.posterior(x), None
        both = self.model.encode(torch.cat([x, points]))
        means, log_variances = (torch.split(part, [len(x), len(points)]) for part in (both.mean, both.log_variance))
        top, beside = (DiagonalNormal(*parts) for parts in zip(means, log_variances, strict=True))
        return self.model.posterior(x, top), beside


def _scored_draws(
    model: LatentModel,
    x: Tensor,
    posterior: Posterior,
    prior: Distribution | NearbyMixture,
    num_samples: int,
    generator: RowRandomness,
) -> tuple[ELBOTerms, Tensor | None]:
    """Return the terms of ``num_samples`` draws, (K, B) each: their ``elbo`` is the log importance weight.

    Where the prior left out components, also by how much each weight may be larger, at most.
    """
    draw = posterior.draw(num_samples, generator=generator)
    if isinstance(prior, NearbyMixture):
        log_top, excess = prior.bounds(draw.top)
    else:
        log_top, excess = prior.log_prob(draw.top), None
    log_prior = {model.levels[0]: log_top, **draw.log_conditional}
    terms = ELBOTerms(
        reconstruction=_log_likelihood(model, x, draw.output),
        kl={level: log_q - log_prior[level] for level, log_q in draw.log_posterior.items()},
    )
    return terms, excess


def _log_likelihood(model: LatentModel, x: Tensor, output: Tensor) -> Tensor:
    """Return log p(x | output), (K, B), by blocks of draws whose intermediate results stay in the cache."""
    step = max(1, _CACHED_NUMBERS // max(1, output[0].numel()))
    flat = model.flatten(x)
    blocks = [model.likelihood.log_prob(flat, block) for block in torch.split(output, step)]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


@dataclass(frozen=True, eq=False)
class ImportanceWeightedBound:
    """An estimate of log p(x) for each example of a batch, low by less the more samples it takes."""

    log_likelihood: Tensor
    """(B,), the log of the mean importance weight; on the likelihood's own scale."""
    effective_sample_size: Tensor
    """(B,), between 1 and ``num_samples``: how many equal weights would do as well."""
    num_samples: int
    mean_terms: ELBOTerms
    """The terms of the ELBO, averaged over the same draws."""
    neglected: Tensor
    """(B,), at most this much larger is ``log_likelihood`` with the components that the prior left out; mostly 0."""

    @property
    def monte_carlo_error(self) -> Tensor:
        """(B,), the standard error of ``log_likelihood`` over redraws, to first order; NaN for a single draw."""
        return monte_carlo_error(self.effective_sample_size, self.num_samples)


def monte_carlo_error(effective_sample_size: Tensor, num_samples: int) -> Tensor:
    """Return the standard error of a log of a mean of weights, to first order; a single draw says nothing of it."""
    if num_samples == 1:
        return torch.full_like(effective_sample_size, torch.nan)
    return (1 / effective_sample_size - 1 / num_samples).clamp_min(0).sqrt()


@torch.no_grad()
def importance_weighted_bound(
    model: LatentModel,
    x: Tensor,
    num_samples: int,
    *,
    prior: Distribution | NearbyMixture | None = None,
    max_rows: int = 2048,
    generator: Randomness = None,
) -> ImportanceWeightedBound:
    r"""Estimate :math:`\log p(x)` by :math:`\log \frac1K \sum_k p(x, z_k) / q(z_k \mid x)`.

    Examples are encoded once. Draws are made and decoded in chunks and only their running sums are kept.

    Parameters
    ----------
    model, x
        The model and the examples (B, *data_shape).
    num_samples
        K; the paper takes 5,000.
    prior
        What ``model.prior_distribution()`` returned, to compute it once for many batches; or a large mixture as these
        examples see it.
    max_rows
        At most this many latents are decoded at once (but at least one of each example).
    generator
        For the draws of the latents.

    References
    ----------
    Y. Burda, R. Grosse and R. Salakhutdinov, Importance Weighted Autoencoders, ICLR 2016.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, not {num_samples}")
    prior = model.prior_distribution() if prior is None else prior
    posterior = model.posterior(x)
    nothing = torch.full(x.shape[:1], -torch.inf, dtype=torch.float64, device=x.device)
    log_sum = log_upper_sum = log_sum_of_squares = nothing
    term_sums = torch.zeros(())
    step = max(1, max_rows // max(1, len(x)))
    levels: list[str] = []
    for first in range(0, num_samples, step):
        count = min(step, num_samples - first)
        terms, excess = _scored_draws(model, x, posterior, prior, count, generator)
        levels = list(terms.kl)
        log_weight = terms.elbo.double()
        log_sum = torch.logaddexp(log_sum, log_weight.logsumexp(0))
        if excess is not None:
            log_upper_sum = torch.logaddexp(log_upper_sum, (log_weight + excess).logsumexp(0))
        log_sum_of_squares = torch.logaddexp(log_sum_of_squares, (2 * log_weight).logsumexp(0))
        stacked = torch.stack([terms.reconstruction, *terms.kl.values()])
        term_sums = term_sums.to(x.device) + stacked.sum(1, dtype=torch.float64)
    reconstruction, *kl = term_sums / num_samples
    return ImportanceWeightedBound(
        log_likelihood=log_sum - math.log(num_samples),
        effective_sample_size=(2 * log_sum - log_sum_of_squares).exp(),
        num_samples=num_samples,
        mean_terms=ELBOTerms(reconstruction, dict(zip(levels, kl, strict=True))),
        neglected=(log_upper_sum - log_sum).clamp_min(0),
    )


def kl_weight(progress: float, warm_up: float) -> float:
    """Return beta, which grows linearly to 1 while ``progress`` grows to ``warm_up`` (in the same unit).

    The paper counts epochs from 1 and warms up over 100.

    Examples
    --------
    >>> [kl_weight(epoch, warm_up=100) for epoch in (1, 50, 100, 300)]
    [0.01, 0.5, 1.0, 1.0]
    """
    if warm_up < 0 or progress < 0:
        raise ValueError(f"progress and warm_up must not be negative, not {progress} and {warm_up}")
    return 1.0 if progress >= warm_up else progress / warm_up
