"""All measurements of one trained run on one split."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bype.console import Report, Stage, no_report, no_stage
from bype.data.examples import StoreSource, spread_rows
from bype.data.store import Split, Store
from bype.distributed import Group
from bype.distributions import DiagonalNormal
from bype.evaluation.aggregate import active_units, prior_gap
from bype.evaluation.baseline import SplitRows, measure_baseline
from bype.evaluation.density import DensityOptions, measure_density
from bype.evaluation.journal import journal_path
from bype.evaluation.records import (
    Baseline,
    Density,
    Evaluation,
    Map,
    PriorGap,
    Representation,
    change_results,
    read_results,
)
from bype.evaluation.representation import can_be_laid_out, knn_accuracy, probe_accuracy, tsne
from bype.randomness import generator_for
from bype.run.directory import RunError
from bype.run.opened import TrainedRun, own_store, require_run
from bype.wording import counted

_MAX_REFERENCES = 100_000
_MAX_GAP_IMAGES = 10_000
_MAX_PROBE_ROWS = 20_000
_MAP_POINTS = 2_000


@torch.no_grad()
def evaluate(
    run: TrainedRun,
    split_name: str | None = None,
    *,
    data: Path | str | None = None,
    density: DensityOptions | None = DensityOptions(),  # noqa: B008 - frozen
    max_examples: int | None = None,
    with_map: bool = True,
    with_baseline: bool = False,
    stage: Stage = no_stage,
    group: Group | None = None,
) -> Evaluation:
    """Measure a run on a split and write the results to ``evaluation.json``.

    Parameters
    ----------
    run
        The run.
    split_name
        The split of the store; if left out, test, or else validation, or else train.
    data
        A store to use instead of the one that the run was trained on.
    density
        How to measure the likelihood; the default is as in the paper, and takes minutes. ``None`` leaves it
        out, and keeps the result of an earlier evaluation.
    max_examples
        How many examples of the split to encode for all other measurements, evenly spread; if ``None``, 100,000.
    with_map
        Whether to lay out latent means by t-SNE.
    with_baseline
        Whether to compare with the linear model that has as many latents.
    stage
        Called with the title of each stage.
    group
        The processes that share the estimate of the likelihood, of which this is the first; the others call
        :func:`assist`. The rest takes little time, and this process does it alone.
    """
    require_run(run)
    if max_examples is not None and max_examples < 1:
        raise ValueError(f"max_examples must be at least 1, not {max_examples}")
    store = run.store(data)
    split_name = split_name or store.default_split
    split = store.split(split_name)
    known = earlier_evaluation(run, store, split_name)
    measured, scores = known.density if known else None, None
    if density is not None:
        with stage("estimating the likelihood") as report:
            measured, scores = _measure(run, split, density, group, report)
        _refuse_infinite(split, spread_rows(len(split), len(scores)), scores)
    with stage("encoding"):
        encoded = _encode_all(run, store, split, spread_rows(len(split), max_examples or _MAX_REFERENCES))
    gap = representation = None
    if encoded.num_others > 0:  # an example alone has nothing to be compared with
        with stage("comparing with the aggregate posterior"):
            gap = _prior_gap(run, split, encoded)
        if encoded.has_classes:
            with stage("classifying latent means"):
                representation = _representation(encoded, run.model.latent_scale)
    layout = known.map if known else None
    if with_map and layout is None and can_be_laid_out(encoded.queries.mean.cpu().numpy()):
        with stage("laying out a map"):
            layout = _map(encoded, run.model.latent_scale)
    baseline = _still_valid(known, measured, scores, representation)
    wants_baseline = with_baseline or (known is not None and known.baseline is not None)
    if baseline is None and wants_baseline and measured is not None:
        with stage("fitting a linear model"):
            train = own_store(run.folder, run.data, data).split("train")
            scored = split, spread_rows(len(split), measured.num_images)
            others = [part for name, part in _reference_rows(store).items() if name != split_name]
            neighbours = ((split, encoded.rows), others) if representation is not None else None
            baseline = measure_baseline(run, train, scored, scores, neighbours)
    evaluation = Evaluation(
        step=run.step,
        source=store.manifest.source,
        fingerprint=store.manifest.fingerprint,
        split=split_name,
        density=measured,
        prior_gap=gap,
        active_units=active_units(encoded.queries.mean) if len(encoded.rows) > 1 else None,
        representation=representation,
        map=layout,
        baseline=baseline,
    )
    change_results(run.folder, lambda results: results.with_evaluation(evaluation))
    if density is not None:
        _journal(run, split, density).unlink(missing_ok=True)
    return evaluation


def earlier_evaluation(run: TrainedRun, store: Store, split_name: str) -> Evaluation | None:
    """Return what was measured before of this model on a split of a store, if anything was."""
    found = read_results(run.folder).find(store.manifest.fingerprint, split_name)
    return found if found is not None and found.step == run.step else None


def _refuse_infinite(split: Split, rows: NDArray[np.int64], scores: Tensor) -> None:
    """Refuse examples to which the model gives no density at all: no mean over examples says anything then."""
    bad = rows[~scores.isfinite().cpu().numpy()]
    if len(bad):
        raise RunError(
            f"log p(x) of {counted(len(bad), 'example')} in the split {split.name} is not finite (row {bad[0]}): too "
            f"far from the training data; correct or remove such examples and prepare the data again; bype score finds "
            f"them"
        )


def assist(run: TrainedRun, split_name: str, data: Path | None, density: DensityOptions, group: Group) -> None:
    """Help another process to evaluate; that process has the result and writes it."""
    _measure(run, run.store(data).split(split_name), density, group, no_report)


def _measure(
    run: TrainedRun, split: Split, density: DensityOptions, group: Group | None, report: Report
) -> tuple[Density, Tensor]:
    identity, journal = _identity(run, split), _journal(run, split, density)
    source = StoreSource(split, run.model.device)
    return measure_density(run.model, source, density, journal, identity, report, group, run.is_training_split(split))


def _journal(run: TrainedRun, split: Split, density: DensityOptions) -> Path:
    return journal_path(run.folder, "density", _identity(run, split) | asdict(density))


def _identity(run: TrainedRun, split: Split) -> dict[str, Any]:
    return {"model": run.fingerprint, "store": split.fingerprint, "split": split.name}


@dataclass(frozen=True, eq=False)
class _Encoded:
    """The posteriors of the examples of a split, the queries, and of the references with which they are compared.

    References are the train and validation splits of the store; queries of these splits are references too.
    """

    rows: NDArray[np.int64]
    """Of the queries in their split."""
    queries: DiagonalNormal
    query_labels: NDArray[np.int32] | None
    references: DiagonalNormal
    own: Tensor
    """Which reference each query is; -1 if it is none."""
    reference_labels: NDArray[np.int32] | None

    @property
    def num_others(self) -> int:
        """The references that a query is compared with: all but itself."""
        return len(self.references.mean) - int((self.own >= 0).any())

    @property
    def has_classes(self) -> bool:
        """Whether queries can be classified: of one class, every guess is right, and no query is its own neighbour."""
        if self.query_labels is None or self.reference_labels is None:
            return False
        return len(np.unique(self.reference_labels)) > 1 and len(self.reference_labels) > int((self.own >= 0).sum())


def _encode(run: TrainedRun, split: Split, rows: NDArray[np.int64]) -> DiagonalNormal:
    return run.model.encode_rows(StoreSource(split, run.model.device), torch.from_numpy(rows))


def _reference_rows(store: Store) -> dict[str, SplitRows]:
    names = [name for name in ("train", "validation") if name in store.manifest.splits]
    splits = {name: store.split(name) for name in names}
    return {name: (split, spread_rows(len(split), _MAX_REFERENCES // len(names))) for name, split in splits.items()}


def _encode_all(run: TrainedRun, store: Store, split: Split, rows: NDArray[np.int64]) -> _Encoded:
    queries = _encode(run, split, rows)
    posteriors: list[DiagonalNormal] = []
    labels: list[NDArray[np.int32]] = []
    own = torch.full((len(rows),), -1)
    count = 0
    parts = _reference_rows(store)
    for name, (other, chosen) in parts.items():
        if name == split.name:
            posterior, chosen = queries, rows
            own = torch.arange(count, count + len(rows))
        else:
            posterior = _encode(run, other, chosen)
        posteriors.append(posterior)
        if other.has_labels:
            labels.append(other.labels(chosen))
        count += len(chosen)
    references = DiagonalNormal(
        torch.cat([each.mean for each in posteriors]), torch.cat([each.log_variance for each in posteriors])
    )
    query_labels = split.labels(rows) if split.has_labels else None
    known = np.concatenate(labels) if len(labels) == len(parts) else None
    return _Encoded(rows, queries, query_labels, references, own, known)


def _prior_gap(run: TrainedRun, split: Split, encoded: _Encoded) -> PriorGap:
    queries, chosen = encoded.queries, torch.from_numpy(spread_rows(len(encoded.rows), _MAX_GAP_IMAGES))
    prior = run.model.prior_distribution()
    if run.is_training_split(split):
        prior = run.model.prior.leave_out(prior, torch.from_numpy(encoded.rows)[chosen])
    _refuse_infinite(split, encoded.rows[chosen.numpy()], prior.log_prob(queries.mean[chosen]))
    return prior_gap(
        DiagonalNormal(queries.mean[chosen], queries.log_variance[chosen]),
        encoded.references,
        encoded.own[chosen].to(run.model.device),
        prior,
        generator=generator_for(0, "prior gap"),
    )


def _representation(encoded: _Encoded, scale: Tensor) -> Representation | None:
    query_labels, labels = encoded.query_labels, encoded.reference_labels
    if query_labels is None or labels is None:
        return None
    own = encoded.own.numpy()
    kept = np.setdiff1d(np.arange(len(labels)), own[own >= 0])  # no example is its own neighbour
    known, known_labels = (encoded.references.mean * scale).cpu().numpy()[kept], labels[kept]
    means = (encoded.queries.mean * scale).cpu().numpy()
    probed = spread_rows(len(known), _MAX_PROBE_ROWS)
    return Representation(
        num_queries=len(means),
        num_references=len(known),
        knn_accuracy=knn_accuracy(known, known_labels, means, query_labels),
        probe_accuracy=probe_accuracy(known[probed], known_labels[probed], means, query_labels),
    )


def _map(encoded: _Encoded, scale: Tensor) -> Map:
    chosen, labels = spread_rows(len(encoded.rows), _MAP_POINTS), encoded.query_labels
    means = (encoded.queries.mean * scale).cpu().numpy()
    placed = tsne(means[chosen]).astype(float).round(3)
    return Map(
        rows=encoded.rows[chosen].tolist(),
        x=placed[:, 0].tolist(),
        y=placed[:, 1].tolist(),
        labels=None if labels is None else labels[chosen].tolist(),
    )


def _still_valid(
    known: Evaluation | None, measured: Density | None, scores: Tensor | None, representation: Representation | None
) -> Baseline | None:
    """Return the earlier comparison with the linear model, if it is of the same examples beside the same draws."""
    if known is None or known.baseline is None or measured is None or scores is not None:
        return None
    if known.baseline.num_examples != measured.num_images:
        return None
    same = _num_queries(known.representation) == _num_queries(representation)
    return known.baseline if same else replace(known.baseline, knn_accuracy=None)


def _num_queries(representation: Representation | None) -> int:
    return 0 if representation is None else representation.num_queries
