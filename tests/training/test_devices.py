"""Another device than the CPU: nothing is forgotten on the way there, and a run may move between the two."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils import backend_registration

from bype.data.prepare import prepare
from bype.distributed import GroupError, device_named
from bype.evaluation.records import read_results
from bype.run.checkpoint import CheckpointFolder
from bype.training.loop import train
from foreign_process import CASES, config_of, work, work_on_a_table
from small_runs import assert_same_tensors

PROGRAM = Path(__file__).parents[1] / "foreign_process.py"
BEGUN_ON_THE_CPU = "tracking"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    pixels = np.random.default_rng(0).integers(0, 256, (260, 8, 8), dtype=np.uint8)
    np.savez(folder / "x.npz", images=pixels, labels=np.arange(260) % 3)
    prepare(folder / "x.npz", folder / "store", validation=50, test=0)
    return folder / "store"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    hidden = np.random.default_rng(0).normal(size=(260, 2))
    np.save(folder / "x.npy", (hidden @ np.array([[1, 2, 3, 4.0], [1, -1, 5, 0]]) + [0, 10, 0, 3]).astype(np.float32))
    prepare(folder / "x.npy", folder / "store", validation=50, test=0)
    return folder / "store"


@pytest.fixture(scope="module")
def elsewhere(store: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases on the foreign device, one of them begun on the CPU."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this version of PyTorch has no devices that are written in Python")
    folder = tmp_path_factory.mktemp("elsewhere")
    config = config_of(BEGUN_ON_THE_CPU)
    train(config, store, folder / BEGUN_ON_THE_CPU)
    shutil.rmtree(folder / BEGUN_ON_THE_CPU / "checkpoints" / "18")
    done = subprocess.run([sys.executable, PROGRAM, store, table, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("case", CASES)
def test_another_device_gives_the_same_run(store, elsewhere, tmp_path, case):
    work(case, store, tmp_path, "cpu")
    here, there = (
        CheckpointFolder(folder / case / "checkpoints", 2).load(18, 2**26) for folder in (tmp_path, elsewhere)
    )
    assert here.state == there.state
    assert_same_tensors(here, there)
    ours, theirs = (read_results(folder / case).evaluations[0] for folder in (tmp_path, elsewhere))
    assert ours.density.negative_log_likelihood == theirs.density.negative_log_likelihood
    assert (ours.prior_gap, ours.representation) == (theirs.prior_gap, theirs.representation)
    for name in ("embedded/part-000000.npz", "called.npz"):
        with np.load(tmp_path / case / name) as first, np.load(elsewhere / case / name) as second:
            assert all(np.array_equal(first[key], second[key]) for key in first.files)


def test_a_table_and_all_that_follows_are_the_same_on_another_device(table, elsewhere, tmp_path):
    work_on_a_table(table, tmp_path / "table", "cpu")
    ours, theirs = (read_results(folder / "table").evaluations[0] for folder in (tmp_path, elsewhere))
    assert ours.baseline is not None
    assert ours.baseline == theirs.baseline
    with np.load(tmp_path / "table/found.npz") as first, np.load(elsewhere / "table/found.npz") as second:
        assert all(np.array_equal(first[key], second[key]) for key in first.files)
    assert (tmp_path / "table/audit.json").read_bytes() == (elsewhere / "table/audit.json").read_bytes()


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(GroupError, match="choose cpu, cuda"):
        device_named("quantum")
    with pytest.raises(GroupError, match="choose cpu, cuda"):  # known to PyTorch, without the float64 that weights have
        device_named("mps")
    if not torch.cuda.is_available():
        with pytest.raises(GroupError, match="finds no GPU"):
            device_named("cuda")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(GroupError, match="no device cuda:2; the last one is cuda:1"):
        device_named("cuda:2")
