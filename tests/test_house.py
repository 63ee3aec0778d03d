"""The picture of the house says what the source says."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "bype"
HOUSE = runpy.run_path(str(ROOT / "docs" / "house.py"), run_name="loaded")
GRAPH = HOUSE["imports"]()


def test_imports_are_those_that_the_text_has():
    """Found by a pattern here, by the syntax tree there."""
    for part, names in GRAPH.items():
        files = [SOURCE / f"{part}.py"] if (SOURCE / f"{part}.py").exists() else (SOURCE / part).rglob("*.py")
        text = "\n".join(path.read_text(encoding="utf-8") for path in files)
        assert names == set(re.findall(r"^ *from bype\.(\w+)", text, re.MULTILINE)) - {part}


def test_every_part_stands_below_what_it_imports():
    row = {part: number for number, parts in enumerate(HOUSE["rows_of"](GRAPH)) for part in parts}
    assert row.keys() == GRAPH.keys()
    assert all(row[other] < row[part] for part, names in GRAPH.items() for other in names)


def test_arrows_imply_all_imports_and_none_is_superfluous():
    def reached(arrows: set[tuple[str, str]], part: str) -> set[str]:
        ends = {other for start, other in arrows if start == part}
        return ends.union(*(reached(arrows, end) for end in ends))

    arrows = set(HOUSE["needed"](GRAPH))
    for part, names in GRAPH.items():
        assert {other for other in names if GRAPH[other]} <= reached(arrows, part)
    for arrow in arrows:
        assert arrow[1] not in reached(arrows - {arrow}, arrow[0])


def test_the_picture_has_every_part_inside_its_frame():
    picture = ElementTree.fromstring(HOUSE["draw"](GRAPH))  # noqa: S314
    name = "{http://www.w3.org/2000/svg}"
    assert {text.text for text in picture.iter(f"{name}text")} == GRAPH.keys()
    for box in picture.iter(f"{name}rect"):
        left, top = float(box.get("x", 0)), float(box.get("y", 0))
        assert left >= 0
        assert left + float(box.get("width")) <= float(picture.get("width"))
        assert top + float(box.get("height")) <= float(picture.get("height"))
