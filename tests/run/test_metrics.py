"""metrics.jsonl of a long run, and of a stranger."""

import json

import pytest

from bype.data.files import FileError
from bype.run import metrics
from bype.run.metrics import MetricsFile, read_metrics

LINE = json.dumps({"step": 7, "epoch": 0.5, "train": {"negative_elbo": 3.0}})


def test_a_run_may_be_validated_very_often(tmp_path):
    """Blanks make lines long and quick to read: 20 MB in all, more than was once allowed."""
    (tmp_path / "metrics.jsonl").write_text((LINE + 60_000 * " " + "\n") * 333)
    found = read_metrics(tmp_path)
    assert len(found) == 333
    assert found[-1].parts == {"train": {"negative_elbo": 3.0}}


def test_no_line_and_no_file_is_without_bounds(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text(LINE + 2**16 * " ")
    with pytest.raises(FileError, match="or over 65,536 in a line"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text((LINE + "\n") * 100)
    assert len(read_metrics(tmp_path)) == 100
    monkeypatch.setattr(metrics, "_MAX_METRICS_BYTES", 99 * (len(LINE) + 1))
    with pytest.raises(FileError, match=r"has over [0-9,]+ bytes"):
        read_metrics(tmp_path)


def test_a_line_that_a_full_disk_has_cut_off_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(LINE + "\n" + LINE[: len(LINE) // 2])
    assert len(read_metrics(tmp_path)) == 1


def metrics_file(path, num_bytes, step, warn=pytest.fail):
    file = MetricsFile(path, num_bytes, step, warn)
    file.append({"step": step + 1, "epoch": 9.0})
    file.close()
    return [line.step for line in read_metrics(path.parent)]


@pytest.mark.parametrize("lost", [1, 5, 10**6], ids=["a byte", "some bytes", "all"])
def test_a_log_that_lost_lines_goes_on_from_the_last_complete_one(tmp_path, lost):
    path = tmp_path / "metrics.jsonl"
    whole = b"".join(json.dumps({"step": step, "epoch": 0.5}).encode() + b"\n" for step in (2, 4, 6, 8))
    path.write_bytes(whole)
    assert metrics_file(path, len(whole), 8) == [2, 4, 6, 8, 9]
    path.write_bytes(whole[: max(0, len(whole) - lost)])
    warnings = []
    expected = [9] if lost == 10**6 else [2, 4, 6, 9]
    assert metrics_file(path, len(whole), 8, warnings.append) == expected
    assert "has lost lines" in warnings[0]
    assert metrics_file(path, len(whole), 8, warnings.append) == expected  # killed before the next checkpoint


def test_a_log_of_something_else_is_written_anew(tmp_path):
    for content in (b"[1]\n", b"\x00" * 9, b"{}\n", b"\n"):
        (tmp_path / "metrics.jsonl").write_bytes(content)
        assert metrics_file(tmp_path / "metrics.jsonl", 1000, 8, print) == [9]


@pytest.mark.parametrize("line", ['"step":1,"epoch":1e17', '"step":-1,"epoch":1', '"step":1,"epoch":-1'])
def test_a_line_of_no_training_is_refused(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text("{" + line + ',"validation":{"negative_elbo":5}}\n')
    with pytest.raises(FileError, match="line 1, is broken"):
        read_metrics(tmp_path)
