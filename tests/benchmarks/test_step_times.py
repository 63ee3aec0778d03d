"""The timing of training: that it times what it says, and in turn."""

import dataclasses

import pytest
import torch

import step_times
from bype.data.store import Store
from bype.priors import TensorSource
from bype.run.config import TrainingConfig
from small_runs import image_store
from step_times import JitteredCopies, TimedTraining, components_to_time, priors_to_time, time_in_turn


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return image_store(tmp_path_factory.mktemp("bench"), count=200)


def test_configurations_are_what_their_names_say():
    configs = priors_to_time(50000)
    assert next(iter(configs)) == "Gaussian prior"
    assert configs["pseudocoreset, tracking"].rule.live_points == 16
    assert configs["pseudocoreset, tracking, all points encoded"].rule.live_points is None
    assert configs["Exemplar, 25,000 exact"].components == 25000
    assert configs["Exemplar, nearest 10 of 25,000"].neighbours == 10
    assert components_to_time((5000,))["5,000 components, 3,200 in turn"].rule.scored_points == 3200


def test_trainings_take_turns_and_ratios_are_of_neighbours(store, monkeypatch):
    turns = []

    def seconds(training):
        turns.append(training.name)
        return {"slow": 0.3, "reference": 0.1}[training.name] * (1 + len(turns))

    def named(self, config, store):
        self.name = "slow" if config.prior == "bype" else "reference"

    monkeypatch.setattr(TimedTraining, "__init__", named)
    monkeypatch.setattr(TimedTraining, "seconds", seconds)
    configs = {"reference": TrainingConfig(prior="gaussian"), "slow": TrainingConfig()}
    reference, slow = time_in_turn(configs, Store(store), repetitions=4)
    assert turns == ["reference", "slow"] * 6
    assert reference.ratio == (1, 1, 1)
    assert all(3 < value < 4 for value in slow.ratio)  # the second of a pair is a little slower


def test_more_components_than_examples_are_copies_that_differ():
    images = torch.rand(5, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    copies = JitteredCopies(TensorSource(images), 12)
    taken = copies.take(torch.tensor([3, 8]))
    assert len(copies) == 12
    assert (taken - images[3]).abs().max() < 0.15
    assert not torch.equal(taken[0], taken[1])


def test_the_command_prints_its_tables(store, capsys, monkeypatch):
    monkeypatch.setattr(step_times, "_BLOCK_SECONDS", 0.01)
    small = {"components": 20, "hidden": 16, "latent_dim": 4, "batch_size": 20}
    for name in ("priors_to_time", "components_to_time"):
        whole = getattr(step_times, name)
        monkeypatch.setattr(step_times, name, lambda size, whole=whole: shrunk(whole(size), small))
    monkeypatch.setattr(step_times, "_RULES", shrunk(step_times._RULES, small))
    assert step_times.main([str(store), "--repetitions", "2", "--components", "300"]) == 0
    printed = capsys.readouterr().out
    assert "| Gaussian prior |" in printed
    assert "1.00 (1.00 to 1.00)" in printed
    assert "| 300 components, 3,200 in turn |" in printed
    for line in printed.splitlines()[-3:]:
        assert 0 < float(line.split("|")[2].strip(" %")) < 100


def shrunk(configs, changes):
    return {
        name: dataclasses.replace(config, **{**changes, "components": config.components if "300" in name else 20})
        for name, config in configs.items()
    }
