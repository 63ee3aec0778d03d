"""The standard normal prior."""

import torch
from torch import Tensor

from bype.distributions import StandardNormal
from bype.priors.base import Encode, Prior, TrainingBatch


class GaussianPrior(Prior):
    """The standard normal, p(z) = N(0, I): the prior of the plain VAE.

    Examples
    --------
    >>> GaussianPrior(latent_dim=2)(encode=None).log_prob(torch.zeros(2))
    tensor(-1.8379)
    """

    _zeros: Tensor

    def __init__(self, latent_dim: int) -> None:
        super().__init__()
        self.register_buffer("_zeros", torch.zeros(latent_dim), persistent=False)

    def forward(self, encode: Encode | None = None, batch: TrainingBatch | None = None) -> StandardNormal:
        """Return N(0, I); neither the encoder nor the batch matters."""
        return StandardNormal(self._zeros)
