"""How good is the first model? Run ``bype fit`` on real images and tables, and the simple things beside it.

Run from the root of the repository, while nothing else runs::

    python benchmarks/own_data.py --images FOLDER --tables FOLDER --faces FOLDER --celeba FOLDER --out results/own-data
    python benchmarks/own_data.py --tables FOLDER --out results/own-data --mixtures
    python benchmarks/own_data.py --out results/own-data --page
    python benchmarks/own_data.py --images FOLDER --only clothes-5000 --latent-dim 200 --out results/own-data-latents
    python benchmarks/own_data.py --out results/own-data-latents --beside results/own-data --page

``--images`` holds the folders ``fashion-mnist`` and ``cifar10``, as they are downloaded; ``--tables`` the ``.npz``
files of ADBench with X and y; ``--faces`` folders of face images; ``--celeba`` some thousands of CelebA's aligned
JPEG files, which are for research only: neither they nor pictures made of them belong in a repository. What is left out
is not run. A set is a folder of images or a ``.npy`` file; ``bype fit DATA --out RUN --minutes M --seed S`` is all that
happens to it, with ``--latent-dim`` if that is given. Columns with ten values or fewer are left out of tables. Every
model is scored on the same test examples, in nats of the same pixels or columns; tables with the same smallest
variance, (a hundredth of a column's spread)². ``--mixtures`` fits no model of ours: it adds the mixture that validation
rows choose to the records of tables that lack it.
"""

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import math
import platform
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.mixture import GaussianMixture

from bype.cli import main as bype
from bype.data.augment import Augmentation
from bype.data.examples import StoreSource, spread_rows
from bype.data.prepare import prepare
from bype.data.scaling import Scaling
from bype.data.sources import SourceOptions, open_source
from bype.data.store import Store
from bype.evaluation.records import read_results
from bype.factors import LinearGaussian, factor_analysis, probabilistic_pca
from bype.models.linear_start import COLUMN_FLOOR, PIXEL_FLOOR, fit_linear, linear_batches
from bype.run.opened import TrainedRun
from measure import commit, head, machine

FEW_VALUES = 10
EVERY_DAY = (
    "photographs", "faces", "clothes-5000",
    "breast-cancer", "wine", "6_cardio", "12_fault", "38_thyroid", "41_Waveform",
)  # fmt: skip
_BY_VALIDATION = "mixture, by validation rows"
_MIXTURE_COMPONENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MIXTURE_FLOORS = (COLUMN_FLOOR, 10 * COLUMN_FLOOR, 100 * COLUMN_FLOOR, 1000 * COLUMN_FLOOR)
Nats = dict[str, float]


def write_images(folder: Path, source: Path, split: str, count: int, per_class: bool, size: int | None) -> None:
    """Write some images of a downloaded data set as PNG files, in a folder for each class."""
    opened = open_source(str(source), SourceOptions())
    written: dict[int, int] = {}
    (pool,) = (pool for pool in opened.pools if pool.split == split)
    for _, chunk in pool.read():
        assert chunk.labels is not None
        for pixels, label in zip(chunk.rows, chunk.labels.tolist(), strict=True):
            if (written.get(label, 0) if per_class else sum(written.values())) >= count:
                continue
            number = written[label] = written.get(label, 0) + 1
            image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
            image = image if size is None else image.resize((size, size), Image.Resampling.BICUBIC)
            (folder / str(label)).mkdir(parents=True, exist_ok=True)
            image.save(folder / str(label) / f"{number}.png")


def varied_columns(x: np.ndarray) -> np.ndarray:
    """Return the columns with more than ten different values."""
    kept = [len(np.unique(column)) > FEW_VALUES for column in x.T]
    return np.ascontiguousarray(x[:, kept], dtype=np.float32)


def image_sets(
    images: Path | None, faces: Path | None, celeba: Path | None = None
) -> dict[str, Callable[[Path], Path]]:
    """Return the sets of images by name: functions that write them to a folder and return what to fit."""
    sets: dict[str, Callable[[Path], Path]] = {}

    def pngs(*words: Any) -> Callable[[Path], Path]:
        def make(folder: Path) -> Path:
            write_images(folder, *words)
            return folder

        return make

    if images is not None:
        clothes, photographs = images / "fashion-mnist", images / "cifar10"
        sets["photographs"] = pngs(photographs, "test", 60, True, 96)
        sets["clothes-300"] = pngs(clothes, "test", 300, False, None)
        sets["clothes-5000"] = pngs(clothes, "test", 5000, False, None)
        sets["cifar10-50000"] = lambda folder: photographs
    if faces is not None:
        sets["faces"] = lambda folder: faces
    if celeba is not None:
        sets["celeba"] = lambda folder: celeba
    return sets


def table_sets(tables: Path | None) -> dict[str, Callable[[Path], Path]]:
    """Return the tables by name, in the same way."""

    def saved(load: Callable[[], np.ndarray]) -> Callable[[Path], Path]:
        def make(folder: Path) -> Path:
            folder.mkdir(parents=True)
            np.save(folder / "table.npy", varied_columns(load()))
            return folder / "table.npy"

        return make

    own = {"breast-cancer": load_breast_cancer, "wine": load_wine, "diabetes": load_diabetes}
    sets = {name: saved(lambda load=load: load().data) for name, load in own.items()}
    for path in sorted(tables.glob("*.npz")) if tables is not None else ():
        sets[path.stem] = saved(lambda path=path: np.load(path)["X"])
    return sets


def simple_images(run: TrainedRun, store: Store, rows: np.ndarray) -> Nats:
    """Score what is simpler than a VAE on test images."""
    x = StoreSource(store.split("test")).read(rows).flatten(1)
    train = StoreSource(store.split("train"))
    augmentation = Augmentation(run.config.flips, run.config.shifts)
    augmented = fit_linear(train, run.data.shape, run.config.latent_dim, 0, augmentation)
    plain = probabilistic_pca(linear_batches(train, 0, most=50_000), run.config.latent_dim, PIXEL_FLOOR)
    # The run's own results have the better of these two.
    models = {"PCA of the images as they are": plain, "PCA of the same flips and shifts": augmented}
    found = {name: -float(model.log_prob(x).mean()) for name, model in models.items()}
    best, num_latents = best_pca(store, augmentation)
    found |= {"best PCA": -float(best.log_prob(x).mean()), "latents of the best PCA": num_latents}
    if math.prod(run.data.shape) <= 1024:
        factors = factor_analysis(linear_batches(train, 0, most=50_000), run.config.latent_dim, PIXEL_FLOOR)
        found["factor analysis"] = -float(factors.log_prob(x).mean())
    return found


def best_pca(store: Store, augmentation: Augmentation) -> tuple[LinearGaussian, int]:
    """Return the PCA that makes validation images the most likely, and its number of latents.

    The number is 10, doubled while that helps. Each is fitted to the images as they are, and flipped and shifted.
    """
    train, validation = (StoreSource(store.split(name)) for name in ("train", "validation"))
    held_out = validation.read(spread_rows(len(validation), 2000)).flatten(1)

    batches = [linear_batches(train, 0, change, most=50_000) for change in {Augmentation(), augmentation}]

    def fitted(num_latents: int) -> tuple[float, LinearGaussian]:
        models = (probabilistic_pca(found, num_latents, PIXEL_FLOOR) for found in batches)
        return max(((float(model.log_prob(held_out).mean()), model) for model in models), key=lambda pair: pair[0])

    num_latents, most = 10, math.prod(store.manifest.shape) - 1
    highest, best = fitted(num_latents)
    while num_latents < most:
        doubled = min(2 * num_latents, most)
        score, model = fitted(doubled)
        if score <= highest:
            break
        highest, best, num_latents = score, model, doubled
    return best, num_latents


def simple_tables(scaling: Scaling, store: Store, rows: np.ndarray) -> Nats:
    """Score what is simpler than a VAE on rows of a table."""
    train, test = scaled_rows(scaling, store, "train"), scaled_rows(scaling, store, "test", rows)
    tried = [mixture(train, count, kind, runs=2) for kind in ("full", "diag") for count in range(1, 11)]
    best = min(tried, key=lambda found: found.bic(train))
    shift = float(scaling.log_density)
    score = {"full normal": tried[0], "diagonal normal": tried[10], "mixture of normals": best}
    return {name: -float(model.score(test)) - shift for name, model in score.items()}


def scaled_rows(scaling: Scaling, store: Store, split: str, rows: np.ndarray | None = None) -> np.ndarray:
    """Return the rows of a split as models see them; all of them, if not told which."""
    source = StoreSource(store.split(split))
    scaled: np.ndarray = scaling(source.read(np.arange(len(source)) if rows is None else rows)).double().numpy()
    return scaled


def mixture(train: np.ndarray, count: int, kind: str, floor: float = COLUMN_FLOOR, runs: int = 1) -> GaussianMixture:
    """Fit a mixture of normals; ``floor`` is added to the variances, and the best of some runs of EM counts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GaussianMixture(count, covariance_type=kind, reg_covar=floor, n_init=runs, random_state=0).fit(train)


def chosen_mixture(scaling: Scaling, store: Store, rows: np.ndarray) -> dict[str, Any]:
    """Score the mixture that makes validation rows the most likely: its kind, its components and its floor.

    Components are tried from few to many, until twice in a row more of them do not help.
    """
    train, validation, test = (
        scaled_rows(scaling, store, split, rows if split == "test" else None)
        for split in ("train", "validation", "test")
    )
    highest, best, choice = -math.inf, None, {}
    for kind, floor in itertools.product(("full", "diag"), _MIXTURE_FLOORS):
        highest_here, num_worse = -math.inf, 0
        for count in _MIXTURE_COMPONENTS:
            if count > len(train):
                break
            model = mixture(train, count, kind, floor)
            score = float(model.score(validation))
            if score > highest:
                highest, best = score, model
                choice = {"kind": kind, "components": count, "floor": floor}
            num_worse = 0 if score > highest_here else num_worse + 1
            highest_here = max(highest_here, score)
            if num_worse == 2:
                break
    assert best is not None
    return {"nats": round(-float(best.score(test)) - float(scaling.log_density), 4), **choice}


def add_mixture(path: Path, data: Path) -> None:
    """Add the mixture that validation rows choose to the record of a table; nothing of ours is fitted again."""
    record = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        prepare(data, Path(folder) / "store", seed=record["seed"])
        store = Store(Path(folder) / "store")
        if store.manifest.fingerprint != record["data"]["fingerprint"]:
            raise SystemExit(f"{path}: the table is not the one of this record")
        scaling = Scaling(store.manifest.shape[0])
        train = StoreSource(store.split("train"))
        scaling.fit(lambda: torch.split(train.read(np.arange(len(train))), 1000))
        rows = spread_rows(len(store.split("test")), record["evaluation"]["density"]["num_images"])
        record["mixture"] = {**chosen_mixture(scaling, store, rows), "commit": commit()}
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{path.stem}: {summary(record)}", flush=True)


def fit(
    name: str, data: Path, minutes: float, seed: int, is_image: bool, out: Path, latent_dim: int | None = None
) -> None:
    """Fit a set, score the simple things, and keep the record."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        said = io.StringIO()
        start = time.monotonic()
        words = [str(data), "--out", str(folder), "--minutes", str(minutes), "--seed", str(seed)]
        words += [] if latent_dim is None else ["--latent-dim", str(latent_dim)]
        with contextlib.redirect_stdout(said):
            code = bype(["fit", *words])
        if code:
            raise SystemExit(f"{name}: bype fit ended with {code}")
        seconds = time.monotonic() - start
        run = TrainedRun.open(folder)
        store = run.store()
        (evaluation,) = read_results(folder).evaluations
        assert evaluation.density is not None
        split = store.split(evaluation.split)
        rows = spread_rows(len(split), evaluation.density.num_images)
        if is_image:
            simple, chosen = simple_images(run, store, rows), {}
        else:
            assert run.model.scaling is not None
            simple = simple_tables(run.model.scaling, store, rows)
            chosen = {"mixture": {**chosen_mixture(run.model.scaling, store, rows), "commit": commit()}}
        paces = json.loads((folder / "pace.json").read_text())["paces"]
        record = {
            "set": name,
            "seed": seed,
            "minutes": minutes,
            "training_seconds": paces[-1]["seconds"],
            "all_seconds": round(seconds, 1),
            "commit": commit(),
            "machine": {"platform": platform.platform(), "versions": machine()},
            "data": {"source": store.manifest.source, "fingerprint": store.manifest.fingerprint},
            "examples": {split: found.num_rows for split, found in store.manifest.splits.items()},
            "shape": store.manifest.shape,
            "config": run.config.to_fields(),
            "step": run.step,
            "simple": {key: round(value, 4) for key, value in simple.items()},
            "evaluation": dataclasses.asdict(dataclasses.replace(evaluation, map=None)),
            **chosen,
        }
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}-{seed}.json").write_text(json.dumps(record, indent=1) + "\n")
        shutil.copy(folder / "report.html", Path(tempfile.gettempdir()) / f"{name}-{seed}.html")
    print(f"{name} {seed}: {summary(record)}", flush=True)


def summary(record: dict[str, Any]) -> str:
    """Say in a line what came out."""
    nats = all_nats(record)
    return ", ".join(f"{name} {value:.2f}" for name, value in nats.items())


def all_nats(record: dict[str, Any]) -> Nats:
    """Return the negative log-likelihood of each model."""
    evaluation = record["evaluation"]
    baseline = evaluation["baseline"]
    return {
        "ours": evaluation["density"]["negative_log_likelihood"]["value"],
        baseline["kind"]: baseline["negative_log_likelihood"]["value"],
        "no latents": baseline["without_latents"],
        **record["simple"],
        **({_BY_VALIDATION: record["mixture"]["nats"]} if "mixture" in record else {}),
    }


def _draws(record: dict[str, Any]) -> float:
    """Return the median effective sample size of the draws."""
    return float(record["evaluation"]["density"]["median_effective_sample_size"])


def pages(out: Path) -> Iterator[str]:
    """Print the tables of docs/results/own-data.md from the records."""
    records = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    images = [record for record in records if len(record["shape"]) == 3]
    tables = [record for record in records if len(record["shape"]) == 1]
    if images:
        yield from head(
            "images", "seed", "ours", "PCA", "PCA, same flips and shifts", "factor analysis", "mean image",
            "ours − PCA, bits per dimension", "its error, nats", "test images",
            "gained in training", "kNN (K = 5), %", "on PCs, %", "squared error",
            "of PCA", "effective sample size",
        )  # fmt: skip
        for record in images:
            nats, baseline = all_nats(record), record["evaluation"]["baseline"]
            pca = nats.get("PCA of the images as they are", nats["probabilistic PCA"])
            bits = (nats["ours"] - pca) / math.prod(record["shape"]) / math.log(2)
            own = (record["evaluation"]["representation"] or {}).get("knn_accuracy", {}).get("5")
            other = (baseline["knn_accuracy"] or {}).get("5")
            factors = f"{nats['factor analysis']:,.1f}" if "factor analysis" in nats else ""
            accuracy = [f"{100 * value:.1f}" if value is not None else "" for value in (own, other)]
            yield (
                f"| {record['set']} | {record['seed']} | {nats['ours']:,.1f} | {pca:,.1f} | "
                f"{nats['PCA of the same flips and shifts']:,.1f} | {factors} | {nats['no latents']:,.1f} | "
                f"{bits:+.3f} | {baseline['error_of_difference']:.1f} | {baseline['num_examples']} | "
                f"{baseline['gain_in_training']:.1f} | {accuracy[0]} | {accuracy[1]} | "
                f"{baseline['own_squared_error']:.2f} | {baseline['squared_error']:.2f} | {_draws(record):.1f} |"
            )
        yield ""
    if tables:
        yield from _lines_of_tables(tables)


def latents_page(out: Path, beside: Path) -> Iterator[str]:
    """Print what more latents change: the records of image sets in a folder, beside those with the usual number."""
    yield from head(
        "images", "seed", "latents", "ours", "PCA, as many latents", "best PCA (its latents)", "squared error",
        "of PCA", "kNN (K = 5), %", "effective sample size",
    )  # fmt: skip
    for path in sorted(out.glob("*.json")):
        more = json.loads(path.read_text())
        simple = more["simple"]
        best = f"{simple['best PCA']:,.1f} ({simple['latents of the best PCA']:,.0f})"
        for record in (json.loads((beside / path.name).read_text()), more):
            assert record["data"]["fingerprint"] == more["data"]["fingerprint"]
            nats, baseline = all_nats(record), record["evaluation"]["baseline"]
            accuracy = (record["evaluation"]["representation"] or {}).get("knn_accuracy", {}).get("5")
            yield (
                f"| {record['set']} | {record['seed']} | {record['config']['latent_dim']} | {nats['ours']:,.1f} | "
                f"{nats['probabilistic PCA']:,.1f} | {best} | {baseline['own_squared_error']:.2f} | "
                f"{baseline['squared_error']:.2f} | {'' if accuracy is None else f'{100 * accuracy:.1f}'} | "
                f"{_draws(record):.1f} |"
            )


def _lines_of_tables(records: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each table, with means over seeds, and what they come to."""
    names = ("ours", "factor analysis", "full normal", _BY_VALIDATION, "mixture of normals", "diagonal normal")
    titles = [*names[:4], "mixture, by BIC", names[5]]
    rivals = {"factor analysis": ("factor analysis",), "both a full normal and a mixture": names[2:4]}

    def is_best(nats: Nats, rival: str) -> bool:
        return nats["ours"] <= min(nats[name] for name in rivals[rival])

    by_table: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_table.setdefault(record["set"], []).append(record)
    yield from head(
        "table", "rows, columns, latents", *titles, "ours at least as good as factor analysis, seeds",
        "ours at least as good as full normal and mixture by validation rows, seeds", "effective sample size",
    )  # fmt: skip
    counts = dict.fromkeys(rivals, 0)
    for table, of_table in by_table.items():
        first, seeds = of_table[0], [all_nats(record) for record in of_table]
        means = {name: statistics.fmean(nats[name] for nats in seeds) for name in names}
        size = f"{sum(first['examples'].values()):,}, {first['shape'][0]}, {first['config']['latent_dim']}"
        values = " | ".join(f"{mean:.2f}" for mean in means.values())
        wins = [f"{sum(is_best(nats, rival) for nats in seeds)} of {len(seeds)}" for rival in rivals]
        for rival in rivals:
            counts[rival] += is_best(means, rival)
        draws = statistics.fmean(map(_draws, of_table))
        yield f"| {table} | {size} | {values} | {wins[0]} | {wins[1]} | {draws:.0f} |"
    yield ""
    for rival, count in counts.items():
        fits = sum(is_best(all_nats(record), rival) for record in records)
        yield (
            f"By the mean over seeds, ours is at least as good as {rival} on {count} of {len(by_table)} tables; "
            f"by single fits, in {fits} of {len(records)}."
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="the folder with fashion-mnist and cifar10")
    parser.add_argument("--tables", type=Path, help="the folder with the tables of ADBench")
    parser.add_argument("--faces", type=Path, help="a folder of faces")
    parser.add_argument("--celeba", type=Path, help="a folder of aligned faces of CelebA")
    parser.add_argument("--out", type=Path, required=True, help="write records to this folder; what is there is kept")
    parser.add_argument("--seeds", type=int, default=3, help="fit each set so many times")
    parser.add_argument("--minutes", type=float, default=2.5, help="train images for so long")
    parser.add_argument("--table-minutes", type=float, default=1.0, help="train tables for so long")
    parser.add_argument("--every-day", action="store_true", help="run three image sets and six tables, once")
    parser.add_argument("--only", default="", help="run sets whose name contains this")
    parser.add_argument("--latent-dim", type=int, help="set the number of latents; if left out, bype fit chooses it")
    parser.add_argument("--mixtures", action="store_true", help="add mixtures to the records of tables, and stop")
    parser.add_argument("--page", action="store_true", help="print the tables of the page and stop")
    parser.add_argument("--beside", type=Path, help="print the records beside those of this folder")
    options = parser.parse_args()
    if options.page:
        lines = pages(options.out) if options.beside is None else latents_page(options.out, options.beside)
        print("\n".join(lines))
        return 0
    images, tables = image_sets(options.images, options.faces, options.celeba), table_sets(options.tables)
    for seed in range(1 if options.every_day else options.seeds):
        for name, make in {**images, **tables}.items():
            is_wanted = options.only in name and (not options.every_day or name in EVERY_DAY)
            record = options.out / f"{name}-{seed}.json"
            if not is_wanted or record.exists() != options.mixtures:
                continue
            if options.mixtures and (name in images or "mixture" in json.loads(record.read_text())):
                continue
            with tempfile.TemporaryDirectory() as folder:
                minutes = options.minutes if name in images else options.table_minutes
                data = make(Path(folder) / name)
                if options.mixtures:
                    add_mixture(record, data)
                    continue
                fit(name, data, minutes, seed, name in images, options.out, options.latent_dim)
    return 0


if __name__ == "__main__":
    sys.exit(main())
