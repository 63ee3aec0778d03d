"""Scores of examples: against closed forms and brute force, and what they say of a corrupted row."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet
from sklearn.decomposition import PCA

import bype
from bype.cli import main
from bype.data.augment import Augmentation
from bype.data.examples import StoreSource
from bype.data.prepare import prepare
from bype.data.scaling import Scaling
from bype.data.store import Store
from bype.evaluation import outliers
from bype.evaluation.outliers import ScoreOptions, column_terms, percentiles, score_examples, worst_columns
from bype.evaluation.scores import log_likelihood_by_shared_draws
from bype.mixtures import LeaveOneOutMixture
from bype.models.base import LatentModel
from bype.models.linear_start import fit_linear
from bype.priors import GaussianPrior
from bype.run.config import TrainingConfig
from bype.run.identity import DataIdentity
from bype.run.opened import MissingDataError, TrainedRun
from linear_gaussian import exact_log_likelihood, linear_hvae, linear_vae
from small_runs import small_run


def table_store(folder: Path, rows: np.ndarray, **sizes: float) -> Path:
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", rows.astype(np.float32))
    prepare(folder / "x.npy", folder / "store", **sizes)
    return folder / "store"


def run_of(model: LatentModel, store: Path) -> TrainedRun:
    """A run around a model that was made by hand."""
    config = TrainingConfig(prior="gaussian", latent_dim=2)
    return TrainedRun(store.parent, config, DataIdentity.of(Store(store)), 0, "", model.requires_grad_(False))


def drawn_rows(model: LatentModel, count: int, seed: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    top = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return model.likelihood.sample(model.decode(top, generator=generator), generator=generator).detach().numpy()


@pytest.mark.parametrize(("make", "error"), [(linear_vae, 0.15), (linear_hvae, 0.0)])
def test_scores_agree_with_the_closed_form_in_the_units_of_the_data(make, error, tmp_path):
    exact = make(GaussianPrior(2), error)
    x = 10 * drawn_rows(exact, 120, seed=0) + 3  # the model's units are tenths
    store = table_store(tmp_path / "data", x, validation=20, test=30)
    model = make(GaussianPrior(2), error).float()
    model.scaling = Scaling(x.shape[1])
    model.scaling.center.fill_(3)
    model.scaling.scale.fill_(10)
    found = score_examples(run_of(model, store), "test", options=ScoreOptions(1000 if error else 5, 20))
    rows = torch.from_numpy(Store(store).split("test").read(np.arange(30))).double()
    scaled = (rows - 3) / 10
    mixture = (torch.zeros(1, 2, dtype=torch.float64), 1.0, torch.ones(1))
    shift = x.shape[1] * np.log(10)
    expected = exact_log_likelihood(exact, scaled, *mixture).numpy() - shift
    # With the exact posterior every weight is p(x), but for float32; else 1,000 draws leave an error of about 0.02.
    np.testing.assert_allclose(found.log_likelihood, expected, atol=2e-3 if error == 0 else 0.1)
    posterior = exact.posterior(scaled)
    with torch.no_grad():
        at_mean = exact.likelihood.log_prob(scaled, posterior.mean_output()).numpy() - shift
        latent = torch.distributions.Normal(0, 1).log_prob(posterior.top.mean).sum(1).numpy()
    np.testing.assert_allclose(found.reconstruction, at_mean, atol=2e-3)
    np.testing.assert_allclose(found.latent_density, latent, atol=1e-4)


def test_the_ratio_is_against_the_linear_model_of_the_training_examples(trained_gaussian):
    run = TrainedRun.open(trained_gaussian)
    with pytest.raises(ValueError, match="at least one each"):
        ScoreOptions(4, 50, num_examples=0)
    found = score_examples(run, "test", options=ScoreOptions(4, 50))
    splits = {name: run.store().split(name) for name in ("train", "test")}
    train, test = ((split.read(np.arange(len(split))).reshape(len(split), -1) + 0.5) / 256 for split in splits.values())
    # scikit-learn's variances have n - 1 in the denominator, where maximum likelihood has n.
    factor = (len(train) - 1) / len(train)
    pca = PCA(run.config.latent_dim).fit(train)
    noise = factor * pca.noise_variance_
    covariance = factor * pca.get_covariance()
    assert noise > 0
    expected = torch.distributions.MultivariateNormal(
        torch.from_numpy(pca.mean_), torch.from_numpy(covariance)
    ).log_prob(torch.from_numpy(test))
    np.testing.assert_allclose(found.log_likelihood - found.log_ratio, expected, rtol=1e-6)


def test_the_linear_model_sees_the_flips_of_the_training(labelled_store, tmp_path):
    densities = {}
    for flips in (False, True):
        run_folder = small_run(tmp_path / f"{flips}", labelled_store, prior="gaussian", length="1 steps", flips=flips)
        run = TrainedRun.open(run_folder)
        found = score_examples(run, "test", options=ScoreOptions(4, 50))
        train, test = (StoreSource(run.store().split(name)) for name in ("train", "test"))
        linear = fit_linear(train, run.data.shape, run.config.latent_dim, run.config.seed, Augmentation(flips=flips))
        expected = linear.log_prob(test.read(np.arange(len(test))).flatten(1)).numpy()
        densities[flips] = found.log_likelihood - found.log_ratio
        np.testing.assert_allclose(densities[flips], expected, rtol=1e-5)
    assert np.abs(densities[True] - densities[False]).max() > 0.1


def test_percentiles_against_counting():
    generator = np.random.default_rng(0)
    values, references = generator.integers(0, 30, 50).astype(float), generator.integers(0, 30, 200).astype(float)
    counted = [100 * ((references < v).sum() + 0.5 * (references == v).sum()) / 200 for v in values]
    np.testing.assert_allclose(percentiles(values, references), counted)


def test_percentiles_are_those_among_the_training_examples(bype_run):
    run = TrainedRun.open(bype_run)
    test = score_examples(run, "test", options=ScoreOptions(10))
    train = score_examples(run, "train", options=ScoreOptions(10))
    assert test.num_references == len(train.rows) == 465
    counted = [100 * (train.log_likelihood < value).mean() for value in test.log_likelihood]
    np.testing.assert_allclose(test.percentile, counted)  # no two values are equal


def test_training_examples_are_left_out_of_a_prior_that_is_made_of_them(trained_exemplar):
    run = TrainedRun.open(trained_exemplar)
    found = score_examples(run, "train", options=ScoreOptions(20, 30, 40))
    source, prior, by_hand = StoreSource(run.store().split("train")), run.model.prior_distribution(), []
    for rows in torch.from_numpy(found.rows).split(32):
        without = LeaveOneOutMixture(prior.means, prior.log_variance, prior.log_weights, torch.arange(465), rows)
        by_hand.append(log_likelihood_by_shared_draws(run.model, source.read(rows.numpy()), 20, without))
    np.testing.assert_allclose(found.log_likelihood, torch.cat(by_hand), atol=2e-3)


def test_a_reconstruction_by_the_papers_squared_error_has_a_density(trained_bype):
    run = TrainedRun.open(trained_bype)
    found = score_examples(run, "test", options=ScoreOptions(4, 5))
    x = StoreSource(run.store().split("test")).read(found.rows)
    with torch.no_grad():
        mean = run.model.posterior(x).mean_output().clamp(1 / 512, 511 / 512)  # the middles of black and white
    expected = -(x.flatten(1) - mean).square().sum(1)
    # exp(-||x - m||^2) integrates to pi^(d/2).
    np.testing.assert_allclose(found.reconstruction, expected - 72 * np.log(np.pi), atol=2e-3)


def test_columns_are_named_by_what_they_lose_against_the_average():
    order, excess = worst_columns(np.array([[0.0, -5.0, -1.0, -2.0]]), np.array([-1.0, -1.0, -1.0, -1.0]))
    assert (order.tolist(), excess.tolist()) == ([[1, 3, 2]], [[4, 1, 0]])


@pytest.mark.parametrize("name", ["trained_bype", "trained_gaussian"])
def test_a_score_does_not_depend_on_the_examples_beside_it(name, request, monkeypatch):
    run = TrainedRun.open(request.getfixturevalue(name))
    options = ScoreOptions(70, 5, 31)  # rows 0, 15.5 and so on
    together = score_examples(run, "train", options=options)
    few = score_examples(run, "train", options=ScoreOptions(70, 5, 11))  # every third of them, but for rounding
    monkeypatch.setattr(outliers, "ROWS_AT_ONCE", 7)
    apart = score_examples(run, "train", options=options)
    shared = np.intersect1d(few.rows, together.rows)
    assert len(shared) > 5
    for scores in ("log_likelihood", "reconstruction", "latent_density", "log_ratio"):
        # The same draws: what is left is the rounding of products of other sizes.
        np.testing.assert_allclose(getattr(apart, scores), getattr(together, scores), rtol=1e-5, atol=2e-3)
        one, other = (getattr(found, scores)[np.isin(found.rows, shared)] for found in (few, together))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-3)


def test_the_term_of_a_column_is_what_mending_that_column_alone_would_gain(trained_features):
    model = TrainedRun.open(trained_features).model
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    output = model.posterior(x).mean_output().double()
    terms, expected = column_terms(model, x), model.likelihood.mean(output)
    for column in range(4):
        mended = x.double()
        mended[:, column] = expected[:, column]
        gain = model.likelihood.log_prob(mended, output) - model.likelihood.log_prob(x.double(), output)
        torch.testing.assert_close(terms[:, column], -gain)


def test_without_training_data_no_terms_of_columns_are_worked_out(trained_features, monkeypatch):
    """Nothing can be said of columns then, and the terms of many rows would fill memory."""

    def gone(*arguments):
        raise MissingDataError("gone")

    monkeypatch.setattr(outliers, "own_store", gone)
    monkeypatch.setattr(outliers, "column_terms", lambda *arguments: pytest.fail("worked out"))
    found = score_examples(TrainedRun.open(trained_features), "test", options=ScoreOptions(num_examples=5))
    assert (found.columns, found.column_excess, found.percentile) == (None, None, None)
    assert len(found.log_likelihood) == 5


@pytest.mark.parametrize("column", range(4))
def test_a_corrupted_row_is_the_least_likely_and_its_column_is_named(column, trained_features, tmp_path, capsys):
    run = TrainedRun.open(trained_features)
    split = run.store().split("test")
    rows = split.read(np.arange(len(split)))
    rows[11, column] += 6 * rows[:, column].std()
    store = table_store(tmp_path / "broken", rows, validation=0, test=0)
    found = score_examples(run, "train", data=store, options=ScoreOptions(20))
    assert found.least_likely(1).tolist() == [11]
    assert found.percentile[11] == 0
    assert found.columns[11, 0] == column
    words = ["score", str(trained_features), "--data", str(store), "--split", "train", "--out"]
    assert main([*words, str(tmp_path / "scores.csv")]) == 0
    name = run.data.names[column]
    first = capsys.readouterr().out.split("row ")[1]
    assert first.startswith("11 of the source: log p(x)")
    assert f"by {name}," in first
    lines = list(csv.DictReader((tmp_path / "scores.csv").read_text().splitlines()))
    assert min(lines, key=lambda line: float(line["log_likelihood"]))["column_1"] == name


def test_files_hold_the_same_scores_and_nothing_is_overwritten(bype_run, tmp_path, capsys):
    paths = [tmp_path / f"scores.{ending}" for ending in ("csv", "npz", "parquet")]
    for path in paths:
        assert main(["score", str(bype_run), "--samples", "3", "--references", "40", "--out", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "which the model has seen" in printed
    assert "ranks some outliers high" in printed
    lines = list(csv.DictReader(paths[0].read_text().splitlines()))
    arrays, table = np.load(paths[1]), parquet.read_table(paths[2])
    expected = score_examples(TrainedRun.open(bype_run), "test", options=ScoreOptions(3, 40))
    assert set(arrays.files) == set(table.column_names) == set(lines[0])
    for name in ("row", "source", "log_likelihood", "percentile", "log_ratio"):
        wanted = expected.as_columns()[name]
        np.testing.assert_array_equal(arrays[name], wanted)
        np.testing.assert_array_equal(table[name].to_numpy(), wanted)
        np.testing.assert_array_equal([float(line[name]) for line in lines], wanted)
    before = paths[0].read_bytes()
    assert main(["score", str(bype_run), "--out", str(paths[0])]) == 1
    assert "exists; choose another --out" in capsys.readouterr().err
    assert main(["score", str(bype_run), "--out", str(tmp_path / "scores.txt")]) == 1
    assert paths[0].read_bytes() == before


def test_scoring_needs_the_data_of_the_run(trained_features, tmp_path, capsys):
    run = Path(shutil.copytree(trained_features, tmp_path / "run"))
    config = run / "config.json"
    config.write_text(config.read_text().replace(TrainedRun.open(run).data.store, "gone"))
    assert main(["score", str(run), "--out", str(tmp_path / "scores.csv")]) == 1
    assert "say where they are with --data" in capsys.readouterr().err
    assert not (tmp_path / "scores.csv").exists()


@pytest.mark.filterwarnings("ignore::bype.share.mixin.AuditWarning")
def test_a_model_that_came_without_its_data_gives_the_other_scores(trained_features, tmp_path, capsys):
    run = bype.TrainedRun.open(trained_features)
    run.save_pretrained(tmp_path / "shared")
    rows = run.store().split("test").read(np.arange(20))
    np.save(tmp_path / "new.npy", rows)
    words = ["--data", str(tmp_path / "new.npy"), "--samples", "10"]
    assert main(["score", str(tmp_path / "shared"), *words, "--out", str(tmp_path / "without.npz")]) == 0
    assert "no percentiles and no log ratios: the training data" in capsys.readouterr().out
    assert main(["score", str(trained_features), *words, "--out", str(tmp_path / "with.npz")]) == 0
    with np.load(tmp_path / "without.npz") as without, np.load(tmp_path / "with.npz") as whole:
        for name in ("log_likelihood", "reconstruction", "latent_density"):
            assert np.array_equal(without[name], whole[name])
        lacking = {"percentile", "log_ratio"} | {f"{kind}_{k}" for kind in ("column", "excess") for k in (1, 2, 3)}
        assert set(whole) - set(without) == lacking
    # a store that is the run's own brings all of them back
    shutil.copytree(run.store().folder, tmp_path / "shared" / "store")
    assert main(["score", str(tmp_path / "shared"), *words, "--out", str(tmp_path / "again.npz")]) == 0
    with np.load(tmp_path / "again.npz") as again, np.load(tmp_path / "with.npz") as whole:
        assert np.array_equal(again["percentile"], whole["percentile"])
