"""Draw the packages of bype as layers, with an arrow for each import, from the source itself.

The build of the documentation calls ``write``; ``python docs/house.py FILE.svg`` does the same. A part stands one row
below the lowest one that it imports. Two kinds of arrows are left out: those that a path of other arrows implies, and
those to parts that import nothing of bype, which stand in a band at the top.
"""

import ast
import sys
from pathlib import Path
from statistics import mean

SOURCE = Path(__file__).parent.parent / "src" / "bype"
WIDTH, ROW, BOX, MARGIN = 720, 62, 30, 20
LETTER = 8.3  # the width of a letter at this size, about
NOT_DRAWN = {"__init__", "__main__"}


def imports() -> dict[str, set[str]]:
    """Return the parts of bype (a package or a module) with the parts that each imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bype."):
                names.add(node.module.split(".")[1])
        found.setdefault(part, set()).update(names - {part})
    return {part: names - NOT_DRAWN for part, names in found.items() if part not in NOT_DRAWN}


def rows_of(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the parts row by row: each below all that it imports."""
    depth: dict[str, int] = {}

    def place(part: str) -> int:
        if part not in depth:
            depth[part] = 1 + max((place(other) for other in graph[part]), default=-1)
        return depth[part]

    for part in graph:
        place(part)
    return [sorted(part for part in graph if depth[part] == row) for row in range(1 + max(depth.values()))]


def needed(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the arrows that no path of other arrows implies."""

    def reached(part: str) -> set[str]:
        return graph[part].union(*(reached(other) for other in graph[part]))

    return [
        (part, other)
        for part in graph
        for other in sorted(graph[part])
        if graph[other] and not any(other in reached(between) for between in graph[part] - {other})
    ]


def draw(graph: dict[str, set[str]]) -> str:
    """Return the picture as SVG."""
    rows = rows_of(graph)
    places, boxes = {}, []
    for number, row in enumerate(rows):
        row.sort(key=lambda part: mean([places[other][0] for other in graph[part] if graph[other]] or [0]))
        widths = [LETTER * len(part) + 22 for part in row]
        gap = (WIDTH - 2 * MARGIN - sum(widths)) / (len(row) + 1)
        x, y = MARGIN + gap, MARGIN + number * ROW + (MARGIN if number else 0)
        for part, width in zip(row, widths, strict=True):
            places[part] = (x + width / 2, y)
            boxes.append(
                f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BOX}" rx="5"/>'
                f'<text x="{x + width / 2:.0f}" y="{y + 20}">{part}</text>'
            )
            x += width + gap
    row_of = {part: number for number, row in enumerate(rows) for part in row}
    arrows = []
    for part, other in needed(graph):
        (x1, y1), (x2, y2) = places[part], places[other]
        high = y2 + BOX + 5
        start, first, second = (x1, y1), (x1, (y1 + high) / 2), (x2, (y1 + high) / 2)
        if row_of[part] - row_of[other] > 1:  # from the side of the box, around the rows between
            side = (LETTER * len(part) + 22) / 2
            side = side if x2 >= x1 else -side
            start, first, second = (x1 + side, y1 + BOX / 2), (x1 + 4 * side, y1), (x2, high + 0.8 * ROW)
        curve = " ".join(f"{x:.0f} {y:.0f}" for x, y in (first, second, (x2, high)))
        arrows.append(f'<path d="M{start[0]:.0f} {start[1]:.0f} C{curve}"/>')
    band = f'<rect x="4" y="4" width="{WIDTH - 8}" height="{BOX + 2 * MARGIN - 8}" rx="8" class="band"/>'
    height = 3 * MARGIN + (len(rows) - 1) * ROW + BOX
    style = (
        "rect{fill:#f3f6fa;stroke:#2b6cb0}.band{fill:#fbf6ee;stroke:none}.ground{fill:#fff;stroke:none}"
        "text{font:15px sans-serif;text-anchor:middle;fill:#1a1a1a}"
        "path{fill:none;stroke:#718096;stroke-width:1.2;marker-end:url(#tip)}#tip path{fill:#718096;stroke:none}"
        "@media(prefers-color-scheme:dark){rect{fill:#1d2733;stroke:#5b9bd5}.band{fill:#262219;stroke:none}"
        ".ground{fill:#131416;stroke:none}text{fill:#e9ebef}}"
    )
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" style="marker-end:none"/></marker>'
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    ground = f'<rect width="{WIDTH}" height="{height}" class="ground"/>'
    return "\n".join([head, f"<style>{style}</style><defs>{tip}</defs>{ground}", band, *arrows, *boxes, "</svg>\n"])


def write(path: Path) -> None:
    """Draw the picture to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(imports()), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
