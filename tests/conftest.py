"""Options of the test run."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--data-folder", type=Path, help="a folder with fashion-mnist/ and its four IDX files, for tests on real data"
    )


@pytest.fixture(scope="session")
def fashion_mnist(request: pytest.FixtureRequest) -> Path:
    folder = request.config.getoption("--data-folder")
    if folder is None:
        pytest.skip("needs real data: pytest -m slow --data-folder FOLDER")
    return folder / "fashion-mnist"
