"""Tables and figures, printed from records: each to a file, or all to a page. Each protocol has files of its own."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from bype.data.files import FileError, write_atomic
from bype.paper.cells import FULL, PROTOCOLS, REDUCED, Protocol
from bype.paper.claim import claim
from bype.paper.figures import figure
from bype.paper.hours import ASSUMED_EPOCHS, Costs, hours, hours_by_prior, is_measured
from bype.paper.items import ITEMS, Item, is_chosen
from bype.paper.records import Records, comparable
from bype.paper.tables import markdown, table
from bype.wording import counted

_SEEDS = 3
BEGIN, END = "<!-- printed by: bype reproduce page -->", "<!-- the end of what is printed -->"


def state(item: Item, records: Records, protocol: Protocol) -> str:
    """Say how much of an item was run at a protocol."""
    count, total = records.count(item, protocol), len(comparable(item.lines, protocol))
    return f"{count} of {total} {'numbers' if item.is_table else 'parts'}" if count else "not yet run"


def overview(records: Records) -> Iterator[str]:
    """Name every table and figure, and what was run of it."""
    width = max(map(len, ITEMS))
    for item in ITEMS.values():
        states = [f"{each.name}: {state(item, records, each)}" for each in PROTOCOLS if records.count(item, each)]
        yield f"{item.name:<{width}}  {item.title}"
        yield f"{'':<{width}}    {counted(len(item.cells), 'cell')}; {'; '.join(states) or 'not yet run'}"
    yield ""
    for protocol in (FULL, REDUCED):
        yield f"{protocol.name}: {protocol.text}"


def sections(records: Records, protocol: Protocol, costs: Costs | None, pictures: dict[str, str]) -> Iterator[str]:
    """Return the lines of the page: a section for each item.

    Parameters
    ----------
    records, protocol
        What was run, and the protocol of which the page is.
    costs
        What it takes at full protocol, if that is to be on the page.
    pictures
        The addresses of the figures that were drawn, by their names.
    """
    heads = ["item", "what it shows", protocol.name, *(["hours for all"] if costs else [])]
    rows = []
    for item in ITEMS.values():
        title = _title(item)
        took = [_hours_of(item, costs)] if costs else []
        link = f"[{title}](#{title.lower().replace(' ', '-')})"
        rows.append([link, item.title, state(item, records, protocol), *took])
    yield from markdown(heads, rows)
    if costs:
        yield from _hours(costs)
    for item in ITEMS.values():
        yield from ("", f"## {_title(item)}", "", f"{item.title}. {item.note}".strip(), "")
        if item.is_table:
            yield from table(item, records, protocol)
            if item.name == "table1" and protocol is FULL:
                yield ""
                yield from claim(records)
            continue
        if address := pictures.get(protocol.mark(item.name)):
            yield f"![{item.title}, {protocol.name} protocol]({address})"
            yield ""
        done = state(item, records, protocol)
        yield f"{done[0].upper()}{done[1:]}."


def _hours_of(item: Item, costs: Costs) -> str:
    return f"{hours((item,), costs.paces, FULL, _SEEDS):,.0f}" if is_measured(item, costs.paces) else "not measured"


def _hours(costs: Costs) -> Iterator[str]:
    """Say what the hours are, and how many a cell takes."""
    together = hours(tuple(ITEMS.values()), costs.paces, FULL, _SEEDS)
    yield ""
    yield (
        f"*Hours for all* are estimated by `bype reproduce cost` for {_SEEDS} seeds, one process with "
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


def draw_all(records: Records, protocol: Protocol) -> dict[str, bytes]:
    """Draw every figure of which something was run at a protocol; return the files by name."""
    drawn: dict[str, bytes] = {}
    for item in ITEMS.values():
        drawn |= _drawn(item, records, protocol)
    return drawn


def _drawn(item: Item, records: Records, protocol: Protocol) -> dict[str, bytes]:
    """Return a figure of the runs at a protocol, by the name of its file; nothing if there are none."""
    made = None if item.is_table else figure(item, records, protocol)
    return {} if made is None else {f"{protocol.mark(item.name)}.{made[0]}": made[1]}


def _drawable(protocol: Protocol) -> set[str]:
    """Return the names of all files that :func:`draw_all` may make."""
    figures = [item.name for item in ITEMS.values() if not item.is_table]
    return {f"{protocol.mark(name)}.{kind}" for name in figures for kind in ("png", "svg")}


def printed(records: Records, protocol: Protocol, costs: Costs | None, pictures: dict[str, bytes]) -> str:
    """Return what stands between the marks of the page. The hours are those of the full protocol, and on its page."""
    addresses = {name.split(".")[0]: f"pictures/paper/{name}" for name in pictures}
    lines = sections(records, protocol, costs if protocol is FULL else None, addresses)
    return "\n".join((BEGIN, "", *lines, "", END))


def write_page(records: Records, protocol: Protocol, costs: Costs | None, page: Path) -> None:
    """Print what was run at a protocol into a page, between two marks; figures go to ``pictures/paper`` beside it.

    Figures there that are no longer drawn are removed; other files stay.
    """
    before, begin, rest = (page.read_text(encoding="utf-8") if page.exists() else "").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise FileError(f"{page} lacks the two lines between which to print: {BEGIN} and {END}")
    pictures = draw_all(records, protocol)
    folder = page.parent / "pictures" / "paper"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        write_atomic(folder / name, content)
    for name in _drawable(protocol) - pictures.keys():
        (folder / name).unlink(missing_ok=True)
    write_atomic(page, f"{before}{printed(records, protocol, costs, pictures)}{after}".encode())


def write_item(item: Item, records: Records, out: Path, only: str = "") -> Iterator[str]:
    """Write a table as Markdown or a figure, one file for each protocol that was run; return lines that show it.

    Parameters
    ----------
    item, records
        The table or figure, and what it is made of.
    out
        The folder to write to.
    only
        Show only rows of cells with these whole parts in their path; the file has all rows.
    """
    chosen = dataclasses.replace(item, lines=tuple(line for line in item.lines if is_chosen(line.cell, only)))
    for protocol in PROTOCOLS:
        files = _drawn(item, records, protocol)
        if item.is_table and records.count(item, protocol):
            files = {f"{protocol.mark(item.name)}.md": "\n".join([*_text(item, records, protocol), ""]).encode()}
            if records.count(chosen, protocol):
                yield from _text(chosen, records, protocol)
        for name, content in files.items():
            write_atomic(out / name, content)
            yield f"{item.title}, {protocol.name}: written to {out / name}"


def _text(item: Item, records: Records, protocol: Protocol) -> list[str]:
    note = [item.note, ""] if item.note else []
    return [item.title, "", *table(item, records, protocol), "", *note, f"{protocol.name}: {protocol.text}"]
