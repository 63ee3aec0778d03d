"""Measuring what a cell costs: a few steps of every kind, on random images."""

import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bype.data.examples import StoreSource
from bype.data.store import Store
from bype.data.writer import StoreWriter
from bype.evaluation.augmentation import CLASSIFIER_BATCH, build_classifier, classifier_loss
from bype.evaluation.density import faster_precision
from bype.objective import importance_weighted_bound
from bype.paper.cells import FULL, Cell, config_of
from bype.paper.hours import DATA, Costs, DataSize, Pace
from bype.paper.provenance import commit
from bype.run.build import build_rule
from bype.run.config import TrainingConfig
from bype.training.dry_run import median_seconds, step_seconds
from bype.training.loop import Trainer
from bype.training.reporter import Reporter

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
        data = DATA[cell.data]
        if not cell.has_model:
            took = _classifier_step(torch.rand(CLASSIFIER_BATCH, *data.shape), 1)
            paces[cell.path] = Pace(0.0, 0.0, 0.0, took)
            say(f"{cell.path}: {1e3 * took:.1f} ms for a step")
            continue
        config = config_of(cell, FULL)
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
        for split in ("validation", *["train"] * (data.stand_ins // 500)):  # averages need a validation split
            writer.append(split, random.integers(0, 256, (500, *data.shape), dtype=np.uint8), None)
    return Store(folder)


def _pace(config: TrainingConfig, store: Store) -> Pace:
    trainer = Trainer(config, store, Reporter())
    step, model = step_seconds(trainer, _STEPS), trainer.model
    x = StoreSource(store.split("train")).take(torch.arange(config.batch_size))
    rule, update = build_rule(config.rule, model), 0.0
    if rule.every is not None:
        update = median_seconds([lambda: rule.update(model, [x])] * 2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=faster_precision() == "bfloat16"):
        prior = model.prior_distribution()
        bound = median_seconds([lambda: importance_weighted_bound(model, x[:_IMAGES], _DRAWS, prior=prior)] * 2)
    return Pace(step, update, bound / (_IMAGES * _DRAWS), _classifier_step(x, 2))


def _classifier_step(x: torch.Tensor, kinds: int) -> float:
    """Return the seconds of a step with examples of one or two kinds, real and generated, without generating them."""
    classifier, labels = build_classifier(x[0].numel(), 10, seed=0), torch.arange(len(x)) % 10
    optimizer = torch.optim.SGD(classifier.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.stack([classifier_loss(classifier, x, labels) for _ in range(kinds)]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return median_seconds([step] * 3)
