"""The evidence lower bound by named terms, and the importance-weighted bound.

Shape letters: ``K`` draws, ``B`` examples. All values are nats per example.
"""

import math
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from bype.distributed import Group
from bype.distributions import Distribution
from bype.models.base import LatentModel, Posterior
from bype.networks.dense import require_dropout_masks
from bype.priors.base import TrainingBatch
from bype.randomness import BatchSlice, Randomness, RowRandomness

_CACHED_NUMBERS = 2**19


@dataclass(frozen=True, eq=False)
class ELBOTerms:
    """The evidence lower bound of each example of a batch, term by term.

    Examples
    --------
    >>> terms = ELBOTerms(torch.tensor([-5.0, -7.0]), {"z": torch.tensor([1.0, 2.0])})
    >>> terms.elbo, terms.loss
    (tensor([-6., -9.]), tensor(7.5000))
    """

    reconstruction: Tensor
    """(B,), log p(x | latents); on the likelihood's own scale, which may be unnormalised."""
    kl: dict[str, Tensor]
    """Level by level, the top first: (B,), log q - log p at one draw. It is an estimate and may be negative."""
    beta: float = 1.0
    """The weight of the KL terms in the loss."""
    batch_size: int | None = None
    """The examples of the whole batch, of which other processes may hold the rest; these alone if left out."""
    prior: Distribution | None = None
    """The distribution that scored the top latents."""
    latents: Tensor | None = None
    """(B, D), the draws of the top latents."""

    @property
    def num_examples(self) -> int:
        """In the whole batch."""
        return len(self.reconstruction) if self.batch_size is None else self.batch_size

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
        """What training minimises: the mean over the batch of -reconstruction + beta * KL.

        Where processes share a batch, it is what these examples add to that mean.
        """
        return (self.beta * self.total_kl - self.reconstruction).sum() / self.num_examples


class ELBO(nn.Module):
    """The objective of the paper, Eq. 9, as a module around a model.

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
        group: Group | None = None,
        labels: Tensor | None = None,
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
        group
            The processes that share the batch, if there are several.
        labels
            In training: the classes of the examples (B,), for a prior whose points belong to classes.
        """
        if indices is not None and prior is not None:
            raise ValueError("give indices to train, or prior to evaluate, not both")
        needs_indices = self.model.prior.needs_training_batch and torch.is_grad_enabled()
        if needs_indices and indices is None and prior is None:
            raise ValueError(
                f"{type(self.model.prior).__name__} leaves each example out of its own prior in training: "
                f"pass indices, its row in the training set; to evaluate, use torch.no_grad() or pass prior"
            )
        if torch.is_grad_enabled():
            require_dropout_masks(self.model)
        x = self.model.to_model_units(self.model.as_examples(x))
        if indices is None:
            posterior = self.model.posterior(x)
            prior = self.model.prior_distribution() if prior is None else prior
        else:
            batch = TrainingBatch(x, indices, self.model.encode, prior_generator, group, labels)
            prior = self.model.prior_distribution(batch)
            posterior = self.model.posterior(x, batch.posterior)
        terms = _scored_draws(self.model, x, posterior, prior, 1, generator)
        batch_size = generator.total if isinstance(generator, BatchSlice) else len(x)
        kl = {level: values[0] for level, values in terms.kl.items()}
        latents = None if terms.latents is None else terms.latents[0]
        return ELBOTerms(terms.reconstruction[0], kl, beta, batch_size, prior, latents)


def _scored_draws(
    model: LatentModel,
    x: Tensor,
    posterior: Posterior,
    prior: Distribution,
    num_samples: int,
    generator: RowRandomness,
) -> ELBOTerms:
    """Return the terms of ``num_samples`` draws, (K, B) each: their ``elbo`` is the log importance weight."""
    draw = posterior.draw(num_samples, generator=generator)
    log_prior = {model.levels[0]: prior.log_prob(draw.top), **draw.log_conditional}
    return ELBOTerms(
        reconstruction=_log_likelihood(model, x, draw.output),
        kl={level: log_q - log_prior[level] for level, log_q in draw.log_posterior.items()},
        latents=draw.top,
    )


def _log_likelihood(model: LatentModel, x: Tensor, output: Tensor) -> Tensor:
    """Return log p(x | output), (K, B), by blocks of draws whose intermediate results stay in the cache."""
    step = max(1, _CACHED_NUMBERS // max(1, output[0].numel()))
    flat = model.flatten(x)
    blocks = [model.likelihood.log_prob(flat, block) for block in torch.split(output, step)]
    found = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    return found if model.scaling is None else found + model.scaling.log_density.to(found.dtype)


@dataclass(frozen=True, eq=False)
class ImportanceWeightedBound:
    """An estimate of log p(x) for each example of a batch. It is low on average, and less so with more samples.

    Examples
    --------
    >>> from bype.models import mlp_vae
    >>> from bype.priors import GaussianPrior
    >>> model = mlp_vae((1, 28, 28), GaussianPrior(40))
    >>> bound = importance_weighted_bound(model, torch.rand(3, 1, 28, 28), num_samples=10)
    >>> bound.log_likelihood.shape, bool((bound.effective_sample_size <= 10.001).all())
    (torch.Size([3]), True)
    """

    log_likelihood: Tensor
    """(B,), the log of the mean importance weight; on the likelihood's own scale."""
    effective_sample_size: Tensor
    """(B,), between 1 and ``num_samples``: how many equally weighted draws would be as exact."""
    monte_carlo_error: Tensor
    """(B,), the standard error of ``log_likelihood`` over redraws, by the jackknife; NaN for a single draw."""
    num_samples: int
    mean_terms: ELBOTerms
    """The terms of the ELBO, averaged over the same draws."""


def jackknife_error(log_weights: Tensor) -> Tensor:
    """Return the standard error (B,) of the log of the mean of weights (K, B), from leaving out each in turn.

    Without weight k the log of the mean moves by log(1 - s_k), with s_k its share of the sum. Where a few weights hold
    most of the sum this is far larger than the first order, s_k, and right: see docs/guide/evaluation.md.

    Examples
    --------
    >>> jackknife_error(torch.tensor([[0.0], [0.0], [0.0], [2.0]], dtype=torch.float64))
    tensor([0.8557], dtype=torch.float64)
    """
    count = len(log_weights)
    if count == 1:
        return torch.full_like(log_weights[0], torch.nan)
    shares = log_weights.softmax(0).clamp_max(1 - torch.finfo(log_weights.dtype).eps)
    moved = torch.log1p(-shares)
    return moved.var(0, correction=0).mul(count - 1).sqrt()


@torch.no_grad()
def importance_weighted_bound(
    model: LatentModel,
    x: Tensor,
    num_samples: int,
    *,
    prior: Distribution | None = None,
    max_rows: int = 2048,
    generator: RowRandomness = None,
) -> ImportanceWeightedBound:
    r"""Estimate :math:`\log p(x)` by :math:`\log \frac1K \sum_k p(x, z_k) / q(z_k \mid x)`.

    Examples are encoded once. Draws are made and decoded in chunks; only the weight of each draw is kept.

    Parameters
    ----------
    model, x
        The model and the examples (B, *data_shape).
    num_samples
        K; the paper takes 5,000.
    prior
        What ``model.prior_distribution()`` returned, to compute it once for many batches.
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
    x = model.to_model_units(model.as_examples(x))
    posterior = model.posterior(x)
    log_weights = []
    term_sums = torch.zeros((), device=x.device)
    step = max(1, max_rows // max(1, len(x)))
    levels: list[str] = []
    for first in range(0, num_samples, step):
        terms = _scored_draws(model, x, posterior, prior, min(step, num_samples - first), generator)
        levels = list(terms.kl)
        log_weights.append(terms.elbo.double())
        stacked = torch.stack([terms.reconstruction, *terms.kl.values()])
        term_sums = term_sums + stacked.sum(1, dtype=torch.float64)
    log_weight = torch.cat(log_weights)
    log_sum = log_weight.logsumexp(0)
    reconstruction, *kl = term_sums / num_samples
    return ImportanceWeightedBound(
        log_likelihood=log_sum - math.log(num_samples),
        effective_sample_size=(2 * log_sum - (2 * log_weight).logsumexp(0)).exp(),
        monte_carlo_error=jackknife_error(log_weight),
        num_samples=num_samples,
        mean_terms=ELBOTerms(reconstruction, dict(zip(levels, kl, strict=True))),
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
