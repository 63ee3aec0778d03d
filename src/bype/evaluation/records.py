"""What an evaluation found, typed, and its file ``evaluation.json`` in a run directory.

All values are nats per example, summed over dimensions and averaged over examples, unless a name says otherwise.
"""

import dataclasses
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from bype.data.files import FileError, is_number, read_json, to_json, write_atomic

FORMAT_VERSION = 1
FILE_NAME = "evaluation.json"


@dataclass(frozen=True)
class Estimate:
    """A mean over examples and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Density:
    """The importance-weighted bound on the negative log-likelihood, and the terms of the ELBO."""

    num_images: int
    num_samples: int
    scale: str
    """What the value is: ``unnormalised`` for the paper's squared error, ``density``, ``probability``, or
    ``cross-entropy`` for bits predicted for grey pixels."""
    negative_log_likelihood: Estimate
    """On the likelihood's own scale; small is good. The error is over images."""
    monte_carlo_error: float | None
    """What other draws would change in the mean, as a standard error; unknown from a single draw."""
    neglected: float
    """At most this much lower is the true value of the estimate, since far components were left out; 0 if none was."""
    median_effective_sample_size: float
    smallest_effective_sample_size: float
    normalised: float | None
    """The same as the negative log of a density that integrates to one, where it can be said."""
    bits_per_dimension: float | None
    negative_elbo: Estimate
    negative_reconstruction: Estimate
    kl: dict[str, Estimate]
    """By level of latents."""
    precision: str
    """Of the networks: ``float32`` or ``bfloat16``."""
    precision_difference: float | None
    """How far the lower precision moved the estimate, with the same draws, on the first images."""
    seconds: float


@dataclass(frozen=True)
class PriorGap:
    """How the KL term of the top level splits into what is said of x and what a better prior could save.

    KL = I(x; z) + KL(aggregate posterior || prior). The aggregate is that of all references without the example
    itself, which makes the gap too small; or with it, which makes it too large: the truth lies between.
    """

    num_images: int
    num_references: int
    kl: Estimate
    smallest_gap: Estimate
    largest_gap: Estimate


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


@dataclass(frozen=True)
class Map:
    """Latent means laid out on a plane by t-SNE."""

    rows: list[int]
    x: list[float]
    y: list[float]
    labels: list[int] | None


@dataclass(frozen=True)
class Evaluation:
    """All that was found on one split of one store with one model."""

    step: int
    source: str
    fingerprint: str
    split: str
    density: Density | None = None
    prior_gap: PriorGap | None = None
    active_units: ActiveUnits | None = None
    representation: Representation | None = None
    map: Map | None = None


@dataclass(frozen=True)
class ClassifierError:
    """The test error of a classifier trained with augmentation."""

    step: int
    fingerprint: str
    """Of the store."""
    way: str
    """``posterior`` or ``prior``: where the latents of generated examples come from."""
    real_share: float
    """Lambda, the weight of real examples in the loss."""
    epochs: int
    num_examples: int
    test_errors: list[float]
    """In percent, one for each seed."""


@dataclass(frozen=True)
class Results:
    """The content of ``evaluation.json``."""

    evaluations: list[Evaluation] = dataclasses.field(default_factory=list)
    augmentation: list[ClassifierError] = dataclasses.field(default_factory=list)

    def find(self, fingerprint: str, split: str) -> Evaluation | None:
        """Return what is known of a split of a store."""
        return next((e for e in self.evaluations if (e.fingerprint, e.split) == (fingerprint, split)), None)

    def with_evaluation(self, evaluation: Evaluation) -> "Results":
        """Return the results with one evaluation added, or replaced if there was one of the same split."""
        key = (evaluation.fingerprint, evaluation.split)
        others = [e for e in self.evaluations if (e.fingerprint, e.split) != key]
        return dataclasses.replace(self, evaluations=[*others, evaluation])

    def with_augmentation(self, errors: list[ClassifierError]) -> "Results":
        """Return the results with these errors of classifiers, in place of earlier ones of the same kind."""
        keys = {(e.fingerprint, e.way, e.real_share) for e in errors}
        others = [e for e in self.augmentation if (e.fingerprint, e.way, e.real_share) not in keys]
        return dataclasses.replace(self, augmentation=[*others, *errors])


def read_results(run: Path) -> Results:
    """Read the results of a run, which may come from a stranger; none if it was not evaluated yet."""
    path = run / FILE_NAME
    if not path.exists():
        return Results()
    fields = read_json(path)
    if not (isinstance(fields, dict) and fields.pop("version", None) == FORMAT_VERSION):
        raise FileError(f"{path} is of another format; remove it and evaluate again")
    try:
        return _from_fields(Results, fields)
    except ValueError as error:
        raise FileError(f"{path} is broken: {error}; remove it and evaluate again") from error


def write_results(run: Path, results: Results) -> None:
    """Write the results of a run, all or nothing."""
    write_atomic(run / FILE_NAME, to_json({"version": FORMAT_VERSION, **dataclasses.asdict(results)}))


Record = TypeVar("Record")


def _from_fields(record: type[Record], fields: Any) -> Record:
    hints = get_type_hints(record)
    if not (isinstance(fields, dict) and set(fields) == set(hints)):
        raise ValueError(f"no {record.__name__}")
    return record(**{name: _typed(hint, fields[name]) for name, hint in hints.items()})


def _typed(hint: Any, value: Any) -> Any:
    """Return a value of JSON as the type that a record declares, or refuse it."""
    if get_origin(hint) is types.UnionType:
        if value is None:
            return None
        (hint,) = (option for option in get_args(hint) if option is not types.NoneType)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _from_fields(hint, value)
    if get_origin(hint) is list and isinstance(value, list):
        return [_typed(get_args(hint)[0], item) for item in value]
    if get_origin(hint) is dict and isinstance(value, dict):
        return {key: _typed(get_args(hint)[1], item) for key, item in value.items()}
    if hint is float and is_number(value):
        return float(value)
    if (hint is str and type(value) is str) or (hint is int and type(value) is int and abs(value) < 2**62):
        return value
    raise ValueError(f"{str(value)[:40]!r} is no {getattr(hint, '__name__', hint)}")
