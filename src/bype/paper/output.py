"""Writing a table or a figure beside the records that it is made of."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from bype.data.files import write_atomic
from bype.paper.cells import PROTOCOLS
from bype.paper.figures import figure
from bype.paper.items import Item, is_chosen
from bype.paper.records import Records
from bype.paper.tables import table


def write_item(item: Item, records: Records, out: Path, only: str = "") -> Iterator[str]:
    """Write a table as Markdown, or a figure as one file for each protocol; return lines that show it.

    Parameters
    ----------
    item, records
        The table or figure, and what it is made of.
    out
        The folder to write to.
    only
        Show only rows of cells with these whole parts in their path; the file has all rows.
    """
    if item.is_table:
        path = out / f"{item.name}.md"
        write_atomic(path, ("\n".join(_text(item, records)) + "\n").encode())
        if chosen := tuple(line for line in item.lines if is_chosen(line.cell, only)):
            yield from _text(dataclasses.replace(item, lines=chosen), records)
        yield f"written to {path}"
        return
    for protocol in PROTOCOLS:
        if made := figure(item, records, protocol):
            path = out / f"{protocol.mark(item.name)}.{made[0]}"
            write_atomic(path, made[1])
            yield f"{item.title}, {protocol.name}: written to {path}"


def _text(item: Item, records: Records) -> list[str]:
    used = [protocol for protocol in PROTOCOLS if records.count(item, protocol)]
    note = [item.note, ""] if item.note else []
    return [item.title, "", *table(item, records), "", *note, *(f"{each.name}: {each.text}" for each in used)]
