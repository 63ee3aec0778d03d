"""Lengths of training, in epochs, steps, seconds, or a part of the whole."""

import re
from dataclasses import dataclass
from typing import Literal

_UNITS = {"epoch": "epochs", "step": "steps", "second": "seconds", "percent": "percent"}


@dataclass(frozen=True)
class Span:
    """A length of training, in epochs, steps or seconds; or as a percentage of the length of the whole.

    Examples
    --------
    >>> Span.parse("10 epochs"), Span.parse("500steps")
    (Span(count=10, unit='epochs'), Span(count=500, unit='steps'))
    >>> Span.parse("10 epochs").in_steps(500)
    5000
    """

    count: int
    unit: Literal["epochs", "steps", "seconds", "percent"]

    @classmethod
    def parse(cls, text: str) -> "Span":
        """Read '10 epochs', '500 steps', '90 seconds' or '5 percent'."""
        match = re.fullmatch(r"\s*([0-9]{1,18})\s*(epoch|step|second|percent)s?\s*", text)
        if match is None:
            raise ValueError(f"write a number of epochs, steps, seconds or percent, such as '10 epochs', not {text!r}")
        return cls(int(match[1]), _UNITS[match[2]])  # type: ignore[arg-type]

    @classmethod
    def parse_interval(cls, text: str) -> "Span":
        """Read how often something happens: '10 epochs' or '500 steps'."""
        span = cls.parse(text)
        if span.count == 0 or not span.is_fixed:
            raise ValueError(f"every must be a number of epochs or steps, such as '10 epochs', not {text!r}")
        return span

    @property
    def is_fixed(self) -> bool:
        """Whether it is a number of steps that is known before training."""
        return self.unit in ("epochs", "steps")

    def in_steps(self, steps_per_epoch: int) -> int:
        """Return the number of training steps."""
        if not self.is_fixed:
            raise ValueError(f"{self.count} {self.unit} are no fixed number of steps; write it in epochs or steps")
        return self.count * steps_per_epoch if self.unit == "epochs" else self.count

    def is_due(self, step: int, steps_per_epoch: int) -> bool:
        """Tell whether something that happens this often happens after so many steps; zero means never."""
        interval = self.in_steps(steps_per_epoch)
        return interval > 0 and step % interval == 0


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Return how many batches an epoch has; the last one may be short."""
    return -(-num_examples // batch_size)
