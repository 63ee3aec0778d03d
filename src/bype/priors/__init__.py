"""Priors over the latent space. Each is a module whose forward returns one distribution."""

from bype.priors.base import Encode, ExampleSource, Prior, TensorSource, TrainingBatch
from bype.priors.exemplar import ExemplarPrior, NearestExemplarPrior
from bype.priors.gaussian import GaussianPrior
from bype.priors.pseudocoreset import JointPseudocoresetPrior, Pseudocoreset, PseudocoresetPrior, project_to_simplex
from bype.priors.tracked import TrackedPseudocoresetPrior
from bype.priors.vamp import VampPrior

__all__ = [
    "Encode",
    "ExampleSource",
    "ExemplarPrior",
    "GaussianPrior",
    "JointPseudocoresetPrior",
    "NearestExemplarPrior",
    "Prior",
    "Pseudocoreset",
    "PseudocoresetPrior",
    "TensorSource",
    "TrackedPseudocoresetPrior",
    "TrainingBatch",
    "VampPrior",
    "project_to_simplex",
]
