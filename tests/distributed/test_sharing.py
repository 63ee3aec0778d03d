"""Evaluation and embedding by several processes: the same figures, every example once."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bype.data.prepare import prepare
from small_runs import small_run
from torchrun_process import environment, finish, torchrun


def density(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "evaluation.json").read_text())["evaluations"][0]["density"]
    del found["seconds"]
    return found


def figures(value: object) -> list[float]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in figures(part)]
    return [float(value)] if isinstance(value, int | float) else []


def compare_evaluations(run: Path, folder: Path, sizes: tuple[int, ...], *flags: str) -> None:
    words = ["-m", "bype", "evaluate", "{}", "--no-map", *flags]
    found = {}
    for size in sizes:
        copy = Path(shutil.copytree(run, folder / f"evaluated-by-{size}"))
        named = [word.format(copy) for word in words]
        text = finish([sys.executable, *named] if size == 1 else torchrun(size, *named), 900)
        assert text.count("negative log-likelihood") == 1  # one process speaks
        found[size] = density(copy)
        assert not list(copy.glob("*.journal"))
    for size in sizes:
        np.testing.assert_allclose(figures(found[size]), figures(found[1]), rtol=1e-6)


def test_an_evaluation_by_three_processes_finds_what_one_finds(trained_bype, tmp_path):
    compare_evaluations(trained_bype, tmp_path, (1, 3), "--samples", "20")


def test_an_embedding_by_three_processes_is_that_of_one(tmp_path):
    rows = np.random.default_rng(0).normal(size=(70_000, 3)).astype(np.float32)  # five parts
    np.save(tmp_path / "x.npy", rows)
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=0)
    run = small_run(tmp_path / "run", tmp_path / "store", likelihood="learned-gaussian", length="5 steps")
    words = ["-m", "bype", "embed", str(run), "--split", "train", "--out"]
    finish([sys.executable, *words, str(tmp_path / "one")])
    text = finish(torchrun(3, *words, str(tmp_path / "three")))
    assert "70,000 embeddings" in text
    assert json.loads((tmp_path / "three" / "complete.json").read_text()) == {"parts": 5, "rows": 70_000}
    for number in range(5):
        ours, theirs = (np.load(tmp_path / name / f"part-{number:06d}.npz") for name in ("three", "one"))
        assert np.array_equal(ours["ids"], theirs["ids"])
        np.testing.assert_allclose(ours["means"], theirs["means"], atol=1e-6)


@pytest.mark.slow
def test_evaluations_on_real_images_agree(fashion_store, tmp_path):
    fields = {"hidden": 300, "latent_dim": 40, "components": 500, "batch_size": 100, "length": "2 epochs"}
    run = small_run(tmp_path / "run", fashion_store, **fields)
    compare_evaluations(run, tmp_path, (1, 2, 3), "--samples", "200", "--images", "300", "--split", "validation")


@pytest.mark.slow
def test_a_million_rows_by_four_workers_that_are_killed_ten_times(tmp_path):
    """Every id once, whoever was killed, and the values of one undisturbed worker."""
    rows = np.random.default_rng(0).normal(size=(1_000_000, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=0)
    features = {"likelihood": "learned-gaussian", "length": "20 steps", "hidden": 300, "batch_size": 100}
    run = small_run(tmp_path / "run", tmp_path / "store", **features)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "bype", "embed", str(run), "--split", "train", "--format", "parquet"]
    generator = random.Random(0)  # noqa: S311

    def worker(number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "--out", str(out), "--shard", f"{number}/4"], env=environment())

    workers = {number: worker(number) for number in range(4)}
    kills = 0
    while any(process.poll() is None for process in workers.values()) or kills < 10:
        time.sleep(generator.uniform(0.5, 2.5))
        alive = [number for number, process in workers.items() if process.poll() is None]
        if kills < 10 and alive:
            number = generator.choice(alive)
            workers[number].send_signal(signal.SIGKILL)
            workers[number].wait()
            kills += 1
        for number, process in workers.items():
            if process.poll() not in (None, 0):
                workers[number] = worker(number)
        if not any(process.poll() is None for process in workers.values()):
            break
    finish([*command, "--out", str(out)])  # whatever is missing
    from pyarrow import parquet

    tables = [parquet.read_table(path) for path in sorted(out.glob("part-*.parquet"))]
    ids = np.concatenate([table["id"].to_numpy() for table in tables])
    assert np.array_equal(ids, np.arange(1_000_000))
    assert json.loads((out / "complete.json").read_text())["rows"] == 1_000_000
    finish([*command, "--out", str(tmp_path / "whole")])
    for path in sorted(out.glob("part-*.parquet"))[::7]:
        ours, theirs = parquet.read_table(path), parquet.read_table(tmp_path / "whole" / path.name)
        np.testing.assert_allclose(np.stack(ours["mean"].to_numpy()), np.stack(theirs["mean"].to_numpy()), atol=1e-6)
    print(f"{kills} kills")  # noqa: T201
    assert kills == 10


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # theirs
def test_ray_and_datasets_give_the_same_values(trained_bype, labelled_store):
    """Needs what no other test does: pip install 'ray[data]' datasets."""
    pytest.importorskip("ray")
    import ray
    import ray.data

    datasets = pytest.importorskip("datasets")
    from bype import Embedder
    from bype.data.store import Store

    images = Store(labelled_store).split("test").read(np.arange(75))
    expected = Embedder(trained_bype)({"image": images})["embedding"]
    os.environ["RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        table = ray.data.from_items([{"id": number, "image": image} for number, image in enumerate(images)])
        mapped = table.map_batches(Embedder, fn_constructor_args=[str(trained_bype)], batch_size=20, concurrency=2)
        found = sorted(mapped.take_all(), key=lambda row: row["id"])
    finally:
        ray.shutdown()
    np.testing.assert_allclose(np.stack([row["embedding"] for row in found]), expected, atol=1e-6)
    pictures = datasets.Dataset.from_dict({"image": [Image.fromarray(image[0]) for image in images]})
    for table in (pictures, datasets.Dataset.from_dict({"image": list(images)}).with_format("numpy")):
        mapped = table.map(Embedder(trained_bype), batched=True, batch_size=20, remove_columns=["image"])
        np.testing.assert_allclose(np.asarray(mapped["embedding"]), expected, atol=1e-6)
