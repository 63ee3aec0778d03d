"""The lock of a run: one holder, takeovers of the hung, a fence for those who come back."""

import errno
import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from bype import system
from bype.run import directory
from bype.run import lock as lock_module
from bype.run.directory import RunDirectory, RunError
from bype.run.lock import LockError, RunLock


def age(folder, seconds):
    then = time.time() - seconds
    os.utime(folder / "lock", (then, then))


@contextmanager
def living(holder: RunLock, monkeypatch):
    """Send the heartbeats of a process that holds a lock."""
    monkeypatch.setattr(lock_module, "_BEAT_SECONDS", 0.0)
    ended = threading.Event()

    def live():
        while not ended.wait(0.05):
            holder.beat()

    heart = threading.Thread(target=live)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()


def test_a_held_lock_is_refused_with_its_holder(tmp_path):
    holder = RunLock(tmp_path)
    holder.acquire()
    with pytest.raises(LockError, match=f"process {os.getpid()} on "):
        RunLock(tmp_path).acquire()
    holder.release()
    RunLock(tmp_path).acquire()


def test_whoever_waits_gets_it_when_the_holder_ends(tmp_path):
    holder = RunLock(tmp_path)
    holder.acquire()
    timer = threading.Timer(0.5, holder.release)
    timer.start()
    RunLock(tmp_path, patience=10).acquire()
    timer.join()


def test_a_holder_without_a_sign_of_life_is_replaced_and_fenced_off(tmp_path):
    with RunDirectory(tmp_path / "run") as hung:
        age(tmp_path / "run", 120)
        with RunDirectory(tmp_path / "run") as successor:
            successor.write("notes.json", {"state": "mine"})
            for action in (
                lambda: hung.write("notes.json", {"state": "not mine"}),
                lambda: hung.append("timings.jsonl", {}),
                lambda: hung.write_text("monitor.prom", ""),
            ):
                with pytest.raises(RunError, match="taken over"):
                    action()
            with pytest.raises(RunError, match="being trained by"):
                RunDirectory(tmp_path / "run").__enter__()
        hung.lock.beat()  # on the file that is no longer there
        with pytest.raises(RunError, match="taken over"):
            hung.check_fence()


def test_a_sign_of_life_keeps_others_away(tmp_path):
    holder = RunLock(tmp_path)
    holder.acquire()
    age(tmp_path, 120)
    holder.beat()
    with pytest.raises(LockError):
        RunLock(tmp_path).acquire()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_on_a_disk_without_locks_the_heartbeat_decides(tmp_path, monkeypatch, number):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(system, "_fcntl", SimpleNamespace(flock=flock, LOCK_EX=2, LOCK_NB=4))
    monkeypatch.setattr(lock_module, "stale_seconds", lambda: 1.0)
    with RunDirectory(tmp_path / "run") as holder, living(holder.lock, monkeypatch):
        notes = []
        with pytest.raises(RunError, match=r"being trained by .*choose another --out; if it was killed, try again"):
            RunDirectory(tmp_path / "run", note=notes.append).__enter__()
        holder.check_fence()
        (note,) = notes
        assert re.fullmatch(
            rf"waiting up to 2 s for process {os.getpid()} on .*, which had the run and may be dead", note
        )
    hung, next_one = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")  # the one before has released it
    with hung, next_one, pytest.raises(RunError, match="taken over"):  # after a second
        hung.check_fence()


@pytest.mark.parametrize("is_locked", [True, False])
def test_a_lock_of_another_machine_that_nothing_is_known_of_is_waited_for(tmp_path, monkeypatch, is_locked):
    """Some disks show a lock to one machine alone, and others keep the lock of a machine that is lost."""
    holder, other = RunLock(tmp_path), RunLock(tmp_path)
    holder.acquire()
    shown = (tmp_path / "lock").stat()
    monkeypatch.setattr(lock_module, "lock", lambda file, **_: is_locked or not os.path.samestat(os.fstat(file), shown))
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    monkeypatch.setattr(lock_module, "stale_seconds", lambda: 1.0)
    with living(holder, monkeypatch), pytest.raises(LockError, match=f"process {os.getpid()} on "):
        other.acquire()
    assert holder.is_ours()
    start = time.monotonic()
    other.acquire()  # waits for a holder that may be dead, until its heartbeat is too old
    assert 0.5 < time.monotonic() - start < 10
    assert not holder.is_ours()
    holder.release()  # frees nothing that is not its own
    assert other.is_ours()
    other.release()
    RunLock(tmp_path).acquire()


def test_a_lock_is_free_at_once_if_its_holder_on_this_machine_was_killed(tmp_path):
    holder = RunLock(tmp_path)
    holder.acquire()
    os.close(holder._descriptor)  # as the system does
    RunLock(tmp_path).acquire()


def test_of_many_that_would_take_over_one_does(tmp_path):
    holder = RunLock(tmp_path)
    holder.acquire()
    age(tmp_path, 120)
    script = (
        "import sys; from pathlib import Path; from bype.run.lock import LockError, RunLock\n"
        "lock = RunLock(Path(sys.argv[1]))\n"
        "try:\n    lock.acquire(); print('mine', flush=True); sys.stdin.read()\n"
        "except LockError:\n    print('refused')\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen(words, **pipes, text=True) for _ in range(6)]
    said = [process.stdout.readline().strip() for process in processes]  # the one that has it waits for all others
    for process in processes:
        process.communicate(timeout=60)
    assert sorted(said) == ["mine", *["refused"] * 5]
    assert not holder.is_ours()


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    with RunDirectory(tmp_path / "run") as run:
        run.write("notes.json", {"state": "mine"})
        (tmp_path / "run" / ".notes.json.0123abcd.partial").write_text("{")
        (tmp_path / "run" / ".store.partial").mkdir()  # of a preparation, which knows what to do with it
    with RunDirectory(tmp_path / "run"):
        assert [path.name for path in (tmp_path / "run").glob(".*.partial")] == [".store.partial"]
        assert (tmp_path / "run" / "notes.json").exists()


def test_one_heartbeat_that_fails_does_not_end_a_run(tmp_path, monkeypatch):
    holder = RunLock(tmp_path)
    holder.acquire()
    monkeypatch.setattr(lock_module, "_BEAT_SECONDS", 0.0)
    tried = []

    def stale(*_):
        tried.append(1)
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(lock_module, "touch", stale)
    holder.beat()
    assert tried
    assert holder.is_ours()
    holder.release()


def test_a_lock_that_cannot_be_read_for_a_moment_does_not_end_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_FENCE_WAITS", (0.0, 0.0))
    with RunDirectory(tmp_path / "run") as run:
        answers = [OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EIO, "Input/output error"), True]

        def read():
            if isinstance(answer := answers.pop(0), OSError):
                raise answer
            return answer

        monkeypatch.setattr(run.lock, "is_ours", read)
        run.write_text("monitor.prom", "")
        answers += [OSError(errno.ESTALE, "Stale file handle")] * 3
        with pytest.raises(RunError, match=r"cannot read the lock of .*: Stale file handle"):
            run.check_fence()
        assert answers == []
        answers += [FileNotFoundError(errno.ENOENT, "No such file or directory"), True]
        with pytest.raises(RunError, match="No such file"):  # somebody has removed the run
            run.check_fence()
        monkeypatch.undo()


def test_a_colleague_may_resume_a_run_if_the_umask_allows_it(tmp_path):
    before = os.umask(0o002)
    try:
        with RunDirectory(tmp_path / "run") as run:
            run.write("notes.json", {})
            run.append("timings.jsonl", {})
    finally:
        os.umask(before)
    for name in ("lock", "lock.guard", "notes.json", "timings.jsonl"):
        assert (tmp_path / "run" / name).stat().st_mode & 0o777 == 0o664


def test_a_start_does_not_wait_forever_for_another_one_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "_GUARD_SECONDS", 0.1)
    guard = os.open(tmp_path / "lock.guard", os.O_RDWR | os.O_CREAT)
    assert system.lock(guard)
    try:
        with pytest.raises(RunError, match=r"hangs and holds lock\.guard"):
            RunDirectory(tmp_path).__enter__()
    finally:
        os.close(guard)
    with RunDirectory(tmp_path):
        pass


def test_a_disk_that_fails_at_the_end_raises_nothing_that_would_hide_the_cause(tmp_path, monkeypatch):
    def fail(descriptor, length):
        raise OSError(errno.EROFS, "Read-only file system")

    run = RunDirectory(tmp_path).__enter__()
    monkeypatch.setattr(os, "ftruncate", fail)
    run.__exit__(None, None, None)
    assert run.lock._descriptor is None


@pytest.mark.parametrize("moment", ["token", "partial file"])
def test_a_start_that_fails_holds_no_lock(tmp_path, monkeypatch, moment):
    """Else the next start, in the same notebook and after making room, would be refused."""
    with RunDirectory(tmp_path):
        (tmp_path / ".notes.json.0123abcd.partial").write_text("{")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if moment == "token":
        monkeypatch.setattr(os, "write", fail)
    else:
        monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises((RunError, OSError), match="No space left on device"):
        RunDirectory(tmp_path).__enter__()
    monkeypatch.undo()
    with RunDirectory(tmp_path) as run:
        assert run.lock.is_ours()


def test_each_check_of_the_fence_sends_a_heartbeat(tmp_path):
    """A large checkpoint takes longer than others wait; between its files the fence is checked."""
    with RunDirectory(tmp_path) as run:
        run.lock._last_beat = 0.0
        age(tmp_path, 120)
        run.check_fence()
        with pytest.raises(RunError, match="being trained by"):
            RunDirectory(tmp_path).__enter__()
