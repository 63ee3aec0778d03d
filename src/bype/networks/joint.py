"""What the networks of two stochastic levels share: they bring two inputs together."""

import torch
from torch import Tensor, nn

from bype.networks.layers import GatedLinear, MeanAndLogVariance, NormalHead, he_normal_


class Merge(nn.Module):
    """Joins features and the top latent: the latent passes a gated layer of the same width, then one layer takes both.

    The features may lack leading dimensions of the top latent: they are broadcast.
    """

    def __init__(self, num_features: int, top_dim: int, out_features: int) -> None:
        super().__init__()
        self.top = GatedLinear(top_dim, num_features)
        self.both = GatedLinear(2 * num_features, out_features)

    def forward(self, features: Tensor, top: Tensor) -> Tensor:
        hidden = self.top(top)
        return self.both(torch.cat([features.expand_as(hidden), hidden], -1))


class JointEncoder(nn.Module):
    """q(z1 | x, z2). ``embed`` does the part that needs x alone, so that many draws of z2 share it."""

    def __init__(self, embed: nn.Module, num_features: int, top_dim: int, latent_dim: int, hidden: int) -> None:
        super().__init__()
        self.embed = embed
        self.merge = Merge(num_features, top_dim, hidden)
        self.head = NormalHead(hidden, latent_dim)
        self.apply(he_normal_)

    def forward(self, features: Tensor, top: Tensor) -> MeanAndLogVariance:
        return self.head(self.merge(features, top))


class JointDecoder(nn.Module):
    """p(x | z1, z2). Both latents meet in a hidden layer, from which ``output`` makes the example."""

    def __init__(self, output: nn.Module, num_features: int, top_dim: int, latent_dim: int, hidden: int) -> None:
        super().__init__()
        self.latent = GatedLinear(latent_dim, hidden)
        self.merge = Merge(hidden, top_dim, num_features)
        self.output = output
        self.apply(he_normal_)

    def forward(self, latent: Tensor, top: Tensor) -> Tensor:
        return self.output(self.merge(self.latent(latent), top))
