"""Adam's moments and direction, for rules that keep them in buffers of their own."""

from torch import Tensor

_FIRST, _SECOND = 0.9, 0.999


def average_(mean: Tensor, square: Tensor, gradient: Tensor) -> None:
    """Take a gradient into the moments, in place."""
    mean.mul_(_FIRST).add_(gradient, alpha=1 - _FIRST)
    square.mul_(_SECOND).addcmul_(gradient, gradient, value=1 - _SECOND)


def direction(mean: Tensor, square: Tensor, count: int | Tensor, epsilon: float = 1e-8) -> Tensor:
    """Return the step of size one along the moments of ``count`` gradients, which may differ from row to row."""
    root = (square / (1 - _SECOND**count)).sqrt_().add_(epsilon)
    return (mean / (1 - _FIRST**count)).div_(root)
