"""Training in one process: what it writes, what it refuses, how it stops."""

import dataclasses
import errno
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
import typing
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from bype.data.decode import decode
from bype.data.examples import StoreSource, TrainingOrder
from bype.data.files import write_synced
from bype.data.order import Order
from bype.data.prepare import prepare
from bype.data.store import Store
from bype.distributed import GroupError
from bype.evaluation.pseudopoints import describe_points
from bype.models import mlp_vae
from bype.objective import ELBO
from bype.priors import GaussianPrior, TensorSource
from bype.pseudocoreset.ascent import ELBOAscent
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.psvi import PSVI
from bype.pseudocoreset.settings import (
    AscentSettings,
    FrozenSettings,
    JointSettings,
    PSVISettings,
    TrackingSettings,
)
from bype.run import checkpoint, directory
from bype.run.build import build_model, model_bytes
from bype.run.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from bype.run.config import ConfigError, LikelihoodName, Network, TrainingConfig
from bype.run.directory import RunDirectory, RunError, read_config
from bype.run.opened import TrainedRun
from bype.span import Span
from bype.training.display import Display
from bype.training.loop import Trainer, train
from bype.training.optimizer import NormalisedAdam, normalise_
from bype.training.reporter import RunReporter
from bype.training.signals import StopRequest
from bype.training.step import TrainingStep
from bype.training.validation import Validation
from small_runs import assert_same_tensors
from training_process import command, finish

TINY = TrainingConfig(
    prior="bype",
    components=10,
    latent_dim=3,
    hidden=8,
    batch_size=25,
    length="2 epochs",
    warm_up="1 epoch",
    rule=PSVISettings(every="1 epoch"),
)


def replace(**changes: object) -> TrainingConfig:
    """Return the tiny config with changes; priors without a pseudocoreset have no rule."""
    rule = {} if changes.get("prior", "bype") == "bype" else {"rule": None}
    return dataclasses.replace(TINY, **{**rule, **changes})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rows = np.random.default_rng(0).integers(0, 256, (260, 6, 6), dtype=np.uint8)
    np.save(folder / "x.npy", rows)
    prepare(folder / "x.npy", folder / "store", validation=50, test=0)
    return folder / "store"


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    np.save(folder / "x.npy", 5 * np.random.default_rng(0).standard_normal((200, 4)))
    prepare(folder / "x.npy", folder / "store", validation=0, test=0)
    return folder / "store"


def metrics(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_writes_what_it_promises(store, tmp_path):
    outcome = train(TINY, store, tmp_path / "run")
    assert (outcome.state, outcome.step) == ("finished", 18)  # 210 examples: 8 batches of 25 and one of 10
    lines = metrics(tmp_path / "run")
    assert [(line["step"], "update" in line) for line in lines] == [(9, False), (9, True), (18, False), (18, True)]
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"
    config, data = read_config(tmp_path / "run")
    assert config == TINY
    assert data.fingerprint
    best = CheckpointFolder(tmp_path / "run" / "best", 1).load_newest(pytest.fail, 2**20)
    assert best.step == outcome.step
    weights = best.model["prior.pseudocoreset.probabilities"]
    assert weights.dtype == torch.float64
    written = {path.name for path in (tmp_path / "run").iterdir()} - {"lock", "lock.guard"}
    assert written <= set(directory._WRITTEN)  # what another's folder is looked through for


def test_the_best_model_has_the_pseudocoreset_it_was_validated_with(store, tmp_path):
    train(replace(rule=PSVISettings(every="1 epoch", step_size=0.5)), store, tmp_path / "run")
    best = CheckpointFolder(tmp_path / "run" / "best", 1).load_newest(pytest.fail, 2**20)
    last = CheckpointFolder(tmp_path / "run" / "checkpoints", 2).load_newest(pytest.fail, 2**20)
    assert best.step == last.step
    # The last checkpoint came after the update that followed validation; the best model came before it.
    assert not torch.equal(best.model["prior.pseudocoreset.points"], last.model["prior.pseudocoreset.points"])


def test_the_same_config_gives_the_same_run_and_another_seed_another(store, tmp_path):
    for name, config in {"a": TINY, "b": TINY, "c": replace(seed=1)}.items():
        train(config, store, tmp_path / name)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert metrics(tmp_path / "a")[0] != metrics(tmp_path / "c")[0]


ON_IMAGES = [
    {"prior": "gaussian"},
    {"prior": "vamp"},
    {"prior": "vamp", "vamp_start": "examples"},
    {"prior": "exemplar"},
    {"prior": "exemplar", "neighbours": 2},
    {"rule": FrozenSettings()},
    {"rule": PSVISettings(every="1 epoch", optimiser="plain", step_size=1e-8, steps=1)},
    {"network": "hvae", "rule": PSVISettings(every="1 epoch", centring="pixels")},
    {"network": "convhvae"},
    {"network": "residual", "length": "2 steps", "validate_every": "2 steps"},
    {"likelihood": "gaussian"},
    {"likelihood": "learned-gaussian"},
    {"likelihood": "diagonal-gaussian"},
    {"likelihood": "bernoulli"},
    {"likelihood": "discretised-logistic"},
    {"window_blocks": 1, "normalise_gradients": False},
]
ON_TABLES = [
    {"network": "dense", "likelihood": likelihood}
    for likelihood in ("learned-gaussian", "diagonal-gaussian", "conditional-gaussian", "robust-gaussian")
]


@pytest.mark.parametrize("changes", ON_IMAGES, ids=str)
def test_every_choice_trains(store, tmp_path, changes):
    outcome = train(replace(**changes), store, tmp_path / "run")
    assert outcome.state == "finished"
    assert np.isfinite(outcome.best)


@pytest.mark.parametrize("changes", ON_TABLES, ids=str)
def test_every_choice_for_tables_trains(features, tmp_path, changes):
    outcome = train(replace(**changes), features, tmp_path / "run")
    assert outcome.state == "finished"
    losses = [line["train"]["negative_elbo"] for line in metrics(tmp_path / "run") if line.get("train")]
    assert np.isfinite(losses).all()
    assert len(losses) == 2


@pytest.mark.parametrize(("field", "choices"), [("likelihood", LikelihoodName), ("network", Network)])
def test_no_choice_is_left_out(field, choices):
    tried = {getattr(TINY, field), *(changes[field] for changes in ON_IMAGES + ON_TABLES if field in changes)}
    assert tried == set(typing.get_args(choices))


def test_feature_vectors_train_without_a_validation_split(features, tmp_path):
    outcome = train(replace(likelihood="learned-gaussian"), features, tmp_path / "run")
    assert outcome.best is None
    assert outcome.step == 16
    assert next(sorted(line) for line in metrics(tmp_path / "run")) == ["epoch", "step", "train"]


def test_choices_that_do_not_fit_the_data_are_refused(store, features, tmp_path):
    for data, changes, message in (
        (features, {"network": "convhvae"}, "choose vae or hvae"),
        (features, {"likelihood": "bernoulli"}, "learned-gaussian"),
        (store, {"components": 5000}, "more than the 210 examples to train on; take 210 components or fewer"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(replace(**changes), data, tmp_path / "run")
    train(TINY, store, tmp_path / "run")  # a refused config does not block its directory


def test_epochs_and_steps_mean_the_same(store, tmp_path):
    train(TINY, store, tmp_path / "epochs")
    spans = {
        "length": "18 steps",
        "rule": PSVISettings(every="9 steps"),
        "validate_every": "9 steps",
        "checkpoint_every": "9 steps",
    }
    train(replace(**spans), store, tmp_path / "steps")
    assert metrics(tmp_path / "epochs") == metrics(tmp_path / "steps")


def test_each_example_is_used_once_in_an_epoch_of_many(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((20_000, 1), dtype=np.float32))
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=0)
    order = TrainingOrder(Store(tmp_path / "store").split("train"), seed=0, batch_size=100, window_blocks=None)
    for first in (0, 200):
        batches = [order.rows(step) for step in range(first, first + 200)]
        assert {len(batch) for batch in batches} == {100}
        assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(20_000))


def test_updates_are_given_a_table_in_the_units_of_the_model(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).normal(1000, 50, (300, 3))
    np.save(tmp_path / "x.npy", rows)
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=30, test=0)
    seen = []
    monkeypatch.setattr(PSVI, "update", lambda self, model, batches, **_: seen.extend(batch.x for batch in batches))
    train(replace(rule=PSVISettings(every="1 epoch", steps=4)), tmp_path / "store", tmp_path / "run")
    seen = torch.cat(seen)
    assert len(seen) == 2 * 4 * 25
    assert seen.mean(0).abs().max() < 0.5
    assert (seen.std(0) - 1).abs().max() < 0.5


def test_each_window_is_announced_once_and_ahead(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1000, 8, 8), dtype=np.uint8))
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0, test=0)
    split = Store(tmp_path / "store").split("train")
    order = TrainingOrder(split, seed=0, batch_size=30, window_blocks=2)
    order._order = Order(1000, 0, block_rows=100, window_blocks=2)
    announced: list[int] = []
    split.will_need = lambda first, count: announced.append(first // 100)
    needed: list[set[int]] = []
    for step in range(order.steps_per_epoch):
        needed.append(set((order.rows(step) // 100).tolist()))
        assert needed[-1] <= set(announced)
    assert sorted(announced) == list(range(10))
    order.rows(order.steps_per_epoch)  # the next epoch begins with two windows
    assert len(announced) == 14


@pytest.mark.parametrize(("best_epoch", "last_epoch"), [(1, 9), (8, 11)])
def test_early_stopping_waits_for_the_warm_up_and_the_patience(store, tmp_path, monkeypatch, best_epoch, last_epoch):
    losses = (abs(epoch - best_epoch) for epoch in itertools.count(1))
    monkeypatch.setattr(Validation, "means", lambda self, prior: {"negative_elbo": float(next(losses))})
    config = replace(
        length="400 epochs", warm_up="6 epochs", patience="3 epochs", rule=FrozenSettings(), batch_size=210
    )
    outcome = train(config, store, tmp_path / "run")
    assert (outcome.step, outcome.best) == (last_epoch, 0.0)


def test_early_stopping_waits_for_a_validation(store, tmp_path, monkeypatch):
    """A validation may come after the patience, if its interval is a share of the training."""
    losses = (-float(k) if k < 3 else 0.0 for k in itertools.count())  # better each time, but not at the fourth
    monkeypatch.setattr(Validation, "means", lambda self, prior: {"negative_elbo": next(losses)})
    config = replace(
        length="40 epochs",
        warm_up="1 epoch",
        patience="2 epochs",
        validate_every="20 percent",
        rule=FrozenSettings(),
        batch_size=210,
    )
    outcome = train(config, store, tmp_path / "run")
    assert (outcome.step, outcome.best) == (32, -2.0)  # the fourth fifth; one step is an epoch
    assert train(config, store, tmp_path / "run").step == 32


def test_each_step_has_the_weight_and_the_rate_of_its_time(store, tmp_path, monkeypatch):
    """Warm-up over 2 of 4 epochs; the rate rises over 20 steps and falls along half a cosine."""
    seen, take = [], TrainingStep.__call__

    def watched(self, x, indices, beta=1.0, **more):
        outcome = take(self, x, indices, beta, **more)
        seen.append((outcome.terms.beta, self.optimizer._rate))
        return outcome

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    changes = {"rule": FrozenSettings(), "length": "4 epochs", "warm_up": "2 epochs", "learning_rate": 1e-3}
    train(replace(decay=True, **changes), store, tmp_path / "run")
    epoch = len(seen) // 4
    assert [beta for beta, _ in seen] == [0.5] * epoch + [1.0] * 3 * epoch
    expected = [0.5e-3 * (1 + np.cos(np.pi * k / len(seen))) * min(1, (k + 1) / 20) for k in range(len(seen))]
    np.testing.assert_allclose([rate for _, rate in seen], expected)


def test_a_checkpoint_cut_at_any_byte_is_refused_and_the_one_before_used(store, tmp_path):
    train(replace(checkpoint_every="1 epoch"), store, tmp_path / "run")
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints", 2)
    newest, before = folder.steps()
    generator = np.random.default_rng(0)
    for path in sorted((folder.folder / str(newest)).iterdir()):
        whole = path.read_bytes()
        cuts = {0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1, *generator.integers(0, len(whole), 40).tolist()}
        for cut in sorted(cuts):
            path.write_bytes(whole[:cut])
            with pytest.raises(CheckpointError):
                folder.load(newest, 2**20)
        for _ in range(40):
            flipped = bytearray(whole)
            flipped[generator.integers(0, len(whole))] ^= 1 << int(generator.integers(0, 8))
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError):
                folder.load(newest, 2**20)
        warnings: list[str] = []
        path.write_bytes(whole[:-1])
        assert folder.load_newest(warnings.append, 2**20).step == before
        assert len(warnings) == 1
        path.unlink()
        assert folder.load_newest(warnings.append, 2**20).step == before
        path.write_bytes(whole)
    assert folder.load_newest(pytest.fail, 2**20).step == newest


def test_a_damaged_newest_checkpoint_does_not_change_how_the_run_ends(store, tmp_path):
    for name in ("whole", "damaged"):
        train(TINY, store, tmp_path / name)
    path = tmp_path / "damaged" / "checkpoints" / "18" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])

    class Warnings(Display):
        def __init__(self) -> None:
            self.messages: list[str] = []

        def warn(self, message: str) -> None:
            self.messages.append(message)

    display = Warnings()
    train(TINY, store, tmp_path / "damaged", display)
    assert "checkpoint 18 is not used" in display.messages[0]
    assert metrics(tmp_path / "damaged") == metrics(tmp_path / "whole")
    for name in ("model", "training"):
        parts = [
            (tmp_path / run / "checkpoints" / "18" / f"{name}.safetensors").read_bytes() for run in ("whole", "damaged")
        ]
        assert parts[0] == parts[1]


def test_another_config_or_other_data_is_refused(store, features, tmp_path):
    train(TINY, store, tmp_path / "run")
    with pytest.raises(RunError, match="latent_dim: 3 there, 4 here"):
        train(replace(latent_dim=4), store, tmp_path / "run")
    other = tmp_path / "other"
    np.save(tmp_path / "y.npy", np.zeros((50, 6, 6), dtype=np.uint8))
    prepare(tmp_path / "y.npy", other)
    with pytest.raises(RunError, match="other data"):
        train(TINY, other, tmp_path / "run")


@pytest.mark.parametrize("rule", [TINY.rule, TrackingSettings()], ids=["psvi", "tracking"])
def test_a_longer_length_goes_on_as_if_it_had_been_asked_for_at_first(store, tmp_path, rule):
    train(replace(length="4 epochs", rule=rule), store, tmp_path / "whole")
    assert train(replace(length="2 epochs", rule=rule), store, tmp_path / "run").step == 18
    longer = replace(length="36 steps", rule=rule)  # the same as 4 epochs
    assert train(longer, store, tmp_path / "run").step == 36
    assert read_config(tmp_path / "run")[0] == longer
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    folders = [CheckpointFolder(tmp_path / name / "checkpoints", 2) for name in ("whole", "run")]
    assert_same_tensors(*(folder.load(36, 10**9) for folder in folders))
    with pytest.raises(RunError, match=r"length: 36 steps there, 3 epochs here.*a length can only grow, and not if"):
        train(replace(length="3 epochs", rule=rule), store, tmp_path / "run")
    with pytest.raises(RunError, match="another config"):
        train(replace(length="9 epochs", rule=rule, seed=1), store, tmp_path / "run")
    assert read_config(tmp_path / "run")[0] == longer


def test_a_length_that_decides_when_to_validate_cannot_change(store, tmp_path):
    """Another model would be kept than if the new length had been given at first."""
    train(replace(length="18 steps", validate_every="10 percent"), store, tmp_path / "run")
    with pytest.raises(RunError, match="length: 18 steps there, 36 steps here"):
        train(replace(length="36 steps", validate_every="10 percent"), store, tmp_path / "run")


def test_files_that_are_not_a_runs_are_never_written_over(store, tmp_path):
    copied = shutil.copytree(store, tmp_path / "store")
    before = {path.name: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"holds manifest\.json, but no run that can resume.*choose another --out"):
        train(TINY, copied, copied)
    assert {path.name: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before
    other = tmp_path / "other"
    (other / "best").mkdir(parents=True)
    (other / "best" / "weights.bin").write_bytes(b"mine")
    (other / "config.json").write_text('{"mine": 1}')
    with pytest.raises(RunError, match=r"holds best and config\.json, but no run that can resume"):
        train(TINY, store, other)
    assert sorted(path.name for path in other.rglob("*")) == ["best", "config.json", "weights.bin"]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "output.txt").write_text("a job's own file is in nobody's way")
    assert train(TINY, store, tmp_path / "logs").state == "finished"


def test_two_trainings_into_one_directory(store, tmp_path):
    with RunDirectory(tmp_path / "run"), pytest.raises(RunError, match=r"being trained by process \d+ on"):
        train(TINY, store, tmp_path / "run")
    train(TINY, store, tmp_path / "run")  # the lock is free again


def test_a_process_that_lost_the_run_writes_nothing_more(tmp_path):
    with RunDirectory(tmp_path / "run") as run:
        run.set_status("running")
        (tmp_path / "run" / "lock").write_text("process 1 on elsewhere, token of another\n")
        with pytest.raises(RunError, match="taken over"):
            run.set_status("finished")
        with pytest.raises(RunError, match="taken over"):
            run.checkpoints.save(Checkpoint(1, {"a": torch.zeros(1)}, {}, {}))
        assert run.checkpoints.steps() == []
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "running"


def test_a_run_that_failed_before_its_first_checkpoint_may_be_begun_otherwise(store, tmp_path, monkeypatch):
    def break_down(trainer):
        raise RunError("out of order")

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "take_step", break_down)
        with pytest.raises(RunError, match="out of order"):
            train(TINY, store, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert train(replace(learning_rate=1e-4), store, tmp_path / "run").state == "finished"


def test_who_is_asked_to_stop_in_the_last_step_has_finished(store, tmp_path, monkeypatch):
    take = Trainer.take_step

    def ask_at_the_end(trainer):
        if trainer.state.step == 17:
            signal.raise_signal(signal.SIGTERM)
        return take(trainer)

    monkeypatch.setattr(Trainer, "take_step", ask_at_the_end)
    outcome = train(replace(rule=FrozenSettings()), store, tmp_path / "run")
    assert (outcome.state, outcome.signal) == ("finished", signal.SIGTERM)
    outcome = train(replace(), store, tmp_path / "other")
    assert (outcome.state, outcome.step) == ("stopped", 18)  # the last update is still due
    assert train(replace(), store, tmp_path / "other").state == "finished"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_leave_and_the_same_command_goes_on(store, tmp_path, number):
    arguments = ("--components", "10", "--latent-dim", "3", "--hidden", "8", "--batch-size", "25", "--rule", "frozen")
    run = tmp_path / "run"
    spans = ("--length", "400 steps", "--validate-every", "50 steps", "--checkpoint-every", "400 steps")
    words = command(store, run, *arguments, *spans, "--patience", "0 epochs")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        while not (run / "metrics.jsonl").exists() or not metrics(run):
            time.sleep(0.02)
        process.send_signal(number)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert "To resume, run the same command" in out
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "stopped"
    assert 0 < status["step"] < 400
    assert (run / "checkpoints" / str(status["step"])).is_dir()
    finish(words)
    finish(command(store, tmp_path / "whole", *words[words.index("--components") :]))
    assert metrics(run) == metrics(tmp_path / "whole")


def test_a_signal_that_the_process_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        request = StopRequest()
        with request.listening():
            signal.raise_signal(signal.SIGINT)
            assert request.signal is None
            signal.raise_signal(signal.SIGTERM)
            assert request.signal == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(store, tmp_path, monkeypatch):
    forward = ELBO.forward

    def broken(self, x, **arguments):
        terms = forward(self, x, **arguments)
        if arguments.get("indices") is not None and 7 in arguments["indices"]:
            terms.kl["z"][arguments["indices"] == 7] = torch.inf
        return terms

    monkeypatch.setattr(ELBO, "forward", broken)
    with pytest.raises(RunError, match=r"not finite at step \d+: kl_z broke on training rows \[7\]"):
        train(TINY, store, tmp_path / "run")
    report = json.loads((tmp_path / "run" / "broken.json").read_text())
    assert report["broken_rows"] == [7]
    assert report["terms"] == ["kl_z"]
    assert 7 in report["rows"]
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"


def test_data_of_a_hopeless_scale_are_blamed_and_not_the_learning_rate(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32) * 1e25)
    prepare(tmp_path / "x.npy", tmp_path / "store")
    with pytest.raises(RunError, match=r"not finite at step 0: .*; bring the data to a common scale"):
        train(replace(components=5, scale_columns=False), tmp_path / "store", tmp_path / "run")
    assert train(replace(components=5), tmp_path / "store", tmp_path / "scaled").state == "finished"


def test_a_full_disk_gives_one_line_and_the_run_goes_on_when_there_is_room(store, tmp_path, monkeypatch):
    train(TINY, store, tmp_path / "whole")
    room = 9  # files, enough for the first checkpoint and a part of what follows

    def limited(path: Path, content: bytes) -> None:
        nonlocal room
        room -= path.suffix in (".safetensors", ".json") and path.parent.name.endswith(".partial")
        if room < 0:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_synced(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_synced", limited)
        with pytest.raises(CheckpointError, match=r"No space left on device.*run the same command to resume") as caught:
            train(TINY, store, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "run").glob("*/.*.partial"))
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"
    train(TINY, store, tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_gives_one_line(store, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="cannot write"):
        train(TINY, store, tmp_path / "run")


def test_one_example_is_too_few_for_an_exemplar_prior(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2), dtype=np.float32))
    prepare(tmp_path / "x.npy", tmp_path / "store")
    with pytest.raises(ConfigError, match="needs two or more examples to train on"):
        train(TrainingConfig(prior="exemplar"), tmp_path / "store", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_directory_that_cannot_be_read_gives_one_line(store, tmp_path):
    with pytest.raises(RunError, match="cannot write"):
        train(TINY, store, tmp_path / ("name too long" * 30))


def test_without_normalisation_the_numbers_are_those_of_torch_to_the_bit():
    torch.manual_seed(0)
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in ((3, 4), 5)] for _ in range(2))
    optimizer = NormalisedAdam(zip("ab", ours, strict=True), 0.01, normalise=False)
    adam = torch.optim.Adam(theirs, lr=0.01, fused=True)
    for step in range(6):
        optimizer.set_rate(0.01 / (step + 1))
        adam.param_groups[0]["lr"] = 0.01 / (step + 1)
        for one, other in zip(ours, theirs, strict=True):
            if one.ndim == 2 or step > 1:  # at first, one of them has no gradient
                other.grad = torch.randn_like(other)
                one.grad = other.grad.clone()
        optimizer.step()
        adam.step()
    assert all(map(torch.equal, ours, theirs))
    kept = optimizer.state()
    assert all(torch.equal(kept[f"a.{key}"], value) for key, value in adam.state[theirs[0]].items())
    for broken in ({"a.exp_avg": torch.ones(3, 4)}, {**kept, "b.exp_avg": torch.ones(6)}):
        with pytest.raises(ValueError, match="does not fit"):
            optimizer.load_state(broken)
    assert optimizer.state().keys() == kept.keys()


def test_training_does_not_load_the_compiler(store, tmp_path):
    """It takes as long to import as torch itself."""
    script = (
        "import sys, bype; bype.train(bype.TrainingConfig(**{}), {!r}, {!r}); print('torch._dynamo' in sys.modules)"
    )
    config = {"length": "1 epoch", "warm_up": "1 epoch", "components": 5, "hidden": 8, "latent_dim": 2}
    words = [sys.executable, "-c", script.format(config, str(store), str(tmp_path / "run"))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("normalise", [True, False])
def test_a_gradient_that_is_not_finite_moves_nothing(normalise):
    parameter = nn.Parameter(torch.ones(3))
    optimizer = NormalisedAdam([("a", parameter)], 0.01, normalise=normalise)
    parameter.grad = torch.tensor([1.0, torch.inf, 0.0])
    with pytest.raises(ValueError, match="gradients are not finite; try a smaller learning_rate"):
        optimizer.step()
    assert torch.equal(parameter, torch.ones(3))
    assert not optimizer.state()


def test_normalised_adam_is_adam_on_unit_gradients():
    torch.manual_seed(0)
    model, twin = (mlp_vae((4,), GaussianPrior(2), latent_dim=2, hidden=3) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    optimizer = NormalisedAdam(model.named_parameters(), 0.01, normalise=True)
    adam = torch.optim.Adam(twin.parameters(), lr=0.01)
    x = torch.rand(5, 4)
    for step in range(3):
        for network in (model, twin):
            ELBO(network)(x, generator=torch.Generator().manual_seed(step)).loss.backward()
        for parameter in twin.parameters():
            parameter.grad /= parameter.grad.norm() + 1e-7
        optimizer.step()
        optimizer.clear()
        adam.step()
        adam.zero_grad()
        if step == 1:
            restored = NormalisedAdam(model.named_parameters(), 0.01, normalise=True)
            restored.load_state({name: value.clone() for name, value in optimizer.state().items()})
            optimizer = restored
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    zero = [torch.zeros(3)]
    normalise_(zero)
    assert (zero[0] == 0).all()


def test_gradients_whose_squares_overflow_are_still_normalised():
    gradients = [torch.full((4,), 1e25), torch.tensor([3.0, 4.0])]
    normalise_(gradients)
    torch.testing.assert_close(gradients[0], torch.full((4,), 0.5))
    torch.testing.assert_close(gradients[1], torch.tensor([0.6, 0.8]))
    with pytest.raises(ValueError, match="gradients are not finite"):
        normalise_([torch.tensor([1.0, torch.inf])])


def test_spans():
    assert Span.parse("3 epochs").is_due(30, steps_per_epoch=10)
    assert not Span.parse("3 epochs").is_due(20, steps_per_epoch=10)
    assert not Span.parse("0 epochs").is_due(20, steps_per_epoch=10)
    for text in ("ten epochs", "3", "3 weeks", "-3 steps", "", "1.5 epochs"):
        with pytest.raises(ValueError, match="10 epochs"):
            Span.parse(text)
        for name in ("length", "warm_up", "patience", "validate_every", "checkpoint_every"):
            with pytest.raises(ConfigError, match=f"{name}: .*10 epochs"):
                replace(**{name: text})
        for settings in (PSVISettings, AscentSettings):
            with pytest.raises(ValueError, match="10 epochs"):
                settings(every=text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior": "laplace"}, "one of gaussian, vamp, exemplar, bype"),
        ({"batch_size": 0}, "batch_size must be between 1 and 1e9"),
        ({"batch_size": "100"}, "batch_size: '100' is not a whole number"),
        ({"batch_size": True}, "batch_size: True is not a whole number"),
        ({"batch_size": 10.0}, r"batch_size: 10\.0 is not a whole number"),
        ({"clamp_points": 1}, "clamp_points: 1 is not true or false"),
        ({"learning_rate": -1.0}, "learning_rate must be between 0 and 1e9"),
        ({"learning_rate": float("nan")}, "learning_rate: nan is not a number"),
        ({"length": "0 epochs"}, "more than 0, such as"),
        ({"dropout": 0.5}, "dropout is for the network dense alone"),
        ({"seed": -1}, "seed must not be negative"),
        ({"seed": 2**62}, "seed: .* is out of range"),
        ({"components": 1}, "at least 2 components or draws"),
        ({"prior": "exemplar", "components": 1}, "at least 2"),
        ({"prior": "exemplar", "neighbours": -1}, "neighbours must be between 1 and 1e9"),
        ({"prior": "exemplar", "neighbours": 0}, "neighbours must be between 1 and 1e9"),
        ({"window_blocks": 0}, "window_blocks must be between 1 and 1e9"),
        ({"neighbours": 3}, "for the exemplar prior alone"),
        ({"prior": "gaussian", "rule": FrozenSettings()}, "the prior gaussian has no rule"),
        ({"rule": "psvi"}, "rule"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(**changes)


@pytest.mark.parametrize(
    ("settings", "fields", "message"),
    [
        (PSVISettings, {"draws": 1}, "draws must be at least 2"),
        (PSVISettings, {"steps": 0}, "steps must be positive"),
        (PSVISettings, {"batch_size": -1}, "batch_size must be positive"),
        (PSVISettings, {"step_size": 0.0}, "step_size must be positive"),
        (PSVISettings, {"step_size": float("nan")}, "step_size(: nan is not a number| must be positive)"),
        (PSVISettings, {"every": "0 epochs"}, "every must be a number of epochs or steps"),
        (PSVISettings, {"every": "10 percent"}, "not '10 percent'"),
        (PSVISettings, {"steps": 2.5}, r"steps: 2\.5 is not a whole number"),
        (PSVISettings, {"steps": "5"}, "steps: '5' is not a whole number"),
        (PSVISettings, {"optimiser": "sgd"}, "optimiser: 'sgd' is not one of adam, plain"),
        (PSVISettings, {"centring": "rows"}, "centring: 'rows' is not one of samples, pixels"),
        (AscentSettings, {"batch_size": 10.5}, r"batch_size: 10\.5 is not a whole number"),
        (AscentSettings, {"steps": 0}, "steps must be positive"),
        (AscentSettings, {"batch_size": 0}, "batch_size must be positive"),
        (AscentSettings, {"step_size": -1.0}, "step_size must be positive"),
        (AscentSettings, {"every": "0 steps"}, "every must be a number of epochs or steps"),
        (AscentSettings, {"every": "5 seconds"}, "not '5 seconds'"),
        (TrackingSettings, {"live_points": 0}, "live_points must be positive"),
        (TrackingSettings, {"live_points": 2.5}, r"live_points: 2\.5 is not a whole number"),
        (TrackingSettings, {"scored_points": -1}, "scored_points must be positive"),
        (TrackingSettings, {"step_size": 1e10}, "step_size must be positive"),
    ],
)
def test_settings_of_a_rule_that_make_no_sense_are_refused(settings, fields, message):
    with pytest.raises(ValueError, match=message):
        settings(**fields)
    rule = {**dataclasses.asdict(settings()), **fields}
    with pytest.raises(ValueError, match=rf"^rule.*{message}"):
        decode(TrainingConfig, {**TINY.to_fields(), "rule": rule})


def test_without_a_rule_a_pseudocoreset_is_tracked():
    assert TrainingConfig().rule == TrackingSettings()
    assert TrainingConfig(prior="vamp").rule is None


def test_a_config_from_a_file_must_have_just_the_known_fields():
    assert decode(TrainingConfig, TINY.to_fields()) == TINY
    with pytest.raises(ValueError, match="the field 'colour' is unknown"):
        decode(TrainingConfig, {**TINY.to_fields(), "colour": "red"})
    with pytest.raises(ValueError, match="the field seed is missing"):
        decode(TrainingConfig, {k: v for k, v in TINY.to_fields().items() if k != "seed"})


def test_tensorboard_gets_the_curves_and_pictures(store, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    train(replace(length="1 epoch"), store, run)
    changed = json.loads((run / "config.json").read_text())
    changed["config"]["length"] = "2 epochs"
    (run / "config.json").write_text(json.dumps(changed))
    train(TINY, store, run)
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0}).Reload()
    expected = [(line["step"], line["validation"]["negative_elbo"]) for line in metrics(run) if "validation" in line]
    curve = [(event.step, event.value) for event in events.Scalars("validation/negative_elbo")]
    assert curve == [(step, pytest.approx(value)) for step, value in expected]
    assert [event.step for event in events.Images("samples")] == [9, 18]
    picture = Image.open(io.BytesIO(events.Images("points")[0].encoded_image_string))
    assert picture.size == (8 * 8 - 2, 2 * 8 - 2)  # 10 points of 6 x 6 in lines of 8


def test_without_tensorboard_training_goes_on(store, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    train(TINY, store, tmp_path / "run")
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_folder_that_looks_like_tensorboard_stops_no_training(store, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", types.ModuleType("tensorboard"))  # as a folder of logs is imported
    warned = []
    display = Display()
    monkeypatch.setattr(display, "warn", warned.append)
    assert train(TINY, store, tmp_path / "run", display).state == "finished"
    assert ["TensorBoard does not work" in text for text in warned] == [True]


@pytest.mark.parametrize(
    "rule",
    [
        AscentSettings(every="1 epoch", steps=3, batch_size=40, step_size=0.02),
        JointSettings(),
        TrackingSettings(live_points=4, step_size=0.02),
        TrackingSettings(live_points=4, scored_points=10, step_size=0.02),
    ],
    ids=["ascent", "joint", "tracking", "tracking in turn"],
)
def test_other_rules_train_and_go_on_to_the_bit(store, tmp_path, rule):
    config = replace(rule=rule, length="3 epochs", components=60)
    train(config, store, tmp_path / "whole")
    for name in ("checkpoints", "best"):
        assert (tmp_path / "whole" / name).exists()
    train(dataclasses.replace(config, length="2 epochs"), store, tmp_path / "parts")
    path = tmp_path / "parts" / "config.json"
    path.write_text(path.read_text().replace('"2 epochs"', '"3 epochs"'))
    train(config, store, tmp_path / "parts")
    whole, parts = (
        CheckpointFolder(tmp_path / name / "checkpoints", 2).load_newest(pytest.fail, 2**22)
        for name in ("whole", "parts")
    )
    assert_same_tensors(whole, parts)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    updates = [line["update"] for line in metrics(tmp_path / "whole") if "update" in line]
    assert len(updates) == (3 if rule.name == "ascent" else 0)
    opened = TrainedRun.open(tmp_path / "whole")
    described = describe_points(opened.model, opened.store().split("train"))
    assert len(described.points) == 60
    assert described.weights.sum() == pytest.approx(210)


def test_an_ascent_that_validation_does_not_confirm_is_taken_back(store, tmp_path, monkeypatch):
    def paint_all_white(rule, model, x, *, generator=None, group=None):
        pseudocoreset = model.prior.pseudocoreset
        pseudocoreset.assign(torch.ones_like(pseudocoreset.points), pseudocoreset.weights)
        return 0.0

    monkeypatch.setattr(ELBOAscent, "update_step", paint_all_white)
    rule = AscentSettings(every="1 epoch", steps=1, batch_size=25)
    train(replace(rule=rule, length="1 epoch"), store, tmp_path / "far")
    (update,) = [line["update"] for line in metrics(tmp_path / "far") if "update" in line]
    assert update["kl_after"] > update["kl_before"]
    assert update["taken_back"] == 1
    train(replace(rule=FrozenSettings(), length="1 epoch"), store, tmp_path / "frozen")
    far, frozen = (
        CheckpointFolder(tmp_path / name / "checkpoints", 2).load_newest(pytest.fail, 2**20)
        for name in ("far", "frozen")
    )
    assert torch.equal(far.model["prior.pseudocoreset.points"], frozen.model["prior.pseudocoreset.points"])


def test_an_ascent_improves_the_prior_on_validation(store, tmp_path):
    rule = AscentSettings(every="1 epoch", steps=40, batch_size=210, step_size=0.02)
    train(replace(rule=rule), store, tmp_path / "run")
    updates = [line["update"] for line in metrics(tmp_path / "run") if "update" in line]
    assert len(updates) == 2
    for update in updates:
        assert update["kl_after"] < update["kl_before"]
        assert "taken_back" not in update


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (PSVISettings(every="1 epoch", steps=5), PSVI),
        (AscentSettings(every="1 epoch", steps=5, batch_size=25), ELBOAscent),
    ],
    ids=["psvi", "ascent"],
)
def test_who_is_asked_to_stop_during_an_update_stops_at_once_and_makes_it_later(
    store, tmp_path, monkeypatch, settings, rule
):
    config = replace(rule=settings)
    train(config, store, tmp_path / "whole")
    take, taken = rule.update_step, []

    def ask_and_take(*arguments, **keywords):
        taken.append(1)
        if len(taken) in (2, 8):  # in the midst of the first update, and of the last, which ends the run
            signal.raise_signal(signal.SIGTERM)
        return take(*arguments, **keywords)

    monkeypatch.setattr(rule, "update_step", ask_and_take)
    outcomes = [train(config, store, tmp_path / "parts") for _ in range(3)]
    assert [(outcome.state, outcome.step) for outcome in outcomes] == [
        ("stopped", 9),
        ("stopped", 18),
        ("finished", 18),
    ]
    assert len(taken) == 2 + 5 + 1 + 5
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    whole, parts = (CheckpointFolder(tmp_path / name / "checkpoints", 2).load(18, 2**20) for name in ("whole", "parts"))
    assert parts.state == whole.state
    assert_same_tensors(whole, parts)


def test_a_run_that_goes_on_in_an_update_gives_signs_of_life(store, tmp_path, monkeypatch):
    config = replace(rule=PSVISettings(every="1 epoch", steps=5), length="1 epoch")
    take, taken, seen = PSVI.update_step, [], []

    def look_and_take(*arguments, **keywords):
        taken.append(1)
        if len(taken) == 2:
            signal.raise_signal(signal.SIGTERM)
            (tmp_path / "run" / "monitor.prom").unlink()
        seen.append((tmp_path / "run" / "monitor.prom").exists())
        return take(*arguments, **keywords)

    monkeypatch.setattr(PSVI, "update_step", look_and_take)
    assert [train(config, store, tmp_path / "run").state for _ in range(2)] == ["stopped", "finished"]
    assert seen[2:] == [True] * 5


def test_an_update_that_breaks_gives_one_line(store, tmp_path, monkeypatch):
    def broken(pseudocoreset, points, weights):
        raise ValueError("points or weights are not finite; a smaller step size may help")

    config = replace(rule=PSVISettings(every="1 epoch", steps=2))
    with RunDirectory(tmp_path / "run") as run, closing(RunReporter(run, Display())) as reporter:
        trainer = Trainer(config, Store(store), reporter)
        monkeypatch.setattr(Pseudocoreset, "assign", broken)
        with pytest.raises(RunError, match=r"the update .* failed: .*smaller step size"):
            trainer.run()


def test_a_step_that_is_not_finite_moves_nothing_and_leaves_no_gradient(store):
    source = StoreSource(Store(store).split("train"))
    step = TrainingStep.build(replace(rule=TrackingSettings()), source.split.shape, source)
    x = source.read(np.arange(20))
    before = {name: value.clone() for name, value in step.model.state_dict().items()}
    broken = x.clone()
    broken[3, 0, 0, 0] = torch.nan
    assert not step(broken, torch.arange(20)).is_finite
    changed = [name for name, value in step.model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["prior.targets"]  # which begin at the points
    step(x, torch.arange(20))
    assert all(value.isfinite().all() for value in step.model.state_dict().values())


@pytest.mark.parametrize(
    "changes",
    [
        {"prior": "gaussian"},
        {"prior": "vamp"},
        {"prior": "exemplar"},
        {"prior": "exemplar", "neighbours": 2},
        {"rule": PSVISettings()},
        {"rule": JointSettings()},
        {"rule": TrackingSettings()},
        {"rule": TrackingSettings(scored_points=300)},
    ],
    ids=str,
)
def test_the_size_of_a_model_is_known_before_it_is_made(changes):
    config = replace(components=1000, **changes)
    model = build_model(config, (1, 6, 6), TensorSource(torch.zeros(1500, 1, 6, 6)))
    taken = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    assert abs(model_bytes(config, (1, 6, 6), 1500) - taken) < 100


def test_tracked_runs_are_opened_whatever_their_size(store, tmp_path, monkeypatch):
    monkeypatch.setattr("bype.run.opened._SLACK_BYTES", 20000)
    config = replace(rule=TrackingSettings(scored_points=50), components=200, latent_dim=40, length="1 epoch")
    train(config, store, tmp_path / "run")
    assert len(TrainedRun.open(tmp_path / "run").model.prior.targets) == 200


def test_the_vamp_prior_starts_at_examples_from_all_of_the_data():
    """Data in the order of their classes: the first rows would all be of one class."""
    x = torch.arange(100.0)[:, None].expand(100, 4) / 100
    config = TrainingConfig(prior="vamp", vamp_start="examples", components=20, latent_dim=2, hidden=8)
    model = build_model(config, (1, 2, 2), TensorSource(x.reshape(100, 1, 2, 2)))
    starts = model.prior.pseudo_inputs.detach().flatten(1).mean(1)
    assert starts.min() < 0.2
    assert starts.max() > 0.8


def test_a_config_comes_back_from_its_fields():
    for config in (TINY, replace(rule=FrozenSettings()), replace(rule=None), replace(prior="gaussian")):
        again = TrainingConfig(**json.loads(json.dumps(config.to_fields())))
        assert again == config
        assert type(again.rule) is type(config.rule)
    with pytest.raises(ConfigError, match=r"rule must be settings, such as bype.PSVISettings\(\), not 'psvi'"):
        TrainingConfig(rule="psvi")
    with pytest.raises(ConfigError, match="rule: the field every is missing"):
        TrainingConfig(rule={"name": "psvi"})


def test_python_prints_progress_on_request_and_warns_without_it(store, tmp_path, capsys):
    config = replace(length="3 epochs", warm_up="9 epochs")
    with pytest.warns(UserWarning, match="the KL terms only reach 0.33 of their weight"):
        train(config, store, tmp_path / "run")
    assert capsys.readouterr() == ("", "")
    newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
    (newest / "model.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=f"checkpoint {newest.name} "):
        train(config, store, tmp_path / "run")
    train(replace(), store, tmp_path / "other", display=True)
    assert "epoch 2 | train -ELBO" in capsys.readouterr().out


def test_a_training_that_the_clock_ends_within_the_warm_up_is_told(store, tmp_path):
    with pytest.warns(UserWarning, match=r"warm-up of 1000000 epochs is longer than the training of 1 second;"):
        train(replace(length="1 second", warm_up="1000000 epochs"), store, tmp_path / "run")


def test_a_device_that_torch_does_not_know_is_one_line(store, tmp_path):
    for use in (lambda: train(TINY, store, tmp_path / "run", device="gpu"), lambda: TrainedRun.open("x", device="gpu")):
        with pytest.raises(GroupError, match="does not know the device 'gpu'; choose cpu, cuda"):
            use()
