"""evaluation.json: what goes in comes out, and nothing else is believed."""

import dataclasses
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bype.cli.evaluate import describe
from bype.data.files import FileError
from bype.evaluation import records
from bype.evaluation.records import (
    ClassifierError,
    Density,
    Estimate,
    Evaluation,
    Map,
    PriorGap,
    Representation,
    Results,
    change_results,
    read_results,
    write_results,
)

GAP = PriorGap(10, 20, Estimate(3.0, 0.1), Estimate(0.5, 0.1), Estimate(1.5, 0.1))
FOUND = Evaluation(
    step=7,
    source="digits",
    fingerprint="abc",
    split="test",
    density=Density(
        *(10, 5, "density", Estimate(3.0, 0.1), 0.1, 4.0, 2.0, 3.0, None, Estimate(4.0, 0.1), Estimate(1.0, 0.1)),
        *({"z": Estimate(3.0, 0.1)}, "float32", None, 1.0),
    ),
    prior_gap=GAP,
    representation=Representation(10, 20, {"3": 0.5}, 0.6),
    map=Map([0, 1], [0.5, 1.0], [2.0, 3.0], None),
)


def test_what_goes_in_comes_out(tmp_path):
    assert read_results(tmp_path) == Results()
    results = Results([FOUND], [ClassifierError(7, "abc", "prior", 0.4, 10, 100, [1.5, 1.6])])
    write_results(tmp_path, results)
    assert read_results(tmp_path) == results


def test_evaluations_that_end_together_all_stay(tmp_path):
    def add(number):
        def change(results):
            time.sleep(0.02)
            return results.with_evaluation(Evaluation(7, "digits", str(number), "test"))

        change_results(tmp_path, change)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, range(12)))
    assert {e.fingerprint for e in read_results(tmp_path).evaluations} == {str(number) for number in range(12)}
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]


def test_no_file_is_written_that_is_too_large_to_read(tmp_path, monkeypatch):
    write_results(tmp_path, Results([FOUND], []))
    monkeypatch.setattr(records, "MAX_JSON_BYTES", 100)
    with pytest.raises(FileError, match="move it to another place"):
        write_results(tmp_path, Results([], []).with_evaluation(FOUND))
    assert read_results(tmp_path) == Results([FOUND], [])


def test_very_large_numbers_come_back(tmp_path):
    """A column of times in seconds gives a likelihood like this one."""
    large = dataclasses.replace(GAP, kl=Estimate(-2.27e18, 3.4e38))
    write_results(tmp_path, Results([dataclasses.replace(FOUND, prior_gap=large)], []))
    assert read_results(tmp_path).evaluations[0].prior_gap == large


def test_the_same_split_is_replaced_and_others_stay():
    other = Evaluation(7, "digits", "abc", "validation")
    results = Results([FOUND, other]).with_evaluation(Evaluation(8, "digits", "abc", "test"))
    assert [(e.split, e.step) for e in results.evaluations] == [("validation", 7), ("test", 8)]
    assert results.find("abc", "test").prior_gap is None
    assert results.find("xyz", "test") is None
    errors = [ClassifierError(7, "abc", "prior", share, 10, 100, [1.0]) for share in (0.4, 1.0)]
    again = Results([], errors).with_augmentation([ClassifierError(8, "abc", "prior", 0.4, 20, 100, [0.9])])
    assert [(e.real_share, e.epochs) for e in again.augmentation] == [(1.0, 10), (0.4, 20)]


BROKEN = {
    "another version": lambda f: f.update(version=5),
    "no version": lambda f: f.pop("version"),
    "unknown field": lambda f: f.update(extra=1),
    "missing field": lambda f: f.pop("augmentation"),
    "text for a list": lambda f: f.update(evaluations="all"),
    "text for a number": lambda f: f["evaluations"][0].update(step="7"),
    "fraction for a count": lambda f: f["evaluations"][0].update(step=7.5),
    "truth for a count": lambda f: f["evaluations"][0].update(step=True),
    "list for a record": lambda f: f["evaluations"][0].update(prior_gap=[]),
    "record without a field": lambda f: f["evaluations"][0]["prior_gap"].pop("kl"),
    "number for text": lambda f: f["evaluations"][0].update(source=5),
    "list for a table": lambda f: f["evaluations"][0]["representation"].update(knn_accuracy=[1]),
    "text in a table": lambda f: f["evaluations"][0]["representation"].update(knn_accuracy={"3": "x"}),
    "an accuracy above one": lambda f: f["evaluations"][0]["representation"].update(knn_accuracy={"3": 5.0}),
    "no draws": lambda f: f["evaluations"][0]["density"].update(num_samples=0),
    "no effective draws": lambda f: f["evaluations"][0]["density"].update(median_effective_sample_size=0.0),
    "text in a list": lambda f: f["evaluations"][0]["map"].update(x=["<script>", 1.0]),
    "nothing where something must be": lambda f: f["evaluations"][0].update(split=None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gives_one_clear_line(tmp_path, name):
    write_results(tmp_path, Results([FOUND], []))
    path = tmp_path / "evaluation.json"
    fields = json.loads(path.read_text())
    BROKEN[name](fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(FileError, match="evaluate again") as caught:
        read_results(tmp_path)
    assert "\n" not in str(caught.value)


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    write_results(tmp_path, Results([FOUND], []))
    path = tmp_path / "evaluation.json"
    path.write_text(path.read_text().replace("0.6", "NaN"))
    with pytest.raises(FileError, match=r"representation\.probe_accuracy: nan is not a number"):
        read_results(tmp_path)


def test_one_example_has_no_standard_error():
    one = dataclasses.replace(FOUND.density, negative_log_likelihood=Estimate(3.0, 0.0))
    text = "\n".join(describe(dataclasses.replace(FOUND, density=one)))
    assert "standard error of the draws 0.1\n" in text
    assert "standard error over examples 0.1, of the draws 0.1\n" in "\n".join(describe(FOUND))
    neither = dataclasses.replace(one, monte_carlo_error=None)
    assert "standard error" not in "\n".join(describe(dataclasses.replace(FOUND, density=neither)))
