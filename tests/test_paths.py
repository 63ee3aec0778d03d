"""Three people on an empty machine: what the pages print, run as printed, gives each a picture within five minutes."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from bype.cli import main
from bype.data.sources import idx
from printed import ROOT, commands, section
from torchrun_process import has_checkpoint, wait_until

MOST_COMMANDS, MOST_SECONDS = 4, 300
PATHS = {
    "photographs": [("README.md", "Install"), ("README.md", "Three commands")],
    "research": [("docs/guide/start.md", "Start in five minutes"), ("docs/guide/start.md", "For a research question")],
    "cluster": [("README.md", "Install"), ("docs/scaling/running.md", "Several processes")],
}
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
GAP = 2  # pixels between the images of a plate


def path_of(person: str) -> list[str]:
    """Return the commands that are printed for a person, up to the first that names a picture."""
    found = [command for place in PATHS[person] for command in commands(section(*place))]
    ends = [number for number, command in enumerate(found, 1) if ".png" in command]
    return found[: ends[0]] if ends else found


@pytest.mark.parametrize("person", PATHS)
def test_a_path_has_few_commands_and_begins_with_the_installation(person):
    path = path_of(person)
    assert path[0].startswith("pip install")
    assert 2 <= len(path) <= MOST_COMMANDS


def test_commands_are_taken_from_blocks_without_a_language():
    text = "```\nbype a \\\n--b c # why\nls\n```\nbype no\n```python\nbype not\n```\n\n```\ntorchrun -m bype d\n```\n"
    assert commands(text) == ["bype a  --b c # why", "torchrun -m bype d"]


@pytest.mark.parametrize("page", PAGES)
def test_printed_commands_exist_and_have_the_options(page, capsys):
    for command in commands((ROOT / page).read_text(encoding="utf-8")):
        words = shlex.split(command, comments=True)
        if words[0] == "torchrun":
            words = words[words.index("-m") + 1 :]
        if words[0] != "bype" or words[1].startswith("-"):
            continue
        words = [word for word in words[1:] if word != "…"]
        with pytest.raises(SystemExit, match="0"):  # options of bype train depend on the recipe and the rule
            main([*words, "--help-all" if words[0] == "train" else "--help"])
        known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert {word for word in words if word.startswith("--")} <= known, command


class EmptyMachine:
    """A clone of the repository beside an environment without packages, and the clock since the first command."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "clone"
        shutil.copytree(ROOT / "src", self.clone / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, self.clone)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        (pin,) = set(re.findall(r"torch==[0-9.]+", (ROOT / ".ci" / "run").read_text()))
        (folder / "constraints.txt").write_text(pin)
        self.environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.environment["PATH"] = f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment["PIP_CONSTRAINT"] = str(folder / "constraints.txt")
        self.log = folder / "log"
        self.start = time.monotonic()

    def begin(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command in a shell, in a session of its own."""
        words = ["bash", "-c", command]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                words, cwd=self.clone, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, command: str) -> None:
        """Run a command to its end, which must be good."""
        process = self.begin(command)
        try:
            assert process.wait(MOST_SECONDS * 2) == 0, self.log.read_text()[-3000:]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        print(f"{time.monotonic() - self.start:6.1f} s  {command}")  # noqa: T201  shown by pytest -s

    def picture(self, name: str) -> NDArray[np.float64]:
        """Read a picture, and see that it was made in time."""
        with Image.open(self.clone / name) as image:
            pixels = np.asarray(image, dtype=np.float64)
        assert (self.clone / name).stat().st_size > 0
        assert time.monotonic() - self.start < MOST_SECONDS
        return pixels


@pytest.fixture
def machine(tmp_path: Path) -> EmptyMachine:
    return EmptyMachine(tmp_path)


def tiles(plate: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Cut a plate into its images, line by line."""
    starts = [range(0, length, size + GAP) for length in plate.shape[:2]]
    return np.stack([plate[top : top + size, left : left + size] for top in starts[0] for left in starts[1]])


def take_photographs(folder: Path) -> NDArray[np.float64]:
    """Save 400 views of the two photographs of scikit-learn, and one more; return all at 64 x 64, that one first."""
    random, seen = np.random.default_rng(0), []
    (folder / "photos").mkdir()
    for number in range(401):
        scene = Image.fromarray(load_sample_images().images[number % 2])
        side = int(random.integers(160, 400))
        left, top = (int(random.integers(0, length - side + 1)) for length in scene.size)
        view = scene.crop((left, top, left + side, top + side))
        view.save(folder / "photo.jpg" if number == 0 else folder / "photos" / f"{number:03}.jpg", quality=95)
        seen.append(np.asarray(view.resize((64, 64), Image.Resampling.BICUBIC), dtype=np.float64))
    return np.stack(seen)


@pytest.mark.slow
def test_a_folder_of_photographs(machine):
    views = take_photographs(machine.clone)
    for command in path_of("photographs"):
        machine.run(command)
    given, *made = tiles(machine.picture("more.png"), 64)
    assert len(made) == 9
    assert np.abs(given - views[0]).mean() < 10  # the way of resizing differs a little
    # On average nearer than the mean image, and than the best of one colour: so they are neither, and not noise.
    simple = min(np.square(given - guess).mean() for guess in (views.mean(axis=0), given.mean(axis=(0, 1))))
    assert np.square(given - np.stack(made)).mean() < simple


def assert_like_data(images: NDArray[np.float64], folder: Path) -> None:
    """See that samples are on average the mean image of the data, and as different from each other as data are."""
    (pool,) = (pool for pool in idx.open_idx(folder).pools if pool.split == "test")
    data = next(iter(pool.read()))[1].rows[:, 0].astype(np.float64)
    # The mean of noise or of a constant has no such correlation. The samples of a VAE are smooth: they vary less.
    assert np.corrcoef(images.mean(axis=0).ravel(), data.mean(axis=0).ravel())[0, 1] > 0.8
    assert 0.5 < images.std(axis=0).mean() / data.std(axis=0).mean() < 1.2


def measured(folder: Path) -> float:
    """Return the negative log-likelihood in a record."""
    evaluation = json.loads((folder / "record.json").read_text())["results"]["evaluations"][0]
    return float(evaluation["density"]["negative_log_likelihood"]["value"])


@pytest.mark.slow
def test_a_research_question(machine, fashion_mnist):
    (machine.clone / "fashion-mnist").symlink_to(fashion_mnist.resolve())
    for command in path_of("research"):
        machine.run(command)
    made = "fashion-mnist-vae-gaussian-0-reduced"
    plate = machine.picture(f"reproduced/{made}/sample.png")
    assert_like_data(tiles(plate[::2, ::2], 28), fashion_mnist)  # it is drawn at twice the size
    assert measured(machine.clone / "reproduced" / made) == pytest.approx(
        measured(ROOT / "results" / "paper" / made), abs=0.5
    )  # the published record of the same seed; another processor rounds differently, and a run drifts by some tenths


@pytest.mark.slow
def test_a_cluster(machine, fashion_mnist):
    (machine.clone / "fashion-mnist").symlink_to(fashion_mnist.resolve())
    for command in path_of("cluster"):
        if command.startswith("torchrun"):
            process = machine.begin(command)
            wait_until(has_checkpoint(machine.clone / "run"), MOST_SECONDS, "no checkpoint")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        machine.run(command)
    assert re.search(r"resuming at step [1-9]", machine.log.read_text())
    assert_like_data(tiles(machine.picture("samples.png")[::3, ::3], 28), fashion_mnist)  # it is drawn at three times
