"""Which score finds outliers? Ours beside the usual detectors, on the tables of ADBench and on images.

Run from the root of the repository::

    python benchmarks/outliers.py --tables FOLDER --out results/outliers
    python benchmarks/outliers.py --images FOLDER --out results/outliers
    python benchmarks/outliers.py --out results/outliers --page

``--tables`` holds ``.npz`` files with X and y (1 for an outlier). In the setting *normal* a detector is fitted to half
of the normal rows, and scored on the other half and all outliers; in the setting *all* it is fitted to all rows,
without labels, and scored on them. At most 2,000 rows of a table are taken, evenly spread. Ours is the model of
``bype fit``, trained for ``--steps`` steps instead of minutes, so that it does not depend on the machine. Others have
the defaults of scikit-learn and PyOD, on columns of mean 0 and variance 1. PyOD is left out if it is not installed.
``--images`` holds stores ``fashion-mnist`` and ``mnist``: a model of 5,000 training images of each is scored
on 1,000 test images of both.
"""

import argparse
import dataclasses
import json
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.preprocessing import StandardScaler

import bype
from bype.data.examples import spread_rows
from bype.data.prepare import prepare
from bype.data.store import Store
from bype.evaluation.outliers import ExampleScores, ScoreOptions
from bype.run.choice import suitable_config
from measure import commit, head, machine

MOST_ROWS = 2000
TRAINING_IMAGES, TEST_IMAGES = 5000, 1000
OURS = ("log_likelihood", "reconstruction", "latent_density", "log_ratio")
LEVEL = 0.05
TITLES = {
    "log_likelihood": "ours, log p(x)",
    "reconstruction": "ours, reconstruction",
    "latent_density": "ours, latent density",
    "log_ratio": "ours, log ratio",
    "linear": "factor analysis, log p(x)",
    "isolation_forest": "isolation forest",
    "lof": "LOF",
    "knn": "kNN",
    "ecod": "ECOD",
    "pyod_vae": "VAE of PyOD",
}
OWN = ("log_likelihood", "reconstruction", "latent_density", "log_ratio")
"""Our scores; only the first one takes part when others are ranked, so that we have one place as they do."""
Scores = dict[str, np.ndarray]


def knn(train: np.ndarray, test: np.ndarray | None, seed: int) -> np.ndarray:
    """Return the distance to the fifth neighbour; without ``test``, of training rows to others."""
    return NearestNeighbors(n_neighbors=5).fit(train).kneighbors(test)[0][:, -1]


def lof(train: np.ndarray, test: np.ndarray | None, seed: int) -> np.ndarray:
    neighbours = min(20, len(train) - 1)
    if test is None:
        return -LocalOutlierFactor(neighbours).fit(train).negative_outlier_factor_
    return -LocalOutlierFactor(neighbours, novelty=True).fit(train).score_samples(test)


def isolation_forest(train: np.ndarray, test: np.ndarray | None, seed: int) -> np.ndarray:
    return -IsolationForest(random_state=seed).fit(train).score_samples(train if test is None else test)


def ecod(train: np.ndarray, test: np.ndarray | None, seed: int) -> np.ndarray:
    from pyod.models.ecod import ECOD

    return ECOD().fit(train).decision_function(train if test is None else test)


def pyod_vae(train: np.ndarray, test: np.ndarray | None, seed: int) -> np.ndarray:
    from pyod.models.vae import VAE

    return VAE(random_state=seed, verbose=0).fit(train).decision_function(train if test is None else test)


OTHERS: dict[str, Callable[[np.ndarray, np.ndarray | None, int], np.ndarray]] = {
    "isolation_forest": isolation_forest,
    "lof": lof,
    "knn": knn,
    "ecod": ecod,
    "pyod_vae": pyod_vae,
}


def ours(train: np.ndarray, test: np.ndarray, is_outlier: np.ndarray, steps: int, seed: int) -> tuple[Scores, Any]:
    """Return our scores of the test rows, large for outliers, and their labels."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.save(folder / "train.npy", train.astype(np.float32))
        np.savez(folder / "test.npz", x=test.astype(np.float32), y=is_outlier.astype(np.int64))
        prepare(folder / "train.npy", folder / "train", test=0, seed=seed)
        prepare(folder / "test.npz", folder / "test", validation=0, test=0)
        run = trained(folder, steps, seed)
        found = bype.score_examples(run, "train", data=folder / "test")
        labels = Store(folder / "test").split("train").labels(found.rows)
    return all_scores(found), labels


def all_scores(found: ExampleScores) -> Scores:
    if found.log_ratio is None:
        raise ValueError("the run was given without its training data")
    own = {name: -getattr(found, name) for name in OURS}
    return {**own, "linear": found.log_ratio - found.log_likelihood}


def quality(scores: np.ndarray, is_outlier: np.ndarray) -> dict[str, float]:
    scores = np.nan_to_num(scores.astype(np.float64), posinf=1e300, neginf=-1e300)
    return {
        "auroc": round(float(roc_auc_score(is_outlier, scores)), 4),
        "average_precision": round(float(average_precision_score(is_outlier, scores)), 4),
    }


def measure_table(path: Path, setting: str, steps: int, seed: int) -> dict[str, Any]:
    """Return the record of one table in one setting."""
    content = np.load(path)
    chosen = spread_rows(len(content["X"]), MOST_ROWS)
    x, is_outlier = content["X"][chosen].astype(np.float64), content["y"][chosen].astype(int)
    x = x[:, x.std(0) > 0]
    if setting == "normal":
        normal = np.random.default_rng(seed).permutation(np.flatnonzero(is_outlier == 0))
        train, rest = normal[: len(normal) // 2], normal[len(normal) // 2 :]
        test = np.concatenate([rest, np.flatnonzero(is_outlier)])
    else:
        train = test = np.arange(len(x))
    scaler = StandardScaler().fit(x[train])
    scaled = [scaler.transform(x[rows]) for rows in (train, test)]
    found, seconds = {}, {}
    for name, detect in OTHERS.items():
        start = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scores = detect(scaled[0], None if setting == "all" else scaled[1], seed)
        except ModuleNotFoundError:
            continue
        found[name] = quality(scores, is_outlier[test])
        seconds[name] = round(time.monotonic() - start, 1)
    start = time.monotonic()
    own, labels = ours(x[train], x[test], is_outlier[test], steps, seed)
    seconds["ours"] = round(time.monotonic() - start, 1)
    found |= {name: quality(scores, labels) for name, scores in own.items()}
    return {
        "table": path.stem,
        "setting": setting,
        "seed": seed,
        "steps": steps,
        "rows": [len(train), len(test)],
        "columns": x.shape[1],
        "outliers": int(is_outlier[test].sum()),
        "seconds": seconds,
        "found": found,
    }


def measure_images(stores: Path, inside: str, outside: str, steps: int, seed: int) -> dict[str, Any]:
    """Train on images of one store and tell its test images from those of another."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, source, split, most in (
            ("train", inside, "train", TRAINING_IMAGES),
            ("known", inside, "test", TEST_IMAGES),
            ("new", outside, "test", TEST_IMAGES),
        ):
            opened = Store(stores / source).split(split)
            np.save(folder / f"{name}.npy", opened.read(spread_rows(len(opened), most))[:, 0])
            prepare(folder / f"{name}.npy", folder / name, validation=None if name == "train" else 0, test=0)
        run = trained(folder, steps, seed)
        options = ScoreOptions(num_samples=20, num_references=200)
        known, new = (
            all_scores(bype.score_examples(run, "train", data=folder / name, options=options))
            for name in ("known", "new")
        )
    is_outlier = np.repeat([0, 1], [len(known["linear"]), len(new["linear"])])
    found = {name: quality(np.concatenate([known[name], new[name]]), is_outlier) for name in known}
    return {"images": inside, "against": outside, "seed": seed, "steps": steps, "found": found}


def trained(folder: Path, steps: int, seed: int) -> bype.TrainedRun:
    """Train the model of ``bype fit`` on the store ``train`` in a folder, for so many steps."""
    config = suitable_config(Store(folder / "train"), f"{steps} steps", seed)
    config = dataclasses.replace(config, checkpoint_every="50 percent")
    outcome = bype.train(config, folder / "train", folder / "run")
    if outcome.state != "finished":
        raise SystemExit(f"training was {outcome.state} at step {outcome.step}; run the same command again")
    return bype.TrainedRun.open(folder / "run")


def ranks(values: list[float]) -> np.ndarray:
    """Return the rank of each value, 1 for the largest; equal values share their mean rank."""
    array = np.array(values)
    return np.array([(array > value).sum() + ((array == value).sum() + 1) / 2 for value in array])


def places(areas: np.ndarray, names: list[str]) -> np.ndarray:
    """Return ranks (tables, scores) by areas: others and our first score among each other, our further ones in turn."""
    rivals = [k for k, name in enumerate(names) if name not in OWN]
    placed = np.empty_like(areas)
    for k, name in enumerate(names):
        own = k if name in OWN else names.index(OWN[0])
        field = [own, *rivals]
        placed[:, k] = [ranks(list(line))[field.index(k)] for line in areas[:, field]]
    return placed


def with_error(lead: np.ndarray) -> str:
    """Return the mean over tables and its standard error; marked where a paired t-test gives p < 0.05, two-sided."""
    mark = "*" if ttest_1samp(lead, 0).pvalue < LEVEL else ""
    return f"{lead.mean():+.3f} ± {lead.std(ddof=1) / len(lead) ** 0.5:.3f}{mark}"


def pages(out: Path) -> Iterator[str]:
    """Print the tables of docs/results/outliers.md from the records."""
    records = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    for setting, title in (("normal", "Fitted to normal rows alone"), ("all", "Fitted to all rows, without labels")):
        tables: dict[str, list[dict[str, Any]]] = {}  # with all its seeds
        for record in records:
            if record.get("setting") == setting:
                tables.setdefault(record["table"], []).append(record["found"])
        if not tables:
            continue
        names = [name for name in TITLES if all(name in found for seeds in tables.values() for found in seeds)]
        areas, precisions = (
            np.array([[np.mean([found[name][what] for found in seeds]) for name in names] for seeds in tables.values()])
            for what in ("auroc", "average_precision")
        )
        placed = places(areas, names)
        yield f"## {title}: {len(tables)} tables"
        yield ""
        yield from head("detector", "mean AUROC", "mean average precision", "mean rank by AUROC")
        for k in np.argsort(placed.mean(0), kind="stable"):
            yield (
                f"| {TITLES[names[k]]} | {areas[:, k].mean():.3f} | {precisions[:, k].mean():.3f} | "
                f"{placed[:, k].mean():.2f} |"
            )
        yield ""
        first = names.index(OWN[0])
        yield from head("our log p(x) is ahead of", "ranks", "AUROC", "average precision")
        for k in np.argsort(placed.mean(0), kind="stable"):
            if names[k] not in OWN:
                leads = (
                    placed[:, k] - placed[:, first],
                    areas[:, first] - areas[:, k],
                    precisions[:, first] - precisions[:, k],
                )
                yield f"| {TITLES[names[k]]} | {' | '.join(map(with_error, leads))} |"
        yield ""
        yield from head("AUROC", *(TITLES[name] for name in names))
        for table, line in zip(tables, areas, strict=True):
            yield f"| {table} | " + " | ".join(f"{value:.3f}" for value in line) + " |"
        yield ""
    images = [record for record in records if "images" in record]
    if images:
        names = [name for name in TITLES if name in images[0]["found"]]
        titles = [TITLES[name].replace("factor analysis", "PCA") for name in names]
        yield "## Images of another kind"
        yield ""
        yield from head("trained on", "outliers", *titles)
        for record in images:
            values = " | ".join(f"{record['found'][name]['auroc']:.3f}" for name in names)
            yield f"| {record['images']} | {record['against']} | {values} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, help="the folder with the tables of ADBench")
    parser.add_argument("--images", type=Path, help="the folder with the stores fashion-mnist and mnist")
    parser.add_argument("--out", type=Path, required=True, help="write records to this folder; what is there is kept")
    parser.add_argument("--settings", nargs="+", default=["normal", "all"], choices=["normal", "all"])
    parser.add_argument("--steps", type=int, default=500, help="train ours for so many steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="run tables whose name contains this")
    parser.add_argument("--page", action="store_true", help="print the tables of the page and stop")
    options = parser.parse_args()
    if options.page:
        print("\n".join(pages(options.out)))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    jobs: dict[str, Callable[[], dict[str, Any]]] = {}
    for setting in options.settings:
        paths = sorted(options.tables.glob("*.npz")) if options.tables else []
        for path in sorted(paths, key=lambda path: path.stat().st_size):
            jobs[f"{path.stem}-{setting}-{options.seed}"] = lambda path=path, setting=setting: measure_table(
                path, setting, options.steps, options.seed
            )
    if options.images:
        for inside, outside in (("fashion-mnist", "mnist"), ("mnist", "fashion-mnist")):
            jobs[f"{inside}-{options.seed}"] = lambda inside=inside, outside=outside: measure_images(
                options.images, inside, outside, options.steps, options.seed
            )
    at = commit()
    for name, job in jobs.items():
        path = options.out / f"{name}.json"
        if options.only in name and not path.exists():
            record = job() | {"commit": at, "machine": {"platform": platform.platform(), "versions": machine()}}
            path.write_text(json.dumps(record, indent=1) + "\n")
            print(name, {key: value["auroc"] for key, value in record["found"].items()}, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
