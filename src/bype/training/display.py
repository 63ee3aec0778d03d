"""Showing the progress of a run: a live line on a terminal, plain lines elsewhere."""

import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from bype.console import is_silent, is_terminal

_PAUSE = 5.0
"""Seconds between lines on a terminal; ``metrics.jsonl`` has all of them."""
_RECENT_LINES = 20
"""The speed is measured over so many lines of metrics: a machine that was busy for a while is soon forgotten."""


class _Mark(NamedTuple):
    """How far training was at a time."""

    step: int
    share: float
    seconds: float


class Display:
    """Shows no progress; the base class of displays."""

    def begin(self, steps_per_epoch: int, step: int, share: float) -> None:
        """Begin, or resume after ``step`` steps, which are this share of the training."""

    def step(self, step: int, share: float) -> None:
        """Count a step, after which this share of the training is done."""

    def show(self, step: int, line: dict[str, Any]) -> None:
        """Show a line of metrics."""

    def warn(self, message: str) -> None:
        """Warn of a problem that does not stop training."""
        warnings.warn(message, stacklevel=2)

    def close(self) -> None:
        """Give the terminal back."""


def describe(line: dict[str, Any]) -> str:
    """Describe a line of metrics in words.

    Examples
    --------
    >>> describe({"train": {"negative_elbo": 25.123, "kl_z": 7.0}, "validation": {"negative_elbo": 26.0}, "best": True})
    'train -ELBO 25.123, KL of z 7.000 | validation -ELBO 26.000 | best so far'
    """
    parts = []
    for split in ("train", "validation"):
        if line.get(split):
            terms = [f"{_short(name)} {value:.3f}" for name, value in line[split].items()]
            parts.append(f"{split} {', '.join(terms)}")
    if line.get("best"):
        parts.append("best so far")
    if "update" in line:
        update = line["update"]
        text = "pseudocoreset updated" + (f" in {update['steps']} steps" if "steps" in update else "")
        if "kl_before" in update:
            text += f", validation KL {update['kl_before']:.3f} to {update['kl_after']:.3f}"
        parts.append(text + (", and taken back" if update.get("taken_back") else ""))
    return " | ".join(parts)


def _short(name: str) -> str:
    return name.replace("negative_elbo", "-ELBO").replace("negative_", "-").replace("kl_", "KL of ")


class PlainDisplay(Display):
    """One line for each line of metrics, with the rate and the time left."""

    def __init__(self) -> None:
        self._out, self._err = sys.stdout, sys.stderr
        self._steps_per_epoch = 1
        self._share = 0.0
        self._marks: deque[_Mark] = deque(maxlen=_RECENT_LINES)

    def begin(self, steps_per_epoch: int, step: int, share: float) -> None:
        self._steps_per_epoch, self._share = steps_per_epoch, share
        if step:
            self._write(f"resuming at step {step}")
        self._write("minus ELBO in nats per example; smaller is better:")

    def step(self, step: int, share: float) -> None:
        self._share = share
        if not self._marks:
            # Speed is measured from here on: the first step takes long, and of a time, a part is then kept for
            # validation, so that the share jumps.
            self._marks.append(_Mark(step, share, time.perf_counter()))

    def show(self, step: int, line: dict[str, Any]) -> None:
        text = f"epoch {round(step / self._steps_per_epoch, 2):g} | {describe(line)}"
        now = _Mark(step, self._share, time.perf_counter())
        if self._marks and (done := now.share - self._marks[0].share) > 0:
            left = (now.seconds - self._marks[0].seconds) * (1 - now.share) / done
            text += f" | {self._rate(now):.3g} steps/s, at most {_duration(left)} left"
            self._marks.append(now)
        self._write(text)

    def _rate(self, now: _Mark) -> float:
        """Return the steps in a second, over the last lines."""
        past = self._marks[0]
        return (now.step - past.step) / max(1e-9, now.seconds - past.seconds)

    def warn(self, message: str) -> None:
        (self._err or self._out).write(f"warning: {message}\n")  # 2>&- closes standard error

    def _write(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


class LiveDisplay(PlainDisplay):
    """A progress bar, and above it every few seconds the loss in a line that fits a narrow terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]:.2f}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f}%, {task.fields[rate]:.3g} steps/s"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._shown = 0.0
        self._last_line = -_PAUSE

    def begin(self, steps_per_epoch: int, step: int, share: float) -> None:
        super().begin(steps_per_epoch, step, share)
        self._progress.start()
        self._task = self._progress.add_task("training", total=1.0, epoch=0.0, rate=0.0)

    def step(self, step: int, share: float) -> None:
        super().step(step, share)
        now = _Mark(step, share, time.perf_counter())
        if self._task is not None and now.seconds - self._shown > 0.2:
            self._shown = now.seconds
            rate = self._rate(now)
            self._progress.update(self._task, completed=share, epoch=step / self._steps_per_epoch, rate=rate)

    def show(self, step: int, line: dict[str, Any]) -> None:
        text = f"epoch {round(step / self._steps_per_epoch, 2):<6g}"
        if "update" in line:  # rare, so it is always shown
            self._write(f"{text} | {describe(line)}")
            return
        now = time.perf_counter()
        if now - self._last_line < _PAUSE:
            return
        self._last_line = now
        if self._marks:
            self._marks.append(_Mark(step, self._share, now))
        for split in ("train", "validation"):
            if "negative_elbo" in line.get(split, {}):
                text += f" | {split} {line[split]['negative_elbo']:.3f}"
        self._write(text + (" | best" if line.get("best") else ""))

    def warn(self, message: str) -> None:
        self._console.print("[yellow]warning:[/yellow]", escape(message), highlight=False)  # paths may hold brackets

    def close(self) -> None:
        self._progress.stop()

    def _write(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


class LastingDisplay(Display):
    """Another display, as long as it works: training does not depend on who reads its progress.

    A pipe may be closed, and a disk that takes the lines may be full. Then nothing more is shown.

    Parameters
    ----------
    display
        What shows progress.
    """

    def __init__(self, display: Display) -> None:
        self._display = display

    def begin(self, steps_per_epoch: int, step: int, share: float) -> None:
        self._try(lambda: self._display.begin(steps_per_epoch, step, share))

    def step(self, step: int, share: float) -> None:
        self._try(lambda: self._display.step(step, share))

    def show(self, step: int, line: dict[str, Any]) -> None:
        self._try(lambda: self._display.show(step, line))

    def warn(self, message: str) -> None:
        self._try(lambda: self._display.warn(message))

    def close(self) -> None:
        self._try(self._display.close)

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed in this process
            broken, self._display = self._display, Display()
            with suppress(OSError, ValueError):
                broken.close()
            with suppress(OSError, ValueError):
                if sys.stderr is not None:
                    sys.stderr.write(f"warning: progress is no longer shown ({error}); training continues\n")


def display_here() -> Display:
    """Return the display that suits standard output: live on a terminal, plain elsewhere, none if it is closed."""
    if sys.stdout is None:
        return Display()
    console = Console()
    return LiveDisplay(console) if is_terminal(console, sys.stdout) and not is_silent() else PlainDisplay()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s"
