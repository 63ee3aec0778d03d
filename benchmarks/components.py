"""What a mixture of very many components loses if only those near to an example count.

Run from the root of the repository: ``python benchmarks/components.py RUN``, with a run whose components share one
variance, such as an Exemplar prior, where all training images are components:

    bype train paper/fashion-mnist/vae/exemplar --length "40 epochs" --warm-up "20 epochs" --data STORE --out RUN

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


def mean_size(ids: list[Tensor]) -> int:
    return round(np.mean([len(each) for each in ids]))


def print_row(what: str, missing: list[Tensor]) -> None:
    all_missing = torch.cat(missing)
    root = all_missing.square().mean().sqrt()
    print(f"| {what} | {all_missing.mean():.4f} | {root:.3f} | {all_missing.max():.3f} |")


def print_turns(what: str, joint: Tensor, batches: list[Tensor], near: list[Tensor], num_parts: int) -> None:
    """Print what is missing where one part of the components counts, as often as there are parts, and those near."""
    missing, members = [], []
    for first in range(num_parts):
        for rows, ids in zip(batches, near, strict=True):
            counts = torch.zeros(joint.shape[1])
            counts[first::num_parts] = num_parts
            counts[ids] = 1
            missing.append(joint[rows].logsumexp(1) - (joint[rows] + counts.log()).logsumexp(1))
            members.append(counts.nonzero())
    print_row(f"{what}, {mean_size(members):,} in all", missing)


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
    print("| what counts | mean | root mean square | largest |\n| --- | --- | --- | --- |")
    for k in NEAREST:
        if k <= joint.shape[1]:
            print_row(f"the {k:,} nearest, exact search", [total - sorted_joint[:, :k].logsumexp(1)])
    index = InvertedFile(*mixture.means.shape)
    index.build(mixture.means)
    for k in (32, 128):
        batches = np.array_split(np.arange(len(z)), max(1, len(z) // BATCH))
        near = [torch.unique(index.nearest(posterior.mean[rows], mixture.means, k)) for rows in batches]
        alone = [total[rows] - joint[rows][:, ids].logsumexp(1) for rows, ids in zip(batches, near, strict=True)]
        print_row(f"inverted file, {k} near to each of {BATCH}, {mean_size(near):,} in all", alone)
        num_parts = len(mixture.means) // (k * BATCH)
        what = f"inverted file, {k} near to each of {BATCH}, and others in turn"
        if num_parts > 1:
            print_turns(what, joint, batches, near, num_parts)
    nothing = [torch.zeros(0, dtype=torch.int64)] * len(batches)
    for num_parts in (8, 4):
        print_turns("components in turn alone", joint, batches, nothing, num_parts)
    certain = NearbyMixture(ComponentIndex(mixture), posterior.mean[:50])
    _, excess = certain.bounds(z[None, :50])
    print(
        f"\nFor a certificate of {excess.max():.1g} nats {certain.num_summed:,} components have to be summed at most."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
