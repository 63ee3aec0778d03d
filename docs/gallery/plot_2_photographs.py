"""
Pieces of photographs
=====================

Two photographs come with scikit-learn: a temple in China and a flower. Cut them into
pieces of 16 x 16 pixels, learn what such pieces look like, and ask which pieces are
unusual.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_images
from sklearn.feature_extraction.image import extract_patches_2d

from bype import ByPEVAE

photographs = load_sample_images().images
pieces = np.concatenate(
    [
        extract_patches_2d(photo, (16, 16), max_patches=750, random_state=0)
        for photo in photographs
    ]
)
source = np.repeat(["temple", "flower"], 750)
vae = ByPEVAE(n_pseudopoints=100, latent_dim=20, max_epochs=12, n_draws=20).fit(
    pieces, source
)


def show(images, columns=12):
    """Draw images side by side."""
    lines = len(images) // columns
    _, axes = plt.subplots(lines, columns, figsize=(8, 0.72 * lines))
    for cell, image in zip(axes.flat, images, strict=True):
        cell.imshow(image)
        cell.axis("off")


# %%
# Pieces of the temple, then of the flower:

show(np.concatenate([pieces[:12], pieces[750:762]]))

# %%
# The pseudo-points
# -----------------
# A hundred points stand for 1,350 pieces. These are the heaviest of each photograph.
# Most of a photograph is smooth, and so are most points.

coreset = vae.coreset_
show(
    np.concatenate(
        [coreset.points[coreset.labels == name][:12] for name in ("temple", "flower")]
    )
)

# %%
# Samples
# -------
# New pieces of the temple, then of the flower. They have the colours and the coarse
# shapes, and are blurred: fine detail is what a small VAE drops first.

show(
    np.concatenate(
        [vae.sample(12, y=name, random_state=0) for name in ("temple", "flower")]
    )
)

# %%
# Unusual pieces
# --------------
# The least likely pieces have edges and strong contrast. The most likely ones have
# nearly no contrast. A likelihood alone prefers plain images, whatever they show; so
# look at what it finds before you trust it.

order = vae.score_samples(pieces).argsort()
show(np.concatenate([pieces[order[:12]], pieces[order[-12:]]]))

# sphinx_gallery_thumbnail_number = 1
