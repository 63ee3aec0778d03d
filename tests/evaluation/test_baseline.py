"""The linear model beside a run: the same examples, the same kind of number, the run's own training data."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier

from bype.cli.fit import _beside_the_linear_model
from bype.data.prepare import prepare
from bype.evaluation.baseline import measure_baseline
from bype.evaluation.density import DensityOptions
from bype.evaluation.evaluate import evaluate
from bype.evaluation.generation import reconstruct
from bype.evaluation.records import Baseline, Density, Estimate
from bype.likelihoods import DiscretisedLogistic
from bype.run.build import require_fitting
from bype.run.config import ConfigError
from bype.run.opened import TrainedRun
from small_runs import small_config, small_run


def test_the_density_of_a_byte_plus_noise_integrates_to_one():
    likelihood = DiscretisedLogistic(levels=8)
    x = (torch.floor(torch.arange(8000) / 1000) + 0.5)[:, None] / 8  # a fine grid, each position by its level
    density = (likelihood.log_prob(x, torch.tensor([0.3])) + likelihood.log_normaliser).exp()
    assert float(density.detach().mean()) == pytest.approx(1, abs=1e-5)


def test_bytes_are_compared_as_a_density(labelled_store, tmp_path):
    folder = small_run(tmp_path / "run", labelled_store, likelihood="discretised-logistic")
    found = evaluate(TrainedRun.open(folder), "test", density=DensityOptions(5, 10), with_map=False, with_baseline=True)
    size = math.prod(TrainedRun.open(folder).data.shape)
    probability = found.density.negative_log_likelihood.value
    assert found.density.of_density == pytest.approx(probability - size * math.log(256))
    assert found.density.bits_per_dimension == pytest.approx(probability / size / math.log(2))
    gain = found.baseline.negative_log_likelihood.value - found.density.of_density
    error = found.baseline.error_of_difference
    assert f"{abs(gain):.1f} ± {error:.1f} nats" in found.baseline.verdict(found.density, size)
    own, linear = found.density.of_density, found.baseline
    lines = " ".join(" ".join(_beside_the_linear_model(found, size)).split())
    assert f"-log p(x), nats per example {own:,.1f} {linear.negative_log_likelihood.value:,.1f} " in lines
    assert f"of reconstructions {linear.own_squared_error:.4g} {linear.squared_error:.4g} " in lines


def test_the_error_of_the_difference_is_that_of_pairs(labelled_store, tmp_path):
    """Scores that vary a lot, but in the same way for both models, have a difference that is known well."""
    run = TrainedRun.open(small_run(tmp_path / "run", labelled_store))
    train, test = (run.store().split(name) for name in ("train", "test"))
    known, x = ((split.read(np.arange(len(split))).reshape(len(split), -1) + 0.5) / 256 for split in (train, test))
    of_linear = PCA(run.config.latent_dim).fit(known).score_samples(x)
    own = of_linear + np.random.default_rng(0).normal(5, 2, len(x))
    found = measure_baseline(run, train, (test, np.arange(len(x))), torch.from_numpy(own))
    assert found.error_of_difference == pytest.approx(np.std(own - of_linear, ddof=1) / len(x) ** 0.5, rel=0.05)
    assert found.negative_log_likelihood.error > 2 * found.error_of_difference


def test_each_squared_error_is_that_of_its_own_reconstructions(labelled_store, tmp_path):
    run = TrainedRun.open(small_run(tmp_path / "run", labelled_store))
    train, test = (run.store().split(name) for name in ("train", "test"))
    known, x = ((split.read(np.arange(len(split))).reshape(len(split), -1) + 0.5) / 256 for split in (train, test))
    found = measure_baseline(run, train, (test, np.arange(len(x))), None)
    pca = PCA(run.config.latent_dim).fit(known)
    kept = 1 - pca.noise_variance_ / pca.explained_variance_  # the mean of the posterior is nearer to zero
    of_linear = (pca.transform(x) * kept) @ pca.components_ + pca.mean_
    assert found.squared_error == pytest.approx(np.square(of_linear - x).sum(1).mean(), rel=0.01)
    images = torch.from_numpy(x.reshape(-1, *run.data.shape)).float()
    own = (reconstruct(run.model, images) - images).square().flatten(1).sum(1).mean()
    assert found.own_squared_error == pytest.approx(float(own), rel=1e-4)


def test_neighbours_are_looked_for_among_the_same_examples(labelled_store, tmp_path):
    """The queries and the references are those of the run's own accuracy; scikit-learn is given the same."""
    run = TrainedRun.open(small_run(tmp_path / "run", labelled_store))
    found = evaluate(run, "test", density=DensityOptions(5, 10), with_map=False, with_baseline=True)
    assert found.representation.num_queries > found.density.num_images

    def pixels(name: str) -> tuple[np.ndarray, np.ndarray]:
        split = run.store().split(name)
        rows = np.arange(len(split))
        return (split.read(rows).reshape(len(rows), -1) + 0.5) / 256, split.labels(rows)

    (train, train_labels), (more, more_labels), (x, labels) = map(pixels, ("train", "validation", "test"))
    components = PCA(run.config.latent_dim).fit(train)
    references = components.transform(np.concatenate([train, more]))
    assert len(references) == found.representation.num_references
    judge = KNeighborsClassifier(5).fit(references, np.concatenate([train_labels, more_labels]))
    accuracy = float((judge.predict(components.transform(x)) == labels).mean())
    assert found.baseline.knn_accuracy["5"] == pytest.approx(accuracy, abs=1.5 / len(x))  # near ties may fall otherwise


def density_of(value, *, scale="density", num_samples=500, effective=50.0):
    nothing = Estimate(0.0, 0.0)
    normalised = value if scale == "density" else None
    return Density(
        200, num_samples, scale, Estimate(value, 9.0), 0.01, effective, 1.0, normalised, None, nothing, nothing, {},
        "float32", None, 1.0,
    )  # fmt: skip


def baseline_of(value, *, error=1.0, num_examples=200):
    return Baseline("probabilistic PCA", 4, num_examples, Estimate(value, 9.0), error, 999.0, 1.0, 1.0, None, None)


@pytest.mark.parametrize(
    ("effective", "num_samples", "is_told"), [(1.5, 500, True), (50.0, 500, False), (5.0, 5, False), (1.2, 5, True)]
)
def test_few_draws_are_told_unless_all_count(effective, num_samples, is_told):
    verdict = baseline_of(20.0).verdict(density_of(10.0, num_samples=num_samples, effective=effective), 144)
    assert (f"the effective sample size is {effective} of {num_samples})" in verdict) == is_told


def test_a_difference_within_its_error_is_called_so():
    for error, gain, words in ((3.0, 5.0, "about as good as"), (3.0, -5.0, "5.0 ± 3.0 nats"), (1.0, -5.0, "± 1.0")):
        verdict = baseline_of(20.0, error=error).verdict(density_of(20.0 - gain), 144)
        assert words in verdict
        assert ("Try more" in verdict) == (error == 1.0)


def test_a_worse_model_is_said_to_be_worse():
    verdict = baseline_of(20.0, error=0.5).verdict(density_of(23.0), 30)
    assert verdict.startswith("The model is 3.0 ± 0.5 nats per example (0.144 bits per dimension) worse")
    assert "Try more --minutes" in verdict


def test_one_example_tells_little():
    verdict = baseline_of(20.0, error=0.0, num_examples=1).verdict(density_of(25.0), 144)
    assert "5.0 nats per example (0.050 bits per dimension) worse" in verdict
    assert verdict.endswith("One example tells little.")


def test_a_cross_entropy_is_not_compared():
    assert "cannot be compared" in baseline_of(20.0).verdict(density_of(10.0, scale="cross-entropy"), 144)


def test_the_error_of_the_difference_is_that_of_the_newest_draws(labelled_store, tmp_path):
    folder = small_run(tmp_path / "run", labelled_store)
    errors = []
    for num_samples, with_baseline in ((2, True), (50, False), (50, True)):
        density = DensityOptions(num_samples, 20)
        found = evaluate(TrainedRun.open(folder), "test", density=density, with_map=False, with_baseline=with_baseline)
        errors.append(found.baseline.error_of_difference)
        if num_samples == 50:
            (folder / "evaluation.json").unlink()
    assert errors[0] != errors[1] == errors[2]


def test_logits_are_refused_where_a_network_starts_at_the_mean_of_pixels():
    with pytest.raises(ConfigError, match="for bernoulli choose vae"):
        require_fitting(small_config(network="dense", likelihood="bernoulli"), (1, 12, 12), 500)


def test_the_linear_model_is_fitted_to_the_training_data_of_the_run(trained_features, tmp_path):
    run = TrainedRun.open(Path(shutil.copytree(trained_features, tmp_path / "run")))
    rows = np.arange(len(run.store().split("test")))
    x = run.store().split("test").read(rows)
    np.save(tmp_path / "x.npy", np.concatenate([x] * 4) + 100.0)
    prepare(tmp_path / "x.npy", tmp_path / "other")
    other = evaluate(
        run, "test", data=tmp_path / "other", density=DensityOptions(5), with_map=False, with_baseline=True
    )
    own = measure_baseline(run, run.store().split("train"), (run.store().split("test"), rows))
    # rows that are far from the training data are unlikely, though a model of these rows would find them likely
    assert other.baseline.negative_log_likelihood.value > own.negative_log_likelihood.value + 100


def test_a_line_of_an_update_does_not_hide_what_training_gained(trained_features, tmp_path):
    run = TrainedRun.open(Path(shutil.copytree(trained_features, tmp_path / "run")))
    path = run.folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = next(line for line in lines if line["step"] == run.step and "validation" in line)
    first = {**kept, "step": 0, "validation": {**kept["validation"], "negative_elbo": 1e3}}
    update = {name: value for name, value in kept.items() if name != "validation"} | {"update": {"moved": 1.0}}
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, kept, update)))
    found = measure_baseline(run, run.store().split("train"), (run.store().split("test"), np.arange(5)))
    assert found.gain_in_training == pytest.approx(1e3 - kept["validation"]["negative_elbo"])


def test_pca_may_learn_from_shifts_if_the_run_does(tmp_path):
    """Few images of one square in many places: shifts teach PCA the places that are missing."""
    random = np.random.default_rng(0)
    images = np.zeros((60, 8, 8), dtype=np.uint8)
    for image in images:
        top, left = random.integers(0, 6, 2)
        image[top : top + 3, left : left + 3] = 200
    np.save(tmp_path / "x.npy", images)
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=5, test=30)
    run = TrainedRun.open(small_run(tmp_path / "run", tmp_path / "store", components=5))
    scored = run.store().split("test"), np.arange(30)
    plain, shifted = (
        measure_baseline(
            dataclasses.replace(run, config=dataclasses.replace(run.config, shifts=shifts)),
            run.store().split("train"),
            scored,
        ).negative_log_likelihood.value
        for shifts in (0, 2)
    )
    assert shifted < plain - 1
