"""The VAE and the VAMP of pythae, with networks of our own; this file needs pythae, and peers.py alone imports it."""

import math
from itertools import pairwise
from typing import Any

import torch
from pythae.models import VAE, VAMP, VAEConfig, VAMPConfig
from pythae.models.base.base_utils import ModelOutput
from pythae.models.nn import BaseDecoder, BaseEncoder
from torch import Tensor, nn

_HIDDEN, _CHANNELS, _DROPOUT = 300, 32, 0.2
"""The width and the dropout of the dense layers are those of ``bype fit``."""
_SMALLEST_SIDE = 8


def _dense(*sizes: int) -> list[nn.Module]:
    """Return dense layers, each with its activation and dropout."""
    return [part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.SiLU(), nn.Dropout(_DROPOUT))]


def _ladder(shape: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
    """Return the channels of the convolutions, which halve the sides, and the shape after the last one."""
    channels, height, width = shape
    found = [channels]
    while min(height, width) > _SMALLEST_SIDE and height % 2 == width % 2 == 0:
        found.append(_CHANNELS * 2 ** (len(found) - 1))
        height, width = height // 2, width // 2
    return found, (found[-1], height, width)


class _Encoder(BaseEncoder):
    def __init__(self, network: str, shape: tuple[int, ...], latent_dim: int) -> None:
        super().__init__()
        if network == "mlp":
            body = [nn.Flatten(), *_dense(math.prod(shape), _HIDDEN, _HIDDEN)]
        else:
            channels, last = _ladder(shape)
            body = [part for i, o in pairwise(channels) for part in (nn.Conv2d(i, o, 4, 2, 1), nn.SiLU())]
            body += [nn.Flatten(), *_dense(math.prod(last), _HIDDEN)]
        self.layers = nn.Sequential(*body, nn.Linear(_HIDDEN, 2 * latent_dim))

    def forward(self, x: Tensor) -> ModelOutput:
        mean, log_variance = self.layers(x).chunk(2, -1)
        return ModelOutput(embedding=mean, log_covariance=log_variance)


class _Decoder(BaseDecoder):
    def __init__(self, network: str, shape: tuple[int, ...], latent_dim: int) -> None:
        super().__init__()
        if network == "mlp":
            body = [*_dense(latent_dim, _HIDDEN, _HIDDEN), nn.Linear(_HIDDEN, math.prod(shape))]
            body.append(nn.Unflatten(1, shape))
        else:
            channels, last = _ladder(shape)
            body = [*_dense(latent_dim, _HIDDEN), nn.Linear(_HIDDEN, math.prod(last)), nn.Unflatten(1, last)]
            for i, o in zip(channels[:0:-1], channels[-2::-1], strict=True):
                body += [nn.SiLU(), nn.ConvTranspose2d(i, o, 4, 2, 1)]
        self.layers = nn.Sequential(*body, nn.Sigmoid())

    def forward(self, z: Tensor) -> ModelOutput:
        return ModelOutput(reconstruction=self.layers(z))


class _Scaled:
    """Lets pythae's loss, half the squared error plus KL, have another variance of the noise than 1."""

    noise_variance = 1.0

    def loss_function(self, recon_x: Tensor, x: Tensor, *others: Any) -> Any:
        scale = self.noise_variance**-0.5
        return super().loss_function(scale * recon_x, scale * x, *others)  # type: ignore[misc]


class ScaledVAE(_Scaled, VAE):
    """pythae's VAE."""

    def log_prior(self, z: Tensor) -> Tensor:
        """Return log p(z), up to the constant that the posterior has too."""
        return -0.5 * z.square().sum(-1)


class ScaledVAMP(_Scaled, VAMP):
    """pythae's VAMP."""

    def log_prior(self, z: Tensor) -> Tensor:
        """Return log p(z), up to the constant that the posterior has too."""
        found: Tensor = self._log_p_z(z)
        return found


def build(kind: str, network: str, latent_dim: int, pseudo_inputs: Tensor) -> ScaledVAE | ScaledVAMP:
    """Return a model of pythae; a VAMP has its pseudo-inputs (C, *shape) begin at these examples."""
    shape = tuple(pseudo_inputs.shape[1:])
    parts = {"encoder": _Encoder(network, shape, latent_dim), "decoder": _Decoder(network, shape, latent_dim)}
    if kind == "VAE":
        model = ScaledVAE(VAEConfig(input_dim=shape, latent_dim=latent_dim), **parts)
    else:
        count = len(pseudo_inputs)
        model = ScaledVAMP(VAMPConfig(input_dim=shape, latent_dim=latent_dim, number_components=count), **parts)
        with torch.no_grad():  # its own start is near black, where half of the pixels get no gradient
            model.pseudo_inputs[0].weight.copy_(pseudo_inputs.flatten(1).T)
            model.pseudo_inputs[0].bias.zero_()
    return model
