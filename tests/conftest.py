"""Options of the test run."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from bype.data.prepare import prepare
from bype.data.sources import idx
from small_runs import feature_store, image_store, small_run

# Here and in the processes that tests start: with another number of threads, sums are rounded otherwise.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# Tests send SIGINT to the processes that they start; started in the background, these would ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--data-folder", type=Path, help="a folder with fashion-mnist/ and its four IDX files, for tests on real data"
    )


@pytest.fixture(scope="session")
def fashion_mnist(request: pytest.FixtureRequest) -> Path:
    folder = request.config.getoption("--data-folder")
    if folder is None:
        pytest.skip("needs real data: pytest -m slow tests --data-folder FOLDER")
    return folder / "fashion-mnist"


@pytest.fixture(scope="session")
def fashion_store(fashion_mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5,000 real images to train on, 1,000 to validate with."""
    folder = tmp_path_factory.mktemp("fashion")
    chunks = [chunk for _, chunk in idx.open_idx(fashion_mnist).pools[0].read()]
    rows, labels = (np.concatenate([getattr(chunk, part) for chunk in chunks])[:6000] for part in ("rows", "labels"))
    np.savez(folder / "x.npz", x=rows[:, 0], y=labels)
    prepare(folder / "x.npz", folder / "store", validation=1000, test=0)
    return folder / "store"


@pytest.fixture(scope="session")
def labelled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_store(tmp_path_factory.mktemp("labelled"))


@pytest.fixture(scope="session")
def trained_bype(tmp_path_factory: pytest.TempPathFactory, labelled_store: Path) -> Path:
    """A small run with a pseudocoreset; tests that write to it take a copy."""
    return small_run(tmp_path_factory.mktemp("bype") / "run", labelled_store)


@pytest.fixture(scope="session")
def trained_exemplar(tmp_path_factory: pytest.TempPathFactory, labelled_store: Path) -> Path:
    return small_run(tmp_path_factory.mktemp("exemplar") / "run", labelled_store, prior="exemplar")


@pytest.fixture(scope="session")
def trained_gaussian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with a Gaussian prior, on images without labels."""
    folder = tmp_path_factory.mktemp("gaussian")
    return small_run(folder / "run", image_store(folder, labelled=False), prior="gaussian", network="hvae")


@pytest.fixture(scope="session")
def trained_features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    return small_run(folder / "run", feature_store(folder), likelihood="learned-gaussian", latent_dim=2)


@pytest.fixture
def bype_run(trained_bype: Path, tmp_path: Path) -> Path:
    """A copy of the small run, to write to."""
    return Path(shutil.copytree(trained_bype, tmp_path / "run"))
