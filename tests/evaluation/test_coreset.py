"""The pseudocoreset of a run as arrays, a data frame and images."""

import numpy as np
import pytest
from PIL import Image

import bype
from bype.cli import main
from bype.data.origins import name_examples
from bype.data.store import Store
from bype.evaluation.pseudopoints import Coreset
from bype.report.contents import gather


def test_a_run_gives_its_coreset(trained_bype):
    run = bype.TrainedRun.open(trained_bype)
    found = bype.coreset(run)
    own = run.model.prior.pseudocoreset
    assert np.array_equal(found.points, own.points.numpy()[found.component])
    assert found.weights.sum() == pytest.approx(own.total)
    labels = run.store().split("train").labels(found.neighbours.reshape(-1)).reshape(found.neighbours.shape)
    counts = np.stack([(labels == k).sum(1) for k in range(3)], 1)
    assert found.labels.tolist() == [run.data.classes[k] for k in counts.argmax(1)]
    assert found.nearest_indices.tolist() == found.neighbours[:, 0].tolist()
    images = found.to_images()
    assert len(images) == len(found) == 20
    difference = np.asarray(images[3]) - 256 * found.points[3, 0] + 0.5
    assert np.abs(difference).max() <= 1  # rounded to a byte


def test_points_of_a_table_become_a_data_frame(trained_features):
    pandas = pytest.importorskip("pandas")
    found = bype.coreset(bype.TrainedRun.open(trained_features))
    frame = found.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["length", "width", "<b>depth</b>", "mass", "weight", "label"]
    assert np.array_equal(frame[["length", "mass"]].to_numpy(), found.points[:, [0, 3]])
    assert np.array_equal(frame["label"], found.labels)
    with pytest.raises(ValueError, match="rows of a table"):
        found.to_images()


def test_a_column_that_is_called_weight_is_not_overwritten():
    pytest.importorskip("pandas")
    one = np.ones(1)
    coreset = bype.Coreset(np.ones((1, 2)), one, one.astype(int), np.zeros((1, 1), int), names=("weight", "age"))
    assert coreset.labels is None
    with pytest.raises(ValueError, match="called 'weight' too"):
        coreset.to_frame()


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_floats_are_shown_with_their_neighbours(tmp_path, channels):
    images = np.random.default_rng(0).uniform(size=(60, channels, 8, 8)).astype(np.float32)
    bype.ByPEVAE(n_pseudopoints=5, max_epochs=1, n_draws=5, run_dir=tmp_path / "run").fit(images)
    assert main(["coreset", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    assert main(["data", "check", str(tmp_path / "run" / "store"), "--sheet", str(tmp_path / "sheet.png")]) == 0
    with np.load(tmp_path / "out" / "coreset.npz") as archive:
        nearest = archive["neighbours"][0, 0]
    train = Store(tmp_path / "run" / "store").split("train")

    def tile(path, left, row):
        """An image in a picture, and what it must be: 256 levels of equal width."""
        shown = np.asarray(Image.open(path))[:8, left : left + 8].reshape(8, 8, channels)
        return shown, np.floor(256 * train.read(np.array([row]))[0]).transpose(1, 2, 0)

    assert np.array_equal(*tile(tmp_path / "out" / "nearest.png", 10, nearest))  # beside the first point and a gap of 2
    assert np.array_equal(*tile(tmp_path / "sheet.png", 10, 1))
    contents = gather(tmp_path / "run", "run")
    unusual = contents.unusual[0]
    split = Store(tmp_path / "run" / "store").split("validation")
    names = name_examples(np.arange(len(split)), split.origins(np.arange(len(split))))
    expected = np.floor(256 * split.read(np.array([names.index(unusual.name)]))[0]).transpose(1, 2, 0)
    assert np.array_equal(np.asarray(unusual.picture).reshape(8, 8, channels), expected)


def test_an_export_that_fails_leaves_nothing(trained_bype, tmp_path, monkeypatch):
    words = ["coreset", str(trained_bype), "--out", str(tmp_path / "out")]
    with monkeypatch.context() as broken:
        broken.setattr(bype.Coreset, "with_neighbours", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(words)
    assert list(tmp_path.iterdir()) == []
    assert main(words) == 0
    assert main(words) == 1  # nothing is overwritten


@pytest.mark.parametrize("width", [1, 3, 5])
def test_narrow_images_are_not_taken_for_channels(width):
    pixels = np.random.default_rng(0).uniform(size=(2, 1, 12, width)).astype(np.float32)
    known = (np.array([6.0, 4.0]), np.arange(2), np.zeros((2, 1), dtype=int))
    first, last = Coreset(pixels, *known), Coreset(np.moveaxis(pixels, 1, 3), *known, has_channels_last=True)
    for images in (first.to_images(), last.to_images()):
        assert [(image.size, image.mode) for image in images] == [((width, 12), "L")] * 2
        np.testing.assert_allclose(np.asarray(images[1]) / 255, pixels[1, 0], atol=0.01)
