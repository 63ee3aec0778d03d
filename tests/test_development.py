"""The examples of docs/development: each is complete, short, and runs as printed."""

import dataclasses
import os
import re
import runpy
import signal
from pathlib import Path

import pytest

from bype.data.store import Store
from bype.run.config import ConfigError
from bype.run.directory import RunError, read_config
from bype.training.loop import train
from torchrun_process import children, finish, has_checkpoint, started, torchrun, wait_until
from training_process import outcome

FOLDER = Path(__file__).parent.parent / "docs" / "development"
EXAMPLES = sorted(FOLDER.glob("own_*.py"))


def elbos(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-ELBO (-?[0-9.]+)", text)]


def run_example(name: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    runpy.run_path(str(FOLDER / name), run_name="loaded")["main"](*map(Path, arguments))
    return capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_at_most_sixty_lines(path):
    assert len(path.read_text().splitlines()) <= 60


def test_there_are_four_examples_and_the_page_shows_them():
    page = (FOLDER / "extending.md").read_text()
    assert len(EXAMPLES) == 4
    assert all(path.name in page for path in EXAMPLES)


MEAN_IMAGE = 50.9
"""The negative log-likelihood of these digits if one mean image, with the same variance of 0.02, stands for all."""


def test_a_prior_of_your_own_is_measured_beside_those_of_the_library(capsys, tmp_path):
    found = elbos(run_example("own_prior.py", capsys, str(tmp_path)))
    assert len(found) == 3
    assert max(found) < MEAN_IMAGE - 40


def test_a_network_of_your_own_learns(capsys):
    (loss,) = elbos(run_example("own_network.py", capsys))
    assert loss < MEAN_IMAGE - 40


def test_a_source_of_your_own_becomes_a_store(capsys, tmp_path):
    assert elbos(run_example("own_source.py", capsys, str(tmp_path)))[0] < MEAN_IMAGE - 40
    store = Store(tmp_path / "store")
    assert sum(split.num_rows for split in store.manifest.splits.values()) == 1797
    assert store.manifest.classes == tuple("0123456789")


def test_a_rule_of_your_own_trains_and_is_recorded(capsys, tmp_path):
    assert elbos(run_example("own_rule.py", capsys, str(tmp_path)))[0] < MEAN_IMAGE - 40
    config = (tmp_path / "run" / "config.json").read_text()
    assert '"rule": "loaded.Swap"' in config
    module = runpy.run_path(str(FOLDER / "own_rule.py"), run_name="elsewhere")
    config, _ = read_config(tmp_path / "run")
    settings = dataclasses.replace(config, rule=None)
    with pytest.raises(RunError, match=r"loaded\.Swap"):  # another rule does not go on with it
        train(settings, tmp_path / "store", tmp_path / "run", rule=module["Swap"])
    with pytest.raises(RunError, match="rule: own there, tracking here"):
        train(settings, tmp_path / "store", tmp_path / "run")
    gaussian = module["bype"].TrainingConfig(prior="gaussian")
    with pytest.raises(ConfigError, match="prior bype"):
        train(gaussian, tmp_path / "store", tmp_path / "other", rule=module["Swap"])


def test_a_rule_of_your_own_on_two_processes_resumes_to_the_bit(tmp_path):
    def words(folder: Path, processes: int) -> list[str]:
        return torchrun(processes, str(FOLDER / "own_rule.py"), str(folder))

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(words(whole, 2))
    with started(words(broken, 2)) as launcher:
        wait_until(lambda: has_checkpoint(broken / "run", 20)(), 300, "no checkpoint")
        for pid in children(launcher.pid):
            os.kill(pid, signal.SIGKILL)
    finish(words(broken, 2))
    ours, theirs = outcome(broken / "run"), outcome(whole / "run")
    del ours["config.json"], theirs["config.json"]  # the stores are in different places
    assert ours == theirs
