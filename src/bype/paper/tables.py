"""Tables in Markdown: the paper's number, ours, the difference."""

import statistics
from collections.abc import Iterable, Sequence

from bype.paper.cells import FULL, REDUCED, Protocol
from bype.paper.items import Item, Line
from bype.paper.records import Records, is_comparable

_HEADS = ("paper", "full", "difference", "seeds", "epochs", "reduced")


def table(item: Item, records: Records) -> list[str]:
    """Return the lines of a table. What was run at the reduced protocol has a column of its own."""
    return markdown([*item.heads, *_HEADS], ([*line.labels, *_numbers(line, records)] for line in item.lines))


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown.

    Examples
    --------
    >>> markdown(["a", "b"], [["1", "2"]])
    ['| a | b |', '| --- | --- |', '| 1 | 2 |']
    """
    return [f"| {' | '.join(words)} |" for words in (heads, ["---"] * len(heads), *rows)]


def _numbers(line: Line, records: Records) -> list[str]:
    published = line.published
    values = records.values(line, FULL)
    full, reduced = (
        mean_and_spread(list(values.values())),
        mean_and_spread(list(records.values(line, REDUCED).values())),
    )
    difference = ""
    if published is not None and values and line.measure != "seconds":  # of another machine
        difference = f"{statistics.mean(values.values()) - published.value:+.3f}"
    return [
        _published(line),
        full or "not yet run",
        difference,
        ", ".join(map(str, values)),
        _epochs(line, records, FULL) if values else "",
        f"{reduced} (reduced)" if reduced else "not yet run" if is_comparable(line, REDUCED) else "full only",
    ]


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
