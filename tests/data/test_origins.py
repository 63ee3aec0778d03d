"""Where examples came from: every row is traced to its file or line, and nothing in a stranger's store is believed."""

import csv
import hashlib
import json

import numpy as np
import pytest
from PIL import Image

from bype.cli import main
from bype.data.manifest import StoreError
from bype.data.origins import name_examples, origin_column
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
        origins = split.origins(rows)
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
        assert origin_column(split.origins(rows)).tolist() == split.read(rows)[:, 0].astype(int).tolist()


def test_origins_are_no_part_of_the_fingerprint_and_a_store_may_have_none(tmp_path):
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    for name, origins in (("with", [f"{k}.txt" for k in range(10)]), ("without", None)):
        with StoreWriter(tmp_path / name, (2,), "float32", source="test", has_labels=False) as writer:
            writer.append("train", rows, None, origins)
    with_, without = Store(tmp_path / "with"), Store(tmp_path / "without")
    assert with_.manifest.fingerprint == without.manifest.fingerprint
    assert with_.split("train").origins(np.array([3, 3, 0])) == ["3.txt", "3.txt", "0.txt"]
    assert without.split("train").origins(np.array([3])) is None
    assert not list((tmp_path / "without").glob("*origins*"))
    with pytest.raises(IndexError):
        with_.split("train").origins(np.array([10]))


def test_an_origin_for_some_examples_only_is_refused_and_nothing_is_left(tmp_path):
    rows = np.zeros((2, 2), dtype=np.float32)
    writer = StoreWriter(tmp_path / "store", (2,), "float32", source="test", has_labels=False).__enter__()
    writer.append("train", rows, None, ["a", "b"])
    writer.append("train", rows)
    with pytest.raises(ValueError, match="every example needs an origin"):
        writer.__exit__(None, None, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["two\nlines.png", "\x1b[2Jclear.png", "caf\udce9.png", "naïve 猫.png", 'a "b".png'])
def test_strange_names_are_kept_in_one_printable_line(tmp_path, name):
    with StoreWriter(tmp_path / "store", (1,), "float32", source="test", has_labels=False) as writer:
        writer.append("train", np.zeros((2, 1), dtype=np.float32), None, [name, "next.png"])
    first, second = Store(tmp_path / "store").split("train").origins(np.arange(2))
    assert second == "next.png"
    assert first.isprintable()
    assert first.encode()  # can be written
    assert name.isprintable() <= (first == name)


def hostile(folder, lines, split="train", name="train.origins"):
    with StoreWriter(folder, (1,), "float32", source="test", has_labels=False) as writer:
        writer.append("train", np.zeros((2, 1), dtype=np.float32), None, ["a", "b"])
    (folder / "train.origins").write_bytes(lines)
    shard = {"name": name, "rows": 2, "sha256": hashlib.sha256(lines).hexdigest()}
    index = {"format": "bype-origins", "version": 1, "splits": {split: shard}}
    (folder / "origins.json").write_text(json.dumps(index))
    return Store(folder).split("train")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b'"a"\n', "ends before line 1"),
        (b'"a"\n17\n', "line 1: not a text"),
        (b'"a"\n["b"]\n', "line 1: not a text"),
        (b'"a"\n"\xff"\n', "line 1: not a text"),
        (b'"' + b"a" * 10**6 + b'"\n"b"\n', "too long a line"),
        (b"[" * 60000 + b'\n"b"\n', "line 0: not a text"),
    ],
    ids=["cut off", "number", "list", "no text", "long", "deep"],
)
def test_hostile_lines_are_refused(tmp_path, lines, message):
    split = hostile(tmp_path / "store", lines)
    with pytest.raises(StoreError, match=message):
        split.origins(np.arange(2))


def test_an_escape_that_a_stranger_wrote_does_not_reach_the_terminal(tmp_path):
    split = hostile(tmp_path / "store", b'"\\u001b[2J"\n"b"\n')
    assert split.origins(np.arange(2)) == ["\\x1b[2J", "b"]


def test_origins_in_another_file_or_of_another_split_are_refused(tmp_path):
    for number, (split, name) in enumerate([("train", "../../secret"), ("all", "all.origins")]):
        found = hostile(tmp_path / f"{number}", b'"a"\n"b"\n', split, name)
        with pytest.raises(StoreError, match="must be in"):
            found.origins(np.arange(2))


def test_a_changed_file_is_found_by_the_check(tmp_path):
    hostile(tmp_path / "store", b'"a"\n"b"\n')
    Store(tmp_path / "store").verify()
    (tmp_path / "store" / "train.origins").write_bytes(b'"b"\n"a"\n')
    with pytest.raises(StoreError, match=r"train\.origins has changed"):
        Store(tmp_path / "store").verify()


def test_names():
    rows = np.array([7, 2])
    assert name_examples(rows, None) == ["row 7", "row 2"]
    assert name_examples(rows, ["12", "a.png"]) == ["row 12 of the source", "a.png"]
    assert origin_column(["12", "a.png"]).tolist() == ["12", "a.png"]
    assert origin_column(["12", "3"]).dtype == np.int64


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
