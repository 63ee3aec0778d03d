"""Commands take new data as the user has them: folders of images, and tables."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bype.cli import main
from bype.data.examples import as_model_input
from bype.data.prepare import prepare
from bype.data.sources import SourceOptions
from bype.evaluation.generation import embed
from bype.run.opened import TrainedRun
from small_runs import small_run, striped_images


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
    assert set(found["table"]["label"]) == {"high", "low"}
    for name, values in found["store"].items():
        np.testing.assert_array_equal(found["table"][name], values)
        if name != "label":
            np.testing.assert_array_equal(found["without"][name], values)
    assert "label" not in found["without"]
    assert "30 examples in" in capsys.readouterr().out
    two_more = tmp_path / "two.csv"
    two_more.write_text("\n".join(f"{k},{line}" if k else f"number,{line}" for k, line in enumerate(lines)))
    assert main(["score", str(trained_features), "--data", str(two_more), "--out", str(tmp_path / "no.csv")]) == 1
    assert "it does not know 'number', 'kind'" in capsys.readouterr().err
    assert not (tmp_path / "no.csv").exists()


def test_photographs_are_brought_to_the_kind_of_the_run(tmp_path, capsys):
    images = striped_images(60)[0]
    np.save(tmp_path / "x.npy", np.stack([images] * 3, axis=-1))
    prepare(tmp_path / "x.npy", tmp_path / "store", validation=0.1, test=0.1)
    run = small_run(tmp_path / "run", tmp_path / "store", length="2 epochs")
    folders = {}
    for name, mode, size in (("same", "RGB", 12), ("grey", "L", 12), ("large", "RGB", 48)):
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
    words = ["embed", str(run), "--data", str(folders["same"]), "--shard", "0/2", "--out", str(tmp_path / "shared")]
    assert main(words) == 1
    assert "several workers need a store; make one with: bype data prepare" in capsys.readouterr().err
    assert set(Path(tempfile.gettempdir()).glob("bype-*")) == temporary
