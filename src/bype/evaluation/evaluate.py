"""All that can be measured on one split with one trained run."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bype.console import Report, no_report
from bype.data.store import Store
from bype.distributed import Group
from bype.distributions import DiagonalNormal
from bype.evaluation.aggregate import active_units, prior_gap
from bype.evaluation.density import DensityOptions, measure_density
from bype.evaluation.journal import journal_path
from bype.evaluation.records import Density, Evaluation, Map, Representation, read_results, write_results
from bype.evaluation.representation import can_be_laid_out, knn_accuracy, probe_accuracy, tsne
from bype.training.examples import StoreSource
from bype.training.randomness import generator_for
from bype.training.rows import encode_rows, spread_rows
from bype.training.trained import TrainedRun

_MAX_REFERENCES = 100_000
_MAX_GAP_IMAGES = 10_000
_MAX_PROBE_ROWS = 20_000
_MAP_POINTS = 2_000

Stage = Callable[[str], AbstractContextManager[Report]]
"""Shows a stage of some title: a context that yields where its progress is reported to."""


def silent(title: str) -> AbstractContextManager[Report]:
    """Show no progress."""
    return nullcontext(no_report)


def default_split(store: Store) -> str:
    """Return the split to look at: test, or what there is."""
    return next(name for name in ("test", "validation", "train") if name in store.manifest.splits)


def evaluate(
    run: TrainedRun,
    split_name: str = "test",
    *,
    data: Path | None = None,
    density: DensityOptions | None = None,
    with_map: bool = True,
    stage: Stage = silent,
    group: Group | None = None,
) -> Evaluation:
    """Measure a run on a split and write what was found to ``evaluation.json``.

    Parameters
    ----------
    run
        The run.
    split_name
        Of the store.
    data
        Another store than the one that the run remembers.
    density
        How to measure the likelihood; ``None`` to leave it out, and keep what an earlier evaluation found.
    with_map
        Whether to lay out latent means by t-SNE.
    stage
        Called with the title of each stage.
    group
        The processes that share the estimate of the likelihood, of which this is the first; the others call
        :func:`assist`. The rest takes a small part of the time, and this one does it.
    """
    store = run.store(data)
    split = store.split(split_name)
    known = read_results(run.folder).find(store.manifest.fingerprint, split_name)
    if known is not None and known.step != run.step:
        known = None
    measured = known.density if known else None
    if density is not None:
        with stage("estimating the likelihood") as report:
            measured = _measure(run, store, split_name, density, group, report)
    with stage("encoding"):
        rows = spread_rows(len(split), _MAX_REFERENCES)
        queries = encode_rows(run.model, split, rows)
        references, own, labels = _references(run, store, split_name, rows, queries)
    with stage("comparing with the aggregate posterior"):
        chosen = torch.from_numpy(spread_rows(len(rows), _MAX_GAP_IMAGES))
        gap = prior_gap(
            DiagonalNormal(queries.mean[chosen], queries.log_variance[chosen]),
            references,
            own[chosen].to(run.model.device),
            run.model.prior_distribution(),
            generator=generator_for(0, "prior gap"),
        )
    representation = None
    query_labels = split.labels(rows) if split.has_labels else None
    if query_labels is not None and labels is not None and len(labels) > int((own >= 0).sum()):
        with stage("classifying latent means"):
            representation = _representation(queries, query_labels, references, labels, own)
    layout = known.map if known else None
    if with_map and layout is None and can_be_laid_out(queries.mean.cpu().numpy()):
        with stage("laying out a map"):
            layout = _map(queries.mean, rows, query_labels)
    evaluation = Evaluation(
        step=run.step,
        source=store.manifest.source,
        fingerprint=store.manifest.fingerprint,
        split=split_name,
        density=measured,
        prior_gap=gap,
        active_units=active_units(queries.mean),
        representation=representation,
        map=layout,
    )
    write_results(run.folder, read_results(run.folder).with_evaluation(evaluation))
    if density is not None:
        _journal(run, store, split_name, density).unlink(missing_ok=True)
    return evaluation


def assist(run: TrainedRun, split_name: str, data: Path | None, density: DensityOptions, group: Group) -> None:
    """Take part in what another process evaluates; it has the result, and writes it."""
    _measure(run, run.store(data), split_name, density, group, no_report)


def _measure(
    run: TrainedRun, store: Store, split_name: str, density: DensityOptions, group: Group | None, report: Report
) -> Density:
    identity = _identity(run, store, split_name)
    journal = _journal(run, store, split_name, density)
    source = StoreSource(store.split(split_name), run.model.device)
    return measure_density(run.model, source, density, journal, identity, report, group)


def _journal(run: TrainedRun, store: Store, split_name: str, density: DensityOptions) -> Path:
    return journal_path(run.folder, "density", _identity(run, store, split_name) | asdict(density))


def _identity(run: TrainedRun, store: Store, split_name: str) -> dict[str, Any]:
    return {"model": run.fingerprint, "store": store.manifest.fingerprint, "split": split_name}


def _references(
    run: TrainedRun, store: Store, split_name: str, rows: NDArray[np.int64], queries: DiagonalNormal
) -> tuple[DiagonalNormal, Tensor, NDArray[np.int32] | None]:
    """Return the posteriors of the examples that stand for all, which of them each query is, and their labels.

    They are the train and validation splits of the store; if the queries are one of these, they are among them.
    """
    means, log_variances = [], []
    labels: list[NDArray[np.int32]] = []
    own = torch.full((len(rows),), -1)
    count = 0
    names = [name for name in ("train", "validation") if name in store.manifest.splits]
    for name in names:
        other = store.split(name)
        if name == split_name:
            posterior, chosen = queries, rows
            own = torch.arange(count, count + len(rows))
        else:
            chosen = spread_rows(len(other), _MAX_REFERENCES // len(names))
            posterior = encode_rows(run.model, other, chosen)
        means.append(posterior.mean)
        log_variances.append(posterior.log_variance)
        if other.has_labels:
            labels.append(other.labels(chosen))
        count += len(chosen)
    known = np.concatenate(labels) if len(labels) == len(names) else None
    return DiagonalNormal(torch.cat(means), torch.cat(log_variances)), own, known


def _representation(
    queries: DiagonalNormal,
    query_labels: NDArray[np.int32],
    references: DiagonalNormal,
    labels: NDArray[np.int32],
    own: Tensor,
) -> Representation:
    kept = np.setdiff1d(np.arange(len(labels)), own.numpy()[own.numpy() >= 0])  # no example is its own neighbour
    known, known_labels = references.mean.cpu().numpy()[kept], labels[kept]
    means = queries.mean.cpu().numpy()
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
