"""Flips and shifts of training images."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """Random changes to an image that keep it a likely one: flips and shifts.

    Examples
    --------
    >>> image = torch.tensor([[[[1.0, 2.0, 3.0]]]])
    >>> Augmentation(flips=True)(image, torch.tensor([[0.9, 0.0, 0.0]]))
    tensor([[[[3., 2., 1.]]]])
    """

    flips: bool = False
    """Whether half of the images are flipped from left to right."""
    shifts: int = 0
    """By how many pixels they are shifted at most, up or down and left or right; the edges are repeated."""

    @property
    def changes_anything(self) -> bool:
        """Whether there is anything to do."""
        return self.flips or self.shifts > 0

    def __call__(self, x: Tensor, numbers: Tensor) -> Tensor:
        """Return changed images (B, C, H, W), by random numbers (B, 3) that are uniform on [0, 1)."""
        if not self.changes_anything:
            return x
        height, width = x.shape[-2:]
        flip = (numbers[:, :1] >= 0.5) & self.flips
        by = (numbers[:, 1:] * (2 * self.shifts + 1)).floor().long() - self.shifts
        lines = (torch.arange(height, device=x.device) + by[:, :1]).clamp(0, height - 1)
        columns = (torch.arange(width, device=x.device) + by[:, 1:]).clamp(0, width - 1)
        columns = torch.where(flip, width - 1 - columns, columns)
        pixels = (lines[:, :, None] * width + columns[:, None, :]).flatten(1)  # one gather is faster than two
        return x.flatten(2).gather(2, pixels[:, None].expand(-1, x.shape[1], -1)).view_as(x)
