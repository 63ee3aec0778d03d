"""Running ``bype train`` as a process, killing it at chosen moments, and comparing what it leaves."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

COMPARED = ("metrics.jsonl", "config.json")


def command(store: Path, run: Path, *arguments: str) -> list[str]:
    recipe = "paper/fashion-mnist/vae/bype"
    return [sys.executable, "-m", "bype", "train", recipe, "--data", str(store), "--out", str(run), *arguments]


def finish(arguments: list[str]) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def kill_when(arguments: list[str], moment: Callable[[float], bool]) -> bool:
    """Start the command and SIGKILL it as soon as ``moment`` of the seconds since is true; tell whether it lived."""
    start = time.perf_counter()
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if moment(time.perf_counter() - start):
                process.send_signal(signal.SIGKILL)
                process.wait()
                return True
            time.sleep(0.0005)  # much less than a checkpoint takes
    return False


def after(limit: float) -> Callable[[float], bool]:
    return lambda seconds: seconds > limit


def checkpoint_is_being_written(run: Path) -> Callable[[float], bool]:
    seen = set()

    def moment(seconds: float) -> bool:
        with contextlib.suppress(OSError):
            seen.update(path.name for path in (run / "checkpoints").glob(".*.partial"))
        return len(seen) >= 3  # not the first one, so that there is something to go back to

    return moment


def update_is_under_way(run: Path) -> Callable[[float], bool]:
    def moment(seconds: float) -> bool:
        with contextlib.suppress(OSError):
            lines = (run / "metrics.jsonl").read_text().splitlines()
            return bool(lines) and "validation" in lines[-1]
        return False

    return moment


def outcome(run: Path) -> dict[str, bytes]:
    """All that must be equal between two equal runs: metrics, the newest checkpoint, the best model."""
    newest = {}
    for kind in ("checkpoints", "best"):
        steps = [int(path.name) for path in (run / kind).iterdir() if path.name.isdigit()]
        folder = run / kind / str(max(steps))
        newest |= {f"{kind}/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}
    return newest | {name: (run / name).read_bytes() for name in COMPARED}
