"""Which prior, and which rule that moves the pseudocoreset, is better: one shortened schedule for all.

Run from the root of the repository: ``python benchmarks/ablation.py --fashion STORE --mnist STORE --out FOLDER``. The
plan is in docs/results/ablation.md. It takes hours; interrupted, the same command goes on. Each cell is trained by
``bype train`` and measured by ``bype evaluate``; the table is printed from their records, as far as there are any.
Those that are published are in results/ablation: ``python benchmarks/ablation.py --out results/ablation --table``
prints them. With ``--pictures FOLDER`` it also draws the pseudo-points of runs with seed 0 that are there.
"""

import argparse
import statistics
import sys
from pathlib import Path

from bype.cli import main as bype
from bype.evaluation.pseudopoints import points_of
from bype.evaluation.records import Evaluation, read_results
from bype.run.opened import TrainedRun
from draw import draw_heaviest

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
ASCENT_FLAGS = ["--rule", "ascent", "--rule-every", "5 epochs", "--rule-steps", "100", "--rule-batch-size", "1000"]
ASCENT_FLAGS += ["--rule-step-size", "0.01", "--clamp-points", "True"]
TRACKING_FLAGS = ["--rule", "tracking", "--clamp-points", "True"]
MANY_FLAGS = ["--components", "50000", "--rule-live-points", "256"]
RULES = {
    "Gaussian": ("gaussian", []),
    "tracking": ("bype", TRACKING_FLAGS),
    "joint": ("bype", ["--rule", "joint"]),
    "frozen": ("bype", ["--rule", "frozen"]),
    "elbo": ("bype", ASCENT_FLAGS),  # ascent, under the name that its records have
    "psvi": ("bype", ["--rule", "psvi"]),
    "tracking, exact": ("bype", [*TRACKING_FLAGS, "--rule-live-points", "None"]),
    "VampPrior, start at images": ("vamp", ["--vamp-start", "examples"]),
    "VampPrior, random start": ("vamp", ["--vamp-start", "random"]),
    "Exemplar": ("exemplar", []),
    "tracking, 5000 points": ("bype", [*TRACKING_FLAGS, "--components", "5000", "--rule-live-points", "64"]),
    "tracking, 50000 points": ("bype", [*TRACKING_FLAGS, *MANY_FLAGS]),
    "tracking, 50000 points, in turn": ("bype", [*TRACKING_FLAGS, *MANY_FLAGS, "--rule-scored-points", "6250"]),
}
SEEDS = {"fashion-mnist": (0, 1, 2), "mnist": (0,)}


def folder_name(data: str, rule: str, seed: int) -> str:
    """Name the folder of a cell."""
    return f"{data}-{rule.replace(', ', '-').replace(' ', '-').lower()}-{seed}"


def train_and_measure(run: Path, data: str, store: Path, rule: str, seed: int, split: str) -> bool:
    """Train and measure a cell, unless that is done."""
    if read_results(run).evaluations:
        return True
    prior, flags = RULES[rule]
    words = ["train", f"paper/{data}/vae/{prior}", "--data", str(store), "--out", str(run), "--seed", str(seed)]
    measure = ["--split", split, "--samples", "500", "--images", "2000", "--no-map"]
    return bype([*words, *SCHEDULE, *flags]) == 0 and bype(["evaluate", str(run), *measure]) == 0


def show(run: Path, folder: Path) -> None:
    """Draw the heaviest pseudo-points of a run."""
    own = points_of(TrainedRun.open(run).model)
    draw_heaviest(own.points, own.probabilities, folder / f"{run.name}.png")


def mean(values: list[float]) -> str:
    """Return the mean, with its standard error where there are several values."""
    spread = f" ± {statistics.stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def row(rule: str, found: dict[int, Evaluation], reference: dict[int, Evaluation]) -> str:
    """Describe the runs of a rule by seed, and how they differ from those of the reference on the same seeds."""
    runs = list(found.values())
    likelihood = mean([run.density.negative_log_likelihood.value for run in runs])
    elbo = mean([run.density.negative_elbo.value for run in runs])
    low = mean([run.prior_gap.smallest_gap.value for run in runs])
    high = mean([run.prior_gap.largest_gap.value for run in runs])
    differences = [
        run.density.negative_log_likelihood.value - reference[seed].density.negative_log_likelihood.value
        for seed, run in found.items()
        if seed in reference
    ]
    above = mean(differences) if differences and found is not reference else ""
    return f"| {rule} | {likelihood} | {above} | {elbo} | {low} to {high} | {', '.join(map(str, found))} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", type=Path)
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cells", default="", help="run only cells whose name holds this, such as fashion-mnist-joint")
    parser.add_argument("--table", action="store_true", help="run nothing: print what there is")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of the pseudo-points")
    arguments = parser.parse_args()
    if not arguments.table and None in (arguments.fashion, arguments.mnist):
        parser.error("say where the stores are, --fashion and --mnist, or print what there is with --table")
    stores = {"fashion-mnist": arguments.fashion, "mnist": arguments.mnist}
    found: dict[tuple[str, str], dict[int, Evaluation]] = {}
    for seed in (0, 1, 2):  # seed by seed, so that an early look compares all rules
        for data, store in stores.items():
            for rule in RULES if seed in SEEDS[data] else ():
                run = arguments.out / folder_name(data, rule, seed)
                is_wanted = not arguments.table and arguments.cells in run.name
                if is_wanted and not train_and_measure(run, data, store, rule, seed, "validation"):
                    return 1
                if evaluations := read_results(run).evaluations:
                    found.setdefault((data, rule), {})[seed] = evaluations[0]
                    has_points = RULES[rule][0] in ("bype", "vamp") and (run / "config.json").exists()
                    if arguments.pictures and seed == 0 and has_points:
                        show(run, arguments.pictures)
    for data in stores:
        print(
            f"\n{data}: validation, 2,000 images, 500 draws, nats on the paper's scale; ± standard error over seeds\n"
        )
        print("| rule | -log p(x) | above joint, same seeds | -ELBO | prior gap | seeds |")
        print("| --- | --- | --- | --- | --- | --- |")
        for rule in RULES:
            if (data, rule) in found:
                print(row(rule, found[data, rule], found.get((data, "joint"), {})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
