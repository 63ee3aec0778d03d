"""
Unusual rows of a table
=======================

Fit to benign tumours alone, then score benign ones that were held out and malignant
ones. No label is used in the fit. Two simple detectors stand beside it.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.preprocessing import StandardScaler

from bype import ByPEVAE

table = load_breast_cancer()
benign, malignant = table.data[table.target == 1], table.data[table.target == 0]
train, held_out = train_test_split(benign, test_size=0.5, random_state=0)
test = np.concatenate([held_out, malignant])
is_outlier = np.repeat([0, 1], [len(held_out), len(malignant)])
vae = ByPEVAE(max_epochs=60, contamination=0.05).fit(train)

# %%
# log p(x) is large for usual rows and small for unusual ones. ``contamination`` says
# which share of the training rows ``predict`` calls outliers; the line is that
# threshold.

scores = vae.score_samples(test)
_, axes = plt.subplots(figsize=(7, 2.6))
bins = np.linspace(vae.offset_ - 100, scores.max(), 50)
for name, chosen in (
    ("benign, held out", is_outlier == 0),
    ("malignant", is_outlier == 1),
):
    axes.hist(scores[chosen].clip(bins[0]), bins, alpha=0.6, label=name)
axes.axvline(vae.offset_, color="gray", linewidth=1)
axes.set(xlabel="log p(x) in nats; the leftmost bar has all below", ylabel="rows")
axes.legend(frameon=False)
found = vae.predict(test) == -1
for name, kind in (("benign", 0), ("malignant", 1)):
    print(f"called outliers: {found[is_outlier == kind].mean():.0%} of {name} ones")

# %%
# Beside simpler detectors
# ------------------------
# The area under the ROC curve is the probability that a malignant tumour has a worse
# score than a benign one.

scaler = StandardScaler().fit(train)
near = NearestNeighbors(n_neighbors=5).fit(scaler.transform(train))
lof = LocalOutlierFactor(novelty=True).fit(scaler.transform(train))
others = {
    "ByPEVAE, log p(x)": -scores,
    "distance to the 5th neighbour": near.kneighbors(scaler.transform(test))[0][:, -1],
    "local outlier factor": -lof.score_samples(scaler.transform(test)),
}
for name, unusual in others.items():
    print(f"{name:<30} {roc_auc_score(is_outlier, unusual):.3f}")

# %%
# This is one easy table. On 26 tables of ADBench :doc:`neighbours have the better mean
# rank </results/outliers>`.
#
# Which columns made a row unusual?
# ---------------------------------
# Compare the least likely row with its reconstruction, in standard deviations of the
# training rows.

worst = test[[scores.argmin()]]
gap = ((worst - vae.reconstruct(worst)) / train.std(0))[0]
for column in np.abs(gap).argsort()[::-1][:4]:
    name, value = table.feature_names[column], worst[0, column]
    print(f"{name:<24} {value:8.3f}   off by {gap[column]:+.1f}")
