"""The paper's four models, and the dense VAE that ``bype fit`` trains, for data of any shape."""

from bype.likelihoods import Likelihood, SquaredError
from bype.models.hierarchical import HierarchicalVAE
from bype.models.vae import VAE
from bype.networks import (
    ConvEncoder,
    ConvJointDecoder,
    ConvJointEncoder,
    DenseDecoder,
    DenseEncoder,
    MLPDecoder,
    MLPEncoder,
    MLPJointDecoder,
    MLPJointEncoder,
    ResidualDecoder,
    ResidualEncoder,
)
from bype.priors.base import Prior


def squared_error_for(data_shape: tuple[int, ...]) -> SquaredError:
    """Return the paper's squared error: images have the range of pixels, feature vectors none."""
    return SquaredError() if len(data_shape) == 3 else SquaredError(mean_range=None)


def mlp_vae(
    data_shape: tuple[int, ...],
    prior: Prior,
    likelihood: Likelihood | None = None,
    latent_dim: int = 40,
    hidden: int = 300,
) -> VAE:
    """Return the paper's VAE: gated dense networks, one level. Also for feature vectors.

    The likelihood is the paper's squared error unless another one is given.
    """
    return VAE(
        data_shape,
        likelihood or squared_error_for(data_shape),
        prior,
        encoder=MLPEncoder(data_shape, latent_dim, hidden),
        decoder=MLPDecoder(data_shape, latent_dim, hidden),
    )


def dense_vae(
    data_shape: tuple[int, ...],
    prior: Prior,
    likelihood: Likelihood | None = None,
    latent_dim: int = 40,
    hidden: int = 300,
    dropout: float = 0.0,
) -> VAE:
    """Return a VAE that can begin as a linear model: what ``bype fit`` trains. Also for feature vectors.

    With ``dropout``, call :func:`draw_dropout` before each step of a training loop of your own.
    """
    likelihood = likelihood or squared_error_for(data_shape)
    return VAE(
        data_shape,
        likelihood,
        prior,
        encoder=DenseEncoder(data_shape, latent_dim, hidden, dropout),
        decoder=DenseDecoder(data_shape, latent_dim, hidden, dropout, likelihood.outputs_per_dimension),
    )


def mlp_hvae(
    data_shape: tuple[int, ...],
    prior: Prior,
    likelihood: Likelihood | None = None,
    latent_dim: int = 40,
    hidden: int = 300,
) -> HierarchicalVAE:
    """Return the paper's HVAE: gated dense networks, two levels of ``latent_dim`` each."""
    return HierarchicalVAE(
        data_shape,
        likelihood or squared_error_for(data_shape),
        prior,
        encoder=MLPEncoder(data_shape, latent_dim, hidden),
        joint_encoder=MLPJointEncoder(data_shape, latent_dim, latent_dim, hidden),
        conditional=MLPEncoder((latent_dim,), latent_dim, hidden),
        decoder=MLPJointDecoder(data_shape, latent_dim, latent_dim, hidden),
    )


def conv_hvae(
    data_shape: tuple[int, ...],
    prior: Prior,
    likelihood: Likelihood | None = None,
    latent_dim: int = 40,
    hidden: int = 300,
) -> HierarchicalVAE:
    """Return the paper's ConvHVAE: gated convolutions, two levels of ``latent_dim`` each."""
    return HierarchicalVAE(
        data_shape,
        likelihood or squared_error_for(data_shape),
        prior,
        encoder=ConvEncoder(data_shape, latent_dim),
        joint_encoder=ConvJointEncoder(data_shape, latent_dim, latent_dim, hidden),
        conditional=MLPEncoder((latent_dim,), latent_dim, hidden),
        decoder=ConvJointDecoder(data_shape, latent_dim, latent_dim, hidden),
    )


def residual_vae(
    data_shape: tuple[int, ...], prior: Prior, likelihood: Likelihood | None = None, latent_dim: int = 40
) -> VAE:
    """Return the paper's CelebA network: residual convolutions, one level."""
    return VAE(
        data_shape,
        likelihood or squared_error_for(data_shape),
        prior,
        encoder=ResidualEncoder(data_shape, latent_dim),
        decoder=ResidualDecoder(data_shape, latent_dim),
    )
