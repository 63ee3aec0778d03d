"""Choosing a config that suits the data: what ``bype fit`` and the estimator begin with."""

import dataclasses
import math
from typing import Literal

import torch

from bype.data.augment import Augmentation
from bype.data.examples import StoreSource, spread_rows
from bype.data.store import Store
from bype.models.linear_start import fit_linear
from bype.run.config import ConfigError, TrainingConfig

MAX_COMPONENTS = 500
_CHEAP_VALIDATION = 2000
_MANY_EXAMPLES = 20_000
_DROPOUT = 0.2
"""The dropout for data of few images. Tables get none, since it makes them worse: their likelihood is robust itself."""
_EXAMPLES_A_LATENT = 5
"""With nearly as many latents as examples, a linear model would fit them exactly and leave no noise."""
_SHIFTS = (1, 2, 4, 8)
"""In pixels, to try one after the other while they help."""


def length_of(minutes: float) -> str:
    """Return minutes as the length of a training, in whole seconds."""
    return f"{max(1, round(60 * minutes))} seconds"


def suitable_config(
    store: Store,
    length: str,
    seed: int,
    components: int = MAX_COMPONENTS,
    latent_dim: int | None = None,
    points_start: Literal["examples", "noise"] = "examples",
) -> TrainingConfig:
    """Choose settings that suit the data and the length.

    Parameters
    ----------
    store
        The data. Flips and shifts of images are chosen by its validation split.
    length
        Of the training, such as '150 seconds' or '100 epochs'.
    seed
        Of the run.
    components
        At most this many pseudo-points; a quarter of the training examples, if that is fewer.
    latent_dim
        The dimensions of the latent space. If left out: 40, but at most half the columns of a table and a fifth of
        the training examples.
    points_start
        What pseudo-points start as. With noise, no class has points of its own.
    """
    require_normal(store)
    num_train = store.manifest.splits["train"].num_rows
    shape = store.manifest.shape
    is_image = len(shape) == 3
    num_validation = store.manifest.splits["validation"].num_rows if "validation" in store.manifest.splits else 0
    every = "4 percent" if num_validation <= _CHEAP_VALIDATION else "10 percent"
    if latent_dim is not None and latent_dim > math.prod(shape):
        raise ConfigError(f"an example has {math.prod(shape)} numbers; choose a latent_dim of at most so many")
    usual_dim = max(1, min(40, num_train // _EXAMPLES_A_LATENT, 40 if is_image else shape[0] // 2))
    num_points = max(min(2, components), min(components, num_train // 4))
    config = TrainingConfig(
        network="dense",
        likelihood="learned-gaussian" if is_image else "robust-gaussian",
        components=num_points,
        points_start=points_start,
        labelled=points_start == "examples" and 2 <= len(store.manifest.classes) <= num_points // 2,
        batch_size=min(100, max(8, num_train // 5)),
        latent_dim=usual_dim if latent_dim is None else latent_dim,
        learning_rate=2e-3,
        dropout=_DROPOUT if is_image and num_train < _MANY_EXAMPLES else 0.0,
        decay=True,
        length=length,
        warm_up="0 epochs",
        patience="0 epochs",
        validate_every=every,
        checkpoint_every=every,
        seed=seed,
    )
    return _with_augmentation(config, store) if is_image else config


def require_normal(store: Store) -> None:
    """Refuse a binarised store: the settings are for normal likelihoods, and bits need a Bernoulli."""
    if store.manifest.dtype == "binarised":
        raise ConfigError(
            f"the images of {store.folder} are drawn black and white, which `bype fit` and the estimator do not model; "
            f"use bype train --likelihood bernoulli, or prepare the store without --binarise"
        )


def _with_augmentation(config: TrainingConfig, store: Store) -> TrainingConfig:
    """Choose shifts, then flips: those with which PCA makes the validation images the most likely."""
    if "validation" not in store.manifest.splits:
        return config
    train, validation = StoreSource(store.split("train")), StoreSource(store.split("validation"))
    held_out = validation.read(spread_rows(len(validation), _CHEAP_VALIDATION)).flatten(1)

    def score(augmentation: Augmentation) -> float:
        linear = fit_linear(train, store.manifest.shape, config.latent_dim, config.seed, augmentation)
        return float(linear.log_prob(held_out).mean())

    with torch.no_grad():
        best = Augmentation()
        highest = score(best)
        for shifts in (shifts for shifts in _SHIFTS if shifts < min(store.manifest.shape[1:])):
            shifted = Augmentation(shifts=shifts)
            if (found := score(shifted)) <= highest:
                break
            best, highest = shifted, found
        flipped = dataclasses.replace(best, flips=True)
        if score(flipped) > highest:
            best = flipped
    return dataclasses.replace(config, flips=best.flips, shifts=best.shifts)
