"""A progress bar for commands, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Report = Callable[[int, int], None]
"""Called with how much is done and with the total."""

Stage = Callable[[str], AbstractContextManager[Report]]
"""Shows a stage under its title: a context that yields the function that its progress is reported to."""

_is_silent = False


@contextmanager
def silent() -> Iterator[None]:
    """Show no progress while the block runs."""
    global _is_silent
    before, _is_silent = _is_silent, True
    try:
        yield
    finally:
        _is_silent = before


def is_silent() -> bool:
    """Tell whether no progress is to be shown."""
    return _is_silent


def no_report(done: int, total: int) -> None:
    """Report nothing."""


def no_stage(title: str) -> AbstractContextManager[Report]:
    """Show no progress."""
    return nullcontext(no_report)


def is_terminal(console: "Console", stream: TextIO | None) -> bool:
    """Tell whether a console writes to a terminal: where FORCE_COLOR is set, it takes any stream for one, also none."""
    return console.is_terminal and stream is not None and stream.isatty()


@contextmanager
def progress_bar(title: str) -> Iterator[Report]:
    """Show a bar with the time left while the block runs, on standard error."""
    from rich.console import Console  # here, since others take only the names above, and it is slow to load
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if _is_silent or not is_terminal(console, sys.stderr):
        yield no_report
        return
    count = TextColumn("{task.fields[count]}")  # empty until the total is known
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None, count="")
        yield lambda done, total: progress.update(task, completed=done, total=total, count=f"{done:,} of {total:,}")
