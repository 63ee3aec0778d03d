"""The files of a run directory."""

import pytest

from bype.data.files import FileError
from bype.run.directory import read_status


def test_the_state_of_a_run_is_read_or_the_file_is_named(tmp_path):
    assert read_status(tmp_path) == {}
    path = tmp_path / "status.json"
    path.write_text('{"state": "finished"}')
    assert read_status(tmp_path) == {"state": "finished"}
    for content in ("[]", "{", '"finished"'):
        path.write_text(content)
        with pytest.raises(FileError, match=r"status\.json"):
            read_status(tmp_path)
