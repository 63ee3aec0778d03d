"""How each process spends its time, in the text format that monitoring systems read."""

import time

import torch
from torch import Tensor

PARTS = ("data", "compute", "communication")


class Timings:
    """Seconds that each process of a run has spent on each part of its steps, since this process began.

    Every process fills its own row of ``newest``; the sum over processes holds the rows of all.

    Parameters
    ----------
    rank, size
        The number of this process and how many there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._own = torch.zeros(len(PARTS), dtype=torch.float64)
        self.newest = torch.zeros(size, len(PARTS))
        self.totals = torch.zeros(size, len(PARTS), dtype=torch.float64)

    def add(self, data: float, compute: float, communication: float) -> None:
        """Add the seconds of one step of this process."""
        self._own += torch.tensor([data, compute, communication], dtype=torch.float64)

    def to_sum(self) -> Tensor:
        """Return what to sum over all processes: the seconds of this one since the last call."""
        self.newest.zero_()
        self.newest[self._rank] = self._own
        self._own.zero_()
        return self.newest

    def add_sum(self) -> None:
        """Add the sum over all processes to the totals."""
        self.totals += self.newest


def monitoring_text(run: str, step: int, timings: Timings, is_running: bool) -> str:
    """Describe a run in the text format of Prometheus; the label ``run`` tells runs on one machine apart.

    Examples
    --------
    >>> print(monitoring_text("/runs/a", 7, Timings(0, 1), True).splitlines()[2])
    bype_step{run="/runs/a"} 7
    """
    escaped = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    name = f'run="{escaped}"'
    lines = [
        "# HELP bype_step Training steps so far.",
        "# TYPE bype_step gauge",
        f"bype_step{{{name}}} {step}",
        "# HELP bype_running Whether the run trains: 1, or 0 since it has finished, stopped or failed.",
        "# TYPE bype_running gauge",
        f"bype_running{{{name}}} {int(is_running)}",
        "# HELP bype_heartbeat_seconds Time of the last heartbeat, in seconds since 1970.",
        "# TYPE bype_heartbeat_seconds gauge",
        f"bype_heartbeat_seconds{{{name}}} {time.time():.3f}",
        "# HELP bype_spent_seconds_total Seconds of steps in each process since it began; communication has waits.",
        "# TYPE bype_spent_seconds_total counter",
    ]
    for rank, row in enumerate(timings.totals.tolist()):
        for part, seconds in zip(PARTS, row, strict=True):
            lines.append(f'bype_spent_seconds_total{{{name},rank="{rank}",part="{part}"}} {seconds:.6f}')
    return "\n".join([*lines, ""])
