"""What a page shows of one run, gathered from its directory, its model and its data."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bype.data.examples import StoreSource, spread_rows
from bype.data.files import FileError
from bype.data.store import Store
from bype.evaluation import generation
from bype.evaluation.audit_records import Audit, read_audit
from bype.evaluation.outliers import ScoreOptions, score_examples
from bype.evaluation.pseudopoints import Coreset, describe_points
from bype.evaluation.records import ClassifierError, Density, Evaluation, read_results
from bype.mixtures import NormalMixture
from bype.plates import grid, is_image_shape, plate, stored_to_bytes, to_bytes
from bype.run.config import TrainingConfig
from bype.run.directory import RunError
from bype.run.identity import DataIdentity
from bype.run.metrics import MetricsLine, read_metrics
from bype.run.opened import TrainedRun, own_store

_SPLITS = ("test", "validation", "train")
"""Which evaluation is shown, if there are several."""
_COLUMNS = 10
_LINES = 6
MOST_IMAGES = _COLUMNS * _LINES
_UNUSUAL = 8
CLASS_POINTS = 4
"""So many points of a class are shown, if it has them."""
MOST_CLASSES = 20
"""So many classes are shown."""
MOST_FEATURES = 20
"""So many columns of a table are shown."""
_CLASS_SAMPLES = 8
_QUICK_SCORES = ScoreOptions(num_samples=20, num_references=500, num_examples=500)
"""Enough to find the least likely examples in seconds; ``bype score`` takes more draws and all examples."""


@dataclass(frozen=True)
class FeatureSummary:
    """Features of the data and of samples, for data that are not images."""

    names: list[str]
    data_mean: list[float]
    data_spread: list[float]
    sample_mean: list[float]
    sample_spread: list[float]


@dataclass(frozen=True)
class UnusualExample:
    """One of the least likely examples."""

    name: str
    """Its file, or its row."""
    log_likelihood: float
    percentile: float
    log_ratio: float
    picture: Image.Image | None
    columns: list[str]
    """Those that made it unlikely, for a row of a table."""


@dataclass(frozen=True)
class ClassOfPoints:
    """A class with pseudo-points of its own."""

    name: str
    share: float
    """Of all weights."""
    num_points: int
    points: Image.Image
    """The heaviest ones."""
    samples: Image.Image


@dataclass
class RunContents:
    """One run on the page; what is ``None`` is left out."""

    name: str
    config: TrainingConfig
    data: DataIdentity
    step: int
    metrics: list[MetricsLine]
    evaluation: Evaluation | None
    augmentation: list[ClassifierError]
    samples: Image.Image | None = None
    plates: Image.Image | None = None
    points: Coreset | None = None
    coreset: Image.Image | None = None
    nearest: Image.Image | None = None
    classes: list[ClassOfPoints] = field(default_factory=list)
    reconstructions: Image.Image | None = None
    interpolations: Image.Image | None = None
    features: FeatureSummary | None = None
    audit: Audit | None = None
    unusual: list[UnusualExample] = field(default_factory=list)
    unusual_of: str = ""
    """Among which examples these are the least likely, in words."""
    notes: list[str] = field(default_factory=list)
    """What is missing, and why."""

    @property
    def density(self) -> Density | None:
        """The likelihood, if it was measured."""
        return None if self.evaluation is None else self.evaluation.density


def measured(run: TrainedRun, name: str) -> RunContents:
    """Return a run with what was measured of its model, and nothing that has to be computed."""
    results, own = read_results(run.folder), run.data.fingerprint
    current = [found for found in results.evaluations if found.step == run.step and found.split in _SPLITS]
    # The run's own data come first, in whatever split.
    chosen = min(current, key=lambda found: (found.fingerprint != own, _SPLITS.index(found.split)), default=None)
    augmentation = [found for found in results.augmentation if (found.step, found.fingerprint) == (run.step, own)]
    contents = RunContents(name, run.config, run.data, run.step, read_metrics(run.folder), chosen, augmentation)
    if (audit := read_audit(run.folder)) is not None and (audit.step, audit.fingerprint) == (run.step, own):
        contents.audit = audit
    if chosen is None:
        stale = " of this model" if results.evaluations else ""
        contents.notes.append(f"There is no evaluation{stale} yet. Run: bype evaluate {run.folder}")
    return contents


def gather(folder: Path, name: str, data: Path | None = None) -> RunContents:
    """Gather what a page shows of the run in ``folder``; ``data`` is where its store may have moved to."""
    run = TrainedRun.open(folder, data)
    contents = measured(run, name)
    try:
        store = own_store(run.folder, run.data, data)
    except (RunError, FileError) as error:
        store = None
        contents.notes.append(f"The data are not available, so the sections that need them are left out: {error}")
    generator = torch.Generator().manual_seed(0)
    if is_image_shape(run.data.shape):
        _add_images(contents, run, store, generator)
    elif store is not None and len(run.data.shape) == 1:
        contents.features = _feature_summary(run, store, generator)
    if store is not None and run.model.prior.own_points() is not None:
        contents.points = describe_points(run.model, store.split("train"), run.data.classes)
        if is_image_shape(run.data.shape):
            _add_points(contents, contents.points, store)
            if run.config.labelled:
                contents.classes = _classes(run, contents.points, generator)
    if store is not None:
        _add_unusual(contents, run, store)
    return contents


def _add_unusual(contents: RunContents, run: TrainedRun, store: Store) -> None:
    split = store.split(store.default_split)
    found = score_examples(run, split.name, data=store.folder, options=_QUICK_SCORES)
    if found.percentile is None or found.log_ratio is None:
        return  # the run came without its training data, and others were given
    contents.unusual_of = f"{len(found.rows):,} {split.name} examples"
    names = run.data.column_names()
    for place in found.least_likely(_UNUSUAL):
        rows = split.read(found.rows[place : place + 1])
        contents.unusual.append(
            UnusualExample(
                name=found.name_of(place),
                log_likelihood=float(found.log_likelihood[place]),
                percentile=float(found.percentile[place]),
                log_ratio=float(found.log_ratio[place]),
                picture=plate([stored_to_bytes(rows)]) if is_image_shape(run.data.shape) else None,
                columns=[] if found.columns is None else [names[k] for k in found.columns[place]],
            )
        )


def _add_images(contents: RunContents, run: TrainedRun, store: Store | None, generator: torch.Generator) -> None:
    model = run.model
    prior = model.prior_distribution()
    made = generation.sample(model, MOST_IMAGES, prior=prior, generator=generator)
    contents.samples = grid(to_bytes(made.numpy()), _COLUMNS, is_clear=True)
    if isinstance(prior, NormalMixture):
        lines = [
            generation.sample(model, _COLUMNS, component=k, prior=prior, generator=generator)
            for k in generation.heaviest_components(prior, _LINES)
        ]
        contents.plates = plate([to_bytes(line.numpy()) for line in lines], is_clear=True)
    if store is None:
        return
    split = store.split(store.default_split)
    x = StoreSource(split).read(spread_rows(len(split), 3 * _COLUMNS))
    made = generation.reconstruct(model, x)
    pairs = zip(torch.split(x, _COLUMNS), torch.split(made, _COLUMNS), strict=True)
    contents.reconstructions = plate([to_bytes(line.numpy()) for pair in pairs for line in pair], is_clear=True)
    if len(x) >= 2:
        ends = x[: min(2 * _LINES, len(x) // 2 * 2)]
        ways = [generation.interpolate(model, ends[k], ends[k + 1], _COLUMNS) for k in range(0, len(ends), 2)]
        contents.interpolations = plate([to_bytes(way.numpy()) for way in ways], is_clear=True)


def _add_points(contents: RunContents, points: Coreset, store: Store) -> None:
    contents.coreset = grid(to_bytes(points.points[:MOST_IMAGES]), _COLUMNS, is_clear=True)
    contents.nearest = plate(points.with_neighbours(store.split("train"), _LINES, _COLUMNS - 1), is_clear=True)


def _classes(run: TrainedRun, points: Coreset, generator: torch.Generator) -> list[ClassOfPoints]:
    """Return the classes of labelled points, with their points and samples."""
    prior, found = run.model.prior_distribution(), []
    labels = np.zeros(0) if points.label_mix is None else points.label_mix.argmax(1)
    for label, name in enumerate(run.data.classes[:MOST_CLASSES]):
        own = labels == label
        if np.any(own):
            made = generation.sample(run.model, _CLASS_SAMPLES, label=label, prior=prior, generator=generator)
            heaviest = plate([to_bytes(points.points[own][:CLASS_POINTS])], is_clear=True)
            samples = plate([to_bytes(made.numpy())], is_clear=True)
            share = float(points.weights[own].sum() / points.weights.sum())
            found.append(ClassOfPoints(name, share, int(own.sum()), heaviest, samples))
    return found


def _feature_summary(run: TrainedRun, store: Store, generator: torch.Generator) -> FeatureSummary:
    split = store.split("train")  # a test split may have a few rows only
    shown = slice(MOST_FEATURES)
    data = split.read(spread_rows(len(split), 2000))[:, shown].astype(np.float64)
    prior = run.model.prior_distribution()
    parts = [generation.sample(run.model, 200, prior=prior, generator=generator)[:, shown] for _ in range(10)]
    made = torch.cat(parts).double().numpy()
    return FeatureSummary(
        run.data.column_names()[shown],
        data.mean(0).tolist(),
        data.std(0).tolist(),
        made.mean(0).tolist(),
        made.std(0).tolist(),
    )
