"""The files of a run directory."""

import os
import time

import pytest

from bype.data.files import FileError
from bype.run.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from bype.run.directory import RunDirectory, read_status


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
