"""The VAE with two levels of latents."""

from typing import Protocol

from torch import Tensor, nn

from bype.distributions import DiagonalNormal
from bype.likelihoods import Likelihood
from bype.models.base import Draw, LatentModel, Posterior, decode_rows
from bype.networks.layers import MeanAndLogVariance
from bype.priors.base import Prior
from bype.randomness import Noise


class JointEncoderLike(Protocol):
    """The form of a network for q(z1 | x, z2), in two parts so that many draws of z2 share the work on x."""

    def embed(self, x: Tensor) -> Tensor:
        """Return features (B, F) of examples (B, *data_shape)."""

    def __call__(self, features: Tensor, top: Tensor) -> MeanAndLogVariance:
        """Return mean and log-variance (..., B, D1) for features (B, F) and z2 (..., B, D2)."""


class HierarchicalVAE(LatentModel):
    r"""Two levels of latents: the prior scores z2, and z1 stands between it and the data.

    .. math:: p(x, z_1, z_2) = p(x \mid z_1, z_2)\, p(z_1 \mid z_2)\, p(z_2), \qquad
              q(z_1, z_2 \mid x) = q(z_1 \mid x, z_2)\, q(z_2 \mid x)

    The HVAE and the ConvHVAE of the paper are this model with different networks.

    Parameters
    ----------
    data_shape, likelihood, prior
        As for :class:`LatentModel`; the prior is on z2.
    encoder
        q(z2 | x): maps examples (B, *data_shape) to mean and log-variance.
    joint_encoder
        q(z1 | x, z2): a module of the form :class:`JointEncoderLike`.
    conditional
        p(z1 | z2): maps z2 (..., D2) to mean and log-variance of z1.
    decoder
        p(x | z1, z2): maps z1 (B, D1) and z2 (B, D2) to (B, *data_shape).

    Examples
    --------
    >>> import torch
    >>> from bype.models import mlp_hvae
    >>> from bype.priors import GaussianPrior
    >>> model = mlp_hvae((1, 28, 28), GaussianPrior(40))
    >>> model.levels, model.posterior(torch.rand(5, 1, 28, 28)).draw(num_samples=2).top.shape
    (('z2', 'z1'), torch.Size([2, 5, 40]))
    """

    levels = ("z2", "z1")

    def __init__(
        self,
        data_shape: tuple[int, ...],
        likelihood: Likelihood,
        prior: Prior,
        encoder: nn.Module,
        joint_encoder: JointEncoderLike,
        conditional: nn.Module,
        decoder: nn.Module,
    ) -> None:
        super().__init__(data_shape, likelihood, prior)
        self.encoder = encoder
        self.joint_encoder = joint_encoder
        self.conditional = conditional
        self.decoder = decoder

    def posterior(self, x: Tensor, top: DiagonalNormal | None = None) -> "HierarchicalPosterior":
        return HierarchicalPosterior(self, self.encode(x) if top is None else top, self.joint_encoder.embed(x))

    def decode(self, top: Tensor, *, at_mean: bool = False, generator: Noise = None) -> Tensor:
        lower = self.lower_prior(top)
        z1 = lower.mean if at_mean else lower.rsample(generator=generator)
        return decode_rows(self.decoder, z1, top)

    def lower_prior(self, top: Tensor) -> DiagonalNormal:
        """Return p(z1 | z2)."""
        return DiagonalNormal(*self.conditional(top))


class HierarchicalPosterior(Posterior):
    """q(z1 | x, z2) q(z2 | x)."""

    def __init__(self, model: HierarchicalVAE, top: DiagonalNormal, features: Tensor) -> None:
        self._model = model
        self._features = features
        self.top = top

    def lower(self, z2: Tensor) -> DiagonalNormal:
        """Return q(z1 | x, z2)."""
        return DiagonalNormal(*self._model.joint_encoder(self._features, z2))

    def draw(self, num_samples: int, *, generator: Noise = None) -> Draw:
        z2, log_q2 = self.top.rsample_and_score((num_samples,), generator=generator)
        z1, log_q1 = self.lower(z2).rsample_and_score(generator=generator)
        return Draw(
            top=z2,
            log_posterior={"z2": log_q2, "z1": log_q1},
            log_conditional={"z1": self._model.lower_prior(z2).log_prob(z1)},
            output=decode_rows(self._model.decoder, z1, z2),
        )

    def mean_output(self) -> Tensor:
        z2 = self.top.mean
        return decode_rows(self._model.decoder, self.lower(z2).mean, z2)
