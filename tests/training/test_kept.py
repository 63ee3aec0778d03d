"""What a training must not lose: its checkpoints, its best model, the steps at its end."""

import dataclasses
import errno
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bype.cli import main
from bype.console import progress_bar
from bype.data.files import FileError
from bype.data.scaling import Scaling
from bype.data.store import Store
from bype.pseudocoreset.settings import FrozenSettings
from bype.run import checkpoint, directory
from bype.run.checkpoint import CheckpointError, CheckpointFolder
from bype.run.config import ConfigError
from bype.run.directory import RunDirectory, RunError
from bype.run.identity import DataIdentity
from bype.run.metrics import MetricsFile
from bype.run.opened import TrainedRun
from bype.training.board import Board
from bype.training.display import Display, LastingDisplay, LiveDisplay, PlainDisplay, display_here
from bype.training.loop import train
from bype.training.reporter import RunReporter
from bype.training.resume import Snapshot
from bype.training.validation import Validation
from small_runs import feature_store, image_store, small_config
from training_process import command


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return image_store(tmp_path_factory.mktemp("kept"), count=250)


def config(**changes):
    chosen = {"batch_size": 50, "length": "3 epochs", "checkpoint_every": "1 epoch", "rule": FrozenSettings()}
    return small_config(**(chosen | changes))


def files(folder: Path) -> dict[str, bytes]:
    kept = [path for name in ("checkpoints", "best") for path in (folder / name).rglob("*")]
    kept += [folder / "config.json", folder / "metrics.jsonl"]
    return {str(path): path.read_bytes() for path in kept if path.is_file()}


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_whose_checkpoints_cannot_be_read_is_not_begun_anew(store, tmp_path, monkeypatch):
    train(config(), store, tmp_path / "run")
    before = files(tmp_path / "run")

    def fail(path, max_bytes):
        raise FileError(f"cannot read {path}: Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(checkpoint, "read_bounded", fail)
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used .*Input/output error.*--out"):
            train(config(), store, tmp_path / "run")
    assert files(tmp_path / "run") == before
    assert train(config(), store, tmp_path / "run").state == "finished"


def test_a_longer_run_that_cannot_begin_leaves_all_as_it_was(store, tmp_path, monkeypatch):
    train(config(), store, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")}

    def fail(path, max_bytes):
        raise FileError(f"cannot read {path}: Input/output error")

    monkeypatch.setattr(checkpoint, "read_bounded", fail)
    with pytest.raises(CheckpointError):
        train(config(length="5 epochs"), store, tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")} == before


def test_a_run_that_lost_its_metrics_resumes_all_the_same(store, tmp_path):
    train(config(length="5 epochs"), store, tmp_path / "whole")
    train(config(), store, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    display = Warnings()
    assert train(config(length="5 epochs"), store, tmp_path / "run", display).step == 15
    assert "metrics.jsonl has lost lines" in display.messages[0]
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")[3:]
    model = "checkpoints/15/model.safetensors"
    assert (tmp_path / "run" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_a_trained_model_without_checkpoints_is_not_replaced(store, tmp_path):
    train(config(), store, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = files(tmp_path / "run")
    for asked in (config(), config(seed=1)):
        with pytest.raises(RunError, match=r"checkpoints are gone.*choose another --out"):
            train(asked, store, tmp_path / "run")
    assert files(tmp_path / "run") == before


@pytest.mark.parametrize("state", ["running", "failed", "lost"])
def test_a_model_is_kept_however_its_training_ended(store, tmp_path, state):
    train(config(), store, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    status = tmp_path / "run" / "status.json"
    if state == "lost":
        status.unlink()
    else:
        status.write_text(json.dumps({**json.loads(status.read_text()), "state": state}))
    before = files(tmp_path / "run")
    with pytest.raises(RunError, match=r"checkpoints are gone.*choose another --out"):
        train(config(), store, tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_a_run_without_validation_does_not_silently_begin_again_when_its_checkpoints_are_gone(store, tmp_path):
    train(config(), store, tmp_path / "run")
    for name in ("checkpoints", "best"):  # without validation there is no best model
        shutil.rmtree(tmp_path / "run" / name)
    before = files(tmp_path / "run")
    with pytest.raises(RunError, match="holds a run that was trained, but its checkpoints are gone"):
        train(config(), store, tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_results_are_kept_even_if_no_model_is(store, tmp_path):
    train(config(), store, tmp_path / "run")
    for name in ("checkpoints", "best"):
        shutil.rmtree(tmp_path / "run" / name)
    (tmp_path / "run" / "evaluation.json").write_text("{}")
    with pytest.raises(RunError, match=r"holds evaluation\.json, but its checkpoints are gone"):
        train(config(), store, tmp_path / "run")
    assert (tmp_path / "run" / "evaluation.json").exists()


def test_a_run_that_never_had_a_checkpoint_begins_anew_with_the_same_command(store, tmp_path, monkeypatch):
    def fail(snapshot, state):
        raise CheckpointError("cannot write a checkpoint: No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Snapshot, "save", fail)
        with pytest.raises(CheckpointError):
            train(config(), store, tmp_path / "run")
    assert list((tmp_path / "run" / "best").iterdir())  # it was validated before
    assert train(config(), store, tmp_path / "run").state == "finished"


def test_another_config_does_not_follow_the_clock_of_a_run_that_failed(store, tmp_path):
    data = DataIdentity.of(Store(store))
    timed = config(length="5 seconds")
    leftovers = ("pace.json", "broken.json", "timings.jsonl")
    for asked, keeps in ((timed, True), (dataclasses.replace(timed, hidden=9), False)):
        with RunDirectory(tmp_path / "run") as run:
            run.write("config.json", {"config": timed.to_fields(), "data": dataclasses.asdict(data)})
            for name in leftovers:
                (run.folder / name).write_text("{}")
            run.save_or_compare_config(asked, data)
            assert [(run.folder / name).exists() for name in leftovers] == [keeps, False, False]


def test_the_last_steps_are_validated_too(store, tmp_path):
    asked = config(length="10 steps", learning_rate=1e-3)  # an epoch has three
    outcome = train(asked, store, tmp_path / "run")
    assert [line["step"] for line in lines(tmp_path / "run")] == [3, 6, 9, 10]
    assert outcome.best == min(line["validation"]["negative_elbo"] for line in lines(tmp_path / "run"))
    assert TrainedRun.open(tmp_path / "run", store).step == 10
    once = files(tmp_path / "run")
    train(asked, store, tmp_path / "run")
    assert files(tmp_path / "run") == once


def test_a_longer_run_continues_as_if_the_last_steps_had_not_been_validated(store, tmp_path):
    for length in ("10 steps", "4 epochs"):
        train(config(length=length), store, tmp_path / "run")
    train(config(length="4 epochs"), store, tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    model = "checkpoints/12/model.safetensors"
    assert (tmp_path / "run" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_a_longer_run_forgets_a_best_model_that_it_would_not_have_validated(store, tmp_path, monkeypatch):
    """The last steps make the best model, and nothing later is as good: the longer run keeps the one before."""
    losses = iter([5.0, 4.0, 3.0, 2.0, 4.0, 5.0, 4.0, 3.0, 4.0])
    monkeypatch.setattr(Validation, "means", lambda self, prior: {"negative_elbo": next(losses)})
    shorter, longer = config(length="10 steps"), config(length="4 epochs")
    assert train(shorter, store, tmp_path / "run").best == 2
    assert TrainedRun.open(tmp_path / "run").step == 10
    assert train(longer, store, tmp_path / "run").best == 3
    assert train(longer, store, tmp_path / "whole").best == 3
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    kept = [[path.name for path in (tmp_path / name / "best").iterdir()] for name in ("run", "whole")]
    assert kept == [["9"], ["9"]]
    model = "best/9/model.safetensors"
    assert (tmp_path / "run" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_patience_that_no_validation_can_end_is_refused(store, tmp_path):
    impatient = config(patience="5 steps", validate_every="2 epochs")
    with pytest.raises(ConfigError, match="a patience of 5 steps ends before the next validation"):
        train(impatient, store, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(dataclasses.replace(impatient, patience="6 steps"), store, tmp_path / "run")


def test_validation_keeps_no_graph_of_the_prior(store, tmp_path, monkeypatch):
    seen = []
    means = Validation.means

    def watch(self, prior):
        seen.append(prior.means.requires_grad)
        return means(self, prior)

    monkeypatch.setattr(Validation, "means", watch)
    train(config(length="1 epoch"), store, tmp_path / "run")
    assert seen == [False]


@pytest.mark.parametrize("redirection", ["| true", ">&-"])
def test_training_does_not_depend_on_who_reads_its_lines(store, tmp_path, redirection):
    spans = ("--length", "2 epochs", "--warm-up", "1 epoch", "--rule", "frozen")
    words = command(store, tmp_path / "run", "--components", "5", "--latent-dim", "2", "--hidden", "8", *spans)
    line = f"{shlex.join(words)} {redirection}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)  # noqa: S602
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"


def test_a_display_that_breaks_is_not_asked_again(capsys):
    calls = []

    class Broken(Display):
        def step(self, step, share):
            calls.append(step)
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    display = LastingDisplay(Broken())
    for step in range(3):
        display.step(step, 0.0)
    assert calls == [0]
    assert "progress is no longer shown" in capsys.readouterr().err


def no_room(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


class Warnings(Display):
    def __init__(self):
        self.messages = []

    def warn(self, message):
        self.messages.append(message)


def test_files_that_nothing_depends_on_do_not_stop_training(store, tmp_path, monkeypatch):
    monkeypatch.setattr(RunDirectory, "write_text", no_room)
    monkeypatch.setattr(RunDirectory, "append", no_room)
    monkeypatch.setattr(Board, "show", no_room)
    display = Warnings()
    short = dataclasses.replace(config(), warm_up="1 epoch")
    assert train(short, store, tmp_path / "run", display).state == "finished"
    assert sorted(Path(message.split(": ")[0]).name for message in display.messages) == [
        "monitor.prom",
        "tensorboard",
        "timings.jsonl",
    ]
    assert len(lines(tmp_path / "run")) == 3


def test_a_warm_up_that_is_longer_than_the_training_is_told(store, tmp_path):
    display = Warnings()
    train(dataclasses.replace(config(), warm_up="100 epochs"), store, tmp_path / "long", display)
    (message,) = display.messages
    assert "of their weight: the warm-up of 100 epochs is longer than the training of" in message
    display = Warnings()
    train(dataclasses.replace(config(), warm_up="1 epoch"), store, tmp_path / "short", display)
    assert display.messages == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_has_room_for_another_status(tmp_path, monkeypatch, number):
    def fail(path, content, before_replace):
        raise OSError(number, "of the disk")

    with RunDirectory(tmp_path / "run") as run:
        run.set_status("running", step=3, more="x" * 50)
        monkeypatch.setattr(directory, "write_atomic", fail)
        for state, details in (("failed", {"error": "x" * 200}), ("stopped", {})):
            if number == errno.EIO:
                with pytest.raises(OSError, match="of the disk"):
                    run.set_status(state, **details)
            else:
                run.set_status(state, **details)
                assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == state


def test_a_command_says_that_the_status_could_not_be_written_either(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(MetricsFile, "append", no_room)
    monkeypatch.setattr(RunReporter, "fail", no_room)
    spans = ("--length", "2 epochs", "--warm-up", "1 epoch", "--rule", "frozen", "--components", "5", "--hidden", "8")
    assert main(["train", "--data", str(store), "--out", str(tmp_path / "run"), *spans]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("bype: No space left on device; make room")
    assert second.startswith("bype: the status could not be written: ")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
def test_the_cause_is_told_if_the_disk_is_full_when_the_log_is_closed(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", 0, 0, pytest.fail)
    with Path("/dev/full").open("w") as full:
        os.dup2(full.fileno(), file._file.fileno())
    with pytest.raises(OSError, match="No space left"):
        file.append({"step": 1})
    file.close()  # tries to write what is left


def test_a_warning_shows_paths_with_brackets():
    out = io.StringIO()
    display = LiveDisplay(Console(file=out, force_terminal=True, width=200))
    display.warn("checkpoint 3 is not used: /data/[old]/[/tmp]")
    assert "/data/[old]/[/tmp]" in out.getvalue()


def test_a_terminal_shows_each_update():
    out = io.StringIO()
    display = LiveDisplay(Console(file=out, force_terminal=True, width=200))
    display.show(10, {"validation": {"negative_elbo": 25.0}})
    display.show(10, {"update": {"steps": 4, "kl_before": 8.0, "kl_after": 9.0, "taken_back": True}})
    text = out.getvalue()
    assert "validation 25.000" in text
    assert "pseudocoreset updated in 4 steps, validation KL 8.000 to 9.000, and taken back" in text


@pytest.mark.parametrize(("every", "fewest", "most"), [("4 percent", 1, 8), ("1 step", 25, 26)])
def test_slow_checkpoints_in_percent_take_a_small_share_of_the_time(store, tmp_path, monkeypatch, every, fewest, most):
    """A model of gigabytes would otherwise be saved 25 times, also in a training of a minute."""
    save, saved = CheckpointFolder.save, []

    def slow(self, checkpoint, more=0):
        if self.folder.name == "checkpoints":
            saved.append(checkpoint.step)
            time.sleep(0.2)
        save(self, checkpoint, more)

    monkeypatch.setattr(CheckpointFolder, "save", slow)
    train(small_config(length="25 steps", warm_up="0 epochs", checkpoint_every=every), store, tmp_path / "run")
    assert fewest <= len(saved) <= most
    assert saved[-1] == 25


def test_a_table_is_not_read_again_for_the_scale_of_its_columns(tmp_path, monkeypatch):
    """Its rows may be hundreds of gigabytes, and every process would read them at every resume."""
    table = feature_store(tmp_path)
    fits, fit = [], Scaling.fit
    monkeypatch.setattr(Scaling, "fit", lambda self, batches: (fits.append(1), fit(self, batches))[1])
    chosen = {"network": "dense", "likelihood": "learned-gaussian", "rule": FrozenSettings()}
    for length in ("1 epoch", "2 epochs"):
        train(small_config(**chosen, length=length, warm_up="0 epochs"), table, tmp_path / "resumed")
    assert fits == [1]
    train(small_config(**chosen, length="2 epochs", warm_up="0 epochs"), table, tmp_path / "whole")
    found = [TrainedRun.open(tmp_path / name).model.state_dict() for name in ("resumed", "whole")]
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_the_time_left_does_not_count_the_time_that_is_kept_for_validation(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("bype.training.display.time.perf_counter", lambda: now[0])
    display = PlainDisplay()
    display.begin(steps_per_epoch=10, step=0, share=0.0)
    for seconds, step, share in ((1.0, 1, 0.35), (11.0, 11, 0.45)):  # of 100 seconds, 34 are kept at the first step
        now[0] = seconds
        display.step(step, share)
        display.show(step, {"validation": {"negative_elbo": 1.0}})
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert "left" not in first
    assert re.search("1 steps/s, at most 0m 5[45]s left", second)


def test_a_file_is_no_terminal_even_if_colours_are_forced(monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with (tmp_path / "log").open("w") as log:
        monkeypatch.setattr(sys, "stdout", log)
        assert type(display_here()) is PlainDisplay
        monkeypatch.setattr(sys, "stderr", log)
        with progress_bar("a") as report:
            report(1, 2)
    assert (tmp_path / "log").read_text() == ""
    monkeypatch.setattr(sys, "stderr", None)  # it was closed
    with progress_bar("a") as report:
        report(1, 2)


def test_a_pause_is_soon_forgotten_by_the_time_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("bype.training.display.time.perf_counter", lambda: now[0])
    display = PlainDisplay()
    display.begin(steps_per_epoch=1, step=0, share=0.0)
    for step in range(1, 41):
        now[0] += 1000.0 if step == 20 else 1.0  # another program had the machine
        display.step(step, step / 100)
        display.show(step, {"validation": {"negative_elbo": 1.0}})
    lines = capsys.readouterr().out.splitlines()[1:]
    assert "1 steps/s, at most 1m 2" in lines[18]
    assert "steps/s, at most 1h 11m left" in lines[19]
    assert re.search("1 steps/s, at most (0m 59|1m 00)s left", lines[39])
