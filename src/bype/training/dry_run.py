"""The size and the time of a run, measured on a few steps."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from bype.data.store import Store
from bype.run.build import require_fitting, require_white
from bype.run.config import TrainingConfig
from bype.span import Span, steps_per_epoch
from bype.training.loop import Trainer
from bype.training.reporter import Reporter

_STEPS = 8


def dry_run(config: TrainingConfig, data: Path, device: torch.device) -> Iterator[str]:
    """Describe in lines how large the model is and how long an epoch takes; nothing is written."""
    store = Store(data)
    split = store.split("train")
    require_fitting(config, split.shape, len(split))
    require_white(config, split)
    trainer = Trainer(config, store, Reporter(), device=device)
    model = trainer.model
    parameters = sum(p.numel() for p in model.parameters())
    state = sum(math.prod(t.shape) * t.element_size() for t in model.state_dict().values())
    moments = 2 * sum(p.numel() * p.element_size() for p in model.parameters())
    yield f"data: {store.manifest.source}, {len(split):,} examples of shape {split.shape} to train on"
    yield f"model: {parameters:,} parameters; {(state + moments) / 1e6:.1f} MB in memory with Adam's moments"
    steps = steps_per_epoch(len(split), config.batch_size)
    epoch = steps * step_seconds(trainer, _STEPS)
    yield f"time: about {epoch:.1f} s for an epoch of {steps:,} steps, without validation and updates"
    length = Span.parse(config.length)
    if length.is_fixed:
        longest = length.in_steps(steps) / steps * epoch
        may_stop = Span.parse(config.patience).count > 0 and "validation" in store.manifest.splits
        sooner = ", sooner if validation stops improving" if may_stop else ""
        yield f"      at most {longest / 3600:.1f} h for {config.length}{sooner}"
    else:
        most = length.count / epoch
        yield f"      at most about {most:,.1f} epochs in {config.length}; validation and updates take from it"


def step_seconds(trainer: Trainer, count: int) -> float:
    """Take some steps of the training itself, and return how long one takes."""
    return median_seconds([trainer.take_step] * count)


def median_seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Return the median seconds of calls; the first one, which warms up, does not count."""
    took = []
    for call in calls:
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return statistics.median(took[1:])
