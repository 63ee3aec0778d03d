"""Every kind of source, as users have them."""

import gzip
import importlib.util
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy_format
from PIL import Image, ImageOps

from bype.data.prepare import prepare
from bype.data.sources import SourceError, SourceOptions, arrays, open_source, table
from bype.data.sources.image_files import pixels_of
from bype.data.store import Store

RNG = np.random.default_rng(0)


def contents(folder):
    """All examples and labels of a store, by split."""
    store = Store(folder)
    store.verify()
    result = {}
    for name in store.manifest.splits:
        split = store.split(name)
        rows = np.arange(len(split))
        result[name] = split.read(rows), split.labels(rows) if split.has_labels else None
    return store.manifest, result


def write_idx(folder, num_train, num_test, compressed=False):
    folder.mkdir()
    opener = gzip.open if compressed else open
    arrays = {}
    for prefix, count in (("train", num_train), ("t10k", num_test)):
        images = RNG.integers(0, 256, (count, 6, 5), dtype=np.uint8)
        labels = RNG.integers(0, 10, count, dtype=np.uint8)
        arrays[prefix] = images, labels
        suffix = ".gz" if compressed else ""
        with opener(folder / f"{prefix}-images-idx3-ubyte{suffix}", "wb") as file:
            file.write(bytes([0, 0, 8, 3]) + struct.pack(">3I", count, 6, 5) + images.tobytes())
        with opener(folder / f"{prefix}-labels-idx1-ubyte{suffix}", "wb") as file:
            file.write(bytes([0, 0, 8, 1]) + struct.pack(">I", count) + labels.tobytes())
    return arrays


@pytest.mark.parametrize("compressed", [False, True])
def test_idx_files(tmp_path, compressed):
    arrays = write_idx(tmp_path / "mnist", 300, 40, compressed)
    prepare(tmp_path / "mnist", tmp_path / "store", validation=50)
    manifest, splits = contents(tmp_path / "store")
    images, labels = arrays["train"]
    assert manifest.shape == (1, 6, 5)
    assert np.array_equal(splits["train"][0][:, 0], images[:250])  # the last ones are for validation
    assert np.array_equal(splits["validation"][0][:, 0], images[250:])
    assert np.array_equal(splits["validation"][1], labels[250:])
    assert np.array_equal(splits["test"][0][:, 0], arrays["t10k"][0])


def test_idx_files_of_letters_have_more_classes(tmp_path):
    write_idx(tmp_path / "letters", 30, 5)
    path = tmp_path / "letters" / "train-labels-idx1-ubyte"
    content = bytearray(path.read_bytes())
    content[8:34] = bytes(range(1, 27))
    path.write_bytes(content)
    prepare(tmp_path / "letters", tmp_path / "store")
    manifest, splits = contents(tmp_path / "store")
    assert manifest.classes == tuple(str(k) for k in range(27))
    assert splits["train"][1].max() < 27


def test_cut_idx_files_are_refused_and_leave_nothing(tmp_path):
    write_idx(tmp_path / "mnist", 300, 40)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(SourceError, match="cut off"):
        prepare(tmp_path / "mnist", tmp_path / "store")
    path.write_bytes(b"nonsense")
    with pytest.raises(SourceError, match="not an IDX file"):
        prepare(tmp_path / "mnist", tmp_path / "store")
    assert [p.name for p in tmp_path.iterdir()] == ["mnist"]


def test_cifar_batches(tmp_path):
    folder = tmp_path / "cifar"
    folder.mkdir()
    rows = RNG.integers(0, 256, (120, 3073), dtype=np.uint8)
    rows[:, 0] %= 10
    for k in range(5):
        (folder / f"data_batch_{k + 1}.bin").write_bytes(rows[20 * k : 20 * k + 20].tobytes())
    (folder / "test_batch.bin").write_bytes(rows[100:].tobytes())
    prepare(folder, tmp_path / "store", validation=25)
    manifest, splits = contents(tmp_path / "store")
    assert manifest.shape == (3, 32, 32)
    assert manifest.classes[3] == "cat"
    assert {name: len(content[0]) for name, content in splits.items()} == {"train": 75, "validation": 25, "test": 20}
    together = np.concatenate([splits["train"][0], splits["validation"][0]]).reshape(100, -1)
    assert sorted(map(bytes, together)) == sorted(map(bytes, rows[:100, 1:]))
    # Drawn at random, not the last ones.
    assert sorted(map(bytes, splits["validation"][0].reshape(25, -1))) != sorted(map(bytes, rows[75:100, 1:]))
    assert np.array_equal(splits["test"][1], rows[100:, 0])
    # A copy is no batch: its images would be in two splits.
    (folder / "data_batch_1 (1).bin").write_bytes(rows[:20].tobytes())
    prepare(folder, tmp_path / "again", validation=25)
    assert {name: len(content[0]) for name, content in contents(tmp_path / "again")[1].items()}["train"] == 75
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(SourceError, match=r"data_batch_3.bin is missing; download CIFAR-10 again"):
        prepare(folder, tmp_path / "fewer")


@pytest.mark.parametrize("channels_last", [False, True])
def test_arrays_of_images(tmp_path, channels_last):
    images = RNG.integers(0, 256, (50, 3, 6, 7), dtype=np.uint8)
    labels = RNG.integers(0, 4, 50)
    stored = images.transpose(0, 2, 3, 1) if channels_last else images
    np.savez_compressed(tmp_path / "a.npz", x=np.ascontiguousarray(stored), y=labels)
    prepare(tmp_path / "a.npz", tmp_path / "store")
    manifest, splits = contents(tmp_path / "store")
    assert manifest.shape == (3, 6, 7)
    assert {name: len(content[0]) for name, content in splits.items()} == {"train": 40, "validation": 5, "test": 5}
    for rows, found in splits.values():
        for row, label in zip(rows, found, strict=True):
            (where,) = np.flatnonzero((images == row).all((1, 2, 3)))
            assert labels[where] == label


def test_arrays_of_features_and_grey_images(tmp_path):
    np.save(tmp_path / "f.npy", RNG.standard_normal((30, 4)))
    manifest = prepare(tmp_path / "f.npy", tmp_path / "f", test=0, validation=3).manifest
    assert (manifest.shape, manifest.dtype, manifest.splits["train"].num_rows) == ((4,), "float32", 27)
    assert set(manifest.splits) == {"train", "validation"}
    np.save(tmp_path / "g.npy", RNG.integers(0, 256, (30, 8, 8), dtype=np.uint8))
    assert prepare(tmp_path / "g.npy", tmp_path / "g").manifest.shape == (1, 8, 8)


def test_arrays_that_cannot_be_used_are_refused(tmp_path):
    cases = {
        "objects": (np.array([{"a": 1}] * 3, dtype=object), "Python objects"),
        "float images": (np.zeros((5, 8, 8)), "neither images"),
        "alpha": (np.zeros((5, 8, 8, 4), dtype=np.uint8), "alpha channel"),
        "five channels": (np.zeros((4, 16, 16, 5), dtype=np.uint8), "neither 1 nor 3 channels, first or last; keep"),
        "two channels": (np.zeros((4, 2, 16, 16), dtype=np.uint8), "neither 1 nor 3 channels, first or last; keep"),
        "nan": (np.full((20, 3), np.nan), "not finite"),
        "empty": (np.zeros((0, 3)), "has no examples"),
    }
    for name, (array, message) in cases.items():
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
        with pytest.raises(SourceError, match=message):
            prepare(tmp_path / f"{name}.npy", tmp_path / "store")
        assert not (tmp_path / "store").exists()
    whole = (tmp_path / "nan.npy").read_bytes()
    for cut in (0, 5, 60, len(whole) - 1):
        (tmp_path / "cut.npy").write_bytes(whole[:cut])
        with pytest.raises(SourceError):
            prepare(tmp_path / "cut.npy", tmp_path / "store")


def archive_of_zeros(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write an archive of bytes that are all zero; it is a thousandth of their size."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape in shapes.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                npy_format.write_array_header_1_0(file, header)
                for _ in range(int(np.prod(shape)) // 2**20):
                    file.write(bytes(2**20))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (2, 80 * 2**20)}, "one example would take more than 256 MiB"),
        ({"x": (2, 2**20), "y": (2, 80 * 2**20)}, "labels must be whole numbers"),
    ],
    ids=["examples", "labels"],
)
def test_rows_that_no_store_can_have_are_refused_before_they_are_read(tmp_path, shapes, message):
    archive_of_zeros(tmp_path / "x.npz", shapes)
    tracemalloc.start()
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "x.npz", tmp_path / "store")
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.parametrize("cell", [b"1,", b'"1\n",'], ids=["one line", "breaks in quotes"])
def test_a_line_without_an_end_is_not_read_to_its_end(tmp_path, cell, monkeypatch):
    monkeypatch.setattr(table, "_MAX_LINE_CHARACTERS", 2**16)
    with gzip.open(tmp_path / "t.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"a,b\n1,2\n" + cell * 2**22)
    tracemalloc.start()
    with pytest.raises(SourceError, match=r"line \d+: over 65,536 characters in a line; give each example a line"):
        prepare(tmp_path / "t.csv.gz", tmp_path / "store")
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()


def test_tables(tmp_path):
    lines = ["height,kind,width"] + [f"{k}.5,{'dog' if k % 3 else 'cat'},{-k}" for k in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    prepare(tmp_path / "t.csv", tmp_path / "store", SourceOptions(label="kind"))
    manifest, splits = contents(tmp_path / "store")
    assert manifest.names == ("height", "width")
    assert manifest.classes == ("cat", "dog")
    rows = np.concatenate([rows for rows, _ in splits.values()])
    labels = np.concatenate([labels for _, labels in splits.values()])
    for (height, width), label in zip(rows, labels, strict=True):
        assert height == -width + 0.5
        assert label == (1 if -width % 3 else 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,x\n", "line 3: column 'b' holds 'x'.*--label"),
        ("a,b\n1,2\n3\n", "line 3: 1 cells instead of 2"),
        ("a,b\n1,\n", "line 2: column 'b' holds ''"),
        ("a,b\n1,nan\n", "not a number; .*SimpleImputer"),
        ("a,b\n1,-inf\n", "holds '-inf', not a number; replace infinite values by numbers, or by nan and then impute$"),
        ("a,b\n1,1e39\n", "replace infinite values"),
        ('a,b\n1,"1,001"\n', "decimal points, and without thousands separators"),
        ("a,b\n", "no lines"),
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", "holds 'setosa' among numbers.*header line.*--label.*numbers only"),
        ("5.1,NA,1\n4.9,3.0,2\n", "holds 'NA' among numbers or gaps"),
        ("5.1,,1\n4.9,3.0,2\n", "holds '' among numbers or gaps"),
        (",?\n1,2\n", "holds '' among numbers or gaps"),
    ],
)
def test_broken_tables_name_the_line(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(SourceError, match=message):
        prepare(tmp_path / "t.csv", tmp_path / "store", validation=0, test=0)
    with pytest.raises(SourceError, match=r"no column 'q'|is empty|header line"):
        prepare(tmp_path / "t.csv", tmp_path / "store", SourceOptions(label="q"))


def test_text_in_a_table_for_a_model_without_names_of_columns(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,2024-01-05\n")
    with pytest.raises(SourceError, match=r"line 3: column 'b' holds '2024-01-05'.*the model takes numbers"):
        list(open_source(tmp_path / "t.csv", SourceOptions(shape=(2,))).pools[0].read())


def test_of_many_columns_a_message_names_the_first_and_the_nearest(tmp_path):
    (tmp_path / "t.csv").write_text(
        ",".join([*(f"gene_{k}" for k in range(2000)), "kind"]) + "\n" + "1," * 2000 + "a\n"
    )
    expected = "no column 'knd'; it has gene_0, .*, gene_9 and 1,991 others; did you mean 'kind'"
    with pytest.raises(SourceError, match=expected) as error:
        prepare(tmp_path / "t.csv", tmp_path / "store", SourceOptions(label="knd"))
    assert len(str(error.value)) < 300 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("1,2\n3,4\n", ("column 0", "column 1")),
        ('"height\n(cm)",width\n1,2\n3,4\n', ("height\n(cm)", "width")),  # a name of two lines
        ("\na,b\n1,2\n\n3,4\n", ("a", "b")),
    ],
)
def test_the_first_line_is_names_or_an_example(tmp_path, text, names):
    (tmp_path / "t.csv").write_text(text)
    prepare(tmp_path / "t.csv", tmp_path / "store", validation=0, test=0)
    manifest, splits = contents(tmp_path / "store")
    assert manifest.names == names
    assert sorted(splits["train"][0].tolist()) == [[1, 2], [3, 4]]


def test_infinite_numbers_in_arrays_are_no_gaps(tmp_path):
    rows = np.ones((30, 2))
    rows[4] = np.nan, np.inf
    rows[7] = np.nan
    for name, remedy in (("both", "replace infinite values by numbers"), ("gaps", "SimpleImputer")):
        np.save(tmp_path / f"{name}.npy", rows)
        with pytest.raises(SourceError, match=f"not finite; .*{remedy}"):
            prepare(tmp_path / f"{name}.npy", tmp_path / "store")
        rows[4] = 1


def test_an_empty_label_is_no_class(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,kind\n1,2,x\n3,4,\n")
    with pytest.raises(SourceError, match="line 3: 'kind' is empty; fill it in"):
        prepare(tmp_path / "t.csv", tmp_path / "store", SourceOptions(label="kind"))
    assert not (tmp_path / "store").exists()


def test_numbers_that_name_examples_are_no_labels(tmp_path, monkeypatch):
    """However large labels are; what counts is how many there are."""
    rows = np.zeros((4, 3), dtype=np.float32)
    for number, labels in enumerate(([7, -900_000, 2**40, 7], np.array([2**64 - 1, 0, 2, 0], dtype=np.uint64))):
        np.savez(tmp_path / "x.npz", x=rows, y=labels)
        prepare(tmp_path / "x.npz", tmp_path / f"store {number}", validation=0, test=0)
        manifest, splits = contents(tmp_path / f"store {number}")
        assert [int(manifest.classes[label]) for label in splits["train"][1]] == list(map(int, labels))
    monkeypatch.setattr(arrays, "MAX_CLASSES", 2)
    with pytest.raises(SourceError, match="'y' has over 2 values, so it does not hold classes; leave it out"):
        prepare(tmp_path / "x.npz", tmp_path / "store")
    np.savez(tmp_path / "x.npz", x=rows, y=np.array([0.0, 1.0, 1.0, 0.0]))
    with pytest.raises(SourceError, match=r"labels must be whole numbers, .*, not float64 .*; save y.astype\(int\)"):
        prepare(tmp_path / "x.npz", tmp_path / "store")


def test_labels_of_an_archive_may_be_text(tmp_path):
    rows, labels = np.zeros((4, 3), dtype=np.float32), ["zoo", "10", "9", "zoo"]
    for number, given in enumerate((labels, ["10", "9", "-1", "9"])):
        np.savez(tmp_path / "x.npz", x=rows, y=np.array(given))
        prepare(tmp_path / "x.npz", tmp_path / f"store {number}", validation=0, test=0)
        manifest, splits = contents(tmp_path / f"store {number}")
        assert [manifest.classes[label] for label in splits["train"][1]] == given
        assert manifest.classes == [("10", "9", "zoo"), ("-1", "9", "10")][number]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array(["a", "", "b", "a"]), "y has an empty label; fill it in"),
        (np.array(["a", "b", "b", "a"], dtype=object), r"or text; save it as one of these: array.astype\(str\)"),
        (np.array(["a", "b", "b", "a"], dtype="U2000"), "up to 1000 characters"),
        (np.array(["a", "b", "\ud800", "a"]), "labels that are no text"),
        (np.full(4, 2**31 - 1, dtype=np.uint32).view("<U1"), "labels that are no text"),
        (np.eye(4), r"save y.argmax\(1\), if they are one-hot"),
        (np.array([[0], [1], [1], [0]]), r"save y.ravel\(\)"),
    ],
    ids=["empty", "objects", "long", "half a character", "damaged", "one-hot", "a column"],
)
def test_labels_that_name_no_class_are_refused(tmp_path, labels, message):
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 3), dtype=np.float32), y=labels)
    with pytest.raises(SourceError, match=message):
        prepare(tmp_path / "x.npz", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_labels_are_numbers_in_all_splits_or_text_in_all(tmp_path):
    rows = np.zeros((4, 3), dtype=np.float32)
    np.savez(tmp_path / "x.npz", x_train=rows, y_train=[0, 1, 1, 0], x_test=rows, y_test=["0", "1", "1", "0"])
    with pytest.raises(SourceError, match="y_train and y_test hold numbers and text; make them alike"):
        prepare(tmp_path / "x.npz", tmp_path / "store")


def test_a_table_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes("höhe,b\n1,2\n".encode("latin-1"))
    with pytest.raises(SourceError, match=r"t.csv is not UTF-8 text.*; save it as UTF-8"):
        prepare(tmp_path / "t.csv", tmp_path / "store")


def test_a_folder_of_images_of_all_kinds(tmp_path):
    folder = tmp_path / "photos"
    for name in ("b", "a"):
        (folder / name).mkdir(parents=True)
    red = np.zeros((8, 8, 3), dtype=np.uint8)
    red[..., 0] = 255
    Image.fromarray(red).save(folder / "a" / "red.png")
    Image.fromarray(np.full((8, 8), 77, dtype=np.uint8)).save(folder / "a" / "grey.png")
    Image.new("RGBA", (8, 8), (0, 0, 255, 0)).save(folder / "b" / "clear.png")
    Image.fromarray(red).quantize(4).save(folder / "b" / "palette.gif")
    turned = np.zeros((8, 8, 3), dtype=np.uint8)
    turned[0] = 255  # a bright first row; turned by EXIF it becomes the last column
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(turned).save(folder / "b" / "turned.png", exif=exif)
    (folder / "b" / "corrupt.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    (folder / "b" / "notes.txt").write_text("not looked at")
    cut = (folder / "a" / "red.png").read_bytes()
    (folder / "a" / "cut.png").write_bytes(cut[:-30])

    prepared = prepare(folder, tmp_path / "store", validation=0, test=0)
    manifest, splits = contents(tmp_path / "store")
    assert manifest.shape == (3, 8, 8)
    assert manifest.classes == ("a", "b")
    assert len(prepared.skipped) == 2
    assert any("corrupt.jpg: " in line for line in prepared.skipped)
    rows, labels = splits["train"]
    assert labels.tolist() == [0, 0, 1, 1, 1]  # grey, red | clear, palette, turned
    grey, reds, clear, palette, upright = rows
    assert (grey == 77).all()
    assert (reds == red.transpose(2, 0, 1)).all()
    assert (clear == 255).all()  # transparent lies on white
    assert (palette[0] > 240).all()
    assert (palette[1:] < 15).all()
    assert (upright[:, :, -1] == 255).all()
    assert (upright[:, :, :-1] == 0).all()


@pytest.mark.parametrize("suffix", ["png", "tiff", "bmp"])
def test_images_with_a_palette_of_greys_are_grey(tmp_path, suffix):
    ramp = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    tinted = np.stack([ramp, ramp, ramp // 2], axis=2)
    for name, pixels in (("greys", ramp), ("tints", tinted)):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.fromarray(pixels).quantize(64).save(tmp_path / name / f"{number}.{suffix}")
        prepare(tmp_path / name, tmp_path / f"{name} store", validation=0, test=0)
    manifest, splits = contents(tmp_path / "greys store")
    assert manifest.shape == (1, 8, 8)
    assert np.abs(splits["train"][0][0, 0].astype(int) - ramp).max() <= 4  # median cut may join neighbours
    assert contents(tmp_path / "tints store")[0].shape == (3, 8, 8)


def test_a_stray_image_in_colour_is_named(tmp_path):
    (tmp_path / "scans").mkdir()
    for number in range(30):
        Image.new("L", (8, 8), number).save(tmp_path / "scans" / f"{number:02}.png")
    assert not open_source(tmp_path / "scans", SourceOptions()).notes
    Image.new("RGB", (8, 8), "red").save(tmp_path / "scans" / "logo.png")
    opened = open_source(tmp_path / "scans", SourceOptions())
    assert opened.shape == (3, 8, 8)
    (note,) = opened.notes
    assert "(1 of 31, such as logo.png)" in note
    for number in range(10):
        Image.new("RGB", (8, 8), "red").save(tmp_path / "scans" / f"red {number}.png")
    assert not open_source(tmp_path / "scans", SourceOptions()).notes


def test_images_of_more_than_bytes_keep_their_shades(tmp_path):
    """As microscopes and other instruments write them: 16 bits in either order, and floats up to 1."""
    shades = np.linspace(0, 1, 64).reshape(8, 8)
    cases = {
        "floats": shades.astype(np.float32),
        "bytes as floats": (255 * shades).astype(np.float32),
        "16 bits": (65535 * shades).astype(np.uint16),
    }
    for name, pixels in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        Image.fromarray(pixels).save(folder / "a.tif")
        if name == "16 bits":  # the same with the large half of a number first
            header = b"MM\x00\x2a" + struct.pack(">IH", 8, 8)
            tags = (
                (256, 4, 8),
                (257, 4, 8),
                (258, 3, 16),
                (259, 3, 1),
                (262, 3, 1),
                (273, 4, 110),
                (278, 4, 8),
                (279, 4, 128),
            )
            entries = b"".join(
                struct.pack(">HHI", tag, kind, 1)
                + (struct.pack(">HH", value, 0) if kind == 3 else struct.pack(">I", value))
                for tag, kind, value in tags
            )
            (folder / "b.tif").write_bytes(header + entries + bytes(4) + pixels.astype(">u2").tobytes())
            with Image.open(folder / "b.tif") as image:
                assert image.mode == "I;16B"
        prepare(folder, tmp_path / f"{name} store", validation=0, test=0)
        manifest, splits = contents(tmp_path / f"{name} store")
        assert manifest.shape == (1, 8, 8)
        for row in splits["train"][0]:
            assert np.abs(row[0] - 255 * shades).max() <= 1, name


@pytest.mark.parametrize("size", [None, 6])
def test_images_of_12_bits_that_are_saved_with_16_get_a_note(tmp_path, size):
    shades = np.linspace(0, 1, 144).reshape(12, 12)
    shades[3:5, 3:5] = 1  # beside these, resizing makes pixels that are brighter than all
    folder = tmp_path / "cells"
    folder.mkdir()

    def notes(store):
        return prepare(folder, tmp_path / store, SourceOptions(size=size), validation=0, test=0).notes

    Image.fromarray((4095 * shades).astype(np.uint16)).save(folder / "a.tif")
    assert "multiply the pixels by 16" in "".join(notes("of 12 bits"))
    assert len(notes("again")) == 1
    Image.fromarray((65535 * shades).astype(np.uint16)).save(folder / "b.tif")
    assert notes("one of 16 bits") == ()
    (folder / "b.tif").unlink()
    Image.fromarray(np.full((12, 12), 9, dtype=np.uint8)).save(folder / "b.png")
    assert notes("with dark bytes") == ()


def test_one_dark_split_of_16_bits_gets_no_note(tmp_path):
    for split, white in (("train", 65535), ("test", 3000)):
        (tmp_path / "cells" / split).mkdir(parents=True)
        Image.fromarray(np.linspace(0, white, 64).reshape(8, 8).astype(np.uint16)).save(
            tmp_path / "cells" / split / "a.tif"
        )
    assert prepare(tmp_path / "cells", tmp_path / "store", validation=0).notes == ()


def test_reading_the_pixels_of_an_image_does_not_change_it(tmp_path):
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(tmp_path / "a.tif")
    with Image.open(tmp_path / "a.tif") as image:
        assert pixels_of(image, 1).ravel().tolist() == list(range(64))
        assert image.filename == str(tmp_path / "a.tif")


@pytest.mark.parametrize("turn", range(1, 9))
def test_photographs_are_turned_upright_as_pillow_does_it(tmp_path, turn):
    pixels = RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = turn
    (tmp_path / "photos").mkdir()
    Image.fromarray(pixels).save(tmp_path / "photos" / "a.png", exif=exif)
    with Image.open(tmp_path / "photos" / "a.png") as image:
        expected = np.asarray(ImageOps.exif_transpose(image)).transpose(2, 0, 1)
    prepare(tmp_path / "photos", tmp_path / "store", validation=0, test=0)
    np.testing.assert_array_equal(contents(tmp_path / "store")[1]["train"][0][0], expected)


def test_a_photograph_with_a_wrong_tag_is_read(tmp_path):
    """Text where a number belongs; Pillow fails when it writes such a tag again."""
    orientation = struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0)
    resolution_unit = struct.pack(">HHI", 0x0128, 2, 4) + b"cm\x00\x00"
    head = b"Exif\x00\x00MM\x00*" + struct.pack(">IH", 8, 2)
    content = head + orientation + resolution_unit + bytes(4)
    (tmp_path / "photos").mkdir()
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[0] = 255
    Image.fromarray(pixels).save(tmp_path / "photos" / "a.png", exif=content)
    prepared = prepare(tmp_path / "photos", tmp_path / "store", validation=0, test=0)
    assert prepared.skipped == ()
    assert (contents(tmp_path / "store")[1]["train"][0][0][:, :, -1] == 255).all()


def test_folders_called_train_and_test_are_splits(tmp_path):
    shades = {
        "train/cat": [10, 11, 12, 13],
        "train/dog": [20, 21, 22, 23],
        "Test/cat": [30],
        "Test/dog": [40],
        "val/dog": [50],
    }
    for name, values in shades.items():
        folder = tmp_path / "pets" / name
        folder.mkdir(parents=True)
        for value in values:
            Image.new("L", (8, 8), value).save(folder / f"{value}.png")
    prepare(tmp_path / "pets", tmp_path / "store")
    manifest, splits = contents(tmp_path / "store")
    assert manifest.classes == ("cat", "dog")
    found = {
        name: dict(zip(rows[:, 0, 0, 0].tolist(), labels.tolist(), strict=True))
        for name, (rows, labels) in splits.items()
    }
    assert found == {
        "train": {10: 0, 11: 0, 12: 0, 13: 0, 20: 1, 21: 1, 22: 1, 23: 1},
        "validation": {50: 1},
        "test": {30: 0, 40: 1},
    }


def test_folders_called_test_and_other_names_are_classes(tmp_path):
    for name in ("test", "other"):
        (tmp_path / "both" / name).mkdir(parents=True)
        Image.new("L", (8, 8), 9).save(tmp_path / "both" / name / "a.png")
    assert prepare(tmp_path / "both", tmp_path / "store", validation=0, test=0).manifest.classes == ("other", "test")


def test_a_folder_of_splits_without_a_train_split_is_no_folder_of_classes(tmp_path):
    (tmp_path / "pets" / "test" / "cat").mkdir(parents=True)
    Image.new("L", (8, 8), 9).save(tmp_path / "pets" / "test" / "cat" / "a.png")
    with pytest.raises(SourceError, match=r"only test, and no folder called train; .*test itself"):
        open_source(tmp_path / "pets", SourceOptions())
    assert open_source(tmp_path / "pets" / "test", SourceOptions()).classes == ("cat",)


def test_photographs_of_telephones_are_read(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")  # in CI it is installed
    folder = tmp_path / "photos"
    folder.mkdir()
    red = Image.new("RGB", (16, 16), (200, 30, 30))
    pillow_heif.from_pillow(red).save(folder / "IMG_0001.HEIC")
    red.save(folder / "one.png")
    prepared = prepare(folder, tmp_path / "store", validation=0, test=0)
    assert not prepared.skipped
    _, splits = contents(tmp_path / "store")
    telephone, plain = splits["train"][0].astype(int)
    assert abs(telephone - plain).max() <= 6  # the format loses a little


def test_photographs_of_telephones_are_named_where_the_extra_is_missing(tmp_path, monkeypatch):
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("L", (8, 8)).save(folder / "one.png")
    (folder / "IMG_0001.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(12))
    (folder / "other.heic").write_bytes(b"something else, with a wrong name")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pillow_heif" else find(name))
    prepared = prepare(folder, tmp_path / "store", validation=0, test=0)
    assert list(prepared.skipped) == [
        "IMG_0001.HEIC: this needs pillow_heif; install it with: pip install pillow-heif",
        "other.heic: not an image",
    ]


def test_sizes_of_images(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("L", (30, 20), 10).save(folder / "one.png")
    Image.new("L", (20, 30), 20).save(folder / "two.png")
    with pytest.raises(SourceError, match="--size"):
        prepare(folder, tmp_path / "store")
    prepared = prepare(folder, tmp_path / "store", SourceOptions(size=16), validation=0, test=0)
    assert prepared.manifest.shape == (1, 16, 16)
    assert prepared.manifest.classes == ()
    _, splits = contents(tmp_path / "store")
    assert splits["train"][0].reshape(2, -1).mean(1).tolist() == [10, 20]


def test_images_that_would_unpack_to_gigabytes_are_skipped(tmp_path, monkeypatch):
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("L", (20, 20)).save(folder / "small.png")
    Image.new("L", (200, 200)).save(folder / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    prepared = prepare(folder, tmp_path / "store", SourceOptions(size=8), validation=0, test=0)
    assert prepared.manifest.splits["train"].num_rows == 1
    assert "bomb.png" in prepared.skipped[0]


def test_what_is_no_source_is_refused(tmp_path):
    (tmp_path / "a.xyz").write_text("?")
    (tmp_path / "empty").mkdir()
    for name, message in (("a.xyz", "of an unknown kind"), ("nothing", "does not exist"), ("empty", "holds no images")):
        with pytest.raises(SourceError, match=message):
            prepare(tmp_path / name, tmp_path / "store")
    np.save(tmp_path / "f.npy", np.zeros((10, 2)))
    with pytest.raises(SourceError, match="leave no train split"):
        prepare(tmp_path / "f.npy", tmp_path / "store", validation=5, test=5)
    with pytest.raises(SourceError, match="share below 1"):
        prepare(tmp_path / "f.npy", tmp_path / "store", validation=1.5)


def test_what_does_not_apply_is_refused_and_not_ignored(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((30, 8, 8), dtype=np.uint8))
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "images").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "images" / "a.png")
    for name, options, message in (
        ("x.npy", SourceOptions(size=4), "resize arrays yourself"),
        ("x.npy", SourceOptions(label="y"), "an array called y or labels"),
        ("t.csv", SourceOptions(size=4), "--size is for folders of images"),
        ("images", SourceOptions(label="y"), "--label is for tables"),
        ("images", SourceOptions(size=-4), "--size must be at least 1 pixel, not -4"),
    ):
        with pytest.raises(SourceError, match=message):
            prepare(tmp_path / name, tmp_path / "store", options)
    assert not (tmp_path / "store").exists()


def test_the_same_seed_divides_the_same_way(tmp_path):
    np.save(tmp_path / "f.npy", np.arange(200.0).reshape(100, 2))
    prints = [prepare(tmp_path / "f.npy", tmp_path / str(k), seed=k // 2).manifest.fingerprint for k in range(4)]
    assert prints[0] == prints[1] != prints[2] == prints[3]


def test_archives_that_would_unpack_to_gigabytes_stay_within_memory(tmp_path):
    """A few kilobytes that unpack to 300 MB are read as a stream, and only as far as their header says."""
    folder = tmp_path / "idx"
    write_idx(folder, 20_000, 10, compressed=True)
    with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb", compresslevel=9) as file:
        file.write(bytes([0, 0, 8, 3]) + struct.pack(">3I", 20_000, 6, 5))
        for _ in range(300):
            file.write(bytes(2**20))
    header = {"descr": "|u1", "fortran_order": False, "shape": (100, 6, 5)}
    with (
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        npy_format.write_array_header_1_0(file, header)
        for _ in range(300):
            file.write(bytes(2**20))
    tracemalloc.start()
    for bomb in (tmp_path / "bomb.npz", folder):
        with pytest.raises(SourceError, match="longer than its header says"):
            prepare(bomb, tmp_path / "store")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20


def test_an_array_that_is_called_like_a_split_is_not_one_of_its_arrays(tmp_path):
    rows = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    arrays = {"x_train": rows, "y_train": [0, 1, 1, 0], "x_test": rows, "y_test": [0, 1, 1, 0]}
    np.savez(tmp_path / "x.npz", **arrays, test=np.array([{}], dtype=object))
    opened = open_source(str(tmp_path / "x.npz"), SourceOptions())
    assert [pool.split for pool in opened.pools] == [None, "test"]


@pytest.mark.parametrize(("scale", "notes"), [(1, 1), (15, 0)])
def test_images_of_small_numbers_are_noted(scale, notes, tmp_path):
    digits = np.random.default_rng(0).integers(0, 17, (20, 8, 8)).astype(np.uint8)
    np.save(tmp_path / "x.npy", digits * np.uint8(scale))
    made = prepare(tmp_path / "x.npy", tmp_path / "store")
    assert len(made.notes) == notes
    assert all("the largest byte of all images is 16" in note and "multiply them by 15" in note for note in made.notes)
