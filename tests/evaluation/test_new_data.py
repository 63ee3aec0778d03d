"""Commands take new data as the user has them: folders of images, and tables."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

import bype
from bype.cli import main
from bype.data.examples import as_model_input
from bype.data.prepare import prepare
from bype.data.sources import SourceOptions
from bype.evaluation.audit import audit_run
from bype.evaluation.generation import embed
from bype.evaluation.outliers import ScoreOptions, score_examples
from bype.run.opened import TrainedRun
from small_runs import CLASSES, small_run, striped_images
from torchrun_process import wait_until


def scores_of(path):
    arrays = np.load(path)
    return {name: arrays[name] for name in arrays.files}


def test_a_table_is_scored_as_the_store_that_is_made_of_it(trained_features, tmp_path, capsys):
    lines = (trained_features.parent / "table.csv").read_text().splitlines()[:31]
    new = tmp_path / "new.csv"
    new.write_text("\n".join(lines))
    prepare(new, tmp_path / "store", SourceOptions(label="kind"), validation=0, test=0)
    without = tmp_path / "without.csv"
    without.write_text("\n".join(line.rpartition(",")[0] for line in lines))
    found = {}
    for name, data in (("store", tmp_path / "store"), ("table", new), ("without", without)):
        out = tmp_path / f"{name}.npz"
        assert main(["score", str(trained_features), "--data", str(data), "--samples", "5", "--out", str(out)]) == 0
        found[name] = scores_of(out)
    for name, values in found["store"].items():
        if name != "label":
            np.testing.assert_array_equal(found["table"][name], values)
            np.testing.assert_array_equal(found["without"][name], values)
    captured = capsys.readouterr()
    assert captured.out.count("30 examples in") == 3
    assert captured.err.count("not used: kind") == 1


def score(run, data, out):
    return main(["score", str(run), "--data", str(data), "--samples", "5", "--references", "40", "--out", str(out)])


def test_columns_are_taken_by_name(trained_features, tmp_path, capsys):
    lines = [line.split(",") for line in (trained_features.parent / "table.csv").read_text().splitlines()[:12]]

    def write(name, order, rows=lines):
        (tmp_path / name).write_text("\n".join(",".join(row[k] for k in order) for row in rows))
        return tmp_path / name

    numbered = [["number", *lines[0]], *([str(1000 + k), *row] for k, row in enumerate(lines[1:]))]
    assert score(trained_features, write("plain.csv", range(4)), tmp_path / "plain.npz") == 0
    expected = scores_of(tmp_path / "plain.npz")["log_likelihood"]
    for name, order, rows in (("turned", (3, 1, 4, 0, 2), lines), ("numbered", range(6), numbered)):
        assert score(trained_features, write(f"{name}.csv", order, rows), tmp_path / f"{name}.npz") == 0
        np.testing.assert_array_equal(scores_of(tmp_path / f"{name}.npz")["log_likelihood"], expected)
    assert "not used: number, kind" in capsys.readouterr().err
    frame = {name: [float(row[k]) for row in lines[1:]] for k, name in enumerate(lines[0][:4])}
    parquet.write_table(pyarrow.table({"kind": [row[4] for row in lines[1:]], **frame}), tmp_path / "same.parquet")
    assert score(trained_features, tmp_path / "same.parquet", tmp_path / "same.npz") == 0
    np.testing.assert_allclose(scores_of(tmp_path / "same.npz")["log_likelihood"], expected, rtol=1e-5)
    capsys.readouterr()
    refused = {
        "missing": (write("missing.csv", (0, 2, 3)), "has no column 'width', which the model takes"),
        "two missing": (
            write("fewer.csv", (0, 3)),
            "lacks 2 of the 4 columns that the model takes: 'width', '<b>depth",
        ),
        "no header": (write("bare.csv", range(5), numbered[1:]), "holds float32 examples of shape (5,)"),
    }
    for name, (path, message) in refused.items():
        assert score(trained_features, path, tmp_path / "no.csv") == 1, name
        assert message in capsys.readouterr().err
    assert not (tmp_path / "no.csv").exists()


def test_new_rows_may_be_nearly_equal(trained_features, tmp_path):
    rows = ["length,width,<b>depth</b>,mass", "0.500001,0.1,0.2,0.3", "0.500002,0.1,0.2,0.3"]
    (tmp_path / "two.csv").write_text("\n".join(rows))  # to train on these would be refused
    assert score(trained_features, tmp_path / "two.csv", tmp_path / "two.npz") == 0


def test_a_row_too_far_to_compute_is_the_least_likely(trained_features, tmp_path, capsys):
    rows = ["length,width,<b>depth</b>,mass", *["0.1,0.2,0.3,0.4"] * 4, "2e38,-2e38,2e38,-2e38"]
    (tmp_path / "far.csv").write_text("\n".join(rows))
    assert score(trained_features, tmp_path / "far.csv", tmp_path / "far.npz") == 0
    found = scores_of(tmp_path / "far.npz")
    assert found["log_likelihood"][4] == -np.inf
    assert found["percentile"][4] == 0
    assert "row 4" in capsys.readouterr().out.split("the least likely")[1].splitlines()[1]


def test_photographs_are_brought_to_the_kind_of_the_run(tmp_path, capsys):
    images = striped_images(60)[0]
    np.save(tmp_path / "x.npy", np.stack([images] * 3, axis=-1))
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0.1, test=0.1)
    run = small_run(tmp_path / "run", tmp_path / "store", length="2 epochs")
    folders = {}
    sizes = {"same": ("RGB", 12), "grey": ("L", 12), "large": ("RGB", 48)}
    for name, (mode, size) in sizes.items():
        folder = folders[name] = tmp_path / name
        folder.mkdir()
        for number, pixels in enumerate(images[:7]):
            enlarged = Image.fromarray(pixels).resize((size, size), Image.Resampling.NEAREST)
            enlarged.convert(mode).save(folder / f"photo {number}.png")
    (folders["large"] / "broken.png").write_text("no image")
    temporary = set(Path(tempfile.gettempdir()).glob("bype-*"))
    parts = {}
    for name, folder in folders.items():
        assert main(["embed", str(run), "--data", str(folder), "--out", str(tmp_path / f"{name}-out")]) == 0
        parts[name] = np.load(tmp_path / f"{name}-out" / "part-000000.npz")
    captured = capsys.readouterr()
    assert "skipped broken.png" in captured.err
    for part in parts.values():
        assert part["sources"].tolist() == [f"photo {number}.png" for number in range(7)]
    model = TrainedRun.open(run).model
    expected = embed(model, as_model_input(torch.from_numpy(images[:7, None].repeat(3, axis=1))))
    for name in ("same", "grey"):
        np.testing.assert_allclose(parts[name]["means"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(parts["large"]["means"], expected, atol=0.2)
    Image.new("RGB", (30, 20), "red").save(folders["large"] / "wide.png")  # of another size than the others
    assert main(["embed", str(run), "--data", str(folders["large"]), "--out", str(tmp_path / "mixed")]) == 0
    one = folders["same"] / "photo 3.png"
    assert main(["embed", str(run), "--data", str(one), "--out", str(tmp_path / "one")]) == 0
    alone = np.load(tmp_path / "one" / "part-000000.npz")["means"]
    np.testing.assert_allclose(alone, expected[3:4], rtol=1e-5, atol=1e-6)
    words = ["embed", str(run), "--data", str(folders["same"]), "--shard", "0/2", "--out", str(tmp_path / "shared")]
    assert main(words) == 1
    assert "several workers need a store; make one with: bype data prepare" in capsys.readouterr().err
    assert set(Path(tempfile.gettempdir()).glob("bype-*")) == temporary


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_nohup_holds_while_new_data_are_embedded(trained_features, tmp_path, monkeypatch):
    """A closed terminal ends the command, but not if it ignores SIGHUP."""
    table = trained_features.parent / "table.csv"
    words = ["embed", str(trained_features), "--data", str(table), "--out"]
    monkeypatch.setattr("bype.cli.examples.say_findings", lambda found: os.kill(os.getpid(), signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main([*words, str(tmp_path / "ignored")]) == 0
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(SystemExit, match=str(128 + signal.SIGHUP)):
            main([*words, str(tmp_path / "heeded")])
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_labels_of_new_data_come_with_their_names(bype_run, tmp_path, capsys):
    images, labels = striped_images(30)
    for kind, pixels in zip(labels, images, strict=True):
        if kind > 0:
            folder = tmp_path / "new" / CLASSES[kind]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{len(list(folder.iterdir()))}.png")
    assert main(["embed", str(bype_run), "--data", str(tmp_path / "new"), "--out", str(tmp_path / "out")]) == 0
    part = np.load(tmp_path / "out" / "part-000000.npz")
    assert [name.split("/")[0] for name in part["sources"]] == part["label_names"].tolist()
    (tmp_path / "new" / CLASSES[1]).rename(tmp_path / "new" / "train")
    (tmp_path / "new" / CLASSES[2]).rename(tmp_path / "new" / "test")
    capsys.readouterr()
    assert main(["embed", str(bype_run), "--data", str(tmp_path / "new"), "--out", str(tmp_path / "test")]) == 0
    count = len(list((tmp_path / "new" / "test").iterdir()))
    assert f"{count} of {int((labels > 0).sum())} (split test) embeddings" in capsys.readouterr().out
    words = ["embed", str(bype_run), "--data", str(tmp_path / "new"), "--split", "validation"]
    assert main([*words, "--out", str(tmp_path / "none")]) == 1
    assert f"{tmp_path / 'new'} has no split validation; leave out --split" in capsys.readouterr().err


def test_who_is_asked_to_end_leaves_no_copy_of_the_data(trained_features, tmp_path):
    table = (trained_features.parent / "table.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join([table[0], *table[1:] * 200]))
    words = ["score", str(trained_features), "--data", str(tmp_path / "new.csv"), "--out", str(tmp_path / "x.csv")]
    (tmp_path / "place").mkdir()
    here = os.environ | {"TMPDIR": str(tmp_path / "place")}
    process = subprocess.Popen([sys.executable, "-m", "bype", *words], env=here, stdout=subprocess.DEVNULL)
    wait_until(lambda: any((tmp_path / "place").iterdir()), 120, "no store was begun")
    process.terminate()
    assert process.wait(120) == 143
    assert not list((tmp_path / "place").iterdir())
    assert not (tmp_path / "x.csv").exists()


def test_an_example_without_any_density_is_named(trained_features, tmp_path, capsys):
    rows = np.random.default_rng(0).normal(size=(20, 4))
    rows[3, 1] = 1e25
    np.savetxt(tmp_path / "far.csv", rows, delimiter=",", header="length,width,<b>depth</b>,mass", comments="")
    prepare(tmp_path / "far.csv", tmp_path / "far", validation=0, test=0)
    words = ["evaluate", str(trained_features), "--data", str(tmp_path / "far"), "--samples", "5", "--no-map"]
    assert main(words) == 1
    printed = capsys.readouterr().err
    assert "log p(x) of 1 example in the split train is not finite (row 3)" in printed
    assert "Traceback" not in printed
    words[words.index("5")] = "0"  # what is encoded may be more than what the likelihood is estimated of
    assert main(words) == 1
    assert "log p(x) of 1 example in the split train is not finite (row 3)" in capsys.readouterr().err


def test_places_may_be_text_and_the_split_may_be_left_out(trained_features, tmp_path):
    run = TrainedRun.open(trained_features)
    own = str(run.store().folder)
    assert score_examples(run, data=own, options=ScoreOptions(2, 5, 5)).percentile is not None
    assert audit_run(TrainedRun.open(shutil.copytree(trained_features, tmp_path / "run")), own, 20)[0].num_train > 0
    names = "length,width,<b>depth</b>,mass"
    np.savetxt(tmp_path / "x.csv", np.zeros((20, 4)), delimiter=",", header=names, comments="")
    prepare(tmp_path / "x.csv", str(tmp_path / "store"), validation=5, test=0)
    copy = TrainedRun.open(tmp_path / "run")
    assert bype.evaluate(copy, data=str(tmp_path / "store"), density=None, with_map=False).split == "validation"


def test_a_copy_of_a_run_without_its_data_scores_other_data(trained_features, tmp_path, capsys):
    copy = shutil.copytree(trained_features, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["data"]["store"] = str(tmp_path / "gone")
    (copy / "config.json").write_text(json.dumps(config))
    table = trained_features.parent / "table.csv"
    assert score(trained_features, table, tmp_path / "whole.npz") == 0
    assert score(copy, table, tmp_path / "part.npz") == 0
    assert f"the training data of {copy} are not there" in capsys.readouterr().out
    whole, part = scores_of(tmp_path / "whole.npz"), scores_of(tmp_path / "part.npz")
    np.testing.assert_array_equal(part["log_likelihood"], whole["log_likelihood"])
    assert set(whole) - set(part) >= {"percentile", "log_ratio"}
