"""Where examples came from: every row is traced to its file or line, and nothing in a stranger's store is believed."""

import csv
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from bype.cli import main
from bype.data.manifest import StoreError
from bype.data.origins import name_examples
from bype.data.prepare import prepare
from bype.data.store import Store
from bype.data.writer import StoreWriter


def images(folder, names):
    """Write images whose pixels all have the value of their place in ``names``."""
    for value, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), value, dtype=np.uint8)).save(folder / name)


def test_every_image_of_a_store_is_traced_to_its_file(tmp_path):
    names = [f"{kind}/{number}.png" for kind in ("cats", "dogs") for number in range(30)]
    images(tmp_path / "photos", names)
    (tmp_path / "photos" / "cats" / "12x.png").write_bytes(b"no image")  # positions go on counting
    store = Store(prepare(tmp_path / "photos", tmp_path / "store") and tmp_path / "store")
    store.verify()
    seen = []
    for name in ("train", "validation", "test"):
        split = store.split(name)
        rows = np.random.default_rng(0).permutation(len(split))
        origins = split.origins(rows).tolist()
        assert [names[value] for value in split.read(rows)[:, 0, 0, 0]] == origins
        seen += origins
    assert sorted(seen) == sorted(names)


def test_every_line_of_a_table_is_traced_to_its_row(tmp_path):
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b"], *([k, k * k] for k in range(5000))])
    prepare(tmp_path / "t.csv", tmp_path / "store")
    for name in ("train", "test"):
        split = Store(tmp_path / "store").split(name)
        rows = np.arange(len(split))
        assert split.origins(rows).dtype == np.int64
        assert split.origins(rows).tolist() == split.read(rows)[:, 0].astype(int).tolist()


@pytest.mark.parametrize("kind", ["images", "table"])
def test_rows_of_several_parquet_files_are_named_after_their_file(kind, tmp_path):
    for number, folder in enumerate(("a", "b")):
        (tmp_path / "data" / folder).mkdir(parents=True)
        values = [10 * number + k for k in range(10)]
        if kind == "images":
            files = [io.BytesIO() for _ in values]
            for value, file in zip(values, files, strict=True):
                Image.fromarray(np.full((4, 4), value, dtype=np.uint8)).save(file, "png")
            columns = {"image": [{"bytes": file.getvalue()} for file in files]}
        else:
            columns = {"x": [float(value) for value in values], "y": [1.0] * 10}
        parquet.write_table(pyarrow.table(columns), tmp_path / "data" / folder / "part-0.parquet")
    prepare(tmp_path / "data", tmp_path / "store")
    split = Store(tmp_path / "store").split("train")
    rows = np.arange(len(split))
    values = split.read(rows).reshape(len(rows), -1)[:, 0].astype(int)
    assert split.origins(rows).tolist() == [f"{'ab'[v // 10]}/part-0.parquet row {v % 10}" for v in values]


def test_images_of_cifar_are_named_after_their_batch(tmp_path):
    (tmp_path / "cifar").mkdir()
    files = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    for number, name in enumerate(files):
        content = np.zeros((6, 3073), dtype=np.uint8)
        content[:, 1] = 10 * number + np.arange(6)
        content.tofile(tmp_path / "cifar" / name)
    prepare(tmp_path / "cifar", tmp_path / "store")
    for name in ("train", "test"):
        split = Store(tmp_path / "store").split(name)
        rows = np.arange(len(split))
        values = split.read(rows)[:, 0, 0, 0].tolist()
        assert split.origins(rows).tolist() == [f"{files[v // 10]} row {v % 10}" for v in values]


def test_origins_are_no_part_of_the_fingerprint_and_a_store_may_have_none(tmp_path):
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    for name, origins in (("with", [f"{k}.txt" for k in range(10)]), ("without", None)):
        with StoreWriter(tmp_path / name, (2,), "float32", source="test", has_labels=False) as writer:
            writer.append("train", rows, None, origins)
    with_, without = Store(tmp_path / "with"), Store(tmp_path / "without")
    assert with_.manifest.fingerprint == without.manifest.fingerprint
    assert with_.split("train").origins(np.array([3, 3, 0])).tolist() == ["3.txt", "3.txt", "0.txt"]
    assert without.split("train").origins(np.array([3])) is None
    assert {path.name for path in (tmp_path / "without").iterdir()} == {"manifest.json", "train-000000.rows"}
    with pytest.raises(IndexError):
        with_.split("train").origins(np.array([10]))


@pytest.mark.parametrize(
    "appended",
    [[["a", "b"], None], [["a"], ["b", "c", "d"]], [["a", "b"], [1, 2]]],
    ids=["missing", "shifted", "mixed"],
)
def test_origins_that_do_not_fit_are_refused_and_nothing_is_left(appended, tmp_path):
    def write():
        with StoreWriter(tmp_path / "store", (2,), "float32", source="test", has_labels=False) as writer:
            for origins in appended:
                writer.append("train", np.zeros((2, 2), dtype=np.float32), None, origins)

    with pytest.raises(ValueError, match=r"needs an origin|all rows or all names"):
        write()
    assert not list(tmp_path.iterdir())


NAMES = {
    "macOS": "Screenshot 10.00.00\u202fAM.png",
    "Japanese": "写真\u3000猫.png",
    "Persian": "\u0645\u06cc\u200c\u062e.png",
    "joined emoji": "👩\u200d🔬.png",
    "quoted": 'a "b"\\n.png',
    "digits": "007",
    "two lines": "two\nlines.png",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_come_back_as_they_were(tmp_path, name):
    with StoreWriter(tmp_path / "store", (1,), "float32", source="test", has_labels=False) as writer:
        writer.append("train", np.zeros((1, 1), dtype=np.float32), None, [name])
        writer.append("train", np.zeros((1, 1), dtype=np.float32), None, ["next.png"])
    assert Store(tmp_path / "store").split("train").origins(np.arange(2)).tolist() == [name, "next.png"]


def test_bytes_that_are_no_text_can_still_be_written(tmp_path):
    with StoreWriter(tmp_path / "store", (1,), "float32", source="test", has_labels=False) as writer:
        writer.append("train", np.zeros((2, 1), dtype=np.float32), None, ["caf\udce9.png", "\ud800.png"])
    found = Store(tmp_path / "store").split("train").origins(np.arange(2))
    assert found.tolist() == ["caf\\xe9.png", "\\ud800.png"]


def test_a_name_is_shown_in_one_line_without_commands_to_a_terminal():
    names = np.array(["\x1b[2J.png", "a\nb.png", "10.00\u202fAM 猫.png"])
    assert name_examples(np.arange(3), names) == ["\\x1b[2J.png", "a\\nb.png", "10.00\u202fAM 猫.png"]
    rows = np.array([7, 2])
    assert name_examples(rows, None) == ["row 7", "row 2"]
    assert name_examples(rows, np.array([12, 3])) == ["row 12 of the source", "row 3 of the source"]


def named_store(folder):
    with StoreWriter(folder, (1,), "float32", source="test", has_labels=False) as writer:
        writer.append("train", np.zeros((3, 1), dtype=np.float32), None, ["a", "bc", "d"])
    return folder


HOSTILE_NUMBERS = {
    "negative": [-1, 3, 4],
    "falling": [3, 1, 4],
    "behind the end": [1, 3, 9],
    "huge": [1, 2**62, 2**62 + 1],
    "cut off": [1, 3],
    "too many": [1, 3, 4, 4],
}


@pytest.mark.parametrize("numbers", HOSTILE_NUMBERS.values(), ids=HOSTILE_NUMBERS)
def test_hostile_numbers_are_refused(tmp_path, numbers):
    store = named_store(tmp_path / "store")
    np.array(numbers, dtype="<i8").tofile(store / "train.origins")
    split = Store(store).split("train")
    with pytest.raises(StoreError, match="prepare the data again"):
        split.origins(np.arange(3))


def test_a_name_of_a_megabyte_is_refused(tmp_path):
    store = named_store(tmp_path / "store")
    (store / "train.names").write_bytes(b"a" * 2**20)
    np.array([1, 2**20, 2**20], dtype="<i8").tofile(store / "train.origins")
    split = Store(store).split("train")
    with pytest.raises(StoreError, match="does not match the names"):
        split.origins(np.arange(3))
    with (
        pytest.raises(ValueError, match="more than 4,096 bytes"),
        StoreWriter(tmp_path / "new", (1,), "float32", source="test", has_labels=False) as writer,
    ):
        writer.append("train", np.zeros((1, 1), dtype=np.float32), None, ["a" * 5000])


@pytest.mark.parametrize(
    "change",
    [{"kind": "both"}, {"splits": {"../train": {"rows": 3, "numbers_sha256": "", "names_sha256": ""}}}, {"version": 2}],
    ids=["kind", "split", "version"],
)
def test_a_hostile_index_is_refused(tmp_path, change):
    store = named_store(tmp_path / "store")
    index = json.loads((store / "origins.json").read_text())
    (store / "origins.json").write_text(json.dumps(index | change))
    split = Store(store).split("train")
    with pytest.raises(StoreError, match="prepare the data again"):
        split.origins(np.arange(3))


@pytest.mark.parametrize("name", ["train.origins", "train.names"])
def test_a_changed_file_is_found_by_the_check_and_a_lost_one_named(tmp_path, name):
    store = named_store(tmp_path / "store")
    Store(store).verify()
    content = (store / name).read_bytes()
    (store / name).write_bytes(content[::-1])
    with pytest.raises(StoreError, match=f"{name} has changed"):
        Store(store).verify()
    (store / name).unlink()
    split = Store(store).split("train")
    with pytest.raises(StoreError, match=f"cannot open .*{name}"):
        split.origins(np.arange(3))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists open files in /proc")
def test_files_are_closed_when_the_disk_is_full(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    before = set(Path("/proc/self/fd").iterdir())
    writer = StoreWriter(tmp_path / "store", (1,), "float32", source="test", has_labels=False).__enter__()
    writer.append("train", np.zeros((1, 1), dtype=np.float32), None, ["a"])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        writer.__exit__(None, None, None)
    assert not list(tmp_path.iterdir())
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_scores_and_embeddings_name_the_files(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for number in range(60):
        path = tmp_path / "photos" / ("odd.png" if number == 7 else f"{number}.png")
        path.parent.mkdir(exist_ok=True)
        pixels = rng.integers(0, 40, (8, 8), dtype=np.uint8) + (200 if number == 7 else 0)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    run, scores = tmp_path / "run", tmp_path / "s.csv"
    assert main(["fit", str(tmp_path / "photos"), "--out", str(run), "--minutes", "0.02"]) == 0
    splits = Store(run / "store").manifest.splits
    assert sum(split.num_rows for split in splits.values()) == 60
    (where,) = [s for s in splits if "odd.png" in Store(run / "store").split(s).origins(np.arange(splits[s].num_rows))]
    capsys.readouterr()
    assert main(["score", str(run), "--split", where, "--out", str(scores)]) == 0
    printed = capsys.readouterr().out
    with scores.open() as file:
        lines = list(csv.DictReader(file))
    assert min(lines, key=lambda line: float(line["log_likelihood"]))["source"] == "odd.png"
    assert "  odd.png: log p(x)" in printed
    assert main(["embed", str(run), "--split", where, "--out", str(tmp_path / "embedded")]) == 0
    with np.load(tmp_path / "embedded" / "part-000000.npz") as part:
        assert part["sources"].tolist() == [line["source"] for line in lines]
