"""The linear model that a run is compared with: probabilistic PCA for images, factor analysis for tables."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bype.data.augment import Augmentation
from bype.data.examples import StoreSource
from bype.data.scaling import Batches, mean_and_variance
from bype.data.store import Split
from bype.evaluation.aggregate import estimate
from bype.evaluation.generation import reconstruct
from bype.evaluation.records import Baseline
from bype.evaluation.representation import knn_accuracy
from bype.factors import LinearGaussian, factor_analysis, probabilistic_pca
from bype.models.linear_start import COLUMN_FLOOR, PIXEL_FLOOR, linear_batches
from bype.run.metrics import read_metrics
from bype.run.opened import TrainedRun

_MOST_EXAMPLES = 50_000
_CHUNK = 500

SplitRows = tuple[Split, NDArray[np.int64]]
"""Some rows of a split."""


@torch.no_grad()
def measure_baseline(
    run: TrainedRun,
    train: Split,
    scored: SplitRows,
    own_scores: Tensor | None = None,
    neighbours: tuple[SplitRows, list[SplitRows]] | None = None,
) -> Baseline:
    """Fit the linear model with as many latents as the run to its training examples, and score it on rows of a split.

    The variance of its noise is the one that fits best: one for all pixels, or one for each column. If the run
    flips or shifts images, the linear model is fitted with and without that, and the better one is taken.

    Parameters
    ----------
    run
        The run to compare with.
    train
        The examples that the run was trained on.
    scored
        The examples on which the run was scored.
    own_scores
        Their log p(x) by the run, up to a constant, for the error of the difference.
    neighbours
        The examples that were classified by their nearest neighbours, and those among which these were looked for.
    """
    model, is_image = run.model, len(run.data.shape) == 3
    source = model.scaled(StoreSource(train, model.device))
    batches = linear_batches(source, run.config.seed, most=_MOST_EXAMPLES)
    components = probabilistic_pca(batches, run.config.latent_dim, PIXEL_FLOOR)
    linear = components if is_image else factor_analysis(batches, run.config.latent_dim, COLUMN_FLOOR)
    augmentation = Augmentation(run.config.flips, run.config.shifts)
    if augmentation.changes_anything:  # the run learns from flips and shifts too
        changed = linear_batches(source, run.config.seed, augmentation, most=_MOST_EXAMPLES)
        other = probabilistic_pca(changed, run.config.latent_dim, PIXEL_FLOOR)
        linear = max(linear, other, key=lambda candidate: float(_scores(run, candidate, scored).mean()))
    log_density = 0.0 if model.scaling is None else float(model.scaling.log_density)
    scores = _scores(run, linear, scored) + log_density
    errors, own_errors = _squared_errors(run, linear, scored)
    if not components.loadings.shape[1]:  # of a single column, nothing is left to project on
        neighbours = None
    return Baseline(
        kind="probabilistic PCA" if is_image else "factor analysis",
        num_latents=linear.loadings.shape[1],
        num_examples=len(scores),
        negative_log_likelihood=estimate(-scores),
        error_of_difference=None if own_scores is None else estimate(scores - own_scores).error,
        without_latents=-float(_scores(run, _without_latents(batches, is_image), scored).mean()) - log_density,
        squared_error=float(errors.mean()),
        own_squared_error=float(own_errors.mean()),
        knn_accuracy=None if neighbours is None else _knn_accuracy(run, components, *neighbours),
        gain_in_training=_gain_in_training(run),
    )


def _chunks(run: TrainedRun, rows: SplitRows) -> Iterator[Tensor]:
    """Read rows of a split, a few at a time: the split may not fit into memory."""
    source = StoreSource(rows[0], run.model.device)
    for chunk in np.array_split(rows[1], -(-len(rows[1]) // _CHUNK)):
        yield source.read(chunk)


def _in_model_units(run: TrainedRun, x: Tensor) -> Tensor:
    return run.model.to_model_units(x).flatten(1).cpu()


def _scores(run: TrainedRun, linear: LinearGaussian, rows: SplitRows) -> Tensor:
    return torch.cat([linear.log_prob(_in_model_units(run, x)) for x in _chunks(run, rows)])


def _squared_errors(run: TrainedRun, linear: LinearGaussian, rows: SplitRows) -> tuple[Tensor, Tensor]:
    """Return the squared errors of reconstructions by the linear model and by the run, for each row."""
    found = []
    for x in _chunks(run, rows):
        scaled = _in_model_units(run, x)
        made = linear.reconstruct(scaled), _in_model_units(run, reconstruct(run.model, x))
        found.append(torch.stack([(each - scaled).double().square().sum(1) for each in made]))
    linear_errors, own_errors = torch.cat(found, 1)
    return linear_errors, own_errors


def _knn_accuracy(
    run: TrainedRun, components: LinearGaussian, queries: SplitRows, references: list[SplitRows]
) -> dict[str, float]:
    """Return the accuracy of the nearest neighbours on principal components."""
    directions = torch.nn.functional.normalize(components.loadings, dim=0)

    def project(rows: SplitRows) -> NDArray[np.float64]:
        source = run.model.scaled(StoreSource(rows[0], run.model.device))
        chunks = (source.take(chunk).flatten(1).cpu() for chunk in torch.split(torch.from_numpy(rows[1]), _CHUNK))
        return np.concatenate([((x.double() - components.center) @ directions).numpy() for x in chunks])

    known = np.concatenate([split.labels(rows) for split, rows in references])
    found = np.concatenate([project(rows) for rows in references])
    return knn_accuracy(found, known, project(queries), queries[0].labels(queries[1]))


def _without_latents(batches: Batches, is_image: bool) -> LinearGaussian:
    center, variance, _ = mean_and_variance(batches)
    noise, floor = (variance.mean().expand_as(variance), PIXEL_FLOOR) if is_image else (variance, COLUMN_FLOOR)
    return LinearGaussian(center, torch.zeros(len(center), 0, dtype=center.dtype), noise.clamp_min(floor))


def _gain_in_training(run: TrainedRun) -> float | None:
    lines = (line for line in read_metrics(run.folder) if "validation" in line.parts)
    found = {line.step: line.parts["validation"].get("negative_elbo") for line in lines}
    first, kept = found.get(0), found.get(run.step)
    return None if first is None or kept is None else first - kept
