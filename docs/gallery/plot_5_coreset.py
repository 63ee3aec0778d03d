"""
A small training set
====================

Pseudo-points with labels and weights can stand for the training data. Train a logistic
regression on them, on as many random examples, and on all the data.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from bype import ByPEVAE

digits = load_digits()
images = (digits.images * 15.9).astype(np.uint8)
train, test, y_train, y_test = train_test_split(
    images, digits.target, test_size=500, random_state=0, stratify=digits.target
)


def accuracy(points, labels, weights=None):
    """Return the share of test images that a logistic regression recognises."""
    classifier = LogisticRegression(max_iter=2000).fit(
        points.reshape(-1, 64) / 255, labels, weights
    )
    return classifier.score(test.reshape(-1, 64) / 255, y_test)


# %%
# For each size, one pseudocoreset, and ten draws of as many random examples with the
# same shares of classes.

sizes, ours, equal, random = (20, 50, 150), [], [], []
for size in sizes:
    vae = ByPEVAE(n_pseudopoints=size, latent_dim=12, max_epochs=15, n_draws=5).fit(
        train, y_train
    )
    points, labels = vae.coreset_.points, vae.coreset_.labels
    weights = vae.coreset_.weights / vae.coreset_.weights.mean()
    ours.append(accuracy(points, labels, weights))
    equal.append(accuracy(points, labels))
    draws = [
        train_test_split(
            range(len(train)), train_size=len(points), stratify=y_train, random_state=draw
        )[0]
        for draw in range(10)
    ]
    random.append([accuracy(train[rows], y_train[rows]) for rows in draws])
everything = accuracy(train, y_train)

# %%
# Crosses are the ten random draws. **Points and random examples are about level here**:
# for this classifier, a balanced random choice is as good. Both are far behind all the
# data. This is one seed and one small data set.

_, axes = plt.subplots(figsize=(7, 3))
axes.plot(sizes, ours, "o-", label="pseudo-points with weights")
axes.plot(sizes, equal, "s--", label="pseudo-points, equal weights")
axes.plot(
    sizes, np.mean(random, axis=1), "x-", label="random examples, mean of ten draws"
)
axes.plot(np.repeat(sizes, 10), np.ravel(random), "x", color="#718096", alpha=0.5)
axes.axhline(everything, color="gray", linewidth=1, label=f"all {len(train)} examples")
axes.set(
    xlabel="points",
    ylabel="accuracy on test images",
    xscale="log",
    xticks=sizes,
    xticklabels=sizes,
)
axes.minorticks_off()
axes.legend(frameon=False)
print("points  with weights  without  random examples")
for size, *values in zip(sizes, ours, equal, np.mean(random, axis=1), strict=True):
    print(f"{size:6}  {values[0]:12.3f}  {values[1]:7.3f}  {values[2]:15.3f}")
print(f"all {len(train)} examples: {everything:.3f}")
