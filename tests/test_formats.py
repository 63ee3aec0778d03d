"""Files of earlier formats: what comes after opens them, or refuses them and names the version that made them."""

import shutil
import typing
from pathlib import Path

import numpy as np
import pytest

from bype.cli import main
from bype.data.manifest import Manifest
from bype.data.origins import Origins
from bype.data.store import Store
from bype.estimator.fitted import About
from bype.evaluation import embedding
from bype.evaluation.audit_records import Audit, read_audit
from bype.evaluation.density import DensityOptions
from bype.evaluation.evaluate import evaluate
from bype.evaluation.records import Results, read_results
from bype.export import onnx
from bype.paper.hours import Costs
from bype.run import checkpoint, directory
from bype.run.config import TrainingConfig
from bype.run.directory import RunError, read_config
from bype.run.opened import TrainedRun
from bype.run.pace import read_paces
from bype.training.loop import train

FIXTURES = Path(__file__).parent / "fixtures"
MADE_BY = r"format 1, made by bype 0\.1\.0\.dev0; this bype reads formats 2 to 5"


def test_a_store_of_format_1_opens():
    store = Store(FIXTURES / "format-1" / "store")
    assert {name: split.num_rows for name, split in store.manifest.splits.items()} == {
        "train": 40,
        "validation": 10,
        "test": 10,
    }
    rows = store.split("train").read(np.arange(40))
    assert rows.shape == (40, 1, 6, 6)
    assert rows.max() > 150  # stripes and blobs, not zeros
    assert set(store.split("test").labels(np.arange(10))) <= {0, 1, 2}


def test_a_store_with_origins_of_version_1_opens():
    store = Store(FIXTURES / "origins-1" / "store")
    store.verify()
    assert store.split("train").origins(np.arange(3)).tolist() == ["a.png", "猫/b.png", "c d.png"]
    assert store.split("test").origins(np.arange(1)).tolist() == ["e.png"]
    assert Store(FIXTURES / "format-1" / "store").split("train").origins(np.arange(3)) is None


def test_a_run_of_format_1_is_refused_and_its_maker_named(tmp_path, capsys):
    run = FIXTURES / "format-1" / "run"
    for opening in (lambda: read_config(run), lambda: TrainedRun.open(run)):
        with pytest.raises(RunError, match=MADE_BY):
            opening()
    assert main(["sample", str(run), "--out", str(tmp_path / "x.png")]) == 1
    assert not (tmp_path / "x.png").exists()
    assert "train again" in capsys.readouterr().err


def test_training_into_a_run_of_format_1_is_refused_and_changes_nothing(tmp_path):
    run = Path(shutil.copytree(FIXTURES / "format-1" / "run", tmp_path / "run"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=MADE_BY):
        train(TrainingConfig(components=4), FIXTURES / "format-1" / "store", run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path in before} == before


def test_results_of_version_1_are_read():
    (found,) = read_results(FIXTURES / "format-1" / "run").evaluations
    assert found.density.num_samples == 5
    assert 0 < found.density.negative_log_likelihood.value < 36


@pytest.mark.parametrize(("made_by", "expected"), [(2, 5.136569), (3, -1.842886), (4, 5.640096)])
def test_a_run_of_an_earlier_format_gives_the_same_numbers(tmp_path, made_by, expected):
    """The first two numbers are those that the version of their time wrote; it wrote none of the third run."""
    folder = Path(shutil.copytree(FIXTURES / f"format-{made_by}" / "run", tmp_path / "run"))
    recorded = [found.density.negative_log_likelihood.value for found in read_results(folder).evaluations]
    assert recorded == ([pytest.approx(expected, abs=1e-6)] if made_by < 4 else [])
    density = DensityOptions(num_samples=5, num_images=10)
    store = FIXTURES / "format-1" / "store"
    found = evaluate(TrainedRun.open(folder), data=store, density=density, with_map=False)
    assert found.density.negative_log_likelihood.value == pytest.approx(expected, rel=1e-4)


def test_a_run_of_format_2_opens():
    run = TrainedRun.open(FIXTURES / "format-2" / "run")
    assert (run.config.rule.name, run.config.components) == ("tracking", 4)
    (found,) = read_results(FIXTURES / "format-2" / "run").evaluations
    assert found.step == run.step
    assert run.model.prior.own_points().points.shape == (4, 1, 6, 6)


def test_a_run_of_format_3_opens_with_its_clock_and_its_baseline():
    run = TrainedRun.open(FIXTURES / "format-3" / "run")
    assert (run.config.network, run.config.flips, run.config.shifts) == ("dense", True, 1)
    (found,) = read_results(FIXTURES / "format-3" / "run").evaluations
    assert found.baseline.kind == "probabilistic PCA"
    assert run.config.points_start == "examples"
    paces = read_paces(FIXTURES / "format-3" / "run")
    assert paces[-1].next >= run.step


def test_a_run_of_format_4_opens_with_its_start_its_clock_and_its_audit():
    run = TrainedRun.open(FIXTURES / "format-4" / "run")
    assert (run.config.points_start, run.config.components) == ("noise", 4)
    assert read_paces(FIXTURES / "format-4" / "run")[-1].next >= run.step
    found = read_audit(FIXTURES / "format-4" / "run")
    assert found.step == run.step
    assert [group.kind for group in found.groups] == ["points", "samples"]
    assert found.groups[0].by_contrast is None  # version 1 did not have it
    again = read_audit(FIXTURES / "audit-2")
    assert again.groups[0].by_contrast.share == 0.25


def test_the_page_about_the_source_names_the_version_of_each_format():
    def version(kind):
        (number,) = typing.get_args(typing.get_type_hints(kind)["version"])
        return number

    page = (Path(__file__).parents[1] / "docs" / "development" / "house.md").read_text()
    rows = page.partition("| format | version |")[2].split("\n\n")[0].splitlines()[2:]
    assert {name.strip(): int(number) for _, name, number, *_ in (row.split("|") for row in rows)} == {
        "run directory": directory.FORMAT_VERSION,
        "store": version(Manifest),
        "`origins.json` of a store": version(Origins),
        "`evaluation.json`": version(Results),
        "ONNX export": onnx.FORMAT_VERSION,
        "`audit.json`": version(Audit),
        "`manifest.json` of a checkpoint": version(checkpoint._Manifest),
        "`estimator.json`": version(About),
        "`cost.json` of records": version(Costs),
        "`embedding.json`": embedding.FORMAT_VERSION,
    }
