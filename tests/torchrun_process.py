"""Running ``bype train`` in several processes under torchrun, and doing harm to some of them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def torchrun(processes: int, *words: str, restarts: int = 0) -> list[str]:
    """Return the command that starts ``python WORDS`` in so many processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*launcher, "--max-restarts", str(restarts), *words]


def under_torchrun(processes: int, command: list[str], restarts: int = 0) -> list[str]:
    """Return a command of :func:`training_process.command` for so many processes."""
    return torchrun(processes, *command[1:], restarts=restarts)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a session of its own, and leave nothing of it behind."""
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        with process:
            yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def finish(words: list[str], timeout: float = 300) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, env=environment())
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that live, oldest first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(path.parent.name))
    return sorted(found)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.05)


def has_checkpoint(run: Path, after: int = -1):
    def condition() -> bool:
        with contextlib.suppress(OSError):
            return any(p.name.isdigit() and int(p.name) > after for p in (run / "checkpoints").iterdir())
        return False

    return condition
