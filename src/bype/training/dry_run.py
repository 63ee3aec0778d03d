"""The size and the time of a run, measured on a few steps."""

import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from bype.data.examples import StoreSource, TrainingOrder
from bype.data.store import Store
from bype.run.build import build_model, labels_for
from bype.run.config import TrainingConfig
from bype.span import Span, steps_per_epoch
from bype.training.step import TrainingStep

_STEPS = 8


def dry_run(config: TrainingConfig, data: Path) -> Iterator[str]:
    """Describe in lines how large the model is and how long an epoch takes; nothing is written."""
    store = Store(data)
    split = store.split("train")
    model = build_model(config, split.shape, StoreSource(split), labels=labels_for(config, split))
    parameters = sum(p.numel() for p in model.parameters())
    state = sum(math.prod(t.shape) * t.element_size() for t in model.state_dict().values())
    moments = 2 * sum(p.numel() * p.element_size() for p in model.parameters())
    yield f"data: {store.manifest.source}, {len(split):,} examples of shape {split.shape} to train on"
    yield f"model: {parameters:,} parameters; {(state + moments) / 1e6:.1f} MB in memory with Adam's moments"
    epoch = seconds_per_epoch(config, store)
    steps = steps_per_epoch(len(split), config.batch_size)
    yield f"time: about {epoch:.1f} s for an epoch of {steps:,} steps, without validation and updates"
    length = Span.parse(config.length)
    if length.is_fixed:
        longest = length.in_steps(steps) / steps * epoch
        yield f"      at most {longest / 3600:.1f} h for {config.length}, sooner if validation stops improving"
    else:
        most = length.count / epoch
        yield f"      at most about {most:,.1f} epochs in {config.length}; validation and updates take from it"


def seconds_per_epoch(config: TrainingConfig, store: Store) -> float:
    """Return how long an epoch takes, without validation and updates, from a few steps."""
    split = store.split("train")
    source = StoreSource(split)
    labels = labels_for(config, split)
    training_step = TrainingStep.build(config, split.shape, source, labels=labels)
    order = TrainingOrder(split, config.seed, config.batch_size, config.window_blocks)
    seconds = []
    for step in range(_STEPS):
        start = time.perf_counter()
        rows = order.rows(step % order.steps_per_epoch)
        own = None if labels is None else labels[torch.from_numpy(rows)]
        training_step(source.read(rows), torch.from_numpy(rows), labels=own)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:]) * order.steps_per_epoch
