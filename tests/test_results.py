"""Published tables are those that the records give."""

import json
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest

import ablation
import claims
import coreset_classifier
import labels
import outliers
import own_data
import peers
import points_start
from bype.evaluation.records import read_results
from bype.paper.cells import FULL, PROTOCOLS, REDUCED
from bype.paper.hours import Costs
from bype.paper.items import ITEMS
from bype.paper.page import draw_all, printed
from bype.paper.records import Records

ROOT = Path(__file__).parent.parent


def test_the_pages_of_the_papers_items_are_printed_from_the_records():
    records, costs = Records.read(ROOT / "results" / "paper"), Costs.read(ROOT / "results" / "paper")
    folder, known = ROOT / "docs" / "results" / "pictures" / "paper", set()
    for protocol in PROTOCOLS:
        drawn = draw_all(records, protocol)
        page = (ROOT / "docs" / "results" / protocol.mark("paper")).with_suffix(".md").read_text()
        assert printed(records, protocol, costs, drawn) in page, "print it again: bype reproduce page"
        known |= set(drawn)
        for name, content in drawn.items():
            if name.endswith(".svg"):  # a PNG may be packed differently by another version of Pillow
                assert (folder / name).read_bytes() == content, f"draw {name} again: bype reproduce page"
    assert {path.name for path in folder.iterdir()} == known


def test_bfloat16_differs_as_little_as_the_pages_say():
    records = Records.read(ROOT / "results" / "paper").all
    largest = max(abs(each.density.precision_difference or 0.0) for each in records if each.density is not None)
    assert 0.0016 < largest < 0.0017
    for page in ("results/paper.md", "guide/reproduce.md"):
        assert "0.0017" in (ROOT / "docs" / page).read_text()


def test_the_errors_of_classifiers_without_a_model_are_those_of_the_records():
    records = Records.read(ROOT / "results" / "paper")
    found = {line.cell.prior: records.values(line, FULL) for line in ITEMS["table3"].lines if not line.cell.has_model}
    assert set(found) == {"none", "shifts"}
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/results/paper.md", "docs/guide/evaluation.md")]
    for values in found.values():
        mean = statistics.mean(values.values())
        assert all(f"{mean:.2f}%" in text for text in texts)


def test_in_reduced_runs_no_generated_examples_are_better_than_none():
    """As the page of the reduced protocol says."""
    records = Records.read(ROOT / "results" / "paper")
    for name, data in (("table3", "mnist"), ("table6", "fashion-mnist"), ("table6", "cifar10"), ("table7", "mnist")):
        lines = [line for line in ITEMS[name].lines if line.cell.data == data]
        errors = {line: records.values(line, REDUCED)[0] for line in lines}
        (alone,) = (error for line, error in errors.items() if line.cell.prior == "none")
        assert alone < min(error for line, error in errors.items() if line.cell.has_model)


def test_records_name_no_machine_and_no_folder():
    for path in (*(ROOT / "results" / "paper").glob("*/record.json"), *(ROOT / "results" / "claims").glob("*.json")):
        text = path.read_text()
        assert not any(word in text for word in ("/data/", "/home/", "/tmp", "/work", "hostname")), path  # noqa: S108
    assert not list((ROOT / "results").rglob("*.safetensors"))


def test_the_readme_has_every_number_of_full_length():
    readme = (ROOT / "README.md").read_text()
    full = [record for record in Records.read(ROOT / "results" / "paper").all if record.protocol.startswith("full")]
    assert full
    for record in full:
        if record.density is None:  # of a classifier, which is not in the README
            continue
        value = record.density.negative_log_likelihood.value
        assert f"[{value:.3f}](results/paper/{record.folder.name}/record.json)" in readme


def readme_row(first_cell: str) -> list[str]:
    (line,) = (
        x for x in (ROOT / "README.md").read_text().splitlines() if x.startswith(f"| {first_cell}") and "](" not in x
    )
    return [cell.strip(" *").replace("−", "-").replace(",", "") for cell in line.strip("|").split("|")[1:]]


def test_the_first_table_of_the_readme_has_the_means_of_the_records():
    sets = {"5,000 clothes": "clothes-5000", "400 faces": "faces", "600 small photographs": "photographs"}
    sets |= {"breast cancer": "breast-cancer", "spam": "35_SpamBase", "shuttle": "32_shuttle"}
    for name, data in sets.items():
        records = [json.loads((ROOT / "results" / "own-data" / f"{data}-{seed}.json").read_text()) for seed in range(3)]
        digits = 1 if len(records[0]["shape"]) == 3 else 2
        ours, linear, mixture = readme_row(name)
        values = {"ours": [r["evaluation"]["density"]["negative_log_likelihood"]["value"] for r in records]}
        values |= {kind: [r["simple"][kind] for r in records] for kind in records[0]["simple"]}
        means = {kind: f"{statistics.mean(found):.{digits}f}" for kind, found in values.items()}
        assert ours == means["ours"]
        if len(records[0]["shape"]) == 3:
            assert means["PCA of the same flips and shifts"] in linear
            assert mixture == ""
            assert ("factor analysis" not in means) or means["factor analysis"] in linear
        else:
            factor = [r["evaluation"]["baseline"]["negative_log_likelihood"]["value"] for r in records]
            chosen = [r["mixture"]["nats"] for r in records]
            assert (linear, mixture) == (f"{statistics.mean(factor):.2f}", f"{statistics.mean(chosen):.2f}")


def test_the_second_table_of_the_readme_has_the_numbers_of_the_ablation():
    rules = {
        "ours (`tracking`), 5,000 points": "tracking, 5000 points",
        "points and weights by backpropagation": "joint",
        "ours (`tracking`), 500 points": "tracking",
        "Exemplar |": "Exemplar",
        "VampPrior, start at images": "VampPrior, start at images",
        "ByPE, the published rule": "psvi",
        "Gaussian |": "Gaussian",
    }
    for name, rule in rules.items():
        folders = [ROOT / "results" / "ablation" / ablation.folder_name("fashion-mnist", rule, k) for k in range(3)]
        values = [read_results(folder).evaluations[0].density.negative_log_likelihood.value for folder in folders]
        error = statistics.stdev(values) / 3**0.5
        assert readme_row(name)[0].replace("*", "") == f"{statistics.mean(values):.2f} ± {error:.2f}"


ABLATION_LABELS = {
    "elbo": "`ascent`",
    "tracking, exact": "`tracking`, exact",
    "tracking, 5000 points": "`tracking`, 5,000 points",
    "tracking, 50000 points": "`tracking`, 50,000 points (seed 0)",
    **{rule: f"`{rule}`" for rule in ("tracking", "joint", "frozen", "psvi")},
}


def ablation_rows(heading: str) -> dict[str, list[str]]:
    """Return the cells of the first table below a heading, by the label of the row."""
    page = (ROOT / "docs" / "results" / "ablation.md").read_text().replace("\u00a0", " ")
    table = page.split(f"\n{heading}\n", 1)[1].split("\n| --- ", 1)[1].split("\n\n", 1)[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    return {cells[0]: cells[1:] for cells in lines}


def test_the_tables_of_the_ablation_have_the_numbers_of_its_records():
    count = 0
    for data, seeds in ablation.SEEDS.items():
        rows = ablation_rows({"fashion-mnist": "Fashion-MNIST:", "mnist": "MNIST:"}[data])
        found = {}
        for rule in ablation.RULES:
            folders = {seed: ROOT / "results" / "ablation" / ablation.folder_name(data, rule, seed) for seed in seeds}
            runs = {seed: read_results(folder).evaluations for seed, folder in folders.items()}
            if kept := {seed: evaluations[0] for seed, evaluations in runs.items() if evaluations}:
                found[rule] = kept
        for rule, kept in found.items():
            likelihood, above, elbo, gap = [
                word.strip() for word in ablation.row(rule, kept, found["joint"]).split("|")[2:6]
            ]
            gap = re.sub(r" ± [0-9.]+", "", gap)  # the page leaves out the errors of the gap
            assert rows[ABLATION_LABELS.get(rule, rule)][:4] == [above or "0", likelihood, elbo, gap], (data, rule)
            count += 1
    assert count >= 20


def test_the_claims_on_test_images_are_printed_from_the_records():
    lines = list(claims.pages(ROOT / "results" / "claims"))
    assert "\n".join(lines) in (ROOT / "docs" / "results" / "ablation.md").read_text()
    assert len(lines) == 5 + len(claims.CLAIMED) + len(claims.CLAIMS)


def test_a_claim_is_decided_by_the_paired_test_of_three_seeds():
    """With two degrees of freedom, Student's t has the distribution function 1/2 + t / (2 sqrt(2 + t^2))."""
    better, other = {6: 21.0, 7: 21.3, 8: 21.1}, {6: 21.2, 7: 21.4, 8: 21.4}
    differences = [better[seed] - other[seed] for seed in better]
    t = statistics.mean(differences) / (statistics.stdev(differences) / 3**0.5)
    p = 0.5 + t / (2 * (2 + t * t) ** 0.5)
    shown, mean, printed, answer = claims.verdict(better, other, 0.0)
    assert (shown, mean) == ("-0.200, -0.100, -0.300", "-0.200 ± 0.058")
    assert float(printed) == pytest.approx(p, abs=1e-4)
    assert (answer, p < 0.05) == ("yes", True)
    assert claims.verdict(other, better, 0.0)[3] == claims.verdict(other, better, 0.2)[3] == "no"
    assert claims.verdict(other, better, 0.6)[3] == "yes"  # worse, but by less than the margin
    assert claims.verdict(better, {6: 21.2}, 0.0) == ["-0.200", "", "", "not yet run"]


def test_the_page_of_a_users_own_data_is_printed_from_the_records():
    printed_lines = list(own_data.pages(ROOT / "results" / "own-data"))
    page = (ROOT / "docs" / "results" / "own-data.md").read_text()
    assert "\n".join(printed_lines) in page
    assert len(printed_lines) > 8


def test_the_tables_of_more_latents_are_printed_from_the_records():
    page = (ROOT / "docs" / "results" / "own-data.md").read_text()
    results = ROOT / "results"
    for lines in (
        list(own_data.latents_page(results / "own-data-latents", results / "own-data")),
        list(labels.latents_page(results / "labels-latents", results / "labels")),
    ):
        assert "\n".join(lines) in page
        assert len(lines) >= 6


def test_the_table_of_another_library_is_printed_from_the_records():
    lines = list(peers.pages(ROOT / "results" / "own-data-peers", ROOT / "results" / "own-data"))
    page = (ROOT / "docs" / "results" / "own-data.md").read_text()
    assert "\n".join(lines) in page
    assert len(lines) == 2 + 3 * len(peers.SETS)


def test_the_page_of_outliers_is_printed_from_the_records():
    lines = list(outliers.pages(ROOT / "results" / "outliers"))
    page = (ROOT / "docs" / "results" / "outliers.md").read_text()
    assert "\n".join(lines) in page
    assert len(lines) > 8


def test_the_cost_of_points_that_start_as_noise_is_printed_from_the_records():
    table = "\n".join(points_start.page(ROOT / "results" / "points-start"))
    assert table in (ROOT / "docs" / "guide" / "audit.md").read_text()


def test_the_page_of_labels_is_printed_from_the_records():
    lines = list(labels.pages(ROOT / "results" / "labels"))
    page = (ROOT / "docs" / "results" / "labels.md").read_text()
    assert "\n".join(lines) in page
    assert len(lines) > 8


def test_the_page_of_small_sets_is_printed_from_the_records():
    lines = list(coreset_classifier.pages(ROOT / "results" / "coreset-classifier"))
    page = (ROOT / "docs" / "results" / "coreset-classifier.md").read_text()
    assert "\n".join(lines) in page
    assert len(lines) == 12


def test_the_table_of_starts_has_the_records():
    rows = ablation_rows("### With a start that is chosen")
    assert len(rows) == 4
    of_joint = []
    for label, (drawn, drawn_mean, chosen, chosen_mean, above) in sorted(
        rows.items(), key=lambda row: row[0] != "`joint`"
    ):
        (rule,) = (rule for rule in ablation.RULES if ABLATION_LABELS.get(rule, rule) == label)
        for records, shown, mean in (("ablation", drawn, drawn_mean), ("ablation-start", chosen, chosen_mean)):
            folders = [ROOT / "results" / records / ablation.folder_name("fashion-mnist", rule, k) for k in range(3)]
            values = [read_results(folder).evaluations[0].density.negative_log_likelihood.value for folder in folders]
            assert shown == ", ".join(f"{value:.3f}" for value in values)
            assert mean == ablation.mean(values)
        of_joint = of_joint or values
        differences = [value - other for value, other in zip(values, of_joint, strict=True)]
        assert above == ("0" if values is of_joint else ablation.mean(differences))


def test_a_detector_is_ranked_among_the_others_and_one_score_of_ours():
    names = ["log_likelihood", "reconstruction", "knn", "lof"]
    areas = np.array([[0.9, 0.95, 0.8, 0.7], [0.5, 0.95, 0.8, 0.7]])
    assert outliers.places(areas, names).tolist() == [[1, 1, 2, 3], [3, 1, 1, 2]]


def test_seeds_of_one_table_count_once(tmp_path):
    for path in (ROOT / "results" / "outliers").glob("4*-normal-0.json"):
        record = json.loads(path.read_text())
        for seed in (0, 1):
            (tmp_path / f"{record['table']}-normal-{seed}.json").write_text(json.dumps(record))
    (title, *_) = outliers.pages(tmp_path)
    assert title == f"## Fitted to normal rows alone: {len(list(tmp_path.iterdir())) // 2} tables"


def test_the_page_of_points_that_start_as_noise_is_printed_from_the_pairs_that_there_are(tmp_path):
    for name in ("breast-cancer-examples-0", "breast-cancer-noise-0", "breast-cancer-examples-1"):
        shutil.copy(ROOT / "results" / "points-start" / f"{name}.json", tmp_path)
    _, _, examples, noise = points_start.page(tmp_path)
    assert "| examples |" in examples
    assert "±" not in noise
