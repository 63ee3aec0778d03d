"""ByPE-VAE: variational autoencoders whose prior is a small weighted set of learned pseudo-data."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bype.distributions import DiagonalNormal, TorchDistribution
    from bype.estimator import ByPEVAE
    from bype.evaluation.audit import audit_run
    from bype.evaluation.density import DensityOptions
    from bype.evaluation.evaluate import evaluate
    from bype.evaluation.generation import embed, interpolate, reconstruct, sample
    from bype.evaluation.inference import Embedder
    from bype.evaluation.outliers import score_examples
    from bype.evaluation.pseudopoints import Coreset, coreset
    from bype.evaluation.records import Evaluation
    from bype.export.onnx import export_onnx
    from bype.likelihoods import (
        Bernoulli,
        ConditionalGaussian,
        DiscretisedLogistic,
        FixedGaussian,
        LearnedGaussian,
        Likelihood,
        RobustGaussian,
        SquaredError,
    )
    from bype.mixtures import NormalMixture
    from bype.models import VAE, HierarchicalVAE, conv_hvae, dense_vae, mlp_hvae, mlp_vae, residual_vae
    from bype.networks.dense import draw_dropout
    from bype.objective import ELBO, ELBOTerms, ImportanceWeightedBound, importance_weighted_bound, kl_weight
    from bype.priors import (
        ExemplarPrior,
        GaussianPrior,
        NearestExemplarPrior,
        Prior,
        TensorSource,
        VampPrior,
    )
    from bype.pseudocoreset.ascent import ELBOAscent
    from bype.pseudocoreset.coreset import Pseudocoreset
    from bype.pseudocoreset.joint import JointPseudocoresetPrior
    from bype.pseudocoreset.prior import PseudocoresetPrior
    from bype.pseudocoreset.psvi import PSVI
    from bype.pseudocoreset.rule import Rule
    from bype.pseudocoreset.settings import (
        AscentSettings,
        FrozenSettings,
        JointSettings,
        PSVISettings,
        TrackingSettings,
    )
    from bype.pseudocoreset.step_sizes import InverseTimeSteps, RestartedAdam
    from bype.pseudocoreset.tracking import TrackedPseudocoresetPrior, Tracking
    from bype.run.config import TrainingConfig
    from bype.share.run import TrainedRun
    from bype.training.loop import Outcome, train

__version__ = "0.2.0.dev0"

# Names are imported when they are first used, so that the command line answers without loading torch.
_HOMES = {
    "bype.distributions": ("DiagonalNormal", "TorchDistribution"),
    "bype.evaluation.audit": ("audit_run",),
    "bype.estimator": ("ByPEVAE",),
    "bype.evaluation.density": ("DensityOptions",),
    "bype.evaluation.evaluate": ("evaluate",),
    "bype.evaluation.generation": ("embed", "interpolate", "reconstruct", "sample"),
    "bype.evaluation.inference": ("Embedder",),
    "bype.evaluation.outliers": ("score_examples",),
    "bype.evaluation.pseudopoints": ("Coreset", "coreset"),
    "bype.evaluation.records": ("Evaluation",),
    "bype.likelihoods": (
        "Bernoulli",
        "ConditionalGaussian",
        "DiscretisedLogistic",
        "FixedGaussian",
        "LearnedGaussian",
        "Likelihood",
        "RobustGaussian",
        "SquaredError",
    ),
    "bype.export.onnx": ("export_onnx",),
    "bype.mixtures": ("NormalMixture",),
    "bype.models": ("VAE", "HierarchicalVAE", "conv_hvae", "dense_vae", "mlp_hvae", "mlp_vae", "residual_vae"),
    "bype.networks.dense": ("draw_dropout",),
    "bype.objective": ("ELBO", "ELBOTerms", "ImportanceWeightedBound", "importance_weighted_bound", "kl_weight"),
    "bype.priors": ("ExemplarPrior", "GaussianPrior", "NearestExemplarPrior", "Prior", "TensorSource", "VampPrior"),
    "bype.pseudocoreset.ascent": ("ELBOAscent",),
    "bype.pseudocoreset.coreset": ("Pseudocoreset",),
    "bype.pseudocoreset.joint": ("JointPseudocoresetPrior",),
    "bype.pseudocoreset.prior": ("PseudocoresetPrior",),
    "bype.pseudocoreset.psvi": ("PSVI",),
    "bype.pseudocoreset.rule": ("Rule",),
    "bype.pseudocoreset.settings": (
        "AscentSettings",
        "FrozenSettings",
        "JointSettings",
        "PSVISettings",
        "TrackingSettings",
    ),
    "bype.pseudocoreset.step_sizes": ("InverseTimeSteps", "RestartedAdam"),
    "bype.pseudocoreset.tracking": ("TrackedPseudocoresetPrior", "Tracking"),
    "bype.run.config": ("TrainingConfig",),
    "bype.share.run": ("TrainedRun",),
    "bype.training.loop": ("Outcome", "train"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ELBO",
    "PSVI",
    "VAE",
    "AscentSettings",
    "Bernoulli",
    "ByPEVAE",
    "ConditionalGaussian",
    "Coreset",
    "DensityOptions",
    "DiagonalNormal",
    "DiscretisedLogistic",
    "ELBOAscent",
    "ELBOTerms",
    "Embedder",
    "Evaluation",
    "ExemplarPrior",
    "FixedGaussian",
    "FrozenSettings",
    "GaussianPrior",
    "HierarchicalVAE",
    "ImportanceWeightedBound",
    "InverseTimeSteps",
    "JointPseudocoresetPrior",
    "JointSettings",
    "LearnedGaussian",
    "Likelihood",
    "NearestExemplarPrior",
    "NormalMixture",
    "Outcome",
    "PSVISettings",
    "Prior",
    "Pseudocoreset",
    "PseudocoresetPrior",
    "RestartedAdam",
    "RobustGaussian",
    "Rule",
    "SquaredError",
    "TensorSource",
    "TorchDistribution",
    "TrackedPseudocoresetPrior",
    "Tracking",
    "TrackingSettings",
    "TrainedRun",
    "TrainingConfig",
    "VampPrior",
    "audit_run",
    "conv_hvae",
    "coreset",
    "dense_vae",
    "draw_dropout",
    "embed",
    "evaluate",
    "export_onnx",
    "importance_weighted_bound",
    "interpolate",
    "kl_weight",
    "mlp_hvae",
    "mlp_vae",
    "reconstruct",
    "residual_vae",
    "sample",
    "score_examples",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bype' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
