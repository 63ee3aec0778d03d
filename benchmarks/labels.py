"""What do labels cost, and are samples of a class of that class? Train the model of ``bype fit`` with and without them.

Run from the root of the repository::

    python benchmarks/labels.py --stores FOLDER --out results/labels
    python benchmarks/labels.py --out results/labels --page
    python benchmarks/labels.py --stores FOLDER --latent-dim 200 --out results/labels-latents
    python benchmarks/labels.py --out results/labels-latents --beside results/labels --page

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
from typing import Any

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


def measure(data: str, store: Store, seed: int, steps: int, latent_dim: int | None = None) -> dict[str, object]:
    """Train both models and ask the judge."""
    images, labels = examples(store.split("train"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged: ten epochs are enough to judge
        judge = MLPClassifier((512,), max_iter=10, random_state=seed).fit(images.flatten(1).numpy(), labels)
    config = suitable_config(store, f"{steps} steps", seed, latent_dim=latent_dim)
    nats = {}
    for labelled in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            outcome = bype.train(dataclasses.replace(config, labelled=labelled), store.folder, Path(folder) / "run")
            if outcome.state != "finished":
                raise SystemExit(f"{data}: the training was stopped")
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
        "latents": config.latent_dim,
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
        for name, shares in {**record["recognised"], "**all**": recognised(record)}.items():
            yield f"| {record['data']} | {name} | {' | '.join(f'{100 * shares[kind]:.1f}' for kind in KINDS)} |"


def recognised(record: dict[str, Any]) -> dict[str, float]:
    """Return the share that the judge takes for their class, in the mean over classes."""
    return {kind: float(np.mean([shares[kind] for shares in record["recognised"].values()])) for kind in KINDS}


def latents_page(out: Path, beside: Path) -> Iterator[str]:
    """Print what more latents change, with labels: the records in a folder, beside those with the usual number."""
    yield from head("data", "latents", "−log p(x)", *(f"{kind}, %" for kind in KINDS[1:]))
    for path in sorted(out.glob("*.json")):
        for folder in (beside, out):
            record = json.loads((folder / path.name).read_text())
            value = record["nats"]["with labels"]["negative_log_likelihood"]["value"]
            shares = " | ".join(f"{100 * recognised(record)[kind]:.1f}" for kind in KINDS[1:])
            yield f"| {record['data']} | {record.get('latents', 40)} | {value:,.1f} | {shares} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", type=Path, help="read the stores mnist and fashion-mnist in this folder")
    parser.add_argument("--out", type=Path, required=True, help="write records to this folder; what is there is kept")
    parser.add_argument("--steps", type=int, default=2500, help="train for so many steps")
    parser.add_argument("--seed", type=int, default=0, help="set the seed of all random numbers")
    parser.add_argument("--latent-dim", type=int, help="set the number of latents; if left out, as bype fit does")
    parser.add_argument("--page", action="store_true", help="print the tables of the page and stop")
    parser.add_argument("--beside", type=Path, help="print the records beside those of this folder")
    options = parser.parse_args()
    if options.page:
        lines = pages(options.out) if options.beside is None else latents_page(options.out, options.beside)
        print("\n".join(lines))
        return 0
    for data in ("fashion-mnist", "mnist"):
        path = options.out / f"{data}-{options.seed}.json"
        if not path.exists():
            store = Store(options.stores / data)
            record = measure(data, store, options.seed, options.steps, options.latent_dim)
            options.out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
