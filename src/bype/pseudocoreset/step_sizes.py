"""How far to go along a gradient: the paper's step, and the one that its authors' program takes."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from bype.pseudocoreset.adam import average_, direction
from bype.pseudocoreset.coreset import Pseudocoreset


class Steps(nn.Module, ABC):
    """Turns gradients in (U, w) into displacements. State lives in buffers, so it is saved with the run."""

    @abstractmethod
    def start_update(self) -> None:
        """Begin an update of the pseudocoreset, which takes one step or many."""

    @abstractmethod
    def forward(self, points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the displacements of points (M, d) and weights (M,) for their gradients."""


class InverseTimeSteps(Steps):
    """Algorithm 2's step: minus gradient times ``step_size`` / t, with t counting all steps so far.

    Examples
    --------
    >>> steps = InverseTimeSteps(step_size=0.1)
    >>> [round(steps(torch.ones(1, 1), torch.ones(1))[1].item(), 3) for _ in range(3)]
    [-0.1, -0.05, -0.033]
    """

    num_steps: Tensor

    def __init__(self, step_size: float) -> None:
        super().__init__()
        self.step_size = _positive(step_size)
        self.register_buffer("num_steps", torch.tensor(0))

    def start_update(self) -> None:
        """Do nothing: an update does not reset t."""

    def forward(self, points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        self.num_steps += 1
        rate = self.step_size / int(self.num_steps)
        return -rate * points, -rate * weights


class RestartedAdam(Steps):
    """The authors' step: Adam's moments are kept between updates; its bias correction and rate restart.

    The rate of step j within an update is ``step_size`` / j; the authors took the better of 0.1 and 0.5.
    Adam makes every coordinate's step about as long as the rate, pixels and weights alike.

    Examples
    --------
    >>> steps = RestartedAdam(Pseudocoreset(torch.rand(4, 3), total=100), step_size=0.1)
    >>> steps.start_update()
    >>> steps(torch.ones(4, 3), torch.ones(4))[1]
    tensor([-0.1000, -0.1000, -0.1000, -0.1000], dtype=torch.float64)
    """

    steps_in_update: Tensor

    def __init__(self, pseudocoreset: Pseudocoreset, step_size: float) -> None:
        super().__init__()
        self.step_size = _positive(step_size)
        self.register_buffer("steps_in_update", torch.tensor(0))
        for name, like in (("points", pseudocoreset.points.flatten(1)), ("weights", pseudocoreset.probabilities)):
            self.register_buffer(f"{name}_mean", torch.zeros_like(like))
            self.register_buffer(f"{name}_square", torch.zeros_like(like))

    def start_update(self) -> None:
        """Restart the bias correction and the rate."""
        self.steps_in_update.zero_()

    def forward(self, points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        self.steps_in_update += 1
        return self._displacement("points", points), self._displacement("weights", weights)

    def _displacement(self, name: str, gradient: Tensor) -> Tensor:
        mean, square = self.get_buffer(f"{name}_mean"), self.get_buffer(f"{name}_square")
        average_(mean, square, gradient)
        if not square.isfinite().all():
            raise ValueError(
                f"the gradient of the {name} is too large for float32; it grows with the number of examples"
            )
        j = int(self.steps_in_update)
        return direction(mean, square, j).mul_(-self.step_size / j)


def _positive(step_size: float) -> float:
    if not step_size > 0:
        raise ValueError(f"step_size must be positive, not {step_size}")
    return step_size
