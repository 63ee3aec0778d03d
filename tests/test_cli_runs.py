"""The commands that use a trained run, as a user meets them."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bype import coreset
from bype.cli import main
from bype.cli.output import printing, result
from bype.data.examples import StoreSource, spread_rows
from bype.data.store import Store
from bype.evaluation import augmentation
from bype.evaluation.generation import generate_like, interpolate, reconstruct, sample
from bype.plates import to_bytes
from bype.report.export import export_points
from bype.run.opened import TrainedRun
from small_runs import striped_images

SCALE = 96 // 12


def tiles(path: Path) -> np.ndarray:
    """The images of a plate, (lines, columns, 12, 12)."""
    sheet = np.asarray(Image.open(path))[::SCALE, ::SCALE]
    lines, columns = (sheet.shape[0] + 2) // 14, (sheet.shape[1] + 2) // 14
    return np.stack([[sheet[a * 14 :, b * 14 :][:12, :12] for b in range(columns)] for a in range(lines)])


def test_evaluate_prints_and_writes_what_it_found(bype_run, capsys):
    words = ["evaluate", str(bype_run), "--samples", "50", "--no-map"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for text in ("negative log-likelihood", "effective sample size", "prior gap", "active units", "kNN accuracy"):
        assert text in printed
    found = json.loads((bype_run / "evaluation.json").read_text())["evaluations"][0]
    assert found["density"]["num_samples"] == 50
    assert f"{found['density']['negative_log_likelihood']['value']:.3f}" in printed
    assert main([*words, "--split", "validation", "--samples", "0"]) == 0
    assert len(json.loads((bype_run / "evaluation.json").read_text())["evaluations"]) == 2


def test_evaluate_tells_what_it_replaces_and_what_it_keeps(bype_run, capsys):
    words = ["evaluate", str(bype_run), "--no-map"]
    for more, note in (
        (["--samples", "30"], ""),
        (["--samples", "0"], ""),
        (
            ["--samples", "1", "--images", "5"],
            "note: this replaces a measurement with 30 draws for each of 75 examples\n",
        ),
        (["--samples", "30"], ""),
    ):
        assert main([*words, *more]) == 0
        printed = capsys.readouterr()
        assert printed.err == note
        assert ("the likelihood is that of an earlier evaluation" in printed.out) == (more == ["--samples", "0"])
        assert ("take more --samples" in printed.out) or "1" not in more  # a single draw is the ELBO


def test_sample_random_from_components_and_like_an_example(bype_run, tmp_path, capsys):
    run = TrainedRun.open(bype_run)
    out = tmp_path / "out.png"
    assert main(["sample", str(bype_run), "--count", "9", "--seed", "3", "--out", str(out)]) == 0
    expected = to_bytes(sample(run.model, 9, generator=torch.Generator().manual_seed(3)).numpy())
    assert np.array_equal(tiles(out).reshape(9, 12, 12), expected[:, 0])

    assert main(["sample", str(bype_run), "--force", "--component", "4", "0", "--count", "7", "--out", str(out)]) == 0
    generator = torch.Generator().manual_seed(0)
    expected = [to_bytes(sample(run.model, 7, component=k, generator=generator).numpy())[:, 0] for k in (4, 0)]
    assert np.array_equal(tiles(out), np.stack(expected))

    assert main(["sample", str(bype_run), "--force", "--heaviest", "3", "--count", "2", "--out", str(out)]) == 0
    by_weight = run.model.prior.pseudocoreset.weights.argsort(descending=True, stable=True)[:3].tolist()
    generator = torch.Generator().manual_seed(0)
    expected = [to_bytes(sample(run.model, 2, component=k, generator=generator).numpy())[:, 0] for k in by_weight]
    assert np.array_equal(tiles(out), np.stack(expected))

    test = run.store().split("test")
    assert main(["sample", str(bype_run), "--force", "--like", "5", "--count", "4", "--out", str(out)]) == 0
    assert np.array_equal(tiles(out)[0, 0], test.read(np.array([5]))[0, 0])
    copies = StoreSource(test).read(np.array([5] * 4))
    like = generate_like(run.model, copies, "prior", generator=torch.Generator().manual_seed(0))
    assert np.array_equal(tiles(out)[0, 1:], to_bytes(like.numpy())[:, 0])
    Image.fromarray(test.read(np.array([5]))[0, 0]).save(tmp_path / "mine.png")
    mine = str(tmp_path / "mine.png")
    assert main(["sample", str(bype_run), "--like", mine, "--count", "4", "--out", str(out), "--force"]) == 0
    assert np.array_equal(tiles(out)[0, 0], test.read(np.array([5]))[0, 0])
    capsys.readouterr()
    assert main(["sample", str(bype_run), "--like", "5", "6", "--out", str(out), "--force"]) == 0
    assert tiles(out).shape[:2] == (2, 10)
    assert f"18 examples in {out}, after the given ones" in capsys.readouterr().out
    assert main(["sample", str(bype_run), "--count", "5", "--out", str(tmp_path / "numbers.npy")]) == 0
    assert np.load(tmp_path / "numbers.npy").shape == (5, 1, 12, 12)
    capsys.readouterr()


def test_reconstruct_and_interpolate(bype_run, tmp_path):
    run = TrainedRun.open(bype_run)
    test = StoreSource(run.store().split("test"))
    x = test.read(spread_rows(len(test), 20))
    out = tmp_path / "out.png"
    assert main(["reconstruct", str(bype_run), "--out", str(out)]) == 0
    shown, made = tiles(out), to_bytes(reconstruct(run.model, x).numpy())[:, 0]
    assert np.array_equal(shown[0], to_bytes(x.numpy())[:10, 0])
    assert np.array_equal(shown[1], made[:10])
    assert np.array_equal(shown[3], made[10:])
    assert (
        main(["interpolate", str(bype_run), "--force", "--between", "3", "7", "--steps", "5", "--out", str(out)]) == 0
    )
    start, end = test.read(np.array([3, 7]))
    assert np.array_equal(tiles(out)[0], to_bytes(interpolate(run.model, start, end, 5).numpy())[:, 0])
    assert main(["interpolate", str(bype_run), "--force", "--out", str(out)]) == 0
    assert tiles(out).shape[:2] == (8, 10)


def test_coreset_is_exported_as_archive_store_and_pictures(bype_run, tmp_path, capsys):
    out = tmp_path / "coreset"
    assert main(["coreset", str(bype_run), "--out", str(out)]) == 0
    assert "20 pseudo-points that stand for 465 examples" in capsys.readouterr().out
    archive = np.load(out / "coreset.npz")
    assert np.all(np.diff(archive["weights"]) <= 0)
    assert archive["label_mix"].shape == (20, 3)
    store = Store(out / "store")
    store.verify()
    rows = store.split("train").read(np.arange(20))
    assert np.array_equal(rows, to_bytes(archive["points"]))
    assert np.array_equal(store.split("train").labels(np.arange(20)), archive["label_mix"].argmax(1))
    sheet = np.asarray(Image.open(out / "points.png"))
    assert np.array_equal(sheet[:12, 14:26], rows[1, 0])
    assert (out / "weights.svg").read_text().startswith("<svg xmlns=")
    assert main(["coreset", str(bype_run), "--out", str(out)]) == 1
    assert "choose another path" in capsys.readouterr().err


def test_noise_and_numbers_of_draws_are_taken(bype_run, tmp_path, capsys):
    assert main(["sample", str(bype_run), "--noise", "--count", "5", "--out", str(tmp_path / "x.npy")]) == 0
    model, drawn = TrainedRun.open(bype_run).model, torch.Generator().manual_seed(0)
    expected = sample(model, 5, with_noise=True, generator=drawn).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-6)
    assert main(["embed", str(bype_run), "--samples", "3", "--out", str(tmp_path / "e")]) == 0
    assert np.isfinite(np.load(tmp_path / "e" / "part-000000.npz")["log_likelihoods"]).all()
    found = []
    for more in ([], ["--seed", "1"], ["--rows", "7"], ["--precision", "bfloat16"]):
        words = ["evaluate", str(bype_run), "--samples", "4", "--images", "8", "--no-map", *more]
        assert main(words) == 0
        found.append(json.loads((bype_run / "evaluation.json").read_text())["evaluations"][0]["density"])
    first, other_seed, few_rows, coarse = (each["negative_log_likelihood"]["value"] for each in found)
    assert other_seed != first
    assert few_rows == pytest.approx(first, abs=0.5)
    assert coarse == pytest.approx(first, abs=1)
    assert [each["precision_difference"] is None for each in found] == [True, True, True, False]
    capsys.readouterr()


def test_classifiers_that_were_trained_are_not_trained_again(bype_run, monkeypatch, capsys):
    asked = []

    def trained(run, store, way, share, *, epochs, seed, report):
        asked.append((share, seed))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return 10 * share + seed

    monkeypatch.setattr(augmentation, "classifier_error", trained)
    words = ["augment", str(bype_run), "--way", "prior", "--epochs", "2", "--seeds", "2"]
    assert main(words) == 130
    assert main(words) == 0
    assert asked == [(0.4, 0), (0.4, 1), (1.0, 0), (1.0, 0), (1.0, 1)]
    found = json.loads((bype_run / "evaluation.json").read_text())["augmentation"]
    assert [each["test_errors"] for each in found] == [[4.0, 5.0], [10.0, 11.0]]
    capsys.readouterr()


def test_embed_and_augment(bype_run, tmp_path, capsys):
    assert main(["embed", str(bype_run), "--split", "train", "--out", str(tmp_path / "e")]) == 0
    assert np.load(tmp_path / "e" / "part-000000.npz")["means"].shape == (465, 4)
    words = ["augment", str(bype_run), "--way", "prior", "--epochs", "2", "--seeds", "2"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "lambda 0.4: test error" in printed
    assert "2 epochs each" in printed
    found = json.loads((bype_run / "evaluation.json").read_text())["augmentation"]
    assert [(e["real_share"], len(e["test_errors"])) for e in found] == [(0.4, 2), (1.0, 2)]
    assert main(["augment", str(bype_run), "--export", str(tmp_path / "made")]) == 0
    assert len(Store(tmp_path / "made").split("train")) == 465
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "nowhere"], "bype fit"),
        (["evaluate", "RUN", "--split", "holdout"], "it has train, validation, test"),
        (["evaluate", "RUN", "--data", "nowhere"], "bype data prepare"),
        (["sample", "RUN", "--out", "x.jpg"], ".png or .npy"),
        (["sample", "RUN", "--out", "x.png", "--component", "99"], "between 0 and 19"),
        (["sample", "RUN", "--out", "x.png", "--count", "0"], "at least 1"),
        (["sample", "RUN", "--out", "x.png", "--like", "0", "--heaviest", "2"], "choose one of"),
        (["sample", "RUN", "--out", "x.png", "--like", "nothing.png"], "there is no file 'nothing.png'"),
        (["sample", "RUN", "--out", "x.png", "--like", "0", "--noise"], "--noise is for samples of the prior"),
        (["reconstruct", "RUN", "--out", "x.png", "--examples", "1000"], "rows 0 to 74"),
        (["interpolate", "RUN", "--out", "x.png", "--between", "1"], "in pairs"),
        (["augment", "RUN", "--lambdas", "2"], "between 0 and 1"),
    ],
)
def test_mistakes_give_one_line_with_the_way_out(words, message, bype_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([str(bype_run) if word == "RUN" else word for word in words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("bype: ")
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "x.png").exists()


def test_other_data_must_be_of_the_same_kind(trained_features, bype_run, capsys):
    store = json.loads((trained_features / "config.json").read_text())["data"]["store"]
    assert main(["evaluate", str(bype_run), "--data", store]) == 1
    assert "was trained on uint8 of shape (1, 12, 12)" in capsys.readouterr().err


def test_features_are_sampled_as_a_table(trained_features, tmp_path, capsys):
    assert main(["sample", str(trained_features), "--count", "6", "--out", str(tmp_path / "x.csv")]) == 0
    assert np.loadtxt(tmp_path / "x.csv", delimiter=",", skiprows=1).shape == (6, 4)
    assert main(["sample", str(trained_features), "--out", str(tmp_path / "x.png")]) == 1
    assert ".csv or .npy" in capsys.readouterr().err
    assert main(["sample", str(trained_features), "--like", "2", "--out", str(tmp_path / "y.npy")]) == 0


def test_options_that_would_be_ignored_are_refused(trained_features, tmp_path, capsys):
    start = ["sample", str(trained_features), "--out", str(tmp_path / "x.csv")]
    assert main([*start, "--split", "nonsense"]) == 1
    assert "--like" in capsys.readouterr().err
    assert main([*start, "--data", str(tmp_path)]) == 1
    assert "is no store" in capsys.readouterr().err
    assert main(["share", str(trained_features), "--to", "a/b", "--force"]) == 1
    assert "--force is for --out" in capsys.readouterr().err


def test_results_that_are_not_finite_are_null(capsys):
    with printing(["--json"]):
        result(error=float("inf"), parts=[1.0, float("nan")], place=Path("a"))
    assert json.loads(capsys.readouterr().out) == {"error": None, "parts": [1.0, None], "place": "a"}


def test_columns_called_like_ours_keep_their_names(trained_features, tmp_path):
    names = ("weight", "label", "x", "y")
    run = TrainedRun.open(trained_features)
    other = dataclasses.replace(run, data=dataclasses.replace(run.data, names=names))
    export_points(coreset(run), other, run.store(), tmp_path / "out")
    assert (tmp_path / "out" / "points.csv").read_text().splitlines()[0] == (
        "weight of the point,label of the point,component,weight,label,x,y"
    )


def test_points_of_a_table_are_written_as_one(trained_features, tmp_path):
    assert main(["coreset", str(trained_features), "--out", str(tmp_path / "coreset")]) == 0
    with (tmp_path / "coreset" / "points.csv").open() as file:
        head, *rows = csv.reader(file)
    archive = np.load(tmp_path / "coreset" / "coreset.npz")
    features = head[head.index("component") + 1 :]
    assert head[0] == "weight"
    assert len(features) == archive["points"].shape[1]
    np.testing.assert_allclose([float(row[0]) for row in rows], archive["weights"], rtol=1e-4)
    assert [int(row[head.index("component")]) for row in rows] == archive["component"].tolist()
    values = np.array([[float(cell) for cell in row[-len(features) :]] for row in rows])
    np.testing.assert_array_equal(values.astype(np.float32), archive["points"])  # no digit is lost


def test_scoring_other_data_says_how_many_were_left_out(bype_run, labelled_store, tmp_path, capsys):
    words = ["score", str(bype_run), "--samples", "2", "--out", str(tmp_path / "x.csv")]
    assert main([*words, "--data", str(labelled_store)]) == 0
    printed = capsys.readouterr().out
    total = sum(split.num_rows for split in Store(labelled_store).manifest.splits.values())
    assert f"75 of {total} examples (split test)" in printed
    assert "to score the others: --split train or --split validation" in printed


def test_a_run_is_used_without_its_data_where_none_are_needed(bype_run, trained_exemplar, tmp_path, capsys):
    for run in (bype_run, Path(shutil.copytree(trained_exemplar, tmp_path / "exemplar"))):
        config = json.loads((run / "config.json").read_text())
        config["data"]["store"] = "/nowhere/at/all"
        (run / "config.json").write_text(json.dumps(config))
    assert main(["sample", str(bype_run), "--out", str(tmp_path / "x.png")]) == 0
    assert main(["sample", str(tmp_path / "exemplar"), "--out", str(tmp_path / "y.png")]) == 1
    assert "say where they are with --data" in capsys.readouterr().err
    assert main(["evaluate", str(bype_run)]) == 1


def test_fit_goes_from_a_folder_of_photographs_to_a_page(tmp_path, capsys):
    folder = tmp_path / "photos"
    folder.mkdir()
    images, _ = striped_images(60)
    for number, pixels in enumerate(images):
        Image.fromarray(pixels).resize((80, 70)).convert("RGB").save(folder / f"{number:03d}.jpg")
    (folder / "broken.jpg").write_bytes(b"no picture")
    Image.fromarray(images[0]).resize((90, 60)).save(folder / "grey.png")
    Image.new("RGBA", (75, 75), (200, 30, 30, 120)).save(folder / "clear.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(images[1]).resize((60, 90)).convert("RGB").save(folder / "turned.jpg", exif=exif)
    words = ["fit", str(folder), "--out", str(tmp_path / "run"), "--minutes", "0.02", "--size", "16"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "skipped broken.jpg: not an image" in printed.err
    assert "1 files were skipped" in printed.out
    assert str(tmp_path / "run" / "report.html") in printed.out
    assert "bype sample" in printed.out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Pseudocoreset" in page
    assert Store(tmp_path / "run" / "store").manifest.shape == (3, 16, 16)
    assert main(words) == 0  # a second time: nothing is lost, the page is made again
    assert f"{tmp_path / 'run'} is trained already" in capsys.readouterr().out
    assert main(["fit", str(folder), "--out", str(folder)]) == 1
    assert "not empty" in capsys.readouterr().err


def test_fit_takes_a_table(tmp_path, capsys):
    rows = np.random.default_rng(0).normal(size=(80, 3))
    (tmp_path / "t.csv").write_text("a,b,c\n" + "\n".join(",".join(f"{v:.4f}" for v in row) for row in rows))
    assert main(["fit", str(tmp_path / "t.csv"), "--out", str(tmp_path / "run"), "--minutes", "0.01"]) == 0
    printed = capsys.readouterr().out
    assert "more.csv" in printed
    assert "warning" not in printed
    assert "Features" in (tmp_path / "run" / "report.html").read_text()
    # a run that is moved takes its store along, and resumes
    (tmp_path / "run").rename(tmp_path / "moved")
    assert main(["reconstruct", str(tmp_path / "moved"), "--out", str(tmp_path / "made.csv")]) == 0
    assert main(["fit", str(tmp_path / "t.csv"), "--out", str(tmp_path / "moved"), "--minutes", "0.01"]) == 0
    assert "left out" not in (tmp_path / "moved" / "report.html").read_text()
    # so does a run whose store is elsewhere and was moved
    (tmp_path / "moved" / "store").rename(tmp_path / "store")
    assert main(["fit", str(tmp_path / "store"), "--out", str(tmp_path / "moved"), "--minutes", "0.01"]) == 0
    assert main(["evaluate", str(tmp_path / "moved")]) == 0  # it knows the new place
    (tmp_path / "store").rename(tmp_path / "gone")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "moved")]) == 1
    assert "which does not exist; say where they are with --data" in capsys.readouterr().err
    (tmp_path / "store").mkdir()  # something else is there now
    page = str(tmp_path / "page.html")
    assert main(["report", str(tmp_path / "moved"), "--out", page, "--quiet"]) == 0
    assert "The data are not available, so the sections that need them are left out" in capsys.readouterr().err
    rows_alone = [str(tmp_path / "t.csv"), "--out", str(tmp_path / "scores.csv")]
    assert main(["score", str(tmp_path / "moved"), "--data", *rows_alone]) == 0
    assert main(["fit", str(tmp_path / "t.csv"), "--out", str(tmp_path / "moved"), "--minutes", "0.01"]) == 1
    assert "bring the store back" in capsys.readouterr().err
    rows[:, 1] *= 1000
    np.save(tmp_path / "t.npy", rows)
    assert main(["fit", str(tmp_path / "t.npy"), "--out", str(tmp_path / "wide"), "--minutes", "0.01"]) == 0
    assert "factor analysis with" in capsys.readouterr().out
