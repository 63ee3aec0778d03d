"""One word for one thing: words that the glossary retires are not used."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "docs" / "development" / "glossary.md"
GENERATED = {"auto_gallery", "_build"}


def retired_words() -> list[tuple[list[str], set[str]]]:
    """Return the lines of the table: retired words, and the ends of the paths in which they are right."""
    table = GLOSSARY.read_text(encoding="utf-8").split("## Retired words")[1]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][2:]
    return [([word.strip() for word in row[0].split(",")], set(re.findall("`([^`]+)`", row[2]))) for row in rows]


def read_files() -> dict[str, str]:
    """Return what is checked: the source, the pages and the README, by path."""
    found = [ROOT / "README.md", *(ROOT / "src").rglob("*.py")]
    found += [path for kind in ("md", "py", "rst") for path in (ROOT / "docs").rglob(f"*.{kind}")]
    kept = [path for path in found if path != GLOSSARY and not GENERATED & set(path.parts)]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in kept}


FILES, RETIRED = read_files(), retired_words()


def lines_with(words: list[str], text: str) -> list[int]:
    """Return the lines that have one of these words; lines may break inside; parts of longer names do not count."""
    spaced = "|".join(r"\s+".join(map(re.escape, word.split())) for word in words)
    found = re.finditer(rf"(?<![\w-])({spaced})(?![\w-])", text, re.IGNORECASE)
    return [text[: match.start()].count("\n") + 1 for match in found]


@pytest.mark.parametrize(("words", "places"), RETIRED, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_retired_words_are_used_only_where_they_are_right(words, places):
    used = {path: lines for path, text in FILES.items() if (lines := lines_with(words, text))}
    excused = {path for path in used if any(path.endswith(f"/{place}") for place in places)}
    assert not {path: used[path] for path in used.keys() - excused}, (
        f"retired: {words}; {GLOSSARY.name} has better words"
    )
    unneeded = {place for place in places if not any(path.endswith(f"/{place}") for path in excused)}
    assert not unneeded, f"no longer used there: {words}"


def test_the_check_reads_enough_and_can_fail():
    assert len(RETIRED) > 10
    assert {"README.md", "src/bype/training/loop.py", "docs/index.md", "docs/gallery/README.rst"} <= FILES.keys()
    assert lines_with(["goes on"], "The run goes\non.") == [1]
    assert lines_with(["exemplars"], "num_exemplars") == []
    assert lines_with(["told", "talk"], "They\nTalk.") == [2]
