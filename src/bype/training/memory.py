"""A training that leaves no run directory: its best model is kept in memory."""

from dataclasses import dataclass
from typing import Any

import torch

from bype.data.store import Store
from bype.run.checkpoint import Checkpoint
from bype.run.config import TrainingConfig
from bype.training.display import Display, LastingDisplay
from bype.training.loop import Outcome, Trainer
from bype.training.monitor import Timings
from bype.training.reporter import Reporter
from bype.training.state import TrainingState


@dataclass(frozen=True)
class KeptModel:
    """What a training in memory leaves."""

    outcome: Outcome
    step: int
    model: dict[str, torch.Tensor]
    """The state of the best model, or of the last if none was validated."""


def train_in_memory(
    config: TrainingConfig, store: Store, display: Display | None = None, device: torch.device | str = "cpu"
) -> KeptModel:
    """Train the model that :func:`bype.training.loop.train` would, to the bit, and write nothing.

    Parameters
    ----------
    config
        What to train.
    store
        The data.
    display
        Shows progress.
    device
        What computes.
    """
    kept = _Keeper(display or Display())
    try:
        outcome = Trainer(config, store, kept, device=device).run()
    finally:
        kept.close()
    checkpoint = kept.best or kept.newest
    if checkpoint is None:
        raise RuntimeError("the training kept no model")
    return KeptModel(outcome, checkpoint.step, checkpoint.model)


class _Keeper(Reporter):
    def __init__(self, display: Display) -> None:
        self._display = LastingDisplay(display)
        self.best: Checkpoint | None = None
        self.newest: Checkpoint | None = None

    def begin(self, state: TrainingState, steps_per_epoch: int, share: float, timings: Timings) -> None:
        self._display.begin(steps_per_epoch, state.step, share)

    def stepped(self, step: int, share: float, timings: Timings) -> None:
        self._display.step(step, share)

    def log(self, step: int, epoch: float, line: dict[str, Any]) -> None:
        self._display.show(step, line)

    def warn(self, message: str) -> None:
        self._display.warn(message)

    def save(self, checkpoint: Checkpoint) -> None:
        if self.best is None:
            self.newest = _copied(checkpoint)

    def save_best(self, checkpoint: Checkpoint, is_last: bool) -> None:
        self.best = _copied(checkpoint)

    def close(self) -> None:
        self._display.close()


def _copied(checkpoint: Checkpoint) -> Checkpoint:
    """Return a copy of the model's numbers: the model itself is trained further."""
    model = {name: tensor.detach().cpu().clone() for name, tensor in checkpoint.model.items()}
    return Checkpoint(checkpoint.step, model, {}, {})
