"""Lengths of training, in epochs or in steps."""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Span:
    """A length of training, in epochs or in steps.

    Examples
    --------
    >>> Span.parse("10 epochs"), Span.parse("500steps")
    (Span(count=10, unit='epochs'), Span(count=500, unit='steps'))
    >>> Span.parse("10 epochs").in_steps(500)
    5000
    """

    count: int
    unit: Literal["epochs", "steps"]

    @classmethod
    def parse(cls, text: str) -> "Span":
        """Read '10 epochs' or '500 steps'."""
        match = re.fullmatch(r"\s*([0-9]{1,18})\s*(epoch|step)s?\s*", text)
        if match is None:
            raise ValueError(f"{text!r} is not a length of training; write '10 epochs' or '500 steps'")
        return cls(int(match[1]), "epochs" if match[2] == "epoch" else "steps")

    def in_steps(self, steps_per_epoch: int) -> int:
        """Return the number of training steps."""
        return self.count * steps_per_epoch if self.unit == "epochs" else self.count

    def is_due(self, step: int, steps_per_epoch: int) -> bool:
        """Tell whether something that happens this often happens after so many steps; zero means never."""
        interval = self.in_steps(steps_per_epoch)
        return interval > 0 and step % interval == 0


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Return how many batches an epoch has; the last one may be short."""
    return -(-num_examples // batch_size)
