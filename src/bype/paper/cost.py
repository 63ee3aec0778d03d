"""How many hours a table or a figure takes on this machine, from a few steps of every kind of cell."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bype.data.examples import StoreSource, TrainingOrder
from bype.data.store import Store
from bype.data.writer import StoreWriter
from bype.evaluation.augmentation import CLASSIFIER_BATCH, CLASSIFIER_HIDDEN
from bype.evaluation.density import faster_precision
from bype.objective import importance_weighted_bound
from bype.paper.cells import FULL, REDUCED, Cell, Protocol, config_of
from bype.paper.items import ITEMS, Item
from bype.paper.reproduce import cells_of
from bype.run.config import TrainingConfig
from bype.span import Span, steps_per_epoch
from bype.training.step import TrainingStep

ASSUMED_EPOCHS = 450
"""At full protocol validation decides when to stop; the runs so far stopped after 380 to 481 epochs."""
_STEPS = 4
_IMAGES, _DRAWS = 4, 32
_BATCH = 100
"""The examples of a step at full protocol."""


@dataclass(frozen=True)
class _Data:
    """The shape of a data set's examples, and how many there are."""

    shape: tuple[int, int, int]
    num_train: int
    num_validation: int
    num_test: int
    stand_ins: int
    """So many random examples stand for them while we measure; enough for the largest set of components."""


_DATA = {
    "mnist": _Data((1, 28, 28), 50_000, 10_000, 10_000, 25_000),
    "fashion-mnist": _Data((1, 28, 28), 50_000, 10_000, 10_000, 25_000),
    "cifar10": _Data((3, 32, 32), 40_000, 10_000, 10_000, 25_000),
    "celeba": _Data((3, 64, 64), 26_000, 2_000, 2_000, 500),
}


@dataclass(frozen=True)
class Pace:
    """Seconds that a kind of cell takes."""

    step: float
    """For a step of training at full protocol, on 100 examples."""
    update: float
    """For a batch of an update of the pseudocoreset; 0 without updates."""
    draw: float
    """For one importance sample of one image."""
    classifier: float
    """For a step of the classifier."""


def seconds(cell: Cell, pace: Pace, protocol: Protocol, num_classifiers: int) -> float:
    """Return how long a cell takes.

    Validation counts as a third of as many training steps: it has no backward pass. The larger batches of the reduced
    protocol count as so many steps of 100 examples, which is more than they take.
    """
    protocol = protocol.of(cell.network)
    data, config = _DATA[cell.data], config_of(cell, protocol)
    per_epoch = steps_per_epoch(data.num_train, config.batch_size)
    epochs = min(Span.parse(config.length).in_steps(per_epoch) / per_epoch, ASSUMED_EPOCHS)
    training = pace.step * (epochs * data.num_train + max(epochs, 1) * data.num_validation / 3) / _BATCH
    if every := getattr(config.rule, "every", None):
        num_updates = epochs / (Span.parse(every).in_steps(per_epoch) / per_epoch)
        training += num_updates * (protocol.update_steps or per_epoch) * pace.update * config.batch_size / _BATCH
    measuring = (protocol.images or data.num_test) * protocol.draws * pace.draw
    classifier_steps = num_classifiers * protocol.classifier_epochs * data.num_train / CLASSIFIER_BATCH
    return training + measuring + classifier_steps * pace.classifier


def hours(items: tuple[Item, ...], paces: Mapping[str, Pace], protocol: Protocol, seeds: int) -> float:
    """Return how many hours items take together; a cell that several share is counted once.

    Parameters
    ----------
    items
        The tables and figures.
    paces
        The pace of each cell, by its path; cells that are not in it are left out.
    protocol, seeds
        How long, and how often.
    """
    total = 0.0
    for cell, lines in cells_of(items, seeds):
        if cell.path in paces:
            classifiers = {line.classifier for line in lines} - {None}
            total += seconds(cell, paces[cell.path], protocol, len(classifiers))
    return total / 3600


def cost_lines(paces: Mapping[str, Pace], seeds: int) -> Iterator[str]:
    """Say for every item of which something was measured how long it takes, and all of them together."""
    measured = [item for item in ITEMS.values() if any(cell.path in paces for cell in item.cells)]
    for title, items in [*((item.name, (item,)) for item in measured), ("all", tuple(measured))]:
        full, reduced = (hours(items, paces, protocol, seeds) for protocol in (FULL, REDUCED))
        cells = len([cell for cell, _ in cells_of(items, seeds) if cell.path in paces])
        yield f"{title:<9} {full:>10,.1f} h full, {reduced:>8,.2f} h reduced, for {cells} trainings"
    yield (
        f"with {seeds} seeds, one process on {torch.get_num_threads()} threads; assumed: {ASSUMED_EPOCHS} epochs at "
        "full protocol, where validation decides; items that share cells train them once; kNN, maps and pictures take "
        "minutes more for each cell"
    )


def measure(cells: list[Cell], folder: Path, say: Callable[[str], None]) -> dict[str, Pace]:
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
        data, config = _DATA[cell.data], config_of(cell, FULL)
        key = data.shape, config
        if key not in known:
            if data.shape not in stores:
                stores[data.shape] = _stand_in(data, folder / "x".join(map(str, data.shape)))
            known[key] = _pace(config, stores[data.shape])
            pace = known[key]
            say(f"{cell.path}: {1e3 * pace.step:.1f} ms for a step, {1e6 * pace.draw:.1f} µs for an importance sample")
        paces[cell.path] = known[key]
    return paces


def _stand_in(data: _Data, folder: Path) -> Store:
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
