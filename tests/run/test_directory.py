"""The files of a run directory."""

import os
import time

import pytest

from bype.data.files import FileError
from bype.run.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from bype.run.directory import RunDirectory, RunError, read_status


def test_the_state_of_a_run_is_read_or_the_file_is_named(tmp_path):
    assert read_status(tmp_path) == {}
    path = tmp_path / "status.json"
    path.write_text('{"state": "finished"}')
    assert read_status(tmp_path) == {"state": "finished"}
    for content in ("[]", "{", '"finished"'):
        path.write_text(content)
        with pytest.raises(FileError, match=r"status\.json"):
            read_status(tmp_path)


def test_nothing_is_removed_through_a_link(tmp_path):
    (tmp_path / "mine" / "2024").mkdir(parents=True)
    CheckpointFolder(tmp_path / "mine", 1).save(Checkpoint(10, {}, {}, {}), more=1)
    (tmp_path / "mine" / "2024").mkdir(exist_ok=True)
    (tmp_path / "best").symlink_to(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="is a link"):
        CheckpointFolder(tmp_path / "best", 1).return_to(10)
    assert (tmp_path / "mine" / "2024").is_dir()


def test_training_removes_the_partial_files_of_training_alone(tmp_path):
    """An evaluation may be writing its results just now."""
    (tmp_path / ".status.json.0.partial").write_text("")
    (tmp_path / ".evaluation.json.1.partial").write_text("")
    with RunDirectory(tmp_path):
        assert {path.name for path in tmp_path.glob(".*.partial")} == {".evaluation.json.1.partial"}
    yesterday = time.time() - 86_400
    os.utime(tmp_path / ".evaluation.json.1.partial", (yesterday, yesterday))
    with RunDirectory(tmp_path):
        assert not list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize("act", [lambda folder: folder.save(Checkpoint(30, {}, {}, {})), lambda f: f.return_to(10)])
def test_a_process_that_hangs_before_it_tidies_up_removes_nothing_of_its_successor(tmp_path, monkeypatch, act):
    lost = []

    def check():
        if lost:
            raise RunError("taken over")

    hung = CheckpointFolder(tmp_path, 1, check)
    hung.save(Checkpoint(10, {}, {}, {}))

    def listing():  # meanwhile another process takes over
        lost.append(True)
        CheckpointFolder(tmp_path, 2).save(Checkpoint(40, {}, {}, {}))
        (tmp_path / ".50.0.partial").mkdir()
        return CheckpointFolder(tmp_path, 1).steps()

    monkeypatch.setattr(hung, "steps", listing)
    with pytest.raises(RunError, match="taken over"):
        act(hung)
    assert 40 in CheckpointFolder(tmp_path, 1).steps()
    assert (tmp_path / ".50.0.partial").exists()


def test_what_killed_processes_left_of_checkpoints_makes_room_before_the_next_is_written(tmp_path, monkeypatch):
    with RunDirectory(tmp_path) as run:
        run.checkpoints.save(Checkpoint(10, {}, {}, {}))
        left = [run.checkpoints.folder / ".20.0.partial", run.checkpoints.folder / "..20.1.partial"]
        for path in left:
            path.mkdir()
        write = CheckpointFolder._write

        def written(self, checkpoint, partial):
            assert not any(path.exists() for path in left)
            write(self, checkpoint, partial)

        monkeypatch.setattr(CheckpointFolder, "_write", written)
        run.checkpoints.save(Checkpoint(30, {}, {}, {}))
        left[0].mkdir()
    monkeypatch.setattr(RunDirectory, "_refuse_others_files", lambda self: None)  # there is no config here
    with RunDirectory(tmp_path):
        assert not left[0].exists()


def test_a_takeover_during_a_save_is_named_and_not_blamed_on_the_disk(tmp_path, monkeypatch):
    with RunDirectory(tmp_path) as run:

        def taken_over(self, checkpoint, partial):
            (tmp_path / "lock").write_text("token of another process")
            raise FileNotFoundError(2, "No such file or directory")

        monkeypatch.setattr(CheckpointFolder, "_write", taken_over)
        with pytest.raises(RunError, match="another process has taken over"):
            run.checkpoints.save(Checkpoint(10, {}, {}, {}))
