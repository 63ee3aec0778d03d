"""Weighted mixtures of normals over the latent space: their definition, and the fast ways to score them."""

from bype.mixtures.mixture import LeaveOneOutMixture, NormalMixture

__all__ = ["LeaveOneOutMixture", "NormalMixture"]
