"""What a mixture of very many components loses if only some of them count in a step.

Run from the root of the repository: ``python benchmarks/components.py RUN``, with a run whose components share one
variance, such as an Exemplar prior, where all training images are components:

    bype train paper/fashion-mnist/vae/exemplar --length "40 epochs" --warm-up "20 epochs" --data STORE --out RUN

It compares those nearest to an image with a part that takes turns to stand for all, as with ``--rule-scored-points``.
It takes seconds. Step times are printed by ``benchmarks/step_times.py``.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor

from bype.data.examples import StoreSource, spread_rows
from bype.mixtures import NormalMixture
from bype.run.opened import TrainedRun

NEAREST = (32, 128, 512, 2048, 8192)
PARTS = (16, 8, 4, 2)
EXAMPLES = 500


def joint_log_density(mixture: NormalMixture, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(weight x density) of each pair, up to a constant, and their squared distances, (examples, M) each."""
    distance = torch.cdist(z, mixture.means).square()
    return mixture.log_weights - 0.5 * distance * torch.exp(-mixture.log_variance), distance


def print_row(what: str, missing: Tensor) -> None:
    root = missing.square().mean().sqrt()
    print(f"| {what} | {missing.mean():.4f} | {root:.3f} | {missing.max():.3f} |")


def missing_in_turn(joint: Tensor, num_parts: int) -> Tensor:
    """Return what is missing in each turn where one part of the components counts, as often as there are parts."""
    turns = [joint[:, first::num_parts] + torch.tensor(num_parts).log() for first in range(num_parts)]
    return torch.cat([joint.logsumexp(1) - turn.logsumexp(1) for turn in turns])


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = TrainedRun.open(parser.parse_args().run)
    mixture = run.model.prior_distribution()
    if not (isinstance(mixture, NormalMixture) and mixture.log_variance.ndim == 0):
        raise SystemExit("the components of this run do not share one variance")
    split = run.store().split("validation")
    posterior = run.model.encode_rows(StoreSource(split), torch.from_numpy(spread_rows(len(split), EXAMPLES)))
    z = posterior.sample(generator=torch.Generator().manual_seed(0))
    joint, distance = joint_log_density(mixture, z)
    sorted_joint = joint.gather(1, distance.argsort(1))

    num_components = len(mixture.means)
    print(f"{num_components:,} components; missing from log p(z) of {len(z)} validation images, nats\n")
    print("| what counts | mean | root mean square | largest |\n| --- | --- | --- | --- |")
    for k in NEAREST:
        if k <= num_components:
            print_row(f"the {k:,} nearest", joint.logsumexp(1) - sorted_joint[:, :k].logsumexp(1))
    for num_parts in PARTS:
        if num_parts <= num_components:
            print_row(f"{num_components // num_parts:,} in turn", missing_in_turn(joint, num_parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
