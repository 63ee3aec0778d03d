"""
Four priors on one network
==========================

The same network, data and schedule with a Gaussian prior, a VampPrior, an Exemplar prior and a pseudocoreset.
The bars show −log p(x) of test images: smaller is better.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import bype
from bype.data.prepare import prepare

folder = Path(tempfile.mkdtemp())
np.save(folder / "digits.npy", (load_digits().images * 15.9).astype(np.uint8))
prepare(folder / "digits.npy", folder / "store", validation=200, test=300)

# %%
# A config has all settings of a run; only the prior differs.

settings = {
    "components": 100,
    "latent_dim": 8,
    "hidden": 64,
    "batch_size": 100,
    "learning_rate": 2e-3,
    "likelihood": "learned-gaussian",
    "length": "30 epochs",
    "warm_up": "10 epochs",
    "patience": "0 epochs",
}
found = {}
for prior in ("gaussian", "vamp", "exemplar", "bype"):
    config = bype.TrainingConfig(prior=prior, **settings)
    bype.train(config, folder / "store", folder / prior)
    run = bype.TrainedRun.open(folder / prior)
    density = bype.DensityOptions(num_samples=200)
    found[prior] = bype.evaluate(run, "test", density=density).density.negative_log_likelihood
    print(f"{prior:<10} {found[prior].value:8.2f} ± {found[prior].error:.2f} nats")

# %%
# The error is over test images, which all priors share; so differences are known better than it says. This is
# one seed and a short schedule. :doc:`The ablation </results/ablation>` has three seeds and larger images.

values = [value.value for value in found.values()]
_, axes = plt.subplots(figsize=(7, 2.4))
bars = axes.barh(list(found), np.array(values) - min(values))
axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=4)
axes.set(xlabel="−log p(x) in nats, above the best")
axes.margins(x=0.15)
