"""
More like this one, and the way between two
===========================================

Train on 1,797 handwritten digits of 8 x 8 pixels. Then look at random samples, at
samples of one class, at samples like a given image, and at what lies between two
images.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import bype
from bype import ByPEVAE

digits = load_digits()
images = (digits.images * 15.9).astype(np.uint8)  # bytes, as in an image file
train, test, y_train, _ = train_test_split(
    images, digits.target, test_size=300, random_state=0
)
vae = ByPEVAE(n_pseudopoints=200, latent_dim=12, max_epochs=30).fit(train, y_train)


def show(lines, titles):
    """Draw lines of images, each with a title at its left."""
    size = {"figsize": (8, 0.8 * len(lines)), "squeeze": False}
    _, axes = plt.subplots(len(lines), len(lines[0]), **size)
    for line, (cells, title) in enumerate(zip(axes, titles, strict=True)):
        for cell, image in zip(cells, lines[line], strict=True):
            cell.imshow(image, cmap="gray", vmin=0, vmax=255)
            cell.set(xticks=[], yticks=[])
        cells[0].set_ylabel(title, rotation=0, ha="right", va="center")


# %%
# Random samples
# --------------
# The upper line has test images, the lower line new ones. Nothing is chosen by hand.

show([test[:10], vae.sample(10, random_state=0)], ["data", "samples"])

# %%
# Samples of one class
# --------------------
# ``fit`` was given labels, so each class has pseudo-points of its own.

show([vae.sample(10, y=label, random_state=0) for label in (2, 5, 8)], ["2", "5", "8"])

# %%
# More like this one
# ------------------
# Encode a test image, find the pseudo-point that is nearest to it, and draw from the
# prior's component around that point. The first image of each line is the test image,
# the second the point, the others are new.

coreset = vae.coreset_
latents, at_points = vae.transform(test[:3]), vae.transform(coreset.points)
found = np.linalg.norm(latents[:, None] - at_points, axis=2).argmin(1)
lines = []
for image, nearest in zip(test, found, strict=False):
    drawn = bype.sample(vae.model_, 8, component=int(coreset.component[nearest]))
    lines.append([image, coreset.points[nearest], *(255 * drawn[:, 0].numpy())])
show(lines, ["given, point, new"] * 3)

# %%
# Between two images
# ------------------
# A straight line between two embeddings, decoded.

first, last = vae.transform(test[[0, 3]])
show([vae.inverse_transform(np.linspace(first, last, 10))], ["between"])

# %%
# The points behind it
# --------------------
# The prior is a mixture around these images. Above each stands how many training
# examples it stands for.

_, axes = plt.subplots(2, 8, figsize=(8, 2.6))
for cell, point, weight in zip(axes.flat, coreset.points, coreset.weights, strict=False):
    cell.imshow(point, cmap="gray", vmin=0, vmax=255)
    cell.set(xticks=[], yticks=[], title=f"{weight:.0f}")
print(f"{len(coreset)} points stand for {coreset.weights.sum():.0f} examples")

# sphinx_gallery_thumbnail_number = 5
