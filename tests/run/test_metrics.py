"""metrics.jsonl of a long run, and of a stranger."""

import json

import pytest

from bype.data.files import FileError
from bype.run import metrics
from bype.run.metrics import read_metrics

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
