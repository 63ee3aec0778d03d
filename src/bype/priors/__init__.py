"""Priors over the latent space. Each is a module whose forward returns one distribution."""

from bype.priors.base import Encode, ExampleSource, Prior, PriorPoints, TensorSource, TrainingBatch
from bype.priors.exemplar import ExemplarPrior, NearestExemplarPrior
from bype.priors.gaussian import GaussianPrior
from bype.priors.vamp import VampPrior

__all__ = [
    "Encode",
    "ExampleSource",
    "ExemplarPrior",
    "GaussianPrior",
    "NearestExemplarPrior",
    "Prior",
    "PriorPoints",
    "TensorSource",
    "TrainingBatch",
    "VampPrior",
]
