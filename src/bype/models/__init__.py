"""Models: a network, a likelihood and a prior put together."""

from bype.models.architectures import conv_hvae, dense_vae, mlp_hvae, mlp_vae, residual_vae
from bype.models.base import Draw, LatentModel, Posterior
from bype.models.hierarchical import HierarchicalVAE
from bype.models.vae import VAE

__all__ = [
    "VAE",
    "Draw",
    "HierarchicalVAE",
    "LatentModel",
    "Posterior",
    "conv_hvae",
    "dense_vae",
    "mlp_hvae",
    "mlp_vae",
    "residual_vae",
]
