"""Data and runs that are legal but unusual."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from bype.cli import main
from bype.data.files import FileError
from bype.data.prepare import prepare
from bype.evaluation.density import DensityOptions
from bype.evaluation.embedding import EmbeddingOptions, embed_split
from bype.evaluation.evaluate import evaluate
from bype.evaluation.records import read_results
from bype.evaluation.representation import can_be_laid_out, knn_accuracy, tsne
from bype.models import mlp_hvae
from bype.objective import importance_weighted_bound
from bype.priors import GaussianPrior
from bype.report.contents import gather
from bype.report.page import render
from bype.run.opened import TrainedRun
from small_runs import small_run, striped_images


def test_a_labelled_store_with_nothing_but_a_train_split(tmp_path, capsys):
    images, labels = striped_images(120)
    np.savez(tmp_path / "x.npz", x=images, y=labels)
    prepare(tmp_path / "x.npz", tmp_path / "store", validation=0, test=0)
    run = small_run(tmp_path / "run", tmp_path / "store", length="2 epochs")
    assert main(["evaluate", str(run), "--samples", "5"]) == 0
    found = read_results(run).evaluations[0]
    assert (found.split, found.representation) == ("train", None)
    assert "Reconstructions" in render([gather(run, "a")])
    capsys.readouterr()


def test_under_autocast_only_the_networks_round():
    torch.manual_seed(0)
    model = mlp_hvae((1, 8, 8), GaussianPrior(4), latent_dim=4, hidden=16)
    x = torch.rand(3, 1, 8, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        draw = model.posterior(x).draw(5)
        assert {draw.top.dtype, draw.output.dtype} == {torch.float32}
        assert {value.dtype for value in draw.log_posterior.values()} == {torch.float32}
        assert {value.dtype for value in draw.log_conditional.values()} == {torch.float32}
    exact, rounded = [], []
    for found, enabled in ((exact, False), (rounded, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            generator = torch.Generator().manual_seed(0)
            found.append(importance_weighted_bound(model, x, 500, generator=generator).log_likelihood)
    assert (exact[0] - rounded[0]).abs().max() < 0.3
    assert not torch.equal(exact[0], rounded[0])


def test_other_data_do_not_stand_for_the_runs_own_on_the_page(bype_run, tmp_path):
    images, labels = striped_images(200, seed=9)
    np.savez(tmp_path / "other.npz", x=images, y=labels)
    prepare(tmp_path / "other.npz", tmp_path / "other")
    run = TrainedRun.open(bype_run)
    evaluate(run, "test", data=tmp_path / "other", density=DensityOptions(3), with_map=False)
    page = render([gather(bype_run, "a")])
    assert "test split of arrays in other.npz" in page
    own = evaluate(run, "test", density=DensityOptions(5), with_map=False)
    evaluate(run, "test", data=tmp_path / "other", density=DensityOptions(3), with_map=False)
    assert gather(bype_run, "a").evaluation == own
    assert main(["augment", str(bype_run), "--data", str(tmp_path / "other"), "--epochs", "1", "--seeds", "1"]) == 0
    assert gather(bype_run, "a").augmentation == []


def test_another_models_embedding_is_refused(trained_bype, trained_exemplar, tmp_path):
    one, other = TrainedRun.open(trained_bype), TrainedRun.open(trained_exemplar)
    split = one.store().split("test")
    embed_split(one, split, tmp_path / "out")
    with pytest.raises(FileError, match="another model"):
        embed_split(other, split, tmp_path / "out")
    with pytest.raises(FileError, match="an embedding with another --format or --samples"):
        embed_split(one, split, tmp_path / "out", options=EmbeddingOptions(num_samples=1))


def test_an_exemplar_run_takes_other_data_and_finds_its_own(trained_exemplar, tmp_path, capsys):
    images, labels = striped_images(100, seed=5)
    np.savez(tmp_path / "other.npz", x=images, y=labels)
    prepare(tmp_path / "other.npz", tmp_path / "other")
    assert main(["embed", str(trained_exemplar), "--data", str(tmp_path / "other"), "--out", str(tmp_path / "e")]) == 0
    run = Path(shutil.copytree(trained_exemplar, tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    moved = shutil.copytree(config["data"]["store"], tmp_path / "moved")
    config["data"]["store"] = "/nowhere/at/all"
    (run / "config.json").write_text(json.dumps(config))
    assert main(["sample", str(run), "--data", str(moved), "--out", str(tmp_path / "x.png")]) == 0
    capsys.readouterr()


def test_maps_of_one_dimension_or_of_nothing():
    assert tsne(np.random.default_rng(0).normal(size=(30, 1))).shape == (30, 2)
    assert not can_be_laid_out(np.ones((50, 3)))
    assert not can_be_laid_out(np.full((50, 3), np.nan))


def test_labels_may_be_many():
    labels = np.arange(200) * 5000
    means = np.arange(200.0)[:, None]
    found = knn_accuracy(means, labels, means[:50], labels[:50])
    assert found["3"] == 1 / 50  # of three that differ the smallest wins: only the first of the line is right


def test_a_second_fit_keeps_a_better_measurement(tmp_path, capsys):
    images, _ = striped_images(60)
    np.save(tmp_path / "x.npy", images)
    words = ["fit", str(tmp_path / "x.npy"), "--out", str(tmp_path / "run"), "--minutes", "0.005"]
    assert main(words) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--samples", "2000", "--no-map"]) == 0
    assert main(words) == 0
    assert read_results(tmp_path / "run").evaluations[0].density.num_samples == 2000
    capsys.readouterr()


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "RUN", "--samples", "-3"],
        ["evaluate", "RUN", "--images", "0"],
        ["augment", "RUN", "--way", "prior"],
        ["sample", "RUN", "--heaviest", "3", "--out", "x.png"],
        ["sample", "RUN", "--heaviest", "-1", "--out", "x.png"],
    ],
)
def test_mistakes_with_a_gaussian_run_give_one_line(words, trained_gaussian, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([str(trained_gaussian) if word == "RUN" else word for word in words]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_hostile_metrics_and_journals(bype_run, capsys):
    path = bype_run / "metrics.jsonl"
    path.write_text('{"step": 1, "epoch": 1' + "0" * 400 + "}\n")
    assert main(["report", str(bype_run), "--out", str(bype_run / "x.html")]) == 1
    assert "line 1, is broken" in capsys.readouterr().err
    path.write_text('{"step": 1, "epoch": 1e14, "train": {"negative_elbo": -9e14}}\n')
    assert main(["report", str(bype_run), "--out", str(bype_run / "x.html")]) == 0
