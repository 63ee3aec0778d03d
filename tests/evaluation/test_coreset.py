"""The pseudocoreset of a run as arrays, a data frame and images."""

import numpy as np
import pytest

import bype


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
