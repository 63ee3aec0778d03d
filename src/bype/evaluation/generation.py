"""New examples, reconstructions, embeddings and interpolations from a model."""

from collections.abc import Callable
from numbers import Integral
from typing import Literal, get_args

import torch
from torch import Tensor

from bype.distributions import Distribution
from bype.mixtures import NormalMixture
from bype.models.base import LatentModel
from bype.priors.base import rows_at_once
from bype.randomness import Randomness


@torch.no_grad()
def sample(
    model: LatentModel,
    count: int,
    *,
    component: int | None = None,
    label: int | None = None,
    with_noise: bool | None = None,
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
        Draw all from this component of the prior, for instance from one pseudo-point; otherwise draw each from a
        component chosen by weight.
    label
        Draw from the components of this class, the place of its name in ``run.data.classes``; only pseudo-points with
        labels have these.
    with_noise
        Draw from the likelihood, as in Algorithm 1, or return its mean. ``None`` draws rows of a table, whose columns
        would vary too little without it, and takes the mean of images, which looks better.
    prior
        The result of ``model.prior_distribution()``, to compute it once for many calls.
    generator
        Random numbers for all draws.
    """
    _require_model(model)
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    prior = model.prior_distribution() if prior is None else prior
    if component is not None and label is not None:
        raise ValueError("choose a component or a label, not both")
    if label is not None and not isinstance(label, Integral):
        raise ValueError(f"label must be the number of a class, its place in the run's data.classes, not {label!r}")
    if label is not None:
        prior = model.prior.given_label(prior, label)
    if component is None:
        top = prior.sample((count,), generator=generator)
    else:
        if not isinstance(prior, NormalMixture):
            raise ValueError(f"{type(model.prior).__name__} has no components to choose from; leave component out")
        if not isinstance(component, Integral) or not 0 <= component < len(prior.means):
            raise ValueError(f"component must be between 0 and {len(prior.means) - 1}, not {component}")
        top = prior.component(component).sample((count,), generator=generator)

    def decode(rows: Tensor) -> Tensor:
        return _observed(model, model.decode(rows, generator=generator), with_noise, generator)

    return model.to_data_units(model.unflatten(_in_chunks(model, decode, top)))


Way = Literal["posterior", "prior"]


def default_way(model: LatentModel) -> Way:
    """Return how to generate around an example: from the prior's component around it, if the prior has these."""
    no_means = torch.empty(0, 0, device=model.device)
    return "posterior" if model.prior.around(no_means) is None else "prior"


@torch.no_grad()
def generate_like(model: LatentModel, x: Tensor, way: Way, *, generator: Randomness = None) -> Tensor:
    """Return one new example like each of ``x`` (B, *data_shape): a draw for tables, a mean image for images.

    Parameters
    ----------
    model, x
        The model and the examples.
    way
        ``posterior`` draws the latents from q(z | x), each example with its own variance; ``prior`` from the prior's
        component around the example, N(mu(x), sigma^2), as if it were an exemplar.
    generator
        Random numbers for the draws.
    """
    if way not in get_args(Way):
        raise ValueError(f"way must be one of {', '.join(get_args(Way))}, not {way!r}")

    def made(rows: Tensor) -> Tensor:
        if way == "posterior":
            return _observed(model, model.posterior(rows).draw(1, generator=generator).output[0], None, generator)
        around = model.prior.around(model.encode(rows).mean)
        if around is None:
            raise ValueError(f"{type(model.prior).__name__} has no components around examples; draw from the posterior")
        output = model.decode(around.sample(generator=generator), generator=generator)
        return _observed(model, output, None, generator)

    return model.to_data_units(model.unflatten(_in_chunks(model, made, model.to_model_units(model.as_examples(x)))))


def _observed(model: LatentModel, output: Tensor, with_noise: bool | None, generator: Randomness) -> Tensor:
    """Return what a user sees of a decoder's output: a draw from the likelihood, or its mean."""
    is_table = len(model.data_shape) == 1
    if is_table if with_noise is None else with_noise:
        return model.likelihood.sample(output, generator=generator)
    return model.likelihood.mean(output)


def heaviest_components(prior: Distribution, count: int) -> tuple[int, ...]:
    """Return the numbers of the components with the largest weights, the heaviest first."""
    if count == 0:
        return ()
    if not isinstance(prior, NormalMixture):
        raise ValueError("this prior has no components to choose from; leave out --heaviest")
    order = torch.argsort(prior.log_weights, descending=True, stable=True)
    return tuple(order[:count].tolist())


@torch.no_grad()
def embed(model: LatentModel, x: Tensor) -> Tensor:
    """Return embeddings (B, D) of examples (B, *data_shape), pixels in [0, 1]: latent means of the top level.

    A model that begins as PCA or factor analysis has latents of equal spread. Its latent means are multiplied by
    ``model.latent_scale``, so that distances between embeddings say how much examples differ.
    """
    _require_model(model)
    return _latent_means(model, x) * model.latent_scale


@torch.no_grad()
def reconstruct(model: LatentModel, x: Tensor) -> Tensor:
    """Return reconstructions of examples (B, *data_shape), pixels in [0, 1], with all latents at their means."""
    _require_model(model)
    rows = model.to_model_units(model.as_examples(x))
    made = _in_chunks(model, lambda chunk: model.likelihood.mean(model.posterior(chunk).mean_output()), rows)
    return model.to_data_units(model.unflatten(made))


@torch.no_grad()
def interpolate(model: LatentModel, start: Tensor, end: Tensor, num_steps: int) -> Tensor:
    """Return (num_steps, *data_shape) along a straight line between two examples' latent means, ends included."""
    _require_model(model)
    if num_steps < 2:
        raise ValueError(f"num_steps must be at least 2, for both ends, not {num_steps}")
    first, last = _latent_means(model, torch.stack([start, end]))
    share = torch.linspace(0, 1, num_steps, dtype=first.dtype, device=first.device)[:, None]
    output = model.decode(torch.lerp(first, last, share), at_mean=True)
    return model.to_data_units(model.unflatten(model.likelihood.mean(output)))


def _require_model(model: object) -> None:
    """Refuse what is no model: a run, or a folder."""
    if not isinstance(model, LatentModel):
        raise TypeError(f"give a model, such as run.model of a bype.TrainedRun, not {type(model).__name__}")


def _latent_means(model: LatentModel, x: Tensor) -> Tensor:
    return _in_chunks(model, lambda rows: model.encode(rows).mean, model.to_model_units(model.as_examples(x)))


def _in_chunks(model: LatentModel, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply a function to examples or latents of a model, a bounded number at a time."""
    return torch.cat([function(chunk) for chunk in torch.split(rows, rows_at_once(model.data_shape))])
