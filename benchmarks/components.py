"""What a mixture of very many components loses if only those near to an example count.

Run from the root of the repository: ``python benchmarks/components.py RUN``, with a run whose components share one
variance, such as an Exemplar prior, where all training images are components:

    bype train paper/fashion-mnist/vae/exemplar --length "20 epochs" --warm-up "10 epochs" --data STORE --out RUN

It takes seconds. Step times are printed by ``bype bench``.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bype.bounded import ComponentIndex, NearbyMixture
from bype.inverted import InvertedFile
from bype.mixtures import NormalMixture
from bype.training.rows import encode_rows, spread_rows
from bype.training.trained import TrainedRun

NEAREST = (32, 128, 512, 2048, 8192)
EXAMPLES = 500
BATCH = 100


def joint_log_density(mixture: NormalMixture, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(weight x density) of each pair, up to a constant, and their squared distances, (examples, M) each."""
    distance = torch.cdist(z, mixture.means).square()
    return mixture.log_weights - 0.5 * distance * torch.exp(-mixture.log_variance), distance


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = TrainedRun.open(parser.parse_args().run)
    mixture = run.model.prior_distribution()
    if not (isinstance(mixture, NormalMixture) and mixture.log_variance.ndim == 0):
        raise SystemExit("the components of this run do not share one variance")
    split = run.store(None).split("validation")
    posterior = encode_rows(run.model, split, spread_rows(len(split), EXAMPLES))
    z = posterior.sample(generator=torch.Generator().manual_seed(0))
    joint, distance = joint_log_density(mixture, z)
    total = joint.logsumexp(1)
    sorted_joint = joint.gather(1, distance.argsort(1))

    print(f"{len(mixture.means):,} components; missing from log p(z) of {len(z)} validation images, nats\n")
    print("| what counts | mean | largest |\n| --- | --- | --- |")
    for k in NEAREST:
        if k <= joint.shape[1]:
            missing = total - sorted_joint[:, :k].logsumexp(1)
            print(f"| the {k:,} nearest, exact search | {missing.mean():.4f} | {missing.max():.3f} |")
    index = InvertedFile(*mixture.means.shape)
    index.build(mixture.means)
    for k in (32, 128):
        parts, sizes = [], []
        for rows in np.array_split(np.arange(len(z)), len(z) // BATCH):
            members = torch.unique(index.nearest(posterior.mean[rows], mixture.means, k))
            parts.append(total[rows] - joint[rows][:, members].logsumexp(1))
            sizes.append(len(members))
        missing = torch.cat(parts)
        what = f"inverted file, {k} near to each of {BATCH} ({int(np.mean(sizes)):,} in all)"
        print(f"| {what} | {missing.mean():.4f} | {missing.max():.3f} |")
    certain = NearbyMixture(ComponentIndex(mixture), posterior.mean[:50])
    _, excess = certain.bounds(z[None, :50])
    print(
        f"\nFor a certificate of {excess.max():.1g} nats {certain.num_summed:,} components have to be summed at most."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
