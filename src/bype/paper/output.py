"""Writing a table or a figure beside the records that it is made of."""

from collections.abc import Iterator
from pathlib import Path

from bype.data.files import write_atomic
from bype.paper.cells import PROTOCOLS
from bype.paper.figures import figure
from bype.paper.items import Item
from bype.paper.records import Records
from bype.paper.tables import table


def write_item(item: Item, records: Records, out: Path) -> Iterator[str]:
    """Write a table as Markdown, or a figure as one file for each protocol; return lines that show it."""
    if item.is_table:
        used = [protocol for protocol in PROTOCOLS if records.count(item, protocol)]
        lines = [item.title, "", *table(item, records), ""]
        lines += [item.note, ""] if item.note else []
        lines += [f"{protocol.name}: {protocol.text}" for protocol in used]
        path = out / f"{item.name}.md"
        write_atomic(path, ("\n".join(lines) + "\n").encode())
        yield from lines
        yield f"written to {path}"
        return
    for protocol in PROTOCOLS:
        if made := figure(item, records, protocol):
            path = out / f"{protocol.mark(item.name)}.{made[0]}"
            write_atomic(path, made[1])
            yield f"{item.title}, {protocol.name}: written to {path}"
