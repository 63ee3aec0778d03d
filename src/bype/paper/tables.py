"""Tables in Markdown: the paper's number, ours, the difference."""

import statistics
from collections.abc import Iterable, Sequence

from bype.paper.cells import Protocol
from bype.paper.items import Item, Line
from bype.paper.records import Records, comparable
from bype.wording import counted


def table(item: Item, records: Records, protocol: Protocol) -> list[str]:
    """Return the lines of a table: the rows that were run at a protocol, and how many others there are.

    Reduced numbers are marked, and there is no difference: they do not compare with the paper's.
    """
    more = ["seeds"] if protocol.suffix else ["difference", "seeds", "epochs"]
    rows = [
        [*line.labels, *_numbers(line, values, records, protocol)]
        for line in item.lines
        if (values := records.values(line, protocol))
    ]
    missing = len(comparable(item.lines, protocol)) - len(rows)
    lines = markdown([*item.heads, "paper", protocol.name, *more], rows) if rows else []
    if missing:
        lines += [*([""] if rows else []), f"Not yet run with this protocol: {counted(missing, 'row')}."]
    return lines


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown.

    Examples
    --------
    >>> markdown(["a", "b"], [["1", "2"]])
    ['| a | b |', '| --- | --- |', '| 1 | 2 |']
    """
    return [f"| {' | '.join(words)} |" for words in (heads, ["---"] * len(heads), *rows)]


def _numbers(line: Line, values: dict[int, float], records: Records, protocol: Protocol) -> list[str]:
    """Return the cells of a row, from its values by seed."""
    found, seeds = mean_and_spread(list(values.values())), ", ".join(map(str, values))
    if protocol.suffix:
        return [_published(line), f"{found} ({protocol.name})", seeds]
    difference = ""
    if line.published is not None and line.measure != "seconds":  # of another machine
        difference = f"{statistics.mean(values.values()) - line.published.value:+.3f}"
    return [_published(line), found, difference, seeds, _epochs(line, records, protocol)]


def _published(line: Line) -> str:
    if line.published is None:
        return ""
    value, error = line.published
    return f"{value:.2f}" + ("" if error is None else f" ± {error:.2f}")


def mean_and_spread(values: Sequence[float]) -> str:
    """Return the mean over seeds, with the standard deviation if there are several; empty without values.

    Examples
    --------
    >>> mean_and_spread([1.0, 2.0, 3.0])
    '2.000 ± 1.000'
    """
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def _epochs(line: Line, records: Records, protocol: Protocol) -> str:
    if not line.cell.has_model:
        return ""
    found = [record for record in records.of(line.cell, protocol) if record.value(line, protocol) is not None]
    return ", ".join(
        f"{record.content['epochs']:g}" + (" (capped)" if "capped" in record.protocol else "") for record in found
    )
