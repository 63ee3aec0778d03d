"""The audit: distances against brute force, its test against simulation, and models that copy or do not."""

import dataclasses
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor, nn

from bype.cli import main
from bype.data.files import FileError
from bype.data.prepare import prepare
from bype.data.store import Store
from bype.evaluation import audit_records, neighbours
from bype.evaluation.audit import audit_run
from bype.evaluation.audit_records import Audit, Closeness, Share, compare, read_audit
from bype.evaluation.neighbours import nearest
from bype.likelihoods import FixedGaussian, SquaredError
from bype.models import VAE
from bype.priors import GaussianPrior, Prior, TensorSource
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.prior import PseudocoresetPrior
from bype.report.audit_page import audit_page
from bype.report.contents import gather
from bype.report.page import render
from bype.run.build import build_model
from bype.run.config import ConfigError, TrainingConfig
from bype.run.directory import RunError
from bype.run.identity import DataIdentity
from bype.run.opened import TrainedRun
from bype.share.mixin import CANNOT_TELL, warning_of
from small_runs import small_config, striped_images


def test_distances_against_brute_force(monkeypatch):
    monkeypatch.setattr(neighbours, "_CHUNK_ROWS", 37)
    generator = torch.Generator().manual_seed(0)
    examples = torch.rand(300, 3, 4, 4, generator=generator)
    queries = torch.rand(50, 48, generator=generator)
    queries[:10] = examples[100:110].flatten(1)  # copies
    queries[10:20] = examples[200:210].flatten(1) + 1e-4 * torch.rand(10, 48, generator=generator)
    found = nearest(queries, TensorSource(examples))
    wanted = (queries.double()[:, None] - examples.flatten(1).double()).square().sum(2).sqrt()
    distances, rows = wanted.sort(1)
    assert found.rows.tolist() == rows[:, 0].tolist()
    np.testing.assert_allclose(found.distance, distances[:, 0], rtol=1e-12)  # float64 on both sides
    np.testing.assert_allclose(found.second, distances[:, 1], rtol=1e-12)
    assert (found.distance[:10] == 0).all()
    assert (found.ratio[:20] < 1e-3).all()


def test_an_example_that_occurs_several_times_counts_once():
    generator = torch.Generator().manual_seed(0)
    examples = torch.rand(40, 12, generator=generator)
    queries = examples[:20] + 1e-3 * torch.rand(20, 12, generator=generator)
    once = nearest(queries, TensorSource(examples))
    for times in (2, 7):
        found = nearest(queries, TensorSource(examples.repeat(times, 1)))
        np.testing.assert_allclose(found.ratio, once.ratio, rtol=1e-12)
    many = nearest(queries, TensorSource(examples.repeat(20, 1)))
    assert (many.ratio == 1).all()  # the candidates are all twins


def test_examples_at_one_distance_are_no_twins():
    """The corners of a simplex: all are equally far from the origin."""
    found = nearest(torch.zeros(1, 5), TensorSource(torch.eye(5)))
    assert found.ratio.tolist() == [1.0]
    examples = torch.eye(3)[[0, 0, 1]]
    found = nearest(torch.eye(3)[[0, 1]], TensorSource(examples))
    assert found.ratio.tolist() == [0.0, 0.0]
    alone = nearest(torch.eye(3)[:1], TensorSource(examples[2:]))
    assert alone.ratio.tolist() == [0.0]  # the second nearest is infinitely far


def test_the_p_value_is_that_of_the_beta_binomial_distribution():
    generator = np.random.default_rng(0)
    held_out, values = generator.normal(size=200), generator.normal(-0.6, 1, 80)
    share = compare(values, held_out)
    assert (held_out <= share.threshold).sum() == 10
    below = int((values < share.threshold).sum())
    assert share.share == below / 80
    assert share.p_value == pytest.approx(stats.betabinom.sf(below - 1, 80, 10, 191), rel=1e-9)


def test_an_audit_that_could_find_nothing_does_not_say_that_there_is_no_sign():
    def audit_of(num_held_out, count):
        share = compare(np.full(count, 1e-6), np.linspace(0.5, 1, num_held_out))  # all are near copies
        groups = [Closeness("points", count, 0, 0, 0.1, share, share, [])]
        return Audit(1, "", "pixels", 100, "test", num_held_out, 1.0, groups)

    for num_held_out, count in ((1, 2), (1, 90), (2, 5), (3, 6)):
        few = audit_of(num_held_out, count)
        assert not few.are_copies
        assert few.verdict.startswith("This audit cannot tell: ")
        assert warning_of(few) == CANNOT_TELL
    assert audit_of(5, 20).verdict.startswith("The points give training examples away")
    # Of new values, as many are expected below the k-th smallest of n as of n + 1 places below the k-th.
    generator = np.random.default_rng(0)
    for n in (5, 12, 39, 200):
        found = [compare(generator.random(50), generator.random(n)).share for _ in range(4000)]
        assert np.mean(found) == pytest.approx(audit_of(n, 5).expected_share, abs=0.01)


def test_new_values_are_seldom_found_to_be_close():
    generator = np.random.default_rng(1)
    small = [compare(generator.normal(size=40), generator.normal(size=60)).p_value < 0.05 for _ in range(1000)]
    assert sum(small) <= 50 + 3 * np.sqrt(1000 * 0.05 * 0.95)  # an exact test errs in at most 5% of cases


class Lookup(nn.Module):
    """A decoder that knows some images by heart: the first latent chooses one."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.images = nn.Parameter(images)

    def forward(self, z: Tensor) -> Tensor:
        place = (torch.special.ndtr(z[:, 0]) * len(self.images)).long().clamp_max(len(self.images) - 1)
        return self.images[place]


class Plain(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.flatten(1)[:, :2]
        return mean, torch.zeros_like(mean)


def images(count: int, seed: int) -> Tensor:
    return torch.from_numpy((striped_images(count, seed)[0][:, None] + np.float32(0.5)) / 256)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 images to train on, and 150 that are held out."""
    folder = tmp_path_factory.mktemp("audited")
    np.save(folder / "x.npy", striped_images(360)[0])
    prepare(folder / "x.npy", folder / "store", validation=10, test=150)
    return folder / "store"


def hand_made(store: Path, prior: Prior, decoded: Tensor, folder: Path) -> TrainedRun:
    model = VAE((1, 12, 12), SquaredError(), prior, Plain(), Lookup(decoded)).requires_grad_(False)
    return TrainedRun(folder, TrainingConfig(prior="gaussian"), DataIdentity.of(Store(store)), 7, "", model)


def training_images(store: Path) -> Tensor:
    split = Store(store).split("train")
    return torch.from_numpy((split.read(np.arange(len(split))) + np.float32(0.5)) / 256)


def test_a_few_points_whose_bytes_equal_training_images_are_found(store, tmp_path):
    """Five of sixty: too few for the shares, and not equal in all digits."""
    train, points = training_images(store), images(60, seed=5)
    points[:5] = train[:5] + 0.001 * (2 * torch.rand(5, 1, 12, 12, generator=torch.Generator().manual_seed(0)) - 1)
    run = hand_made(store, PseudocoresetPrior(Pseudocoreset(points, 200)), images(120, seed=6), tmp_path)
    found, _ = audit_run(run, None, 100)
    assert found.groups[0].num_copies == 5
    assert found.finds_copies(found.groups[0])
    assert found.verdict.startswith("The points give training examples away")


def test_points_between_the_mean_and_an_example_are_told_as_copies(store, tmp_path):
    """Faded images: nearer to all examples than these are to each other, so the plain ratio does not find them."""
    train = training_images(store)
    faded = train.mean(0) + 0.2 * (train[:60] - train.mean(0))
    run = hand_made(store, PseudocoresetPrior(Pseudocoreset(faded, 200)), images(120, seed=6), tmp_path)
    found, shown = audit_run(run, None, 100)
    points, samples = found.groups
    for pair, made, real in zip(points.closest, shown[0].made, shown[0].real, strict=True):
        assert pair.distance == pytest.approx(np.linalg.norm(made - real), rel=1e-4)  # of pixels, not at one contrast
    assert "by ratio at one contrast." in audit_page("run", found, shown, is_image=True)
    assert not points.by_ratio.is_large
    assert points.by_contrast.share == 1
    assert found.finds_copies(points)
    assert all(pair.row == pair.number for pair in points.closest)
    assert not found.finds_copies(samples)
    assert found.verdict.startswith(
        "The points give training examples away. Unusually near to one training example: 100.0% of points"
    )


@pytest.mark.parametrize("noise", [0.0, 0.004])
def test_points_that_are_copies_are_told_from_points_that_are_not(store, noise, tmp_path):
    train, new = training_images(store), images(120, seed=5)
    copies = (train[:60] + noise * torch.randn(60, 1, 12, 12, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    guilty, _ = audit_run(hand_made(store, PseudocoresetPrior(Pseudocoreset(copies, 200)), new, tmp_path), None, 100)
    innocent, _ = audit_run(
        hand_made(store, PseudocoresetPrior(Pseudocoreset(new[:60], 200)), new, tmp_path), None, 100
    )
    points, samples = guilty.groups
    assert (points.kind, points.count) == ("points", 60)
    assert guilty.finds_copies(points)
    assert points.by_distance.share == points.by_ratio.share == 1
    assert points.num_copies == (60 if noise == 0 else 0)
    assert {pair.row for pair in points.closest} <= set(range(60))
    assert all(pair.row == pair.number for pair in points.closest)
    assert not guilty.finds_copies(samples)
    assert guilty.verdict.startswith(
        "The points give training examples away. Unusually near to one training example: 100.0% of points"
    )
    assert not innocent.are_copies
    assert innocent.verdict.startswith("No sign of copies")


def test_a_model_that_knows_200_images_by_heart_is_told_from_one_that_does_not(store, tmp_path):
    train = training_images(store)
    assert len(train) == 200
    noise = 0.004 * torch.randn(train.shape, generator=torch.Generator().manual_seed(0))
    overfitted, shown = audit_run(hand_made(store, GaussianPrior(2), (train + noise).clamp(0, 1), tmp_path), None, 300)
    fair, _ = audit_run(hand_made(store, GaussianPrior(2), images(3000, seed=9), tmp_path), None, 300)
    (samples,) = overfitted.groups
    assert overfitted.finds_copies(samples)
    assert samples.by_ratio.share > 0.9
    np.testing.assert_allclose(shown[0].made, shown[0].real, atol=0.03)  # seven standard deviations
    assert "samples give training examples away" in overfitted.verdict
    assert not fair.finds_copies(fair.groups[0])
    assert fair.groups[0].by_distance.share < 0.12


def test_rows_of_a_table_are_compared_on_one_scale(tmp_path):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(400, 3)) * [1, 1000, 1] + [0, 5000, 0]  # the second column must not decide alone
    np.save(tmp_path / "x.npy", rows.astype(np.float32))
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=100)
    opened = Store(tmp_path / "store")
    new = torch.from_numpy(generator.normal(size=(500, 3)) * [1, 1000, 1] + [0, 5000, 0]).float()
    likelihood = FixedGaussian(1e-12, mean_range=None)
    model = VAE((3,), likelihood, GaussianPrior(2), Plain(), Lookup(new)).requires_grad_(False)
    run = TrainedRun(tmp_path, TrainingConfig(prior="gaussian"), DataIdentity.of(opened), 0, "", model)
    found, _ = audit_run(run, None, 200)
    train = opened.split("train").read(np.arange(300)).astype(np.float64)
    test = opened.split("test").read(np.arange(100)).astype(np.float64)
    apart = np.linalg.norm((test[:, None] - train) / train.std(0), axis=2).min(1)
    assert found.median_distance == pytest.approx(float(np.median(apart)), rel=1e-5)  # float32 in the scaling
    assert found.unit == "scaled columns"
    assert not found.finds_copies(found.groups[0])


@pytest.mark.parametrize(("num_copies", "held_out_copies"), [(20, 1), (3, 1), (20, 30), (2, 0), (500, 100)])
def test_exact_copies_are_weighed_against_those_among_new_examples(num_copies, held_out_copies):
    usual = Share(threshold=0.5, share=0.05, p_value=0.5)
    points = Closeness("points", 500, num_copies, held_out_copies, 1.0, usual, usual, [])
    found = Audit(1, "", "scaled columns", 5000, "test", 1000, 1.0, [points])
    table = [[num_copies, 500 - num_copies], [held_out_copies, 1000 - held_out_copies]]
    p_value = stats.fisher_exact(table, "greater").pvalue
    assert audit_records._upper_tail(num_copies, 500, held_out_copies, 1000) == pytest.approx(p_value)
    assert found.are_copies == (p_value < 0.01 or held_out_copies == 0)
    assert f"Equal to one: {num_copies} points; {held_out_copies} of 1000 new examples are." in found.verdict
    assert found.verdict.startswith("The points give" if found.are_copies else "No sign of copies.")


def test_where_new_examples_are_training_examples_the_verdict_and_the_warning_agree():
    usual, many = Share(0.5, 0.05, 0.5), Share(0.5, 0.4, 1e-9)
    near = Closeness("points", 128, 10, 95, 1.0, usual, many, [])
    blind = Audit(1, "", "pixels", 5000, "test", 100, 1.0, [near])
    assert not blind.are_copies
    assert blind.verdict.startswith("This audit cannot tell")
    assert warning_of(blind) == CANNOT_TELL
    equal = Closeness("samples", 1000, 1000, 95, 1.0, usual, usual, [])
    found = Audit(1, "", "pixels", 5000, "test", 100, 1.0, [near, equal])
    assert found.verdict.startswith("The samples give training examples away")  # what is near tells nothing here


def test_a_strangers_counts_are_refused_or_read_at_once():
    usual = Share(0.5, 0.05, 0.5)
    for count, copies in ((0, 0), (5, 6), (10**9, 0), (5, -1)):
        with pytest.raises(ValueError, match="make no sense"):
            Closeness("points", count, copies, 0, 1.0, usual, usual, [])
    with pytest.raises(ValueError, match="make no sense"):
        Audit(1, "", "pixels", 5000, "test", -1, 1.0, [Closeness("points", 5, 0, 0, 1.0, usual, usual, [])])
    half = Closeness("points", 10**6, 10**6 // 2, 10**6 // 2, 1.0, usual, usual, [])
    for groups in ([], [half, half], [dataclasses.replace(half, kind=str(k)) for k in range(20)]):
        with pytest.raises(ValueError, match="of points, of samples or of both"):
            Audit(1, "", "pixels", 5000, "test", 10**6, 1.0, groups)
    start = time.process_time()
    both = [half, dataclasses.replace(half, kind="samples")]
    assert "cannot tell" in Audit(1, "", "pixels", 5000, "test", 10**6, 1.0, both).verdict
    assert time.process_time() - start < 10


def test_one_extreme_example_does_not_hide_copies():
    """Candidates come from products in float32, around a centre that no single query may move."""
    generator = torch.Generator().manual_seed(0)
    examples = torch.randn(3000, 10, generator=generator)
    queries = examples[:200].clone()
    queries[-1, 0] = 1e8
    found = nearest(queries, TensorSource(examples))
    assert found.rows[:-1].tolist() == list(range(199))
    assert (found.distance[:-1] == 0).all()


def test_where_new_rows_are_copies_too_the_audit_does_not_judge(tmp_path):
    rows = np.random.default_rng(0).integers(0, 3, (400, 3))  # 27 different rows
    np.save(tmp_path / "x.npy", rows.astype(np.float32))
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=100)
    likelihood = FixedGaussian(1e-12, mean_range=None)
    model = VAE((3,), likelihood, GaussianPrior(2), Plain(), Lookup(torch.from_numpy(rows[:50]).float()))
    identity = DataIdentity.of(Store(tmp_path / "store"))
    run = TrainedRun(tmp_path, TrainingConfig(prior="gaussian"), identity, 0, "", model.requires_grad_(False))
    found, _ = audit_run(run, None, 50)
    assert found.groups[0].held_out_copies == 100
    assert found.groups[0].by_ratio.threshold == 1  # rows occur more than once, which is no sign of anything
    assert found.verdict.startswith("This audit cannot tell")
    assert not found.finds_copies(found.groups[0])
    one_of_a_kind, _ = audit_run(hand_made_table(tmp_path / "rare", rows), None, 50)
    assert one_of_a_kind.verdict.startswith("This audit cannot tell")


def hand_made_table(folder: Path, rows: np.ndarray) -> TrainedRun:
    """Held-out rows are in the training split once, so that their ratio is 0."""
    folder.mkdir()
    different = np.arange(300.0).reshape(100, 3)
    np.savez(folder / "x.npz", x_train=different.astype(np.float32), x_test=different[:50].astype(np.float32))
    prepare(folder / "x.npz", folder / "store", validation=0)
    decoded = torch.from_numpy(rows[:50]).float()
    model = VAE((3,), FixedGaussian(1e-12, mean_range=None), GaussianPrior(2), Plain(), Lookup(decoded))
    identity = DataIdentity.of(Store(folder / "store"))
    return TrainedRun(folder, TrainingConfig(prior="gaussian"), identity, 0, "", model.requires_grad_(False))


def test_the_record_is_read_back_and_a_damaged_one_is_refused(store, tmp_path):
    found, _ = audit_run(hand_made(store, GaussianPrior(2), images(50, seed=9), tmp_path), None, 20)
    assert read_audit(tmp_path) == found
    path = tmp_path / "audit.json"
    fields = json.loads(path.read_text())
    for change in ({"version": 3}, {"num_train": "many"}, {"groups": [{"kind": "points"}]}, {"more": 1}):
        path.write_text(json.dumps(fields | change))
        with pytest.raises(FileError, match=re.escape(str(path))):
            read_audit(tmp_path)
    path.unlink()
    assert read_audit(tmp_path) is None


def test_an_audit_needs_held_out_examples(tmp_path):
    np.save(tmp_path / "x.npy", striped_images(30)[0])
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=0)
    run = hand_made(tmp_path / "store", GaussianPrior(2), images(20, seed=9), tmp_path)
    with pytest.raises(RunError, match="no test or validation split"):
        audit_run(run)
    assert not (tmp_path / "audit.json").exists()


def test_another_store_is_refused(store, tmp_path):
    np.save(tmp_path / "x.npy", striped_images(360, 9)[0])
    prepare(tmp_path / "x.npy", tmp_path / "other")
    run = hand_made(store, GaussianPrior(2), images(10, seed=5), tmp_path)
    with pytest.raises(RunError, match="does not hold the data that this run was trained on"):
        audit_run(run, tmp_path / "other", 10)
    assert not (tmp_path / "audit.json").exists()


def test_the_command_prints_a_verdict_and_shows_pairs(bype_run, tmp_path, capsys):
    assert main(["audit", str(bype_run), "--samples", "50", "--out", str(tmp_path / "audit.html")]) == 0
    printed = capsys.readouterr().out
    found = read_audit(bype_run)
    assert found.verdict in printed
    assert "a measure, not a guarantee" in printed
    page = (tmp_path / "audit.html").read_text()
    assert found.verdict in page
    assert page.count("<img ") == 2
    assert found.verdict in render([gather(bype_run, "audited")])
    assert main(["audit", str(bype_run), "--samples", "50", "--out", str(tmp_path / "audit.png")]) == 0
    with Image.open(tmp_path / "audit.png") as picture:
        assert picture.size == (3 * (10 * 14 - 2), 3 * (4 * 14 - 2))
    assert main(["audit", str(bype_run), "--out", str(tmp_path / "audit.png")]) == 1
    assert "exists; choose another --out" in capsys.readouterr().err


def test_points_that_start_as_noise_copy_no_example():
    generator = torch.Generator().manual_seed(0)
    examples = images(400, seed=0)
    started = Pseudocoreset.from_noise(TensorSource(examples), 300, generator=generator)
    assert started.points.shape == (300, 1, 12, 12)
    assert started.weights.sum() == pytest.approx(400)
    near = nearest(started.points.flatten(1), TensorSource(examples))
    assert near.distance.min() > 1  # two images of one place differ by 0.4 on average
    # 300 draws: a mean has an error of a seventeenth of a spread, and 144 of them lie within four errors.
    spread = examples.std(0, correction=0)
    unclamped = Pseudocoreset.from_noise(TensorSource(examples), 300, None, generator=generator).points
    assert ((unclamped.mean(0) - examples.mean(0)).abs() < 4.5 * spread / 300**0.5).all()
    torch.testing.assert_close(unclamped.std(0), spread, rtol=0.25, atol=0)


def test_the_start_of_points_is_a_setting_of_the_pseudocoreset_alone():
    source = TensorSource(images(10, seed=0))
    with pytest.raises(ConfigError, match="are more than the 10 examples"):
        build_model(small_config(), (1, 12, 12), source)
    model = build_model(small_config(points_start="noise"), (1, 12, 12), source)  # copies none, so it needs no 20
    assert model.prior.own_points().points.shape == (20, 1, 12, 12)
    with pytest.raises(ConfigError, match="points_start is for the prior bype alone"):
        TrainingConfig(prior="gaussian", points_start="noise")
