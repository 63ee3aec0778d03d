"""How far a training has come, and what follows from it: the learning rate and the weight of the KL terms.

Where the length is a time, the clock decides how many steps there are. What it said is written to ``pace.json``. A
process that resumes the run follows that file as far as it goes, and then the clock. So a run that was killed and
resumed equals, to the bit, one that has this file from the beginning.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import astuple

from bype.distributed import Group
from bype.objective import kl_weight
from bype.run.config import TrainingConfig
from bype.run.directory import RunError
from bype.run.pace import Pace
from bype.span import Span

_RAMP_STEPS = 20
"""The learning rate rises over this many steps if it decays later: Adam's first steps know little."""
_LOOKS = 100
"""How often the clock is read in a training, after the first steps."""


class Schedule:
    """Tells the share of the training that is done before each step, and what depends on it.

    Parameters
    ----------
    config
        Of the run.
    steps_per_epoch
        Of its data.
    known
        What the clock said in an earlier process; of several processes, the first one knows.
    write
        Keeps all that the clock said.
    group
        The processes of the run: the first one reads the clock.
    clock
        Returns seconds.
    """

    def __init__(
        self,
        config: TrainingConfig,
        steps_per_epoch: int,
        known: list[Pace],
        write: Callable[[list[Pace]], None],
        group: Group,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._steps_per_epoch = config, steps_per_epoch
        self._length = Span.parse(config.length)
        self._write, self._group, self._clock = write, group, clock
        received = group.broadcast(json.dumps([astuple(pace) for pace in known]).encode())
        self._known = {step: Pace(step, seconds, after) for step, seconds, after in json.loads(received)}
        self._last, self._rate, self._held = Pace(0, 0.0, 1), 0.0, 0.0
        self._started = clock()
        self._reserved: float | None = 0.0  # None after a reading of an earlier process, which includes its reserve
        self._newly_reserved = 0.0
        self._share_now = self._share_before = 0.0

    def resume(self, step: int) -> None:
        """Go to the moment at which a run begins or resumes, before ``step``."""
        self._started = self._clock()
        if self._length.is_fixed:
            self._share_now = self._share_before = self._fixed_share(step)
            return
        for pace in sorted(self._known.values(), key=lambda pace: pace.step):
            if pace.step <= step:
                self._take(pace)
                self._reserved = None
        if step >= self._last.next:
            raise RunError(
                f"the length is a time, and pace.json is missing or does not reach step {step}, so the time left is "
                f"unknown; bring pace.json back from a copy of the run, or choose another --out"
            )
        self._started = self._clock() - self._rate * max(0, step - self._last.step)
        self._share_now = self._share_before = self._timed_share(step)

    def advance(self, step: int) -> None:
        """Go to the moment before ``step``, one after the last; all processes do so together."""
        self._share_before = self._share_now
        if self._length.is_fixed:
            self._share_now = self._fixed_share(step)
            return
        if step >= self._last.next:
            if (known := self._known.get(step)) is not None:
                self._reserved, self._newly_reserved = None, 0.0
            self._take(known or self._look(step))
        self._share_now = self._timed_share(step)

    def reserve(self, seconds: float) -> None:
        """Keep so much of the time, but not more than half of it, for the validation that follows the last step."""
        if self._length.is_fixed:
            return
        reserved = min(seconds, self._length.count / 2)
        if self._reserved is not None:
            self._newly_reserved += reserved - self._reserved
        self._reserved = reserved

    @property
    def share(self) -> float:
        """The share of the training that is done, between 0 and 1."""
        return self._share_now

    def is_due(self, every: str, step: int) -> bool:
        """Tell whether something that happens this often happens before ``step``."""
        span = Span.parse(every)
        if span.unit == "percent":
            return _passed(self._share_now, span.count) > _passed(self._share_before, span.count)
        return span.is_due(step, self._steps_per_epoch)

    def learning_rate(self, step: int) -> float:
        """Return Adam's learning rate in ``step``."""
        rate = self._config.learning_rate
        if not self._config.decay:
            return rate
        return rate * 0.5 * (1 + math.cos(math.pi * self._share_now)) * min(1.0, (step + 1) / _RAMP_STEPS)

    def beta(self, step: int) -> float:
        """Return the weight of the KL terms in ``step``."""
        warm_up = Span.parse(self._config.warm_up)
        progress = step + 1 if warm_up.unit == "steps" else step // self._steps_per_epoch + 1
        return kl_weight(progress, warm_up.count)

    @property
    def last_beta(self) -> float | None:
        """The weight of the KL terms in the last step; ``None`` if the clock decides which step that is."""
        return self.beta(self._length.in_steps(self._steps_per_epoch) - 1) if self._length.is_fixed else None

    def _fixed_share(self, step: int) -> float:
        return min(1.0, step / self._length.in_steps(self._steps_per_epoch))

    def _timed_share(self, step: int) -> float:
        seconds = self._last.seconds + self._rate * (step - self._last.step)
        return min(1.0, max(self._held, seconds / self._length.count))

    def _take(self, pace: Pace) -> None:
        """Follow a reading of the clock. If the share is ahead of the clock, it waits for the clock."""
        self._held = self._timed_share(max(self._last.step, pace.step - 1))
        if pace.step > self._last.step:
            self._rate = max(0.0, pace.seconds - self._last.seconds) / (pace.step - self._last.step)
        self._last, self._started = pace, self._clock()

    def _look(self, step: int) -> Pace:
        """Read the clock before ``step``, and decide when to read it again: sooner at the start and near the end."""
        passed = self._clock() - self._started
        seconds = self._last.seconds + passed + self._newly_reserved
        self._newly_reserved = 0.0
        rate = max(1e-9, passed / max(1, step - self._last.step))  # a shorter reserve is no gain of time
        left = max(0.0, self._length.count - seconds)
        planned = min(self._length.count / _LOOKS, max(left / 2, rate)) / rate
        own = [step, round(seconds, 4), step + max(1, min(int(planned), 4 * step))]
        pace = Pace(*json.loads(self._group.broadcast(json.dumps(own).encode())))
        self._known[step] = pace
        self._write(list(self._known.values()))
        return pace


def _passed(share: float, percent: int) -> int:
    """Return how many times so many percent have passed; a share such as 0.29 may be a little below its number."""
    return int(100 * share / percent + 1e-9)
