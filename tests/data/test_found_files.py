"""Nothing of a user's data is lost, or found by mistake, in silence."""

import gzip
import os

import numpy as np
import pytest
from PIL import Image

from bype.cli import main
from bype.data.prepare import prepare
from bype.data.sources import SourceError, SourceOptions, open_source
from bype.data.store import Store


def save(folder, *names, **options):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (8, 8), "red").save(folder / name, **options)


def names_in(folder):
    source = open_source(folder, SourceOptions())
    return [name for pool in source.pools for _, chunk in pool.read() for name in chunk.origins]


def test_links_are_followed_hidden_folders_are_not_and_all_endings_count(tmp_path):
    save(tmp_path / "elsewhere", "1.png", "2.png")
    save(tmp_path / "photos" / "dogs", "3.jpg", "4.JPG", "5.jfif", "6.pnm")
    save(tmp_path / "photos" / ".thumbnails", "7.png")
    save(tmp_path / "photos" / "dogs", ".8.png")
    (tmp_path / "photos" / "cats").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "photos" / "dogs" / "around").symlink_to(tmp_path / "photos")
    assert names_in(tmp_path / "photos") == [
        *("cats/1.png", "cats/2.png"),
        *("dogs/3.jpg", "dogs/4.JPG", "dogs/5.jfif", "dogs/6.pnm"),
    ]
    assert open_source(tmp_path / "photos", SourceOptions()).classes == ("cats", "dogs")


def test_the_working_folder_has_a_name_and_a_picture_has_no_column(tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    save(photos, "a.png", "b.png")
    monkeypatch.chdir(photos)
    assert open_source(".", SourceOptions()).description == "images in photos"
    (photos / "old").mkdir()
    monkeypatch.chdir(photos / "old")
    assert open_source("..", SourceOptions()).description == "images in photos"
    monkeypatch.chdir(photos)
    with pytest.raises(SourceError, match="--label is for tables"):
        open_source("a.png", SourceOptions(label="kind"))


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    save(tmp_path / "photos" / "a", "1.png")
    real = os.scandir

    def scandir(place):
        if str(place).endswith("a"):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="photos/a"):
        open_source(tmp_path / "photos", SourceOptions())


def test_odd_metadata_do_not_hide_an_image(tmp_path, recwarn):
    text = Image.Exif()
    text[0x010F] = "abc"  # the maker of the camera, whose number becomes that of the orientation
    save(tmp_path / "photos", "0.jpg", exif=text.tobytes().replace(b"\x01\x0f\x00\x02", b"\x01\x12\x00\x02"))
    with Image.open(tmp_path / "photos" / "0.jpg") as image:
        assert image.getexif()[0x0112] == "abc"
    for number, value in ((1, 17), (2, 6)):
        exif = Image.Exif()
        exif[0x0112] = value
        save(tmp_path / "photos", f"{number}.jpg", exif=exif)
    assert names_in(tmp_path / "photos") == ["0.jpg", "1.jpg", "2.jpg"]
    assert not [str(warning.message) for warning in recwarn.list]


def test_images_beside_parquet_files_are_not_ignored(tmp_path):
    save(tmp_path / "photos", "1.png")
    (tmp_path / "photos" / "scores.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match="holds images and parquet files"):
        open_source(tmp_path / "photos", SourceOptions())


def test_if_no_image_can_be_decoded_one_of_them_is_named(tmp_path):
    save(tmp_path / "photos", *(f"{k}.png" for k in range(12)))
    for path in (tmp_path / "photos").iterdir():
        path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(SourceError, match=r"none of the 12 examples can be read; the first: 0\.png: "):
        prepare(tmp_path / "photos", tmp_path / "store")
    assert not (tmp_path / "store").exists()


ROWS = np.random.default_rng(0).normal(size=(40, 3))


def test_archives_by_their_usual_names(tmp_path, capsys):
    np.savez(tmp_path / "bunch.npz", data=ROWS, target=np.arange(40) % 2, about=np.zeros(3))
    assert main(["data", "prepare", str(tmp_path / "bunch.npz"), "--out", str(tmp_path / "bunch")]) == 0
    assert "not used: about" in capsys.readouterr().err
    assert Store(tmp_path / "bunch").split("train").has_labels
    parts = {"x_train": ROWS[:30], "x_val": ROWS[30:35], "x_test": ROWS[35:]}
    np.savez(tmp_path / "parts.npz", **parts)
    prepare(tmp_path / "parts.npz", tmp_path / "parts")
    store = Store(tmp_path / "parts")
    for name, array in zip(("train", "validation", "test"), parts.values(), strict=True):
        np.testing.assert_array_equal(store.split(name).read(np.arange(len(array))), array.astype(np.float32))
    np.savez(tmp_path / "half.npz", **parts, y_train=np.zeros(30, dtype=int))
    with pytest.raises(SourceError, match="but no y_test; add it, or leave all labels out"):
        open_source(tmp_path / "half.npz", SourceOptions())


def test_tables_by_their_usual_names(tmp_path):
    text = "a,b\n" + "\n".join(f"{k},{k * k}" for k in range(20))
    (tmp_path / "T.CSV").write_text(text)
    (tmp_path / "t.tsv").write_text(text.replace(",", "\t"))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(text.replace(",", "\t").encode()))
    found = []
    for name in ("T.CSV", "t.tsv", "t.csv.gz", "t.tsv.gz"):
        source = open_source(tmp_path / name, SourceOptions())
        assert source.names == ("a", "b")
        ((_, chunk),) = source.pools[0].read()
        found.append(chunk.rows)
    for rows in found:
        np.testing.assert_array_equal(rows, found[0])
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(text.encode())[:-12])
    (tmp_path / "tabs.csv").write_text(text.replace(",", "\t"))
    for name, message in (("cut.csv.gz", "cut.csv.gz"), ("tabs.csv", "separated by tabs; call it .tsv")):
        with pytest.raises(SourceError, match=message):
            open_source(tmp_path / name, SourceOptions())


def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("a,kind\n" + "\n".join(f"{k},{k % 12}" for k in range(36)))
    assert open_source(tmp_path / "t.csv", SourceOptions(label="kind")).classes == tuple(map(str, range(12)))


def test_a_fit_without_validation_is_refused(tmp_path, capsys):
    save(tmp_path / "photos", *(f"{k}.png" for k in range(10)))
    prepare(tmp_path / "photos", tmp_path / "store", validation=0, test=0)
    assert main(["fit", str(tmp_path / "store"), "--out", str(tmp_path / "run"), "--minutes", "0.1"]) == 1
    message = capsys.readouterr().err
    assert "store has no split to validate on" in message
    assert "take bype train, or bype.ByPEVAE().fit(" in message
