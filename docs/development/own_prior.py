"""A prior of your own: a normal distribution whose mean and variances are learned, beside two of the library.

Run it as ``python own_prior.py FOLDER``. If it was killed, start it again, and it resumes.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import bype
from bype.data.prepare import prepare


class LearnedNormal(bype.Prior):
    """p(z) = N(m, diag s), with m and s learned by backpropagation."""

    def __init__(self, latent_dim):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(latent_dim))
        self.log_variance = nn.Parameter(torch.zeros(latent_dim))

    def forward(self, encode, batch=None):
        """Return one distribution that scores and samples; a prior may use the encoder, this one does not."""
        return bype.DiagonalNormal(self.mean, self.log_variance)


def main(folder):
    if not (folder / "store").exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "digits.npy", (15.9 * load_digits().images).astype(np.uint8))  # 1,797 real digits of 8 x 8
        prepare(folder / "digits.npy", folder / "store")
    size = {"latent_dim": 8, "hidden": 64, "batch_size": 50, "learning_rate": 2e-3, "components": 50}
    noise = {"likelihood": "gaussian", "variance": 0.02}
    short = {"length": "15 epochs", "warm_up": "5 epochs"}
    priors = {"standard": ("gaussian", None), "pseudocoreset": ("bype", None), "learned": ("bype", LearnedNormal)}
    for name, (known, own) in priors.items():
        config = bype.TrainingConfig(prior=known, **size, **noise, **short)
        bype.train(config, folder / "store", folder / name, prior=own)
        run = bype.TrainedRun.open(folder / name, prior=own)
        found = bype.evaluate(run, density=bype.DensityOptions(num_samples=50), with_map=False)
        density, gap = found.density, found.prior_gap
        print(f"{name}: -ELBO {density.negative_elbo.value:.2f}, -log p(x) {density.negative_log_likelihood.value:.2f}")
        print(f"  between aggregate posterior and prior: {gap.smallest_gap.value:.2f} to {gap.largest_gap.value:.2f}")
    print(f"new digits: {tuple(bype.sample(run.model, 5).shape)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
