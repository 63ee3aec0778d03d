"""What do labels cost, and are samples of a class of that class? Train the model of ``bype fit`` with and without them.

Run from the root of the repository::

    python benchmarks/labels.py --stores FOLDER --out results/labels
    python benchmarks/labels.py --out results/labels --page

The stores are FOLDER/mnist and FOLDER/fashion-mnist. Both models are trained for the same number of steps. The judge is
a classifier of one hidden layer, trained on the real training images. It says how many samples of a class are of that
class, and how many reconstructions of test images: these are as blurred as samples, but their class is sure.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.neural_network import MLPClassifier

import bype
from bype.data.examples import StoreSource, spread_rows
from bype.data.store import Split, Store
from bype.evaluation.density import DensityOptions
from bype.run.choice import suitable_config
from measure import commit, head, machine

SAMPLES = 500
KINDS = ("test images", "reconstructions", "samples")


def examples(split: Split, most: int = 10**9) -> tuple[torch.Tensor, np.ndarray]:
    """Return images and their labels."""
    rows = spread_rows(len(split), most)
    return StoreSource(split).read(rows), split.labels(rows)


def measure(data: str, store: Store, seed: int, steps: int) -> dict[str, object]:
    """Train both models and ask the judge."""
    images, labels = examples(store.split("train"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged: ten epochs are enough to judge
        judge = MLPClassifier((512,), max_iter=10, random_state=seed).fit(images.flatten(1).numpy(), labels)
    config = suitable_config(store, f"{steps} steps", seed)
    nats = {}
    for labelled in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            bype.train(dataclasses.replace(config, labelled=labelled), store.folder, Path(folder) / "run")
            run = bype.TrainedRun.open(Path(folder) / "run")
            found = bype.evaluate(run, "test", density=DensityOptions(500, 500), with_map=False)
        assert found.density is not None
        nats["with labels" if labelled else "without labels"] = dataclasses.asdict(found.density)

    def right(made: torch.Tensor, label: int) -> float:
        return float((judge.predict(made.flatten(1).numpy()) == label).mean())

    test, true = examples(store.split("test"))
    shares: dict[str, dict[str, float]] = {}
    for label, name in enumerate(store.manifest.classes):
        own = test[torch.from_numpy(true == label)]
        made = bype.sample(run.model, SAMPLES, label=label, generator=torch.Generator().manual_seed(label))
        judged = (own, bype.reconstruct(run.model, own), made)
        shares[name] = {kind: right(x, label) for kind, x in zip(KINDS, judged, strict=True)}
        print(f"{data}, class {name}: {shares[name]}", flush=True)
    return {
        "data": data,
        "seed": seed,
        "steps": steps,
        "commit": commit(),
        "machine": machine(),
        "fingerprint": store.manifest.fingerprint,
        "nats": nats,
        "recognised": shares,
    }


def pages(out: Path) -> Iterator[str]:
    """Print the tables of docs/results/labels.md from the records."""
    records = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    yield from head("data", "−log p(x), without labels", "with labels", "steps")
    for record in records:
        values = (record["nats"][kind]["negative_log_likelihood"] for kind in ("without labels", "with labels"))
        cells = " | ".join(f"{value['value']:.1f} ± {value['error']:.1f}".replace("-", "−") for value in values)
        yield f"| {record['data']} | {cells} | {record['steps']:,} |"
    yield ""
    yield from head("data", "class", *(f"{kind}, %" for kind in KINDS))
    for record in records:
        found = record["recognised"]
        mean = {kind: float(np.mean([shares[kind] for shares in found.values()])) for kind in KINDS}
        for name, shares in {**found, "**all**": mean}.items():
            yield f"| {record['data']} | {name} | {' | '.join(f'{100 * shares[kind]:.1f}' for kind in KINDS)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", type=Path, help="read the stores mnist and fashion-mnist in this folder")
    parser.add_argument("--out", type=Path, required=True, help="write records to this folder; what is there is kept")
    parser.add_argument("--steps", type=int, default=2500, help="train for so many steps")
    parser.add_argument("--seed", type=int, default=0, help="set the seed of all random numbers")
    parser.add_argument("--page", action="store_true", help="print the tables of the page and stop")
    options = parser.parse_args()
    if options.page:
        print("\n".join(pages(options.out)))
        return 0
    for data in ("fashion-mnist", "mnist"):
        path = options.out / f"{data}-{options.seed}.json"
        if not path.exists():
            record = measure(data, Store(options.stores / data), options.seed, options.steps)
            options.out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
