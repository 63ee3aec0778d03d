"""Rules that update a pseudocoreset. Its points and weights stay with the prior."""

from bype.coreset.elbo import ELBOAscent
from bype.coreset.psvi import PSVI, Centring, PSVIGradient, psvi_gradient
from bype.coreset.scores import LinearScores, PairwiseScores, Scores, scores_of
from bype.coreset.steps import InverseTimeSteps, RestartedAdam, Steps
from bype.coreset.tracking import Tracking

__all__ = [
    "PSVI",
    "Centring",
    "ELBOAscent",
    "InverseTimeSteps",
    "LinearScores",
    "PSVIGradient",
    "PairwiseScores",
    "RestartedAdam",
    "Scores",
    "Steps",
    "Tracking",
    "psvi_gradient",
    "scores_of",
]
