"""The networks of the paper's ConvHVAE, for images of any size."""

import math

from torch import Tensor, nn

from bype.networks.joint import JointDecoder, JointEncoder
from bype.networks.layers import (
    GatedConv2d,
    MeanAndLogVariance,
    NormalHead,
    he_normal_,
    require_image_shape,
    start_at_grey,
)

_CHANNELS = (32, 32, 64, 64, 6)
_STRIDES = (1, 2, 1, 2, 1)


def _features(data_shape: tuple[int, ...], kernel_sizes: tuple[int, ...]) -> tuple[nn.Sequential, int]:
    """Return five gated convolutions that halve the size twice, and the number of features they end in."""
    channels, height, width = require_image_shape(data_shape, "a convolutional network")
    layers: list[nn.Module] = []
    for out_channels, kernel_size, stride in zip(_CHANNELS, kernel_sizes, _STRIDES, strict=True):
        layers.append(GatedConv2d(channels, out_channels, kernel_size, stride))
        channels = out_channels
    num_features = channels * math.ceil(height / 4) * math.ceil(width / 4)
    return nn.Sequential(*layers, nn.Flatten()), num_features


class ConvEncoder(nn.Module):
    """The ConvHVAE's q(z2 | x).

    Examples
    --------
    >>> import torch
    >>> mean, _ = ConvEncoder(data_shape=(3, 32, 32), latent_dim=40)(torch.rand(5, 3, 32, 32))
    >>> mean.shape
    torch.Size([5, 40])
    """

    def __init__(self, data_shape: tuple[int, ...], latent_dim: int) -> None:
        super().__init__()
        self.body, num_features = _features(data_shape, kernel_sizes=(7, 3, 5, 3, 3))
        self.head = NormalHead(num_features, latent_dim)
        self.apply(he_normal_)

    def forward(self, x: Tensor) -> MeanAndLogVariance:
        return self.head(self.body(x))


class ConvJointEncoder(JointEncoder):
    """The ConvHVAE's q(z1 | x, z2)."""

    def __init__(self, data_shape: tuple[int, ...], top_dim: int, latent_dim: int, hidden: int = 300) -> None:
        embed, num_features = _features(data_shape, kernel_sizes=(3, 3, 3, 3, 3))
        super().__init__(embed, num_features, top_dim, latent_dim, hidden)


class ConvJointDecoder(JointDecoder):
    """The ConvHVAE's p(x | z1, z2): dense to the size of the image, then convolutions that keep it."""

    def __init__(self, data_shape: tuple[int, ...], top_dim: int, latent_dim: int, hidden: int = 300) -> None:
        channels, height, width = require_image_shape(data_shape, "a convolutional network")
        output = nn.Sequential(
            nn.Unflatten(-1, (channels, height, width)),
            GatedConv2d(channels, 64, 3),
            *(GatedConv2d(64, 64, 3) for _ in range(3)),
            start_at_grey(nn.Conv2d(64, channels, 1)),
        )
        super().__init__(output, math.prod(data_shape), top_dim, latent_dim, hidden)
