"""Stores of grey images that are read as black and white ones, drawn by their grey values."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bype import ByPEVAE
from bype.cli import main
from bype.data.bits import draw_bits
from bype.data.examples import as_model_input
from bype.data.manifest import StoreError
from bype.data.prepare import prepare
from bype.data.sources import SourceError
from bype.data.store import Store
from bype.evaluation.inference import Embedder
from bype.evaluation.scores import Scorer
from bype.pseudocoreset.rule import Rule
from bype.run.config import ConfigError
from bype.run.directory import RunError
from bype.run.opened import TrainedRun
from bype.training.loop import train
from bype.training.step import TrainingStep
from small_runs import feature_store, image_store, small_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store of grey images, and beside it the same images as a binarised store."""
    folder = tmp_path_factory.mktemp("images")
    image_store(folder, count=900)
    words = ["--validation", "60", "--test", "75", "--binarise"]
    assert main(["data", "prepare", str(folder / "data.npz"), "--out", str(folder / "bits"), *words]) == 0
    return folder


def rows_of(folder, split):
    found = Store(folder).split(split)
    return found.read(np.arange(len(found)))


def test_a_pixel_is_white_as_often_as_its_byte_says():
    grey, draws = np.arange(256), 40_000
    found = draw_bits(np.broadcast_to(grey.astype(np.uint8), (draws, 256)), np.arange(draws), key=5)
    assert np.array_equal(np.unique(found), [0, 255])
    white, expected = (found == 255).mean(0), grey / 255
    assert (white[0], white[255]) == (0, 1)
    assert (np.abs(white - expected) < 5 * np.sqrt(expected * (1 - expected) / draws) + 1e-9).all()
    # Neighbours in rows and columns are independent, and so are two keys.
    middle = np.full((400, 400), 128, dtype=np.uint8)
    first, second = (draw_bits(middle, np.arange(400), key) == 255 for key in (1, 2))
    for one, other in ((first[1:], first[:-1]), (first[:, 1:], first[:, :-1]), (first, second)):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / 400


def test_the_draws_of_an_image_are_its_own():
    """Whatever is read with it, and in which order: on this rest sharing a batch among processes, and resuming."""
    grey = np.random.default_rng(0).integers(0, 256, (50, 1, 4, 5), dtype=np.uint8)
    whole = draw_bits(grey, np.arange(50), key=3)
    chosen = np.array([7, 49, 7, 0])
    assert np.array_equal(draw_bits(grey[chosen], chosen, key=3), whole[chosen])
    assert draw_bits(grey[:0], chosen[:0], key=3).shape == (0, 1, 4, 5)


def test_all_splits_are_read_as_black_and_white_and_always_the_same(folder):
    for split in ("train", "validation", "test"):
        grey, bits = rows_of(folder / "store", split), rows_of(folder / "bits", split)
        assert np.array_equal(np.unique(bits), [0, 255])
        assert np.array_equal(bits, rows_of(folder / "bits", split))
        share = grey / 255.0
        error = np.sqrt((share * (1 - share)).sum()) / share.size
        assert abs((bits / 255.0).mean() - share.mean()) < 4 * error
        assert ((bits == 255) == (grey > 127)).mean() > 0.8  # they are still the same images


def test_what_cannot_be_binarised_is_refused(folder, tmp_path):
    feature_store(tmp_path)
    np.save(tmp_path / "colours.npy", np.zeros((20, 8, 8, 3), dtype=np.uint8))
    for name in ("table.csv", "colours.npy"):
        with pytest.raises(SourceError, match="only grey images can be drawn black and white"):
            prepare(tmp_path / name, tmp_path / "bits", binarise=True)
    assert not (tmp_path / "bits").exists()
    manifest = tmp_path / "store" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"float32"', '"binarised"'))
    with pytest.raises(StoreError, match="only grey images can be binarised"):
        Store(tmp_path / "store")


def test_training_draws_its_images_anew_in_each_step(folder, monkeypatch, tmp_path):
    seen, take_step = [], TrainingStep.__call__

    def watched(self, x, indices, *arguments, **options):
        seen.append((indices.clone(), x.clone()))
        return take_step(self, x, indices, *arguments, **options)

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    config = small_config(likelihood="bernoulli", prior="gaussian", length="2 epochs")
    train(config, folder / "bits", tmp_path / "run")
    rows, x = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert set((256 * x - 0.5).unique().tolist()) == {0.0, 255.0}
    first, second = (images[order.argsort()] for order, images in zip(rows.chunk(2), x.chunk(2), strict=True))
    assert 0.02 < (first != second).double().mean() < 0.5  # other draws of the same images


def test_updates_draw_their_images_anew_too(folder, tmp_path):
    """A pass over the training images shows the same images, with other draws."""
    passes = []

    class Watch(Rule):
        def __init__(self, model):
            super().__init__(every="1 epoch")

        def update(self, model, batches, *, validation_kl=None, generator=None):
            passes.append(torch.cat([batch.x for batch in batches]))
            return {}

    config = small_config(likelihood="bernoulli", length="2 epochs", rule=None)
    train(config, folder / "bits", tmp_path / "run", rule=Watch)
    first, second = ({row.numpy().tobytes() for row in x} for x in passes)
    assert len(first) > 700
    assert len(first & second) < 10


def test_a_run_that_resumes_is_the_same_to_the_bit(folder, tmp_path):
    configs = {length: small_config(likelihood="bernoulli", length=length) for length in ("1 epoch", "3 epochs")}
    train(configs["3 epochs"], folder / "bits", tmp_path / "whole")
    for length in configs:
        train(configs[length], folder / "bits", tmp_path / "parts")
    whole, parts = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "parts"))
    assert whole == parts
    assert len(whole.splitlines()) == 3


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    train(small_config(likelihood="bernoulli"), folder / "bits", out)
    return TrainedRun.open(out, folder / "bits")


def test_a_model_of_bits_is_better_than_how_often_each_pixel_is_white(folder, run):
    bits = torch.from_numpy(rows_of(folder / "bits", "test"))
    often = torch.from_numpy(rows_of(folder / "store", "train")).double().mean(0) / 255
    simplest = F.binary_cross_entropy(often.expand(bits.shape), bits.double() / 255, reduction="none")
    found = -Scorer(run.model).log_likelihood(as_model_input(bits), 20)
    assert (simplest.flatten(1).sum(1) - found).mean() > 5


def test_a_run_knows_that_its_images_were_black_and_white(folder, run, tmp_path, capsys):
    with pytest.raises(RunError, match=r"uint8 examples.*trained on binarised"):
        run.store(folder / "store")
    grey = rows_of(folder / "store", "test")[:3]
    with pytest.raises(ValueError, match="trained on black and white images, these are grey"):
        Embedder(run.folder)({"image": grey})
    assert Embedder(run.folder)({"image": rows_of(folder / "bits", "test")[:3]})["embedding"].shape[0] == 3
    assert main(["coreset", str(run.folder), "--out", str(tmp_path / "coreset")]) == 0
    points = rows_of(tmp_path / "coreset" / "store", "train")
    assert len(np.unique(points)) > 2  # points are grey
    assert main(["evaluate", str(run.folder), "--samples", "20", "--no-map"]) == 0
    evaluation = json.loads((run.folder / "evaluation.json").read_text())
    assert evaluation["evaluations"][0]["density"]["scale"] == "cross-entropy"


def test_bytes_of_0_and_1_are_not_taken_for_bits(tmp_path):
    images = np.random.default_rng(0).integers(0, 2, (60, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    prepare(tmp_path / "images.npy", tmp_path / "store")
    with pytest.raises(ConfigError, match="multiply them by 255"):
        train(small_config(likelihood="bernoulli", prior="gaussian"), tmp_path / "store", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fit_and_the_estimator_refuse_bits(folder, tmp_path, capsys):
    assert main(["fit", str(folder / "bits"), "--out", str(tmp_path / "run")]) != 0
    assert "drawn black and white" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="drawn black and white"):
        ByPEVAE(max_epochs=1).fit(folder / "bits")
