"""What `bype fit` makes of real and of odd data: as good as the simple thing, or one clear line."""

import dataclasses
import json
import os
import shlex
import signal
import warnings

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

from bype import ByPEVAE
from bype.cli import main
from bype.cli.fit_folder import alone_in
from bype.data.sources import SourceOptions, open_source
from bype.evaluation.records import Estimate, read_results
from bype.run.opened import TrainedRun
from bype.training import loop


def fit(data, out, *words):
    return main(["fit", str(data), "--out", str(out), "--minutes", "0.05", *words])


def save_images(folder, images):
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}.png")
    return folder


def is_better_than_linear(run):
    (found,) = read_results(run).evaluations
    return found.density.negative_log_likelihood.value <= found.baseline.negative_log_likelihood.value


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits of scikit-learn as images of 8 x 8 pixels."""
    images = np.clip(load_digits().images * 16, 0, 255).astype(np.uint8)
    return save_images(tmp_path_factory.mktemp("digits") / "images", images)


def test_small_images_are_no_worse_than_pca(digits, tmp_path, capsys):
    assert fit(digits, tmp_path / "run") == 0
    assert is_better_than_linear(tmp_path / "run")
    printed = capsys.readouterr().out
    assert "better than probabilistic PCA with 40 latents" in printed
    assert "Training gained" in printed
    page = (tmp_path / "run" / "report.html").read_text()
    assert "How good is it?" in page
    assert "better than probabilistic PCA" in page


def test_a_table_of_many_scales_is_no_worse_than_factor_analysis(tmp_path, capsys):
    np.save(tmp_path / "table.npy", load_breast_cancer().data.astype(np.float32))
    assert fit(tmp_path / "table.npy", tmp_path / "run") == 0
    assert is_better_than_linear(tmp_path / "run")
    assert "factor analysis with 15 latents on the same 57 examples" in capsys.readouterr().out
    assert (
        main(["sample", str(tmp_path / "run"), "--out", str(tmp_path / "made.npy"), "--count", "500", "--noise"]) == 0
    )
    made, data = np.load(tmp_path / "made.npy"), load_breast_cancer().data
    # Every column is in its own units: spreads are those of the data, from 0.003 to 600.
    ratio = made.std(0) / data.std(0)
    assert ratio.min() > 0.5
    assert ratio.max() < 2


@pytest.mark.parametrize("count", [20, 60])
def test_few_images_are_enough(digits, tmp_path, count):
    names = sorted(digits.iterdir())[:count]
    folder = save_images(tmp_path / "few", [np.asarray(Image.open(name)) for name in names])
    assert fit(folder, tmp_path / "run") == 0
    assert TrainedRun.open(tmp_path / "run").config.components >= 2


def test_one_image_many_times(tmp_path):
    image = np.arange(144, dtype=np.uint8).reshape(12, 12)
    assert fit(save_images(tmp_path / "same", [image] * 40), tmp_path / "run") == 0
    assert main(["sample", str(tmp_path / "run"), "--out", str(tmp_path / "made.npy"), "--count", "4"]) == 0
    assert np.abs(np.load(tmp_path / "made.npy") - (image + 0.5) / 256).max() < 0.02


def test_images_of_two_sizes_are_brought_to_one(tmp_path, capsys):
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 255, (size, size), dtype=np.uint8) for size in [12, 20] * 15]
    assert fit(save_images(tmp_path / "sizes", images), tmp_path / "own") == 0
    said = capsys.readouterr().out
    assert "(0.png is 12x12, 1.png is 20x20)" in said
    assert "resized to 64 x 64" in said
    assert TrainedRun.open(tmp_path / "own").data.shape == (1, 64, 64)


def test_one_column_and_constant_columns(tmp_path):
    generator = np.random.default_rng(0)
    np.save(tmp_path / "one.npy", generator.normal(1e5, 3, (200, 1)).astype(np.float32))
    assert fit(tmp_path / "one.npy", tmp_path / "one") == 0
    x = generator.normal(size=(200, 4)).astype(np.float32)
    x[:, [1, 3]] = 7.25
    np.save(tmp_path / "constant.npy", x)
    assert fit(tmp_path / "constant.npy", tmp_path / "constant") == 0
    assert main(["sample", str(tmp_path / "constant"), "--out", str(tmp_path / "made.npy"), "--count", "50"]) == 0
    made = np.load(tmp_path / "made.npy")
    np.testing.assert_allclose(made[:, [1, 3]], 7.25, atol=0.1)


def test_three_thousand_columns(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(150, 3)) @ generator.normal(size=(3, 3000)) + 0.1 * generator.normal(size=(150, 3000))
    np.save(tmp_path / "wide.npy", x.astype(np.float32))
    assert fit(tmp_path / "wide.npy", tmp_path / "run") == 0
    assert is_better_than_linear(tmp_path / "run")


def test_only_the_same_command_resumes_a_fit(digits, tmp_path, capsys):
    few = save_images(tmp_path / "few", np.zeros((20, 8, 8), np.uint8) + np.arange(20, dtype=np.uint8)[:, None, None])
    assert fit(few, tmp_path / "run") == 0
    before = (tmp_path / "run" / "evaluation.json").read_bytes()
    assert fit(digits, tmp_path / "run") == 1
    assert "holds a fit with data" in capsys.readouterr().err
    assert fit(tmp_path / "nowhere", tmp_path / "run", "--quiet") == 1
    assert fit(few, tmp_path / "run", "--seed", "5") == 1
    assert "with --seed 0, not 5; choose another --out" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), "--samples", "2", "--images", "1"]) == 0
    request = json.loads((tmp_path / "run" / "fit.json").read_text())
    assert request.pop("latent_dim") is None
    assert request.pop("points_start") == "examples"
    assert len(request.pop("files")) == 64
    (tmp_path / "run" / "fit.json").write_text(json.dumps(request))  # as it was once
    assert fit(few, tmp_path / "run") == 0  # and measures again what was measured with fewer draws
    again = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert again["evaluations"][0]["density"]["num_samples"] == 500
    assert json.loads(before)["evaluations"][0]["density"]["num_samples"] == 500


def write_table(path, count):
    path.write_text("a,b,kind\n" + "".join(f"{k % 7},{k * k % 11},{'xy'[k % 2]}\n" for k in range(count)))
    return path


def test_changed_data_are_not_shown_with_old_results(tmp_path, capsys):
    table, run = write_table(tmp_path / "t.csv", 60), tmp_path / "my run"
    assert fit(table, run, "--label", "kind", "--seed", "3") == 0
    write_table(table, 80)
    capsys.readouterr()
    assert fit(table, run, "--label", "kind", "--seed", "3") == 1
    said = capsys.readouterr().err
    assert f"{table} has changed since this fit began; choose another --out." in said
    before = (run / "fit.json").read_bytes()
    assert main(shlex.split(said.split("as they were: bype ")[1])) == 0
    assert (run / "fit.json").read_bytes() == before
    table.unlink()  # then nobody knows
    assert fit(table, run, "--label", "kind", "--seed", "3") == 0


def test_changed_files_of_a_folder_are_noticed_but_not_those_of_the_run(digits, tmp_path, capsys):
    few = save_images(tmp_path / "few", [np.asarray(Image.open(name)) for name in sorted(digits.iterdir())[:20]])
    (few / "circle").symlink_to(few)
    assert fit(few, few / "run") == 0
    (few / ".hidden").write_text("by a file browser")
    assert fit(few, few / "run") == 0
    (few / "3.png").touch()
    assert fit(few, few / "run") == 1
    assert "has changed since this fit began" in capsys.readouterr().err


def test_fewer_rows_than_columns_leave_noise_to_the_linear_model(tmp_path):
    """With as many latents as rows, factor analysis fits these exactly, and new rows are unlikely beyond measure."""
    random = np.random.default_rng(0)
    table = random.normal(size=(40, 4)) @ random.normal(size=(4, 120)) + random.normal(size=(40, 120))
    np.save(tmp_path / "x.npy", table.astype(np.float32))
    assert fit(tmp_path / "x.npy", tmp_path / "run") == 0
    (found,) = read_results(tmp_path / "run").evaluations
    assert found.baseline.num_latents == 6
    assert found.density.negative_log_likelihood.value < found.baseline.without_latents + 20
    worse = dataclasses.replace(
        found.density, negative_log_likelihood=Estimate(found.baseline.without_latents + 1, 1.0)
    )
    assert "worse than one normal distribution around the mean example" in found.baseline.verdict(worse, 120)


def test_the_printed_commands_can_be_used(digits, tmp_path, capsys):
    assert fit(digits, tmp_path / "my run") == 0
    (printed,) = (line for line in capsys.readouterr().out.splitlines() if "bype embed" in line)
    words = shlex.split(printed, comments=True)
    assert words[2] == str(tmp_path / "my run")
    assert main([*words[1:-1], str(tmp_path / "embedding")]) == 0


def test_a_fit_that_has_ended_is_shown_and_not_resumed(tmp_path, capsys):
    table, run = write_table(tmp_path / "t.csv", 60), tmp_path / "run"
    assert fit(table, run, "--label", "kind") == 0
    first = capsys.readouterr().out
    assert "training a VAE" in first
    assert f"bype score {run} --out scores.csv" in first
    assert f"bype audit {run}" in first
    assert fit(table, run, "--label", "kind") == 0
    again = capsys.readouterr().out
    assert again.startswith(f"{run} is trained already; showing its results. To train longer, choose another --out")
    assert "resuming" not in again
    assert "training a VAE" not in again
    assert again.split("on 6 test examples")[1] == first.split("on 6 test examples")[1]


def test_a_signal_in_the_last_step_ends_a_fit_before_it_evaluates(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32))
    train = loop.train
    with monkeypatch.context() as patch:
        patch.setattr(loop, "train", lambda *given: dataclasses.replace(train(*given), signal=signal.SIGTERM))
        assert fit(tmp_path / "x.npy", tmp_path / "run") == 128 + signal.SIGTERM
    assert not (tmp_path / "run" / "report.html").exists()
    assert fit(tmp_path / "x.npy", tmp_path / "run") == 0
    assert (tmp_path / "run" / "report.html").exists()


def test_a_request_that_was_never_begun_is_replaced(digits, tmp_path):
    """As after a kill just after the request was written."""
    run, store = tmp_path / "run", tmp_path / "store"
    assert main(["data", "prepare", str(digits), "--out", str(store)]) == 0
    run.mkdir()
    (run / "fit.json").write_text(
        json.dumps({"data": str(store), "minutes": 5.0, "size": None, "label": None, "seed": 0})
    )
    assert fit(store, run) == 0
    assert json.loads((run / "fit.json").read_text())["minutes"] == 0.05
    assert fit(store, run) == 0


def test_a_mistake_before_training_can_be_mended(tmp_path, capsys, monkeypatch):
    table, run = write_table(tmp_path / "t.csv", 60), tmp_path / "run"
    assert fit(table, run, "--label", "kind", "--latent-dim", "0") == 1
    assert "--latent-dim must be at least 1, not 0" in capsys.readouterr().err
    assert not run.exists()
    with monkeypatch.context() as patch:  # as if there were no memory for so many
        patch.setattr("bype.run.choice.suitable_config", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit(table, run, "--label", "kind", "--latent-dim", "9")
    assert (run / "store").exists()
    assert fit(table, run, "--label", "kind", "--seed", "1") == 1  # it divided the data into splits
    assert main(["fit", str(run / "store"), "--out", str(run), "--minutes", "0.04", "--latent-dim", "1"]) == 0
    kept = json.loads((run / "fit.json").read_text())
    assert (kept["minutes"], kept["latent_dim"], kept["label"], kept["data"]) == (0.04, 1, "kind", str(table))


def test_a_fit_killed_while_it_wrote_its_request_begins_again(tmp_path, capsys):
    table, run = write_table(tmp_path / "t.csv", 60), tmp_path / "run"
    run.mkdir()
    (run / ".fit.json.0a1b2c3d.partial").write_text("{")
    (run / "letter.txt").write_text("dear")
    assert fit(table, run, "--label", "kind") == 1
    assert "exists and is not empty" in capsys.readouterr().err
    (run / "letter.txt").unlink()
    assert fit(table, run, "--label", "kind") == 0
    assert not list(run.glob(".fit.json.*"))


def test_points_can_start_as_noise(tmp_path, capsys):
    table, run = write_table(tmp_path / "t.csv", 60), tmp_path / "run"
    assert fit(table, run, "--label", "kind", "--points-start", "noise") == 0
    assert "--label" not in capsys.readouterr().out
    assert TrainedRun.open(run).config.points_start == "noise"
    assert fit(table, run, "--label", "kind") == 1
    assert "holds a fit with --points-start noise, not examples" in capsys.readouterr().err
    assert main(["sample", str(run), "--label", "x", "--out", str(tmp_path / "x.csv")]) == 1
    assert "no class has points of its own" in capsys.readouterr().err


def test_too_few_rows_can_be_mended(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n2,3\n3,5\n")
    assert fit(tmp_path / "t.csv", tmp_path / "run") == 1
    said = "table t.csv has 3 examples; bype fit needs at least 10"
    assert said in capsys.readouterr().err
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{k},{k * k}\n" for k in range(40)))
    assert fit(tmp_path / "t.csv", tmp_path / "run") == 0


def test_rows_of_a_table_have_names(tmp_path):
    lines = "".join(f"{k % 7},{k * k % 11}\n" for k in range(60))
    (tmp_path / "t.csv").write_text(f'mass,"length, cm"\n{lines}')
    assert fit(tmp_path / "t.csv", tmp_path / "run") == 0
    for words in (["--count", "3"], ["--like", "0", "--count", "3"]):
        out = tmp_path / f"{len(words)}.csv"
        assert main(["sample", str(tmp_path / "run"), *words, "--out", str(out)]) == 0
        head, *rows = out.read_text().splitlines()
        assert head == 'mass,"length, cm"'
        assert len(rows) == 3


def test_a_single_column_with_labels_is_fitted_without_principal_components(tmp_path, capsys):
    numbers = np.random.default_rng(0).normal(size=100)
    lines = [f"{number + 3 * (k % 2)},{'ab'[k % 2]}" for k, number in enumerate(numbers)]
    (tmp_path / "heights.csv").write_text("\n".join(["height,kind", *lines]))
    assert fit(tmp_path / "heights.csv", tmp_path / "run", "--label", "kind") == 0
    (found,) = read_results(tmp_path / "run").evaluations
    assert found.representation is not None
    assert found.baseline.knn_accuracy is None
    assert (tmp_path / "run" / "report.html").exists()


def test_the_number_of_latents_can_be_set(digits, tmp_path, capsys):
    few = save_images(tmp_path / "few", [np.asarray(Image.open(name)) for name in sorted(digits.iterdir())[:50]])
    assert fit(few, tmp_path / "run", "--latent-dim", "60") == 0  # more than training examples
    run = TrainedRun.open(tmp_path / "run")
    assert run.config.latent_dim == 60
    assert read_results(tmp_path / "run").evaluations[0].density.negative_log_likelihood.value < 1e4
    capsys.readouterr()
    assert fit(few, tmp_path / "run") == 1
    assert "holds a fit with --latent-dim 60, not unset" in capsys.readouterr().err


def test_two_fits_do_not_work_in_one_folder(tmp_path, capsys):
    np.save(tmp_path / "table.npy", np.random.default_rng(0).normal(size=(100, 3)))
    with alone_in(tmp_path / "run"):
        assert fit(tmp_path / "table.npy", tmp_path / "run") == 1
        assert "another bype fit is at work" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()  # the one that was refused has written nothing
    assert fit(tmp_path / "table.npy", tmp_path / "run") == 0
    assert not (tmp_path / "run" / "fit.lock").exists()
    (tmp_path / "run" / "status.json").write_text('{"state": "fini')  # a kill on a full disk
    assert fit(tmp_path / "table.npy", tmp_path / "run") == 0


def test_a_fit_that_is_refused_leaves_no_folder(tmp_path, capsys):
    (tmp_path / "table.csv").write_text("a,b\n1,x\n")
    assert fit(tmp_path / "table.csv", tmp_path / "new" / "deep" / "run") == 1
    assert not (tmp_path / "new").exists()
    (tmp_path / "taken").write_text("mine")
    assert fit(tmp_path / "table.csv", tmp_path / "taken") == 1
    assert "choose another --out" in capsys.readouterr().err


def test_a_path_that_is_no_utf8_is_shown_and_resumed(tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    np.save(folder / "table.npy", np.random.default_rng(0).normal(size=(60, 3)))
    assert fit(folder / "table.npy", tmp_path / "run") == 0
    assert fit(folder / "table.npy", tmp_path / "run") == 0  # the request is read again
    assert fit(folder / "table.npy", folder / "run") == 0  # the run finds its store, though it cannot keep its path
    assert main(["score", str(folder / "run"), "--out", str(tmp_path / "scores.csv")]) == 0


def test_arrays_of_large_images_are_taken_as_they_are(tmp_path, capsys):
    np.save(tmp_path / "large.npy", np.random.default_rng(0).integers(0, 256, (30, 70, 66), dtype=np.uint8))
    assert fit(tmp_path / "large.npy", tmp_path / "run") == 0
    assert "resized" not in capsys.readouterr().out
    assert TrainedRun.open(tmp_path / "run").data.shape == (1, 70, 66)


def test_names_of_strangers_give_no_commands_to_the_terminal(tmp_path, capsys):
    random = np.random.default_rng(0)
    rows = [f"{a},{b},\x1b[2J{kind}" for (a, b), kind in zip(random.normal(size=(60, 2)), "uv" * 30, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["\x1b[2Jmass,length,kind", *rows]))
    assert fit(tmp_path / "t.csv", tmp_path / "run", "--label", "kind") == 0
    assert main(["score", str(tmp_path / "run"), "--out", str(tmp_path / "scores.csv")]) == 0
    printed = capsys.readouterr()
    assert ", by " in printed.out
    assert "\x1b[2J" not in printed.out + printed.err


def test_a_run_that_something_else_made_is_not_shown_as_a_fit_of_these_data(digits, tmp_path, capsys):
    ByPEVAE(n_pseudopoints=6, max_epochs=1, run_dir=tmp_path / "run").fit(np.random.default_rng(0).normal(size=(60, 3)))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for data in (digits, tmp_path / "nothing"):
        assert fit(data, tmp_path / "run") == 1
        assert "that bype fit did not make" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_target_of_a_regression_gets_a_note(tmp_path, capsys):
    rows = np.random.default_rng(0).normal(size=(80, 3))
    (tmp_path / "t.csv").write_text("a,b,y\n" + "\n".join(",".join(f"{v:.7f}" for v in row) for row in rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(tmp_path / "t.csv", tmp_path / "run", "--label", "y") == 0
    assert "column 'y' has 80 different values in 80 rows, so it seems to hold no classes" in capsys.readouterr().err


def test_folders_called_by_numbers_are_classes_in_their_order(digits, tmp_path):
    for number, path in enumerate(sorted(digits.iterdir())[:30]):
        folder = tmp_path / "photos" / ("1", "2", "10")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    assert open_source(tmp_path / "photos", SourceOptions()).classes == ("1", "2", "10")


def test_more_latents_than_columns_can_be_mended(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{k},{k * k % 13}\n" for k in range(40)))
    assert fit(tmp_path / "t.csv", tmp_path / "run", "--latent-dim", "3") == 1
    assert "an example has 2 numbers; choose a latent_dim of at most so many" in capsys.readouterr().err
    assert fit(tmp_path / "t.csv", tmp_path / "run", "--latent-dim", "2") == 0
