"""What do points that start as noise cost, and do they keep training examples to themselves? Both starts, side by side.

Run from the root of the repository::

    python benchmarks/points_start.py --images FOLDER --faces FOLDER --out results/points-start
    python benchmarks/points_start.py --out results/points-start --page

``--images`` holds the folder ``fashion-mnist``, as it is downloaded; ``--faces`` folders of face images. What is left
out is not run; breast cancer and digits come with scikit-learn. Models are those of ``bype fit``, and the paper's VAE
with our rule, as the recipe ``fashion-mnist/vae/bype`` trains it. Points have no labels, because those that start as
noise cannot have any. Each model is trained with both starts for the same number of steps, evaluated on test examples,
and audited.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

import bype
from bype.data.prepare import prepare, with_workable_size
from bype.data.sources import SourceOptions
from bype.data.store import Store
from bype.evaluation.density import DensityOptions
from bype.paper.recipes import recipe_named
from bype.run.choice import suitable_config
from bype.run.config import TrainingConfig
from measure import commit, head, machine
from own_data import image_sets

STARTS = ("examples", "noise")
SEEDS = (0, 1, 2)
STEPS = {"faces": 600}
"""Of training; 2,000 for the other sets."""
NAMES = {
    "breast-cancer": "breast cancer, 455 rows",
    "digits": "digits, 1,437 images",
    "clothes-5000": "clothes, 4,000 images",
    "faces": "faces, 320 images",
    "clothes-5000-paper": "clothes, 4,000 images, the paper's VAE",
}
Maker = Callable[[Path], Path]


def sets(images: Path | None, faces: Path | None) -> dict[str, Maker]:
    """Return functions that write the data to a folder and return what to prepare, by the name of the set."""

    def cancer(folder: Path) -> Path:
        np.save(folder / "cancer.npy", load_breast_cancer().data.astype(np.float32))
        return folder / "cancer.npy"

    def digits(folder: Path) -> Path:
        np.save(folder / "digits.npy", np.clip(load_digits().images * 16, 0, 255).astype(np.uint8))
        return folder / "digits.npy"

    found = {"breast-cancer": cancer, "digits": digits, **image_sets(images, faces)}
    if "clothes-5000" in found:
        found["clothes-5000-paper"] = found["clothes-5000"]
    return {name: found[name] for name in NAMES if name in found}


def config_for(data: str, store: Store, seed: int, start: str) -> TrainingConfig:
    """Return how to train."""
    length = f"{STEPS.get(data, 2000)} steps"
    if data.endswith("-paper"):
        spans = {"length": length, "warm_up": "10 epochs", "patience": "0 epochs"}
        config = recipe_named("fashion-mnist/vae/bype").config
    else:
        spans, config = {}, suitable_config(store, length, seed)
    points = {"points_start": start, "labelled": False}
    return dataclasses.replace(config, seed=seed, **spans, **points)  # type: ignore[arg-type]


def measure(data: str, store: Store, seed: int, start: str) -> dict[str, Any]:
    """Train a model, evaluate it and audit it."""
    config = config_for(data, store, seed, start)
    is_normalised = not data.endswith("-paper")
    with tempfile.TemporaryDirectory() as folder:
        outcome = bype.train(config, store.folder, Path(folder) / "run")
        if outcome.state != "finished":
            raise SystemExit(f"{data}: the training was stopped")
        run = bype.TrainedRun.open(Path(folder) / "run")
        options = DensityOptions(500, 500)
        found = bype.evaluate(run, "test", density=options, with_map=False, with_baseline=is_normalised)
        audit, _ = bype.audit_run(run)
    assert found.density is not None
    linear = None if found.baseline is None else found.baseline.negative_log_likelihood.value
    groups = {
        group.kind: {"count": group.count, "copies": group.num_copies, "closer": dataclasses.asdict(group.nearer)}
        for group in audit.groups
    }
    return {
        "data": data,
        "start": start,
        "seed": seed,
        "config": config.to_fields(),
        "commit": commit(),
        "machine": machine(),
        "fingerprint": store.manifest.fingerprint,
        "density": dataclasses.asdict(found.density),
        "linear": linear,
        "groups": groups,
        "are_copies": audit.are_copies,
        "verdict": audit.verdict,
    }


def page(out: Path) -> Iterator[str]:
    """Print the table of docs/guide/audit.md from the records: means over seeds, the largest share of each."""
    yield from head(
        *("data", "start", "−log p(x)", "cost of noise", "linear model", "points closer", "samples closer"),
        "give examples away",
    )
    for data, name in NAMES.items():
        records = {
            start: [json.loads(path.read_text()) for path in sorted(out.glob(f"{data}-{start}-[0-9].json"))]
            for start in STARTS
        }
        if not any(records.values()):
            continue
        nats = {
            start: {record["seed"]: record["density"]["negative_log_likelihood"]["value"] for record in of}
            for start, of in records.items()
        }
        examples, noise = (nats[start] for start in STARTS)
        costs = [noise[seed] - examples[seed] for seed in sorted(noise.keys() & examples.keys())]
        for start, of in records.items():
            if not of:
                continue
            cost = f"{statistics.mean(costs):+.1f}" if costs and start == "noise" else ""
            if cost and len(costs) > 1:
                cost += f" ± {statistics.stdev(costs) / len(costs) ** 0.5:.1f}"
            linear = of[0]["linear"]
            shares = [
                f"{100 * max(record['groups'][kind]['closer']['share'] for record in of):.1f}%"
                for kind in ("points", "samples")
            ]
            cells = (
                *(name, start, f"{statistics.mean(nats[start].values()):.1f}", cost),
                "" if linear is None else f"{statistics.mean(record['linear'] for record in of):.1f}",
                *(*shares, f"{sum(record['are_copies'] for record in of)} of {len(of)}"),
            )
            yield f"| {' | '.join(cells)} |".replace("| -", "| −")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="read fashion-mnist in this folder")
    parser.add_argument("--faces", type=Path, help="read face images in this folder")
    parser.add_argument("--out", type=Path, required=True, help="write records to this folder; what is there is kept")
    parser.add_argument("--page", action="store_true", help="print the table of the guide and stop")
    options = parser.parse_args()
    if options.page:
        print("\n".join(page(options.out)))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    for data, make in sets(options.images, options.faces).items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "data").mkdir()
            source = make(Path(folder) / "data")
            prepare(source, Path(folder) / "store", with_workable_size(source, SourceOptions())[0])
            store = Store(Path(folder) / "store")
            for seed in SEEDS:
                for start in STARTS:
                    path = options.out / f"{data}-{start}-{seed}.json"
                    if not path.exists():
                        record = measure(data, store, seed, start)
                        path.write_text(json.dumps(record, indent=1) + "\n")
                        value = record["density"]["negative_log_likelihood"]["value"]
                        print(f"{data}, {start}, seed {seed}: {value:.2f}; {record['verdict']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
