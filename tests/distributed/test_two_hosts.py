"""Two hosts that are network namespaces of this one: a node is killed, a link is cut, a node comes back.

Needs root and ``ip``: ``pytest -m slow tests/distributed/test_two_hosts.py --data-folder FOLDER``.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchrun_process import environment, has_checkpoint, wait_until
from training_process import command

pytestmark = pytest.mark.slow

HOSTS = ("10.77.0.1", "10.77.0.2")
LONG = (
    *("--length", "2000 epochs", "--warm-up", "1 epoch", "--checkpoint-every", "20 steps", "--rule", "tracking"),
    *("--validate-every", "1 epoch"),
)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)  # noqa: S607


@pytest.fixture
def network() -> Iterator[None]:
    """Two namespaces with a cable between them."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs root and the command ip")
    names = ("bype0", "bype1")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "cable0", "netns", names[0], "type", "veth", "peer", "name", "cable1", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"{HOSTS[number]}/24", "dev", f"cable{number}")
            ip("-n", name, "link", "set", f"cable{number}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)  # noqa: S607


class Node:
    """torchrun with one process on one of the hosts."""

    def __init__(self, number: int, words: list[str], log: Path) -> None:
        self.number = number
        launcher = [
            *("ip", "netns", "exec", f"bype{number}", sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "10", "--rdzv-backend", "c10d"),
            *("--rdzv-id", "test", "--rdzv-endpoint", f"{HOSTS[0]}:29400", "--local-addr", HOSTS[number]),
            *("--rdzv-conf", f"is_host={int(number == 0)},join_timeout=120,last_call_timeout=5"),
        ]
        settings = {
            "GLOO_SOCKET_IFNAME": f"cable{number}",
            "BYPE_TIMEOUT": "15",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else a node that was first keeps an old meeting point
        }
        with log.open("a") as file:
            self.process = subprocess.Popen(
                [*launcher, *words[1:]],
                env=environment() | settings,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End all of it at once, as a machine without power does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def step(run: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return max(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit())
    return -1


def processes(run: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((run / "manifest.json").read_text())["processes"])
    return 0


def resumes(run: Path, seconds: float = 60, what: str = "not resumed") -> tuple[float, int]:
    """Wait until the run has a newer checkpoint; return how long it took, and the newest before."""
    before, start = step(run), time.monotonic()
    wait_until(lambda: step(run) > before, seconds, what)
    return time.monotonic() - start, before


@pytest.fixture
def two_nodes(network, fashion_store, tmp_path) -> Iterator[tuple[list[Node], list[str], Path]]:
    run = tmp_path / "run"
    words = command(fashion_store, run, *LONG)
    nodes = [Node(number, words, tmp_path / f"log-{number}") for number in range(2)]
    try:
        wait_until(has_checkpoint(run), 120, "no checkpoint")
        assert processes(run) == 2
        yield nodes, words, run
    finally:
        for node in nodes:
            node.kill()
        for number in range(2):
            text = (tmp_path / f"log-{number}").read_text()
            print(f"node {number}:", *[line for line in text.splitlines() if "bype:" in line], sep="\n")  # noqa: T201


def check_continuity(run: Path) -> None:
    """Lines of metrics follow each other without a gap or a repetition: nothing was written twice."""
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(50, 50 * len(steps) + 1, 50))


def test_a_node_is_killed_and_comes_back(two_nodes, tmp_path):
    nodes, words, run = two_nodes
    nodes[1].kill()
    at = step(run)
    took, _ = resumes(run)
    print(f"a node killed: resumed after {took:.0f} s")  # noqa: T201
    assert step(run) >= at
    wait_until(lambda: processes(run) == 1, 60, "not one process")
    nodes.append(Node(1, words, tmp_path / "log-1"))
    wait_until(lambda: processes(run) == 2, 60, "the node did not join")
    took, _ = resumes(run)
    print(f"a node came back: resumed after {took:.0f} s")  # noqa: T201
    check_continuity(run)


def test_a_link_is_cut_and_mended(two_nodes, tmp_path):
    nodes, words, run = two_nodes
    ip("-n", "bype1", "link", "set", "cable1", "down")
    start = time.monotonic()
    wait_until(lambda: processes(run) == 1, 90, "nobody went on alone")
    resumes(run, 60)
    print(f"a link cut: resumed after {time.monotonic() - start:.0f} s")  # noqa: T201
    ip("-n", "bype1", "link", "set", "cable1", "up")
    if nodes[1].process.poll() is not None:  # its launcher lost the other one, and gave up
        nodes.append(Node(1, words, tmp_path / "log-1"))
    wait_until(lambda: processes(run) == 2, 120, "the node did not join")
    took, _ = resumes(run)
    print(f"the link mended: resumed after {took:.0f} s")  # noqa: T201
    check_continuity(run)


def test_the_first_node_is_killed_and_a_new_start_takes_over(two_nodes, tmp_path):
    """With it goes torchrun's meeting point; a scheduler starts the job again."""
    nodes, words, run = two_nodes
    nodes[0].kill()
    at, start = step(run), time.monotonic()
    nodes += [Node(number, words, tmp_path / f"log-{number}") for number in range(2)]
    wait_until(lambda: step(run) > at, 60, "not resumed")
    print(f"the first node killed: resumed after {time.monotonic() - start:.0f} s")  # noqa: T201
    wait_until(lambda: nodes[1].process.poll() is not None, 90, "the old node lives on")
    resumes(run)
    check_continuity(run)
