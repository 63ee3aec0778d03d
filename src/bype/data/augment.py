"""Flips and shifts of training images, and drawing them black and white."""

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


def binarise(x: Tensor, numbers: Tensor) -> Tensor:
    """Draw each pixel black or white, with its grey value as the probability of white.

    Parameters
    ----------
    x
        Pixels (byte + 0.5) / 256.
    numbers
        Random numbers of the same shape, uniform on [0, 1).

    Examples
    --------
    >>> 256 * binarise((torch.tensor([0, 100, 255]) + 0.5) / 256, torch.tensor([0.0, 0.3, 0.9]))
    tensor([  0.5000, 255.5000, 255.5000])
    """
    return ((255 * numbers < 256 * x - 0.5).to(x.dtype) * 255 + 0.5) / 256
