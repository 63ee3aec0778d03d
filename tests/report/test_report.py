"""The page: whole whatever is missing, safe whatever the names, and its pictures show what they say."""

import base64
import dataclasses
import html
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bype
from bype.cli import main
from bype.data.examples import StoreSource, spread_rows
from bype.data.prepare import prepare
from bype.evaluation.density import DensityOptions
from bype.evaluation.evaluate import evaluate
from bype.evaluation.generation import interpolate, reconstruct
from bype.evaluation.outliers import ScoreOptions, score_examples
from bype.evaluation.records import read_results
from bype.plates import grid, plate, to_bytes
from bype.pseudocoreset.settings import TrackingSettings
from bype.report import sections
from bype.report.charts import Series, histogram, line_chart, scatter, ticks
from bype.report.contents import gather, measured
from bype.report.markup import element
from bype.report.numbers import number_lines
from bype.report.page import render
from bype.report.sections import training
from bype.report.style import OTHERS
from bype.run.opened import TrainedRun
from small_runs import small_run

VOID = {"meta", "img"}


class Checker(HTMLParser):
    """Follows the nesting of elements and collects what matters."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def checked(page: str) -> Checker:
    """Parse a page that must be well nested, ask nothing of the world and run nothing."""
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    for tag, attributes in checker.tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "form", "base"}
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:image/png").startswith("data:image/png")
    policy = next(a["content"] for t, a in checker.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert not re.search(r"https?://|url\(|@import", page)
    return checker


def headings(checker: Checker) -> list[str]:
    wanted = {"In numbers", "Training", "Samples", "Samples by component", "Pseudocoreset", "Weights of the points",
              "Classes", "Reconstructions", "Interpolations", "Features", "Least likely examples", "Map",
              "Nearest neighbours", "Augmentation"}  # fmt: skip
    return [text for text in checker.texts if text in wanted]


def pictures(page: str) -> dict[str, np.ndarray]:
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', page)
    return {alt: np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("L")) for data, alt in found}


def tile(sheet: np.ndarray, line: int, column: int, size: int = 12) -> np.ndarray:
    return sheet[line * (size + 2) :, column * (size + 2) :][:size, :size]


@pytest.fixture
def evaluated(bype_run: Path) -> Path:
    evaluate(TrainedRun.open(bype_run), "test", density=DensityOptions(20))
    return bype_run


def test_the_page_of_one_run_has_every_part(evaluated):
    page = render([gather(evaluated, "first")])
    checker = checked(page)
    assert headings(checker) == [
        "Samples", "Samples by component", "Pseudocoreset", "Weights of the points", "Classes", "Reconstructions",
        "Interpolations", "Map", "Least likely examples", "Nearest neighbours", "Training", "In numbers",
    ]  # fmt: skip
    text = " ".join(checker.texts)
    assert "pseudocoreset of 20 points, moved by psvi" in text
    assert "p(x | y)" not in text
    assert "the paper's scale, not normalised" in text
    assert "75 examples, 20 draws each" in text


def test_pictures_show_the_right_images_in_the_right_order(evaluated):
    run = TrainedRun.open(evaluated)
    contents = gather(evaluated, "first")
    shown = pictures(render([contents]))
    test = run.store().split("test")
    rows = spread_rows(75, 30)
    x = StoreSource(test).read(rows)
    made = to_bytes(reconstruct(run.model, x).numpy())
    sheet = shown["Reconstructions, first"]
    for k in (0, 9, 10, 29):
        line, column = divmod(k, 10)
        assert np.array_equal(tile(sheet, 2 * line, column), test.read(rows[[k]])[0, 0])
        assert np.array_equal(tile(sheet, 2 * line + 1, column), made[k, 0])
    ways = shown["Interpolations, first"]
    second = to_bytes(interpolate(run.model, x[2], x[3], 10).numpy())
    for column in (0, 4, 9):
        assert np.array_equal(tile(ways, 1, column), second[column, 0])
    points = contents.points
    coreset = shown["Pseudo-points, first"]
    for k in (0, 9, 10, 19):
        assert np.array_equal(tile(coreset, *divmod(k, 10)), to_bytes(points.points[k])[0])
    nearest, train = shown["Nearest examples, first"], run.store().split("train")
    for line in (0, 5):
        assert np.array_equal(tile(nearest, line, 0), to_bytes(points.points[line])[0])
        for column in (1, 9):
            row = points.neighbours[line, column - 1]
            assert np.array_equal(tile(nearest, line, column), train.read(np.array([row]))[0, 0])
    # Each line of a plate comes from one component, so it varies less than samples do.
    lines = np.stack([[tile(shown["Samples by component, first"], a, b) for b in range(10)] for a in range(6)])
    assert lines.std(1).mean() < 0.9 * lines.reshape(60, 12, 12).std(0).mean()


def test_the_least_likely_examples_are_shown_with_their_scores(evaluated):
    contents = gather(evaluated, "first")
    page = render([contents])
    run = TrainedRun.open(evaluated)
    found = score_examples(run, "test", options=ScoreOptions(20, 500))
    worst = found.least_likely(8)
    assert [example.name for example in contents.unusual] == [found.name_of(place) for place in worst]
    text = " ".join(checked(page).texts)
    assert f"{found.log_likelihood[worst[0]]:,.1f}".replace("-", "−") in text
    assert "Of 75 test examples." in text
    picture = pictures(page)[f"{found.name_of(worst[3])}, first"]
    assert np.array_equal(picture, run.store().split("test").read(found.rows[worst[3:4]])[0, 0])


def test_the_last_number_under_a_chart_is_not_cut_off():
    line = Series("a", [100, 500, 2000], [3.0, 2.0, 1.0])
    chart = line_chart([line], title="t", x_label="x", y_label="y", x_ticks=[100, 500, 2000])
    (place,) = re.findall(r'<text x="([0-9.]+)"[^>]*>2,000</text>', chart.content)
    half = len("2,000") * 7 / 2  # a digit of 12 pixels is 7 wide
    assert float(place) + half <= 420


def test_the_points_of_a_table_are_shown_by_weight(trained_features):
    run = TrainedRun.open(trained_features)
    points = bype.coreset(run)
    page = render([gather(trained_features, "first")])
    lines = [re.findall(r"<t[hd][^>]*>([^<]*)", line) for line in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    shown = {line[0]: line[1:] for line in lines if len(line) == 1 + min(8, len(points))}
    assert shown["weight"] == [f"{weight:,.1f}" for weight in points.weights[:8]]
    assert shown["class"] == points.labels[:8].tolist()
    for name, values in zip(points.names[:20], points.points[:8].T, strict=False):
        numbers = [float(text.replace("−", "-").replace(",", "")) for text in shown[html.escape(name)]]
        assert numbers == pytest.approx(values.tolist(), rel=5e-3)


def test_names_from_data_are_escaped(trained_features, tmp_path):
    run = Path(shutil.copytree(trained_features, tmp_path / "<script>alert(1)"))
    config = json.loads((run / "config.json").read_text())
    config["data"]["classes"] = ["<img src=x onerror=alert(1)>", '"quoted" & low']
    config["data"]["source"] = "</style><script>"
    (run / "config.json").write_text(json.dumps(config))
    evaluate(TrainedRun.open(run), "test", density=DensityOptions(5))
    page = render([gather(run, run.name)])
    checker = checked(page)
    assert "<img src=x" not in page
    assert "<script>" not in page
    assert "<b>depth</b>" in checker.texts  # as text, not as an element
    assert "columns that made it unlikely" in checker.texts
    assert any("<script>alert(1)" in text for text in checker.texts)
    assert "Features" in headings(checker)
    assert "Samples" not in headings(checker)
    assert pictures(page) == {}


def test_without_labels_pseudocoreset_or_evaluation_the_page_is_whole(trained_gaussian, tmp_path):
    run = Path(shutil.copytree(trained_gaussian, tmp_path / "plain"))
    page = render([gather(run, "plain")])
    assert headings(checked(page)) == [
        "Samples", "Reconstructions", "Interpolations", "Least likely examples", "Training", "In numbers",
    ]  # fmt: skip
    assert "There is no evaluation yet" in page
    evaluate(TrainedRun.open(run), "test", density=DensityOptions(5))
    found = headings(checked(render([gather(run, "plain")])))
    assert "Map" in found
    assert "Nearest neighbours" not in found


def test_without_its_data_the_page_shows_what_the_model_alone_can(evaluated):
    config = json.loads((evaluated / "config.json").read_text())
    store = config["data"]["store"]
    config["data"]["store"] = "/nowhere/at/all"
    (evaluated / "config.json").write_text(json.dumps(config))
    page = render([gather(evaluated, "lost")])
    assert headings(checked(page)) == [
        "Samples", "Samples by component", "Map", "Nearest neighbours", "Training", "In numbers",
    ]  # fmt: skip
    assert "The data are not available" in page
    moved = render([gather(evaluated, "found", Path(store))])
    assert "Reconstructions" in headings(checked(moved))


def test_the_runs_own_data_are_shown_first_and_other_data_without_its_classes(evaluated, tmp_path):
    path = evaluated / "evaluation.json"
    fields = json.loads(path.read_text())
    (own,) = fields["evaluations"]
    other = {**own, "fingerprint": "0" * 64, "source": "elsewhere"}
    fields["evaluations"] = [other, {**own, "split": "validation"}]
    path.write_text(json.dumps(fields))
    assert gather(evaluated, "a").evaluation.split == "validation"
    names = TrainedRun.open(evaluated).data.classes
    fields["evaluations"] = [own]
    path.write_text(json.dumps(fields))
    with_names = sections.maps([gather(evaluated, "a")])
    fields["evaluations"] = [other]
    path.write_text(json.dumps(fields))
    without = sections.maps([gather(evaluated, "a")])
    assert [name in with_names for name in names] == [True] * 3
    assert [f">{name}<" in without for name in names] == [name.isdecimal() for name in names]


def test_several_runs_stand_side_by_side(evaluated, trained_gaussian, trained_exemplar):
    runs = [gather(evaluated, "a"), gather(trained_gaussian, "b"), gather(trained_exemplar, "c")]
    checker = checked(render(runs))
    assert "3 runs side by side" in checker.texts
    assert {"Samples, a", "Samples, b", "Samples, c"} <= set(pictures(render(runs)))
    assert [text for text in checker.texts if text in "abc"].count("b") >= 2


def test_runs_of_different_likelihoods_have_charts_of_their_own(evaluated):
    """And each line has a dot at the model that is kept."""
    run = gather(evaluated, "a")
    other = dataclasses.replace(run, name="b", config=dataclasses.replace(run.config, likelihood="learned-gaussian"))
    one, two = training([run, run]), training([run, other])
    assert two.count("<svg ") == 2 * one.count("<svg ") > 0
    assert [page.count("<circle ") for page in (one, two)] == [2, 2]
    assert "have different scales" in two
    assert "have different scales" not in one
    elsewhere = dataclasses.replace(run, name="b", data=dataclasses.replace(run.data, fingerprint="of other data"))
    assert training([run, elsewhere]).count("<svg ") == two.count("<svg ")


def test_an_evaluation_of_an_older_model_is_not_shown(evaluated):
    path = evaluated / "evaluation.json"
    fields = json.loads(path.read_text())
    fields["evaluations"][0]["step"] -= 1
    path.write_text(json.dumps(fields))
    assert "There is no evaluation of this model yet" in render([gather(evaluated, "a")])


def test_plates_lay_out_what_they_are_given():
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((5, 1, 3, 4), dtype=np.uint8)
    sheet = np.asarray(grid(images, 3))
    assert sheet.shape == (2 * 5 - 2, 3 * 6 - 2)
    for k in range(5):
        line, column = divmod(k, 3)
        assert (sheet[line * 5 : line * 5 + 3, column * 6 : column * 6 + 4] == k).all()
    assert (sheet[3:5] == 255).all()
    colour = np.zeros((1, 3, 2, 2), dtype=np.uint8)
    colour[0, 1] = 9
    assert np.asarray(plate([colour])).tolist() == [[[0, 9, 0]] * 2] * 2
    clear = np.asarray(grid(images, 3, is_clear=True))
    assert np.array_equal(clear[..., 0], sheet)
    assert (clear[..., 1] == 0).sum() == (sheet == 255).sum()  # the ground, and it alone
    assert (clear[..., 1][sheet < 255] == 255).all()
    assert np.asarray(plate([colour], is_clear=True)).tolist() == [[[0, 9, 0, 255]] * 2] * 2


def test_charts_put_values_where_they_belong():
    chart = line_chart(
        [Series("a", [0, 10], [1.0, 3.0])], title="t", x_label="x", y_label="y", marks=[5], x_ticks=[0, 5, 10]
    )
    ((x0, y0), (x1, y1)) = [
        tuple(map(float, point.split(","))) for point in re.search(r'points="([^"]+)"', chart.content)[1].split()
    ]
    assert (x0, x1) == (68, 402)
    assert y0 > y1  # larger is higher
    mark = float(re.search(r'd="M([0-9.]+) ', chart.content)[1])
    assert mark == pytest.approx((x0 + x1) / 2)
    assert ticks(0.93, 1.02) == [0.94, 0.96, 0.98, 1, 1.02]
    assert ticks(-3, 3, 3) == [-2, 0, 2]
    bars = re.findall(r"<rect", histogram([1.0, 1.0, 5.0], title="t", x_label="x", y_label="y").content)
    assert len(bars) == 2
    assert "<rect" in histogram([2.0] * 5, title="t", x_label="x", y_label="y").content
    cloud = scatter([0.0, 1.0, 2.0], [0.0, 1.0, 0.0], [0, 1, 1], title="t").content
    assert re.findall(r'class="cloud few (c\d)"', cloud) == ["c0", "c1"]
    assert [path.count("M") for path in re.findall(r'd="([^"]+)"', cloud)] == [1, 2]


def test_a_steep_start_does_not_hide_the_rest():
    values = [1000.0, 400.0, *np.linspace(30, 20, 30)]
    chart = line_chart([Series("a", list(range(32)), values)], title="t", x_label="x", y_label="y")
    points = re.search(r'points="([^"]+)"', chart.content)[1].split()
    last, tenth = (float(points[k].split(",")[1]) for k in (31, 10))
    assert last - tenth > 80  # ten nats fill a good part of the height


def test_a_run_with_another_loss_stays_in_the_chart():
    good, bad = np.linspace(24, 20, 40), np.linspace(600, 580, 5)
    lines = [Series("good", list(range(40)), good), Series("bad", [0, 10, 20, 30, 39], bad, colour=1)]
    chart = line_chart(lines, title="t", x_label="x", y_label="y")
    heights = [
        float(point.split(",")[1]) for line in re.findall(r'points="([^"]+)"', chart.content) for point in line.split()
    ]
    assert min(heights) > 0  # all within the drawing


def test_the_steep_start_of_a_short_run_does_not_hide_another():
    values = [[600.0, *np.linspace(24, 20, 39)], [600.0, *np.linspace(25, 21, 7)]]
    lines = [Series("long", list(range(40)), values[0]), Series("short", list(range(8)), values[1], colour=1)]
    chart = line_chart(lines, title="t", x_label="x", y_label="y")
    points = re.findall(r'points="([^"]+)"', chart.content)[0].split()
    last, second = (float(points[k].split(",")[1]) for k in (39, 1))
    assert last - second > 80


def test_classes_without_a_colour_of_their_own_lie_behind_the_others():
    cloud = scatter([0.0, 1.0, 2.0], [0.0, 1.0, 0.0], [0, OTHERS, 9], title="t", behind=OTHERS).content
    assert re.findall(r'class="cloud few (c\d)"', cloud) == [f"c{OTHERS}", "c0", "c9"]


def test_classes_of_a_map_have_colours_of_their_own_and_the_rest_are_grey():
    assert sections._colours([7, 3, 3]) == {3: 0, 7: 1}
    assert sections._colours(range(10)) == {k: k for k in range(10)}
    many = sections._colours([*range(30), *range(20, 29)])  # classes 20 to 28 are the most frequent
    assert list(many) == [*range(20, 29)]
    assert len({*many.values()}) == 9
    assert OTHERS not in many.values()


def test_elements_escape_texts_and_attributes():
    assert element("a", "<&>", title='"x"') == '<a title="&quot;x&quot;">&lt;&amp;&gt;</a>'


def test_the_command_writes_a_page(evaluated, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(evaluated), "--out", str(out)]) == 0
    checked(out.read_text())
    assert "open it in a browser" in capsys.readouterr().out
    assert main(["report", str(evaluated), "--out", str(tmp_path / "page.pdf")]) == 1
    assert "ends in .html" in capsys.readouterr().err
    assert main(["report", "--out", str(out)]) == 1
    assert main(["report", str(evaluated), "--data", str(tmp_path), "--out", str(tmp_path / "b.html")]) == 1
    assert "is no store" in capsys.readouterr().err
    assert not (tmp_path / "b.html").exists()


def test_samples_on_the_page_do_not_change_from_call_to_call(evaluated):
    first, second = (pictures(render([gather(evaluated, "a")])) for _ in range(2))
    assert np.array_equal(first["Samples, a"], second["Samples, a"])
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("labelled", [True, False])
def test_the_page_says_when_it_does_not_show_all_classes(labelled, tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 1, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=images, y=np.arange(300) % 25)
    prepare(tmp_path / "x.npz", tmp_path / "store")
    small_run(tmp_path / "run", tmp_path / "store", labelled=labelled, components=25, rule=TrackingSettings())
    text = " ".join(checked(render([gather(tmp_path / "run", "run")])).texts)
    assert f"The {'first' if labelled else 'heaviest'} 20 of 25 classes are shown." in text


@pytest.mark.parametrize("places", [[0.0, 5e-324], [1e9, 1e9 + 1e-7], [3.0]])
def test_a_chart_of_a_narrow_range_has_different_numbers_below(places):
    chart = line_chart([Series("a", places, [1.0] * len(places))], title="t", x_label="x", y_label="y")
    assert "NaN" not in str(chart.on_page())


def test_the_table_shows_each_number_in_its_own_line(evaluated):
    run = TrainedRun.open(evaluated)
    (found,) = read_results(evaluated).evaluations
    lines = {name: values[0].replace("\u2212", "-") for name, values in number_lines([measured(run, "a run")])}
    density = found.density
    for name, estimate in (
        ("Negative log-likelihood", density.negative_log_likelihood),
        ("−ELBO", density.negative_elbo),
        ("−Reconstruction", density.negative_reconstruction),
        ("KL of z", density.kl["z"]),
    ):
        assert lines[name].startswith(f"{estimate.value:.3f}\u00a0±\u00a0{estimate.error:.3f}"), name
    assert lines["Active units"] == f"{found.active_units.num_active} of {found.active_units.num_units}"
    assert lines["Linear probe"] == f"{100 * found.representation.probe_accuracy:.2f} %"


def test_the_table_of_features_has_the_numbers_of_the_data_and_of_samples(trained_features):
    run = TrainedRun.open(trained_features)
    features = gather(trained_features, "a run").features
    rows = run.store().split("train").read(np.arange(len(run.store().split("train"))))
    np.testing.assert_allclose(features.data_mean, rows.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(features.data_spread, rows.std(0), rtol=1e-4)
    assert not np.allclose(features.sample_mean, features.data_mean, rtol=1e-3)
