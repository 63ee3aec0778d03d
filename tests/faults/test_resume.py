"""A run that is killed and continued is, to the bit, the run that was not."""

import random
from pathlib import Path

import numpy as np
import pytest

from bype.data.prepare import prepare
from training_process import (
    after,
    checkpoint_is_being_written,
    command,
    finish,
    kill_when,
    outcome,
    update_is_under_way,
)

PRIORS = {
    "gaussian": ("--prior", "gaussian"),
    "vamp": ("--prior", "vamp"),
    "exemplar": ("--prior", "exemplar"),
    "exemplar, nearest": ("--prior", "exemplar", "--neighbours", "5"),
    "psvi": ("--prior", "bype", "--rule", "psvi", "--rule-every", "1 epoch"),
    "tracking": ("--prior", "bype", "--rule", "tracking"),
    "tracking, in turn": (
        *("--prior", "bype", "--rule", "tracking", "--rule-scored-points", "50", "--components", "300"),
    ),
    "tracking, labelled": ("--prior", "bype", "--rule", "tracking", "--labelled", "True", "--average", "0.1"),
    "dense": (
        *("--network", "dense", "--likelihood", "learned-gaussian", "--dropout", "0.2", "--decay", "True"),
        *("--flips", "True", "--shifts", "1"),
    ),
}


@pytest.fixture(scope="module")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    rows = np.random.default_rng(0).integers(0, 256, (700, 8, 8), dtype=np.uint8)
    np.savez(folder / "x.npz", x=rows, y=np.arange(700) % 3)
    prepare(folder / "x.npz", folder / "store", validation=100, test=0)
    return folder / "store"


SMALL = (
    *("--length", "2 epochs", "--warm-up", "1 epoch", "--checkpoint-every", "5 steps"),
    *("--batch-size", "20", "--components", "20", "--latent-dim", "4", "--hidden", "16", "--learning-rate", "0.001"),
)


@pytest.mark.parametrize("name", ["psvi", "tracking, labelled", "dense"])  # the slow test below takes all
def test_a_killed_run_ends_as_if_nothing_had_happened(small_store, tmp_path, name):
    arguments = (*SMALL, *PRIORS[name])
    finish(command(small_store, tmp_path / "whole", *arguments))
    broken = command(small_store, tmp_path / "broken", *arguments)
    assert kill_when(broken, checkpoint_is_being_written(tmp_path / "broken"))
    if name == "psvi":
        assert kill_when(broken, update_is_under_way(tmp_path / "broken"))
    finish(broken)
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")


REAL = ("--length", "2 epochs", "--warm-up", "1 epoch", "--checkpoint-every", "7 steps")


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIORS)
def test_many_kills_on_real_images(fashion_store, tmp_path, name):
    """At least five kills for each prior: at random, during a checkpoint, during an update."""
    arguments = (*REAL, *PRIORS[name])
    finish(command(fashion_store, tmp_path / "whole", *arguments))
    expected = outcome(tmp_path / "whole")
    generator = random.Random(name)  # noqa: S311
    kills = 0
    for trial in range(3):
        run = tmp_path / f"broken-{trial}"
        broken = command(fashion_store, run, *arguments)
        moments = [
            after(generator.uniform(3.5, 7)),
            update_is_under_way(run) if name == "psvi" and trial < 2 else checkpoint_is_being_written(run),
        ]
        for moment in moments:
            kills += kill_when(broken, moment)
        finish(broken)
        assert outcome(run) == expected
    assert kills >= 5, kills
    print(f"{name}: {kills} kills")  # noqa: T201
