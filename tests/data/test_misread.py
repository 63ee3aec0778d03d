"""What could be misread in silence: names of folders, labels, splits that are there already."""

import json

import numpy as np
import pytest
from PIL import Image

from bype.cli import main
from bype.data.check import check
from bype.data.prepare import prepare
from bype.data.sources import SourceError, SourceOptions, open_source
from bype.data.sources.classes import in_order
from bype.data.store import Store


def pictures(folder, *places, count=12):
    for number, place in enumerate(places):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for k in range(count):
            Image.new("L", (4, 4), 20 * number + k).save(folder / place / f"{k}.png")
    return folder


def found_in(folder):
    """Return the classes, and how many images each split has."""
    source = open_source(folder, SourceOptions())
    return source.classes, {pool.split or "train": pool.num_rows for pool in source.pools}


SPLITS = {
    "Kaggle": (("training_set/cat", "training_set/dog", "test_set/cat", "test_set/dog"), {"train": 24, "test": 24}),
    "COCO": (("train2017", "val2017"), {"train": 12, "validation": 12}),
    "a folder around": (("archive/train/cat", "archive/train/dog", "archive/test/cat"), {"train": 24, "test": 12}),
    "two around": (("a/b/cat", "a/b/dog"), {"train": 24}),
    "classes with such words": (("train/a", "crash test", "bus"), None),
    "classes called like a split": (("test", "control"), {"train": 24}),
    "two kinds of trains": (("train_steam", "train_electric"), {"train": 24}),
    "one class": (("animals",), {"train": 12}),
}
CLASSES = {
    "Kaggle": ("cat", "dog"),
    "COCO": (),
    "a folder around": ("cat", "dog"),
    "two around": ("cat", "dog"),
    "classes called like a split": ("control", "test"),
    "two kinds of trains": ("train_electric", "train_steam"),
    "one class": ("animals",),
}


@pytest.mark.parametrize("name", SPLITS)
def test_folders_are_splits_or_classes_by_their_names(tmp_path, name):
    places, counts = SPLITS[name]
    pictures(tmp_path / "given", *places)
    if counts is None:
        with pytest.raises(SourceError, match=r"has folders for train, but .* is in none of them"):
            open_source(tmp_path / "given", SourceOptions())
        return
    assert found_in(tmp_path / "given") == (CLASSES[name], counts)


def test_origins_name_the_folders_around(tmp_path):
    prepare(pictures(tmp_path / "zip", "archive/cat", "archive/dog"), tmp_path / "store")
    origins = Store(tmp_path / "store").split("train").origins(np.arange(3))
    assert all(origin.startswith("archive/") for origin in origins)


def test_pictures_that_are_not_read_and_pages_are_told(tmp_path):
    folder = pictures(tmp_path / "given", "cat", "dog")
    (folder / "dog" / "one.tga").write_bytes(b"")
    (folder / "dog" / "readme.txt").write_bytes(b"")
    pages = [Image.new("L", (4, 4), k) for k in range(3)]
    pages[0].save(folder / "cat" / "stack.tif", save_all=True, append_images=pages[1:])
    cut = (folder / "cat" / "stack.tif").read_bytes()  # a second page that cannot be read does not matter
    (folder / "cat" / "stack.tif").write_bytes(cut[: -len(cut) // 3])
    source = open_source(folder, SourceOptions())
    assert source.skipped == []
    notes = source.notes
    assert any("left out (.tga 1)" in note for note in notes)
    assert any("several pages (1 of them, such as cat/stack.tif)" in note for note in notes)
    assert len(notes) == 2


def test_labels_in_a_metadata_file_are_not_dropped_in_silence(tmp_path):
    folder = pictures(tmp_path / "given", "train", "test")
    (folder / "train" / "metadata.csv").write_text("file_name,label\n0.png,cat\n")
    (note,) = open_source(folder, SourceOptions()).notes
    assert note.startswith("labels in metadata files are not read")
    classed = pictures(tmp_path / "classed", "cat", "dog")
    (classed / "metadata.csv").write_text("file_name,label\n")
    assert open_source(classed, SourceOptions()).notes == []  # folders are its classes


def table(path, labels):
    lines = ["a,y", *(f"{k},{label}" for k, label in enumerate(labels))]
    path.write_text("\n".join(lines))
    return open_source(path, SourceOptions(label="y"))


def test_labels_that_may_be_mistakes_are_told(tmp_path):
    source = table(tmp_path / "t.csv", ["cat", " cat ", "Cat", "dog", "NA", ' "dog"', "1", "1.0"] * 3)
    assert source.classes == ("1", "1.0", "Cat", "NA", "cat", "dog")
    missing, alike = source.notes
    assert "holds 'NA', which is taken as a class" in missing
    assert "'1', '1.0'; 'Cat', 'cat'" in alike
    assert table(tmp_path / "t.csv", ["cat", "dog"] * 12).notes == []


def test_whole_numbers_are_in_order_in_every_kind_of_file(tmp_path):
    assert in_order(["10", "-1", "2", "1"]) == ["-1", "1", "2", "10"]
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"a": np.arange(12.0), "label": ["1", "2", "10"] * 4}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    assert open_source(tmp_path / "t.parquet", SourceOptions()).classes == ("1", "2", "10")


@pytest.mark.parametrize("split", ["test", "validation"])
def test_a_split_that_is_there_gets_no_more_examples(tmp_path, split):
    x = np.zeros((30, 4))
    np.savez(tmp_path / "t.npz", x_train=x, x_test=x, x_val=x)
    with pytest.raises(SourceError, match=f"has a {split} split of its own; leave out --{split}"):
        prepare(tmp_path / "t.npz", tmp_path / "store", **{split: 0.2})
    prepare(tmp_path / "t.npz", tmp_path / "store", **{split: 0})


def written(path, columns, metadata=None):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    made = arrow.table(columns)
    parquet.write_table(made.replace_schema_metadata(metadata) if metadata else made, path)


def test_a_column_in_the_names_of_folders_is_not_lost(tmp_path):
    for label in ("cat", "dog"):
        written(tmp_path / "d" / f"label={label}" / "part-0.parquet", {"a": np.arange(9.0)})
    with pytest.raises(SourceError, match=r"column 'label' is in the names of folders \(label=cat\)"):
        open_source(tmp_path / "d", SourceOptions())


def test_two_data_sets_with_train_files_only_are_not_one(tmp_path):
    for name in ("plain", "augmented"):
        written(tmp_path / "d" / name / "train-00000.parquet", {"a": np.arange(9.0)})
    with pytest.raises(SourceError, match=r"several folders \(augmented, plain\)"):
        open_source(tmp_path / "d", SourceOptions())
    assert open_source(tmp_path / "d" / "plain", SourceOptions()).pools[0].num_rows == 9


def test_parquet_files_have_either_ending(tmp_path):
    for name in ("a.parquet", "b.pq", "C.PARQUET"):
        written(tmp_path / "d" / name, {"a": np.arange(9.0)})
    assert open_source(tmp_path / "d", SourceOptions()).pools[0].num_rows == 27


def test_unknown_labels_of_a_data_set_of_the_hub(tmp_path):
    """Hidden labels of a test split are -1: a model needs none, and training is told the row."""
    features = {"info": {"features": {"label": {"names": ["cat", "dog"]}}}}
    path = tmp_path / "t.parquet"
    columns = {"a": np.arange(9.0), "label": [0, 1, -1] * 3}
    written(path, columns, {b"huggingface": json.dumps(features).encode()})
    with pytest.raises(SourceError, match=r"t\.parquet: column 'label', row 2, holds -1, .* leave such rows out"):
        prepare(path, tmp_path / "store")
    source = open_source(path, SourceOptions(shape=(1,)))
    assert not source.has_labels
    assert source.unused == ("label",)
    written(path, {**columns, "label": [0, 1, None] * 3}, {b"huggingface": json.dumps(features).encode()})
    assert not open_source(path, SourceOptions(shape=(1,))).has_labels
    written(path, {**columns, "label": [0, 1, 1] * 3}, {b"huggingface": json.dumps(features).encode()})
    assert open_source(path, SourceOptions(shape=(1,))).classes == ("cat", "dog")


def test_empty_labels_in_parquet_are_refused(tmp_path):
    written(tmp_path / "t.parquet", {"a": np.arange(9.0), "label": ["x", "y", " "] * 3})
    with pytest.raises(SourceError, match="no label in row 2"):
        open_source(tmp_path / "t.parquet", SourceOptions())


def test_a_column_that_counts_bytes_is_no_picture(tmp_path):
    written(tmp_path / "t.parquet", {"a": np.arange(9.0), "flow": [{"bytes": 5, "packets": 1}] * 9})
    with pytest.raises(SourceError, match="column 'flow' holds struct<bytes: int64, packets: int64>, neither"):
        open_source(tmp_path / "t.parquet", SourceOptions())


def test_columns_beside_pictures_are_named(tmp_path, capsys):
    pictures(tmp_path / "given", ".")
    content = [{"bytes": path.read_bytes()} for path in sorted((tmp_path / "given").iterdir())]
    written(tmp_path / "t.parquet", {"image": content, "width": [4] * 12, "label": [0, 1] * 6})
    command = ["data", "prepare", str(tmp_path / "t.parquet"), "--out", str(tmp_path / "store"), "--json"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["unused"] == ["width"]
    assert "not used: width" in shown.err


def test_a_check_reads_as_many_rows_at_once_as_fit_in_memory(tmp_path, monkeypatch):
    np.save(tmp_path / "t.npy", np.random.default_rng(0).integers(0, 256, (40, 16, 16), dtype=np.uint8))
    prepare(tmp_path / "t.npy", tmp_path / "store")
    whole, read, sizes = check(Store(tmp_path / "store")), type(Store(tmp_path / "store").split("train")).read, []
    monkeypatch.setattr("bype.data.check.CHUNK_BYTES", 5 * 8 * 256)
    kind = type(Store(tmp_path / "store").split("train"))
    monkeypatch.setattr(kind, "read", lambda self, rows: sizes.append(len(rows)) or read(self, rows))
    assert check(Store(tmp_path / "store")) == whole
    assert max(sizes) == 5
