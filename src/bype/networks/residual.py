"""The residual networks of the paper's CelebA experiment, for images of any size."""

import math

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from bype.networks.layers import MeanAndLogVariance, NormalHead, he_normal_, require_image_shape, start_at_grey

_WIDTHS = (48, 96)
_NUM_BLOCKS = 6
_BOTTLENECK = 6


def _conv(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return weight_norm(nn.Conv2d(in_channels, out_channels, 3, stride, padding=1))


class ResidualBlock(nn.Module):
    """x + conv(ELU(x))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = _conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(F.elu(x))


def _blocks(channels: int) -> nn.Sequential:
    return nn.Sequential(*(ResidualBlock(channels) for _ in range(_NUM_BLOCKS)))


class ResidualEncoder(nn.Module):
    """Two halvings of the size, each followed by residual blocks, a bottleneck, and free log-variances.

    Examples
    --------
    >>> import torch
    >>> mean, _ = ResidualEncoder(data_shape=(3, 64, 64), latent_dim=40)(torch.rand(2, 3, 64, 64))
    >>> mean.shape
    torch.Size([2, 40])
    """

    def __init__(self, data_shape: tuple[int, ...], latent_dim: int) -> None:
        super().__init__()
        channels, height, width = require_image_shape(data_shape, "the residual network")
        wide, wider = _WIDTHS
        self.body = nn.Sequential(
            _conv(channels, wide, stride=2),
            _blocks(wide),
            _conv(wide, wider, stride=2),
            _blocks(wider),
            _conv(wider, _BOTTLENECK),
            nn.Flatten(),
        )
        num_features = _BOTTLENECK * math.ceil(height / 4) * math.ceil(width / 4)
        self.head = NormalHead(num_features, latent_dim, log_variance_range=None)
        self.apply(he_normal_)

    def forward(self, x: Tensor) -> MeanAndLogVariance:
        return self.head(self.body(x))


class ResidualDecoder(nn.Module):
    """The encoder's mirror image, with nearest-neighbour up-sampling."""

    def __init__(self, data_shape: tuple[int, ...], latent_dim: int) -> None:
        super().__init__()
        channels, height, width = require_image_shape(data_shape, "the residual network")
        wide, wider = _WIDTHS
        half = (math.ceil(height / 2), math.ceil(width / 2))
        quarter = (math.ceil(height / 4), math.ceil(width / 4))
        self.body = nn.Sequential(
            nn.Linear(latent_dim, _BOTTLENECK * math.prod(quarter)),
            nn.Unflatten(-1, (_BOTTLENECK, *quarter)),
            _conv(_BOTTLENECK, wider),
            _blocks(wider),
            nn.Upsample(size=half, mode="nearest"),
            _conv(wider, wide),
            _blocks(wide),
            nn.Upsample(size=(height, width), mode="nearest"),
            start_at_grey(_conv(wide, channels)),
        )
        self.apply(he_normal_)

    def forward(self, z: Tensor) -> Tensor:
        return self.body(z)
