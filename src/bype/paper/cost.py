"""Measuring what a cell costs: a few steps of every kind, on random images."""

import itertools
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bype.data.examples import StoreSource, TrainingOrder
from bype.data.store import Store
from bype.data.writer import StoreWriter
from bype.evaluation.augmentation import CLASSIFIER_HIDDEN
from bype.evaluation.density import faster_precision
from bype.objective import importance_weighted_bound
from bype.paper.cells import FULL, Cell, config_of
from bype.paper.hours import DATA, Costs, DataSize, Pace
from bype.paper.provenance import commit
from bype.run.config import TrainingConfig
from bype.training.step import TrainingStep

_STEPS = 4
_IMAGES, _DRAWS = 4, 32


def measure(cells: list[Cell], folder: Path, say: Callable[[str], None]) -> Costs:
    """Measure the pace of cells on random images in a temporary folder; cells that compute the same are measured once.

    Parameters
    ----------
    cells
        The cells.
    folder
        For the random images, some 120 MB.
    say
        Called with a line for each kind of cell.
    """
    known: dict[tuple[tuple[int, ...], TrainingConfig], Pace] = {}
    stores: dict[tuple[int, ...], Store] = {}
    paces = {}
    for cell in cells:
        data, config = DATA[cell.data], config_of(cell, FULL)
        key = data.shape, config
        if key not in known:
            if data.shape not in stores:
                stores[data.shape] = _stand_in(data, folder / "x".join(map(str, data.shape)))
            known[key] = _pace(config, stores[data.shape])
            pace = known[key]
            say(f"{cell.path}: {1e3 * pace.step:.1f} ms for a step, {1e6 * pace.draw:.1f} µs for an importance sample")
        paces[cell.path] = known[key]
    return Costs(commit(), platform.platform(), str(torch.__version__), torch.get_num_threads(), paces)


def _stand_in(data: DataSize, folder: Path) -> Store:
    """Write a store of random images."""
    random = np.random.default_rng(0)
    with StoreWriter(folder, data.shape, "uint8", classes=(), names=(), source="random", has_labels=False) as writer:
        for _ in range(0, data.stand_ins, 500):
            writer.append("train", random.integers(0, 256, (500, *data.shape), dtype=np.uint8), None)
    return Store(folder)


def _pace(config: TrainingConfig, store: Store) -> Pace:
    split = store.split("train")
    source = StoreSource(split)
    training_step = TrainingStep.build(config, split.shape, source)
    model, rule = training_step.model, training_step.rule
    order = TrainingOrder(split, config.seed, config.batch_size, config.window_blocks)
    batches = [torch.from_numpy(order.rows(step % order.steps_per_epoch)) for step in range(_STEPS)]
    step = _median([partial(training_step, source.take(rows), rows) for rows in batches])
    update = 0.0
    if rule.every is not None:
        x = source.take(batches[0])
        update = _median([lambda: rule.update(model, [x])] * 2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=faster_precision() == "bfloat16"):
        prior, x = model.prior_distribution(), source.take(batches[0][:_IMAGES])
        bound = _median([lambda: importance_weighted_bound(model, x, _DRAWS, prior=prior)] * 2)
    return Pace(step, update, bound / (_IMAGES * _DRAWS), _classifier_step(source.take(batches[0])))


def _classifier_step(x: torch.Tensor) -> float:
    """Return the seconds of a step with as many real and generated examples, without generating them."""
    x = torch.cat([x, x]).flatten(1)
    widths = [x.shape[1], CLASSIFIER_HIDDEN, CLASSIFIER_HIDDEN, 10]
    classifier = torch.nn.Sequential(*(torch.nn.Linear(*size) for size in itertools.pairwise(widths)))
    optimizer = torch.optim.SGD(classifier.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        classifier(x).square().mean().backward()
        optimizer.step()

    return _median([step] * 3)


def _median(calls: list[Callable[[], object]]) -> float:
    """Return the median seconds of calls; the first one, which warms up, does not count."""
    took = []
    for call in calls:
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return statistics.median(took[1:])
