"""Data that could be lost or mixed up without a word: each case is read right, or refused with its reason."""

import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bype.cli import main
from bype.data import writer as writer_module
from bype.data.check import check
from bype.data.manifest import StoreError
from bype.data.prepare import prepare
from bype.data.sources import SourceError, SourceOptions, image_files, open_source, table
from bype.data.sources.memory import source_of
from bype.data.store import Store, is_store
from bype.data.writer import StoreWriter


def picture(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), value, dtype=np.uint8)).save(path)


@pytest.mark.parametrize("label", [None, "a"])
def test_columns_of_one_name_are_refused(tmp_path, label):
    (tmp_path / "t.csv").write_text("a,a,b\n" + "1,10,100\n" * 20)
    with pytest.raises(SourceError, match="several columns called 'a'"):
        open_source(tmp_path / "t.csv", SourceOptions(label=label))


def test_columns_of_one_name_that_a_model_does_not_take_do_not_matter(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,note,note\n" + "1,2,3,4\n" * 20)
    source = open_source(tmp_path / "t.csv", SourceOptions(columns=("b", "a")))
    assert source.names == ("b", "a")
    assert source.unused == ("note", "note")


def test_columns_of_one_name_in_parquet_are_refused(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [arrow.array([1.0, 2.0])] * 2
    parquet.write_table(arrow.Table.from_arrays(columns, names=["a", "a"]), tmp_path / "t.parquet")
    with pytest.raises(SourceError, match="several columns called 'a'"):
        open_source(tmp_path / "t.parquet", SourceOptions())


def test_images_in_class_folders_beside_a_parquet_file_are_not_ignored(tmp_path):
    picture(tmp_path / "photos" / "cat" / "1.png")
    (tmp_path / "photos" / "metadata.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match="images and parquet files"):
        open_source(tmp_path / "photos", SourceOptions())


def test_a_class_folder_with_a_link_to_it_keeps_its_name(tmp_path):
    for k in range(5):
        picture(tmp_path / "photos" / "zebra" / f"{k}.png")
        picture(tmp_path / "photos" / "cat" / f"{k}.png")
        picture(tmp_path / "elsewhere" / f"{k}.png")
    (tmp_path / "photos" / "alias").symlink_to(tmp_path / "photos" / "zebra")
    (tmp_path / "photos" / "cat" / "loop").symlink_to(tmp_path / "photos")
    (tmp_path / "photos" / "self.png").symlink_to(tmp_path / "photos" / "self.png")
    (tmp_path / "photos" / "nowhere").symlink_to(tmp_path / "photos" / "cat" / "1.png" / "x")
    (tmp_path / "photos" / "dog").symlink_to(tmp_path / "elsewhere")
    source = open_source(tmp_path / "photos", SourceOptions())
    assert source.classes == ("cat", "dog", "zebra")
    assert sum(pool.num_rows for pool in source.pools) == 15


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such names")
def test_names_that_are_no_utf8_are_shown_with_escapes(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/im\xe9")
    for k in range(10):
        picture(tmp_path.joinpath(folder, os.fsdecode(b"caf\xe9"), f"{k}.png"))
        picture(tmp_path.joinpath(folder, "tea", f"{k}.png"))
    store = tmp_path.joinpath(os.fsdecode(b"store\xe9"))
    prepare(folder, store)
    manifest = Store(store).manifest
    assert manifest.classes == ("caf\\xe9", "tea")
    assert manifest.source == "images in im\\xe9"


@pytest.mark.parametrize("other", [np.array(3), np.array(["a", None], dtype=object), np.zeros((0, 2))])
def test_an_array_that_is_not_used_does_not_matter(tmp_path, other):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(20, 3)), other=other)
    source = open_source(tmp_path / "a.npz", SourceOptions())
    assert source.shape == (3,)
    assert source.unused == ("other",)
    np.savez(tmp_path / "b.npz", x=other)
    with pytest.raises(SourceError, match="the array 'x'"):
        open_source(tmp_path / "b.npz", SourceOptions())


def test_endings_in_capitals(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 3)))
    (tmp_path / "x.npy").rename(tmp_path / "X.NPY")
    (tmp_path / "T.TSV").write_text("a\tb\n" + "1\t2\n" * 20)
    assert open_source(tmp_path / "X.NPY", SourceOptions()).shape == (3,)
    assert open_source(tmp_path / "T.TSV", SourceOptions()).names == ("a", "b")


def test_an_image_whose_decoder_fails_in_its_own_way_is_skipped(tmp_path, monkeypatch):
    for k in range(10):
        picture(tmp_path / "photos" / f"{k}.png", k)
    orientation = image_files._orientation

    def fails_at_7(image):
        if str(image.filename).endswith("7.png"):
            raise RuntimeError("Failed to decode image")
        return orientation(image)

    monkeypatch.setattr(image_files, "_orientation", fails_at_7)
    (skipped,) = prepare(tmp_path / "photos", tmp_path / "store").skipped
    assert skipped.startswith("7.png")


def test_wide_tables_are_read_in_small_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "CHUNK_BYTES", 40 * 50 * 3)
    rows = 1 + np.arange(1000).reshape(20, 50)
    np.savetxt(tmp_path / "t.csv", rows, delimiter=",", fmt="%d")
    (pool,) = open_source(tmp_path / "t.csv", SourceOptions()).pools
    chunks = [chunk.rows for _, chunk in pool.read()]
    assert max(map(len, chunks)) == 3
    assert np.array_equal(np.concatenate(chunks), rows)


def test_two_preparations_of_one_store_do_not_mix(tmp_path):
    def writer():
        return StoreWriter(tmp_path / "s", (3,), "uint8", source="test", has_labels=False)

    with writer() as first:
        first.append("train", np.zeros((5, 3), dtype=np.uint8))
        with pytest.raises(StoreError, match="another process is preparing"), writer() as second:
            second.append("train", np.ones((5, 3), dtype=np.uint8))
    assert not Store(tmp_path / "s").split("train").read(np.arange(5)).any()
    Store(tmp_path / "s").verify()
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert not (tmp_path / "s" / "lock").exists()


def test_two_preparations_on_a_disk_without_locks_do_not_mix(tmp_path, monkeypatch):
    def writer():
        return StoreWriter(tmp_path / "s", (3,), "uint8", source="test", has_labels=False)

    monkeypatch.setattr(writer_module, "lock", lambda descriptor, **_: None)
    with writer() as first:
        first.append("train", np.zeros((5, 3), dtype=np.uint8))
        with pytest.raises(StoreError, match=r"may be preparing .*remove .*\.s\.partial"), writer():
            pass
    assert not Store(tmp_path / "s").split("train").read(np.arange(5)).any()
    Store(tmp_path / "s").verify()


def test_hidden_parquet_files_are_no_data(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "d" / ".ipynb_checkpoints").mkdir(parents=True)
    for name in ("d.parquet", ".ipynb_checkpoints/d-checkpoint.parquet"):
        pq.write_table(pa.table({"a": np.arange(60.0), "b": np.ones(60)}), tmp_path / "d" / name)
    (tmp_path / "d" / "._d.parquet").write_bytes(b"of a Mac")
    (tmp_path / "d" / "parts.parquet").mkdir()
    manifest = prepare(tmp_path / "d", tmp_path / "s").manifest
    assert sum(split.num_rows for split in manifest.splits.values()) == 60
    (tmp_path / "photos" / ".cache").mkdir(parents=True)
    (tmp_path / "photos" / ".cache" / "z.parquet").write_bytes(b"")
    for number in range(3):
        picture(tmp_path / "photos" / f"{number}.png", number)
    prepare(tmp_path / "photos", tmp_path / "p", validation=0, test=0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_is_turned_as_a_jpeg_is(tmp_path, orientation):
    pixels = np.arange(40 * 60, dtype=np.uint8).reshape(40, 60) // 8
    exif = Image.Exif()
    exif[0x0112] = orientation
    read = {}
    for ending in ("png", "tif"):
        (tmp_path / ending).mkdir()
        Image.fromarray(pixels).save(tmp_path / ending / f"0.{ending}", exif=exif)
        prepare(tmp_path / ending, tmp_path / f"{ending}-store", validation=0, test=0)
        read[ending] = Store(tmp_path / f"{ending}-store").split("train").read(np.arange(1))
    assert np.array_equal(read["png"], read["tif"])


def test_a_quote_that_is_not_closed_swallows_no_rows(tmp_path):
    lines = ["a,b,kind", *(f'{k},{k},"cat' if k in (20, 40) else f"{k},{k},dog" for k in range(60))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(SourceError, match=r"line 42: .*check the quotes"):
        prepare(tmp_path / "t.csv", tmp_path / "s", SourceOptions(label="kind"))


@pytest.mark.parametrize(
    ("cell", "way_out"), [("12_05", "turn other text into numbers"), ("0,5", "decimal points"), ("1.200,5", "decimal")]
)
def test_numbers_in_other_writings_are_not_guessed(tmp_path, cell, way_out):
    (tmp_path / "t.csv").write_text("a,b\n" + f'1,"{cell}"\n' * 20)
    with pytest.raises(SourceError, match=way_out):
        prepare(tmp_path / "t.csv", tmp_path / "s")


def test_names_that_are_numbers_are_not_taken_for_an_example(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 3))
    np.savetxt(tmp_path / "years.csv", rows, delimiter=",", header="2019,2020,2021", comments="")
    with pytest.raises(SourceError, match="names of the columns"):
        prepare(tmp_path / "years.csv", tmp_path / "s")
    rows = np.sort(rows, 1)  # every row increases, and the first is one of them
    np.savetxt(tmp_path / "increasing.csv", rows, delimiter=",")
    prepare(tmp_path / "increasing.csv", tmp_path / "t")
    np.savetxt(tmp_path / "few.csv", [[2019, 2020, 2021], *rows[:5]], delimiter=",")
    prepare(tmp_path / "few.csv", tmp_path / "u", validation=0, test=0)


def test_classes_that_are_one_number_have_one_order(tmp_path):
    for number, names in enumerate((["1", "01", "001"], ["001", "1", "01"])):
        (tmp_path / f"{number}.csv").write_text("a,kind\n" + "".join(f"{k},{names[k % 3]}\n" for k in range(30)))
        opened = open_source(str(tmp_path / f"{number}.csv"), SourceOptions(label="kind"))
        assert opened.classes == ("001", "01", "1")


def test_an_encrypted_archive_is_refused_in_a_line(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((20, 3)))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag 'encrypted', in both headers of the member
        content[content.index(mark) + place] |= 1
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(SourceError, match="encrypted"):
        prepare(tmp_path / "x.npz", tmp_path / "s")


def test_two_fits_of_one_folder_do_not_mix(tmp_path, capsys):
    generator = np.random.default_rng(0)
    for name in "ab":
        np.savetxt(tmp_path / f"{name}.csv", generator.normal(size=(40, 3)), delimiter=",")
    out = tmp_path / "out"
    out.mkdir()
    with StoreWriter(out / "store", (3,), "float32", source="of another process", has_labels=False) as other:
        other.append("train", np.zeros((20, 3), dtype=np.float32))
        other.append("validation", np.zeros((20, 3), dtype=np.float32))
        (out / "fit.json").write_text(
            json.dumps({"data": str(tmp_path / "a.csv"), "minutes": 0.05, "size": None, "label": None, "seed": 0})
        )
        assert main(["fit", str(tmp_path / "b.csv"), "--out", str(out), "--minutes", "0.05"]) == 1
        assert "another process is preparing" in capsys.readouterr().err
        assert (out / "fit.json").exists()


def test_shards_grow_so_that_a_large_store_has_few_files(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "_SHARD_BYTES", 3)
    monkeypatch.setattr(writer_module, "_SHARDS_OF_A_SIZE", 4)
    rows = np.random.default_rng(0).integers(0, 256, (100, 3), dtype=np.uint8)
    with StoreWriter(tmp_path / "s", (3,), "uint8", classes=("a",), source="test", has_labels=True) as out:
        for part in np.array_split(rows, 7):
            out.append("train", part, np.zeros(len(part), dtype=np.int32))
    store = Store(tmp_path / "s")
    store.verify()
    sizes = [shard.rows for shard in store.manifest.splits["train"].rows]
    assert sizes == [1] * 4 + [2] * 4 + [4] * 4 + [8] * 4 + [16] * 2 + [8]
    assert np.array_equal(store.split("train").read(np.arange(100)), rows)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists open files in /proc")
def test_files_are_closed_if_a_shard_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "_SHARD_BYTES", 30)
    with StoreWriter(tmp_path / "s", (3,), "uint8", source="test", has_labels=False) as out:
        out.append("train", np.zeros((50, 3), dtype=np.uint8))
    (tmp_path / "s" / "train-000004.rows").unlink()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(StoreError):
            Store(tmp_path / "s").split("train")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_a_huge_manifest_of_a_stranger_is_not_read(tmp_path):
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(2**40)
    assert not is_store(tmp_path)


def test_postscript_is_not_run_whatever_its_name(tmp_path, monkeypatch):
    """Pillow gives PostScript to a program of the machine, which runs it."""
    tools, photos = tmp_path / "tools", tmp_path / "photos"
    tools.mkdir()
    (tools / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path / 'was-run'}\n")
    (tools / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    for k in range(10):
        picture(photos / f"{k}.png", k)
    (photos / "program.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    )
    made = prepare(photos, tmp_path / "store")
    assert made.skipped == ("program.jpg: not an image",)
    assert not (tmp_path / "was-run").exists()


def test_a_damaged_picture_of_which_pillow_raises_an_unusual_error_is_skipped(tmp_path):
    for k in range(10):
        Image.new("RGB", (8, 8), (k, 20, 30)).save(tmp_path / f"{k}.tif")
    content = bytearray((tmp_path / "7.tif").read_bytes())
    entry = content.index(struct.pack("<HH", 273, 4))  # where the pixels are, as a whole number
    content[entry : entry + 4] = struct.pack("<HH", 273, 5)  # as a fraction
    (tmp_path / "7.tif").write_bytes(content)
    made = prepare(tmp_path, tmp_path / "store")
    assert len(made.skipped) == 1
    assert made.skipped[0].startswith("7.tif: ")


def test_links_that_lead_nowhere_are_told(tmp_path):
    for k in range(10):
        picture(tmp_path / "photos" / f"{k}.png", k)
    for k in range(3):
        (tmp_path / "photos" / f"far {k}.png").symlink_to(tmp_path / "annex" / f"{k}.png")
    source = open_source(tmp_path / "photos", SourceOptions())
    assert source.pools[0].num_rows == 10
    assert source.notes == ["3 images left out, links that lead nowhere; to have them, fetch the files"]
    (tmp_path / "all far").mkdir()
    (tmp_path / "all far" / "1.png").symlink_to(tmp_path / "annex" / "1.png")
    with pytest.raises(SourceError, match="are links that lead nowhere; fetch the files first"):
        open_source(tmp_path / "all far", SourceOptions())


def test_numbers_of_a_source_of_ones_own_are_finite(tmp_path):
    rows = np.ones((30, 3), dtype=np.float32)
    for bad, remedy in ((np.nan, "fill"), (np.inf, "replace")):
        rows[7, 1] = bad
        with pytest.raises(SourceError, match=f"has numbers that are not finite; .*{remedy}"):
            prepare(source_of(rows), tmp_path / "store")
        assert not (tmp_path / "store").exists()


def test_a_check_of_a_store_finds_numbers_that_are_not_finite(tmp_path):
    with StoreWriter(tmp_path / "store", (2,), "float32", source="a stranger's", has_labels=False) as writer:
        writer.append("train", np.array([[1, 2], [3, np.nan]], dtype=np.float32), None, [0, 1])
    with pytest.raises(StoreError, match="the split train holds numbers that are not finite"):
        check(Store(tmp_path / "store"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.npy", b"\x93NUMPY\x01\x00\x1a\x00{'descr': '<f4', ((((((((\n"),
        ("x.npz", None),
    ],
)
def test_a_damaged_array_is_named(tmp_path, name, content):
    if content is None:
        np.savez(tmp_path / name, x=np.zeros((20, 3)))
        damaged = bytearray((tmp_path / name).read_bytes())
        entry = damaged.index(b"PK\x01\x02")
        damaged[entry + 6] = 255  # the version that it takes to read the array
        content = bytes(damaged)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=f"cannot read .*{name}"):
        open_source(tmp_path / name, SourceOptions())
