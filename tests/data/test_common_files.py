"""Files as people have them: an index that pandas wrote, folders of another spelling, 16 bits, damaged archives."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from bype.data.check import check
from bype.data.manifest import StoreError
from bype.data.prepare import prepare
from bype.data.sources import SourceError, image_files
from bype.data.store import Store
from bype.data.writer import StoreWriter

RNG = np.random.default_rng(0)


def picture(path, pixels=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (4, 4), dtype=np.uint8) if pixels is None else pixels
    Image.fromarray(pixels).save(path)
    return path


def folders(root, *names, count=4):
    for name in names:
        for k in range(count):
            picture(root / name / f"{k}.png")
    return root


def test_a_folder_called_testing_is_not_trained_on(tmp_path):
    data = folders(tmp_path / "photos", "Training/a", "Training/b", "Testing/a", "Testing/b")
    manifest = prepare(data, tmp_path / "store", validation=0).manifest
    assert manifest.classes == ("a", "b")
    assert {name: split.num_rows for name, split in manifest.splits.items()} == {"train": 8, "test": 8}


@pytest.mark.parametrize("stray", ["sample.png", "other/x.png"])
def test_splits_with_something_beside_them_are_not_taken_for_classes(tmp_path, stray):
    data = folders(tmp_path / "photos", "train/a", "test/a")
    picture(data / stray)
    with pytest.raises(SourceError, match=f"folders for test and train, but {stray} is in none of them"):
        prepare(data, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_class_may_be_called_train(tmp_path):
    data = folders(tmp_path / "vehicles", "bus", "train", count=10)
    assert prepare(data, tmp_path / "store").manifest.classes == ("bus", "train")


def test_the_store_says_why_it_has_no_labels(tmp_path):
    data = folders(tmp_path / "pets", "cat", "dog", count=10)
    picture(data / "preview.png")
    manifest = prepare(data, tmp_path / "store").manifest
    assert manifest.classes == ()
    assert manifest.source == "images in pets (no labels, since preview.png is in no class folder)"


def test_the_index_of_a_table_is_no_feature(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame(RNG.standard_normal((30, 3)), columns=list("abc"))
    for name, index in (("rows", table.index[::-1]), ("key", pandas.Index(np.arange(30) + 7, name="key"))):
        table.set_axis(index).to_parquet(tmp_path / f"{name}.parquet")
        assert prepare(tmp_path / f"{name}.parquet", tmp_path / name).manifest.names == ("a", "b", "c")
    table.to_csv(tmp_path / "t.csv")
    with pytest.raises(SourceError, match=r"column 1 has no name.*index=False"):
        prepare(tmp_path / "t.csv", tmp_path / "csv")


def test_the_numbers_that_pandas_gives_to_columns_are_names(tmp_path):
    rows = RNG.standard_normal((20, 4)).round(3)
    text = "\n".join(",".join(map(str, row)) for row in rows)
    (tmp_path / "t.csv").write_text("0,1,2,3\n" + text)
    prepare(tmp_path / "t.csv", tmp_path / "store", validation=0, test=0)
    store = Store(tmp_path / "store")
    assert store.manifest.names == ("0", "1", "2", "3")
    assert len(store.split("train")) == 20
    (tmp_path / "two.csv").write_text("0,1\n0,1\n1,0\n")  # two columns of bits are no names
    prepare(tmp_path / "two.csv", tmp_path / "two", validation=0, test=0)
    assert len(Store(tmp_path / "two").split("train")) == 3


def test_two_data_sets_in_one_folder_are_not_mixed(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame(RNG.standard_normal((20, 2)), columns=["a", "b"])
    for place in ("full/train", "full/test", "small/train", "small/test"):
        (tmp_path / "hub" / place).mkdir(parents=True)
        table.to_parquet(tmp_path / "hub" / place / "0000.parquet", index=False)
    with pytest.raises(SourceError, match=r"several folders \(full, small\); give one of these"):
        prepare(tmp_path / "hub", tmp_path / "store")
    manifest = prepare(tmp_path / "hub" / "full", tmp_path / "store", validation=0).manifest
    assert {name: split.num_rows for name, split in manifest.splits.items()} == {"train": 20, "test": 20}


def test_shades_of_16_bits_do_not_depend_on_the_rest_of_the_image(tmp_path):
    for value in (0, 300, 4095, 65535):
        picture(tmp_path / "shades" / f"{value:05}.png", np.full((4, 4), value, dtype=np.uint16))
    prepare(tmp_path / "shades", tmp_path / "store", validation=0, test=0)
    assert Store(tmp_path / "store").split("train").read(np.arange(4))[:, 0, 0, 0].tolist() == [0, 1, 15, 255]


@pytest.mark.parametrize("pixels", [np.full((4, 4), 200, np.uint16), np.full((4, 4), np.nan, np.float32),
                                    np.full((4, 4), -0.5, np.float32), np.full((4, 4), 300, np.float32)])  # fmt: skip
def test_numbers_that_are_no_shades_are_skipped_with_the_reason(tmp_path, pixels):
    picture(tmp_path / "p" / "strange.tif", pixels)
    for k in range(4):
        picture(tmp_path / "p" / f"{k}.png")
    (skipped,) = prepare(tmp_path / "p", tmp_path / "store", validation=0, test=0).skipped
    assert "strange.tif" in skipped
    assert "or save it with 8 bits" in skipped


def test_a_photograph_with_odd_metadata_is_read(tmp_path):
    tags = ((256, 4, 4), (257, 4, 4), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 146), (278, 4, 4), (279, 4, 16))
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    entries += struct.pack("<HHIHH", 296, 3, 2, 2, 3)  # two units of the resolution, where one belongs
    content = b"II*\x00" + struct.pack("<IH", 8, 9) + entries + bytes(4)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.tif").write_bytes(content.ljust(146, b"\0") + bytes(range(16)))
    with pytest.warns(UserWarning, match="Metadata Warning"), Image.open(tmp_path / "p" / "a.tif"):
        pass
    assert not prepare(tmp_path / "p", tmp_path / "store", validation=0, test=0).skipped


def test_a_look_at_an_image_does_not_decode_it(tmp_path, monkeypatch):
    path = picture(tmp_path / "a.png")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    assert image_files._look(path) == ("L", (4, 4), False)


def test_every_damage_to_a_compressed_file_is_noticed(tmp_path):
    images, labels = RNG.integers(0, 256, (40, 6, 5), dtype=np.uint8), RNG.integers(0, 3, 40, dtype=np.uint8)
    folder = tmp_path / "idx"
    folder.mkdir()
    for prefix in ("train", "t10k"):
        head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 40, 6, 5)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes()))
        head = bytes([0, 0, 8, 1]) + struct.pack(">I", 40)
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head + labels.tobytes()))
    prepare(folder, tmp_path / "whole", validation=5)
    path = folder / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for place in RNG.integers(12, len(whole) - 4, 60).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(RNG.integers(0, 8))
        path.write_bytes(damaged)
        with pytest.raises(SourceError):
            prepare(folder, tmp_path / "store", validation=5)
    images = RNG.integers(0, 4, (300, 6, 5), dtype=np.uint8)
    np.savez_compressed(tmp_path / "x.npz", x=images)
    whole = (tmp_path / "x.npz").read_bytes()
    refused = 0
    for place in RNG.integers(0, len(whole), 60).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(RNG.integers(0, 8))
        (tmp_path / "y.npz").write_bytes(damaged)
        try:
            prepare(tmp_path / "y.npz", tmp_path / f"store {place}", validation=0, test=0)
        except SourceError:
            refused += 1
        else:  # the damage is in what nobody needs, such as the time of a file
            split = Store(tmp_path / f"store {place}").split("train")
            assert np.array_equal(split.read(np.arange(len(split)))[:, 0], images)
    assert refused > 40


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_an_array_whose_header_names_too_few_rows_is_refused(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    x = RNG.normal(size=(300, 5))
    np.save(path, x) if ending == "npy" else np.savez(path, x=x)
    path.write_bytes(path.read_bytes().replace(b"(300, 5)", b"(100, 5)"))
    with pytest.raises(SourceError, match=r"longer than its header says|Bad CRC"):
        prepare(path, tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("label", [7, -3])
def test_a_store_with_labels_of_unknown_classes_is_refused(tmp_path, label):
    about = {"classes": ("a", "b"), "names": (), "source": "made", "has_labels": True}
    with StoreWriter(tmp_path / "store", (2,), "float32", **about) as writer:
        writer.append("train", np.zeros((3, 2), np.float32), np.array([0, 1, 1], np.int32))
    (path,) = (tmp_path / "store").glob("*labels*")
    strange = np.array([0, 1, label], "<i4").tobytes()
    manifest = tmp_path / "store" / "manifest.json"
    sums = [hashlib.sha256(content).hexdigest() for content in (path.read_bytes(), strange)]
    manifest.write_text(manifest.read_text().replace(*sums))
    path.write_bytes(strange)
    with pytest.raises(StoreError, match=r"labels of classes that .* does not name; prepare the data again"):
        check(Store(tmp_path / "store"))


def test_a_store_that_could_not_be_opened_again_is_not_written(tmp_path):
    names = tuple(f"{k:05} {'x' * 200}" for k in range(50_000))
    with (
        pytest.raises(StoreError, match=r"names of columns and classes take .* bytes"),
        StoreWriter(
            tmp_path / "store", (50_000,), "float32", classes=(), names=names, source="made", has_labels=False
        ) as writer,
    ):
        writer.append("train", np.zeros((1, 50_000), np.float32), None)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("share", [float("nan"), float("inf")])
def test_a_share_must_be_a_number(tmp_path, share):
    np.save(tmp_path / "x.npy", RNG.standard_normal((20, 3)))
    with pytest.raises(SourceError, match="--validation must be a share"):
        prepare(tmp_path / "x.npy", tmp_path / "store", validation=share)


def test_arrays_in_fortran_order_and_a_large_x_are_read(tmp_path):
    rows = RNG.standard_normal((3000, 5))
    np.save(tmp_path / "frame.npy", np.asfortranarray(rows))
    np.savez(tmp_path / "sets.npz", X=np.asfortranarray(rows), y=RNG.integers(0, 2, 3000))
    for name in ("frame.npy", "sets.npz"):
        prepare(tmp_path / name, tmp_path / f"{name} store", validation=0, test=0)
        found = Store(tmp_path / f"{name} store").split("train").read(np.arange(3000))
        np.testing.assert_array_equal(found, rows.astype(np.float32))


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.array([{"a": 1}], dtype=object), "holds Python objects, not numbers; save it as numbers"),
        (np.zeros((0, 3)), r"shape \(0, 3\), which has no examples"),
    ],
)
def test_an_array_that_cannot_be_read_is_refused_with_its_own_reason(tmp_path, array, reason):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(SourceError, match=reason):
        prepare(tmp_path / "x.npy", tmp_path / "store")


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_picture_whose_metadata_end_too_soon_is_read(tmp_path, kind):
    (tmp_path / "photos").mkdir()
    for number in range(12):
        exif = {"exif": b"Exif\0\0II*\0"} if number == 3 else {}
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(
            tmp_path / "photos" / f"{number}.{kind.lower()}", kind, **exif
        )
    prepared = prepare(tmp_path / "photos", tmp_path / "store")
    assert prepared.skipped == ()
    assert sum(split.num_rows for split in prepared.manifest.splits.values()) == 12


def test_a_damaged_label_of_cifar_is_named(tmp_path):
    (tmp_path / "cifar").mkdir()
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        (tmp_path / "cifar" / name).write_bytes(bytes(20 * 3073))
    damaged = bytearray(20 * 3073)
    damaged[7 * 3073] = 29
    (tmp_path / "cifar" / "data_batch_2.bin").write_bytes(damaged)
    with pytest.raises(SourceError, match=r"data_batch_2.bin: row 7 has a label above 9; download"):
        prepare(tmp_path / "cifar", tmp_path / "store")


def test_the_working_folder_is_no_place_for_a_store(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(60.0).reshape(30, 2))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="exists"):
        prepare("x.npy", Path())
