"""The likelihood under an exemplar prior with all training images as components: what certified pruning saves.

Run from the root of the repository, with a run whose prior is exemplar: ``python benchmarks/exemplar_iwae.py RUN``.
For each image it asks how many of the nearest components must be summed until the bound on all others, which holds for
certain, is below 0.01 nats a draw; what really is missing; and how long the estimate takes against the exact one.
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

IMAGES, DRAWS, REPETITIONS = 64, 32, 5


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
    print(f"{run.data.source}, {len(index):,} components in {z.shape[2]} dimensions; {IMAGES} images, {DRAWS} draws.")
    print(f"{machine()}\n")
    print("| components summed | missing: mean, largest | bound, median of images | images bounded by 0.01 |")
    print("| --- | --- | --- | --- |")
    for count in (512, 2048, 4096, 8192, 16384, 24576, 32768):
        near = NearbyMixture(index, posterior.mean, count)
        lower = near.log_prob(z)
        missing, bound = exact - lower, near.excess(z, lower).mean(0)
        share = (bound < 0.01).float().mean()
        print(f"| {count:,} | {missing.mean():.1e}, {missing.max():.1e} | {bound.median():.2g} | {100 * share:.0f}% |")
    scorer = _Scorer(model, source, DensityOptions(500))
    functions = {
        "as evaluated, pruned where certified": lambda: scorer.bound(0, 16, "float32"),
        "all components": lambda: importance_weighted_bound(model, x[:16], 500, prior=prior),
        "bare decoding": lambda: [model.decode(torch.zeros(2048, z.shape[2])) for _ in range(4)],
    }
    seconds = interleaved_seconds(functions, REPETITIONS)
    print("\n| | s for 5,000 draws of 10,000 images, from a slice (median, range of 5) |\n| --- | --- |")
    for name, values in seconds.items():
        scale = 5e7 / (8192 if name == "bare decoding" else 16 * 500)
        median, low, high = (scale * f(values) for f in (statistics.median, min, max))
        print(f"| {name} | {median:.0f} ({low:.0f} to {high:.0f}) |")
    found = scorer.bound(0, 16, "float32")
    print(f"\nbound on what was left out, mean of 16 images: {found.neglected.mean():.2g} nats")


if __name__ == "__main__":
    main()
