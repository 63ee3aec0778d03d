"""What every benchmark shares: timing, memory, where a number comes from, how a table is printed."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from bype.paper import provenance

_COMMIT = provenance.commit() or "unknown"
"""Read first: somebody may commit during a training of hours."""


def machine() -> str:
    """Say on what the numbers were taken."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{platform.machine()}, {os.cpu_count()} processors, {torch.get_num_threads()} threads, {versions}"


def commit() -> str:
    """Return the commit that was checked out when this process began, and whether the library was changed since."""
    return _COMMIT


def head(*names: str) -> Iterator[str]:
    """Return the first two lines of a table."""
    yield f"| {' | '.join(names)} |"
    yield f"|{' --- |' * len(names)}"


def interleaved_seconds(functions: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Call the functions in turn, round by round, so that a slow moment of the machine hits them all."""
    for function in functions.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def _status(field: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def peak_bytes_beyond_inputs(function: Callable[[], object]) -> int:
    """Return the growth of this process's memory at its highest while ``function`` runs (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status("VmRSS")
    function()
    return _status("VmHWM") - before


def summary(values: list[float]) -> str:
    """Return the median and the range, in milliseconds."""
    return f"{1e3 * statistics.median(values):.2f} ms ({1e3 * min(values):.2f} to {1e3 * max(values):.2f})"
