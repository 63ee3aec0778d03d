"""
Four priors on one network
==========================

The same network, data and schedule with a Gaussian prior, a VampPrior, an Exemplar
prior and a pseudocoreset. The bars show −log p(x) of test images: smaller is better.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import bype
from bype.data.prepare import prepare

images = (load_digits().images * 15.9).astype(np.uint8)
folder = Path(tempfile.mkdtemp())
np.save(folder / "digits.npy", images[:1497])
prepare(folder / "digits.npy", folder / "store", validation=200, test=0)
test = (torch.tensor(images[1497:, None]) + 0.5) / 256  # as a model sees bytes

# %%
# A config has all settings of a run; only the prior differs.

settings = {
    "components": 100,
    "latent_dim": 8,
    "hidden": 64,
    "batch_size": 50,
    "learning_rate": 2e-3,
    "likelihood": "gaussian",
    "variance": 0.02,
    "length": "15 epochs",
    "warm_up": "5 epochs",
    "vamp_start": "examples",
}
found = {}
for prior in ("gaussian", "vamp", "exemplar", "bype"):
    bype.train(
        bype.TrainingConfig(prior=prior, **settings), folder / "store", folder / prior
    )
    model = bype.TrainedRun.open(folder / prior).model
    generator = torch.Generator().manual_seed(0)
    bound = bype.importance_weighted_bound(
        model, test, num_samples=100, generator=generator
    )
    found[prior] = -bound.log_likelihood.mean().item()
    print(f"{prior:<10} {found[prior]:6.2f} nats")

# %%
# This is one seed and a short schedule on tiny images. :doc:`The ablation
# </results/ablation>` has three seeds and larger images; there the VampPrior is level
# with the other two mixtures.

values = np.array(list(found.values()))
_, axes = plt.subplots(figsize=(7, 2.4))
bars = axes.barh(list(found), values - values.min())
axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=4)
axes.set(xlabel="nats above the best; the labels are −log p(x) of test images")
axes.margins(x=0.15)
