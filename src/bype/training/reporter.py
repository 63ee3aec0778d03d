"""Reports of training: the files of the run directory, the display, TensorBoard. Only one process writes them."""

import secrets
import time
from collections.abc import Callable
from typing import Any

from bype.distributions import Distribution
from bype.models.base import LatentModel
from bype.randomness import generator_for
from bype.run.checkpoint import Checkpoint
from bype.run.directory import RunDirectory
from bype.run.metrics import MetricsFile
from bype.run.pace import Pace, paces_file, read_paces
from bype.training.board import open_board
from bype.training.display import Display, LastingDisplay
from bype.training.monitor import Timings, monitoring_text
from bype.training.state import TrainingState

_MONITOR_SECONDS = 5.0


class Reporter:
    """Reports nothing: for the processes of a run that only compute."""

    def has_checkpoint(self) -> bool:
        """Tell whether there is something to resume from, damaged or not."""
        return False

    def newest_checkpoint(self, max_bytes: int) -> Checkpoint | None:
        """Return the newest checkpoint that is complete."""
        return None

    def paces(self) -> list[Pace]:
        """Return what the clock said in an earlier process."""
        return []

    def save_paces(self, paces: list[Pace]) -> None:
        """Keep what the clock said."""

    def begin(self, state: TrainingState, steps_per_epoch: int, share: float, timings: Timings) -> None:
        """Begin, or resume from a state; metrics of later steps are removed."""

    def stepped(self, step: int, share: float, timings: Timings) -> None:
        """Count a step, after which this share of the training is done, and send heartbeats."""

    def beat(self) -> None:
        """Send a heartbeat, also in the middle of long steps."""

    def log(self, step: int, epoch: float, line: dict[str, Any]) -> None:
        """Add a line of metrics."""

    def show_samples(self, step: int, model: LatentModel, prior: Distribution, seed: int) -> None:
        """Show samples of the model, if TensorBoard is installed."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint to resume from."""

    def save_best(self, checkpoint: Checkpoint, is_last: bool) -> None:
        """Keep the best model so far; if it is the last, also the one before, with which a longer run continues."""

    def return_to_best(self, step: int) -> None:
        """Forget a best model that is later than the one of ``step``: a longer run does not validate there."""

    def sync_metrics(self) -> int:
        """Wait until all lines of metrics are on the disk, and return their length."""
        return 0

    def set_status(self, state: str, **details: Any) -> None:
        """Write the state of the run."""

    def warn(self, message: str) -> None:
        """Warn of a problem that does not stop training."""

    def fail(self, step: int | None, error: str) -> None:
        """Say that the run has failed, and why."""

    def save_broken(self, content: dict[str, Any]) -> str:
        """Keep what caused a loss that is not finite, and return where it is kept."""
        return ""

    def close(self) -> None:
        """Release files and the terminal."""


class RunReporter(Reporter):
    """Writes all to a run directory, and shows progress.

    Parameters
    ----------
    run
        The run directory, held by this process.
    display
        Where progress is shown.
    """

    def __init__(self, run: RunDirectory, display: Display) -> None:
        self._run = run
        self._display = LastingDisplay(display)
        self._metrics: MetricsFile | None = None
        self._board: Any = None
        self._start, self._process = time.perf_counter(), secrets.token_hex(4)
        self._monitored = 0.0
        self._newest: tuple[int, Timings] | None = None
        self._is_running = True
        self._unwritten: set[str] = set()

    def has_checkpoint(self) -> bool:
        return bool(self._run.checkpoints.steps())

    def newest_checkpoint(self, max_bytes: int) -> Checkpoint | None:
        return self._run.checkpoints.load_newest(self._display.warn, max_bytes)

    def warn(self, message: str) -> None:
        self._display.warn(message)

    def paces(self) -> list[Pace]:
        return read_paces(self._run.folder)

    def save_paces(self, paces: list[Pace]) -> None:
        self._run.write("pace.json", paces_file(paces))

    def begin(self, state: TrainingState, steps_per_epoch: int, share: float, timings: Timings) -> None:
        path = self._run.folder / "metrics.jsonl"
        self._metrics = MetricsFile(path, state.metrics_bytes, state.step, self._display.warn)
        self._aside("tensorboard", lambda: self._open_board(state.step))
        self._display.begin(steps_per_epoch, state.step, share)
        self._newest = state.step, timings
        self.set_status("running", step=state.step)

    def stepped(self, step: int, share: float, timings: Timings) -> None:
        self._display.step(step, share)
        self._newest = step, timings
        self.beat()

    def _aside(self, name: str, write: Callable[[], None]) -> bool:
        """Write what nothing depends on; if that fails, as on a full disk, warn once and continue."""
        try:
            write()
        except (OSError, ImportError, UnicodeEncodeError) as error:  # TensorBoard takes no path that is no UTF-8
            if name not in self._unwritten:
                self._unwritten.add(name)
                reason = getattr(error, "strerror", None) or error
                self._display.warn(f"cannot write {self._run.folder / name}: {reason}; training continues")
            return False
        return True

    def _open_board(self, step: int) -> None:
        self._board = open_board(self._run.subfolder("tensorboard"), step)

    def _on_board(self, show: Callable[[Any], None]) -> None:
        if self._board is not None and not self._aside("tensorboard", lambda: show(self._board)):
            self._board = None  # its thread has ended

    def _write_monitor(self) -> None:
        if self._newest is not None:
            text = monitoring_text(str(self._run.folder.resolve()), *self._newest, self._is_running)
            self._aside("monitor.prom", lambda: self._run.write_text("monitor.prom", text))

    def beat(self) -> None:
        self._run.lock.beat()
        now = time.perf_counter()
        if now - self._monitored >= _MONITOR_SECONDS:
            self._monitored = now
            self._write_monitor()

    def log(self, step: int, epoch: float, line: dict[str, Any]) -> None:
        self._run.check_fence()
        self._open_metrics().append({"step": step, "epoch": round(epoch, 6), **line})
        seconds = round(time.perf_counter() - self._start, 3)
        timing = {"step": step, "seconds_in_process": seconds, "process": self._process}
        self._aside("timings.jsonl", lambda: self._run.append("timings.jsonl", timing))
        self._display.show(step, line)
        self._on_board(lambda board: board.show(step, line))

    def show_samples(self, step: int, model: LatentModel, prior: Distribution, seed: int) -> None:
        self._on_board(lambda board: board.show_samples(step, model, prior, generator_for(seed, "board", step)))

    def save(self, checkpoint: Checkpoint) -> None:
        self._run.checkpoints.save(checkpoint)
        self.set_status("running", step=checkpoint.step)

    def save_best(self, checkpoint: Checkpoint, is_last: bool) -> None:
        self._run.best.save(checkpoint, more=1 if is_last else 0)

    def return_to_best(self, step: int) -> None:
        self._run.best.return_to(step)

    def sync_metrics(self) -> int:
        return self._open_metrics().sync()

    def set_status(self, state: str, **details: Any) -> None:
        self._run.set_status(state, **details)
        self._is_running = state == "running"
        self._write_monitor()

    def fail(self, step: int | None, error: str) -> None:
        has_begun = self._metrics is not None
        if has_begun or not self._run.is_finished():  # a finished run that could not begin again is still finished
            self.set_status("failed", step=step, error=error)

    def save_broken(self, content: dict[str, Any]) -> str:
        self._run.write("broken.json", content)
        return str(self._run.folder / "broken.json")

    def close(self) -> None:
        self._on_board(lambda board: board.close())
        self._display.close()
        if self._metrics is not None:
            self._metrics.close()

    def _open_metrics(self) -> MetricsFile:
        if self._metrics is None:
            raise RuntimeError("the reporter has not begun")
        return self._metrics
