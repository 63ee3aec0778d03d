"""Parquet files and data sets on the hub."""

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from bype.data.prepare import prepare
from bype.data.sources import SourceError, SourceOptions, open_source
from bype.data.store import Store

RNG = np.random.default_rng(0)


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def picture_table(pixels, labels, names=None):
    """A table as the hub has them: pictures as structs of bytes and path, the names of classes in its metadata."""
    pictures = [{"bytes": png(p) if p is not None else b"no picture", "path": None} for p in pixels]
    table = pa.table({"image": pictures, "label": pa.array(labels, pa.int64())})
    if names is None:
        return table
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def everything(folder):
    store = Store(folder)
    store.verify()
    rows, labels = [], []
    for name in store.manifest.splits:
        split = store.split(name)
        numbers = np.arange(len(split))
        rows.append(split.read(numbers))
        labels.append(split.labels(numbers) if split.has_labels else np.full(len(split), -1))
    return store.manifest, np.concatenate(rows), np.concatenate(labels)


def test_columns_and_lists_of_numbers(tmp_path):
    n = 3000  # more than one batch
    a, b = RNG.normal(size=n), RNG.integers(0, 100, n)
    lists = RNG.normal(size=(n, 3))
    names = np.array(["wren", "crow", "ibis"])[RNG.integers(0, 3, n)]
    table = pa.table({"a": a, "kind": names, "b": b, "v": [*lists.tolist()]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=700)
    prepare(tmp_path / "t.parquet", tmp_path / "store", SourceOptions(label="kind"))
    manifest, rows, labels = everything(tmp_path / "store")
    assert manifest.classes == ("crow", "ibis", "wren")
    assert {name: split.num_rows for name, split in manifest.splits.items()} == {
        "train": 2400,
        "validation": 300,
        "test": 300,
    }
    expected = np.column_stack([a, b, lists]).astype(np.float32)
    order, ours = np.argsort(expected[:, 0]), np.argsort(rows[:, 0])
    assert np.array_equal(rows[ours], expected[order])
    assert [manifest.classes[k] for k in labels[ours]] == names[order].tolist()


def test_pictures_in_files_named_after_splits(tmp_path):
    folder = tmp_path / "set"
    (folder / "data").mkdir(parents=True)
    pixels = RNG.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    labels = RNG.integers(0, 3, 40)
    names = ["zero", "one", "two", "never seen"]
    for first, stop, name in ((0, 15, "train-00000-of-2"), (15, 30, "train-00001-of-2"), (30, 40, "test-00000-of-1")):
        pictures = [None if k == 3 else pixels[k] for k in range(first, stop)]
        pq.write_table(picture_table(pictures, labels[first:stop], names), folder / "data" / f"{name}.parquet")
    prepared = prepare(folder, tmp_path / "store", validation=5)
    manifest = Store(tmp_path / "store").manifest
    assert manifest.classes == tuple(names)
    assert manifest.shape == (1, 8, 8)
    assert manifest.splits["test"].num_rows == 10
    assert sum(split.num_rows for split in manifest.splits.values()) == 39
    assert prepared.skipped == ("data/train-00000-of-2.parquet row 3: not an image",)
    test = Store(tmp_path / "store").split("test")
    assert np.array_equal(test.read(np.arange(10))[:, 0], pixels[30:])
    assert np.array_equal(test.labels(np.arange(10)), labels[30:])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": [1.0, None]}, "column 'a', row 1: not a finite number"),
        ({"a": [1.0, 2.0], "label": [0, None]}, "no label in row 1; fill it in"),
        ({"a": ["x", "y"]}, "neither numbers nor images"),
        ({"a": [[1.0], [1.0, 2.0]]}, "differ in length"),
        ({"label": [0, 1]}, "neither images nor features"),
        ({"a": [1.0, 2.0], "label": [0.0, 1.0]}, "whole numbers or text"),
        ({"a": [1.0, 2.0], "label": [[0], [1]]}, "whole numbers or text"),
        ({"a": [[1.0], None]}, "differ in length"),
        ({"p": [b"1", b"2"], "q": [b"1", b"2"]}, "several columns of images"),
        ({"p": [b"1", b"2"]}, "none of the 2 images can be read"),
        ({"a": pa.array([], pa.float32())}, "has no rows"),
    ],
)
def test_tables_that_make_no_sense(tmp_path, table, message):
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    with pytest.raises(SourceError, match=message):
        prepare(tmp_path / "t.parquet", tmp_path / "store", validation=0, test=0)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("options", [SourceOptions(shape=(1,)), SourceOptions(columns=("a",))])
def test_text_in_a_table_for_a_model(tmp_path, options):
    pq.write_table(pa.table({"a": ["x", "y"]}), tmp_path / "t.parquet")
    with pytest.raises(SourceError, match=r"column 'a' holds string.*the model takes numbers"):
        open_source(tmp_path / "t.parquet", options)


def test_files_that_are_broken_or_do_not_fit(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(SourceError, match="cannot read"):
        prepare(tmp_path / "t.parquet", tmp_path / "store")
    folder = tmp_path / "f"
    folder.mkdir()
    pq.write_table(pa.table({"a": [1.0]}), folder / "train.parquet")
    pq.write_table(pa.table({"b": [1.0]}), folder / "test.parquet")
    with pytest.raises(SourceError, match="different columns"):
        prepare(folder, tmp_path / "store")
    (folder / "test.parquet").rename(folder / "other.parquet")
    with pytest.raises(SourceError, match="named after splits"):
        prepare(folder, tmp_path / "store")


def test_columns_of_splits_are_found_by_name(tmp_path):
    folder = tmp_path / "f"
    folder.mkdir()
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [10.0, 20.0]}), folder / "train.parquet")
    pq.write_table(pa.table({"b": [30.0], "a": [3.0]}), folder / "test.parquet")
    prepare(folder, tmp_path / "store", validation=0)
    store = Store(tmp_path / "store")
    rows = {name: store.split(name).read(np.arange(len(store.split(name)))) for name in ("train", "test")}
    a, b = (store.manifest.names.index(name) for name in "ab")
    assert (rows["train"][:, a].tolist(), rows["train"][:, b].tolist()) == ([1.0, 2.0], [10.0, 20.0])
    assert (rows["test"][:, a].tolist(), rows["test"][:, b].tolist()) == ([3.0], [30.0])


def test_a_size_is_refused_where_there_are_no_pictures(tmp_path):
    pq.write_table(pa.table({"a": [1.0, 2.0]}), tmp_path / "t.parquet")
    with pytest.raises(SourceError, match="--size is for images"):
        open_source(tmp_path / "t.parquet", SourceOptions(size=8))


def test_a_data_set_on_the_hub_is_downloaded_at_its_revision(tmp_path, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    asked = {}

    def snapshot_download(name, **options):
        asked.update(options, name=name)
        folder = tmp_path / "snapshots" / commit
        folder.mkdir(parents=True, exist_ok=True)
        if name != "someone/empty":
            pixels = RNG.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
            pq.write_table(picture_table(list(pixels), np.zeros(20)), folder / "train.parquet")
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    monkeypatch.setattr("bype.data.sources.base.importlib.util.find_spec", lambda name: object())
    with pytest.raises(SourceError, match="refs/convert/parquet"):
        prepare("hf:someone/empty@v1", tmp_path / "store")
    prepared = prepare("hf:someone/faces@v1", tmp_path / "store")
    assert asked["name"] == "someone/faces"
    assert asked["revision"] == "v1"
    assert asked["repo_type"] == "dataset"
    assert asked["allow_patterns"] == "*.parquet"  # of a stranger, nothing else
    assert prepared.manifest.source == f"someone/faces at {commit}"
    assert prepared.manifest.shape == (3, 8, 8)
    for name in ("hf:someone/faces", "hf:@v1", "hf:a/b/c@v1"):
        with pytest.raises(SourceError, match="names no data set and revision"):
            prepare(name, tmp_path / "other")

    class Timeout(Exception):  # noqa: N818  as the network library below calls its own
        pass

    class HfHubHTTPError(Timeout):
        pass

    def refuse(name, **options):
        kind = OSError if name == "a/b" else Timeout
        raise kind("Repository Not Found\nand much more")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=refuse))
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", SimpleNamespace(HfHubHTTPError=HfHubHTTPError))
    for name in ("a/b", "a/slow"):
        with pytest.raises(SourceError, match=rf"cannot download hf:{name}@c: Repository Not Found$"):
            prepare(f"hf:{name}@c", tmp_path / "other")


def test_a_missing_extra_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr("bype.data.sources.base.importlib.util.find_spec", lambda name: None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(SourceError, match="pip install pyarrow"):
        prepare(tmp_path / "t.parquet", tmp_path / "store")
    with pytest.raises(SourceError, match="pip install huggingface-hub"):
        prepare("hf:a/b@c", tmp_path / "store")


def test_labels_that_are_numbers_become_the_classes_that_occur(tmp_path):
    years = [2018, 2020, -1, 2020] * 10
    pq.write_table(pa.table({"a": np.arange(40.0), "label": years}), tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", x=np.arange(40.0)[:, None], y=np.array(years))
    for name in ("t.parquet", "t.npz"):
        store = tmp_path / f"store-{name}"
        assert prepare(tmp_path / name, store).manifest.classes == ("-1", "2018", "2020")
        for split in Store(store).manifest.splits:
            opened = Store(store).split(split)
            rows, labels = opened.read(np.arange(len(opened))), opened.labels(np.arange(len(opened)))
            wanted = [("-1", "2018", "2020").index(str(years[int(row)])) for row in rows[:, 0]]
            assert labels.tolist() == wanted


@pytest.mark.parametrize(
    "labels",
    [pa.array([None] * 4, pa.int64()), pa.array([1, None, 2, 3]), pa.array([0.5] * 4), pa.array([None] * 4, pa.null())],
    ids=["empty", "with a gap", "no whole numbers", "of no type"],
)
def test_a_model_takes_new_rows_whose_labels_are_unknown(labels, tmp_path):
    table = pa.table({"a": np.arange(4.0), "b": np.arange(4.0), "label": labels})
    pq.write_table(table, tmp_path / "new.parquet")
    source = open_source(tmp_path / "new.parquet", SourceOptions(columns=("b", "a")))
    assert (source.names, source.has_labels, source.unused) == (("b", "a"), False, ("label",))
    assert sum(len(chunk.rows) for pool in source.pools for _, chunk in pool.read()) == 4
    with pytest.raises(SourceError):
        open_source(tmp_path / "new.parquet", SourceOptions())


def test_classes_that_may_be_the_same_are_told(tmp_path):
    kinds = ["cat", "Cat", "NA", "dog"] * 5
    pq.write_table(pa.table({"a": np.arange(20.0), "label": kinds}), tmp_path / "t.parquet")
    one, other = open_source(tmp_path / "t.parquet", SourceOptions()).notes
    assert "column 'label' holds 'NA', which is taken as a class" in one
    assert "classes that may be the same: 'Cat', 'cat'" in other
    assert open_source(tmp_path / "t.parquet", SourceOptions(shape=(1,), columns=("a",))).notes == []
