"""The simplest model that does the same job: probabilistic PCA for images, factor analysis for tables."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bype.data.examples import StoreSource, spread_rows
from bype.data.scaling import Batches, mean_and_variance
from bype.data.store import Split, Store
from bype.evaluation.generation import reconstruct
from bype.evaluation.records import Baseline, Estimate
from bype.evaluation.representation import knn_accuracy
from bype.factors import LinearGaussian, factor_analysis, probabilistic_pca
from bype.models.linear_start import COLUMN_FLOOR, PIXEL_FLOOR, linear_batches
from bype.run.metrics import read_metrics
from bype.run.opened import TrainedRun

_MOST_EXAMPLES = 50_000
_MOST_REFERENCES = 20_000


@torch.no_grad()
def measure_baseline(run: TrainedRun, store: Store, split: Split, rows: NDArray[np.int64]) -> Baseline:
    """Fit the linear model with as many latents to the training examples, and score it on rows of a split.

    The variance of its noise is the one that fits best: one for all pixels, or one for each column.

    Parameters
    ----------
    run
        The run to compare with.
    store
        Holds the split, and the training examples.
    split, rows
        The examples on which the run was scored.
    """
    model, is_image = run.model, len(run.data.shape) == 3
    train = model.scaled(StoreSource(store.split("train")))
    batches = linear_batches(train, run.config.seed, most=_MOST_EXAMPLES)
    components = probabilistic_pca(batches, run.config.latent_dim, PIXEL_FLOOR)
    linear = components if is_image else factor_analysis(batches, run.config.latent_dim, COLUMN_FLOOR)
    x = StoreSource(split).read(rows)
    scaled = model.to_model_units(x).flatten(1)
    log_density = 0.0 if model.scaling is None else float(model.scaling.log_density)
    scores = linear.log_prob(scaled) + log_density
    own = model.to_model_units(reconstruct(model, x)).flatten(1)
    accuracy = None
    if split.has_labels and store.split("train").has_labels:
        known = spread_rows(len(train), _MOST_REFERENCES)
        directions = torch.nn.functional.normalize(components.loadings, dim=0)

        def project(examples: Tensor) -> NDArray[np.float64]:
            return ((examples.double() - components.center) @ directions).numpy()

        chunks = linear_batches(train, run.config.seed, most=_MOST_REFERENCES)()  # the same rows, few in memory at once
        references = np.concatenate([project(chunk) for chunk in chunks])
        labels = store.split("train").labels(known)
        accuracy = knn_accuracy(references, labels, project(scaled), split.labels(rows))
    return Baseline(
        kind="probabilistic PCA" if is_image else "factor analysis",
        num_latents=linear.loadings.shape[1],
        num_examples=len(rows),
        negative_log_likelihood=Estimate(-float(scores.mean()), _standard_error(scores)),
        without_latents=_without_latents(batches, scaled, is_image) - log_density,
        squared_error=float((linear.reconstruct(scaled) - scaled).square().sum(1).mean()),
        own_squared_error=float((own - scaled).square().sum(1).mean()),
        knn_accuracy=accuracy,
        gain_in_training=_gain_in_training(run),
    )


def _without_latents(batches: Batches, x: Tensor, is_image: bool) -> float:
    center, variance, _ = mean_and_variance(batches)
    noise = variance.mean().expand_as(variance) if is_image else variance
    nothing = LinearGaussian(center, torch.zeros(len(center), 0, dtype=center.dtype), noise.clamp_min(COLUMN_FLOOR))
    return -float(nothing.log_prob(x).mean())


def _gain_in_training(run: TrainedRun) -> float | None:
    found = {line.step: line.parts.get("validation", {}).get("negative_elbo") for line in read_metrics(run.folder)}
    first, kept = found.get(0), found.get(run.step)
    return None if first is None or kept is None else first - kept


def _standard_error(values: Tensor) -> float:
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0
