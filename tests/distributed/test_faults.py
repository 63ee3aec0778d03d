"""Several processes of which some are killed, stopped or left alone."""

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bype.data.order import Order
from bype.distributed import Group
from torchrun_process import (
    children,
    environment,
    finish,
    has_checkpoint,
    is_alive,
    started,
    torchrun,
    under_torchrun,
    wait_until,
)
from training_process import command, outcome

SMALL = (
    *("--length", "6 epochs", "--warm-up", "1 epoch", "--checkpoint-every", "3 steps"),
    *("--batch-size", "50", "--components", "20", "--latent-dim", "4", "--hidden", "16", "--learning-rate", "0.001"),
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the processes of a launcher are found in /proc")
REAL = ("--length", "5 epochs", "--warm-up", "1 epoch", "--checkpoint-every", "7 steps")
PSVI = ("--rule", "psvi", "--rule-every", "2 epochs")
SHORT_PSVI = (*PSVI, "--rule-steps", "10")
TRACKING = ("--rule", "tracking", "--rule-live-points", "6", "--average", "0.1")


def status(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "status.json").read_text())
    return found


def began_after(run: Path, moment: float) -> bool:
    with contextlib.suppress(OSError, ValueError):
        found = status(run)
        return found["state"] == "running" and float(str(found["updated"])) >= moment - 0.1
    return False


def newest_step(run: Path) -> int:
    return max(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit())


def kill_some(words: list[str], run: Path, moments: list[float], generator: random.Random) -> int:
    """Kill one of the processes at each moment, in seconds since checkpoints are being written; return how many."""
    kills = 0
    with started(words) as launcher:
        for moment in moments:
            wait_until(lambda: launcher.poll() is not None or children(launcher.pid), 60, "no process began")
            if not has_checkpoint(run)():
                wait_until(lambda: launcher.poll() is not None or has_checkpoint(run)(), 120, "no checkpoint")
            time.sleep(moment)
            if launcher.poll() is not None:
                break
            if alive := children(launcher.pid):
                victim = generator.choice(alive)
                subprocess.run(["kill", "-9", str(victim)], check=False)  # noqa: S607
                kills += 1
                wait_until(lambda victim=victim: victim not in children(launcher.pid), 60, "it lives on")
        text = launcher.communicate(timeout=300)[0]
        assert launcher.returncode == 0, text
    return kills


BY_THE_CLOCK = (
    *(
        "--network",
        "dense",
        "--likelihood",
        "learned-gaussian",
        "--dropout",
        "0.2",
        "--flips",
        "True",
        "--decay",
        "True",
    ),
    *("--length", "5 seconds", "--warm-up", "0 epochs", "--checkpoint-every", "3 steps", "--patience", "0 epochs"),
    *("--batch-size", "50", "--components", "20", "--latent-dim", "4", "--hidden", "16", "--learning-rate", "0.001"),
)


def test_two_processes_by_the_clock_one_killed_equal_a_replay_of_their_log(labelled_store, tmp_path):
    broken = command(labelled_store, tmp_path / "broken", *BY_THE_CLOCK)
    assert kill_some(under_torchrun(2, broken, restarts=1), tmp_path / "broken", [0.5], random.Random(0)) == 1  # noqa: S311
    (tmp_path / "replay").mkdir()
    for name in ("config.json", "pace.json"):
        (tmp_path / "replay" / name).write_bytes((tmp_path / "broken" / name).read_bytes())
    finish(under_torchrun(2, command(labelled_store, tmp_path / "replay", *BY_THE_CLOCK)))
    assert outcome(tmp_path / "replay") == outcome(tmp_path / "broken")


def test_three_processes_draw_what_one_draws(labelled_store, tmp_path):
    """Flips, shifts, dropout and noise of a whole training; what is left is the rounding of sums in another order."""
    drawn = (
        *("--network", "dense", "--likelihood", "learned-gaussian", "--rule", "frozen"),
        *("--dropout", "0.2", "--flips", "True", "--shifts", "1", "--length", "2 epochs", "--warm-up", "1 epoch"),
        *("--batch-size", "50", "--components", "20", "--latent-dim", "4", "--hidden", "16"),
    )
    finish(command(labelled_store, tmp_path / "one", *drawn))
    finish(under_torchrun(3, command(labelled_store, tmp_path / "three", *drawn)))
    one, three = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "three")
    )
    assert len(one) == len(three) > 1
    for line, other in zip(one, three, strict=True):
        assert line["step"] == other["step"]
        for part in ("train", "validation"):
            assert other.get(part) == (pytest.approx(line[part], rel=1e-3) if part in line else None)


def test_a_killed_process_changes_nothing(labelled_store, tmp_path):
    whole = command(labelled_store, tmp_path / "whole", *SMALL, *TRACKING)
    finish(under_torchrun(2, whole))
    broken = command(labelled_store, tmp_path / "broken", *SMALL, *TRACKING)
    words = under_torchrun(2, broken, restarts=1)
    assert kill_some(words, tmp_path / "broken", [0.0], random.Random(0)) == 1  # noqa: S311
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")


def test_a_process_0_that_does_not_see_the_run_does_not_begin_anew(labelled_store, tmp_path):
    (tmp_path / "new").mkdir()
    words = command(labelled_store, Path("run"), *SMALL)[3:]  # without python -m bype
    finish(command(labelled_store, tmp_path / "old" / "run", *SMALL))
    before = outcome(tmp_path / "old" / "run")

    def start(*folders):
        script = str(Path(__file__).parent.parent / "elsewhere_process.py")
        launched = torchrun(2, script, *(str(tmp_path / name) for name in folders), "--", *words)
        return subprocess.run(launched, capture_output=True, text=True, timeout=120, check=False, env=environment())

    refused = start("new", "old")
    assert refused.returncode != 0
    assert "process 1 sees checkpoints in run, and process 0" in refused.stderr
    assert not list((tmp_path / "new").iterdir())
    accepted = start("old", "new")
    assert accepted.returncode == 0, accepted.stderr
    assert outcome(tmp_path / "old" / "run") == before


def test_sigterm_to_one_process_stops_all_at_one_step_and_one_process_goes_on(labelled_store, tmp_path):
    finish(command(labelled_store, tmp_path / "whole", *SMALL, *PSVI))
    run = tmp_path / "run"
    words = command(labelled_store, run, *SMALL, *PSVI)
    with started(under_torchrun(3, words)) as launcher:
        wait_until(has_checkpoint(run), 60, "no checkpoint")
        subprocess.run(["kill", "-TERM", str(children(launcher.pid)[-1])], check=True)  # noqa: S607
        text = launcher.communicate(timeout=60)[0]
    assert "stopped at step" in text, text
    stopped = status(run)
    assert (stopped["state"], stopped["step"]) == ("stopped", newest_step(run))
    finish(words)
    ours, theirs = ((tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("run", "whole"))
    assert len(ours) == len(theirs)
    for line, other in zip(ours, theirs, strict=True):
        found, expected = json.loads(line), json.loads(other)
        assert found["step"] == expected["step"]
        for name, value in expected.get("train", {}).items():  # sums in another order drift apart, slowly
            assert abs(found["train"][name] - value) < 1e-3 * max(1.0, abs(value))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_processes_together_see_every_position_once(size):
    order = Order(101, seed=3)
    for epoch in range(2):
        seen = []
        for start in range(0, 101, 10):
            rows = order.rows(epoch, start, min(start + 10, 101))
            seen += [rows[Group(rank, size).part(len(rows))] for rank in range(size)]
        assert np.array_equal(np.concatenate(seen), order.rows(epoch, 0, 101))


def content(run: Path) -> dict[str, tuple[int, bytes]]:
    """All files but TensorBoard's, of which each process has its own, and fills it when it pleases."""
    return {
        str(path.relative_to(run)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(run.rglob("*"))
        if path.is_file() and "tensorboard" not in path.parts
    }


def leave_orphans_and_take_over(words: list[str], run: Path, processes: int, pause: float) -> None:
    """Kill the launcher, hold its processes, have others take over, and see what the first ones then do."""
    before = newest_step(run) if (run / "checkpoints").exists() else -1
    with started(under_torchrun(processes, words)) as launcher:
        wait_until(has_checkpoint(run, before), 120, "no checkpoint")
        time.sleep(pause)
        orphans = children(launcher.pid)
        assert len(orphans) == processes
        for pid in [launcher.pid, *orphans]:  # held, so that they notice nothing until others have taken over
            subprocess.run(["kill", "-STOP", str(pid)], check=True)  # noqa: S607
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        finish(["touch", "-d", "2 minutes ago", str(run / "lock")])
        with started(under_torchrun(processes, words)) as successor:
            at = newest_step(run)
            wait_until(lambda: newest_step(run) > at or successor.poll() is not None, 120, "no takeover")
            successor.send_signal(signal.SIGTERM)
            successor.communicate(timeout=60)
        after = content(run)
        for pid in orphans:
            subprocess.run(["kill", "-CONT", str(pid)], check=True)  # noqa: S607
        wait_until(lambda: not any(map(is_alive, orphans)), 30, "orphans live on")
        assert content(run) == after


def test_orphans_write_nothing_after_a_takeover(labelled_store, tmp_path):
    long = [*SMALL, *PSVI, "--length", "400 epochs"]
    words = command(labelled_store, tmp_path / "run", *long)
    leave_orphans_and_take_over(words, tmp_path / "run", 2, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("rule", [SHORT_PSVI, TRACKING], ids=["psvi", "tracking"])
def test_many_kills_of_random_processes_on_real_images(fashion_store, tmp_path, processes, rule):
    """At least 25 in all, seven for each: bit for bit the run that nothing happened to."""
    finish(under_torchrun(processes, command(fashion_store, tmp_path / "whole", *REAL, *rule)))
    generator = random.Random(processes)  # noqa: S311
    kills = trial = 0
    while kills < 7:
        run = tmp_path / f"broken-{trial}"
        words = under_torchrun(processes, command(fashion_store, run, *REAL, *rule), restarts=10)
        kills += kill_some(words, run, [generator.uniform(3, 8) for _ in range(4)], generator)
        assert outcome(run) == outcome(tmp_path / "whole")
        trial += 1
    print(f"{processes} processes, {rule}: {kills} kills")  # noqa: T201


@pytest.mark.slow
def test_sigterm_at_many_moments_stops_all_at_one_step(fashion_store, tmp_path):
    """Fifty times, to the launcher or to one process, at any moment: before, in and after steps."""
    generator = random.Random(0)  # noqa: S311
    longest = 0.0
    for trial in range(50):
        processes, run = generator.choice([2, 3]), tmp_path / f"run-{trial % 5}"
        words = command(fashion_store, run, *REAL, *SHORT_PSVI, "--length", "400 epochs")
        with started(under_torchrun(processes, words)) as launcher:
            wait_until(lambda many=processes: len(children(launcher.pid)) == many, 60, "no process began")
            begun = time.time()
            wait_until(lambda since=begun, run=run: began_after(run, since), 60, "training did not begin")
            time.sleep(generator.choice([0.0, 1.0, 3.0]) * generator.random())
            victim = generator.choice([launcher.pid, *children(launcher.pid)])
            start = time.monotonic()
            subprocess.run(["kill", "-TERM", str(victim)], check=True)  # noqa: S607
            text = launcher.communicate(timeout=60)[0]
            longest = max(longest, time.monotonic() - start)
            wait_until(lambda: not children(launcher.pid), 10, "processes live on")
        found = status(run)
        assert found["state"] == "stopped", text
        assert found["step"] == newest_step(run)
        assert f"stopped at step {found['step']}" in text, text
    assert longest < 30
    print(f"the longest took {longest:.1f} s")  # noqa: T201


@pytest.mark.slow
def test_many_launchers_are_killed_and_their_orphans_write_nothing(fashion_store, tmp_path):
    generator = random.Random(1)  # noqa: S311
    for trial in range(20):
        words = command(fashion_store, tmp_path / f"run-{trial % 4}", *REAL, *SHORT_PSVI, "--length", "400 epochs")
        leave_orphans_and_take_over(words, tmp_path / f"run-{trial % 4}", 2, generator.uniform(0, 2))
