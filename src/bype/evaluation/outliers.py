"""How unlikely each example is, by several scores, and which columns of a table made it so."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bype.console import Report, Stage, no_stage
from bype.data.augment import Augmentation
from bype.data.examples import StoreSource, spread_rows
from bype.data.origins import name_examples
from bype.data.store import Split
from bype.distributions import Distribution
from bype.evaluation.scores import ROWS_AT_ONCE, log_likelihood_by_shared_draws, log_normaliser
from bype.factors import LinearGaussian
from bype.models.base import LatentModel
from bype.models.linear_start import fit_linear
from bype.run.opened import MissingDataError, TrainedRun, own_store, require_run

_NAMED_COLUMNS = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ScoreOptions:
    """How to score.

    Parameters
    ----------
    num_samples
        Draws for each example's log p(x); every example gets the same ones.
    num_references
        Training examples, evenly spread, that percentiles compare with; all of them if there are fewer.
    num_examples
        How many examples of the split to score, evenly spread; ``None`` for all.
    """

    num_samples: int = 100
    num_references: int = 2000
    num_examples: int | None = None

    def __post_init__(self) -> None:
        """Check each field."""
        counts = self.num_samples, self.num_references, 1 if self.num_examples is None else self.num_examples
        if min(counts) < 1:
            raise ValueError("samples, references and examples must be at least one each")


@dataclass(frozen=True)
class ExampleScores:
    """Scores of examples. Unusual ones have small scores, but ``log_ratio`` may be large.

    All but the percentile are in nats.

    No score is right for all data: a likelihood alone gives some outliers a higher value than the data themselves, for
    instance plain images.

    Examples
    --------
    >>> import numpy as np
    >>> two = np.array([-9.0, -3.0])
    >>> found = ExampleScores(np.arange(2), two, np.array([1.0, 40.0]), two, two, two, "density", 100, 2000)
    >>> found.least_likely(1).tolist()
    [0]
    """

    rows: NDArray[np.int64]
    """(n,), the row numbers in the split."""
    log_likelihood: Floats
    """(n,), log p(x) by importance weighting: in the units of a table, and of pixels in [0, 1] for images."""
    percentile: Floats | None
    """(n,), the percentage of the training examples that are less likely. The model has seen these, so new
    examples have smaller percentiles than training examples, and much smaller ones if the model is overfitted. ``None``
    if the run came without its training data."""
    reconstruction: Floats
    """(n,), log p(x | z) at the posterior mean, in the units of ``log_likelihood``."""
    latent_density: Floats
    """(n,), log p(z) at the posterior mean; of the top level, if there are two."""
    log_ratio: Floats | None
    """(n,), log p(x) minus that of the linear model with as many latents, fitted to the same training examples,
    with the same flips and shifts.
    ``None`` if the run came without its training data."""
    scale: str
    """What exp(log p(x)) is: ``density``, or ``cross-entropy`` for a Bernoulli likelihood."""
    num_samples: int
    num_references: int
    columns: NDArray[np.int64] | None = None
    """(n, 3), for rows of a table: the columns that made each unlikely, the worst first."""
    column_excess: Floats | None = None
    """(n, 3), by how many nats each of these is less likely than the column is on average over training examples."""
    sources: NDArray[Any] | None = None
    """(n,), where each example came from, if the store knows: names of image files, or rows of the table or array."""

    def least_likely(self, count: int) -> NDArray[np.int64]:
        """Return the places of the least likely examples, the least likely first."""
        return np.argsort(self.log_likelihood, kind="stable")[:count]

    def name_of(self, place: int) -> str:
        """Return what a user may call an example: its file, or its row in the source; else its row in the split."""
        part = slice(place, place + 1)
        return name_examples(self.rows[part], None if self.sources is None else self.sources[part])[0]

    def as_columns(self, names: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
        """Return the scores as columns of a table; ``names`` are those of the features."""
        found: dict[str, NDArray[Any]] = {
            "row": self.rows,
            **({} if self.sources is None else {"source": self.sources}),
            "log_likelihood": self.log_likelihood,
            **({} if self.percentile is None else {"percentile": self.percentile}),
            "reconstruction": self.reconstruction,
            "latent_density": self.latent_density,
            **({} if self.log_ratio is None else {"log_ratio": self.log_ratio}),
        }
        if self.columns is not None and self.column_excess is not None:
            for k in range(self.columns.shape[1]):
                place = self.columns[:, k]
                found[f"column_{k + 1}"] = np.array(names)[place] if names else place
                found[f"excess_{k + 1}"] = self.column_excess[:, k]
        return found


def score_examples(
    run: TrainedRun,
    split_name: str | None = None,
    *,
    data: Path | str | None = None,
    options: ScoreOptions | None = None,
    stage: Stage = no_stage,
) -> ExampleScores:
    """Score the examples of a split, to find the unusual ones.

    Every example gets the same draws, so that its scores do not depend on the examples beside it.

    Parameters
    ----------
    run
        The run. Percentiles, the log ratio, and the columns that made a row unlikely need the data that it was trained
        on. A run that came without them, such as a model that was shared, gives the other scores. So does one whose
        data are gone.
    split_name
        The split of the store; test, or else validation, or else train, if left out.
    data
        A store to use instead of the one that the run was trained on.
    options
        How to score.
    stage
        Called with the title of each stage.
    """
    require_run(run)
    options = options or ScoreOptions()
    store = run.store(data)
    split = store.split(split_name or store.default_split)
    rows = spread_rows(len(split), options.num_examples or len(split))
    sources = split.origins(rows)
    train = linear = references = None
    with suppress(MissingDataError):
        train = own_store(run.folder, run.data, data).split("train")
    if train is not None:
        with stage("fitting the linear model"):
            source, config = run.model.scaled(StoreSource(train)), run.config
            augmentation = Augmentation(config.flips, config.shifts)  # the run learns from flips and shifts too
            linear = fit_linear(source, run.data.shape, config.latent_dim, config.seed, augmentation)
    scorer = _Scorer(run.model, linear, options.num_samples)
    if train is not None:
        with stage("scoring training examples") as report:
            references = scorer.score(
                train, spread_rows(len(train), options.num_references), True, keep=lambda terms: terms, report=report
            )
    keep = None
    if references is not None and references.kept is not None:
        keep = partial(_worst_columns, average=references.kept.mean(0))
    with stage("scoring examples") as report:
        found = scorer.score(split, rows, run.is_training_split(split), keep, report)
    columns, excess = (None, None) if found.kept is None else np.hsplit(found.kept, 2)
    return ExampleScores(
        rows=rows,
        log_likelihood=found.log_likelihood,
        percentile=None if references is None else percentiles(found.log_likelihood, references.log_likelihood),
        reconstruction=found.reconstruction,
        latent_density=found.latent_density,
        log_ratio=None if linear is None else _differences(found.log_likelihood, found.linear),
        scale=run.model.likelihood.value_kind if run.model.likelihood.log_normaliser is None else "density",
        num_samples=options.num_samples,
        num_references=0 if references is None else len(references.log_likelihood),
        columns=None if columns is None else columns.astype(np.int64),
        column_excess=excess,
        sources=sources,
    )


def _differences(first: Floats, second: Floats) -> Floats:
    """Subtract logarithms; where both are minus infinity, nothing is known of the ratio."""
    with np.errstate(invalid="ignore"):
        return first - second


def percentiles(values: Floats, references: Floats) -> Floats:
    """Return for each value the percentage of the references that are smaller; a tie counts half."""
    ordered = np.sort(references)
    below, upto = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return 50 * (below + upto) / len(ordered)


def worst_columns(terms: Floats, average: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return the columns (n, 3) whose terms (n, d) lie furthest below their averages (d,), and how far they do."""
    excess = average - terms
    order = np.argsort(-excess, axis=1, kind="stable")[:, :_NAMED_COLUMNS]
    return order, np.take_along_axis(excess, order, axis=1)


def _worst_columns(terms: Floats, average: Floats) -> Floats:
    """Return what :func:`worst_columns` returns, side by side."""
    return np.hstack(worst_columns(terms, average))


@torch.no_grad()
def column_terms(model: LatentModel, x: Tensor) -> Tensor:
    """Return what each column of rows (B, d), in the model's units, adds to log p(x | z) at the posterior mean.

    It is the column's log p(x | z) minus what that would be if the column had the value that the model expects: in
    nats (B, d), and the smaller, the less likely the value.
    """
    output = model.posterior(x).mean_output().double()
    at_expected = model.likelihood.log_probs(model.likelihood.mean(output), output)
    return model.likelihood.log_probs(x.double(), output) - at_expected


@dataclass(frozen=True)
class _Scores:
    log_likelihood: Floats
    reconstruction: Floats
    latent_density: Floats
    linear: Floats
    kept: Floats | None
    """Of the terms of columns, what the caller wanted."""


class _Scorer:
    """Scores rows of a split, a few at a time; only their scores are kept."""

    def __init__(self, model: LatentModel, linear: LinearGaussian | None, num_samples: int) -> None:
        self._model, self._linear, self._num_samples = model, linear, num_samples
        self._prior = model.prior_distribution()
        self._to_data_units = 0.0 if model.scaling is None else float(model.scaling.log_density)
        self._normaliser = log_normaliser(model)

    def score(
        self,
        split: Split,
        rows: NDArray[np.int64],
        is_training: bool,
        keep: Callable[[Floats], Floats] | None,
        report: Report,
    ) -> _Scores:
        """Return the scores of some rows.

        Training examples are left out of a prior that is made of them. ``keep`` makes what is to be kept of the terms
        (n, d) of the columns of a table; without it, they are not worked out.
        """
        source = StoreSource(split, self._model.device)
        parts: list[list[Floats]] = []
        kept: list[Floats] = []
        for first in range(0, len(rows), ROWS_AT_ONCE):
            chosen = rows[first : first + ROWS_AT_ONCE]
            prior = self._prior
            if is_training:
                prior = self._model.prior.leave_out(prior, torch.from_numpy(chosen))
            x = source.read(chosen)
            parts.append([values.double().cpu().numpy() for values in self._chunk(x, prior)])
            if x.ndim == 2 and keep is not None:
                kept.append(keep(column_terms(self._model, self._model.to_model_units(x)).cpu().numpy()))
            report(first + len(chosen), len(rows))
        log_likelihood, reconstruction, latent, linear = (
            np.nan_to_num(np.concatenate(part), nan=-np.inf, posinf=np.inf, neginf=-np.inf)  # too far to compute
            for part in zip(*parts, strict=True)
        )
        return _Scores(log_likelihood, reconstruction, latent, linear, np.concatenate(kept) if kept else None)

    @torch.no_grad()
    def _chunk(self, x: Tensor, prior: Distribution) -> list[Tensor]:
        model = self._model
        log_likelihood = log_likelihood_by_shared_draws(model, x, self._num_samples, prior)
        scaled = model.to_model_units(x)
        posterior = model.posterior(scaled)
        at_mean = model.likelihood.log_prob(model.flatten(scaled), posterior.mean_output()).double()
        return [
            log_likelihood,
            at_mean + self._to_data_units + self._normaliser,
            prior.log_prob(posterior.top.mean),
            self._of_linear_model(model.flatten(scaled).cpu()),
        ]

    def _of_linear_model(self, rows: Tensor) -> Tensor:
        if self._linear is None:
            return torch.full((len(rows),), torch.nan)
        return self._linear.log_prob(rows) + self._to_data_units
