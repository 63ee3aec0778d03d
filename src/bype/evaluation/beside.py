"""A model beside the linear model of as many latents: what the terminal and the page both show."""

from dataclasses import dataclass

from bype.evaluation.records import Evaluation

_NEIGHBOURS = 5


@dataclass(frozen=True)
class Compared:
    """One measurement of a model and of the linear model, as text."""

    name: str
    own: str
    linear: str
    is_worse: bool
    """Whether the linear model is better, as far as the digits show."""


def beside_linear(found: Evaluation) -> list[Compared]:
    """Return the measurements that both models have: log p(x), squared error and, with labels, nearest neighbours."""
    own, linear = found.density, found.baseline
    if own is None or (density := own.of_density) is None or linear is None:
        return []
    rows = [
        _compared("−log p(x), nats per example", density, linear.negative_log_likelihood.value, ",.1f"),
        _compared("squared error of reconstructions", linear.own_squared_error, linear.squared_error, ".4g"),
    ]
    if found.representation is not None and linear.knn_accuracy:
        accuracy, queries = found.representation.knn_accuracy, found.representation.num_queries
        k = min(accuracy, key=lambda k: abs(int(k) - _NEIGHBOURS))
        same = queries == own.num_images
        name = f"accuracy of {k} nearest neighbours, %" if same else f"kNN accuracy (K = {k}) of {queries:,}, %"
        rows.append(_compared(name, 100 * accuracy[k], 100 * linear.knn_accuracy[k], ".1f", larger_is_better=True))
    return rows


def drawbacks(found: Evaluation) -> str:
    """Name what the linear model does better, if anything but log p(x), of which the verdict speaks."""
    worse = [row.name.split(",")[0] for row in beside_linear(found)[1:] if row.is_worse]
    if not worse or found.baseline is None:
        return ""
    return f"{found.baseline.kind[0].upper()}{found.baseline.kind[1:]} is better here in: {'; '.join(worse)}."


def _compared(name: str, own: float, linear: float, form: str, larger_is_better: bool = False) -> Compared:
    shown = format(own, form), format(linear, form)
    is_worse = shown[0] != shown[1] and (own < linear) == larger_is_better
    return Compared(name, *shown, is_worse)
