"""One writer for a run: a lock, a heartbeat, and a fence against a process that lost the lock without noticing."""

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bype.distributed import timeout_seconds
from bype.system import lock, open_file, touch

_FLAGS = os.O_RDWR | os.O_CREAT
_STALE_SECONDS = 60.0
"""A holder without a heartbeat for this long hangs, or its machine is gone. Twice the timeout of processes, if that is
longer."""
_BEAT_SECONDS = 2.0
_POLL_SECONDS = 0.2
_GUARD_SECONDS = 30.0
"""A process that tries to take the lock holds the guard for a moment only."""


def stale_seconds() -> float:
    """Return how long a holder may be without a heartbeat before another process takes its place."""
    return max(_STALE_SECONDS, 2 * timeout_seconds())


class LockError(RuntimeError):
    """A run that another process holds."""


class RunLock:
    """The file ``lock`` of a run directory.

    The holder has locked the file and written a token into it. While it lives, it touches the file every few seconds:
    its heartbeat. If the heartbeat stops, another process may replace the file by its own. The first process then finds
    another token in it, and must not write.

    Parameters
    ----------
    folder
        The run directory.
    patience
        How many seconds to wait for a holder that may be about to end.
    note
        Called with a line of text before a wait.
    """

    def __init__(self, folder: Path, patience: float = 0.0, note: Callable[[str], None] = lambda text: None) -> None:
        self._path = folder / "lock"
        self._patience, self._note = patience, note
        self._token = secrets.token_hex(16)
        self._descriptor: int | None = None
        self._last_beat = 0.0
        self._may_be_dead = False

    def acquire(self) -> None:
        """Take the lock, or raise an error that says who holds it."""
        start, is_told = time.monotonic(), False
        while not self._try():
            # A job that was killed and starts again on another machine must not fail: its last heartbeat grows old.
            patience = max(self._patience, stale_seconds() + 1) if self._may_be_dead else self._patience
            if time.monotonic() - start >= patience:
                raise LockError(self._holder())
            if not is_told:
                is_told = True
                self._note(f"waiting up to {patience:.0f} s for {self._holder()}, which had the run and may be dead")
            time.sleep(_POLL_SECONDS)

    def _try(self) -> bool:
        """Take the lock if it is free or its holder has no heartbeat; one process at a time tries."""
        path = self._path.with_name("lock.guard")
        guard = open_file(path, _FLAGS)
        try:
            start = time.monotonic()
            while lock(guard) is False:
                if time.monotonic() - start >= _GUARD_SECONDS:
                    raise LockError(f"another process, which hangs and holds {path.name}")
                time.sleep(_POLL_SECONDS / 10)
            touch(guard, path)  # by the clock that also dates the holder's heartbeats
            now = os.fstat(guard).st_mtime
            return self._take(self._path, now) or self._take_over(now)
        finally:
            os.close(guard)

    def _take(self, path: Path, now: float) -> bool:
        """Lock the file that is at ``path`` now and write the token into it; tell whether this worked."""
        descriptor = open_file(path, _FLAGS)
        is_ours = False
        try:
            is_ours = self._write_token(descriptor, path, now)
        finally:
            if not is_ours:  # perhaps the disk is full; an open file would keep its lock
                os.close(descriptor)
        if is_ours:
            self._descriptor = descriptor
        return is_ours

    def _write_token(self, descriptor: int, path: Path, now: float) -> bool:
        is_locked = lock(descriptor)
        found = os.fstat(descriptor)
        if found.st_size > 0 and now - found.st_mtime < stale_seconds():  # somebody has not released it, and may live
            here = f" on {socket.gethostname()}, token ".encode()
            # Some disks have no locks. On others the locks of one machine do not hold on another, or outlive it.
            self._may_be_dead = is_locked is None or here not in _content(descriptor)
            is_locked = bool(is_locked) and not self._may_be_dead
        elif is_locked is None:
            is_locked = True
        try:
            is_there = is_locked and os.path.samestat(os.fstat(descriptor), path.stat())  # it may have been replaced
        except FileNotFoundError:
            is_there = False
        if not is_there:
            return False
        text = f"process {os.getpid()} on {socket.gethostname()}, token {self._token}\n".encode()
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text)
        return True

    def _take_over(self, now: float) -> bool:
        """Replace the file of a holder without a heartbeat by our own."""
        if now - self._path.stat().st_mtime < stale_seconds():
            return False
        own = self._path.with_name(f".lock.{self._token}")
        if not self._take(own, now):
            return False
        try:
            own.replace(self._path)
        except PermissionError:  # Windows cannot replace an open file: its holder is alive, and the user must end it
            self.release()
            own.unlink(missing_ok=True)
            return False
        return True

    def _holder(self) -> str:
        try:
            return self._path.read_text(errors="replace")[:200].split(", token")[0] or "another process"
        except OSError:
            return "another process"

    def beat(self) -> None:
        """Send a heartbeat, not too often."""
        now = time.monotonic()
        if self._descriptor is not None and now - self._last_beat >= _BEAT_SECONDS:
            self._last_beat = now
            with suppress(OSError):  # one heartbeat may fail: nothing is written before the lock is checked again
                touch(self._descriptor, self._path)

    def is_ours(self) -> bool:
        """Tell whether the token in the file is still ours."""
        return self._token.encode() in self._path.read_bytes()

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            # A disk that failed must not hide why the run ends: without a heartbeat the lock is soon free.
            with suppress(OSError):
                if self._token.encode() in _content(self._descriptor):
                    os.ftruncate(self._descriptor, 0)  # an empty file is free, also where there are no locks
            os.close(self._descriptor)
            self._descriptor = None


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 1000)
