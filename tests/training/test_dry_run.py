"""A dry run takes the steps that training takes."""

import pytest
import torch

from bype.data.augment import Augmentation
from bype.pseudocoreset.settings import TrackingSettings
from bype.run.config import ConfigError
from bype.training import loop
from bype.training.average import RunningAverage
from bype.training.dry_run import dry_run, median_seconds
from small_runs import feature_store, small_config


def test_a_dry_run_times_all_parts_of_a_step_and_writes_nothing(labelled_store, monkeypatch):
    """What takes time beside the objective: flips and shifts, dropout, the running average, labels."""
    calls = []
    for home, name in ((Augmentation, "__call__"), (RunningAverage, "add"), (loop, "draw_dropout")):
        original = getattr(home, name)

        def counted(*arguments, name=name, original=original):
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(home, name, counted)
    before = sorted(labelled_store.rglob("*"))
    config = small_config(network="dense", rule=TrackingSettings(), flips=True, dropout=0.1, average=0.1, labelled=True)
    lines = list(dry_run(config, labelled_store, torch.device("cpu")))
    assert "465 examples of shape (1, 12, 12)" in lines[0]
    assert "for an epoch of 10 steps" in lines[2]
    assert calls.count("add") == 8
    assert calls.count("draw_dropout") == 2 * 8  # on and off
    assert calls.count("__call__") >= 8  # the linear start flips images too
    assert sorted(labelled_store.rglob("*")) == before


def test_a_dry_run_speaks_of_early_stopping_only_if_there_is_any(labelled_store):
    for patience, may_stop in (("0 epochs", False), ("2 epochs", True)):
        *_, last = dry_run(small_config(patience=patience), labelled_store, torch.device("cpu"))
        assert ("sooner if validation stops improving" in last) is may_stop


def test_a_dry_run_refuses_what_training_refuses(tmp_path):
    with pytest.raises(ConfigError, match="flips and shifts are for images"):
        list(dry_run(small_config(flips=True), feature_store(tmp_path), torch.device("cpu")))


def test_the_first_call_does_not_count(monkeypatch):
    clock = iter([0.0, 9.0, 9.0, 10.0, 10.0, 12.0, 12.0, 15.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert median_seconds([lambda: None] * 4) == 2.0
