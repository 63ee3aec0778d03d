"""Opening a run while it trains, a run that was copied, and what a run that failed early leaves to the next one."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from bype.data.manifest import StoreError
from bype.data.store import Store
from bype.run import opened
from bype.run.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from bype.run.directory import RunDirectory
from bype.run.identity import DataIdentity
from bype.run.opened import MissingDataError, TrainedRun, open_store
from small_runs import image_store, small_config, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return small_run(folder / "run", image_store(folder))


def test_a_better_model_may_replace_the_one_that_is_being_opened(run, monkeypatch):
    best = CheckpointFolder(run / "best", 1)
    step, build = best.steps()[0], opened.build_model
    numbers = TrainedRun.open(run).model.state_dict()

    def build_while_training_saves(*arguments, **keywords):
        if best.steps() == [step]:
            best.save(Checkpoint(step + 1, dict(numbers), {}, {}))
        return build(*arguments, **keywords)

    monkeypatch.setattr(opened, "build_model", build_while_training_saves)
    found = TrainedRun.open(run)
    assert found.step == step + 1
    damaged = run / "best" / str(step + 1) / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    for broken in (b"broken", content):
        damaged.write_bytes(broken)
        with pytest.raises(CheckpointError, match=r"remove .*best to use the newest checkpoint"):
            TrainedRun.open(run)


@pytest.mark.parametrize("problem", ["no store", "not to be read"])
def test_a_copied_run_finds_its_own_store_whatever_is_at_the_place_that_it_remembers(tmp_path, monkeypatch, problem):
    store = image_store(tmp_path)
    folder = small_run(tmp_path / "run", store, length="1 epoch")
    shutil.move(store, folder / "store")
    store.mkdir()  # as where a disk is not mounted
    exists = Path.exists

    def refuse(path):
        if problem == "not to be read" and path == store:
            raise PermissionError(13, "Permission denied")
        return exists(path)

    monkeypatch.setattr(Path, "exists", refuse)
    run = TrainedRun.open(folder)
    assert run.store().folder == folder / "store"
    with pytest.raises((StoreError, PermissionError)):
        open_store(folder, run.data, store)
    shutil.rmtree(folder / "store")
    with pytest.raises(MissingDataError, match=r"cannot be read \(.*\); say where they are with --data"):
        run.store()


@pytest.mark.parametrize("is_same_data", [True, False])
def test_a_run_follows_the_clock_of_one_that_failed_early_on_the_same_data_alone(tmp_path, is_same_data):
    config = small_config()
    identity = DataIdentity.of(Store(image_store(tmp_path)))
    with RunDirectory(tmp_path / "run") as first:
        first.save_or_compare_config(config, identity)
        first.write("pace.json", {})
    other = identity if is_same_data else dataclasses.replace(identity, fingerprint="0" * 64)
    with RunDirectory(tmp_path / "run") as second:
        second.save_or_compare_config(config, other)
    assert (tmp_path / "run" / "pace.json").exists() == is_same_data
