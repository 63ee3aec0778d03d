"""Every table and figure of the paper by a command."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bype.cli import main
from bype.data.files import FileError
from bype.data.store import Store
from bype.evaluation.augmentation import classifier_error
from bype.paper import cost, provenance, reproduce
from bype.paper.cells import FULL, REDUCED, Cell, config_of, preparation
from bype.paper.figures import figure
from bype.paper.hours import Costs, Pace, hours, lines_of
from bype.paper.items import ITEMS, Line, cells_of
from bype.paper.page import BEGIN, END, write_item
from bype.paper.provenance import is_capped, seconds_per_epoch
from bype.paper.records import Records
from bype.paper.tables import table
from bype.run.directory import RunError
from bype.run.lock import RunLock
from bype.training.loop import Outcome
from small_runs import image_store

OLD_RECORDS = Path(__file__).parents[2] / "results" / "paper"


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    image_store(folder, count=735).rename(folder / "mnist")  # 600 to train on: more than the 500 components
    shutil.copytree(folder / "mnist", folder / "fashion-mnist")
    return folder


def command(stores: Path, out: Path, *words: str) -> list[str]:
    return ["reproduce", *words, "--seeds", "1", "--reduced", "--stores", str(stores), "--out", str(out)]


@pytest.fixture(scope="module")
def filled(stores, tmp_path_factory) -> Path:
    """A cell that was filled through the command."""
    out = tmp_path_factory.mktemp("filled") / "out"
    assert main(command(stores, out, "table1", "--only", "mnist/vae/ours-500")) == 0
    return out


def test_the_items_are_the_papers_eight_tables_and_eleven_figures_and_one_table_more():
    expected = [f"table{k}" for k in range(1, 9)] + ["binarised"] + [f"figure{k}" for k in range(1, 12)]
    assert list(ITEMS) == expected
    assert all(item.lines and item.title for item in ITEMS.values())


def test_the_published_numbers_are_those_of_the_paper():
    """Read off the paper's tables a second time, by data set or row."""
    printed = {
        name: [line.published.value for line in ITEMS[name].lines if line.published is not None] for name in ITEMS
    }
    mnist = [24.41, 23.65, 23.83, 23.61, 23.82, 23.54, 23.58, 23.48, 23.16, 22.94, 22.92, 22.84]
    fashion = [21.43, 20.87, 21.00, 20.85, 21.04, 20.83, 20.95, 20.82, 20.76, 20.59, 20.62, 20.58]
    cifar = [72.21, 71.97, 72.55, 71.91, 71.63, 71.54, 71.77, 71.38, 70.83, 70.61, 70.83, 70.55]
    assert printed["table1"] == mnist + fashion + cifar
    speed = [23.61, 13.19, 23.65, 13.03, 23.61, 35.45, 20.85, 12.05, 20.87, 12.09, 20.81, 37.23]
    assert printed["table2"] == [*speed, 71.91, 17.30, 71.97, 14.89, 72.00, 66.85]
    assert printed["table3"] == [1.23, 1.20, 1.16, 1.10, 1.10, 0.88]
    assert printed["table4"] == [183.16, 183.61, 185.03, 182.11]
    assert printed["table5"] == [23.60, 23.61, 23.62, 23.70]
    assert printed["table6"] == [9.98, 10.03, 9.46, 9.75, 9.58, 9.56, 50.07, 50.74, 49.59, 49.00, 47.20, 46.60]
    assert printed["table7"] == [1.42, 1.16, 0.93, 0.96, 0.88, 0.83, 0.90, 0.94, 0.98, 1.06, 1.31]
    kl_mnist, kl_fashion = [12.08, 11.93, 12.20, 12.18, 12.66, 12.50], [8.05, 8.03, 8.15, 8.10, 8.54, 8.49]
    assert printed["table8"] == [*kl_mnist, *kl_fashion, 21.80, 21.55, 22.34, 22.16, 24.42, 24.15]
    assert printed["binarised"] == [84.50, 82.38]  # of another paper
    errors = {line.labels: line.published.error for line in ITEMS["table1"].lines if line.published}
    assert errors["Fashion-MNIST", "VAE", "Gaussian"] == 0.10
    assert errors["CIFAR-10", "ConvHVAE", "Exemplar"] == 0.19
    assert not any(printed[name] for name in ITEMS if name.startswith("figure"))


def test_cells_follow_the_papers_protocol():
    config = config_of(Cell("mnist", "hvae", "bype", seed=2), FULL)
    assert (config.warm_up, config.patience, config.seed) == ("100 epochs", "50 epochs", 2)
    assert (config.rule.every, config.rule.steps, config.rule.draws) == ("10 epochs", None, 500)
    assert config_of(Cell("mnist", "vae", "exemplar-25000"), FULL).neighbours == 10
    assert config_of(Cell("mnist", "vae", "ours-5000"), FULL).rule.live_points == 64
    for item in ITEMS.values():
        for cell in filter(lambda cell: cell.has_model, item.cells):
            is_slow = cell.network in ("convhvae", "residual")
            assert config_of(cell, REDUCED).length == ("40 steps" if is_slow else "10 epochs")
            is_careful = (cell.data, cell.network) == ("cifar10", "hvae")
            rate = 2e-4 if is_slow else 5e-4 if is_careful else 2e-3
            assert config_of(cell, REDUCED).learning_rate == rate


def test_binarised_mnist_is_trained_as_mnist_is_but_on_bits():
    for prior in ("gaussian", "vamp", "ours-500"):
        bits, grey = (config_of(Cell(data, "vae", prior), FULL).to_fields() for data in ("binarised-mnist", "mnist"))
        assert {field: bits[field] for field in bits if bits[field] != grey[field]} == {"likelihood": "bernoulli"}


def test_grey_images_are_not_taken_for_binarised_mnist(stores, tmp_path, capsys):
    shutil.copytree(stores / "mnist", tmp_path / "stores" / "binarised-mnist")
    assert main(command(tmp_path / "stores", tmp_path / "out", "binarised", "--only", "gaussian")) == 1
    assert "is not binarised; make it with: bype data prepare mnist --binarise" in capsys.readouterr().err


def test_what_other_ways_of_training_change():
    rate = {"length", "warm_up", "patience", "learning_rate", "normalise_gradients", "decay"}
    for protocol, changed in ((FULL, rate), (REDUCED, {"decay"})):
        ways = {"gaussian-decay": ("gaussian", changed), "gaussian-average": ("gaussian", {"average"})}
        ways |= {f"ours-{points}-average": (f"ours-{points}", {"average"}) for points in (500, 5000)}
        ways |= {"vamp-average": ("vamp", {"average", "vamp_start"})}
        for name, (prior, expected) in ways.items():
            papers, others = (config_of(Cell("mnist", "vae", one), protocol).to_fields() for one in (prior, name))
            assert {field for field in papers if papers[field] != others[field]} == expected
    config = config_of(Cell("mnist", "vae", "gaussian-decay"), FULL)
    assert (config.length, config.decay) == ("200 epochs", True)
    assert not is_capped(config, 200)  # it has no early stop


def test_a_training_that_was_stopped_is_called_capped():
    config = config_of(Cell("mnist", "vae", "gaussian"), FULL)
    assert is_capped(config, 600)
    assert not is_capped(config, 481)
    assert not is_capped(config_of(Cell("mnist", "vae", "gaussian"), REDUCED), 10)


def test_a_cell_goes_from_a_store_to_the_table_where_it_is_marked_as_reduced(filled):
    content = json.loads((filled / "mnist-vae-ours-500-0-reduced" / "record.json").read_text())
    density = content["results"]["evaluations"][0]["density"]
    assert (density["num_images"], density["num_samples"]) == (75, 250)
    assert content["epochs"] == 10
    assert str(filled.parent) not in json.dumps(content)
    written = (filled / "table1-reduced.md").read_text()
    (row,) = (line for line in written.splitlines() if "| MNIST | VAE | ours, 500 points |" in line)
    assert f"| {density['negative_log_likelihood']['value']:.3f} (reduced) |" in row
    assert "Not yet run with this protocol: 68 rows." in written
    assert not (filled / "table1.md").exists()  # nothing was run in full
    pictures = sorted(path.name for path in (filled / "mnist-vae-ours-500-0-reduced").glob("*.png"))
    assert pictures == ["interpolate.png", "plates.png", "sample.png"]


def test_a_second_time_nothing_is_trained(filled, stores, capsys):
    record = filled / "mnist-vae-ours-500-0-reduced" / "record.json"
    before, run = record.stat().st_mtime_ns, filled / "runs" / "mnist-vae-ours-500-0-reduced" / "run"
    hidden = run.rename(run.with_name("hidden"))  # a run directory is not needed any more
    assert main(command(stores, filled, "table1", "--only", "mnist/vae/ours-500")) == 0
    assert "mnist/vae/ours-500, seed 0, reduced: done before" in capsys.readouterr().out
    assert record.stat().st_mtime_ns == before
    assert not run.exists()
    hidden.rename(run)


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def test_figures_are_drawn_from_records(filled, stores, capsys):
    for name, ending in (("figure7", "png"), ("figure8", "png"), ("figure4", "svg"), ("figure11", "svg")):
        assert main(command(stores, filled, name, "--only", "mnist/vae/ours-500")) == 0
        path = filled / f"{name}-reduced.{ending}"
        assert f"reduced: written to {path}" in capsys.readouterr().out
        if ending == "png":
            assert size_of(path)[0] > 100
        else:
            assert "MNIST, VAE, reduced" in path.read_text()
    every = size_of(filled / "figure8-reduced.png")
    assert main(command(stores, filled, "figure1", "--only", "mnist/vae/ours-500")) == 0
    shown = size_of(filled / "figure1-reduced.png")
    assert shown[0] == every[0]
    assert shown[1] < every[1] / 2 + 20  # 6 of its 14 lines, and the title


def test_classifiers_are_added_to_a_record(filled, stores, tmp_path, capsys):
    out = Path(shutil.copytree(filled, tmp_path / "out"))
    assert main(command(stores, out, "table3", "--only", "ours-500")) == 0
    content = json.loads((out / "mnist-vae-ours-500-0-reduced" / "record.json").read_text())
    found = {(entry["way"], entry["real_share"]): entry for entry in content["results"]["augmentation"]}
    assert set(found) == {("posterior", 0.4), ("prior", 0.4)}
    assert found["prior", 0.4]["epochs"] == REDUCED.classifier_epochs
    assert f"{found['prior', 0.4]['test_errors'][0]:.3f} (reduced)" in capsys.readouterr().out


def test_a_cell_that_is_trained_again_keeps_the_numbers_of_other_tables(filled, stores, tmp_path, monkeypatch):
    out = Path(shutil.copytree(filled, tmp_path / "out"))
    record, line = out / "mnist-vae-ours-500-0-reduced" / "record.json", table3_line("prior")
    asked = []

    def train_classifier(run, store, way, real_share, **_):
        asked.append((way, real_share))
        return 5.0

    monkeypatch.setattr(reproduce, "classifier_error", train_classifier)
    assert main(command(stores, out, "table3", "--only", "ours-500")) == 0
    assert asked == [("posterior", 0.4), ("prior", 0.4)]
    content = json.loads(record.read_text())
    content["results"]["augmentation"][0]["real_share"] = 0.7  # as if for a table of its own
    record.write_text(json.dumps(content))
    shutil.rmtree(out / "runs")
    asked.clear()
    assert main(command(stores, out, "table3", "--only", "ours-500")) == 0
    assert set(asked) == {("posterior", 0.7), ("posterior", 0.4), ("prior", 0.4)}
    assert Records.read(out).values(line, REDUCED) == {0: 5.0}


def test_the_classifier_of_real_examples_needs_no_model(stores, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(command(stores, out, "table7", "--only", "classifier/none")) == 0
    assert not list(out.glob("runs/*/run"))
    content = json.loads((out / "mnist-classifier-none-0-reduced" / "record.json").read_text())
    assert content["machine"]["torch"]
    (entry,) = content["results"]["augmentation"]
    alone = classifier_error(None, Store(stores / "mnist"), "prior", 1.0, epochs=REDUCED.classifier_epochs)
    assert (entry["test_errors"], entry["num_examples"]) == ([alone], 600)
    printed = capsys.readouterr().out
    assert f"| 1 | 1.31 ± 0.00 | {alone:.3f} (reduced) | 0 |" in printed
    assert main(command(stores, out, "table3", "--only", "mnist/classifier")) == 0
    shifted = classifier_error(None, Store(stores / "mnist"), "shifts", 0.0, epochs=REDUCED.classifier_epochs)
    printed = capsys.readouterr().out
    assert f"| MNIST | shifted images, no model |  |  | {shifted:.3f} (reduced) | 0 |" in printed
    assert "mnist/classifier/none, seed 0, reduced: done before" in printed  # table 3 has the same classifier
    assert f"| MNIST | no generated examples |  |  | {alone:.3f} (reduced) | 0 |" in printed


def table3_line(way: str) -> Line:
    (line,) = (x for x in ITEMS["table3"].lines if x.cell.prior == "ours-500" and x.classifier.way == way)
    return line


def test_what_is_added_later_does_not_change_where_the_numbers_come_from(filled, stores, tmp_path, monkeypatch):
    out = Path(shutil.copytree(filled, tmp_path / "out"))
    record = out / "mnist-vae-ours-500-0-reduced" / "record.json"
    before = json.loads(record.read_text())
    monkeypatch.setattr(reproduce, "classifier_error", lambda *_, **__: 5.0)
    monkeypatch.setattr(reproduce, "commit", lambda: "another commit")
    assert main(command(stores, out, "table3", "--only", "ours-500")) == 0
    after = json.loads(record.read_text())
    assert after["results"]["augmentation"]
    for name in ("commit", "machine", "status", "curve", "seconds_per_epoch"):
        assert after[name] == before[name]


def test_a_record_of_other_data_is_not_mixed_with_these(filled, stores, tmp_path, capsys):
    other = tmp_path / "stores"
    image_store(tmp_path, count=800).rename(tmp_path / "mnist")
    other.mkdir()
    (tmp_path / "mnist").rename(other / "mnist")
    assert main(command(other, filled, "table1", "--only", "mnist/vae/ours-500")) == 1
    assert "failed, the record in" in (printed := capsys.readouterr().err)
    assert "is of other data than the store; choose another --out" in printed


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("run", "learning_rate"), 0.123, "learning_rate"),
        (("run", "rule", "live_points"), 3, "live_points"),
        (("results", "evaluations", 0, "density", "num_samples"), 2, "draws or test images"),
    ],
)
def test_a_record_of_another_protocol_is_not_taken_for_this_one(filled, stores, tmp_path, capsys, place, value, named):
    out = Path(shutil.copytree(filled, tmp_path / "out"))
    (path,) = out.glob("mnist-vae-ours-500-0*/record.json")
    content = inner = json.loads(path.read_text())
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    assert main(command(stores, out, "table1", "--only", "mnist/vae/ours-500")) == 1
    assert f"has another {named} than the protocol; move it away to run the cell" in capsys.readouterr().err
    assert main([*command(stores, out, "table1", "--only", "mnist/vae/ours-500"), "--json"]) == 1
    printed = capsys.readouterr()
    assert f"has another {named}" in printed.err
    found = json.loads(printed.out)
    assert found["left_out"] == []
    assert [named in reason for reason in found["failed"]] == [True]


def test_a_model_of_other_data_is_not_measured_on_these(filled, tmp_path, capsys):
    """As if the command had been killed before it wrote the record, and the store were then prepared anew."""
    image_store(tmp_path, count=800)
    (tmp_path / "stores").mkdir()
    (tmp_path / "store").rename(tmp_path / "stores" / "mnist")
    out = Path(shutil.copytree(filled, tmp_path / "out", ignore=shutil.ignore_patterns("record.json")))
    assert main(command(tmp_path / "stores", out, "table1", "--only", "mnist/vae/ours-500")) == 1
    assert "was trained on other data than the store; choose another --out, or remove it" in capsys.readouterr().err
    assert not list(out.glob("*/record.json"))


@pytest.mark.parametrize("kind", [RunError, ValueError])
def test_a_cell_that_fails_does_not_stop_the_others(kind, stores, tmp_path, monkeypatch, capsys):
    tried = []

    def fail(config, *_):
        tried.append(config.prior)
        raise kind("the loss is not finite")

    monkeypatch.setattr(reproduce, "train", fail)
    assert main(command(stores, tmp_path / "out", "table1", "--only", "mnist/vae")) == 1
    papers, ours, trained_otherwise = ["gaussian", "vamp", "exemplar", "bype"], ["bype"] * 2, ["gaussian"] * 2
    assert tried == [*papers, *ours, *trained_otherwise, "vamp", "bype", "bype"]
    printed = capsys.readouterr().err
    assert "mnist/vae/gaussian, seed 0, reduced: failed, the loss is not finite" in printed
    assert "11 of 11 cells failed" in printed


def test_a_request_to_stop_in_the_last_step_of_a_cell_stops_the_others(stores, tmp_path, monkeypatch, capsys):
    def finish(config, data, out, display):
        return Outcome("finished", 1, 1.0, 15)

    monkeypatch.setattr(reproduce, "train", finish)
    assert main(command(stores, tmp_path / "out", "table1", "--only", "mnist/vae")) == 143
    printed = capsys.readouterr()
    assert printed.out.count("begins") == 1
    assert "stopped; to resume, run the same command" in printed.err
    assert main(command(stores, tmp_path / "out", "table1", "--only", "mnist/vae", "--json")) == 143
    assert json.loads(capsys.readouterr().out)["state"] == "stopped"


def test_a_broken_record_of_another_cell_does_not_hide_the_tables(filled, stores, tmp_path, capsys):
    out = Path(shutil.copytree(filled, tmp_path / "out"))
    (out / "zzz").mkdir()
    (out / "zzz" / "record.json").write_text("{}")
    assert main(command(stores, out, "table1", "--only", "mnist/vae/ours-500")) == 1
    printed = capsys.readouterr()
    assert "| MNIST | VAE | ours, 500 points |" in printed.out
    assert re.search(r"left out of the tables: .*zzz.record.json is not the record of a cell", printed.err)


def test_an_evaluation_resumes_in_the_precision_that_it_began_in(stores, tmp_path, monkeypatch, capsys):
    began_in = []

    def stop(*_, density, **__):
        began_in.append(density.precision)
        raise RunError("stopped")

    monkeypatch.setattr(reproduce, "evaluate", stop)
    words = command(stores, tmp_path / "out", "table1", "--only", "mnist/vae/gaussian-decay")
    for faster in ("bfloat16", "float32"):  # what is faster may change with what else the machine does
        monkeypatch.setattr(reproduce, "faster_precision", lambda faster=faster: faster)
        assert main(words) == 1
    assert began_in == ["bfloat16", "bfloat16"]


def test_a_measurement_of_another_split_is_not_taken_for_that_of_the_test_split(filled, tmp_path):
    out = Path(shutil.copytree(filled, tmp_path / "out", ignore=shutil.ignore_patterns("runs")))
    record = out / "mnist-vae-ours-500-0-reduced" / "record.json"
    content = json.loads(record.read_text())
    (test,) = content["results"]["evaluations"]
    other = json.loads(json.dumps(test)) | {"split": "validation"}
    other["density"]["negative_log_likelihood"]["value"] = 99.0
    content["results"]["evaluations"] = [other, test]
    record.write_text(json.dumps(content))
    (line,) = (x for x in ITEMS["table1"].lines if x.cell.path == "mnist/vae/ours-500")
    assert Records.read(out).values(line, REDUCED) == {0: test["density"]["negative_log_likelihood"]["value"]}


def test_a_cell_that_another_process_holds_is_left_alone(stores, tmp_path, capsys):
    place = tmp_path / "out" / "runs" / "mnist-vae-gaussian-0-reduced"
    place.mkdir(parents=True)
    lock = RunLock(place)
    lock.acquire()
    assert main(command(stores, tmp_path / "out", "table1", "--only", "mnist/vae/gaussian")) == 0
    printed = capsys.readouterr().err
    assert re.search(r"mnist/vae/gaussian, seed 0, reduced: left out, process \d+ on .* is working on it", printed)
    assert not list((tmp_path / "out").glob("*/record.json"))
    lock.release()


def test_interrupted_and_resumed(stores, filled, tmp_path):
    out = tmp_path / "out"
    words = command(stores, out, "table1", "--only", "mnist/vae/ours-500")
    run = out / "runs" / "mnist-vae-ours-500-0-reduced" / "run"
    child = subprocess.Popen([sys.executable, "-m", "bype", *words], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list(run.glob("checkpoints/*/manifest.json")):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not list(out.glob("*/record.json"))
    assert main(words) == 0
    contents = [
        json.loads((folder / "mnist-vae-ours-500-0-reduced" / "record.json").read_text()) for folder in (out, filled)
    ]
    assert contents[0]["curve"] == contents[1]["curve"]  # to the bit, as if it had not been interrupted


def test_shards_share_the_cells_without_overlap():
    items = (ITEMS["table1"], ITEMS["figure4"])
    whole = [cell for cell, _ in cells_of(items, 3)]
    parts = [[cell for cell, _ in cells_of(items, 3, shard=(k, 2))] for k in range(2)]
    assert not set(parts[0]) & set(parts[1])
    assert set(parts[0]) | set(parts[1]) == set(whole)
    assert len(whole) == len(set(whole)) == 3 * 69


def test_only_takes_whole_words():
    assert {cell.data for cell, _ in cells_of(tuple(ITEMS.values()), 1, "mnist/vae")} == {"mnist"}
    assert [cell.path for cell, _ in cells_of((ITEMS["table1"],), 1, "cifar10/hvae/bype")] == ["cifar10/hvae/bype"]


def test_two_shards_through_the_command(stores, filled, tmp_path, capsys):
    out = tmp_path / "out"
    for name in ("mnist", "fashion-mnist"):  # copies stand for what was trained: what matters is who takes what
        shutil.copytree(filled / "mnist-vae-ours-500-0-reduced", out / f"{name}-vae-ours-500-0-reduced")
    seen = []
    for shard in ("0/2", "1/2"):
        assert main([*command(stores, out, "figure7", "--only", "ours-500"), "--shard", shard]) == 0
        seen.append(re.findall(r"^(\S+), seed 0, reduced: done before", capsys.readouterr().out, re.MULTILINE))
    assert sorted(seen) == [["fashion-mnist/vae/ours-500"], ["mnist/vae/ours-500"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table9"], "bype reproduce list"),
        (["table1", "--only", "mnist/mlp"], "no cell has the part 'mnist/mlp'"),
        (["table1", "--shard", "2/2"], "from 0 to N - 1"),
    ],
)
def test_mistakes_give_one_line_with_the_way_out(words, message, stores, tmp_path, capsys):
    assert main(command(stores, tmp_path / "out", *words)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_cell_without_a_store_is_said(stores, filled, tmp_path, capsys):
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores" / "mnist").symlink_to(stores / "mnist")
    assert main(command(tmp_path / "stores", filled, "figure7", "--only", "ours-500")) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("fashion-mnist/vae/ours-500, seed 0, reduced: left out, there is no store")
    assert printed.out.startswith("mnist/vae/ours-500, seed 0, reduced: done before")


def test_without_any_store_and_record_the_way_to_the_store_is_said(stores, filled, tmp_path, capsys):
    assert main(command(stores, tmp_path / "out", "table4", "--only", "gaussian")) == 1
    error = capsys.readouterr().err
    assert f"there is no store for celeba in {stores}" in error
    assert error.strip().endswith(f"--validation 2000 --test 2000 --out {stores / 'celeba'}")
    assert not (tmp_path / "out").exists()
    (tmp_path / "none").mkdir()  # but the record alone is enough for a table
    assert main(command(tmp_path / "none", filled, "table1", "--only", "mnist/vae/ours-500")) == 0


def test_the_guide_prints_how_each_store_is_made():
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "reproduce.md").read_text()
    data = {cell.data for item in ITEMS.values() for cell in item.cells}
    assert sorted(re.findall(r"`(bype data prepare .*)` \|", guide)) == sorted(
        preparation(name, Path("stores")) for name in data
    )


def test_only_the_chosen_rows_are_printed_and_all_are_written(filled, stores, tmp_path, capsys):
    out = Path(shutil.copytree(filled, tmp_path / "out"))
    other = Path(shutil.copytree(out / "mnist-vae-ours-500-0-reduced", out / "mnist-vae-gaussian-0-reduced"))
    content = json.loads((other / "record.json").read_text())
    content["cell"]["prior"] = "gaussian"
    (other / "record.json").write_text(json.dumps(content))
    assert main(command(stores, out, "table1", "--only", "mnist/vae/ours-500")) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[:3] for row in rows[2:]] == [["| MNIST", "VAE", "ours, 500 points"]]
    written = [line for line in (out / "table1-reduced.md").read_text().splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[2] for row in written[2:]] == ["Gaussian", "ours, 500 points"]
    records = Records.read(out)
    (shown,) = write_item(ITEMS["table1"], records, out, "cifar10")  # of which nothing was run
    assert shown.endswith(f"reduced: written to {out / 'table1-reduced.md'}")
    assert list(write_item(ITEMS["table4"], records, out)) == []


def test_the_list_names_every_item_with_its_state(filled, capsys):
    assert main(["reproduce", "list", "--out", str(OLD_RECORDS)]) == 0
    printed = capsys.readouterr().out
    assert [name for name in ITEMS if re.search(rf"^{name} ", printed, re.MULTILINE)] == list(ITEMS)
    assert "5,000 importance samples" in printed
    assert "10 epochs" in printed
    assert main(["reproduce", "list", "--out", str(filled)]) == 0
    lines = capsys.readouterr().out.splitlines()
    states = {name: lines[k + 1] for k, line in enumerate(lines) for name in ITEMS if line.startswith(f"{name} ")}
    assert states["table1"].endswith("69 cells; reduced: 1 of 69 numbers")
    assert states["table4"].endswith("5 cells; not yet run")


def test_a_page_removes_old_figures_and_nothing_of_anyone_elses(tmp_path):
    page, pictures = tmp_path / "page.md", tmp_path / "pictures" / "paper"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    (pictures / "drafts").mkdir(parents=True)
    for name in ("figure4.svg", "figure1-reduced.png", "mine.png", "figure4.xcf"):
        (pictures / name).write_text(name)
    (tmp_path / "empty").mkdir()
    words = ["reproduce", "page", "--out", str(tmp_path / "empty"), "--page", str(page)]
    assert main(words) == 0
    others = ["drafts", "figure4.xcf", "mine.png"]
    assert sorted(path.name for path in pictures.iterdir()) == sorted(["figure1-reduced.png", *others])
    assert main([*words, "--reduced"]) == 0  # figures of the reduced protocol are on a page of their own
    assert sorted(path.name for path in pictures.iterdir()) == others
    written = page.read_text()
    for words in (["page", "--page", str(page)], ["list"]):
        assert main(["reproduce", *words, "--out", str(tmp_path / "mistyped")]) == 1
    assert page.read_text() == written
    assert written.startswith("before\n")
    assert page.read_text().endswith("after\n")
    assert "old" not in page.read_text().splitlines()


def test_a_page_without_a_place_to_print_says_which_lines_it_lacks(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for name, text in (("missing.md", None), ("plain.md", "words\n")):
        page = tmp_path / name
        if text is not None:
            page.write_text(text)
        assert main(["reproduce", "page", "--out", str(tmp_path / "empty"), "--page", str(page)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert BEGIN in line
        assert END in line
        assert text is None or page.read_text() == text
    assert not (tmp_path / "missing.md").exists()


def test_a_measurement_of_other_data_is_not_taken_for_that_of_the_store(filled, tmp_path):
    out = Path(shutil.copytree(filled, tmp_path / "out", ignore=shutil.ignore_patterns("runs")))
    record = out / "mnist-vae-ours-500-0-reduced" / "record.json"
    content = json.loads(record.read_text())
    content["results"]["evaluations"][0]["fingerprint"] = "of other data"
    record.write_text(json.dumps(content))
    with pytest.raises(FileError, match="not the record of a cell"):
        Records.read(out)


def test_records_of_the_earlier_script_are_read():
    """It kept neither plates nor the time of an epoch."""
    records = Records.read(OLD_RECORDS)
    (line,) = (x for x in ITEMS["table1"].lines if x.cell.path == "fashion-mnist/vae/gaussian")
    assert records.values(line, FULL)[0] == pytest.approx(21.39, abs=0.005)
    (line,) = (x for x in ITEMS["figure6"].lines if x.cell.path == "fashion-mnist/vae/gaussian")
    assert len(records.values(line, FULL)[0].x) == 2000


def test_seconds_of_an_epoch_leave_out_the_time_between_two_processes(tmp_path):
    # an update after step 20 took 10 seconds; the run resumed after the fourth line
    told = [(10, 4.0), (20, 6.0), (20, 16.0), (30, 19.0), (30, 1.0), (40, 2.5), (20, 3.0)]  # and once more at the end
    lines = [json.dumps({"step": step, "seconds_in_process": seconds}) for step, seconds in told]
    (tmp_path / "timings.jsonl").write_text("\n".join(lines))
    assert seconds_per_epoch(tmp_path, 100) == pytest.approx(100 * (2.0 + 10.0 + 3.0 + 1.5) / 30, abs=1e-3)
    assert seconds_per_epoch(tmp_path / "none", 100) is None
    told = [
        (10, 20.0, "a"),
        (20, 21.0, "b"),
        (30, 41.0, "b"),
    ]  # b was slower to its first line
    lines = [json.dumps({"step": step, "seconds_in_process": s, "process": name}) for step, s, name in told]
    (tmp_path / "timings.jsonl").write_text("\n".join(lines))
    assert seconds_per_epoch(tmp_path, 10) == 20.0
    torn = lines[1][:20] + lines[0]  # the disk was full, and the next line follows without a break
    (tmp_path / "timings.jsonl").write_text("\n".join([lines[1], torn, lines[2], lines[2][:9]]))
    assert seconds_per_epoch(tmp_path, 10) == 20.0


def test_hours_are_counted_by_hand():
    """MNIST, k sweep, one seed: 500 steps an epoch, 500 epochs, a third of 100 steps for validation."""
    pace = Pace(step=0.01, update=0.02, draw=1e-5, classifier=0.05)
    paces = {cell.path: pace for cell in ITEMS["table5"].cells}
    training = 500 * 0.01 * (500 + 100 / 3)
    updates = [500 / k * 500 * 0.02 for k in (1, 10, 50, 100)]
    expected = 4 * (training + 10_000 * 5000 * 1e-5) + sum(updates)
    assert hours((ITEMS["table5"],), paces, FULL, 1) == pytest.approx(expected / 3600)
    one = {"mnist/vae/bype": pace, "mnist/classifier/none": Pace(0.0, 0.0, 0.0, 0.03)}
    classifiers = 10 * 2 * 500 * 0.05 + 2 * 500 * 0.03  # of 2 epochs each; one has no generated examples
    reduced = 10 * 0.01 * (500 + 100 / 3) + 5 * 50 * 5 * 0.02 + 1000 * 250 * 1e-5 + classifiers  # in batches of 500
    assert hours((ITEMS["table7"],), one, REDUCED, 2) == pytest.approx(2 * reduced / 3600)
    slow = {"celeba/residual/bype": pace}
    reduced = 0.01 * (40 + 20 / 3) + 2 * 4 * 0.02 + 100 * 50 * 1e-5  # one validation on 2,000 images, two updates
    assert hours((ITEMS["table4"],), slow, REDUCED, 1) == pytest.approx(reduced / 3600)


def test_the_cost_has_hours_for_every_item():
    paces = {cell.path: Pace(0.01, 0.02, 1e-5, 0.05) for item in ITEMS.values() for cell in item.cells}
    lines = list(lines_of(Costs(None, "", "", 1, paces), 3))
    for name in (*ITEMS, "all"):
        (line,) = (text for text in lines if text.startswith(f"{name} "))
        assert float(re.search(r"([0-9.,]+) h full", line)[1].replace(",", "")) > 0
    assert "500 epochs" in lines[-1]


def test_the_cost_is_measured_and_kept_for_the_page(tmp_path, capsys, monkeypatch):
    assert main(["reproduce", "cost", "--only", "mnist/vae/gaussian"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"mnist/vae/gaussian: [0-9.]+ ms for a step", printed)
    assert re.search(r"^table1 +[0-9.]+ h full, +[0-9.]+ h reduced, for 3 trainings", printed, re.MULTILINE)
    assert main(["reproduce", "cost", "--only", "mnist/vae/gaussian", "--out", str(tmp_path)]) == 1
    assert "the page needs the hours of every cell" in capsys.readouterr().err
    measured = Costs(None, "", "", 1, {"mnist/vae/gaussian": Pace(0.01, 0.02, 1e-5, 0.05)})
    monkeypatch.setattr(cost, "measure", lambda *_: measured)
    assert main(["reproduce", "cost", "--out", str(tmp_path)]) == 0
    kept = Costs.read(tmp_path)
    pace = kept.paces["mnist/vae/gaussian"]
    (tmp_path / "page.md").write_text(f"{BEGIN}{END}")
    assert main(["reproduce", "page", "--out", str(tmp_path), "--page", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    one = 500 * pace.step * (500 + 100 / 3) + 10_000 * 5000 * pace.draw
    assert f"| MNIST | VAE | {one / 3600:,.1f} |  |" in page
    assert f"| not yet run | {3 * one / 3600:,.0f} |" in page
    (tmp_path / "cost.json").write_text("{}")
    with pytest.raises(FileError, match="measure again"):
        Costs.read(tmp_path)


def test_the_cost_counts_updates_and_averages(tmp_path, monkeypatch):
    monkeypatch.setitem(cost.DATA, "mnist", dataclasses.replace(cost.DATA["mnist"], stand_ins=1000))
    cells = [Cell("mnist", "vae", prior) for prior in ("bype", "ours-500-average")]
    said = []
    costs = cost.measure(cells, tmp_path, said.append)
    paper, ours = (costs.paces[cell.path] for cell in cells)
    assert paper.update > 0
    assert ours.update == 0  # its points move in each step
    assert all(min(pace.step, pace.draw, pace.classifier) > 0 for pace in (paper, ours))
    alone = cost.measure([Cell("mnist", "classifier", "none")], tmp_path, said.append).paces["mnist/classifier/none"]
    assert (alone.step, alone.update, alone.draw) == (0, 0, 0)
    assert alone.classifier > 0
    assert len(said) == 3


def test_the_table_has_mean_spread_difference_and_the_cap(tmp_path):
    values = [21.40, 21.46, 21.31]
    content = json.loads((OLD_RECORDS / "fashion-mnist-vae-gaussian-0" / "record.json").read_text())
    for seed, value in enumerate(values):
        folder = tmp_path / f"fashion-mnist-vae-gaussian-{seed}"
        folder.mkdir()
        content["cell"]["seed"] = seed
        content["protocol"] = "full, capped at 600 epochs" if seed == 1 else "full"
        content["epochs"] = 600.0 if seed == 1 else 400.0
        content["results"]["evaluations"][0]["density"]["negative_log_likelihood"]["value"] = value
        (folder / "record.json").write_text(json.dumps(content))
    lines = table(ITEMS["table1"], Records.read(tmp_path), FULL)
    (row,) = (line for line in lines if line.startswith("| Fashion-MNIST | VAE | Gaussian |"))
    spread = f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    numbers = [word.strip() for word in row.split("|")[4:-1]]
    difference = f"{np.mean(values) - 21.43:+.3f}"
    assert numbers == ["21.43 ± 0.10", spread, difference, "0, 1, 2", "400, 600 (capped), 400"]
    del content["results"]["evaluations"][0]["density"]["kl"]
    for broken in ({"cell": {}}, content):
        (tmp_path / "fashion-mnist-vae-gaussian-0" / "record.json").write_text(json.dumps(broken))
        with pytest.raises(FileError, match="not the record of a cell"):
            Records.read(tmp_path)


def test_a_clone_of_another_project_is_not_the_source(tmp_path, monkeypatch):
    """As if bype were installed in a folder of that project."""
    installed = tmp_path / ".venv" / "bype" / "paper"
    installed.mkdir(parents=True)
    shutil.copy(provenance.__file__, installed / "provenance.py")
    (tmp_path / ".gitignore").write_text(".venv\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "x"]):
        subprocess.run([shutil.which("git"), "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(provenance, "__file__", str(installed / "provenance.py"))
    assert provenance.commit() is None


def test_one_size_makes_no_curve_over_sizes():
    class Found:
        def __init__(self, count):
            self.lines = {id(line): {0: 23.0} for line in ITEMS["figure5"].lines[:count]}

        def values(self, line, protocol):
            return self.lines.get(id(line), {})

    assert figure(ITEMS["figure5"], Found(1), FULL) is None
    assert figure(ITEMS["figure5"], Found(3), FULL)[0] == "svg"
