"""Two processes on processors of different kinds, which round differently, hold one model."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from torchrun_process import children, environment, finish, has_checkpoint, started, torchrun, wait_until
from training_process import outcome

SCRIPT = str(Path(__file__).parent.parent / "mixed_process.py")
TINY = (
    *("--length", "40 steps", "--warm-up", "1 epoch", "--checkpoint-every", "4 steps", "--batch-size", "50"),
    *("--components", "20", "--latent-dim", "4", "--hidden", "16", "--learning-rate", "0.001"),
)
REAL = ("--length", "200 steps", "--warm-up", "1 epoch", "--checkpoint-every", "10 steps")
PERIODIC = ("--rule-every", "20 steps", "--rule-steps", "3")
RULES = {
    "gaussian": ("--prior", "gaussian"),
    "vamp": ("--prior", "vamp"),
    "exemplar": ("--prior", "exemplar"),
    "exemplar, nearest": ("--prior", "exemplar", "--neighbours", "5"),
    "frozen": ("--rule", "frozen"),
    "joint": ("--rule", "joint"),
    "psvi": ("--rule", "psvi", *PERIODIC),
    "ascent": ("--rule", "ascent", *PERIODIC, "--rule-batch-size", "100"),
    "tracking": ("--rule", "tracking", "--rule-live-points", "3"),
    "tracking, in turn": ("--rule", "tracking", "--rule-live-points", "3", "--rule-scored-points", "7"),
}

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="a processor that can be limited to AVX2 is needed"
)


def words(store: Path, run: Path, *flags: str, limit: str = "avx2") -> list[str]:
    return torchrun(2, SCRIPT, limit, "train", "--data", str(store), "--out", str(run), *flags)


# Before each checkpoint the processes compare checksums of all their numbers, so a run that ends held one model.
@pytest.mark.parametrize("name", ["psvi", "tracking"])  # the slow test below takes all
def test_an_older_processor_changes_nothing_of_the_agreement(labelled_store, tmp_path, name):
    finish(words(labelled_store, tmp_path / "run", *TINY, *RULES[name]))


def test_processors_that_draw_otherwise_are_refused_in_one_line(labelled_store, tmp_path):
    command = words(labelled_store, tmp_path / "run", *TINY, *RULES["gaussian"], limit="default")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment())
    assert done.returncode != 0
    assert "rounding differs" in done.stderr
    assert "ATEN_CPU_CAPABILITY" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_two_hundred_steps_on_real_images_killed_and_continued_have_one_digest(fashion_store, tmp_path, name):
    flags = (*REAL, *RULES[name])
    finish(words(fashion_store, tmp_path / "whole", *flags))
    with started(words(fashion_store, tmp_path / "broken", *flags)) as launcher:
        wait_until(has_checkpoint(tmp_path / "broken", 30), 180, "no checkpoint")
        for pid in children(launcher.pid):
            os.kill(pid, signal.SIGKILL)
    finish(words(fashion_store, tmp_path / "broken", *flags))
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")
