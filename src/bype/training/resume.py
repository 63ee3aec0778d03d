"""Checkpoints of a training: what is saved, and how it resumes."""

import hashlib
import time
from collections.abc import Callable

from torch import Tensor

from bype.distributed import Group
from bype.run.checkpoint import Checkpoint, CheckpointError
from bype.training.average import RunningAverage
from bype.training.reporter import Reporter
from bype.training.state import TrainingState
from bype.training.step import TrainingStep
from bype.wording import first_line

_TRAINING_SIZE = 7
"""No file of a checkpoint is larger than this many times the model and the rule: both may have moments, in float64, and
there may be an average."""


class Snapshot:
    """Saves and restores all that moves in a training: the model, its average, the optimiser, the rule, the counts.

    Parameters
    ----------
    step
        Holds model, optimiser and rule.
    average
        Of the model.
    reporter
        Keeps checkpoints, in the first process.
    group
        The processes of the run; all call the methods together.
    start
        Prepares the model of a run that begins, in the first process.
    """

    def __init__(
        self,
        step: TrainingStep,
        average: RunningAverage,
        reporter: Reporter,
        group: Group,
        start: Callable[[], None],
    ) -> None:
        self._step, self._average, self._reporter, self._group, self._start = step, average, reporter, group, start
        self._saved: tuple[int, bool] | None = None
        """The state that the newest checkpoint holds: the step, and whether an update is still due."""
        self.seconds = 0.0
        """The time that saving has taken."""

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint, unless this state is saved already."""
        now = state.step, state.is_update_due
        if self._saved == now:
            return
        start = time.perf_counter()
        self._group.check_launcher()
        state.metrics_bytes = self._reporter.sync_metrics()
        training = {f"adam.{name}": value for name, value in self._step.optimizer.state().items()}
        training |= {f"rule.{name}": value for name, value in self._step.rule.state_dict().items()}
        training |= {f"average.{name}": value for name, value in self._average.state().items()}
        model = self._step.model.state_dict()
        if self._group.size > 1:
            self._group.require_same(_digest(model | training), "the model")
        self._reporter.save(Checkpoint(state.step, model, training, state.to_fields(self._group)))
        self._saved = now
        self.seconds += time.perf_counter() - start

    def restore(self) -> TrainingState:
        """Resume from the newest complete checkpoint, or start; all processes take what process 0 has."""
        tensors = self._step.model.state_dict()
        saved = [*tensors.values(), *self._step.rule.state_dict().values()]
        num_bytes = sum(value.numel() * value.element_size() for value in saved)
        checkpoint = self._reporter.newest_checkpoint(_TRAINING_SIZE * num_bytes + 2**22)
        if self._group.size > 1:
            content = self._group.broadcast(b"" if checkpoint is None else checkpoint.to_bytes(), is_patient=True)
            checkpoint = Checkpoint.from_bytes(content) if content else None
        if checkpoint is None:
            if self._group.is_first:
                self._start()
            self._group.copy_first_(list(tensors.values()), is_patient=True)
            return TrainingState()
        try:
            self._step.model.load_state_dict(checkpoint.model)
            self._step.optimizer.load_state(_part(checkpoint.training, "adam."))
            self._step.rule.load_state_dict(_part(checkpoint.training, "rule."))
            self._average.load_state(_part(checkpoint.training, "average."))
            state = TrainingState.from_fields(checkpoint.state, self._group)
            if state.step != checkpoint.step:
                raise ValueError(f"its state is of step {state.step}")
            if state.is_update_due and self._step.rule.every is None:
                raise ValueError("an update is due, and there is no rule for it")
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"checkpoint {checkpoint.step} does not fit this config: {first_line(error)}; remove it to resume from "
                f"the one before it, or choose another --out"
            ) from error
        self._saved = checkpoint.step, state.is_update_due
        return state


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _digest(tensors: dict[str, Tensor]) -> bytes:
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()
