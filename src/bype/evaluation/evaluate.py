"""All measurements of one trained run on one split."""

from dataclasses import asdict, replace
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
from bype.evaluation.baseline import Rows, measure_baseline
from bype.evaluation.density import DensityOptions, measure_density
from bype.evaluation.journal import journal_path
from bype.evaluation.records import Density, Evaluation, Map, Representation, change_results, read_results
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
        rows = spread_rows(len(split), max_examples or _MAX_REFERENCES)
        queries = _encode(run, split, rows)
        references, own, labels = _references(run, store, split_name, rows, queries)
    gap = None
    if len(references.mean) > int((own >= 0).any()):  # an example alone has nothing to be compared with
        with stage("comparing with the aggregate posterior"):
            chosen = torch.from_numpy(spread_rows(len(rows), _MAX_GAP_IMAGES))
            prior = run.model.prior_distribution()
            if run.is_training_split(split):
                prior = run.model.prior.leave_out(prior, torch.from_numpy(rows)[chosen])
            _refuse_infinite(split, rows[chosen.numpy()], prior.log_prob(queries.mean[chosen]))
            gap = prior_gap(
                DiagonalNormal(queries.mean[chosen], queries.log_variance[chosen]),
                references,
                own[chosen].to(run.model.device),
                prior,
                generator=generator_for(0, "prior gap"),
            )
    representation = None
    query_labels = split.labels(rows) if split.has_labels else None
    if labels is not None and len(np.unique(labels)) < 2:
        labels = None  # of one class, every guess is right
    if query_labels is not None and labels is not None and len(labels) > int((own >= 0).sum()):
        with stage("classifying latent means"):
            scale = run.model.latent_scale
            representation = _representation(
                queries.mean * scale, query_labels, references.mean * scale, labels, own.numpy()
            )
    layout = known.map if known else None
    if with_map and layout is None and can_be_laid_out(queries.mean.cpu().numpy()):
        with stage("laying out a map"):
            layout = _map(queries.mean * run.model.latent_scale, rows, query_labels)
    baseline = known.baseline if known else None
    if baseline is not None and known is not None:
        is_same = measured is not None and scores is None and baseline.num_examples == measured.num_images
        if not is_same:
            with_baseline, baseline = True, None  # measured on other examples, or beside other draws
        elif _num_queries(known.representation) != _num_queries(representation):
            baseline = replace(baseline, knn_accuracy=None)
    if with_baseline and measured is not None and baseline is None:
        with stage("fitting a linear model"):
            train = own_store(run.folder, run.data, data).split("train")
            scored = split, spread_rows(len(split), measured.num_images)
            others = [part for name, part in _reference_rows(store).items() if name != split_name]
            neighbours = ((split, rows), others) if representation is not None else None
            baseline = measure_baseline(run, train, scored, scores, neighbours)
    evaluation = Evaluation(
        step=run.step,
        source=store.manifest.source,
        fingerprint=store.manifest.fingerprint,
        split=split_name,
        density=measured,
        prior_gap=gap,
        active_units=active_units(queries.mean) if len(queries.mean) > 1 else None,
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


def _encode(run: TrainedRun, split: Split, rows: NDArray[np.int64]) -> DiagonalNormal:
    return run.model.encode_rows(StoreSource(split, run.model.device), torch.from_numpy(rows))


def _num_queries(representation: Representation | None) -> int:
    return 0 if representation is None else representation.num_queries


def _reference_rows(store: Store) -> dict[str, Rows]:
    names = [name for name in ("train", "validation") if name in store.manifest.splits]
    splits = {name: store.split(name) for name in names}
    return {name: (split, spread_rows(len(split), _MAX_REFERENCES // len(names))) for name, split in splits.items()}


def _references(
    run: TrainedRun, store: Store, split_name: str, rows: NDArray[np.int64], queries: DiagonalNormal
) -> tuple[DiagonalNormal, Tensor, NDArray[np.int32] | None]:
    """Return the posteriors of the references, which reference each query is, and the labels of the references.

    References are the train and validation splits of the store; queries of these splits are references too.
    """
    means, log_variances = [], []
    labels: list[NDArray[np.int32]] = []
    own = torch.full((len(rows),), -1)
    count = 0
    parts = _reference_rows(store)
    for name, (other, chosen) in parts.items():
        if name == split_name:
            posterior, chosen = queries, rows
            own = torch.arange(count, count + len(rows))
        else:
            posterior = _encode(run, other, chosen)
        means.append(posterior.mean)
        log_variances.append(posterior.log_variance)
        if other.has_labels:
            labels.append(other.labels(chosen))
        count += len(chosen)
    known = np.concatenate(labels) if len(labels) == len(parts) else None
    return DiagonalNormal(torch.cat(means), torch.cat(log_variances)), own, known


def _representation(
    queries: Tensor,
    query_labels: NDArray[np.int32],
    references: Tensor,
    labels: NDArray[np.int32],
    own: NDArray[np.int64],
) -> Representation:
    kept = np.setdiff1d(np.arange(len(labels)), own[own >= 0])  # no example is its own neighbour
    known, known_labels = references.cpu().numpy()[kept], labels[kept]
    means = queries.cpu().numpy()
    probed = spread_rows(len(known), _MAX_PROBE_ROWS)
    return Representation(
        num_queries=len(means),
        num_references=len(known),
        knn_accuracy=knn_accuracy(known, known_labels, means, query_labels),
        probe_accuracy=probe_accuracy(known[probed], known_labels[probed], means, query_labels),
    )


def _map(means: Tensor, rows: NDArray[np.int64], labels: NDArray[np.int32] | None) -> Map:
    chosen = spread_rows(len(rows), _MAP_POINTS)
    placed = tsne(means.cpu().numpy()[chosen]).astype(float).round(3)
    return Map(
        rows=rows[chosen].tolist(),
        x=placed[:, 0].tolist(),
        y=placed[:, 1].tolist(),
        labels=None if labels is None else labels[chosen].tolist(),
    )
