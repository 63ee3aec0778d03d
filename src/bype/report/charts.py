"""Charts as SVG: drawn small enough to be read on a phone, coloured by a style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bype.report.markup import Markup, element, join, minus
from bype.report.style import STANDALONE_STYLE

WIDTH = 420
"""The width of every chart."""
_HEIGHT = 250
_FEW = 8
_NARROW = 1e-9
"""A range is widened if it is narrower than this, as a share of its end: its ticks would be the same number."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 18, 10, 36


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    is_dashed: bool = False
    colour: int = 0


@dataclass(frozen=True)
class Chart:
    """A drawing, :data:`WIDTH` wide."""

    content: Markup
    """Its title, for readers who cannot see it, and what is drawn."""
    height: int = _HEIGHT

    def on_page(self) -> Markup:
        """Return it as a part of a page, which has the style."""
        return element("svg", self.content, viewBox=f"0 0 {WIDTH} {self.height}", role="img", class_="chart")

    def as_file(self) -> str:
        """Return it as the text of a file, with its style."""
        return svg_file(element("g", self.content, class_="chart"), WIDTH, self.height)


def svg_file(content: Markup, width: float, height: float) -> str:
    """Return the text of an SVG file: a drawing with the style of charts."""
    return element(
        "svg",
        element("style", Markup(STANDALONE_STYLE)),
        content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
    )


@dataclass(frozen=True)
class _Scale:
    """The map from values to places on the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers between two values, about ``count``.

    Examples
    --------
    >>> ticks(0, 9.7)
    [0, 2, 4, 6, 8]
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    values = [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
    return [int(v) if v == int(v) else round(v, 10) for v in values]


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    marks: Sequence[float] = (),
    x_ticks: Sequence[float] | None = None,
    min_range: float = 0.0,
    most: float = math.inf,
) -> Chart:
    """Draw lines.

    Parameters
    ----------
    series
        The lines.
    title
        Text for readers who cannot see the chart.
    x_label, y_label
        Names of the axes.
    marks
        Values of x to mark at the lower edge.
    x_ticks
        Where to label x; round numbers if left out.
    min_range
        Show at least this range of y, so that small differences look small.
    most
        The largest value that y can have.
    """
    xs = [x for line in series for x in line.x]
    low, high = _useful_range([line.y for line in series], min_range)
    across, up = _scales(min(xs), max(xs), low, min(high, most))
    parts = [_axes(across, up, x_label, y_label, x_ticks)]
    if marks:
        path = "".join(f"M{across(x)} {_HEIGHT - _BOTTOM}v-7" for x in marks)
        parts.append(element("path", d=path, class_="mark"))
    lines = []
    for line in series:
        points = " ".join(f"{across(x)},{up(y)}" for x, y in zip(line.x, line.y, strict=True))
        kind = f"line c{line.colour % 10}" + (" dashed" if line.is_dashed else "")
        if len(line.x) == 1:
            lines.append(
                element("circle", cx=across(line.x[0]), cy=up(line.y[0]), r=3, class_=f"dot c{line.colour % 10}")
            )
        lines.append(element("polyline", points=points, class_=kind))
    return _chart(title, *parts, _window(*lines))


def histogram(values: Sequence[float], *, title: str, x_label: str, y_label: str) -> Chart:
    """Draw how often values occur."""
    low, high = min(values), max(values)
    if high - low <= 1e-6 * max(1.0, abs(high)):  # all the same
        low, high = low - max(1.0, abs(low)) / 2, high + max(1.0, abs(high)) / 2
    bins = 24
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    across, up = _scales(low, high, 0.0, float(max(counts)))
    width = (high - low) / bins
    bars = [
        element(
            "rect",
            x=across(low + k * width),
            y=up(count),
            width=round(across(low + (k + 1) * width) - across(low + k * width) - 1, 1),
            height=round(up(0) - up(count), 1),
            class_="bar",
        )
        for k, count in enumerate(counts)
        if count
    ]
    return _chart(title, _axes(across, up, x_label, y_label, None), *bars)


def weights_chart(weights: Sequence[float]) -> Chart:
    """Draw how the weights of a pseudocoreset are spread."""
    return histogram(weights, title="Weights of the pseudo-points", x_label="weight", y_label="pseudo-points")


def scatter(
    x: Sequence[float], y: Sequence[float], groups: Sequence[int] | None, *, title: str, behind: int | None = None
) -> Chart:
    """Draw dots, coloured by group, without axes: only distances mean anything. One group may lie behind the others."""
    size = WIDTH - 20
    low_x, low_y = min(x), min(y)
    extent = max(max(x) - low_x, max(y) - low_y, 1e-9)
    left = 10 + (extent - (max(x) - low_x)) / extent * size / 2
    members: dict[int, list[str]] = {}
    for index, (a, b) in enumerate(zip(x, y, strict=True)):
        place = f"M{left + (a - low_x) / extent * size:.1f} {10 + (b - low_y) / extent * size:.1f}h0"
        members.setdefault(0 if groups is None else groups[index], []).append(place)
    kind = "cloud" if len(x) > 300 else "cloud few"
    paths = [
        element("path", d="".join(members[group]), class_=f"{kind} c{group % 10}")
        for group in sorted(members, key=lambda group: (group != behind, group))
    ]
    height = round(20 + (max(y) - low_y) / extent * size)
    return _chart(title, *paths, height=height)


def _window(*parts: Markup) -> Markup:
    """Cut off what lies outside the axes."""
    width, height = WIDTH - _LEFT, _HEIGHT - _TOP - _BOTTOM + 1
    place = {"x": _LEFT, "y": _TOP, "width": width, "height": height}
    return element("svg", *parts, viewBox=f"{_LEFT} {_TOP} {width} {height}", **place)


def _useful_range(lines: Sequence[Sequence[float]], min_range: float) -> tuple[float, float]:
    """Return a range in which curves that fall steeply at first can still be read where they are flat."""
    is_short = all(len(line) <= _FEW for line in lines)
    low, high = min(map(min, lines)), max(max(line) if is_short else _useful_top(line) for line in lines)
    missing = max(0.0, min_range - (high - low)) / 2
    margin = missing + (0.05 * (high - low) or max(1e-3, abs(low) * 0.01))
    return low - margin, high + margin


def _useful_top(ys: Sequence[float]) -> float:
    """Return where to cut a curve: above its flat part, if it falls steeply at first."""
    ordered = sorted(ys)
    low, high = ordered[0], ordered[-1]
    typical = ordered[max(0, min(len(ordered) - 2, int(0.85 * len(ordered))))]
    if high - low > 4 * (typical - low) > 0:
        return low + 1.3 * (typical - low)
    return high


def _scales(low_x: float, high_x: float, low_y: float, high_y: float) -> tuple[_Scale, _Scale]:
    if high_x - low_x <= _NARROW * max(1.0, abs(high_x)):
        low_x, high_x = low_x - 0.5, low_x + 0.5
    across = _Scale(low_x, high_x, _LEFT, WIDTH - _RIGHT)
    return across, _Scale(low_y, high_y, _HEIGHT - _BOTTOM, _TOP)


def _axes(across: _Scale, up: _Scale, x_label: str, y_label: str, x_ticks: Sequence[float] | None) -> Markup:
    bottom = _HEIGHT - _BOTTOM
    parts = []
    for value in ticks(up.low, up.high):
        parts.append(element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=up(value), y2=up(value), class_="grid"))
        parts.append(element("text", minus(f"{value:,}"), x=_LEFT - 6, y=up(value) + 4, class_="end"))
    labelled = ticks(across.low, across.high) if x_ticks is None else x_ticks
    parts += [
        element("text", minus(f"{value:,}"), x=across(value), y=bottom + 16, class_="middle") for value in labelled
    ]
    parts.append(element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="axis"))
    parts.append(element("text", x_label, x=(_LEFT + WIDTH - _RIGHT) / 2, y=_HEIGHT - 3, class_="middle label"))
    middle = (_TOP + bottom) / 2
    parts.append(element("text", y_label, transform=f"translate(11 {middle}) rotate(-90)", class_="middle label"))
    return join(*parts)


def _chart(title: str, *parts: Markup, height: int = _HEIGHT) -> Chart:
    return Chart(join(element("title", title), *parts), height)
