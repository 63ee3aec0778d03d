"""Published tables are those that the records give."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_of_the_papers_numbers_is_printed_from_the_records():
    table = runpy.run_path(str(ROOT / "benchmarks" / "paper_table.py"))["table"]()
    page = (ROOT / "docs" / "results" / "paper.md").read_text()
    assert "\n".join(table) in page
    assert any("not yet run" not in line for line in table[2:])
