"""What some systems lack, with a fallback in one place each: Windows has no flock, macOS no posix_fadvise."""

import errno
import faulthandler
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_ALWAYS = _NO_FOLLOW | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_BINARY"))
NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)
"""For :func:`open_file`: does not wait on a pipe that is in the place of a file."""
_LOCKED_BYTE = 2**30
"""Windows locks bytes, not files, and others cannot read a locked byte: this one lies behind all that is written."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What flock says on disks without locks, such as NFS without its daemon and Lustre without ``-o flock``."""
_POSITION = threading.Lock()
_PROCESS, _PARENT = os.getpid(), os.getppid()


def launcher() -> int:
    """Return the id of the process that started this one. It was read early on: that process may be gone by now."""
    return _PARENT if os.getpid() == _PROCESS else os.getppid()


def replaceable(numbers: Iterable[int]) -> list[int]:
    """Return the signals whose handlers may be replaced for a while.

    A signal that the process ignores stays ignored: nohup ignores SIGHUP, and what a script starts in the background
    ignores SIGINT. Python cannot put back a handler of C code (``None``).
    """
    return [number for number in numbers if signal.getsignal(number) not in (None, signal.SIG_IGN)]


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl = _module("fcntl")
_msvcrt = _module("msvcrt")


def open_file(path: Path, flags: int) -> int:
    """Open a file that may be a stranger's, and return its descriptor: follow no link, and let no child inherit it."""
    if not _NO_FOLLOW and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.open(path, flags | _ALWAYS, 0o666)  # less what the umask forbids


def lock(descriptor: int, *, wait: bool = False) -> bool | None:
    """Lock an open file until it is closed, and tell whether this worked; ``None`` if system or disk have no locks."""
    if _fcntl is not None:
        try:
            _fcntl.flock(descriptor, _fcntl.LOCK_EX | (0 if wait else _fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            raise
        return True
    if _msvcrt is not None:
        return _lock_byte(_msvcrt, descriptor, wait)
    return None


def _lock_byte(msvcrt: ModuleType, descriptor: int, wait: bool) -> bool:
    while True:
        try:
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except OSError:
            if not wait:
                return False
        else:
            return True
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)


def touch(descriptor: int, path: Path) -> None:
    """Set the time of an open file to now."""
    os.utime(descriptor if os.utime in os.supports_fd else path)


def read_at(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from a place in a file, and return how many bytes there were."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    if hasattr(os, "pread"):
        content = os.pread(descriptor, len(buffer), offset)
    else:
        with _POSITION:  # threads share the position in a file
            os.lseek(descriptor, offset, os.SEEK_SET)
            content = os.read(descriptor, len(buffer))
    buffer[: len(content)] = content
    return len(content)


def will_read(descriptor: int, offset: int, length: int) -> None:
    """Tell the system that a part of a file will be read soon, if it takes such hints."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; Windows cannot open folders, and does this by itself."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def memory_bytes() -> int | None:
    """Return how much memory the machine has, if the system says so."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def print_stacks_on_signal() -> None:
    """Print the stack of every thread when SIGUSR1 comes, where there is such a signal."""
    if hasattr(faulthandler, "register") and hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=2)
