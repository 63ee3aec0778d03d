"""The store: what goes in comes out, nothing half-made stays, and nothing in it is believed unchecked."""

import json
import os

import numpy as np
import pytest

from bype.data import writer as writer_module
from bype.data.manifest import StoreError
from bype.data.store import Store, is_store
from bype.data.writer import StoreWriter

RNG = np.random.default_rng(0)


def write(folder, num_train=1000, monkeypatch=None, has_labels=True):
    rows = RNG.integers(0, 256, (num_train + 20, 1, 4, 5), dtype=np.uint8)
    labels = RNG.integers(0, 3, num_train + 20)
    with StoreWriter(folder, (1, 4, 5), "uint8", classes=("a", "b", "c"), source="test", has_labels=has_labels) as out:
        for first in range(0, num_train, 64):
            part = slice(first, min(first + 64, num_train))
            out.append("train", rows[part], labels[part])
        out.append("validation", rows[num_train:], labels[num_train:])
    return rows, labels


@pytest.mark.parametrize("shard_bytes", [2**28, 2000, 20])
def test_rows_and_labels_come_back_in_any_order(tmp_path, shard_bytes, monkeypatch):
    monkeypatch.setattr(writer_module, "_SHARD_BYTES", shard_bytes)
    rows, labels = write(tmp_path / "store", num_train=300)
    store = Store(tmp_path / "store")
    store.verify()
    split = store.split("train")
    assert len(split) == 300
    chosen = RNG.integers(0, 300, 500)
    assert np.array_equal(split.read(chosen), rows[chosen])
    assert np.array_equal(split.labels(chosen), labels[chosen])
    assert np.array_equal(store.split("validation").read(np.arange(20)), rows[300:])
    assert split.read(np.empty(0, dtype=np.int64)).shape == (0, 1, 4, 5)
    split.will_need(0, 300)
    split.will_need(290, 50)


def test_rows_outside_the_split_and_missing_splits_are_refused(tmp_path):
    write(tmp_path / "store", has_labels=False)
    store = Store(tmp_path / "store")
    for row in (-1, 1000):
        with pytest.raises(IndexError, match="between 0 and 999"):
            store.split("train").read(np.array([row]))
    with pytest.raises(StoreError, match="no split test"):
        store.split("test")
    with pytest.raises(StoreError, match="no labels"):
        store.split("train").labels(np.array([0]))


def test_floats_come_back_to_the_bit(tmp_path):
    rows = RNG.standard_normal((50, 7)).astype(np.float32)
    with StoreWriter(tmp_path / "s", (7,), "float32", source="test", has_labels=False) as out:
        out.append("train", rows)
    assert np.array_equal(Store(tmp_path / "s").split("train").read(np.arange(50)), rows)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_preparation_leaves_nothing(tmp_path, error):
    def interrupted() -> None:
        with StoreWriter(tmp_path / "s", (3,), "uint8", source="test", has_labels=False) as out:
            out.append("train", np.zeros((5, 3), dtype=np.uint8))
            raise error

    with pytest.raises(error):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_preparation_left_is_cleared(tmp_path):
    partial = tmp_path / ".store.partial"
    partial.mkdir()
    (partial / "train-000000.rows").write_bytes(b"half")
    write(tmp_path / "store")
    assert [p.name for p in tmp_path.iterdir()] == ["store"]
    with pytest.raises(StoreError, match="exists already"):
        write(tmp_path / "store")


def test_a_flipped_bit_is_found(tmp_path):
    write(tmp_path / "store")
    path = tmp_path / "store" / "train-000000.rows"
    content = bytearray(path.read_bytes())
    content[777] ^= 4
    path.write_bytes(content)
    with pytest.raises(StoreError, match="has changed"):
        Store(tmp_path / "store").verify()


def break_manifest(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


BROKEN = {
    "no format": lambda m: m.pop("format"),
    "other format": lambda m: m.update(format="zip"),
    "newer version": lambda m: m.update(version=99),
    "shape of text": lambda m: m.update(shape="1,4,5"),
    "shape of two": lambda m: m.update(shape=[4, 5]),
    "negative shape": lambda m: m.update(shape=[1, -4, 5]),
    "zero shape": lambda m: m.update(shape=[1, 0, 5]),
    "enormous shape": lambda m: m.update(shape=[2**20, 2**20, 2**20]),
    "large shape": lambda m: m.update(shape=[1, 40, 5]),
    "boolean shape": lambda m: m.update(shape=[True, 4, 5]),
    "object dtype": lambda m: m.update(dtype="object"),
    "list dtype": lambda m: m.update(dtype=["uint8"]),
    "other dtype": lambda m: m.update(dtype="float32"),
    "classes of numbers": lambda m: m.update(classes=[1, 2]),
    "no names": lambda m: m.pop("names"),
    "no source": lambda m: m.pop("source"),
    "no splits": lambda m: m.update(splits={}),
    "no train": lambda m: m["splits"].pop("train"),
    "foreign split": lambda m: m["splits"].update({"../../etc": m["splits"]["train"]}),
    "splits of text": lambda m: m.update(splits="train"),
    "split of text": lambda m: m["splits"].update(train="all"),
    "no rows": lambda m: m["splits"]["train"].pop("rows"),
    "escaping name": lambda m: m["splits"]["train"]["rows"][0].update(name="../../../etc/passwd"),
    "absolute name": lambda m: m["splits"]["train"]["rows"][0].update(name="/etc/passwd"),
    "other name": lambda m: m["splits"]["train"]["rows"][0].update(name="manifest.json"),
    "too many rows": lambda m: m["splits"]["train"]["rows"][0].update(rows=10**15),
    "too few rows": lambda m: m["splits"]["train"]["rows"][0].update(rows=3),
    "negative rows": lambda m: m["splits"]["train"]["rows"][0].update(rows=-1),
    "fractional rows": lambda m: m["splits"]["train"]["rows"][0].update(rows=1.5),
    "text rows": lambda m: m["splits"]["train"]["rows"][0].update(rows="1000"),
    "number for hash": lambda m: m["splits"]["train"]["rows"][0].update(sha256=5),
    "fewer labels": lambda m: m["splits"]["train"]["labels"][0].update(rows=5),
    "shard twice": lambda m: m["splits"]["train"]["rows"].append(m["splits"]["train"]["rows"][0]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_manifest_gives_one_clear_line(tmp_path, name):
    write(tmp_path / "store")
    break_manifest(tmp_path / "store", BROKEN[name])
    with pytest.raises(StoreError) as caught:
        Store(tmp_path / "store").split("train")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b'"text"', b"{}", b"9" * 10_000, b" " * (2**23 + 1)]
)
def test_a_manifest_that_is_none_gives_one_clear_line(tmp_path, content):
    write(tmp_path / "store")
    (tmp_path / "store" / "manifest.json").write_bytes(content)
    with pytest.raises(StoreError) as caught:
        Store(tmp_path / "store")
    assert "\n" not in str(caught.value)


def test_links_and_missing_or_cut_shards_are_refused(tmp_path):
    write(tmp_path / "store")
    shard = tmp_path / "store" / "train-000000.rows"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    for use in (lambda store: store.split("train"), Store.verify):
        with pytest.raises(StoreError, match="bytes where the manifest says"):
            use(Store(tmp_path / "store"))
    shard.unlink()
    with pytest.raises(StoreError, match="cannot open"):
        Store(tmp_path / "store").split("train")
    for make in (os.mkfifo, os.mkdir):
        make(shard)
        with pytest.raises(StoreError, match="is no file"):
            Store(tmp_path / "store").verify()
        shard.unlink() if shard.is_fifo() else shard.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(content)
    shard.symlink_to(elsewhere)
    with pytest.raises(StoreError, match="cannot open"):
        Store(tmp_path / "store").split("train")
    with pytest.raises(StoreError, match="bype data prepare"):
        Store(tmp_path)


def test_a_gallery_with_a_manifest_of_its_own_is_no_store_and_a_damaged_store_is_one(tmp_path):
    write(tmp_path / "store", num_train=30)
    assert is_store(tmp_path / "store")
    (tmp_path / "store" / "train-000000.rows").unlink()
    assert is_store(tmp_path / "store")
    write(tmp_path / "cut", num_train=30)
    (tmp_path / "cut" / "manifest.json").write_text("{")
    assert is_store(tmp_path / "cut")
    (tmp_path / "gallery").mkdir()
    assert not is_store(tmp_path / "gallery")
    (tmp_path / "gallery" / "manifest.json").write_text('{"name": "My gallery", "icons": []}')
    assert not is_store(tmp_path / "gallery")
