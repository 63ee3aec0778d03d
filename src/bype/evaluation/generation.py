"""New examples, reconstructions, embeddings and interpolations from a model."""

from collections.abc import Callable

import torch
from torch import Tensor

from bype.distributions import Distribution, NormalMixture, Randomness
from bype.models.base import LatentModel

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
