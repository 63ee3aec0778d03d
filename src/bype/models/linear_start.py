"""The start of a model as a linear one: probabilistic PCA for images, factor analysis for tables."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from bype.data.augment import Augmentation
from bype.data.examples import spread_rows
from bype.data.scaling import Batches
from bype.factors import LinearGaussian, factor_analysis, probabilistic_pca
from bype.likelihoods import Likelihood
from bype.models.base import LatentModel
from bype.models.vae import VAE
from bype.networks import DenseDecoder, DenseEncoder
from bype.priors import ExampleSource
from bype.randomness import generator_for

PIXEL_FLOOR = 1e-6
COLUMN_FLOOR = 1e-4
"""The smallest variances of noise, of a pixel and of a scaled column: a hundredth of its spread, squared."""
_ROWS = 500
_MOST_EXAMPLES = 20_000
"""More examples hardly change a linear model."""
_ENOUGH_EXAMPLES, _MOST_COPIES = 4_000, 8
"""Fewer examples are repeated; each repetition is flipped and shifted in another way."""
_SCORED_EXAMPLES = 1_000


def linear_batches(
    source: ExampleSource, seed: int, augmentation: Augmentation | None = None, most: int = _MOST_EXAMPLES
) -> Batches:
    """Return examples as rows (B, d), flipped and shifted, the same in each pass."""
    rows = torch.from_numpy(spread_rows(len(source), most))
    is_changed = augmentation is not None and augmentation.changes_anything
    copies = min(_MOST_COPIES, math.ceil(_ENOUGH_EXAMPLES / len(rows))) if is_changed else 1

    def batches() -> Iterator[Tensor]:
        for copy in range(copies):
            for number, chunk in enumerate(torch.split(rows, _ROWS)):
                x = source.take(chunk).cpu()
                if augmentation is not None and is_changed:
                    generator = generator_for(seed, "start augmentation", copy, number)
                    x = augmentation(x, torch.rand(len(x), 3, generator=generator))
                yield x.flatten(1)

    return batches


def fit_linear(
    source: ExampleSource,
    shape: tuple[int, ...],
    latent_dim: int,
    seed: int,
    augmentation: Augmentation | None = None,
    likelihood: Likelihood | None = None,
) -> LinearGaussian:
    """Fit a linear model with normal noise: one variance for all pixels, or one for each column of a table.

    Parameters
    ----------
    source
        Training examples in the model's units.
    shape
        Of one example.
    latent_dim
        The number of latents.
    seed
        Of the run.
    augmentation
        Of images.
    likelihood
        Whose noise the linear model has: columns have one variance, if they do there, and a fixed variance is kept.
    """
    batches = linear_batches(source, seed, augmentation)
    if len(shape) == 3 or (likelihood is not None and likelihood.has_one_variance):
        fixed = None if likelihood is None else likelihood.fixed_variance
        return probabilistic_pca(batches, latent_dim, PIXEL_FLOOR, fixed)
    return factor_analysis(batches, latent_dim, COLUMN_FLOOR)


@torch.no_grad()
def start_as_linear(
    model: LatentModel,
    train: ExampleSource,
    held_out: ExampleSource,
    seed: int,
    augmentation: Augmentation | None = None,
) -> None:
    """Begin as a linear model that was fitted to the training examples.

    Parameters
    ----------
    model
        With dense networks.
    train
        The training examples, in the units of the data.
    held_out
        Examples on which the variance of the prior's components is chosen; ``train`` itself, if there are no others.
    seed
        Of the run.
    augmentation
        Of images.
    """
    encoder, decoder = (model.encoder, model.decoder) if isinstance(model, VAE) else (None, None)
    if not (isinstance(encoder, DenseEncoder) and isinstance(decoder, DenseDecoder)):
        raise ValueError("only a VAE with dense networks can begin as a linear model")
    source = model.scaled(train)
    linear = fit_linear(source, model.data_shape, len(encoder.log_variance), seed, augmentation, model.likelihood)
    encoder.start(linear, float(linear.variance.mean().sqrt().clamp_min(1e-6)))
    decoder.start(linear)
    model.likelihood.start(linear.noise)
    rows = torch.from_numpy(spread_rows(len(held_out), _SCORED_EXAMPLES))
    if held_out is train:
        rows = _without_points(model, source, rows)
    posterior = model.encode_rows(held_out, rows)
    latents = posterior.sample(generator=generator_for(seed, "start of the prior"))
    center = encoder.center.reshape(model.data_shape)
    model.prior.start(model.encode, latents, center, rows if held_out is train else None)


def _without_points(model: LatentModel, source: ExampleSource, rows: Tensor) -> Tensor:
    """Leave out examples that points of the prior start at: they would find themselves, and choose a tiny variance."""
    points = model.prior.own_points()
    if points is None:
        return rows
    examples, own = source.take(rows).to(points.points).flatten(1), points.points.flatten(1)
    # The fast distances tell which point is the nearest, but not whether it is the same: they lose too many digits.
    nearest = own[torch.cdist(examples, own).argmin(1)]
    is_point = ((examples - nearest).norm(dim=1) < 1e-4 * examples.std()).to(rows.device)
    return rows if is_point.all() else rows[~is_point]
