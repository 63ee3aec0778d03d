"""Priors of a user's own: they are trained, resumed, opened and measured like those of the library."""

import math
from functools import partial

import pytest
import torch
from torch import nn

import bype
from bype.cli import main as command
from bype.distributions import DiagonalNormal
from bype.priors import GaussianPrior, Prior
from bype.pseudocoreset.settings import PSVISettings
from bype.run.checkpoint import CheckpointError
from bype.run.config import ConfigError
from bype.run.directory import RunError
from bype.run.opened import TrainedRun
from bype.training.loop import train
from small_runs import image_store, small_config


def plain_config(**changes):
    return small_config(rule=None, **changes)


class LearnedNormal(Prior):
    def __init__(self, latent_dim, start=0.0):
        super().__init__()
        self.mean = nn.Parameter(torch.full((latent_dim,), start))
        self.log_variance = nn.Parameter(torch.zeros(latent_dim))

    def forward(self, encode, batch=None):
        return DiagonalNormal(self.mean, self.log_variance)


class Same(GaussianPrior):
    """The library's standard normal, under a name of the user's own."""


class Large(LearnedNormal):
    def __init__(self, latent_dim):
        super().__init__(latent_dim)
        self.register_buffer("table", torch.zeros(3_000_000))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return image_store(tmp_path_factory.mktemp("own"), count=200)


def test_it_trains_and_is_opened_and_measured(store, tmp_path):
    outcome = train(plain_config(length="3 epochs"), store, tmp_path / "run", prior=LearnedNormal)
    run = bype.TrainedRun.open(tmp_path / "run", prior=LearnedNormal)
    assert outcome.state == "finished"
    assert run.config.prior == f"{__name__}.LearnedNormal"
    assert run.model.prior.mean.abs().max() > 0  # it has learned something
    found = bype.evaluate(run, density=bype.DensityOptions(num_samples=5, num_images=20))
    assert math.isfinite(found.density.negative_log_likelihood.value)
    assert math.isfinite(found.prior_gap.smallest_gap.value)
    assert bype.sample(run.model, 3).shape[0] == 3


def test_it_is_not_shared_as_it_is_code(store, tmp_path):
    train(plain_config(length="1 epoch"), store, tmp_path / "run", prior=LearnedNormal)
    run = bype.TrainedRun.open(tmp_path / "run", prior=LearnedNormal)
    with pytest.raises(RunError, match=r"LearnedNormal is code of your own, which is not shared"):
        run.save_pretrained(tmp_path / "shared")
    assert not (tmp_path / "shared").exists()


def test_the_same_prior_gives_the_same_numbers_as_the_librarys(store, tmp_path):
    train(plain_config(prior="gaussian", length="2 epochs"), store, tmp_path / "known")
    train(plain_config(length="2 epochs"), store, tmp_path / "own", prior=Same)
    known = TrainedRun.open(tmp_path / "known")
    own = TrainedRun.open(tmp_path / "own", prior=Same)
    assert known.fingerprint == own.fingerprint


def test_it_resumes_to_the_bit_and_only_with_the_same_prior(store, tmp_path):
    train(plain_config(length="2 epochs"), store, tmp_path / "run", prior=LearnedNormal)
    for other in (Same, partial(LearnedNormal, start=1.0)):
        with pytest.raises(RunError, match=r"prior: .*LearnedNormal there"):
            train(plain_config(length="4 epochs"), store, tmp_path / "run", prior=other)
    with pytest.raises(RunError, match=r"prior: .*LearnedNormal there, bype here"):
        train(plain_config(length="4 epochs"), store, tmp_path / "run")
    train(plain_config(length="4 epochs"), store, tmp_path / "run", prior=LearnedNormal)
    train(plain_config(length="4 epochs"), store, tmp_path / "whole", prior=LearnedNormal)
    resumed, whole = (TrainedRun.open(tmp_path / name, prior=LearnedNormal) for name in ("run", "whole"))
    assert resumed.fingerprint == whole.fingerprint


def test_a_large_prior_is_opened(store, tmp_path):
    train(plain_config(length="1 epoch"), store, tmp_path / "run", prior=Large)
    assert TrainedRun.open(tmp_path / "run", prior=Large).model.prior.table.shape == (3_000_000,)


def test_opening_needs_the_prior_and_takes_none_for_known_priors(store, tmp_path, capsys):
    train(plain_config(length="1 epoch"), store, tmp_path / "run", prior=LearnedNormal)
    with pytest.raises(ConfigError, match=r"LearnedNormal is a prior of somebody's own: hand it over in Python"):
        TrainedRun.open(tmp_path / "run")
    assert command(["evaluate", str(tmp_path / "run")]) == 1
    assert "LearnedNormal is a prior of somebody's own" in capsys.readouterr().err
    train(plain_config(prior="gaussian", length="1 epoch"), store, tmp_path / "known")
    with pytest.raises(ConfigError, match="was trained with the prior gaussian; leave out prior"):
        TrainedRun.open(tmp_path / "known", prior=LearnedNormal)


def test_another_class_does_not_open_it(store, tmp_path):
    train(plain_config(length="1 epoch"), store, tmp_path / "run", prior=LearnedNormal)
    with pytest.raises(CheckpointError, match="does not fit its config or the prior that was given"):
        TrainedRun.open(tmp_path / "run", prior=Same)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (GaussianPrior(4), "not a finished prior"),
        ("gaussian", "settings of a known one go into TrainingConfig"),
        (lambda latent_dim: GaussianPrior(latent_dim), "could be any function of this name"),
        (nn.Identity, r"must be a bype.Prior, not Identity"),
    ],
)
def test_what_is_no_prior_is_refused(store, tmp_path, prior, message):
    with pytest.raises(ConfigError, match=message):
        train(plain_config(), store, tmp_path / "run", prior=prior)


def test_a_prior_beside_another_or_beside_a_rule_is_refused(store, tmp_path):
    for config, message in (
        (plain_config(prior="vamp"), "has the prior vamp already"),
        (small_config(rule=PSVISettings()), "has the rule psvi already"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(config, store, tmp_path / "run", prior=LearnedNormal)
    with pytest.raises(ConfigError, match="a rule moves a pseudocoreset"):
        train(plain_config(), store, tmp_path / "run", prior=LearnedNormal, rule=bype.Rule)
    assert not (tmp_path / "run").exists()


def test_a_misspelled_prior_is_refused():
    with pytest.raises(ConfigError, match="prior must be one of gaussian, vamp, exemplar, bype, not 'gausian'"):
        bype.TrainingConfig(prior="gausian")
