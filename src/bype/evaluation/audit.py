"""Does a model give its training examples away? How near its points and samples are to them, beside new examples.

What is found, and what it means, is in :mod:`bype.evaluation.audit_records`.
"""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from bype.console import Stage, no_stage
from bype.data.examples import StoreSource, spread_rows
from bype.data.origins import name_examples
from bype.data.scaling import Scaling, mean_and_variance
from bype.evaluation.audit_records import MAX_SAMPLES, Audit, Closeness, Pair, compare, write_audit
from bype.evaluation.generation import sample
from bype.evaluation.neighbours import Nearest, nearest
from bype.models.linear_start import linear_batches
from bype.priors.base import ExampleSource, MappedSource
from bype.randomness import generator_for
from bype.run.directory import RunError
from bype.run.opened import TrainedRun, open_store, require_run

_ROUNDING = {"pixels": 0.5 / 256, "scaled columns": 1e-6}
"""Two examples are equal if they differ by less in each number. For pixels, the bytes of a picture are then equal."""
_MOST_QUERIES = 2000
_MOST_POINTS = 2000
_PAIRS = 10


@dataclass(frozen=True, eq=False)
class Shown:
    """The closest pairs as examples, in the units of the data."""

    kind: str
    made: NDArray[np.float32]
    real: NDArray[np.float32]
    names: list[str]
    """Of the training examples: their files or rows in the source, or else their rows in the split."""


@torch.no_grad()
def audit_run(
    run: TrainedRun, data: Path | str | None = None, num_samples: int = 1000, stage: Stage = no_stage
) -> tuple[Audit, list[Shown]]:
    """Measure how near a run's points and samples are to its training examples, and write ``audit.json``.

    Distances are compared with those of held-out examples, of the test split or else the validation split. Sampled
    images are the means of the likelihood, as ``bype sample`` shows them; sampled rows of a table have its noise, as
    the rows of the data have.

    Parameters
    ----------
    run
        The run.
    data
        Where the store that it was trained on may be, if it has moved.
    num_samples
        How many samples to draw.
    stage
        Called with the title of each stage.
    """
    require_run(run)
    if not 1 <= num_samples <= MAX_SAMPLES:
        raise ValueError(f"num_samples must be between 1 and {MAX_SAMPLES:,}, not {num_samples}")
    store = open_store(run.folder, run.data, data)
    name = next((name for name in ("test", "validation") if name in store.manifest.splits), None)
    if name is None:
        raise RunError(
            f"{store.folder} has no test or validation split; an audit compares with held-out examples, so train "
            f"on a store that was prepared with --test"
        )
    held_out = StoreSource(store.split(name))
    train_split = store.split("train")
    train = StoreSource(train_split)
    train_split.check_origins()  # before the work begins
    scaling = _scaling(run, train)
    unit: Literal["scaled columns", "pixels"] = "scaled columns" if len(run.data.shape) == 1 else "pixels"
    made = _made_by(run, num_samples)
    known = held_out.read(spread_rows(len(held_out), _MOST_QUERIES))
    compared = [known, *(each.examples for each in made)]
    queries = torch.cat([scaling(x).flatten(1) for x in compared])
    sizes = list(map(len, compared))
    scaled = MappedSource(train, scaling)
    with stage("comparing with training examples") as report:
        near, *others = _split(nearest(queries, scaled, report), sizes)
    contrast = _Contrast(mean_and_variance(linear_batches(scaled, 0))[0].float())
    with stage("comparing at one contrast") as report:
        near_faded, *others_faded = _split(nearest(contrast(queries), MappedSource(scaled, contrast), report), sizes)
    groups, shown = [], []
    for each, group, faded in zip(made, others, others_faded, strict=True):
        by_ratio, by_contrast = compare(group.ratio, near.ratio), compare(faded.ratio, near_faded.ratio)
        telling = faded if by_contrast.share > by_ratio.share else group
        closest = np.argsort(telling.ratio, kind="stable")[:_PAIRS]
        rows = telling.rows[closest]
        copies, originals = each.examples[closest], train.read(rows)
        distances = torch.linalg.vector_norm((scaling(copies) - scaling(originals)).flatten(1), dim=1)
        pairs = zip(each.numbers[closest], rows, distances, telling.ratio[closest], strict=True)
        groups.append(
            Closeness(
                kind=each.kind,
                count=len(each.examples),
                num_copies=_num_equal(group, unit),
                held_out_copies=_num_equal(near, unit),
                median_distance=float(np.median(group.distance)),
                by_distance=compare(group.distance, near.distance),
                by_ratio=by_ratio,
                closest=[Pair(int(n), int(row), float(far), float(ratio)) for n, row, far, ratio in pairs],
                by_contrast=by_contrast,
            )
        )
        names = name_examples(rows, train_split.origins(rows))
        shown.append(Shown(each.kind, copies.numpy(), originals.numpy(), names))
    audit = Audit(
        step=run.step,
        fingerprint=store.manifest.fingerprint,
        unit=unit,
        num_train=len(train),
        held_out=name,
        num_held_out=len(known),
        median_distance=float(np.median(near.distance)),
        groups=groups,
    )
    write_audit(run.folder, audit)
    return audit, shown


@dataclass(frozen=True, eq=False)
class _Made:
    """What a model gives away, in the units of the data: its points, or samples from it."""

    kind: Literal["points", "samples"]
    examples: Tensor
    numbers: NDArray[np.int64]
    """The number of each point or sample, counted from 0."""


def _made_by(run: TrainedRun, num_samples: int) -> list[_Made]:
    drawn = sample(run.model, num_samples, generator=generator_for(0, "audit")).cpu()
    samples = _Made("samples", drawn, np.arange(num_samples))
    own = run.model.prior.own_points()
    if own is None:
        return [samples]
    heaviest = own.heaviest(_MOST_POINTS).sort().values
    points = run.model.to_data_units(own.points)[heaviest].cpu()
    return [_Made("points", points, heaviest.cpu().numpy()), samples]


def _num_equal(found: Nearest, unit: str) -> int:
    """Return how many equal a training example, up to rounding."""
    return int((found.largest < _ROUNDING[unit]).sum())


def _split(found: Nearest, sizes: list[int]) -> list[Nearest]:
    """Divide what was found for all queries into groups of these sizes."""
    parts = np.cumsum(sizes)[:-1]
    columns = (np.split(getattr(found, field.name), parts) for field in dataclasses.fields(found))
    return [Nearest(*group) for group in zip(*columns, strict=True)]


@dataclass(frozen=True)
class _Contrast:
    """Brings examples to one contrast: a point between the mean and an example then equals the example."""

    mean: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return normalize(x.flatten(1) - self.mean, dim=1)


def _scaling(run: TrainedRun, train: ExampleSource) -> Callable[[Tensor], Tensor]:
    """Return what brings examples to the units of distances: columns of a table to one scale, pixels as they are."""
    if len(run.data.shape) == 3:
        return nn.Identity()
    if run.model.scaling is not None:
        return copy.deepcopy(run.model.scaling).cpu()  # distances are worked out on the CPU
    scaling = Scaling(run.data.shape[0])
    scaling.fit(linear_batches(train, 0))
    return scaling
