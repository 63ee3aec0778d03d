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


def monitoring_text(step: int, timings: Timings, is_running: bool) -> str:
    """Describe a run in the OpenMetrics text format, which Prometheus and others read from a file.

    Examples
    --------
    >>> print(monitoring_text(7, Timings(0, 1), True).splitlines()[2])
    bype_step 7
    """
    lines = [
        "# TYPE bype_step gauge",
        "# HELP bype_step Training steps so far.",
        f"bype_step {step}",
        "# TYPE bype_running gauge",
        "# HELP bype_running Whether the run trains: 1, or 0 since it has finished, stopped or failed.",
        f"bype_running {int(is_running)}",
        "# TYPE bype_heartbeat_seconds gauge",
        "# UNIT bype_heartbeat_seconds seconds",
        "# HELP bype_heartbeat_seconds Time of the last heartbeat, in seconds since 1970.",
        f"bype_heartbeat_seconds {time.time():.3f}",
        "# TYPE bype_spent_seconds counter",
        "# UNIT bype_spent_seconds seconds",
        "# HELP bype_spent_seconds Time spent on steps in each process since it began; communication includes waiting.",
    ]
    for rank, row in enumerate(timings.totals.tolist()):
        for part, seconds in zip(PARTS, row, strict=True):
            lines.append(f'bype_spent_seconds_total{{rank="{rank}",part="{part}"}} {seconds:.6f}')
    return "\n".join([*lines, "# EOF\n"])
