"""Rules of a user's own: their state is saved whatever its size, and a run resumes only with the same rule."""

import json
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import bype
from bype.pseudocoreset.rule import Rule
from bype.pseudocoreset.settings import PSVISettings, TrackingSettings
from bype.run.config import ConfigError
from bype.run.directory import RunError
from bype.run.metrics import read_metrics
from bype.run.opened import TrainedRun
from bype.training.loop import train
from small_runs import image_store, small_config


def plain_config(**changes):
    return small_config(rule=None, **changes)


class Counting(Rule):
    """Counts its updates, in a state that is far larger than the model."""

    def __init__(self, model, start=0):
        super().__init__(every="1 epoch", num_batches=1)
        self.register_buffer("counts", torch.full((3_000_000,), float(start)))

    def update(self, model, batches, *, validation_kl=None, generator=None):
        list(batches)
        self.counts += 1
        return {"count": float(self.counts[0])}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return image_store(tmp_path_factory.mktemp("own"), count=200)


def test_a_large_state_of_a_rule_comes_back(store, tmp_path):
    counts = []

    class Watched(Counting):
        def load_state_dict(self, state, *arguments, **keywords):
            counts.append(float(state["counts"][0]))
            return super().load_state_dict(state, *arguments, **keywords)

    train(plain_config(length="2 epochs"), store, tmp_path / "run", rule=Watched)
    outcome = train(plain_config(length="3 epochs"), store, tmp_path / "run", rule=Watched)
    assert counts == [2.0]
    assert outcome.state == "finished"


def test_a_run_resumes_only_with_the_arguments_that_its_rule_had(store, tmp_path):
    train(plain_config(length="1 epoch"), store, tmp_path / "run", rule=partial(Counting, start=1))
    with pytest.raises(RunError, match="start"):
        train(plain_config(length="2 epochs"), store, tmp_path / "run", rule=partial(Counting, start=2))
    assert train(plain_config(length="2 epochs"), store, tmp_path / "run", rule=partial(Counting, start=1)).step > 0


def test_a_rule_needs_a_name_of_its_own_and_settings_that_can_be_written(store, tmp_path):
    def made(model):
        return Counting(model)

    for rule in (made, lambda model: Counting(model)):
        with pytest.raises(ConfigError, match="could be any function of this name"):
            train(plain_config(), store, tmp_path / "run", rule=rule)
    with pytest.raises(ConfigError, match="not JSON serializable; give numbers or words"):
        train(plain_config(), store, tmp_path / "run", rule=partial(Counting, start=object()))


class Odd(Counting):
    """Finds a number that is not finite, in an update that it keeps or takes back."""

    is_taken_back = False

    def update(self, model, batches, *, validation_kl=None, generator=None):
        super().update(model, batches)
        return {"kl_after": math.inf, "steps": 1} | ({"taken_back": 1} if self.is_taken_back else {})


class OddButTakenBack(Odd):
    is_taken_back = True


def test_an_update_with_a_number_that_is_not_finite_is_one_line_and_changes_nothing(store, tmp_path):
    with pytest.raises(RunError, match=r"the update .* at step .* failed: kl_after: not a finite number"):
        train(plain_config(length="2 epochs"), store, tmp_path / "run", rule=Odd)
    train(plain_config(length="2 epochs"), store, tmp_path / "other", rule=OddButTakenBack)
    lines = [json.loads(line) for line in (tmp_path / "other" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "update" in line] == [{"steps": 1, "taken_back": 1}] * 2


class Silent(Counting):
    def update(self, model, batches, *, validation_kl=None, generator=None):
        super().update(model, batches)


class InTensors(Counting):
    def update(self, model, batches, *, validation_kl=None, generator=None):
        return {"count": torch.tensor(super().update(model, batches)["count"])}


class InNumpy(Counting):
    def update(self, model, batches, *, validation_kl=None, generator=None):
        return {"count": np.float32(super().update(model, batches)["count"]), "is_done": True}


@pytest.mark.parametrize(
    ("rule", "found"), [(Silent, {}), (InTensors, {"count": 1.0}), (InNumpy, {"count": 1.0, "is_done": 1.0})]
)
def test_an_update_may_return_nothing_tensors_or_what_numpy_has(store, tmp_path, rule, found):
    train(plain_config(length="1 epoch"), store, tmp_path / "run", rule=rule)
    assert read_metrics(tmp_path / "run")  # so that the report can be made
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "update" in line] == [found]


def no_rule(model):
    return model


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule(), "not a finished rule"),
        (PSVISettings(), "settings of a known one go into TrainingConfig"),
        ("psvi", "settings of a known one go into TrainingConfig"),
        (no_rule, r"must be a bype.Rule, not VAE"),
    ],
)
def test_what_is_no_rule_is_refused(store, tmp_path, rule, message):
    with pytest.raises(ConfigError, match=message):
        train(plain_config(), store, tmp_path / "run", rule=rule)


def test_two_rules_are_refused(store, tmp_path):
    with pytest.raises(ConfigError, match="has the rule psvi already"):
        train(small_config(rule=PSVISettings()), store, tmp_path / "run", rule=Counting)
    with pytest.raises(ConfigError, match="has the rule tracking already"):
        train(small_config(rule=TrackingSettings(live_points=7)), store, tmp_path / "run", rule=Counting)
    assert not (tmp_path / "run").exists()


def test_a_loop_may_call_the_step_of_any_rule():
    assert Rule().step(None, None) is None


def test_the_rule_on_the_page_follows_the_latents_with_the_weights(store, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "development" / "extending.md"
    (code,) = re.findall(r"```python\n(class FollowWeights.*?)```", page.read_text(), re.DOTALL)
    scope = {"bype": bype, "torch": torch, "__name__": __name__}
    exec(code, scope)  # noqa: S102 - our own page
    train(plain_config(length="40 epochs"), store, tmp_path / "run", rule=scope["FollowWeights"])
    weights = TrainedRun.open(tmp_path / "run").model.prior.pseudocoreset.probabilities
    assert weights.sum() == pytest.approx(1)
    assert weights.std() > 0.01 * weights.mean()  # they began equal
