"""The scikit-learn estimator: ByPE-VAE as a transformer, a density and a detector of outliers."""

from bype.estimator.estimator import ByPEVAE

__all__ = ["ByPEVAE"]
