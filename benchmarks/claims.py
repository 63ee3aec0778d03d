"""The ablation's claims once more: on test images, with seeds on which nothing was chosen.

Run from the root of the repository::

    python benchmarks/claims.py --store STORE --runs FOLDER --out results/claims
    python benchmarks/claims.py --out results/claims --page

The store is Fashion-MNIST. Each cell is trained and measured as in benchmarks/ablation.py, but measured on the test
split. Interrupted, the same command goes on; a cell with a record is not trained again. The claims, and the test that
decides on each, are in docs/results/ablation.md.
"""

import argparse
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from scipy.stats import ttest_rel

from ablation import folder_name, mean, train_and_measure
from bype.data.files import read_json, to_json, write_atomic
from bype.data.store import Store
from bype.paper.provenance import commit, describe_run
from measure import head

DATA = "fashion-mnist"
SEEDS = (6, 7, 8)
LEVEL = 0.05
MANY, FEW = "tracking, 5000 points", "tracking"
VAMP = "VampPrior, start at images"
CLAIMS = (
    (MANY, "joint", 0.0),
    (MANY, FEW, 0.0),
    (MANY, "Exemplar", 0.0),
    (MANY, VAMP, 0.0),
    (MANY, "psvi", 0.0),
    ("psvi", "frozen", 0.0),
    ("frozen", "Gaussian", 0.0),
    (FEW, "joint", 0.05),
)
"""The first rule has the smaller -log p(x), or is worse by less than so many nats."""
CLAIMED = ("Gaussian", FEW, MANY, "joint", "frozen", "psvi", "Exemplar", VAMP)
LABELS = {MANY: "`tracking`, 5,000 points"} | {name: f"`{name}`" for name in (FEW, "joint", "frozen", "psvi")}


def fill(rule: str, seed: int, store: Store, runs: Path, out: Path) -> None:
    """Train and measure a cell, keep its record, and remove the run."""
    name = folder_name(DATA, rule, seed)
    record = out / f"{name}.json"
    if record.exists():
        return
    source = commit()
    if not train_and_measure(runs / name, DATA, store.folder, rule, seed, "test"):
        sys.exit(f"{name} stopped; to resume, run the same command")
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(record, to_json({"rule": rule, "seed": seed, **describe_run(runs / name, store, source)}))
    shutil.rmtree(runs / name)


def found(out: Path) -> dict[str, dict[int, float]]:
    """Return -log p(x) of the test images by rule and seed."""
    values: dict[str, dict[int, float]] = {rule: {} for rule in CLAIMED}
    for rule, by_seed in values.items():
        for seed in SEEDS:
            path = out / f"{folder_name(DATA, rule, seed)}.json"
            if path.exists():
                (evaluation,) = read_json(path)["results"]["evaluations"]
                by_seed[seed] = evaluation["density"]["negative_log_likelihood"]["value"]
    return values


def verdict(better: Mapping[int, float], other: Mapping[int, float], margin: float) -> list[str]:
    """Say how two rules differ, seed by seed, and what the test says when all seeds are there."""
    seeds = [seed for seed in SEEDS if seed in better and seed in other]
    differences = [better[seed] - other[seed] for seed in seeds]
    shown = ", ".join(f"{value:+.3f}" for value in differences)
    if len(seeds) < len(SEEDS):
        return [shown, "", "", "not yet run"]
    p = float(ttest_rel([better[s] - margin for s in seeds], [other[s] for s in seeds], alternative="less").pvalue)
    return [shown, mean(differences), f"{p:.4f}", "yes" if p < LEVEL else "no"]


def pages(out: Path) -> Iterator[str]:
    """Return the tables of the page: every cell, and every claim."""
    values = found(out)
    yield from head("rule", *(f"seed {seed}" for seed in SEEDS), "mean ± standard error")
    order = sorted(values, key=lambda rule: statistics.mean(values[rule].values()) if values[rule] else float("inf"))
    for rule in order:
        numbers = [f"{values[rule][seed]:.3f}" if seed in values[rule] else "not yet run" for seed in SEEDS]
        every = mean(list(values[rule].values())) if len(values[rule]) == len(SEEDS) else ""
        yield f"| {LABELS.get(rule, rule)} | {' | '.join(numbers)} | {every} |"
    yield ""
    yield from head("claim", "difference by seed", "mean ± standard error", "p", "shown")
    for better, other, margin in CLAIMS:
        limit = f" + {margin:g}" if margin else ""
        claim = f"{LABELS.get(better, better)} < {LABELS.get(other, other)}{limit}"
        yield f"| {claim} | {' | '.join(verdict(values[better], values[other], margin))} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="read this store of Fashion-MNIST")
    parser.add_argument("--runs", type=Path, help="train in this folder; a run is removed when its record is written")
    parser.add_argument("--out", type=Path, required=True, help="write records to this folder; what is there is kept")
    parser.add_argument("--page", action="store_true", help="print the tables of the page and stop")
    options = parser.parse_args()
    if options.page:
        print("\n".join(pages(options.out)))
        return 0
    if None in (options.store, options.runs):
        parser.error("say where the store is and where to train: --store and --runs")
    for seed in SEEDS:  # seed by seed, so that an early look compares all rules
        for rule in CLAIMED:
            fill(rule, seed, Store(options.store), options.runs, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
