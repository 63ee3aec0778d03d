"""The scikit-learn face: densities, repeats, scikit-learn's tools around it."""

import dataclasses
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from PIL import Image
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_blobs
from sklearn.decomposition import FactorAnalysis
from sklearn.exceptions import DataConversionWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import type_of_target

import bype
from bype.cli import main
from bype.data.files import FileError
from bype.data.prepare import prepare, train_positions
from bype.data.sources.memory import source_of
from bype.data.store import Store
from bype.estimator import fitting
from bype.estimator.labels import labels_of
from bype.evaluation.outliers import ScoreOptions
from bype.run.choice import length_of
from bype.run.directory import RunError
from torchrun_process import has_checkpoint, started, wait_until

TINY = {"n_pseudopoints": 6, "max_epochs": 3, "n_draws": 20}


def table(count=120, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(count, 2)) @ generator.normal(size=(2, 4)) * [1, 5, 0.1, 30] + generator.normal(
        [0, 100, -3, 1e3], [0.1, 1, 0.01, 5], (count, 4)
    )


@pytest.fixture(scope="module")
def cancer():
    return load_breast_cancer(return_X_y=True)


@pytest.fixture(scope="module")
def fitted(cancer):
    X, y = cancer
    return bype.ByPEVAE(max_epochs=20).fit(X, np.array(["benign", "malignant"])[1 - y])


def assert_same_model(first, second):
    one, other = first.model_.state_dict(), second.model_.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert first.offset_ == second.offset_


# ---------------------------------------------------------------------------------------------------- densities


def test_the_log_likelihood_of_a_linear_model_is_the_closed_form():
    X = table(200)
    vae = bype.ByPEVAE(n_pseudopoints=5, max_epochs=1, n_draws=20).fit(X).set_params(n_draws=4000)
    for model in (vae._scorer.model, vae.model_):  # without what the networks add, all is linear
        model.decoder.head.weight.zero_()
        model.decoder.head.bias.zero_()
    model = vae._scorer.model
    prior, decoder = model.prior_distribution(), model.decoder
    loadings, scale = decoder.loadings.numpy(), model.scaling.scale.numpy()
    noise = np.diag(model.likelihood.base.variance.numpy())
    covariance = float(prior.log_variance.exp()) * loadings @ loadings.T + noise
    scaled = (X[:20] - model.scaling.center.numpy()) / scale
    centers = decoder.center.numpy() + prior.means.numpy() @ loadings.T
    by_component = np.stack([multivariate_normal(center, covariance).logpdf(scaled) for center in centers], 1)
    exact = logsumexp(by_component + prior.log_weights.numpy(), axis=1) - np.log(scale).sum()
    # 4,000 draws from a posterior that ignores the prior's mixture: the spread over seeds is about 0.02 nats.
    np.testing.assert_allclose(vae.score_samples(X[:20]), exact, atol=0.1)


def test_the_log_likelihood_agrees_with_the_measure_of_the_commands(cancer, fitted):
    X = cancer[0][:100]
    found = bype.importance_weighted_bound(
        fitted.model_, torch.tensor(X, dtype=torch.float32), 2000, generator=torch.Generator().manual_seed(5)
    )
    more = clone(fitted).set_params(n_draws=2000)
    more._become(fitted._fitted)
    difference = more.score_samples(X) - found.log_likelihood.numpy()
    # Two estimates with different draws: apart by their Monte Carlo errors, on average by far less.
    assert abs(difference.mean()) < 0.2
    assert np.median(np.abs(difference)) < 4 * float(found.monte_carlo_error.median())
    assert fitted.score(X) == fitted.score_samples(X).mean()


def test_log_likelihoods_are_in_the_units_of_the_data():
    X = table()
    small, large = (bype.ByPEVAE(**TINY).fit(factor * X) for factor in (1, 1000))
    # The same model up to float32's rounding of the columns; a density a thousand times thinner in each of 4 columns.
    np.testing.assert_allclose(small.score_samples(X) - 4 * np.log(1000), large.score_samples(1000 * X), atol=0.05)


def test_a_result_does_not_depend_on_other_rows(cancer, fitted):
    X = cancer[0][:90]
    order = np.random.default_rng(0).permutation(90)
    for method in (fitted.score_samples, fitted.transform, fitted.reconstruct, fitted.decision_function):
        whole = method(X)
        # In float64; the sums inside may be added in another order.
        np.testing.assert_allclose(method(X[order]), whole[order], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(
            np.concatenate([method(row[None]) for row in X[:5]]), whole[:5], rtol=1e-9, atol=1e-9
        )


def test_it_is_better_than_factor_analysis(cancer):
    X, _ = cancer
    own = cross_val_score(bype.ByPEVAE(max_epochs=40), X, cv=3)
    linear = []
    for rows in np.array_split(np.arange(len(X)), 3):
        rest = np.setdiff1d(np.arange(len(X)), rows)
        mean, scale = X[rest].mean(0), X[rest].std(0)
        model = FactorAnalysis(15, max_iter=500).fit((X[rest] - mean) / scale)
        linear.append(model.score((X[rows] - mean) / scale) - np.log(scale).sum())
    assert np.mean(own) > np.mean(linear)


def test_outliers_have_a_low_density(cancer, fitted):
    X, _ = cancer
    assert (fitted.predict(X) == -1).sum() == round(0.1 * len(X))
    strange = X.copy()
    strange[:, 0] *= 3  # a radius that does not fit the area
    assert (fitted.predict(strange) == -1).mean() > 0.9
    np.testing.assert_array_equal(fitted.decision_function(X), fitted.score_samples(X) - fitted.offset_)


# ------------------------------------------------------------------------------- the same call, the same result


def test_the_same_call_gives_the_same_model_with_and_without_a_run_directory(tmp_path):
    X = table()
    whole = bype.ByPEVAE(**TINY).fit(X)
    assert_same_model(whole, bype.ByPEVAE(**TINY).fit(X))
    kept = bype.ByPEVAE(**TINY, run_dir=tmp_path / "run").fit(X)
    assert_same_model(whole, kept)
    assert_same_model(whole, bype.ByPEVAE.load(tmp_path / "run"))
    assert_same_model(whole, bype.ByPEVAE(**TINY, run_dir=tmp_path / "run").fit(X))
    others = {**TINY, "n_draws": 30, "contamination": 0.2, "device": "cpu", "verbose": 0}  # not part of the training
    again = bype.ByPEVAE(**others, run_dir=tmp_path / "run").fit(X)
    assert torch.equal(again.model_.prior_distribution().means, whole.model_.prior_distribution().means)
    assert again.offset_ != whole.offset_
    other = bype.ByPEVAE(**{**TINY, "random_state": 1}).fit(X)
    assert other.offset_ != whole.offset_
    with pytest.raises(
        ValueError, match="holds a fit of other data, or with another random_state; choose another run_dir"
    ):
        bype.ByPEVAE(**TINY, run_dir=tmp_path / "run").fit(X + 1)
    with pytest.raises(
        RunError, match=r"components: 6 there, 7 here\); choose another run_dir, or the parameters of the"
    ):
        bype.ByPEVAE(**{**TINY, "n_pseudopoints": 7}, run_dir=tmp_path / "run").fit(X)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds no fit; choose another run_dir"):
        bype.ByPEVAE(**TINY, run_dir=tmp_path / "mine").fit(X)
    for path in (tmp_path / "run" / "checkpoints").rglob("*.safetensors"):
        path.write_bytes(b"")
    (tmp_path / "run" / "estimator.json").unlink()
    with pytest.raises(ValueError, match="if the files are lost, choose another run_dir to train anew"):
        bype.ByPEVAE(**TINY, run_dir=tmp_path / "run").fit(X)


KILLED = """
import sys, numpy, bype
bype.ByPEVAE(6, max_epochs=60, n_draws=20, run_dir=sys.argv[2]).fit(numpy.load(sys.argv[1]))
"""


def test_a_fit_that_was_killed_while_it_prepared_the_data_starts_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / ".store.partial").mkdir(parents=True)
    bype.ByPEVAE(**TINY, run_dir="run").fit(table())
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"store", "config.json"}


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux alone")
def test_classes_whose_folders_are_not_named_by_text_are_saved_and_loaded(tmp_path):
    for number, name in enumerate((b"caf\xe9", b"tea")):
        folder = tmp_path / "photos" / os.fsdecode(name)
        folder.mkdir(parents=True)
        for shade in range(10):
            Image.new("L", (8, 8), 100 * number + 5 * shade).save(folder / f"{shade}.png")
    vae = bype.ByPEVAE(**TINY).fit(tmp_path / "photos")
    vae.save(tmp_path / "saved")
    loaded = bype.ByPEVAE.load(tmp_path / "saved")
    assert set(loaded.coreset_.labels) == {r"caf\xe9", "tea"}


def test_a_killed_fit_goes_on_to_the_same_bit(tmp_path):
    X, run = table(), tmp_path / "run"
    np.save(tmp_path / "x.npy", X)
    with started([sys.executable, "-c", KILLED, str(tmp_path / "x.npy"), str(run)]) as process:
        wait_until(has_checkpoint(run, 20), 120, "no checkpoint")
        process.kill()
        process.wait()
    assert not (run / "estimator.json").exists()
    vae = bype.ByPEVAE(6, max_epochs=60, n_draws=20)
    assert_same_model(clone(vae).set_params(run_dir=run).fit(X), vae.fit(X))


def test_an_estimator_is_saved_as_a_run_directory(cancer, fitted, tmp_path):
    X, _ = cancer
    fitted.save(tmp_path / "saved")
    opened = bype.ByPEVAE.load(tmp_path / "saved")
    assert_same_model(fitted, opened)
    np.testing.assert_array_equal(opened.score_samples(X[:50]), fitted.score_samples(X[:50]))
    np.testing.assert_array_equal(opened.coreset_.labels, fitted.coreset_.labels)
    np.testing.assert_array_equal(opened.coreset_.neighbours, fitted.coreset_.neighbours)
    assert opened.get_params() == fitted.get_params()
    assert (opened.n_features_in_, opened.n_iter_) == (30, 20)
    opened.save(tmp_path / "again")
    for path in sorted((tmp_path / "saved").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(tmp_path / "saved")).read_bytes()
    with pytest.raises(FileError, match="exists and is not empty"):
        fitted.save(tmp_path / "saved")
    assert main(["sample", str(tmp_path / "saved"), "--out", str(tmp_path / "made.npy"), "--count", "5"]) == 0
    assert np.load(tmp_path / "made.npy").shape == (5, 30)


def test_a_damaged_folder_is_refused(tmp_path, trained_bype):
    with pytest.raises(FileError, match="no saved estimator; open it with"):
        bype.ByPEVAE.load(trained_bype)
    bype.ByPEVAE(**TINY).fit(table()).save(tmp_path / "saved")
    about, points = tmp_path / "saved" / "estimator.json", tmp_path / "saved" / "coreset.safetensors"
    good = about.read_text()
    for change in (
        ('"version": 1', '"version": 9'),
        ('"float32"', '"uint8"'),
        ('"max_epochs": 3', '"max_epochs": []'),
        ('"n_draws": 20', '"n_draws": -3'),
        ('"contamination": 0.1', '"contamination": 7'),
        ('"feature_names": []', '"feature_names": ["a"]'),
        ('"stored_shape": [\n   4\n  ]', '"stored_shape": []'),
    ):
        assert change[0] in good
        about.write_text(good.replace(*change))
        with pytest.raises(FileError, match=r"estimator\.json") as error:
            bype.ByPEVAE.load(tmp_path / "saved")
        assert "\n" not in str(error.value)
    about.write_text(good)
    content = points.read_bytes()
    with points.open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(FileError, match="larger than"):
        bype.ByPEVAE.load(tmp_path / "saved")
    points.write_bytes(content)
    for content in (b"", points.read_bytes()[:-1], bype.ByPEVAE(**{**TINY, "n_pseudopoints": 3}).fit(table())):
        if not isinstance(content, bytes):
            content.save(tmp_path / "smaller")
            content = (tmp_path / "smaller" / points.name).read_bytes()
        points.write_bytes(content)
        with pytest.raises(FileError, match=r"coreset\.safetensors"):
            bype.ByPEVAE.load(tmp_path / "saved")


BROKEN_CORESETS = {
    "points that are no numbers": lambda a: a["points"].fill(np.nan),
    "points of another kind": lambda a: a.update(points=a["points"].astype(np.int8)),
    "a negative weight": lambda a: a["weights"].__setitem__(0, -1.0),
    "a component twice": lambda a: a["component"].__setitem__(0, a["component"][1]),
    "a component that there is not": lambda a: a["component"].__setitem__(0, 10**9),
    "neighbours that are one number": lambda a: a.update(neighbours=np.array(1)),
    "no neighbours": lambda a: a.update(neighbours=a["neighbours"][:, :0]),
    "a neighbour before the first": lambda a: a["neighbours"].__setitem__((0, 0), -1),
    "shares of labels that are no numbers": lambda a: a["label_mix"].fill(np.nan),
    "another array": lambda a: a.update(more=np.zeros(3)),
}


@pytest.mark.parametrize("name", BROKEN_CORESETS)
def test_a_coreset_of_a_stranger_is_checked(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp() / "labelled"
    if not folder.exists():
        bype.ByPEVAE(**TINY).fit(table(), np.arange(120) % 2).save(folder)
    path = folder / "coreset.safetensors"
    good = path.read_bytes()
    arrays = {key: value.copy() for key, value in load_arrays(good).items()}
    BROKEN_CORESETS[name](arrays)
    try:
        path.write_bytes(save_arrays(arrays))
        with pytest.raises(FileError, match=r"coreset\.safetensors.*save the estimator again"):
            bype.ByPEVAE.load(folder)
    finally:
        path.write_bytes(good)
    bype.ByPEVAE.load(folder)


def test_what_is_set_after_fit_is_saved(tmp_path):
    vae = bype.ByPEVAE(**TINY).fit(table())
    vae.set_params(n_draws=50).save(tmp_path / "saved")
    opened = bype.ByPEVAE.load(tmp_path / "saved")
    assert opened.n_draws == 50
    np.testing.assert_array_equal(opened.score_samples(table()), vae.score_samples(table()))
    with pytest.raises(ValueError, match="'n_draws' parameter"):
        vae.set_params(n_draws=0).save(tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_it_is_opened_without_the_device_of_the_fit(tmp_path, monkeypatch):
    vae = bype.ByPEVAE(**TINY, device="cpu").fit(table())
    vae.save(tmp_path / "saved")
    about = tmp_path / "saved" / "estimator.json"
    assert '"device": "auto"' in about.read_text()
    about.write_text(about.read_text().replace('"device": "auto"', '"device": "cuda"'))  # as it was written once
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    opened = bype.ByPEVAE.load(tmp_path / "saved")
    assert opened.device == "auto"
    assert_same_model(vae, opened)


def test_a_copy_opens_without_the_device_of_the_fit(monkeypatch):
    vae = bype.ByPEVAE(**TINY).fit(table()).set_params(device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_same_model(vae, pickle.loads(pickle.dumps(vae)))  # noqa: S301 - our own


def test_a_table_without_names_gives_none(tmp_path):
    X = table()
    np.savetxt(tmp_path / "t.csv", X, delimiter=",")
    vae = bype.ByPEVAE(**TINY).fit(str(tmp_path / "t.csv"))
    assert not hasattr(vae, "feature_names_in_")
    assert vae.transform(X).shape == vae.transform(str(tmp_path / "t.csv")).shape
    with pytest.raises(ValueError, match="whole number"):
        vae.sample(True)


def test_its_commands_say_that_data_in_memory_are_gone(tmp_path, monkeypatch, capsys):
    bype.ByPEVAE(**TINY).fit(table()).save(tmp_path / "saved")
    (tmp_path / "memory").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["score", "saved", "--out", "scores.csv"]) == 1
    assert "this run came without its data; say where they are with --data" in capsys.readouterr().err


def test_a_copy_in_another_process_is_the_same(fitted, cancer):
    state = fitted.__getstate__()
    assert not any(isinstance(value, torch.nn.Module) for value in state.values())
    copied = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - our own
    assert_same_model(fitted, copied)
    np.testing.assert_array_equal(copied.transform(cancer[0][:9]), fitted.transform(cancer[0][:9]))


def test_a_fit_that_fails_leaves_the_estimator_as_it_was():
    vae = bype.ByPEVAE(**TINY).fit(table())
    before = dict(vars(vae))
    for bad in (np.full((9, 4), np.nan), np.zeros((2, 4)), np.full((9, 4), 1e39), np.zeros((9, 4, 4), dtype=np.int64)):
        with pytest.raises(ValueError, match=r"NaN|minimum of 3|numbers beyond|images must be uint8"):
            vae.fit(bad)
        assert vars(vae) == before


def test_fit_works_where_gradients_are_switched_off():
    vae = bype.ByPEVAE(**TINY).fit(table())
    for switched_off in (torch.no_grad(), torch.inference_mode()):
        with switched_off:
            assert_same_model(vae, bype.ByPEVAE(**TINY).fit(table()))
            assert not torch.is_grad_enabled()


def test_fit_and_predict_in_one_call_take_the_labels():
    X, y = table(), np.arange(120) % 2
    found = bype.ByPEVAE(**TINY).fit_predict(X, y)
    np.testing.assert_array_equal(found, bype.ByPEVAE(**TINY).fit(X, y).predict(X))


def test_fit_works_in_a_thread_and_does_not_touch_global_random_numbers():
    found = []
    before, numpys = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - the global one
    thread = threading.Thread(target=lambda: found.append(bype.ByPEVAE(**TINY).fit(table())))
    thread.start()
    thread.join()
    assert_same_model(found[0], bype.ByPEVAE(**TINY).fit(table()))
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(numpys, np.random.get_state()[1])  # noqa: NPY002


# ------------------------------------------------------------------------------------- scikit-learn's own tools


def test_a_pipeline_fills_gaps_and_classifies(cancer):
    X, y = cancer
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.05, np.nan, X)
    steps = make_pipeline(SimpleImputer(), StandardScaler(), bype.ByPEVAE(**TINY), LogisticRegression(max_iter=1000))
    assert steps.fit(X[:400], y[:400]).score(X[400:], y[400:]) > 0.9
    names = steps[:-1].get_feature_names_out()
    assert names.tolist() == [f"bypevae{k}" for k in range(15)]


def test_a_grid_of_points_is_searched_by_held_out_likelihood():
    X = table(90)
    search = GridSearchCV(bype.ByPEVAE(**TINY), {"n_pseudopoints": [1, 10]}, cv=2).fit(X)
    assert len(search.best_estimator_.coreset_) == search.best_params_["n_pseudopoints"]
    single = [clone(search.estimator).set_params(n_pseudopoints=1).fit(X[45:]).score(X[:45])]
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(single[0])


@pytest.mark.slow
def test_two_thousand_rows_take_less_than_a_minute(cancer):
    X = np.tile(cancer[0], (4, 1))[:2000] + np.random.default_rng(0).normal(size=(2000, 30)) * cancer[0].std(0) / 10
    start = time.process_time()
    bype.ByPEVAE().fit(X)
    assert time.process_time() - start < 60


# ------------------------------------------------------------------------------------------ what it can be given


def test_images_come_back_in_their_shape_and_units(tmp_path):
    images = np.clip(load_digits().images[:300] * 16, 0, 255).astype(np.uint8)
    vae = bype.ByPEVAE(n_pseudopoints=20, max_epochs=20, n_draws=20).fit(images, load_digits().target[:300])
    assert vae.sample(3, random_state=0).shape == (3, 8, 8)
    assert vae.sample(3, random_state=0).dtype == np.uint8
    assert np.array_equal(vae.sample(3, random_state=0), vae.sample(3, random_state=0))
    assert not np.array_equal(vae.sample(3), vae.sample(3))
    error = vae.reconstruct(images).astype(float) - images
    assert np.square(error).mean() < 0.2 * images.var()
    assert vae.transform(images).shape == (300, 40)
    assert vae.n_features_in_ == 64
    # A density in bytes is 256 times thinner for each pixel than in [0, 1].
    as_floats = (torch.from_numpy(images[:20, None]) + 0.5) / 256
    bound = bype.importance_weighted_bound(vae.model_, as_floats, 500, generator=torch.Generator().manual_seed(0))
    found = vae.set_params(n_draws=500).score_samples(images[:20])
    # All rows share their draws, so their errors do not average out.
    tolerance = 4 * float(bound.monte_carlo_error.mean())
    assert found.mean() == pytest.approx(float(bound.log_likelihood.mean()) - 64 * np.log(256), abs=tolerance)
    assert tolerance < 4
    assert [image.size for image in vae.coreset_.to_images()] == [(8, 8)] * 20
    assert vae.coreset_.points.dtype == np.uint8
    vae.save(tmp_path / "saved")
    assert np.array_equal(bype.ByPEVAE.load(tmp_path / "saved").coreset_.points, vae.coreset_.points)
    with pytest.raises(ValueError, match=r"fitted were images \(uint8\) of shape \(8, 8\)"):
        vae.transform(images[:, :4])
    with pytest.raises(ValueError, match="must hold images"):
        vae.transform(images.reshape(300, 64))


def test_colours_first_or_last_and_floats():
    generator = np.random.default_rng(0)
    last = generator.integers(0, 256, (40, 5, 6, 3), dtype=np.uint8)
    vaes = [bype.ByPEVAE(**TINY).fit(images) for images in (last, torch.from_numpy(last.transpose(0, 3, 1, 2).copy()))]
    assert vaes[0].sample(2).shape == (2, 5, 6, 3)
    assert vaes[1].sample(2).shape == (2, 3, 5, 6)
    np.testing.assert_array_equal(
        vaes[0].reconstruct(last[:4]), vaes[1].reconstruct(last[:4].transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    )
    assert vaes[0].coreset_.to_images()[0].size == (6, 5)
    floats = bype.ByPEVAE(**TINY).fit(last[..., 0] / 255)
    assert floats.sample(2).shape == (2, 5, 6)
    assert 0 <= floats.sample(50).min() <= floats.sample(50).max() <= 1
    for order in "<>":  # one of them is not this machine's
        grey = (last[..., 0] / 255).astype(f"{order}f8")
        assert_same_model(floats, bype.ByPEVAE(**TINY).fit(grey))
        np.testing.assert_array_equal(floats.score_samples(grey[:4]), floats.score_samples(last[:4, ..., 0] / 255))
    with pytest.raises(
        ValueError, match=r"images of shape \(5, 6, 2\) have neither 1 nor 3 channels, first or last; keep"
    ):
        bype.ByPEVAE(**TINY).fit(last[..., :2])
    with pytest.raises(ValueError, match=r"values in \[0, 1\]"):
        bype.ByPEVAE(**TINY).fit(last[..., 0].astype(float))


def test_a_path_a_store_and_a_tensor_give_the_same_model(tmp_path):
    X = table().astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    prepare(tmp_path / "x.npy", tmp_path / "store", test=0)
    expected = bype.ByPEVAE(**TINY).fit(X)
    for given in (torch.from_numpy(X), tmp_path / "x.npy", str(tmp_path / "store"), Store(tmp_path / "store")):
        vae = bype.ByPEVAE(**TINY).fit(given)
        assert all(
            torch.equal(a, b) for a, b in zip(vae.model_.parameters(), expected.model_.parameters(), strict=True)
        )
    np.testing.assert_array_equal(vae.score_samples(tmp_path / "x.npy"), expected.score_samples(X))
    validation = Store(tmp_path / "store").split("validation").read(np.arange(12))
    np.testing.assert_array_equal(vae.transform(tmp_path / "store"), expected.transform(validation))
    with pytest.raises(ValueError, match="leave y out"):
        vae.fit(tmp_path / "x.npy", np.zeros(120))


def test_neighbours_are_counted_in_what_was_given(tmp_path):
    X = table().astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    expected = bype.ByPEVAE(**TINY).fit(X).coreset_.neighbours
    np.testing.assert_array_equal(bype.ByPEVAE(**TINY).fit(tmp_path / "x.npy").coreset_.neighbours, expected)


def test_neighbours_in_folders_of_splits_are_counted_as_results_are(tmp_path):
    for split, shades in (("test", range(100, 200, 10)), ("train", range(60))):
        (tmp_path / "photos" / split).mkdir(parents=True)
        for shade in shades:
            Image.new("L", (8, 8), shade).save(tmp_path / "photos" / split / f"{shade:03}.png")
    vae = bype.ByPEVAE(**TINY).fit(tmp_path / "photos")
    assert len(vae.transform(tmp_path / "photos")) == 70
    assert vae.coreset_.neighbours.min() >= 10  # those of test are no neighbours
    assert vae.coreset_.neighbours.max() < 70


def test_a_path_is_used_a_bounded_number_of_examples_at_a_time(tmp_path, monkeypatch):
    X = table(1100).astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=0)
    vae = bype.ByPEVAE(**TINY).fit(X[:120])
    sizes, embed = [], vae._scorer.embed
    monkeypatch.setattr(vae._scorer, "embed", lambda x: sizes.append(len(x)) or embed(x))
    of_array = vae.transform(X)
    for place in (tmp_path / "x.npy", tmp_path / "store"):
        np.testing.assert_allclose(vae.transform(place), of_array, rtol=1e-12, atol=1e-12)
    assert max(sizes) <= 512
    assert sum(sizes) == 3 * len(X)


def shaded(folder, count, size=8):
    """Write grey images, each with its number as its shade; two of the files are no images."""
    folder.mkdir()
    for number in range(count):
        Image.new("L", (size, size), 10 * number).save(folder / f"{number:02}.png")
    for number in (3, 7):
        (folder / f"{number:02}.png").write_bytes(b"no image")
    return folder


def test_files_that_cannot_be_read_are_told_and_not_counted_as_others(tmp_path):
    folder = shaded(tmp_path / "photos", 20)
    with pytest.warns(UserWarning, match=r"2 files were skipped; the first: .*03\.png"):
        vae = bype.ByPEVAE(**TINY).fit(folder)
    with pytest.warns(UserWarning, match="2 files were skipped"):
        latents = vae.transform(folder)
    assert len(latents) == 18
    found = vae.coreset_.neighbours
    trained = np.unique(found)
    assert set(trained.tolist()) <= set(range(18))  # rows of what transform returns
    points = vae.transform(vae.coreset_.points)
    distances = np.linalg.norm(points[:, None] - latents[trained], axis=2)
    assert distances.min(1) == pytest.approx(np.linalg.norm(points - latents[found[:, 0]], axis=1), rel=1e-4)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    Image.fromarray(noise).save(damaged / "one.png")
    (damaged / "one.png").write_bytes((damaged / "one.png").read_bytes()[:200])  # a good header, and few pixels
    with pytest.raises(ValueError, match=r"none of the examples .*one\.png"):
        vae.transform(damaged)


def test_what_was_fitted_by_a_path_is_used_by_a_path(tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    for number in range(12):
        Image.new("L", (80, 80), 20 * number).save(folder / f"{number:02}.png")
    with pytest.warns(UserWarning, match="80x80: they are cropped and resized to 64 x 64 pixels"):
        vae = bype.ByPEVAE(**TINY).fit(folder)
    assert len(vae.transform(folder)) == 12
    digits = tmp_path / "digits"
    digits.mkdir()
    for prefix in ("train", "t10k"):
        images = np.random.default_rng(0).integers(0, 256, (20, 6, 6), dtype=np.uint8)
        (digits / f"{prefix}-images-idx3-ubyte").write_bytes(
            struct.pack(">4B3I", 0, 0, 8, 3, 20, 6, 6) + images.tobytes()
        )
        (digits / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 20) + bytes(20))
    assert len(bype.ByPEVAE(**TINY).fit(digits).transform(digits)) == 40


def test_it_scores_as_the_command_does(tmp_path):
    np.save(tmp_path / "x.npy", table(60))
    prepare(tmp_path / "x.npy", tmp_path / "store", test=0)
    vae = bype.ByPEVAE(**{**TINY, "n_draws": 20}, run_dir=tmp_path / "run").fit(tmp_path / "store")
    run = bype.TrainedRun.open(tmp_path / "run")
    found = bype.score_examples(run, "train", options=ScoreOptions(20, 10))
    rows = run.store().split("train").read(found.rows)
    np.testing.assert_allclose(vae.score_samples(rows), found.log_likelihood, atol=1e-3)  # float64 and float32


def test_tensors_of_half_precision_are_taken():
    rows = torch.from_numpy(table(40)).bfloat16()
    vae = bype.ByPEVAE(**TINY).fit(rows)
    np.testing.assert_array_equal(vae.transform(rows), vae.transform(rows.float()))


def test_a_store_without_validation_gives_the_last_model(tmp_path):
    np.save(tmp_path / "x.npy", table(40))
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=0)
    vae = bype.ByPEVAE(**TINY).fit(tmp_path / "store")
    assert vae._fitted.step == 3 * 5  # 3 epochs of 40 examples, 8 at a time
    assert np.isfinite(vae.score(table(40)))
    prepare(tmp_path / "x.npy", tmp_path / "one", validation=39, test=0)
    with pytest.raises(ValueError, match="at least 2 samples to train on, not 1"):
        vae.fit(tmp_path / "one")


def test_a_table_in_a_file_has_a_column_of_labels(tmp_path):
    X, kinds = table(), np.array(["round", "long"])[np.arange(120) % 2]
    pd.DataFrame(X, columns=list("abcd")).assign(kind=kinds).to_csv(tmp_path / "t.csv", index=False)
    vae = bype.ByPEVAE(**TINY).fit(tmp_path / "t.csv", y="kind")
    assert vae.config_.labelled
    assert vae.feature_names_in_.tolist() == list("abcd")
    assert vae.sample(2, "round").shape == (2, 4)
    assert vae.score_samples(tmp_path / "t.csv").shape == (120,)
    for y, message in (
        (None, "column 'kind' holds 'round', not a number; name it with y if it is the label"),
        ("knd", "no column 'knd'; it has a, b, c, d, kind; did you mean 'kind'"),
        (kinds, "leave y out"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            vae.fit(tmp_path / "t.csv", y=y)
        assert "--" not in str(error.value)
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(ValueError, match="y is for tables; labels of arrays"):
        vae.fit(tmp_path / "x.npy", y="kind")


@pytest.mark.parametrize("label", [0, 2, 4])
def test_a_table_without_names_is_used_again_with_its_labels(tmp_path, label, capsys):
    X, path = table(), tmp_path / "t.csv"
    pd.DataFrame(np.insert(X, label, np.arange(120) % 2, axis=1)).to_csv(path, index=False, header=False)
    vae = bype.ByPEVAE(**TINY, run_dir=tmp_path / "run").fit(path, y=f"column {label}")
    X = X.astype(np.float32)
    np.testing.assert_allclose(vae.score_samples(path), vae.score_samples(X))
    pd.DataFrame(X).to_csv(tmp_path / "new.csv", index=False, header=False)  # new rows have no labels
    np.testing.assert_allclose(vae.score_samples(tmp_path / "new.csv"), vae.score_samples(X), rtol=1e-5)
    assert (
        main(["score", str(tmp_path / "run"), "--data", str(path), "--samples", "2", "--out", str(tmp_path / "s.csv")])
        == 0
    )
    capsys.readouterr()


def test_a_table_without_names_and_without_labels_takes_no_more_columns(tmp_path):
    np.savetxt(tmp_path / "t.csv", table(), delimiter=",")
    np.savetxt(tmp_path / "wide.csv", np.insert(table(), 0, 1, axis=1), delimiter=",")
    vae = bype.ByPEVAE(**TINY).fit(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=r"of shape \(5,\), fitted were"):
        vae.predict(tmp_path / "wide.csv")


def test_a_table_in_a_file_brings_its_names(tmp_path):
    lines = ["length,mass", *(f"{a},{b}" for a, b in table()[:, :2])]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    vae = bype.ByPEVAE(**TINY).fit(tmp_path / "table.csv")
    assert vae.feature_names_in_.tolist() == ["length", "mass"]
    assert vae.score_samples(tmp_path / "table.csv").shape == (120,)
    (tmp_path / "unnamed.csv").write_text("\n".join(lines[1:]))
    assert vae.score(tmp_path / "unnamed.csv") == vae.score(tmp_path / "table.csv")
    (tmp_path / "turned.csv").write_text("\n".join(",".join(line.split(",")[::-1]) for line in lines))
    prepare(tmp_path / "turned.csv", tmp_path / "turned")
    assert vae.score(tmp_path / "turned.csv") == vae.score(tmp_path / "table.csv")  # columns are found by their names
    for given in (tmp_path / "turned", Store(tmp_path / "turned")):
        with pytest.raises(ValueError, match="column 0 is called 'mass' instead of 'length'; give the same columns"):
            vae.score_samples(given)
    vae.save(tmp_path / "saved")
    run = bype.TrainedRun.open(tmp_path / "saved")
    with pytest.raises(RunError, match="column 0 is called 'mass' instead of 'length'; give the same"):
        run.store(tmp_path / "turned")
    prepare(tmp_path / "unnamed.csv", tmp_path / "unnamed")
    assert len(run.store(tmp_path / "unnamed").split("test")) == 12


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_come_in_and_go_out(library):
    frames = pytest.importorskip(library)
    frame = frames.DataFrame(dict(zip("abcd", table().T, strict=True)))
    vae = bype.ByPEVAE(**TINY).set_output(transform=library).fit(frame)
    assert vae.feature_names_in_.tolist() == list("abcd")
    latents = vae.transform(frame)
    assert isinstance(latents, frames.DataFrame)
    assert list(latents.columns) == ["bypevae0", "bypevae1"]
    assert_same_model(vae, bype.ByPEVAE(**TINY).fit(table()))
    assert vae.coreset_.names == tuple("abcd")
    with pytest.raises(ValueError, match="feature names"):
        vae.transform(frame[["b", "a", "c", "d"]])


def test_text_is_refused_by_scikit_learn():
    with pytest.raises(ValueError, match="could not convert string to float"):
        bype.ByPEVAE(**TINY).fit(np.array([["a", "b"]] * 9, dtype=object))


def test_a_text_column_is_named_even_if_two_columns_have_its_name():
    frame = pd.DataFrame(np.arange(60.0).reshape(20, 3).astype(object), columns=["a", "b", "b"])
    frame.iloc[3, 2] = "x"
    with pytest.raises(ValueError, match="could not convert column 'b'"):
        bype.ByPEVAE(**TINY).fit(frame)


def test_dates_are_refused_and_not_counted_in_microseconds():
    days = np.arange("2020-01-01", "2020-01-21", dtype="datetime64[D]")
    for X in (
        np.stack([days, days], 1),
        pd.DataFrame({"a": np.arange(20.0), "day": days.astype("datetime64[ns]")}),
        pl.DataFrame({"a": np.arange(20.0), "day": days}),
    ):
        with pytest.raises(ValueError, match="turn dates"):
            bype.ByPEVAE(**TINY).fit(X)
    with pytest.raises(ValueError, match="could not convert column 'kind'"):
        bype.ByPEVAE(**TINY).fit(pl.DataFrame({"a": np.arange(20.0), "kind": ["u", "v"] * 10}))


def test_a_picture_beside_the_folders_of_classes_is_told(tmp_path):
    for name in (*(f"{kind}/{k}.png" for kind in ("cat", "dog") for k in range(8)), "logo.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4), len(name), dtype=np.uint8)).save(tmp_path / name)
    with pytest.warns(UserWarning, match=r"no class labels are taken: logo.png is in no class folder"):
        vae = bype.ByPEVAE(**TINY).fit(tmp_path)
    with pytest.raises(ValueError, match=r"because logo.png is in no class folder"):
        vae.sample(2, y="cat")


def test_images_outside_the_unit_interval_are_told_their_range():
    with pytest.raises(ValueError, match="not from -1 to 1; bring them there"):
        bype.ByPEVAE(**TINY).fit(np.linspace(-1, 1, 20 * 64).reshape(20, 8, 8))


# ------------------------------------------------------------------------------------------- samples, points


def test_samples_have_the_spread_of_the_data(cancer, fitted):
    made, X = fitted.sample(2000, random_state=0), cancer[0]
    assert np.abs(made.mean(0) - X.mean(0)).max() / X.std(0).max() < 0.3
    ratio = made.std(0) / X.std(0)
    assert ratio.min() > 0.6
    assert ratio.max() < 1.5
    near = np.corrcoef(made[:, 0], made[:, 3])[0, 1]  # radius and area
    assert near > 0.9


def test_what_is_decoded_is_in_the_units_of_the_table(cancer, fitted):
    X = cancer[0]
    made = fitted.reconstruct(X)
    assert np.square((made - X) / X.std(0)).mean() < 0.5
    x, size = torch.from_numpy(X[:20]).float(), X.std(0)
    np.testing.assert_allclose(bype.reconstruct(fitted.model_, x).numpy() / size, made[:20] / size, atol=1e-3)
    way = bype.interpolate(fitted.model_, x[0], x[1], 5).numpy()
    np.testing.assert_allclose(way[[0, -1]] / size, made[:2] / size, atol=1e-3)


def test_neighbours_are_added_with_the_labels_of_their_examples(cancer, fitted):
    X, y = cancer[0][:100], cancer[1][:100]
    more, labels = fitted.augment(X, y, random_state=0)
    np.testing.assert_array_equal(more[:100], X)
    np.testing.assert_array_equal(labels, np.concatenate([y, y]))
    scaled = (more - cancer[0].mean(0)) / cancer[0].std(0)
    distance = np.square(scaled[100:, None] - scaled[None, :100]).sum(2)
    assert (distance.argmin(1) == np.arange(100)).mean() > 0.5  # of 100 examples, most are nearest to their own
    assert not np.allclose(more[100:], fitted.reconstruct(X))


def test_the_coreset_stands_for_the_data(cancer, fitted):
    X, y = cancer
    coreset = fitted.coreset_
    num_train = 569 - 57
    assert coreset.points.shape == (128, 30)
    assert coreset.weights.sum() == pytest.approx(num_train)
    assert set(coreset.labels) == {"benign", "malignant"}
    # The nearest examples are rows of X: in latent space none of those trained on is nearer.
    latents, points = fitted.transform(X), fitted.transform(coreset.points)
    distance = np.linalg.norm(points[:, None] - latents, axis=2)
    trained = np.sort(np.unique(coreset.neighbours))
    own = distance[np.arange(128), coreset.nearest_indices]
    np.testing.assert_allclose(own, distance[:, trained].min(1), rtol=1e-3, atol=1e-3)  # found in float32
    truth = np.array(["benign", "malignant"])[1 - y]
    majority = [max(set(near), key=list(near).count) for near in truth[coreset.neighbours].tolist()]
    # A point keeps the label of its class; few stand among examples of the other one.
    assert np.mean(np.array(majority) == coreset.labels) > 0.85


def test_samples_of_a_class():
    X, y = make_blobs(400, 6, centers=3, random_state=1)
    names = np.array(["one", "two", "three"])[y]
    vae = bype.ByPEVAE(n_pseudopoints=30, max_epochs=30).fit(X, names)
    judge = LogisticRegression().fit(X, names)
    for name in ("one", "two", "three"):
        assert (judge.predict(vae.sample(100, name, random_state=0)) == name).mean() > 0.95, name
    with pytest.raises(ValueError, match="there is no class 'four'; there are 'one', 'three', 'two'"):
        vae.sample(1, "four")
    with pytest.raises(ValueError, match="give labels to fit, as text or whole numbers in y"):
        bype.ByPEVAE(**TINY).fit(X).sample(1, "one")


def test_points_that_start_as_noise_copy_no_example(tmp_path):
    X, y = table(), np.arange(120) % 2
    vae = clone(bype.ByPEVAE(**TINY, points_start="noise", run_dir=tmp_path / "run")).fit(X, y)
    assert (vae.config_.points_start, vae.config_.labelled) == ("noise", False)
    with pytest.raises(ValueError, match="start as noise have no classes; fit with points_start='examples'"):
        vae.sample(1, 0)
    assert bype.ByPEVAE.load(tmp_path / "run").points_start == "noise"
    with pytest.raises(RunError, match="points_start: noise there, examples here"):
        bype.ByPEVAE(**TINY, run_dir=tmp_path / "run").fit(X, y)
    with pytest.raises(ValueError, match="'points_start' parameter"):
        bype.ByPEVAE(points_start="nothing").fit(X)
    bype.ByPEVAE(**TINY).fit(X).save(tmp_path / "saved")
    about = tmp_path / "saved" / "estimator.json"
    now = about.read_text()
    assert '  "points_start": "examples",\n' in now
    about.write_text(now.replace('  "points_start": "examples",\n', ""))  # as it was written once
    assert bype.ByPEVAE.load(tmp_path / "saved").points_start == "examples"


def test_a_class_whose_only_example_was_held_out_is_called_by_its_name(tmp_path, capsys):
    X = table(60)
    y = np.array(["a", "b"] * 30)
    y[np.setdiff1d(np.arange(60), train_positions(source_of(X), 0))[0]] = "c"
    vae = bype.ByPEVAE(**TINY).fit(X, y)
    assert vae.sample(1, "b").shape == (1, 4)
    message = "class 'c' has no pseudo-points, since none of its examples was trained on; choose one of 'a', 'b'"
    with pytest.raises(ValueError, match=message):
        vae.sample(1, "c")
    vae.save(tmp_path / "saved")
    assert main(["sample", str(tmp_path / "saved"), "--label", "c", "--out", str(tmp_path / "made.npy")]) == 1
    assert message in capsys.readouterr().err


def test_points_weights_and_labels_train_a_classifier():
    X, y = make_blobs(400, 6, centers=3, random_state=1)
    coreset = bype.ByPEVAE(n_pseudopoints=30, max_epochs=30).fit(X[:300], y[:300]).coreset_
    classifier = LogisticRegression().fit(coreset.points, coreset.labels, sample_weight=coreset.weights)
    assert classifier.score(X[300:], y[300:]) > 0.95


def test_numbers_that_are_no_labels_are_ignored():
    vae = bype.ByPEVAE(**TINY)
    assert vae.fit(table(), np.linspace(0, 1, 120)).coreset_.labels is None
    assert vae.fit(table(), np.arange(120)).coreset_.labels is None
    for labels in (np.arange(120) % 3, np.arange(120) % 2 == 0, np.array(["a", "b"] * 60, dtype=object)):
        found = vae.fit(table(), labels).coreset_.labels
        assert set(found.tolist()) <= set(labels.tolist())


def test_labels_are_what_scikit_learn_calls_binary_or_multiclass():
    for count in (2, 3):
        whole = np.arange(120) % count
        text = np.array(["a", "b", "c"])[whole]
        for y in (
            whole,
            whole.astype(float),
            whole.astype(object),
            whole == 1,
            (whole == 1).astype(object),
            text.astype(object),
        ):
            plain = np.array(y.tolist())  # scikit-learn calls objects unknown, unless they are text
            assert type_of_target(plain) in ("binary", "multiclass")
            found = labels_of(y)
            assert (np.array(found.classes)[found.numbers] == plain).all()
            assert {type(name) for name in found.classes} == {int if y.dtype == float else type(plain.tolist()[0])}
            with pytest.warns(DataConversionWarning, match="column-vector"):
                column = labels_of(y[:, None])
            assert (column.classes, column.numbers.tolist()) == (found.classes, found.numbers.tolist())
    for y, why in (
        (np.linspace(0, 1, 120), "numbers that are not whole"),
        (np.where(np.arange(120) == 5, np.nan, 1.0), "missing values"),
        (np.arange(120), "120 different values in 120 examples"),
        (np.zeros((120, 2)), "not one column"),
        (np.array(["a", None] * 60, dtype=object), "missing values"),
        (pd.array(["a", pd.NA] * 60, dtype="string"), "missing values"),
        (np.array(["a", 1] * 60, dtype=object), "neither text alone nor whole numbers alone"),
    ):
        assert why in labels_of(y).why_none
        assert labels_of(y).numbers is None
    assert labels_of(None).why_none == ""


def test_samples_of_a_class_of_whole_floats_and_of_a_target_that_has_no_classes():
    vae = bype.ByPEVAE(**TINY).fit(table(), np.arange(120) % 2 * 1.0)
    assert vae.config_.labelled
    assert vae.sample(2, 1.0).shape == vae.sample(2, 1).shape == (2, 4)
    with pytest.raises(ValueError, match="no class labels were taken, because it holds numbers that are not whole"):
        vae.fit(table(), np.linspace(0, 1, 120)).sample(1, 1)


def test_progress_is_shown_on_request(capsys):
    bype.ByPEVAE(**TINY).fit(table())
    assert capsys.readouterr().out == ""
    bype.ByPEVAE(**TINY, verbose=True).fit(table())
    assert "validation" in capsys.readouterr().out


def test_minutes_end_a_fit():
    fitted = bype.ByPEVAE(**{**TINY, "max_epochs": 10**6, "max_minutes": 0.02}).fit(table())
    assert fitted.config_.length == "1 seconds"
    assert length_of(2.5) == "150 seconds"


def test_random_states_are_as_in_scikit_learn():
    one, two = (bype.ByPEVAE(**TINY, random_state=None).fit(table()) for _ in range(2))
    assert one.offset_ != two.offset_
    drawn = [bype.ByPEVAE(**TINY, random_state=np.random.RandomState(3)).fit(table()) for _ in range(2)]
    assert_same_model(*drawn)


def test_an_interrupt_stops_a_fit():
    script = "import numpy, bype; bype.ByPEVAE(6, max_epochs=10**6, verbose=1).fit(numpy.random.normal(size=(99, 3)))"
    words = [sys.executable, "-u", "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as fit:
        assert any("validation" in line for line in fit.stdout)  # it trains
        fit.send_signal(signal.SIGINT)
        _, errors = fit.communicate(timeout=120)
    assert errors.splitlines()[-1].startswith("KeyboardInterrupt")


def test_an_interrupt_in_the_last_step_is_not_lost(monkeypatch):
    """Else a search over settings would go on."""
    train = fitting.train_in_memory

    def interrupted(*arguments):
        kept = train(*arguments)
        return dataclasses.replace(kept, outcome=dataclasses.replace(kept.outcome, signal=signal.SIGINT))

    monkeypatch.setattr(fitting, "train_in_memory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bype.ByPEVAE(**TINY).fit(table())


def test_a_model_of_float_images_takes_bytes_as_pixels(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)
    pixels = ((images + 0.5) / 256).astype(np.float32)
    vae = bype.ByPEVAE(**TINY).fit(pixels)
    np.save(tmp_path / "bytes.npy", images[:20])
    np.testing.assert_allclose(vae.transform(tmp_path / "bytes.npy"), vae.transform(pixels[:20]), atol=1e-6)
    vae.save(tmp_path / "est")
    words = ["embed", str(tmp_path / "est"), "--data", str(tmp_path / "bytes.npy"), "--out", str(tmp_path / "e")]
    assert main(words) == 0
    with np.load(tmp_path / "e" / "part-000000.npz") as found:
        np.testing.assert_allclose(found["means"], vae.transform(pixels[:20]), atol=1e-6)


def test_images_for_a_model_of_a_table_are_refused_by_their_shape():
    vae = bype.ByPEVAE(**TINY).fit(table())
    with pytest.raises(ValueError, match=r"of shape \(4, 5\), fitted were rows of a table \(float32\) of shape \(4,\)"):
        vae.transform(table(60).reshape(3, 4, 20)[..., :5])


def test_what_people_try_is_answered():
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = np.array(["a", "b"] * 29 + [None, "a"], dtype=object)
    with pytest.warns(UserWarning, match="y has missing values"):
        fitted = bype.ByPEVAE(max_epochs=1).fit(X, y)
    with pytest.raises(ValueError, match="because it has missing values"):
        fitted.sample(2, y="a")
    fitted = bype.ByPEVAE(max_epochs=1).fit(X, np.zeros(60, int))
    with pytest.raises(ValueError, match="one class only, 0"):
        fitted.sample(2, y=0)
    for n in (2.5, "3", 0):
        with pytest.raises(ValueError, match="n must be a whole number"):
            fitted.sample(n)
    fitted = bype.ByPEVAE(max_epochs=1).fit(X, np.arange(60) % 2)
    with pytest.raises(ValueError, match="y must be one label"):
        fitted.sample(2, y=np.array([0, 1]))
    with pytest.raises(ValueError, match=r"np\.stack\(images\)"):
        bype.ByPEVAE(max_epochs=1).fit(list(np.zeros((20, 8, 8))))
    with pytest.raises(ValueError, match="X is one image"):
        bype.ByPEVAE(max_epochs=1).fit(Image.new("L", (8, 8)))
    assert labels_of([[1], [2, 3]]).why_none == "it is not one column"


def test_the_target_of_a_regression_is_no_label():
    """Its numbers are whole, and each value occurs twice on average."""
    X, y = load_diabetes(return_X_y=True)
    assert np.array_equal(y, np.round(y))
    vae = bype.ByPEVAE(max_epochs=1).fit(X, y)
    assert vae.coreset_.labels is None


@pytest.mark.parametrize("dtype", ["str", "category", "datetime64[ns]"])
def test_a_column_without_numbers_is_named(dtype):
    dates = pd.Series(np.resize(["2020-01-01", "2021-01-01"], 40)).astype(dtype)
    frame = pd.DataFrame({"length": np.arange(40.0), "date": dates})
    with pytest.raises(ValueError, match=r"column 'date' .*encode it"):
        bype.ByPEVAE(max_epochs=1).fit(frame)


def test_a_constant_column_counts_nothing_however_many_digits_it_has(tmp_path):
    x = table()
    scores = []
    for constant in (2024.0, 20240131.0, 1e12 + 1):  # float32 holds the first alone
        rows = np.column_stack([x, np.full(len(x), constant)])
        model = bype.ByPEVAE(**TINY).fit(rows[:100])
        np.save(tmp_path / "rows.npy", rows[100:])
        scores += [model.score(rows[100:]), model.score(str(tmp_path / "rows.npy"))]
    assert scores == pytest.approx(scores[:1] * 6, rel=1e-5)


def test_fits_in_threads_are_the_fits_of_one_thread():
    def fit():
        return bype.ByPEVAE(**TINY).fit(table(60)).score(table(60))

    alone = fit()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: fit(), range(6)))
    assert found == [alone] * 6
    assert torch.equal(torch.rand(3), expected)


def test_the_name_of_a_column_is_no_list_of_labels():
    frame = pd.DataFrame(table(6), columns=list("abcd"))
    for y in ("d", "kind 7"):  # as long as the table, or not
        with pytest.raises(ValueError, match=r"fit\(X\.drop\(columns=y\), X\[y\]\)"):
            bype.ByPEVAE(**TINY).fit(frame, y=y)


def test_one_row_of_a_data_frame_is_refused_in_words():
    frame = pd.DataFrame(table(), columns=list("abcd"))
    with pytest.raises(ValueError, match="single row"):
        bype.ByPEVAE(**TINY).fit(frame.to_numpy()).transform(frame.iloc[0])


def test_images_of_another_kind_name_the_way_out():
    images = np.random.default_rng(0).integers(0, 255, (30, 6, 6), dtype=np.uint8)
    model = bype.ByPEVAE(**TINY).fit(images)
    with pytest.raises(ValueError, match="give bytes from 0 to 255"):
        model.transform(images / 255)
    for separate in ([images[0], images[1, :4]], np.array([images[0], images[1, :4], None], dtype=object)[:2]):
        with pytest.raises(ValueError, match="different sizes"):
            model.fit(separate)


def test_samples_of_a_class_belong_to_it_also_with_few_rows():
    """A judge that sees all 178 wines knows their kind; by chance it would agree in a third of the samples."""
    x, y = load_wine(return_X_y=True)
    few, _, kinds, _ = train_test_split(x, y, train_size=106, random_state=0, stratify=y)
    model = bype.ByPEVAE(max_epochs=30, random_state=0).fit(few, kinds)
    judge = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    recognised = [(judge.predict(model.sample(100, y=kind)) == kind).mean() for kind in range(3)]
    assert np.mean(recognised) > 0.6
