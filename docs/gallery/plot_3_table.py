"""
A table with gaps, in a pipeline
================================

569 breast tumours, 30 measurements of each; a tenth of the entries is missing. An
imputer fills the gaps, the VAE makes embeddings of 15 numbers, and a logistic
regression says whether a tumour is malignant. Is it better than without the VAE?
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bype import ByPEVAE

table = load_breast_cancer()
y = table.target
gaps = np.random.default_rng(0).random(table.data.shape) < 0.1
X = np.where(gaps, np.nan, table.data)
print(f"{X.shape[0]} rows, {X.shape[1]} columns, {np.isnan(X).mean():.0%} missing")

# %%
# The VAE is a transformer like any other:

steps = {
    "30 columns": [StandardScaler()],
    "PCA, 15": [StandardScaler(), PCA(15)],
    "ByPEVAE, 15": [ByPEVAE(max_epochs=20, n_draws=10), StandardScaler()],
}
folds = StratifiedKFold(4, shuffle=True, random_state=0)
scores = {}
for name, middle in steps.items():
    classifier = LogisticRegression(max_iter=1000)
    pipeline = make_pipeline(SimpleImputer(strategy="median"), *middle, classifier)
    scores[name] = cross_val_score(pipeline, X, y, cv=folds)
    print(f"{name:<12} {scores[name].mean():.3f} ± {scores[name].std() / 2:.3f}")

# %%
# Accuracy on four folds; a dot is a fold, a line the mean. The three are within their
# errors of each other: for the accuracy alone, such a table needs no VAE. It is for
# what comes with it: likelihoods, new rows, a summary.

_, axes = plt.subplots(figsize=(7, 2))
for line, values in enumerate(scores.values()):
    axes.plot(values, [line] * len(values), "o", alpha=0.5)
    axes.plot(values.mean(), line, "k|", markersize=16)
axes.set(
    yticks=range(len(scores)), yticklabels=scores, xlabel="accuracy", ylim=(-0.5, 2.5)
)

# %%
# New rows, and a summary
# -----------------------
# Two columns of the table, of new rows, and of the pseudo-points. The area of a point
# says how many rows it stands for.

filled = SimpleImputer(strategy="median").fit_transform(X)
vae = ByPEVAE(max_epochs=20).fit(filled, y)
coreset = vae.coreset_
new = vae.sample(569, random_state=0)
shown = {
    "data": (filled, 4),
    "new rows": (new, 4),
    "points": (coreset.points, 4 * coreset.weights),
}
_, axes = plt.subplots(1, 3, figsize=(8, 2.8), sharex=True, sharey=True)
for panel, (title, (rows, area)) in zip(axes, shown.items(), strict=True):
    panel.scatter(rows[:, 0], rows[:, 1], area, alpha=0.5)
    panel.set(title=title, xlabel=table.feature_names[0])
axes[0].set_ylabel(table.feature_names[1])

# sphinx_gallery_thumbnail_number = 2
