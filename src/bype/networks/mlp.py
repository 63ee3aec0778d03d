"""The paper's networks of gated dense layers, for images of any shape and for feature vectors."""

import math

from torch import Tensor, nn

from bype.networks.joint import JointDecoder, JointEncoder
from bype.networks.layers import GatedLinear, MeanAndLogVariance, NormalHead, he_normal_


class MLPEncoder(nn.Module):
    """Two gated layers, then mean and log-variance: the VAE's q(z | x), the HVAE's q(z2 | x) and p(z1 | z2).

    Examples
    --------
    >>> import torch
    >>> mean, log_variance = MLPEncoder(data_shape=(1, 28, 28), latent_dim=40)(torch.rand(5, 1, 28, 28))
    >>> mean.shape, log_variance.shape
    (torch.Size([5, 40]), torch.Size([5, 40]))
    """

    def __init__(self, data_shape: tuple[int, ...], latent_dim: int, hidden: int = 300) -> None:
        super().__init__()
        self.data_shape = data_shape
        self.body = nn.Sequential(GatedLinear(math.prod(data_shape), hidden), GatedLinear(hidden, hidden))
        self.head = NormalHead(hidden, latent_dim)
        self.apply(he_normal_)

    def forward(self, x: Tensor) -> MeanAndLogVariance:
        return self.head(self.body(x.flatten(-len(self.data_shape))))


class MLPDecoder(nn.Module):
    """Two gated layers, then a linear one: p(x | z)."""

    def __init__(self, data_shape: tuple[int, ...], latent_dim: int, hidden: int = 300) -> None:
        super().__init__()
        self.body = nn.Sequential(
            GatedLinear(latent_dim, hidden),
            GatedLinear(hidden, hidden),
            nn.Linear(hidden, math.prod(data_shape)),
            nn.Unflatten(-1, data_shape),
        )
        self.apply(he_normal_)

    def forward(self, z: Tensor) -> Tensor:
        return self.body(z)


class MLPJointEncoder(JointEncoder):
    """The HVAE's q(z1 | x, z2)."""

    def __init__(self, data_shape: tuple[int, ...], top_dim: int, latent_dim: int, hidden: int = 300) -> None:
        embed = nn.Sequential(nn.Flatten(), GatedLinear(math.prod(data_shape), hidden))
        super().__init__(embed, hidden, top_dim, latent_dim, hidden)


class MLPJointDecoder(JointDecoder):
    """The HVAE's p(x | z1, z2)."""

    def __init__(self, data_shape: tuple[int, ...], top_dim: int, latent_dim: int, hidden: int = 300) -> None:
        output = nn.Sequential(nn.Linear(hidden, math.prod(data_shape)), nn.Unflatten(-1, data_shape))
        super().__init__(output, hidden, top_dim, latent_dim, hidden)
