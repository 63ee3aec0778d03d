"""What latent means know, against scikit-learn and closed forms."""

import dataclasses
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from bype.data.examples import StoreSource, spread_rows
from bype.data.prepare import prepare
from bype.distributed import Group
from bype.distributions import DiagonalNormal, StandardNormal
from bype.evaluation import evaluate as evaluation
from bype.evaluation.aggregate import active_units, prior_gap
from bype.evaluation.density import DensityOptions
from bype.evaluation.evaluate import evaluate
from bype.evaluation.records import read_results
from bype.evaluation.representation import NEIGHBOUR_COUNTS, can_be_laid_out, knn_accuracy, probe_accuracy, tsne
from bype.objective import ELBO
from bype.randomness import generator_for
from bype.run.opened import TrainedRun
from bype.training import validation
from bype.training.loop import train
from small_runs import small_config


def test_knn_is_that_of_scikit_learn():
    generator = np.random.default_rng(0)
    references = generator.integers(0, 5, (500, 3)).astype(np.float32)  # a grid: votes and distances often tie
    references += 1e-3 * generator.normal(size=references.shape).astype(np.float32)
    queries = generator.normal(2, 1.5, (333, 3)).astype(np.float32)
    labels, truth = generator.integers(0, 4, 500), generator.integers(0, 4, 333)
    found = knn_accuracy(references, labels, queries, truth)
    assert list(found) == [str(k) for k in NEIGHBOUR_COUNTS]
    for count in NEIGHBOUR_COUNTS:
        expected = KNeighborsClassifier(count, algorithm="brute").fit(references, labels).score(queries, truth)
        assert found[str(count)] == pytest.approx(expected, abs=1e-12)


def test_knn_with_few_references():
    means = np.eye(4, dtype=np.float32)
    assert list(knn_accuracy(means, np.arange(4), means, np.arange(4))) == ["3"]
    assert knn_accuracy(means[:2], np.arange(2), means, np.arange(4)) == {}


def test_an_evaluation_reports_the_knn_accuracy_of_its_means(bype_run, labelled_store):
    run = TrainedRun.open(bype_run)
    found = evaluate(run, "test", density=None, with_map=False).representation
    store = run.store()
    means, labels = [], []
    for name in ("train", "validation", "test"):
        split = store.split(name)
        rows = np.arange(len(split))
        means.append(run.model.encode_rows(StoreSource(split), torch.from_numpy(rows)).mean.numpy())
        labels.append(split.labels(rows))
    known, known_labels = np.concatenate(means[:2]), np.concatenate(labels[:2])
    for count in NEIGHBOUR_COUNTS:
        expected = KNeighborsClassifier(count, algorithm="brute").fit(known, known_labels).score(means[2], labels[2])
        assert found.knn_accuracy[str(count)] == pytest.approx(expected, abs=1e-12)
    assert (found.num_queries, found.num_references) == (75, 525)
    assert found.probe_accuracy > 0.6
    assert max(found.knn_accuracy.values()) > 0.8  # three kinds of image: it must have learned something


def test_a_split_that_is_among_the_references_is_not_its_own_neighbour(bype_run):
    found = evaluate(TrainedRun.open(bype_run), "validation", with_map=False)
    assert found.representation.num_references == 465
    assert read_results(bype_run).find(found.fingerprint, "validation") == found


def test_of_many_examples_the_same_rows_are_taken_everywhere(trained_exemplar, tmp_path, monkeypatch):
    """Limits that only large data reach: fewer rows than the split has, and still fewer for the gap and the map."""
    monkeypatch.setattr(evaluation, "_MAX_GAP_IMAGES", 20)
    monkeypatch.setattr(evaluation, "_MAP_POINTS", 30)
    monkeypatch.setattr(evaluation, "_MAX_PROBE_ROWS", 50)
    probed = []
    monkeypatch.setattr(evaluation, "probe_accuracy", lambda *arguments: probed.append(arguments) or 1.0)
    run = TrainedRun.open(Path(shutil.copytree(trained_exemplar, tmp_path / "run")))
    known, held_out = (run.store().split(name) for name in ("train", "validation"))
    rows, all_validation = np.arange(465), np.arange(len(held_out))
    all_train = run.model.encode_rows(StoreSource(known), torch.from_numpy(rows))
    of_validation = run.model.encode_rows(StoreSource(held_out), torch.from_numpy(all_validation))

    with pytest.raises(ValueError, match="max_examples must be at least 1"):
        evaluate(run, "train", density=None, max_examples=0)
    found = evaluate(run, "train", density=None, max_examples=100)
    taken = torch.from_numpy(spread_rows(465, 100))
    for_gap = torch.from_numpy(spread_rows(100, 20))
    references = DiagonalNormal(
        torch.cat([all_train.mean[taken], of_validation.mean]),
        torch.cat([all_train.log_variance[taken], of_validation.log_variance]),
    )
    expected = prior_gap(
        DiagonalNormal(all_train.mean[taken[for_gap]], all_train.log_variance[taken[for_gap]]),
        references,
        for_gap,
        run.model.prior.leave_out(run.model.prior_distribution(), taken[for_gap]),
        generator=generator_for(0, "prior gap"),
    )
    assert found.prior_gap.largest_gap.value == pytest.approx(expected.largest_gap.value, abs=1e-4)
    assert found.prior_gap.kl.value == pytest.approx(expected.kl.value, abs=1e-4)
    assert found.map.rows == taken[torch.from_numpy(spread_rows(100, 30))].tolist()
    assert found.map.labels == known.labels(np.array(found.map.rows)).tolist()
    ((others, other_labels, means, labels),) = probed
    fifty = spread_rows(len(held_out), 50)
    assert np.allclose(others, of_validation.mean.numpy()[fifty], atol=1e-5)
    assert np.array_equal(other_labels, held_out.labels(fifty))
    assert np.allclose(means, all_train.mean.numpy()[taken], atol=1e-5)
    assert np.array_equal(labels, known.labels(taken.numpy()))


def test_an_example_that_is_alone_is_not_compared_with_itself(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x_train=x[:1], x_test=x[1:])
    prepare(tmp_path / "x.npz", tmp_path / "one", validation=0)
    np.save(tmp_path / "y.npy", x)
    prepare(tmp_path / "y.npy", tmp_path / "store")
    config = small_config(prior="gaussian", likelihood="learned-gaussian", latent_dim=2, length="2 steps")
    train(config, tmp_path / "store", tmp_path / "run")
    found = evaluate(
        TrainedRun.open(tmp_path / "run"), "train", data=tmp_path / "one", density=DensityOptions(5), with_map=False
    )
    assert found.prior_gap is None
    assert found.density.num_images == 1


def test_validation_means_are_of_all_examples(trained_bype, monkeypatch):
    run = TrainedRun.open(trained_bype)
    source = StoreSource(run.store().split("validation"))
    prior = run.model.prior_distribution()
    monkeypatch.setattr(validation, "_BATCH", 7)  # of the 60 images, the last batch has 4
    found = validation.Validation(ELBO(run.model), source, 0, Group()).means(prior)
    terms = []
    with torch.no_grad():
        for number, first in enumerate(range(0, 60, 7)):
            x = source.read(np.arange(first, min(first + 7, 60)))
            terms.append(ELBO(run.model)(x, prior=prior, generator=generator_for(0, "validation", number)))
    assert found["negative_elbo"] == pytest.approx(-float(torch.cat([each.elbo for each in terms]).mean()), rel=1e-6)
    assert found["kl_z"] == pytest.approx(float(torch.cat([each.kl["z"] for each in terms]).mean()), rel=1e-6)


def test_probe_and_map():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 400)
    means = generator.normal(size=(400, 5)) + 8 * labels[:, None]
    assert probe_accuracy(means[:300], labels[:300], means[300:], labels[300:]) == 1.0
    assert probe_accuracy(means[:3], np.zeros(3, dtype=int), means[300:], labels[300:]) == (labels[300:] == 0).mean()
    placed = tsne(means[:60])
    assert placed.shape == (60, 2)
    centres = [placed[labels[:60] == k].mean(0) for k in (0, 1)]
    spread = placed[labels[:60] == 0].std()
    assert np.linalg.norm(centres[0] - centres[1]) > spread
    with pytest.raises(ValueError, match="at least five"):
        tsne(means[:4])


def test_rows_are_spread_evenly():
    assert spread_rows(5, 10).tolist() == [0, 1, 2, 3, 4]
    chosen = spread_rows(1_000_001, 11)
    assert chosen.tolist() == list(range(0, 1_000_001, 100_000))


@pytest.mark.parametrize("among_references", [True, False])
def test_prior_gap_against_its_closed_form(among_references):
    """x ~ N(0, 1), q(z | x) = N(a x, s^2): the aggregate is N(0, a^2 + s^2), in three dimensions."""
    generator = torch.Generator().manual_seed(0)
    a, s = 0.8, 0.7
    x = torch.randn(4000, 3, generator=generator).double()
    fresh = torch.randn(4000, 3, generator=generator).double()
    queries = DiagonalNormal(a * x, torch.full_like(x, 2 * math.log(s)))
    members = x if among_references else fresh
    references = DiagonalNormal(a * members, torch.full_like(x, 2 * math.log(s)))
    own = torch.arange(4000) if among_references else torch.full((4000,), -1)
    found = prior_gap(queries, references, own, StandardNormal(torch.zeros(3).double()), generator=generator)
    total = a * a + s * s
    gap = 3 * 0.5 * (total - 1 - math.log(total))
    kl = 3 * 0.5 * (total - 1 - math.log(s * s))
    assert abs(found.kl.value - kl) < 4 * found.kl.error
    assert found.smallest_gap.value - 4 * found.smallest_gap.error < gap
    assert found.largest_gap.value + 4 * found.largest_gap.error > gap
    assert found.smallest_gap.value < found.largest_gap.value
    assert found.largest_gap.value - found.smallest_gap.value < 0.1  # so many references leave little doubt
    assert (found.num_images, found.num_references) == (4000, 4000)


def test_active_units_are_those_that_vary():
    means = torch.randn(1000, 3) * torch.tensor([1.0, 0.2, 0.05]) + 5
    found = active_units(means)
    assert (found.num_active, found.num_units) == (2, 3)


def test_an_evaluation_keeps_what_it_does_not_measure_again(bype_run):
    run = TrainedRun.open(bype_run)
    first = evaluate(run, "test", density=DensityOptions(10))
    second = evaluate(run, "test", density=None, with_map=False)
    assert second.density == first.density
    assert second.map == first.map
    assert len(first.map.x) == 75
    assert first.map.labels == run.store().split("test").labels(np.array(first.map.rows)).tolist()


def test_the_linear_model_is_scored_on_the_same_examples_as_the_run(trained_features, tmp_path):
    run = TrainedRun.open(Path(shutil.copytree(trained_features, tmp_path / "run")))
    few = evaluate(run, "test", density=DensityOptions(5, 3), with_map=False, with_baseline=True)
    more = evaluate(run, "test", density=DensityOptions(5, 6), with_map=False)
    assert (few.density.num_images, few.baseline.num_examples) == (3, 3)
    assert (more.density.num_images, more.baseline.num_examples) == (6, 6)


def test_what_one_class_or_one_example_cannot_tell_is_left_out(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(tmp_path / "x.npz", x=rows, y=np.zeros(60, dtype=int))
    prepare(tmp_path / "x.npz", tmp_path / "store", validation=8, test=1)
    train(small_config(prior="gaussian", length="1 epoch", batch_size=10), tmp_path / "store", tmp_path / "run")
    found = evaluate(TrainedRun.open(tmp_path / "run"), "test", density=DensityOptions(3), with_map=False)
    assert found.representation is None
    assert found.active_units is None
    assert evaluate(TrainedRun.open(tmp_path / "run"), "validation", density=None, with_map=False).active_units


def test_the_linear_model_stays_as_it_was_measured_when_only_the_rest_is_measured_again(trained_features, tmp_path):
    run = TrainedRun.open(Path(shutil.copytree(trained_features, tmp_path / "run")))
    first = evaluate(run, "test", density=DensityOptions(5), with_map=False, with_baseline=True)
    again = evaluate(run, "test", density=None, max_examples=10, with_map=False)
    assert first.baseline.error_of_difference is not None
    assert again.baseline == dataclasses.replace(first.baseline, knn_accuracy=None)


@pytest.mark.parametrize("spread", [0.0, 1e-25, 1e25])
def test_means_that_a_map_cannot_show_have_none(spread):
    means = spread * np.random.default_rng(0).normal(size=(50, 3))
    assert not can_be_laid_out(means)
