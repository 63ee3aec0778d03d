"""How good a prior of very many tracked components is, and what its nearest components leave out.

Run from the root of the repository: ``python benchmarks/components.py --data STORE --out FOLDER``. It trains reduced
runs of the paper's VAE (10 epochs, warm-up 5); interrupted it goes on. Step times are printed by ``bype bench``.
"""

import argparse
import sys
from pathlib import Path

import torch

from bype.bounded import ComponentIndex, NearbyMixture
from bype.cli import main as bype
from bype.mixtures import NormalMixture
from bype.training.examples import StoreSource
from bype.training.rows import spread_rows
from bype.training.run import read_metrics
from bype.training.trained import TrainedRun

RUNS = {
    "500, all counted": ["--components", "500"],
    "5,000, all counted": ["--components", "5000"],
    "5,000, nearest 32": ["--components", "5000", "--neighbours", "32"],
    "50,000, nearest 32": ["--components", "50000", "--neighbours", "32"],
}
SCHEDULE = ["--length", "10 epochs", "--warm-up", "5 epochs", "--checkpoint-every", "10 epochs", "--validate-every"]
SCHEDULE += ["5 epochs", "--patience", "0 epochs"]
NEAREST = (32, 128, 512, 2048, 8192)
EXAMPLES = 500


@torch.no_grad()
def left_out(run: TrainedRun) -> dict[int, tuple[float, float]]:
    """Return, for each k, the mean and largest part of log p(z) that the k nearest components miss, z of validation."""
    split = run.store(None).split("validation")
    x = StoreSource(split).read(spread_rows(len(split), EXAMPLES))
    z = run.model.encode(x).sample(generator=torch.Generator().manual_seed(0))
    mixture = run.model.prior_distribution()
    assert isinstance(mixture, NormalMixture)
    distance = torch.cdist(z, mixture.means).square()
    joint = mixture.log_weights - 0.5 * distance * torch.exp(-mixture.log_variance)
    joint = joint.gather(1, distance.argsort(1))
    missing = joint.logsumexp(1, keepdim=True) - joint.logcumsumexp(1)
    return {
        k: (float(missing[:, k - 1].mean()), float(missing[:, k - 1].max())) for k in NEAREST if k <= joint.shape[1]
    }


@torch.no_grad()
def summed_for_a_certificate(run: TrainedRun) -> int:
    """Return how many components must be summed at most until the rest is negligible for certain."""
    split = run.store(None).split("validation")
    posterior = run.model.encode(StoreSource(split).read(spread_rows(len(split), 50)))
    mixture = run.model.prior_distribution()
    assert isinstance(mixture, NormalMixture)
    nearby = NearbyMixture(ComponentIndex(mixture), posterior.mean)
    nearby.bounds(posterior.sample((20,), generator=torch.Generator().manual_seed(0)))
    return nearby.num_summed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows, missed = [], []
    for name, flags in RUNS.items():
        folder = arguments.out / name.replace(",", "").replace(" ", "-")
        words = ["train", "fashion-mnist/vae/bype", "--data", str(arguments.data), "--out", str(folder)]
        if bype([*words, *SCHEDULE, *flags]) != 0:
            return 1
        last = [line.parts["validation"] for line in read_metrics(folder) if "validation" in line.parts][-1]
        run = TrainedRun.open(folder)
        rows.append(f"| {name} | {last['negative_elbo']:.3f} | {last['kl_z']:.3f} |")
        if "500, all" not in name:
            missing = left_out(run)
            cells = (f"{missing[k][0]:.3f} ({missing[k][1]:.2f})" if k in missing else "-" for k in NEAREST)
            parts = " | ".join(cells)
            missed.append(f"| {name} | {parts} | {summed_for_a_certificate(run):,} |")
    print("\n| components | validation -ELBO | KL |\n| --- | --- | --- |", *rows, sep="\n")
    print("\nMissing from log p(z) with the k nearest of an exact search, mean (largest), nats:\n")
    print("| components |", " | ".join(f"k = {k:,}" for k in NEAREST), "| summed for a certificate |")
    print("|" + " --- |" * (len(NEAREST) + 2))
    print(*missed, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
