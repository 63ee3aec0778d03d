"""Where should the prior's log variance start? The same short runs from several values.

Run from the root of the repository: ``python benchmarks/variance_start.py STORE --out FOLDER``. It trains each prior
from each start on each seed by ``bype train``, 8 epochs with a warm-up of 4, and prints the best validation -ELBO, the
mean over seeds and what the log variance became. Interrupted, the same command goes on. Seeds 3 to 5 chose the
start, so no result of ours is told on them.
"""

import argparse
import statistics
from pathlib import Path
from unittest import mock

from bype.cli import main as bype
from bype.run.metrics import read_metrics
from bype.run.opened import TrainedRun

PRIORS = {
    "tracking": ["bype", "--rule", "tracking", "--clamp-points", "True"],
    "joint": ["bype", "--rule", "joint"],
    "Exemplar": ["exemplar"],
}


def cell(store: Path, run: Path, prior: str, start: float, seed: int) -> tuple[float, float]:
    """Return the best validation -ELBO of a run, and its last log variance."""
    recipe, *flags = PRIORS[prior]
    words = ["train", f"paper/mnist/vae/{recipe}", "--data", str(store), "--out", str(run), "--seed", str(seed), *flags]
    schedule = ["--length", "8 epochs", "--warm-up", "4 epochs", "--patience", "0 epochs"]
    with mock.patch("bype.priors.base._LOG_VARIANCE_START", start):
        if bype([*words, *schedule]) != 0:
            raise SystemExit(1)
    losses = [line.parts["validation"]["negative_elbo"] for line in read_metrics(run) if "validation" in line.parts]
    return min(losses), float(TrainedRun.open(run, store).model.prior.log_variance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--starts", type=float, nargs="+", default=[-1.0, 0.0, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5])
    parser.add_argument("--priors", nargs="+", choices=PRIORS, default=list(PRIORS))
    arguments = parser.parse_args()
    rows = []
    for prior in arguments.priors:
        for start in arguments.starts:
            cells = [
                cell(arguments.store, arguments.out / f"{prior}-{start:g}-{seed}", prior, start, seed)
                for seed in arguments.seeds
            ]
            losses, ends = zip(*cells, strict=True)
            each = ", ".join(f"{loss:.3f}" for loss in losses)
            end = statistics.mean(ends)
            rows.append(f"| {prior} | {start:g} | {statistics.mean(losses):.3f} | {each} | {end:.2f} |")
    print("\n| prior | start | -ELBO | by seed | log variance at the end |\n| --- | --- | --- | --- | --- |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
