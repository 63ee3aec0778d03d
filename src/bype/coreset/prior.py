"""The prior whose pseudocoreset a rule updates."""

from bype.models.base import LatentModel
from bype.priors.pseudocoreset import PseudocoresetPrior


def pseudocoreset_prior_of(model: LatentModel) -> PseudocoresetPrior:
    """Return a model's prior, or say that it has no pseudocoreset."""
    if not isinstance(model.prior, PseudocoresetPrior):
        raise ValueError(f"{type(model.prior).__name__} has no pseudocoreset to update; use PseudocoresetPrior")
    return model.prior
