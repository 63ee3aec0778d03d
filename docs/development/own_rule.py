"""A rule of your own: after each epoch the lightest points give way to other training examples.

Run it as ``python own_rule.py FOLDER``, or in two processes as ``torchrun --nproc-per-node 2 own_rule.py FOLDER``.
Killed and started again, it resumes.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

import bype
from bype.data.prepare import prepare
from bype.distributed import open_group


class Swap(bype.Rule):
    """Set the weights by one step of EM, then put fresh examples in the place of the lightest tenth of the points."""

    def __init__(self, model):
        super().__init__(every="1 epoch", num_batches=1, batch_size=500)
        self.register_buffer("num_swapped", torch.tensor(0))  # buffers are saved with the run

    @torch.no_grad()
    def update(self, model, batches, *, validation_kl=None, generator=None):
        prior, coreset = model.prior, model.prior.pseudocoreset
        for batch in batches:
            x = batch.group.gather_rows(batch.x)  # the parts of all processes
            z, means = model.encode(x).mean, model.encode(coreset.points).mean
            distance = torch.cdist(z, means).square() / (2 * prior.log_variance.exp())
            weights = (coreset.probabilities.log() - distance).softmax(1).mean(0)
            lightest = weights.argsort()[: max(1, len(weights) // 10)]
            points = coreset.points.clone()
            points[lightest], weights[lightest] = x[: len(lightest)], weights.mean()
            coreset.assign(points, weights * coreset.total)
            self.num_swapped += len(lightest)
        return {"swapped": int(self.num_swapped)}  # a line of metrics.jsonl


def main(folder):
    images = (15.9 * load_digits().images).astype(np.uint8)  # 1,797 real digits of 8 x 8
    with open_group() as group:
        if group.is_first and not (folder / "store").exists():
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / "digits.npy", images)
            prepare(folder / "digits.npy", folder / "store")
        group.broadcast(b"ready")
        size = {"components": 50, "latent_dim": 8, "hidden": 64, "batch_size": 50, "learning_rate": 2e-3}
        noise = {"likelihood": "gaussian", "variance": 0.02}
        config = bype.TrainingConfig(**size, **noise, length="15 epochs", warm_up="5 epochs")
        outcome = bype.train(config, folder / "store", folder / "run", group=group, rule=Swap)
        if group.is_first:
            print(f"{outcome.state}, validation -ELBO {outcome.best:.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
