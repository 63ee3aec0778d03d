"""ByPE-VAE: variational autoencoders whose prior is a small weighted set of learned pseudo-data."""

from bype.coreset import PSVI, InverseTimeSteps, RestartedAdam
from bype.evaluation.generation import embed, interpolate, reconstruct, sample
from bype.likelihoods import Bernoulli, DiscretisedLogistic, FixedGaussian, LearnedGaussian, SquaredError
from bype.models import VAE, HierarchicalVAE, conv_hvae, mlp_hvae, mlp_vae, residual_vae
from bype.objective import ELBO, importance_weighted_bound, kl_weight
from bype.priors import (
    ExemplarPrior,
    GaussianPrior,
    NearestExemplarPrior,
    Pseudocoreset,
    PseudocoresetPrior,
    TensorSource,
    VampPrior,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "ELBO",
    "PSVI",
    "VAE",
    "Bernoulli",
    "DiscretisedLogistic",
    "ExemplarPrior",
    "FixedGaussian",
    "GaussianPrior",
    "HierarchicalVAE",
    "InverseTimeSteps",
    "LearnedGaussian",
    "NearestExemplarPrior",
    "Pseudocoreset",
    "PseudocoresetPrior",
    "RestartedAdam",
    "SquaredError",
    "TensorSource",
    "VampPrior",
    "conv_hvae",
    "embed",
    "importance_weighted_bound",
    "interpolate",
    "kl_weight",
    "mlp_hvae",
    "mlp_vae",
    "reconstruct",
    "residual_vae",
    "sample",
]
