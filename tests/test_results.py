"""Published tables are those that the records give."""

import runpy
from pathlib import Path

import outliers
import own_data

ROOT = Path(__file__).parent.parent


def test_the_page_of_the_papers_numbers_is_printed_from_the_records():
    table = runpy.run_path(str(ROOT / "benchmarks" / "paper_table.py"))["table"]()
    page = (ROOT / "docs" / "results" / "paper.md").read_text()
    assert "\n".join(table) in page
    assert any("not yet run" not in line for line in table[2:])


def test_the_page_of_a_users_own_data_is_printed_from_the_records():
    printed = list(own_data.pages(ROOT / "results" / "own-data"))
    page = (ROOT / "docs" / "results" / "own-data.md").read_text()
    assert "\n".join(printed) in page
    assert len(printed) > 8


def test_the_page_of_outliers_is_printed_from_the_records():
    printed = list(outliers.pages(ROOT / "results" / "outliers"))
    page = (ROOT / "docs" / "results" / "outliers.md").read_text()
    assert "\n".join(printed) in page
    assert len(printed) > 8
