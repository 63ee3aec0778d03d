"""What Windows or macOS lack is taken away, and a folder of photographs must still become a model."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from bype import system
from bype.data.files import FileError, read_bounded
from bype.run import lock as lock_module
from bype.run.lock import LockError, RunLock

WITHOUT = {
    "fcntl": "sys.modules['fcntl'] = None",
    "the C library": "ctypes.CDLL = NoneIsNoLibrary",
    "O_NOFOLLOW": "del os.O_NOFOLLOW",
    "O_NONBLOCK": "del os.O_NONBLOCK",
    "O_CLOEXEC": "del os.O_CLOEXEC",
    "preadv": "del os.preadv",
    "pread": "del os.preadv, os.pread, os.pwrite",
    "posix_fadvise": "del os.posix_fadvise",
    "sysconf": "del os.sysconf",
    "faulthandler.register": "del faulthandler.register",
    "SIGUSR1": "del signal.SIGUSR1",
    "utime of a descriptor": "os.supports_fd.discard(os.utime)",
}
# torch itself asks for some of these when it is imported, so it comes first.
TAKE_AWAY = """
import ctypes, faulthandler, os, signal, sys
import torch.distributed, sklearn.manifold
class NoneIsNoLibrary(ctypes.CDLL):
    def __init__(self, name, *options, **more):
        if name is None:
            raise TypeError("there is no such library")
        super().__init__(name, *options, **more)
{without}
from bype.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("laptop") / "photographs"
    generator = np.random.default_rng(0)
    for kind, bright in (("day", 160), ("night", 60)):
        (folder / kind).mkdir(parents=True)
        for number in range(30):
            pixels = generator.normal(bright, 20, (8, 8, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{number}.png")
    return folder


def fit(photographs: Path, out: Path, without: str) -> None:
    script = TAKE_AWAY.format(without=without)
    words = [sys.executable, "-c", script, "fit", str(photographs), "--out", str(out), "--minutes", "0.02"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (out / "report.html").stat().st_size > 10_000


def test_without_all_of_them(photographs, tmp_path):
    fit(photographs, tmp_path / "run", "; ".join(text for name, text in WITHOUT.items() if name != "preadv"))


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT)
def test_without_one_of_them(photographs, tmp_path, name):
    fit(photographs, tmp_path / "run", WITHOUT[name])


@pytest.mark.parametrize("missing", [(), ("preadv",), ("preadv", "pread")])
def test_reading_at_a_place(tmp_path, monkeypatch, missing):
    content = np.random.default_rng(0).bytes(10_000)
    (tmp_path / "file").write_bytes(content)
    for name in missing:
        monkeypatch.delattr(os, name)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    wrong = []

    def read(seed: int) -> None:
        for offset in np.random.default_rng(seed).integers(0, 9_900, 200).tolist():
            buffer = bytearray(100)
            if (
                system.read_at(descriptor, memoryview(buffer), offset) != 100
                or buffer != content[offset : offset + 100]
            ):
                wrong.append(offset)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert system.read_at(descriptor, memoryview(bytearray(100)), 9_950) == 50  # the end of the file
    os.close(descriptor)


def test_links_are_refused_by_hand(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    monkeypatch.setattr(system, "_NO_FOLLOW", 0)
    monkeypatch.setattr(system, "_ALWAYS", 0)
    with pytest.raises(FileError, match="cannot read"):
        read_bounded(tmp_path / "link", 100)
    assert read_bounded(tmp_path / "secret", 100) == b"mine"


def byte_locks() -> SimpleNamespace:
    """Windows' module, made of POSIX locks of a byte; those of two descriptors of one process do not exclude."""

    def locking(descriptor: int, mode: int, count: int) -> None:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if mode == 1 else fcntl.LOCK_NB), count, 0, os.SEEK_CUR)

    return SimpleNamespace(locking=locking, LK_LOCK=1, LK_NBLCK=2)


HOLD = """
import sys; sys.path.insert(0, {tests!r})
import threading
import time
from pathlib import Path
from bype import system
from bype.run import lock as lock_module
from bype.run.lock import RunLock
if {kind!r} == "bytes":
    from test_laptops import byte_locks
    system._msvcrt = byte_locks()
system._fcntl = None
lock = RunLock(Path({folder!r}))
lock.acquire()
lock_module._BEAT_SECONDS = 0.0

def live():
    while True:
        lock.beat()
        time.sleep(0.1)

threading.Thread(target=live, daemon=True).start()
print("held", flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["bytes", "nothing"])
def test_one_process_holds_a_run_where_there_is_no_flock(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(system, "_fcntl", None)
    monkeypatch.setattr(system, "_msvcrt", byte_locks() if kind == "bytes" else None)
    monkeypatch.setattr(lock_module, "stale_seconds", lambda: 3.0)
    script = HOLD.format(tests=str(Path(__file__).parent), folder=str(tmp_path), kind=kind)
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LockError, match=f"process {other.pid} on "):
            RunLock(tmp_path).acquire()
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "released\n"
        mine = RunLock(tmp_path)
        mine.acquire()
        assert mine.is_ours()
        mine.release()
        other.stdin.write("\n")


def test_without_any_locks_a_holder_that_hangs_is_replaced_and_fenced_off(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "_fcntl", None)
    monkeypatch.setattr(system, "_msvcrt", None)
    monkeypatch.setattr(lock_module, "stale_seconds", lambda: 0.5)
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.acquire()
    second.acquire()  # after a wait, since the first one sends no heartbeat
    assert second.is_ours()
    assert not first.is_ours()
    first.release()  # frees nothing that is not its own
    assert second.is_ours()
    second.release()
