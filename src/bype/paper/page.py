"""Tables and figures, printed from records: each to a file, or all to a page."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from bype.data.files import FileError, write_atomic
from bype.paper.cells import FULL, PROTOCOLS, REDUCED, Protocol
from bype.paper.claim import claim
from bype.paper.figures import figure
from bype.paper.hours import ASSUMED_EPOCHS, Costs, hours, hours_by_prior, is_measured
from bype.paper.items import ITEMS, Item, is_chosen
from bype.paper.records import Records
from bype.paper.tables import markdown, table
from bype.wording import counted

_SEEDS = 3
BEGIN, END = "<!-- printed by: bype reproduce page -->", "<!-- the end of what is printed -->"


def state(item: Item, records: Records) -> str:
    """Say how much of an item was run, and at which protocol."""
    counts = {protocol.name: records.count(item, protocol) for protocol in PROTOCOLS}
    what = "numbers" if item.is_table else "parts"
    states = [f"{name}: {count} of {len(item.lines)} {what}" for name, count in counts.items() if count]
    return "; ".join(states) or "not yet run"


def overview(records: Records) -> Iterator[str]:
    """Name every table and figure, and what was run of it."""
    width = max(map(len, ITEMS))
    for item in ITEMS.values():
        yield f"{item.name:<{width}}  {item.title}"
        yield f"{'':<{width}}    {counted(len(item.cells), 'cell')}; {state(item, records)}"
    yield ""
    for protocol in (FULL, REDUCED):
        yield f"{protocol.name}: {protocol.text}"


def sections(records: Records, costs: Costs | None, pictures: dict[str, str]) -> Iterator[str]:
    """Return the lines of the page: a section for each item.

    Parameters
    ----------
    records
        What was run.
    costs
        What it takes at full protocol.
    pictures
        The addresses of the figures that were drawn, by their names.
    """
    heads = ["item", "what it shows", "state", *(["hours in full"] if costs else [])]
    rows = []
    for item in ITEMS.values():
        title = _title(item)
        took = [_hours_of(item, costs)] if costs else []
        rows.append([f"[{title}](#{title.lower().replace(' ', '-')})", item.title, state(item, records), *took])
    yield from markdown(heads, rows)
    if costs:
        yield from _hours(costs)
    for item in ITEMS.values():
        yield from ("", f"## {_title(item)}", "", f"{item.title}. {item.note}".strip(), "")
        if item.is_table:
            yield from table(item, records)
            if item.name == "table1":
                yield ""
                yield from claim(records)
            continue
        for protocol in PROTOCOLS:
            if address := pictures.get(protocol.mark(item.name)):
                yield f"![{item.title}, {protocol.name} protocol]({address})"
                yield ""
        yield f"State: {state(item, records)}."


def _hours_of(item: Item, costs: Costs) -> str:
    return f"{hours((item,), costs.paces, FULL, _SEEDS):,.0f}" if is_measured(item, costs.paces) else "not measured"


def _hours(costs: Costs) -> Iterator[str]:
    """Say what the hours are, and how many a cell takes."""
    together = hours(tuple(ITEMS.values()), costs.paces, FULL, _SEEDS)
    yield ""
    yield (
        f"*Hours in full* are estimated by `bype reproduce cost` for {_SEEDS} seeds, one process with "
        f"{counted(costs.threads, 'thread')} and {ASSUMED_EPOCHS} epochs. Items share trainings: all of them "
        f"together take {together:,.0f} hours.{_left_out(costs)} Hours of one cell with one seed, without "
        f"classifiers (*ours* is for CelebA: 240 points, as many as the paper has):"
    )
    yield ""
    yield from markdown(*hours_by_prior(costs))


def _left_out(costs: Costs) -> str:
    paths = {cell.path for item in ITEMS.values() for cell in item.cells}
    missing = len(paths - set(costs.paces))
    return f" Of {len(paths)} cells, {missing} were not measured and are not counted." if missing else ""


def _title(item: Item) -> str:
    for kind in ("table", "figure"):
        if item.name.startswith(kind):
            return f"{kind.capitalize()} {item.name.removeprefix(kind)}"
    return item.name.capitalize()


def draw_all(records: Records) -> dict[str, bytes]:
    """Draw every figure of which something was run; return the files by name."""
    drawn: dict[str, bytes] = {}
    for item in ITEMS.values():
        for protocol in PROTOCOLS:
            drawn |= _drawn(item, records, protocol)
    return drawn


def _drawn(item: Item, records: Records, protocol: Protocol) -> dict[str, bytes]:
    """Return a figure of the runs at a protocol, by the name of its file; nothing if there are none."""
    made = None if item.is_table else figure(item, records, protocol)
    return {} if made is None else {f"{protocol.mark(item.name)}.{made[0]}": made[1]}


def _drawable() -> set[str]:
    """Return the names of all files that :func:`draw_all` may make."""
    figures = [item.name for item in ITEMS.values() if not item.is_table]
    return {f"{protocol.mark(name)}.{kind}" for name in figures for protocol in PROTOCOLS for kind in ("png", "svg")}


def printed(records: Records, costs: Costs | None, pictures: dict[str, bytes]) -> str:
    """Return what stands between the marks of the page."""
    addresses = {name.split(".")[0]: f"pictures/paper/{name}" for name in pictures}
    return "\n".join((BEGIN, "", *sections(records, costs, addresses), "", END))


def write_page(records: Records, costs: Costs | None, page: Path) -> None:
    """Print the tables and figures into a page, between two marks; figures go to ``pictures/paper`` beside it.

    Figures there that are no longer drawn are removed; other files stay.
    """
    before, begin, rest = (page.read_text(encoding="utf-8") if page.exists() else "").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise FileError(f"{page} lacks the two lines between which to print: {BEGIN} and {END}")
    pictures = draw_all(records)
    folder = page.parent / "pictures" / "paper"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        write_atomic(folder / name, content)
    for name in _drawable() - pictures.keys():
        (folder / name).unlink(missing_ok=True)
    write_atomic(page, f"{before}{printed(records, costs, pictures)}{after}".encode())


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
        for name, content in _drawn(item, records, protocol).items():
            write_atomic(out / name, content)
            yield f"{item.title}, {protocol.name}: written to {out / name}"


def _text(item: Item, records: Records) -> list[str]:
    used = [protocol for protocol in PROTOCOLS if records.count(item, protocol)]
    note = [item.note, ""] if item.note else []
    return [item.title, "", *table(item, records), "", *note, *(f"{each.name}: {each.text}" for each in used)]
