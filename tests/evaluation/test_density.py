"""The likelihood of a split, through the path that the command takes."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bype.data.examples import StoreSource, spread_rows
from bype.data.prepare import prepare
from bype.data.store import Store
from bype.evaluation import density
from bype.evaluation.density import Block, DensityOptions, measure_density
from bype.evaluation.journal import Journal
from bype.mixtures import LeaveOneOutMixture
from bype.objective import importance_weighted_bound
from bype.priors import GaussianPrior
from bype.randomness import generator_for
from bype.run.opened import TrainedRun
from linear_gaussian import exact_log_likelihood, linear_hvae, linear_vae


def measured(run: Path, tmp_path: Path, **options: object):
    opened = TrainedRun.open(run)
    source = StoreSource(opened.store().split("test"))
    found, _ = measure_density(opened.model, source, DensityOptions(**options), tmp_path / "journal", {"step": 1})
    (tmp_path / "journal").unlink()
    return found


@pytest.mark.parametrize("two_levels", [False, True])
def test_it_is_the_exact_log_likelihood_of_a_linear_gaussian_model(tmp_path, two_levels):
    model = linear_hvae(GaussianPrior(2), 0.3) if two_levels else linear_vae(GaussianPrior(2), 0.3)
    size = model.data_shape[0]
    rows = np.random.default_rng(0).normal(size=(150, size)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=0)
    split = Store(tmp_path / "store").split("train")
    x = torch.from_numpy(split.read(np.arange(len(split)))).double()
    exact = -exact_log_likelihood(model, x, torch.zeros(1, 2).double(), 1.0, torch.ones(1).double())
    found, _ = measure_density(model.float(), StoreSource(split), DensityOptions(2000), tmp_path / "journal", {})
    assert found.num_images == 150
    assert abs(found.negative_log_likelihood.value - exact.mean().item()) < 4 * found.monte_carlo_error + 1e-4
    assert found.negative_log_likelihood.error == pytest.approx(exact.std().item() / 150**0.5, rel=0.02)
    assert found.monte_carlo_error < 0.01
    assert found.negative_elbo.value > found.negative_log_likelihood.value
    assert found.scale == "density"
    assert found.normalised == pytest.approx(found.negative_log_likelihood.value)
    total = found.negative_reconstruction.value + sum(kl.value for kl in found.kl.values())
    assert found.negative_elbo.value == pytest.approx(total)
    posterior = model.double().encode(x)
    kl = 0.5 * (posterior.mean**2 + posterior.log_variance.exp() - 1 - posterior.log_variance).sum(1).mean()
    top = "z2" if two_levels else "z"
    assert found.kl[top].value == pytest.approx(kl.item(), abs=0.02)
    assert all(abs(value.value - kl.item()) > 0.05 for level, value in found.kl.items() if level != top)


def test_every_image_counts_once_and_the_scale_is_told(trained_bype, tmp_path):
    found = measured(trained_bype, tmp_path, num_samples=20)
    assert found.num_images == 75  # four blocks of 16 and one of 11
    assert found.scale == "unnormalised"
    assert found.normalised == pytest.approx(found.negative_log_likelihood.value + 144 / 2 * np.log(np.pi))
    assert found.bits_per_dimension is None
    opened = TrainedRun.open(trained_bype)
    x = StoreSource(opened.store().split("test")).read(np.arange(75))
    many = importance_weighted_bound(opened.model, x, 2000).log_likelihood
    few = measured(trained_bype, tmp_path, num_samples=2000)
    error = (few.monte_carlo_error**2 * 2) ** 0.5
    assert abs(few.negative_log_likelihood.value + many.mean().item()) < 4 * error


def test_interrupted_it_goes_on_and_ends_as_if_nothing_had_happened(trained_bype, tmp_path, monkeypatch):
    whole = measured(trained_bype, tmp_path, num_samples=30)
    opened = TrainedRun.open(trained_bype)
    source = StoreSource(opened.store().split("test"))
    blocks = []
    original = density._measure_block
    monkeypatch.setattr(density, "_measure_block", lambda *a: (blocks.append(a[1]), original(*a))[1])

    def stop(done: int, total: int) -> None:
        if done >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_density(opened.model, source, DensityOptions(30), tmp_path / "journal", {"step": 1}, stop)
    with (tmp_path / "journal").open("ab") as file:
        file.write(b'{"first": 32, "cou')  # killed while it wrote
    again, _ = measure_density(opened.model, source, DensityOptions(30), tmp_path / "journal", {"step": 1})
    assert blocks == [0, 16, 32, 48, 64]
    assert again.negative_log_likelihood == whole.negative_log_likelihood
    assert again.kl == whole.kl


def test_a_journal_of_something_else_is_not_believed(trained_bype, tmp_path):
    opened = TrainedRun.open(trained_bype)
    source = StoreSource(opened.store().split("test"))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_density(opened.model, source, DensityOptions(2), tmp_path / "journal", {"step": 7}, stop)
    found, _ = measure_density(opened.model, source, DensityOptions(30), tmp_path / "journal", {"step": 1})
    assert found.negative_log_likelihood == measured(trained_bype, tmp_path, num_samples=30).negative_log_likelihood


def test_a_journal_that_is_larger_than_the_images_allow_is_not_read(tmp_path):
    path, block = tmp_path / "journal", Block(0, 1, [1.0], [1.0], [1.0], [1.0], {}, 1.0)
    with Journal(path, {"step": 1}, Block, 1000) as journal:
        journal.write(block)
    for more, expected in ((0, [block]), (1000, [])):
        path.write_bytes(path.read_bytes() + b" " * more)
        with Journal(path, {"step": 1}, Block, 1000) as journal:
            assert journal.entries == expected
    assert path.read_text() == '{"step": 1}\n'


BROKEN_BLOCKS = {
    "fewer values": lambda block: block.update(log_likelihood=block["log_likelihood"][:1]),
    "a list for a place": lambda block: block.update(first=[]),
    "text for values": lambda block: block.update(log_likelihood="abc"),
    "text among values": lambda block: block["log_likelihood"].__setitem__(0, "x"),
    "no number": lambda block: block["reconstruction"].__setitem__(0, float("nan")),
    "another level": lambda block: block.update(kl={"y": block["kl"]["z"]}),
    "no levels": lambda block: block.update(kl=[]),
    "text for the time": lambda block: block.update(seconds="1"),
    "a field more": lambda block: block.update(more=1),
}


@pytest.mark.parametrize("name", BROKEN_BLOCKS)
def test_a_block_of_a_journal_is_looked_at_before_it_is_believed(trained_bype, tmp_path, name):
    opened = TrainedRun.open(trained_bype)
    arguments = opened.model, StoreSource(opened.store().split("test")), DensityOptions(3), tmp_path / "journal", {}
    whole, _ = measure_density(*arguments)
    lines = (tmp_path / "journal").read_text().splitlines()
    block = json.loads(lines[2])
    BROKEN_BLOCKS[name](block)
    (tmp_path / "journal").write_text("\n".join([*lines[:2], json.dumps(block), *lines[3:], ""]))
    again, _ = measure_density(*arguments)
    assert dataclasses.replace(again, seconds=0) == dataclasses.replace(whole, seconds=0)


def test_a_single_draw_tells_nothing_of_its_error(trained_bype, tmp_path):
    assert measured(trained_bype, tmp_path, num_samples=1).monte_carlo_error is None
    assert measured(trained_bype, tmp_path, num_samples=2).monte_carlo_error > 0


def test_lower_precision_tells_how_far_it_is_off(trained_bype, tmp_path):
    full = measured(trained_bype, tmp_path, num_samples=50, num_images=48)
    low = measured(trained_bype, tmp_path, num_samples=50, num_images=48, precision="bfloat16")
    difference = low.negative_log_likelihood.value - full.negative_log_likelihood.value
    assert difference != 0
    assert low.precision_difference == pytest.approx(difference, abs=1e-9)
    assert full.precision_difference is None


def test_options_that_make_no_sense_are_refused():
    for options in ({"num_samples": 0}, {"num_images": 0}, {"max_rows": 0}):
        with pytest.raises(ValueError, match="at least one"):
            DensityOptions(**options)


@pytest.mark.parametrize(("slow", "fast"), [(torch.float32, "bfloat16"), (torch.bfloat16, "float32")])
def test_the_faster_precision_is_the_one_that_takes_less_time(monkeypatch, slow, fast):
    """With a clock that counts the multiplications of one kind as slow."""
    now = [0.0]
    multiply = torch.Tensor.__matmul__

    def timed(a, b):
        now[0] += 3.0 if a.dtype == slow else 1.0
        return multiply(a, b)

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "__matmul__", timed)
        patched.setattr(density.time, "perf_counter", lambda: now[0])
        found = density.faster_precision()
    assert found == fast


def test_training_examples_are_left_out_of_a_prior_that_is_made_of_them(trained_exemplar, tmp_path):
    """Blocks of 16 of some rows of the training split, against mixtures without these rows."""
    run = TrainedRun.open(trained_exemplar)
    source = StoreSource(run.store().split("train"))
    _, found = measure_density(
        run.model, source, DensityOptions(20, 40), tmp_path / "journal", {}, is_training_split=True
    )
    prior, expected = run.model.prior_distribution(), []
    for number, rows in enumerate(torch.from_numpy(spread_rows(465, 40)).split(16)):
        without = LeaveOneOutMixture(prior.means, prior.log_variance, prior.log_weights, torch.arange(465), rows)
        generator = generator_for(0, "density", 16 * number)
        x = source.read(rows.numpy())
        bound = importance_weighted_bound(run.model, x, 20, prior=without, generator=generator)
        expected.append(bound.log_likelihood)
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-3)
