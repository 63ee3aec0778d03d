"""The VAE with one level of latents."""

from torch import Tensor, nn

from bype.distributions import DiagonalNormal
from bype.likelihoods import Likelihood
from bype.models.base import Draw, LatentModel, Posterior, decode_rows
from bype.networks import DenseEncoder
from bype.priors.base import Prior
from bype.randomness import Noise


class VAE(LatentModel):
    """One level of latents, z. Any encoder and decoder fit.

    Parameters
    ----------
    data_shape, likelihood, prior
        As for :class:`LatentModel`.
    encoder
        Maps examples (B, *data_shape) to a mean and a log-variance, (B, D) each.
    decoder
        Maps latents (B, D) to (B, *data_shape): what the likelihood takes.

    Examples
    --------
    >>> import torch
    >>> from bype.likelihoods import FixedGaussian
    >>> from bype.priors import GaussianPrior
    >>> class Encoder(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.mean, self.log_variance = nn.Linear(6, 2), nn.Linear(6, 2)
    ...     def forward(self, x):
    ...         return self.mean(x), self.log_variance(x)
    >>> model = VAE((6,), FixedGaussian(1.0, mean_range=None), GaussianPrior(2), Encoder(), nn.Linear(2, 6))
    >>> model.posterior(torch.rand(5, 6)).draw(num_samples=3).top.shape
    torch.Size([3, 5, 2])
    """

    levels = ("z",)

    def __init__(
        self,
        data_shape: tuple[int, ...],
        likelihood: Likelihood,
        prior: Prior,
        encoder: nn.Module,
        decoder: nn.Module,
    ) -> None:
        super().__init__(data_shape, likelihood, prior)
        self.encoder = encoder
        self.decoder = decoder

    @property
    def latent_scale(self) -> Tensor:
        return self.encoder.latent_scale if isinstance(self.encoder, DenseEncoder) else super().latent_scale

    def posterior(self, x: Tensor, top: DiagonalNormal | None = None) -> "VAEPosterior":
        return VAEPosterior(self, self.encode(x) if top is None else top)

    def decode(self, top: Tensor, *, at_mean: bool = False, generator: Noise = None) -> Tensor:
        return decode_rows(self.decoder, top)


class VAEPosterior(Posterior):
    """q(z | x)."""

    def __init__(self, model: VAE, top: DiagonalNormal) -> None:
        self._model = model
        self.top = top

    def draw(self, num_samples: int, *, generator: Noise = None) -> Draw:
        z, log_q = self.top.rsample_and_score((num_samples,), generator=generator)
        return Draw(z, {"z": log_q}, {}, self._model.decode(z))

    def mean_output(self) -> Tensor:
        return self._model.decode(self.top.mean)
