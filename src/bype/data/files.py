"""Small files, read with bounds and written all or nothing."""

import errno
import gc
import json
import os
import secrets
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bype.system import NON_BLOCKING, lock, open_file, sync_folder

MAX_JSON_BYTES = 2**23

READ_FLAGS = os.O_RDONLY | NON_BLOCKING
"""For :func:`~bype.system.open_file`: to read, and not to block on a pipe."""
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | NON_BLOCKING
"""For :func:`~bype.system.open_file`: to write, and not to block on a pipe."""


@contextmanager
def alone(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock file and remove it at the end; yield False if another process has it and this one does not wait."""
    descriptor = _locked(path, wait)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):  # Windows removes no open file
            path.unlink()
        os.close(descriptor)


def _locked(path: Path, wait: bool) -> int | None:
    """Return the descriptor of a lock file that is locked now; None if another process has it."""
    while True:
        descriptor = open_file(path, WRITE_FLAGS)
        is_held = lock(descriptor, wait=wait) is False
        with suppress(FileNotFoundError):  # its holder may have removed it since it was opened
            if not is_held and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)
        if not wait:
            return None


class FileError(ValueError):
    """A file that cannot be used, and why."""


def name_of(path: Path) -> str:
    """Return the last part of a path; of '.' and '..', the name of the folder that they lead to."""
    return path.resolve().name if path.name in ("", "..") else path.name


def parse_json(text: bytes) -> Any:
    """Read JSON that is not trusted."""
    collecting = gc.isenabled()
    gc.disable()  # what is parsed has no cycles; looking for them takes six times as long in a file of empty lists
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise FileError(f"not valid JSON: {error}") from error
    finally:
        if collecting:
            gc.enable()


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a file of bounded size."""
    try:
        with os.fdopen(open_file(path, READ_FLAGS), "rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > max_bytes:
        raise FileError(f"{path} is larger than the {max_bytes:,} bytes allowed")
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file of bounded size."""
    content = read_bounded(path, MAX_JSON_BYTES)
    try:
        return parse_json(content)
    except FileError as error:
        raise FileError(f"{path}: {error}") from error


def write_synced(path: Path, content: bytes, flags: int = WRITE_FLAGS | os.O_TRUNC) -> None:
    """Write a file and wait until it is on the disk."""
    with os.fdopen(open_file(path, flags), "wb") as file:
        file.write(content)
        file.flush()
        file.truncate()
        os.fsync(file.fileno())


def write_atomic(path: Path, content: bytes, before_replace: Callable[[], None] = lambda: None) -> None:
    """Replace a file in one step: a reader sees the old content or the new one, even after a crash.

    Several processes may do so at once; each writes its own partial file.

    Parameters
    ----------
    path, content
        What to write.
    before_replace
        Called when all is written, just before it replaces the file; if it raises, nothing is replaced.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(path.parent))
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        write_synced(partial, content)
        before_replace()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def _put(partial: Path, folder: Path) -> None:
    """Move a folder to its place, where there may be an empty one; another process may have filled it meanwhile."""
    try:
        if sys.platform == "win32" and folder.is_dir():
            folder.rmdir()  # Windows replaces no folder
        partial.replace(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileError(f"{folder} exists and is not empty; choose another path") from error
        raise


def overwrite(path: Path, content: bytes) -> None:
    """Write over a file in its place: on a full disk there is no room for a second one."""
    write_synced(path, content, os.O_WRONLY | NON_BLOCKING)


@contextmanager
def new_folder(folder: Path, replace: Collection[str] | None = None) -> Iterator[Path]:
    """Yield a partial folder to write to, which becomes ``folder`` at the end; if anything raises, all is as it was.

    Parameters
    ----------
    folder
        The folder. It must not exist yet, or be empty.
    replace
        Replace the folder instead. It may hold files and folders of these names, and of those that are written; with
        anything else in it, it is refused.
    """
    folder = folder.absolute()
    if replace is None and folder.is_symlink():
        raise FileError(f"{folder} is a link; name the folder that it leads to, or choose another path")
    if replace is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(f"{folder} exists and is not empty; choose another path")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent) as scratch:
        partial = Path(scratch) / "new"
        partial.mkdir()
        yield partial
        sync_folder(partial)
        old = Path(scratch) / "old"
        try:
            if replace is not None and folder.exists():
                _refuse_others(folder, {*replace, *(path.name for path in partial.iterdir())})
                folder.replace(old)
            _put(partial, folder)
        except BaseException:
            if old.exists() and not folder.exists():  # the scratch folder is removed with all that is in it
                old.replace(folder)
            raise
    sync_folder(folder.parent)


def _refuse_others(folder: Path, known: Collection[str]) -> None:
    """Refuse to replace a folder that holds more than the names that are known."""
    others = sorted(path.name for path in folder.iterdir() if path.name not in known)
    if others:
        raise FileError(
            f"{folder} also holds {' and '.join(others[:3])}, which would be lost; move them, or choose another folder"
        )


def to_json(content: Any) -> bytes:
    """Return JSON text, always the same for the same content."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode(errors="backslashreplace")  # a path may hold bytes that are no UTF-8; JSON can escape them


def harmless(text: str) -> str:
    r"""Return text in one line, without what a terminal would take for a command.

    Examples
    --------
    >>> print(harmless("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else ascii(c)[1:-1] for c in text)


def printable(name: str) -> str:
    r"""Return the name of a file or folder as text that can be shown; what is no UTF-8 becomes ``\xNN``.

    Examples
    --------
    >>> print(printable(b"caf\xe9".decode(errors="surrogateescape")))
    caf\xe9
    """
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
