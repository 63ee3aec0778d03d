"""The results of an evaluation as types, and their file ``evaluation.json`` in a run directory.

All values are nats per example, summed over dimensions and averaged over examples, unless a name says otherwise.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bype.data.decode import decode, decode_file
from bype.data.files import MAX_JSON_BYTES, FileError, alone, to_json, write_atomic
from bype.wording import counted

FILE_NAME = "evaluation.json"
_LARGE_BIAS = 0.05
"""Nats: from here on a line warns that an estimate is too high, because large weights are missing."""
_ALIKE = 0.05
"""Nats per example: a smaller difference would be shown as 0.0."""


@dataclass(frozen=True)
class Estimate:
    """A mean over examples and its standard error."""

    value: float
    error: float
    """0 where it is unknown: there is one example only."""


@dataclass(frozen=True)
class Density:
    """The importance-weighted bound on the negative log-likelihood, and the terms of the ELBO."""

    num_images: int
    num_samples: int
    scale: str
    """What the value is: ``unnormalised`` for the paper's squared error, ``density``, ``probability``, or
    ``cross-entropy`` for a Bernoulli likelihood, which is a probability if all pixels are black or white."""
    negative_log_likelihood: Estimate
    """On the likelihood's own scale; smaller is better. The error is over examples."""
    monte_carlo_error: float | None
    """The standard error of the mean that is due to the draws; unknown from a single draw."""
    median_effective_sample_size: float
    smallest_effective_sample_size: float
    normalised: float | None
    """``negative_log_likelihood`` with a density that integrates to one; None if the likelihood has none."""
    bits_per_dimension: float | None
    negative_elbo: Estimate
    negative_reconstruction: Estimate
    kl: dict[str, Estimate]
    """By level of latents."""
    precision: str
    """Of the networks: ``float32`` or ``bfloat16``."""
    precision_difference: float | None
    """How far the lower precision moved the estimate, with the same draws, on the first examples."""
    seconds: float

    def __post_init__(self) -> None:
        sizes = self.smallest_effective_sample_size, self.median_effective_sample_size
        if self.num_images < 1 or self.num_samples < 1 or min(sizes) <= 0:
            raise ValueError(f"{self.num_images} examples, {self.num_samples} draws and effective sizes {sizes}")

    @property
    def has_few_draws(self) -> bool:
        """Whether so few draws count that the value is clearly too high, by the leading term of its bias."""
        if self.num_samples == 1:  # then the effective size says nothing
            return True
        return 0.5 / self.median_effective_sample_size - 0.5 / self.num_samples > _LARGE_BIAS

    @property
    def of_density(self) -> float | None:
        """The negative log-likelihood as that of a density; none for a cross-entropy, which is not one."""
        return self.negative_log_likelihood.value if self.scale == "density" else self.normalised


@dataclass(frozen=True)
class PriorGap:
    """How the KL term of the top level splits into information about x and what a better prior could save.

    KL = I(x; z) + KL(aggregate posterior || prior). The aggregate is a mean over references. Without the
    example itself the gap is too small, with it too large: the true gap lies between.
    """

    num_images: int
    num_references: int
    kl: Estimate
    smallest_gap: Estimate
    largest_gap: Estimate

    @property
    def is_known(self) -> bool:
        """Whether the two ends are near enough to each other to say something."""
        low, high = max(0.0, self.smallest_gap.value), max(0.0, self.largest_gap.value)
        return high - low <= self.kl.value / 2


@dataclass(frozen=True)
class ActiveUnits:
    """Latents whose mean varies over the examples with a variance above the threshold."""

    num_active: int
    num_units: int
    threshold: float


@dataclass(frozen=True)
class Representation:
    """How well latent means tell the classes apart."""

    num_queries: int
    num_references: int
    knn_accuracy: dict[str, float]
    """By the number of neighbours."""
    probe_accuracy: float
    """Of a logistic regression on the latent means."""

    def __post_init__(self) -> None:
        if wrong := [each for each in (*self.knn_accuracy.values(), self.probe_accuracy) if not 0 <= each <= 1]:
            raise ValueError(f"an accuracy must be between 0 and 1, not {wrong[0]}")


@dataclass(frozen=True)
class Map:
    """Latent means laid out on a plane by t-SNE."""

    rows: list[int]
    x: list[float]
    y: list[float]
    labels: list[int] | None


@dataclass(frozen=True)
class Baseline:
    """The linear model with as many latents, fitted to the same training examples and scored on the same examples."""

    kind: str
    num_latents: int
    num_examples: int
    negative_log_likelihood: Estimate
    """As a density, with the noise variance that fits best."""
    error_of_difference: float | None
    """The standard error, over the examples, of the difference in log p(x) between the two models, if it is known."""
    without_latents: float
    """The negative log-likelihood of the mean example, with the noise variance that fits best."""
    squared_error: float
    """Of its reconstructions, summed over dimensions, in the model's units."""
    own_squared_error: float
    """The same of the run's model."""
    knn_accuracy: dict[str, float] | None
    """By the number of neighbours, on as many principal components."""
    gain_in_training: float | None
    """Nats of validation -ELBO between the model before the first step and the one that was kept, if it is known."""

    def verdict(self, density: Density, num_dimensions: int) -> str:
        """Say how a model compares, what to try if it is worse, and whether its own value can be trusted."""
        if density.of_density is None:
            return f"The model's likelihood is a {density.scale}, which cannot be compared with {self.kind}."
        words = self._comparison(self.negative_log_likelihood.value - density.of_density, num_dimensions)
        if density.of_density - self.without_latents > _ALIKE:
            words += " It is worse than one normal distribution around the mean example."
        if density.has_few_draws:
            size = f"{density.median_effective_sample_size:.1f} of {density.num_samples:,}"
            words += (
                f" The draws are too few for an exact value (the effective sample size is {size}): the true −log p(x) "
                f"is lower (better)."
            )
        return words

    def _comparison(self, gain: float, num_dimensions: int) -> str:
        bits = abs(gain) / num_dimensions / math.log(2)
        examples = "example" if self.num_examples == 1 else f"{self.num_examples:,} examples"
        than = f"{self.kind} with {counted(self.num_latents, 'latent')} on the same {examples}"
        error = self.error_of_difference or 0.0
        difference = f"{abs(gain):,.1f} ± {error:,.1f}" if error else f"{abs(gain):,.1f}"
        size = f"{difference} nats per example ({bits:,.3f} bits per dimension)"
        if self.num_examples == 1:
            side = "better" if gain >= 0 else "worse"
            return f"The model is {size} {side} than {than}. One example tells little."
        if abs(gain) < _ALIKE:
            return f"The model is as good as {than}: they differ by less than {_ALIKE} nats per example."
        if abs(gain) < 2 * error:
            side = "better" if gain >= 0 else "worse"
            return f"The model is about as good as {than}: it is {size} {side}, within two standard errors."
        if gain >= 0:
            return f"The model is {size} better than {than}."
        return f"The model is {size} worse than {than}. Try more --minutes or more examples, and look at the samples."


@dataclass(frozen=True)
class Evaluation:
    """All results of one model on one split of one store.

    Examples
    --------
    >>> found = Evaluation(step=500, source="images", fingerprint="", split="test")
    >>> found.density is None  # nothing was measured yet
    True
    """

    step: int
    source: str
    fingerprint: str
    split: str
    density: Density | None = None
    prior_gap: PriorGap | None = None
    active_units: ActiveUnits | None = None
    representation: Representation | None = None
    map: Map | None = None
    baseline: Baseline | None = None


@dataclass(frozen=True)
class ClassifierError:
    """The test error of a classifier trained with augmentation."""

    step: int
    fingerprint: str
    """Of the store."""
    way: Literal["posterior", "prior", "shifts"]
    """Where the latents of generated examples come from; or that real images are shifted instead."""
    real_share: float
    """Lambda, the weight of real examples in the loss."""
    epochs: int
    num_examples: int
    test_errors: list[float]
    """In percent, one for each seed."""


@dataclass(frozen=True)
class Results:
    """The content of ``evaluation.json``."""

    version: Literal[4] = dataclasses.field(default=4, kw_only=True)
    evaluations: list[Evaluation] = dataclasses.field(default_factory=list)
    augmentation: list[ClassifierError] = dataclasses.field(default_factory=list)

    def find(self, fingerprint: str, split: str) -> Evaluation | None:
        """Return the evaluation of a split of a store, if there is one."""
        return next((e for e in self.evaluations if (e.fingerprint, e.split) == (fingerprint, split)), None)

    def with_evaluation(self, evaluation: Evaluation) -> "Results":
        """Return the results with one evaluation added; it replaces an earlier one of the same split."""
        key = (evaluation.fingerprint, evaluation.split)
        others = [e for e in self.evaluations if (e.fingerprint, e.split) != key]
        return dataclasses.replace(self, evaluations=[*others, evaluation])

    def with_augmentation(self, errors: list[ClassifierError]) -> "Results":
        """Return the results with these errors of classifiers; they replace those of the same store, way and lambda."""
        keys = {(e.fingerprint, e.way, e.real_share) for e in errors}
        others = [e for e in self.augmentation if (e.fingerprint, e.way, e.real_share) not in keys]
        return dataclasses.replace(self, augmentation=[*others, *errors])


def read_results(run: Path) -> Results:
    """Read the results of a run, which is not trusted; they are empty if it was not evaluated yet."""
    path = run / FILE_NAME
    if not path.exists():
        return Results()
    try:
        return decode_file(Results, path, _newest)
    except FileError as error:
        raise FileError(f"{error}; remove the file and evaluate again") from error


def results_from(content: Any) -> Results:
    """Return the parsed content of a file of results, of this version or an older one."""
    return decode(Results, _newest(content))


def _newest(fields: Any) -> Any:
    """Return the content of a file of an older version as version 4 has it."""
    if not isinstance(fields, dict) or fields.get("version") not in (1, 2, 3):
        return fields
    evaluations = fields.get("evaluations")
    for evaluation in evaluations if isinstance(evaluations, list) else []:
        if not isinstance(evaluation, dict):
            continue
        evaluation.setdefault("baseline", None)
        if isinstance(evaluation["baseline"], dict):
            evaluation["baseline"].setdefault("error_of_difference", None)
        if isinstance(evaluation.get("density"), dict):
            # Version 1 also bounded the effect of far components that were left out; now none are.
            evaluation["density"].pop("neglected", None)
    return {**fields, "version": 4}


def write_results(run: Path, results: Results) -> None:
    """Write the results of a run, all or nothing."""
    content = to_json(dataclasses.asdict(results))
    if len(content) > MAX_JSON_BYTES:
        raise FileError(
            f"{run / FILE_NAME} would be larger than the {MAX_JSON_BYTES:,} bytes that bype reads; move it to another "
            f"place, and run the same command again"
        )
    write_atomic(run / FILE_NAME, content)


def change_results(run: Path, change: Callable[[Results], Results]) -> None:
    """Read the results of a run, change them, and write them; other processes that do the same wait."""
    with alone(run / f".{FILE_NAME}.lock", wait=True):
        write_results(run, change(read_results(run)))
