"""ByPE-VAE: variational autoencoders whose prior is a small weighted set of learned pseudo-data."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bype.coreset import PSVI, ELBOAscent, InverseTimeSteps, RestartedAdam, Tracking
    from bype.evaluation.generation import embed, interpolate, reconstruct, sample
    from bype.evaluation.inference import Embedder
    from bype.likelihoods import Bernoulli, DiscretisedLogistic, FixedGaussian, LearnedGaussian, SquaredError
    from bype.models import VAE, HierarchicalVAE, conv_hvae, mlp_hvae, mlp_vae, residual_vae
    from bype.objective import ELBO, importance_weighted_bound, kl_weight
    from bype.priors import (
        ExemplarPrior,
        GaussianPrior,
        JointPseudocoresetPrior,
        NearestExemplarPrior,
        Pseudocoreset,
        PseudocoresetPrior,
        TensorSource,
        TrackedPseudocoresetPrior,
        VampPrior,
    )
    from bype.training.trained import TrainedRun

__version__ = "0.1.0.dev0"

# Names are imported when they are first used, so that the command line answers without loading torch.
_HOMES = {
    "bype.coreset": ("PSVI", "ELBOAscent", "InverseTimeSteps", "RestartedAdam", "Tracking"),
    "bype.evaluation.generation": ("embed", "interpolate", "reconstruct", "sample"),
    "bype.evaluation.inference": ("Embedder",),
    "bype.likelihoods": ("Bernoulli", "DiscretisedLogistic", "FixedGaussian", "LearnedGaussian", "SquaredError"),
    "bype.models": ("VAE", "HierarchicalVAE", "conv_hvae", "mlp_hvae", "mlp_vae", "residual_vae"),
    "bype.objective": ("ELBO", "importance_weighted_bound", "kl_weight"),
    "bype.priors": (
        "ExemplarPrior",
        "GaussianPrior",
        "JointPseudocoresetPrior",
        "NearestExemplarPrior",
        "Pseudocoreset",
        "PseudocoresetPrior",
        "TensorSource",
        "TrackedPseudocoresetPrior",
        "VampPrior",
    ),
    "bype.training.trained": ("TrainedRun",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ELBO",
    "PSVI",
    "VAE",
    "Bernoulli",
    "DiscretisedLogistic",
    "ELBOAscent",
    "Embedder",
    "ExemplarPrior",
    "FixedGaussian",
    "GaussianPrior",
    "HierarchicalVAE",
    "InverseTimeSteps",
    "JointPseudocoresetPrior",
    "LearnedGaussian",
    "NearestExemplarPrior",
    "Pseudocoreset",
    "PseudocoresetPrior",
    "RestartedAdam",
    "SquaredError",
    "TensorSource",
    "TrackedPseudocoresetPrior",
    "Tracking",
    "TrainedRun",
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


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bype' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
