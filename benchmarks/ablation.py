"""Which prior, and which update of the pseudocoreset, is better: one shortened schedule for all.

Run from the root of the repository: ``python benchmarks/ablation.py --fashion STORE --mnist STORE --out FOLDER``. The
plan is in docs/results/ablation.md. It takes hours; interrupted, the same command goes on. Each cell is trained by
``bype train`` and measured by ``bype evaluate``; the table is printed from their records, as far as there are any.
"""

import argparse
import statistics
import sys
from pathlib import Path

from bype.cli import main as bype
from bype.evaluation.records import Evaluation, read_results

SCHEDULE = [
    "--length",
    "40 epochs",
    "--warm-up",
    "20 epochs",
    "--patience",
    "0 epochs",
    "--checkpoint-every",
    "2 epochs",
]
ELBO_FLAGS = ["--update-every", "5 epochs", "--update-steps", "100", "--update-batch", "1000"]
ELBO_FLAGS += ["--update-step-size", "0.01", "--clamp-points", "True"]
RULES = {
    "Gaussian": ("gaussian", []),
    "VampPrior, random start": ("vamp", ["--vamp-start", "random"]),
    "VampPrior, start at images": ("vamp", ["--vamp-start", "examples"]),
    "Exemplar": ("exemplar", []),
    "frozen": ("bype", ["--update", "frozen"]),
    "psvi": ("bype", ["--update", "psvi"]),
    "joint": ("bype", ["--update", "joint"]),
    "elbo": ("bype", ["--update", "elbo", *ELBO_FLAGS]),
}
SEEDS = {"fashion-mnist": (0, 1, 2), "mnist": (0,)}


def cell(folder: Path, data: str, store: Path, rule: str, seed: int) -> Evaluation | None:
    prior, flags = RULES[rule]
    run = folder / f"{data}-{rule.replace(', ', '-').replace(' ', '-').lower()}-{seed}"
    words = ["train", f"paper/{data}/vae/{prior}", "--data", str(store), "--out", str(run), "--seed", str(seed)]
    if not read_results(run).evaluations:
        if bype([*words, *SCHEDULE, *flags]) != 0:
            return None
        measure = ["--split", "validation", "--samples", "500", "--images", "2000", "--no-map"]
        if bype(["evaluate", str(run), *measure]) != 0:
            return None
    return read_results(run).evaluations[0]


def row(rule: str, found: list[Evaluation]) -> str:
    def mean(values: list[float]) -> str:
        spread = f" ± {statistics.stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.3f}{spread}"

    likelihood = mean([e.density.negative_log_likelihood.value for e in found])
    elbo = mean([e.density.negative_elbo.value for e in found])
    low = mean([e.prior_gap.smallest_gap.value for e in found])
    high = mean([e.prior_gap.largest_gap.value for e in found])
    return f"| {rule} | {likelihood} | {elbo} | {low} to {high} | {len(found)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", type=Path, required=True)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    stores = {"fashion-mnist": arguments.fashion, "mnist": arguments.mnist}
    found: dict[tuple[str, str], list[Evaluation]] = {}
    for seed in (0, 1, 2):  # seed by seed, so that an early look compares all rules
        for data, store in stores.items():
            for rule in RULES if seed in SEEDS[data] else ():
                evaluation = cell(arguments.out, data, store, rule, seed)
                if evaluation is None:
                    return 1
                found.setdefault((data, rule), []).append(evaluation)
    for data in stores:
        print(
            f"\n{data}: validation, 2,000 images, 500 draws, nats on the paper's scale; ± standard error over seeds\n"
        )
        print("| rule | -log p(x) | -ELBO | prior gap | seeds |\n| --- | --- | --- | --- | --- |")
        for rule in RULES:
            print(row(rule, found[data, rule]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
