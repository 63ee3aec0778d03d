"""How much does a small weighted set tell a classifier? Train it on M points alone, made in several ways.

Run from the root of the repository::

    python benchmarks/coreset_classifier.py --stores FOLDER --out results/coreset-classifier
    python benchmarks/coreset_classifier.py --out results/coreset-classifier --page

The stores are FOLDER/mnist and FOLDER/fashion-mnist. Every way gives M images with one hard label and a weight each:
random images of each class, the same with weights that are optimised, k-means centres of each class, and our labelled
pseudocoreset, which the model of ``bype fit`` learns in so many steps. The classifier is a weighted logistic regression
on pixels; its penalty is chosen on validation images, for each way apart.
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
from scipy.optimize import nnls
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel

import bype
from bype.data.examples import StoreSource
from bype.data.store import Store
from bype.evaluation.pseudopoints import describe_points
from bype.run.choice import suitable_config
from measure import commit, head, machine

SIZES = (10, 50, 100, 500)
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
WAYS = ("random images", "k-means centres", "optimised weights", "ours")
Points = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Images as rows, their labels, their weights."""


def examples(store: Store, split: str, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of a split as rows, and their labels."""
    rows = np.arange(min(len(store.split(split)), most or 10**9))
    return StoreSource(store.split(split)).read(rows).flatten(1).numpy(), store.split(split).labels(rows)


def by_class(x: np.ndarray, y: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray, int]]:
    """Return the images of each class, and how many points it gets."""
    classes = np.unique(y)
    for number, label in enumerate(classes):
        yield int(label), x[y == label], size // len(classes) + (number < size % len(classes))


def random_images(x: np.ndarray, y: np.ndarray, size: int, seed: int) -> Points:
    generator = np.random.default_rng(seed)
    parts = [
        (generator.choice(len(own), count, replace=False), own, label, count)
        for label, own, count in by_class(x, y, size)
    ]
    return (
        np.concatenate([own[rows] for rows, own, _, _ in parts]),
        np.concatenate([np.full(count, label) for _, _, label, count in parts]),
        np.concatenate([np.full(count, len(own) / count) for _, own, _, count in parts]),
    )


def k_means(x: np.ndarray, y: np.ndarray, size: int, seed: int) -> Points:
    parts = []
    for label, own, count in by_class(x, y, size):
        found = MiniBatchKMeans(count, random_state=seed, n_init=3, batch_size=1024).fit(own)
        weights = np.bincount(found.labels_, minlength=count).astype(float)
        parts.append((found.cluster_centers_, np.full(count, label), weights))
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]


def optimised_weights(x: np.ndarray, y: np.ndarray, size: int, seed: int) -> Points:
    """Take random images, and weights under which the mean of a Gaussian kernel is nearest to that of all images."""
    points, labels, _ = random_images(x, y, size, seed)
    weights = np.zeros(size)
    for label, own, _ in by_class(x, y, size):
        chosen = points[labels == label]
        width = float(np.median(euclidean_distances(chosen if len(chosen) > 1 else own[:100], squared=True)))
        kernel, mean = rbf_kernel(chosen, chosen, 1 / width), rbf_kernel(chosen, own, 1 / width).mean(1)
        root = np.linalg.cholesky(kernel + 1e-6 * np.eye(len(kernel)))  # |root' w - root^-1 mean| is the distance
        found, _ = nnls(root.T, np.linalg.solve(root, mean))
        weights[labels == label] = found / found.sum() * len(own)
    return points, labels, weights


def ours(store: Store, size: int, seed: int, steps: int) -> Points:
    config = dataclasses.replace(suitable_config(store, f"{steps} steps", seed), components=size, labelled=True)
    with tempfile.TemporaryDirectory() as folder:
        if bype.train(config, store.folder, Path(folder) / "run").state != "finished":
            raise SystemExit("training was stopped; run the same command again")
        run = bype.TrainedRun.open(Path(folder) / "run")
        found = describe_points(run.model, store.split("train"), range(len(store.manifest.classes)))
    assert found.labels is not None
    return found.points.reshape(size, -1), found.labels, found.weights


def accuracy(points: Points, validation: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...]) -> float:
    """Return the accuracy on test images of the classifier that does best on validation images."""
    x, y, weights = points
    best, chosen = -1.0, None
    for penalty in PENALTIES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            classifier = LogisticRegression(C=penalty, max_iter=200).fit(x, y, sample_weight=weights / weights.mean())
        score = classifier.score(*validation)
        if score > best:
            best, chosen = score, classifier
    assert chosen is not None
    return float(chosen.score(*test))


def measure(data: str, store: Store, seed: int, steps: int, sizes: tuple[int, ...], out: Path) -> None:
    """Fill what is missing of a record."""
    path = out / f"{data}-{seed}.json"
    record = json.loads(path.read_text()) if path.exists() else {"data": data, "seed": seed, "accuracy": {}}
    now = {"fingerprint": store.manifest.fingerprint, "steps": steps}
    if record.get("accuracy") and (was := {name: record.get(name) for name in now}) != now:
        raise SystemExit(f"{path} is of {was}, not of {now}; choose another --out")
    record |= {
        "commit": commit(),
        "machine": machine(),
        "fingerprint": store.manifest.fingerprint,
        "steps": steps,
    }
    x, y = examples(store, "train")
    validation, test = examples(store, "validation", 5000), examples(store, "test")
    found = record["accuracy"]

    def keep(way: str, points: Points | None) -> None:
        if points is not None:
            found[way] = accuracy(points, validation, test)
            print(f"{data} seed {seed}, {way}: {100 * found[way]:.2f}%", flush=True)
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record, indent=1) + "\n")

    for size in sizes:
        if f"random images, {size}" not in found:
            keep(f"random images, {size}", random_images(x, y, size, seed))
        if f"k-means centres, {size}" not in found:
            keep(f"k-means centres, {size}", k_means(x, y, size, seed))
        if f"optimised weights, {size}" not in found:
            keep(f"optimised weights, {size}", optimised_weights(x, y, size, seed))
        if f"ours, {size}" not in found:
            keep(f"ours, {size}", ours(store, size, seed, steps))
    if "all images" not in found:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            classifier = LogisticRegression(C=0.01, max_iter=60).fit(x, y)  # the penalty that small sets choose
        found["all images"] = float(classifier.score(*test))
        path.write_text(json.dumps(record, indent=1) + "\n")


def pages(out: Path) -> Iterator[str]:
    """Print the table of docs/results/coreset-classifier.md from the records."""
    records = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    yield from head("data", "M", *WAYS)
    for data in dict.fromkeys(record["data"] for record in records):
        own = [record["accuracy"] for record in records if record["data"] == data]
        for size in SIZES:
            cells = []
            for way in WAYS:
                values = [100 * found[f"{way}, {size}"] for found in own if f"{way}, {size}" in found]
                spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
                cells.append(f"{np.mean(values):.1f}{spread}" if values else "")
            yield f"| {data} | {size} | {' | '.join(cells)} |"
        whole = [100 * found["all images"] for found in own if "all images" in found]
        if whole:
            yield f"| {data} | all images | {np.mean(whole):.1f} |{' |' * (len(WAYS) - 1)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", type=Path, help="read the stores mnist and fashion-mnist in this folder")
    parser.add_argument("--out", type=Path, required=True, help="write records to this folder; what is there is kept")
    parser.add_argument("--seeds", type=int, default=3, help="repeat with so many seeds")
    parser.add_argument("--steps", type=int, default=2000, help="train ours for so many steps")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="take these numbers of points")
    parser.add_argument("--data", nargs="+", default=("fashion-mnist", "mnist"), help="take these data sets")
    parser.add_argument("--page", action="store_true", help="print the table of the page and stop")
    options = parser.parse_args()
    if options.page:
        print("\n".join(pages(options.out)))
        return 0
    for seed in range(options.seeds):
        for data in options.data:
            measure(data, Store(options.stores / data), seed, options.steps, tuple(options.sizes), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
