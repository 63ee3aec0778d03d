"""Black and white images: what is drawn once, and what in each step."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bype.cli import main
from bype.data.examples import as_model_input
from bype.data.prepare import prepare
from bype.data.sources import SourceError
from bype.data.store import Store
from bype.evaluation.scores import Scorer
from bype.run.config import ConfigError, TrainingConfig
from bype.run.opened import TrainedRun
from bype.training.loop import train
from bype.training.step import TrainingStep
from small_runs import feature_store, image_store, small_config

BITS = {"likelihood": "bernoulli", "binarise": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store of grey images, and beside it the same images with black and white ones for validation and test."""
    folder = tmp_path_factory.mktemp("images")
    image_store(folder, count=900)
    words = ["--validation", "60", "--test", "75", "--binarise"]
    assert main(["data", "prepare", str(folder / "data.npz"), "--out", str(folder / "bits"), *words]) == 0
    return folder


def rows_of(folder, split):
    found = Store(folder).split(split)
    return found.read(np.arange(len(found)))


def test_only_validation_and_test_are_drawn(folder):
    assert np.array_equal(rows_of(folder / "store", "train"), rows_of(folder / "bits", "train"))
    for split in ("validation", "test"):
        grey, bits = rows_of(folder / "store", split), rows_of(folder / "bits", split)
        assert np.array_equal(np.unique(bits), [0, 255])
        share = grey / 255.0
        error = np.sqrt((share * (1 - share)).sum()) / share.size
        assert abs((bits / 255.0).mean() - share.mean()) < 4 * error
        assert ((bits == 255) == (grey > 127)).mean() > 0.8  # they are still the same images
    assert "black and white" in json.loads((folder / "bits" / "manifest.json").read_text())["source"]


def test_the_draws_of_an_image_do_not_depend_on_the_images_read_with_it(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("bype.data.sources.arrays.CHUNK_BYTES", 12 * 12 * 7)
    prepare(folder / "data.npz", tmp_path / "bits", validation=60, test=75, binarise=True)
    assert Store(tmp_path / "bits").manifest.splits == Store(folder / "bits").manifest.splits


def test_a_table_is_refused(tmp_path):
    feature_store(tmp_path)
    with pytest.raises(SourceError, match="only images can be drawn black and white"):
        prepare(tmp_path / "table.csv", tmp_path / "bits", binarise=True)
    assert not (tmp_path / "bits").exists()


def test_training_draws_its_images_anew_in_each_step(folder, monkeypatch, tmp_path):
    seen, take_step = [], TrainingStep.__call__

    def watched(self, x, indices, *arguments, **options):
        seen.append((indices.clone(), x.clone()))
        return take_step(self, x, indices, *arguments, **options)

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    train(small_config(**BITS, prior="gaussian", length="2 epochs"), folder / "bits", tmp_path / "run")
    rows, x = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert set((256 * x - 0.5).unique().tolist()) == {0.0, 255.0}
    first, second = (images[order.argsort()] for order, images in zip(rows.chunk(2), x.chunk(2), strict=True))
    assert 0.02 < (first != second).double().mean() < 0.5  # other draws of the same images


def test_a_model_of_bits_is_better_than_how_often_each_pixel_is_white(folder, tmp_path):
    train(small_config(**BITS), folder / "bits", tmp_path / "run")
    run = TrainedRun.open(tmp_path / "run", folder / "bits")
    bits = torch.from_numpy(rows_of(folder / "bits", "test"))
    often = torch.from_numpy(rows_of(folder / "bits", "train")).double().mean(0) / 255
    simplest = F.binary_cross_entropy(often.expand(bits.shape), bits.double() / 255, reduction="none").flatten(1).sum(1)
    found = -Scorer(run.model).log_likelihood(as_model_input(bits), 20)
    assert (simplest - found).mean() > 5


def test_what_does_not_fit_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="bernoulli alone"):
        TrainingConfig(binarise=True)
    with pytest.raises(ConfigError, match=r"validation images are grey.*data prepare --binarise"):
        train(small_config(**BITS), folder / "store", tmp_path / "run")
    assert not (tmp_path / "run").exists()
