"""The layers that the paper's networks are made of."""

import math

from torch import Tensor, nn

MeanAndLogVariance = tuple[Tensor, Tensor]

LOG_VARIANCE_RANGE = (-6.0, 2.0)
"""Where the paper's authors clamp the log-variance of a latent."""


def he_normal_(module: nn.Module) -> None:
    """Start the weights of linear layers at N(0, 2 / fan-in), as the authors' program does; use with ``apply``."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))


def start_at_grey(conv: nn.Conv2d) -> nn.Conv2d:
    """Start the output of a convolutional decoder at mid-grey.

    Likelihoods that clamp the mean into the pixel range pass no gradient outside it. A last convolution's output
    is nearly constant at the start, so with a bias below zero the whole decoder would never learn.
    """
    if conv.bias is not None:
        nn.init.constant_(conv.bias, 0.5)
    return conv


def require_image_shape(data_shape: tuple[int, ...], network: str) -> tuple[int, int, int]:
    """Return (channels, height, width), or say why the network cannot take such data."""
    if len(data_shape) != 3:
        raise ValueError(
            f"{network} takes images of shape (channels, height, width), not {data_shape}; "
            f"use the MLP networks for feature vectors"
        )
    channels, height, width = data_shape
    return channels, height, width


class GatedLinear(nn.Module):
    """A linear layer times the sigmoid of another one: ``value(x) * sigmoid(gate(x))``.

    Two layers rather than one of twice the width, since the optimiser normalises each weight's gradient.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.value = nn.Linear(in_features, out_features)
        self.gate = nn.Linear(in_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(x) * self.gate(x).sigmoid()


class GatedConv2d(nn.Module):
    """A convolution times the sigmoid of another one, padded so that stride 1 keeps the size."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__()
        self.value = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2)
        self.gate = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(x) * self.gate(x).sigmoid()


class NormalHead(nn.Module):
    """Linear heads for the mean and the log-variance of a latent.

    Parameters
    ----------
    in_features, latent_dim
        Widths.
    log_variance_range
        Clamps the log-variance; ``None`` leaves it free.
    """

    def __init__(
        self, in_features: int, latent_dim: int, log_variance_range: tuple[float, float] | None = LOG_VARIANCE_RANGE
    ) -> None:
        super().__init__()
        self.mean = nn.Linear(in_features, latent_dim)
        self.log_variance = nn.Linear(in_features, latent_dim)
        self.log_variance_range = log_variance_range

    def forward(self, x: Tensor) -> MeanAndLogVariance:
        log_variance = self.log_variance(x)
        if self.log_variance_range is not None:
            log_variance = log_variance.clamp(*self.log_variance_range)
        return self.mean(x), log_variance
