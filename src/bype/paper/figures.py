"""Figures from records: pictures side by side as PNG, charts as SVG. A figure of reduced runs is marked as reduced."""

import io
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from bype.paper.cells import Protocol
from bype.paper.items import Item, Line
from bype.paper.records import PLATE_LINES, Records
from bype.report.charts import WIDTH, Chart, Series, line_chart, scatter, svg_file
from bype.report.markup import element, join

_SHOWN_PLATES = 6
_GAP, _TITLE = 12, 18
_LEGEND = 18

Found = list[tuple[Line, Any]]
"""The parts of a figure that have been run, each with what its record has (of the first seed)."""


def figure(item: Item, records: Records, protocol: Protocol) -> tuple[str, bytes] | None:
    """Draw a figure of the runs at a protocol; return its file's ending and content, or None if there are none."""
    found = [(line, next(iter(values.values()))) for line in item.lines if (values := records.values(line, protocol))]
    measure = item.lines[0].measure
    if not found or (measure == "nll" and len({line.labels[1] for line, _ in found}) < 2):  # one size makes no curve
        return None
    remark = ", reduced" if protocol.suffix else ""
    drawers: dict[str, Callable[[Item, Found, str], tuple[str, bytes]]] = {
        "map": _maps,
        "knn": _neighbours,
        "curve": _curves,
        "nll": _sizes,
    }
    return drawers.get(measure, _pictures)(item, found, remark)


def _name(line: Line, remark: str) -> str:
    return ", ".join(line.labels) + remark


def _pictures(item: Item, found: Found, remark: str) -> tuple[str, bytes]:
    """Lay out the cells' pictures two in a row, each under its name."""
    font = ImageFont.load_default(14)
    panels = []
    for line, path in found:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
        if item.name == "figure1":  # the first few lines; all are in figure 8
            picture = picture.crop((0, 0, picture.width, picture.height * _SHOWN_PLATES // PLATE_LINES))
        panels.append((_name(line, remark), picture))
    width = max(picture.width for _, picture in panels)
    rows = [panels[first : first + 2] for first in range(0, len(panels), 2)]
    heights = [_TITLE + max(picture.height for _, picture in row) + _GAP for row in rows]
    sheet = Image.new("RGB", (2 * width + _GAP if len(panels) > 1 else width, sum(heights)), "white")
    pen, top = ImageDraw.Draw(sheet), 0
    for row, height in zip(rows, heights, strict=True):
        for column, (name, picture) in enumerate(row):
            left = column * (width + _GAP)
            pen.text((left, top), name, fill="black", font=font)
            sheet.paste(picture, (left, top + _TITLE))
        top += height
    buffer = io.BytesIO()
    is_grey = all(picture.convert("L").convert("RGB").tobytes() == picture.tobytes() for _, picture in panels)
    (sheet.convert("L") if is_grey else sheet).save(buffer, "PNG", optimize=True)
    return "png", buffer.getvalue()


def _maps(item: Item, found: Found, remark: str) -> tuple[str, bytes]:
    panels: list[_Panel] = [
        (_name(line, remark), scatter(layout.x, layout.y, layout.labels, title=_name(line, remark)), [])
        for line, layout in found
    ]
    return "svg", _sheet(item, panels)


def _neighbours(item: Item, found: Found, remark: str) -> tuple[str, bytes]:
    panels = []
    priors = list(dict.fromkeys(line.labels[2] for line in item.lines))
    for data in dict.fromkeys(line.labels[0] for line, _ in found):
        series = [
            Series(
                line.labels[2],
                [int(count) for count in accuracy],
                [100 * share for share in accuracy.values()],
                colour=priors.index(line.labels[2]),
            )
            for line, accuracy in found
            if line.labels[0] == data
        ]
        panels.append(_lines(f"{data}, VAE{remark}", series, "K", "accuracy, %", series[0].x))
    return "svg", _sheet(item, panels)


def _sizes(item: Item, found: Found, remark: str) -> tuple[str, bytes]:
    names = list(dict.fromkeys(line.labels[0] for line in item.lines))
    series = []
    for name in names:
        points = [(int(line.labels[1]), value) for line, value in found if line.labels[0] == name]
        if points:
            series.append(Series(name, [x for x, _ in points], [y for _, y in points], colour=names.index(name)))
    ticks = sorted({x for line in series for x in line.x})
    return "svg", _sheet(item, [_lines(f"MNIST, VAE{remark}", series, "components", "-log p(x), nats", ticks)])


def _curves(item: Item, found: Found, remark: str) -> tuple[str, bytes]:
    series = [
        Series(line.labels[2], [row[0] for row in rows], [row[2] for row in rows], colour=number)
        for number, (line, rows) in enumerate(found)
    ]
    return "svg", _sheet(item, [_lines(f"MNIST, VAE{remark}", series, "epoch", "validation -ELBO, nats", None)])


_Panel = tuple[str, Chart, list[Series]]


def _lines(title: str, series: list[Series], x_label: str, y_label: str, ticks: Any) -> _Panel:
    return title, line_chart(series, title=title, x_label=x_label, y_label=y_label, x_ticks=ticks), series


def _sheet(item: Item, panels: list[_Panel]) -> bytes:
    """Lay out charts two in a row, each under its title and above the names of its lines."""
    parts, top = [element("title", item.title)], 0
    for first in range(0, len(panels), 2):
        bottom = top
        for column, (title, chart, series) in enumerate(panels[first : first + 2]):
            height = chart.height
            legend = [
                element(
                    "g",
                    element("circle", cx=74, cy=height + _LEGEND * k + 9, r=4, class_=f"dot c{line.colour}"),
                    element("text", line.name, x=84, y=height + _LEGEND * k + 13),
                )
                for k, line in enumerate(series)
            ]
            body = element("g", chart.content, *legend, transform=f"translate(0 {_TITLE + 4})")
            named = element("text", title, x=10, y=_TITLE - 2)
            place = f"translate({column * WIDTH} {top})"
            parts.append(element("g", named, body, class_="chart", transform=place))
            bottom = max(bottom, top + _TITLE + 4 + height + _LEGEND * len(series) + _GAP)
        top = bottom
    return (svg_file(join(*parts), WIDTH * min(2, len(panels)), top) + "\n").encode()
