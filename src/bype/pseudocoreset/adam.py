"""Adam's moments and direction, for rules that keep them in buffers of their own.

With one epsilon, two ways give the same numbers, except for the last digits. The portable one rounds alike on
processors of all kinds: it is for steps that several processes compute each for itself.
"""

import torch
from torch import Tensor

FIRST, SECOND = 0.9, 0.999
"""How much of the moments stays at each step."""
_EPSILON = 1e-8


def average_(mean: Tensor, square: Tensor, gradient: Tensor) -> None:
    """Take a gradient into the moments, in place."""
    mean.mul_(FIRST).add_(gradient, alpha=1 - FIRST)
    square.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)


def direction(mean: Tensor, square: Tensor, count: int) -> Tensor:
    """Return the step of size one along the moments of ``count`` gradients."""
    root = (square / (1 - SECOND**count)).sqrt_().add_(_EPSILON)
    return (mean / (1 - FIRST**count)).div_(root)


def portable_average_(mean: Tensor, square: Tensor, powers: Tensor, gradient: Tensor) -> None:
    """Take a gradient (rows, d) into the moments and into the powers (rows, 2) that correct their bias, in place.

    Products and sums are rounded one by one, since processors fuse them differently. Powers are running products, which
    start at one.
    """
    mean.mul_(FIRST).add_(gradient * (1 - FIRST))
    square.mul_(SECOND).add_(gradient.square().mul_(1 - SECOND))
    powers.mul_(powers.new_tensor([FIRST, SECOND]))


def portable_direction(mean: Tensor, square: Tensor, powers: Tensor, epsilon: float) -> Tensor:
    """Return the step of size one along the moments, of each row for its own number of gradients."""
    first, second = torch.split(1 - powers, 1, dim=1)
    # Not by sqrt: its last digit depends on the processor, where that of 1 / sqrt does not.
    root = (square / second).rsqrt_().reciprocal_().add_(epsilon)
    return (mean / first).div_(root)
