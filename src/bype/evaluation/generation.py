"""New examples, reconstructions, embeddings and interpolations from a model."""

from collections.abc import Callable
from typing import Literal, cast

import torch
from torch import Tensor

from bype.distributions import DiagonalNormal, Distribution, Randomness
from bype.mixtures import NormalMixture
from bype.models.base import LatentModel
from bype.priors import ExemplarPrior, JointPseudocoresetPrior, PseudocoresetPrior

_CHUNK_ROWS = 512


@torch.no_grad()
def sample(
    model: LatentModel,
    count: int,
    *,
    component: int | None = None,
    with_noise: bool = False,
    prior: Distribution | None = None,
    generator: Randomness = None,
) -> Tensor:
    """Generate new examples (count, *data_shape): Algorithm 1 of the paper.

    Parameters
    ----------
    model
        The model.
    count
        How many.
    component
        Take all from this component of the prior, for instance from one pseudo-point; otherwise each from a
        component drawn by weight.
    with_noise
        Draw from the likelihood, as Algorithm 1 says; otherwise return its mean, which is what one looks at.
    prior
        What ``model.prior_distribution()`` returned, to compute it once for many calls.
    generator
        For all draws.
    """
    prior = model.prior_distribution() if prior is None else prior
    if component is None:
        top = prior.sample((count,), generator=generator)
    else:
        if not isinstance(prior, NormalMixture):
            raise ValueError(f"{type(model.prior).__name__} has no components to choose from; leave component out")
        if not 0 <= component < len(prior.means):
            raise ValueError(f"component must be between 0 and {len(prior.means) - 1}, not {component}")
        top = prior.component(component).sample((count,), generator=generator)

    def decode(rows: Tensor) -> Tensor:
        output = model.decode(rows, generator=generator)
        return model.likelihood.sample(output, generator=generator) if with_noise else model.likelihood.mean(output)

    return model.unflatten(_in_chunks(decode, top))


Way = Literal["posterior", "prior"]
_AROUND_EXAMPLES = PseudocoresetPrior | JointPseudocoresetPrior | ExemplarPrior
"""Priors with one variance around the latent mean of an example."""


def default_way(model: LatentModel) -> Way:
    """Return how to generate around an example: from the prior's component around it, where the prior has such."""
    return "prior" if isinstance(model.prior, _AROUND_EXAMPLES) else "posterior"


@torch.no_grad()
def generate_like(model: LatentModel, x: Tensor, way: Way, *, generator: Randomness = None) -> Tensor:
    """Return one new example like each of ``x`` (B, *data_shape), as the mean of its likelihood: 'more like this'.

    Parameters
    ----------
    model, x
        The model and the examples.
    way
        ``posterior`` draws the latents from q(z | x), each example with its own variance; ``prior`` from the prior's
        component around the example, N(mu(x), sigma^2), as if it were an exemplar.
    generator
        For the draws.
    """
    if way == "prior" and not isinstance(model.prior, _AROUND_EXAMPLES):
        raise ValueError(f"{type(model.prior).__name__} has no components around examples; draw from the posterior")

    def made(rows: Tensor) -> Tensor:
        if way == "posterior":
            return model.likelihood.mean(model.posterior(rows).draw(1, generator=generator).output[0])
        means = model.encode(rows).mean
        around = DiagonalNormal(means, cast("Tensor", model.prior.log_variance).expand_as(means))
        return model.likelihood.mean(model.decode(around.sample(generator=generator), generator=generator))

    return model.unflatten(_in_chunks(made, x))


def heaviest_components(prior: Distribution, count: int) -> tuple[int, ...]:
    """Return the numbers of the components with the largest weights, the heaviest first."""
    if count == 0:
        return ()
    if not isinstance(prior, NormalMixture):
        raise ValueError("this prior has no components to choose from")
    order = torch.argsort(prior.log_weights, descending=True, stable=True)
    return tuple(order[:count].tolist())


@torch.no_grad()
def embed(model: LatentModel, x: Tensor) -> Tensor:
    """Return the latent means (B, D) of examples (B, *data_shape); of the top level, where there are two."""
    return _in_chunks(lambda rows: model.encode(rows).mean, x)


@torch.no_grad()
def reconstruct(model: LatentModel, x: Tensor) -> Tensor:
    """Return what the model makes of examples (B, *data_shape), with all latents at their means."""
    return model.unflatten(_in_chunks(lambda rows: model.likelihood.mean(model.posterior(rows).mean_output()), x))


@torch.no_grad()
def interpolate(model: LatentModel, start: Tensor, end: Tensor, num_steps: int) -> Tensor:
    """Return (num_steps, *data_shape) along a straight line between two examples' latent means, ends included."""
    if num_steps < 2:
        raise ValueError(f"num_steps must be at least 2, to hold both ends, not {num_steps}")
    first, last = embed(model, torch.stack([start, end]))
    share = torch.linspace(0, 1, num_steps, dtype=first.dtype, device=first.device)[:, None]
    output = model.decode(torch.lerp(first, last, share), at_mean=True)
    return model.unflatten(model.likelihood.mean(output))


def _in_chunks(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply a function to rows, a bounded number at a time."""
    return torch.cat([function(chunk) for chunk in torch.split(rows, _CHUNK_ROWS)])
