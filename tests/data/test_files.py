"""Files and folders that are replaced all or nothing."""

import errno
from pathlib import Path

import pytest

from bype.data.files import FileError, new_folder


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("comes_late", [False, True], ids=["not moved", "moved"])
def test_a_folder_that_cannot_be_replaced_is_kept(tmp_path, monkeypatch, error, comes_late):
    """Ctrl-C may also come just after a folder was moved; then the new one is complete."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_text("old")
    move = Path.replace

    def fail(path, target):
        if path.name == "new":
            if comes_late:
                move(path, target)
            raise error
        return move(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(type(error)), new_folder(folder, replace=["weights"]) as partial:
        (partial / "weights").write_text("new")
    assert (folder / "weights").read_text() == ("new" if comes_late else "old")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_is_there_again_after_an_interrupt_between_the_two_moves(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_text("old")
    move = Path.replace

    def interrupt(path, target):
        found = move(path, target)
        if path == folder:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt), new_folder(folder, replace=["weights"]) as partial:
        (partial / "weights").write_text("new")
    assert (folder / "weights").read_text() == "old"


def test_a_folder_that_another_process_made_meanwhile_is_kept(tmp_path):
    folder = tmp_path / "model"

    def other_process():
        folder.mkdir()
        (folder / "weights").write_text("theirs")

    with pytest.raises(FileError, match="not empty"), new_folder(folder):
        other_process()
    assert (folder / "weights").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as partial:
        (partial / "weights").write_text("ours")
    assert (tmp_path / "empty" / "weights").read_text() == "ours"


def test_a_link_is_refused_before_the_work_is_done(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError, match="is a link; name the folder"), new_folder(tmp_path / "link"):
        pytest.fail("the work has begun")
    assert not list((tmp_path / "elsewhere").iterdir())
