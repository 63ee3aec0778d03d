"""The running average of a model: against brute force, and without any effect on the training itself."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

from bype.data.prepare import prepare
from bype.data.store import Store
from bype.pseudocoreset.settings import PSVISettings, TrackingSettings
from bype.run.checkpoint import CheckpointFolder
from bype.run.config import ConfigError
from bype.run.opened import TrainedRun
from bype.training.average import RunningAverage
from bype.training.loop import Trainer, train
from bype.training.reporter import Reporter
from small_runs import assert_same_tensors, image_store, small_config


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return image_store(tmp_path_factory.mktemp("average"), 300)


def test_steps_count_by_a_power_of_their_number():
    model = nn.Linear(2, 3)
    for share in (0.05, 0.5):
        average, seen = RunningAverage(model, share), []
        for step in range(1, 201):
            nn.init.normal_(model.weight)
            average.add(step)
            seen.append(model.weight.detach().double().clone())
        weights = np.ones(200)  # brute force: what is left of each step after all later ones
        for step in range(2, 201):
            part = 1 / (1 + share * (step - 1))
            weights[: step - 1] *= 1 - part
            weights[step - 1] = part
        assert weights.sum() == pytest.approx(1)
        age = (weights * (200 - np.arange(1, 201))).sum()
        assert age == pytest.approx(200 * share / (1 + share), rel=0.05)
        expected = sum(weight * value for weight, value in zip(weights, seen, strict=True))
        torch.testing.assert_close(average.state()["weight"].double(), expected, rtol=1e-5, atol=1e-6)


CHOICES = {
    "gaussian": {"prior": "gaussian"},
    "tracking": {"rule": TrackingSettings(live_points=4)},
    "psvi": {"rule": PSVISettings(every="1 epoch", steps=3)},
    "nearest": {"prior": "exemplar", "neighbours": 3},
}


class Watch(Reporter):
    """Keeps the model after each step, and the models that were kept."""

    def __init__(self):
        self.trainer, self.live, self.best = None, [], {}

    def stepped(self, step, share, timings):
        self.live.append({name: value.clone() for name, value in self.trainer.model.state_dict().items()})

    def save_best(self, checkpoint, is_last):
        self.best[checkpoint.step] = {name: value.clone() for name, value in checkpoint.model.items()}


def watched(config, store):
    watch = Watch()
    watch.trainer = Trainer(config, Store(store), watch)
    watch.trainer.run()
    return watch


@pytest.mark.parametrize("name", CHOICES)
def test_the_kept_model_is_the_average_and_training_does_not_notice(store, name):
    plain = small_config(length="2 epochs", warm_up="1 epoch", validate_every="3 steps", **CHOICES[name])
    averaged = dataclasses.replace(plain, average=0.2)
    without, found = watched(plain, store), watched(averaged, store)
    for one, other in zip(without.live, found.live, strict=True):
        for key in one:
            assert torch.equal(one[key], other[key])
    step = max(found.best)
    assert step > 3
    expected = {key: value.double() for key, value in found.live[0].items()}
    for number, live in enumerate(found.live[1:step], start=2):
        part = 1 / (1 + 0.2 * (number - 1))
        for key in expected:
            is_float = live[key].is_floating_point()
            expected[key] = (1 - part) * expected[key] + part * live[key].double() if is_float else live[key].double()
    for key, value in found.best[step].items():
        torch.testing.assert_close(value.double(), expected[key], rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(value, found.live[step - 1][key]) for key, value in found.best[step].items())


def test_a_run_with_an_average_resumes_to_the_bit(store, tmp_path):
    config = small_config(length="3 epochs", warm_up="1 epoch", rule=TrackingSettings(live_points=4), average=0.1)
    train(config, store, tmp_path / "whole")
    train(dataclasses.replace(config, length="2 epochs"), store, tmp_path / "parts")
    train(config, store, tmp_path / "parts")
    whole, parts = (
        CheckpointFolder(tmp_path / name / "checkpoints", 2).load_newest(pytest.fail, 2**22)
        for name in ("whole", "parts")
    )
    assert any(name.startswith("average.") for name in whole.training)
    assert_same_tensors(whole, parts)
    kept = [TrainedRun.open(tmp_path / name) for name in ("whole", "parts")]
    assert kept[0].fingerprint == kept[1].fingerprint
    assert kept[0].config.average == 0.1


def test_the_average_of_what_never_moves_is_the_same_to_the_bit():
    model = nn.Linear(50, 20)
    average = RunningAverage(model, share=0.2)
    for step in range(1, 2001):
        average.add(step)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in average.state().items())


def test_the_average_of_another_model_is_refused():
    model = nn.Linear(2, 3)
    average = RunningAverage(model, 0.1)
    average.add(1)
    state = average.state()
    for broken in (
        {"weight": state["weight"]},
        state | {"bias": torch.zeros(4)},
        state | {"bias": torch.zeros(3).double()},
    ):
        with pytest.raises(ValueError, match="the average"):
            RunningAverage(model, 0.1).load_state(broken)
    with pytest.raises(ValueError, match="the average"):
        RunningAverage(model, 0.0).load_state(state)
    with pytest.raises(KeyError), average.shown():
        raise KeyError  # the model comes back whatever happens
    assert torch.equal(model.weight, state["weight"])


def test_an_average_needs_validation(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 3)))
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=0)
    config = small_config(prior="gaussian", likelihood="learned-gaussian", average=0.1, length="2 steps")
    with pytest.raises(ConfigError, match="prepare the store with a validation split"):
        train(config, tmp_path / "store", tmp_path / "run")
    with pytest.raises(ConfigError, match="average must be at least 0 and below 1"):
        small_config(average=1.0)


def test_the_curve_is_that_of_the_average(store, tmp_path):
    config = small_config(prior="gaussian", length="2 epochs", warm_up="0 epochs")
    for name, share in (("plain", 0.0), ("averaged", 0.3)):
        train(dataclasses.replace(config, average=share), store, tmp_path / name)
    plain, averaged = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("plain", "averaged")
    )
    assert [line["train"] for line in plain] == [line["train"] for line in averaged]
    assert plain[-1]["validation"] != averaged[-1]["validation"]
