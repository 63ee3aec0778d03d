"""The likelihood under an exemplar prior with all training images as components: what certified pruning saves.

Run from the root of the repository, with a run whose prior is exemplar: ``python benchmarks/exemplar_iwae.py RUN``.
Components are summed from the nearest on until the rest can be shown not to matter. It tells how many that takes, what
is missing at most and in truth, and the time against the exact sum and against bare decoding.
"""

import statistics
import sys
from pathlib import Path

import numpy as np
import torch

from bype.bounded import ComponentIndex, NearbyMixture
from bype.evaluation.density import DensityOptions, _Scorer
from bype.memory import keep_freed_memory
from bype.objective import importance_weighted_bound
from bype.training.examples import StoreSource
from bype.training.trained import TrainedRun
from measure import interleaved_seconds, machine

IMAGES, DRAWS, REPETITIONS = 32, 64, 5


@torch.no_grad()
def main() -> None:
    keep_freed_memory()
    run = TrainedRun.open(Path(sys.argv[1]))
    model, source = run.model, StoreSource(run.store().split("test"))
    prior = model.prior_distribution()
    index = ComponentIndex(prior)
    x = source.read(np.arange(IMAGES))
    posterior = model.encode(x)
    z, _ = posterior.sample_and_score((DRAWS,), generator=torch.Generator().manual_seed(0))
    exact = prior.log_prob(z)
    looked, missing, bound = [], [], []
    for b in range(IMAGES):
        near = NearbyMixture(index, posterior.mean[b : b + 1])
        lower, excess = near.bounds(z[:, b : b + 1])
        looked.append(near.num_summed)
        missing.append((exact[:, b : b + 1] - lower).max().item())
        bound.append(excess.max().item())
    print(f"{run.data.source}, {len(index):,} components in {z.shape[2]} dimensions; {IMAGES} images, {DRAWS} draws.")
    print(f"{machine()}\n")
    print(f"components looked at: median {statistics.median(looked):,.0f}, largest {max(looked):,}")
    print(f"missing in a draw, nats: at most {max(bound):.1e} for certain, {max(missing):.1e} in truth (float32)")
    images, draws = 4, 2000
    scorer = _Scorer(model, source, DensityOptions(draws), np.arange(images))
    functions = {
        "as evaluated, pruned with a certificate": lambda: scorer.bounds(0, images, "float32"),
        "all components": lambda: importance_weighted_bound(model, x[:images], draws, prior=prior),
        "bare decoding": lambda: [model.decode(torch.zeros(2000, z.shape[2])) for _ in range(4)],
    }
    seconds = interleaved_seconds(functions, REPETITIONS)
    print(f"\n| | s for 5,000 draws of 10,000 images, from a slice (median, range of {REPETITIONS}) |\n| --- | --- |")
    for name, values in seconds.items():
        median, low, high = (5e7 / (images * draws) * f(values) for f in (statistics.median, min, max))
        print(f"| {name} | {median:.0f} ({low:.0f} to {high:.0f}) |")


if __name__ == "__main__":
    main()
