"""Reproducing the paper's tables and figures."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bype.cli.options import Flag, MaybePath, UsageError, parse, shard_of, without_default
from bype.cli.output import result, say


@dataclass(frozen=True)
class _Reproduce:
    item: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ITEM")]
    """Make this table or figure, such as table1 or figure4 (bype reproduce list names them), or all"""
    stores: Path
    """Read the data from this folder of stores: one for each data set, such as mnist; missing ones are left out"""
    out: Path
    """Keep records, pictures and the table in this folder; what is there already is not computed again"""
    only: Annotated[str, without_default("NAME")] = ""
    """Train and print only cells with these whole parts in their name, such as fashion-mnist, vae/bype or bype"""
    seeds: int = 3
    """Train each cell with this many seeds; the paper takes 3"""
    shard: Annotated[str | None, without_default("I/N")] = None
    """Do the part of worker I of N, counted from 0, such as 2/8"""
    reduced: Flag = False
    """Use the reduced protocol: a cell takes minutes instead of hours, and its numbers are marked as reduced"""


@dataclass(frozen=True)
class _List:
    out: MaybePath = None
    """Show what the records in this folder hold; results/paper if left out"""


@dataclass(frozen=True)
class _Cost:
    only: Annotated[str, without_default("NAME")] = ""
    """Measure only cells with these whole parts in their name, such as fashion-mnist, vae/bype or bype"""
    seeds: int = 3
    """Count this many seeds"""
    out: MaybePath = None
    """Also write what was measured to cost.json in this folder of records, for the page; not with --only"""


@dataclass(frozen=True)
class _Page:
    out: Path
    """Read the records in this folder"""
    page: Annotated[
        Path,
        tyro.conf.arg(
            help="Write the tables into this Markdown file, between the two comment lines that docs/results/paper.md "
            "has; figures go to pictures/paper beside it"
        ),
    ]
    reduced: Flag = False
    """Write the numbers of the reduced protocol instead of those of the full one"""


def reproduce_list(words: list[str]) -> int:
    """List the tables and figures."""
    options = parse(_List, words, "bype reproduce list", "List every table and figure of the paper, and what was run.")
    from bype.paper.page import overview
    from bype.paper.records import Records

    if options.out is not None:
        _require_folder(options.out)
    lines = list(overview(Records.read(options.out or Path("results/paper"))))
    for line in lines:
        print(line)
    result(items=lines)
    return 0


def reproduce_cost(words: list[str]) -> int:
    """Estimate how long every table and figure takes on this machine."""
    what = "Measure a few steps of every kind of cell, and estimate the hours that each table and figure takes here."
    options = parse(_Cost, words, "bype reproduce cost", what)
    from tempfile import TemporaryDirectory

    from bype.paper.cost import measure
    from bype.paper.hours import lines_of
    from bype.paper.items import ITEMS, cells_of

    cells = [cell for cell, _ in cells_of(tuple(ITEMS.values()), 1, options.only)]
    _require_some(cells, options.only)
    if options.seeds < 1:
        raise UsageError("take at least one seed")
    if options.out is not None:
        _require_folder(options.out)
        if options.only:
            raise UsageError("the page needs the hours of every cell: leave out --only or --out")
    with TemporaryDirectory() as folder:
        costs = measure(cells, Path(folder), print)
    if options.out is not None:
        costs.write(options.out)
    lines = list(lines_of(costs, options.seeds))
    for line in lines:
        print(line)
    result(items=lines)
    return 0


def reproduce_page(words: list[str]) -> int:
    """Write the page of all tables and figures."""
    options = parse(_Page, words, "bype reproduce page", "Write all tables and figures of a protocol into a page.")
    from bype.paper.cells import FULL, REDUCED
    from bype.paper.hours import Costs
    from bype.paper.page import write_page
    from bype.paper.records import Records

    _require_folder(options.out)
    protocol = REDUCED if options.reduced else FULL
    write_page(Records.read(options.out), protocol, Costs.read(options.out), options.page)
    print(f"written to {options.page}")
    result(file=options.page)
    return 0


def reproduce(words: list[str]) -> int:
    """Train and measure what is missing of a table or figure, and write it."""
    what = (
        "Train and measure what is missing of a table or figure, and write it. To resume, run the same command.\n\n"
        "See also: bype reproduce list, bype reproduce cost, bype reproduce page."
    )
    options = parse(_Reproduce, words, "bype reproduce", what)
    from bype.console import progress_bar
    from bype.paper.cells import FULL, REDUCED, preparation
    from bype.paper.items import ITEMS, cells_of
    from bype.paper.page import write_item
    from bype.paper.records import FILE_NAME, Records
    from bype.paper.reproduce import StoppedError, fill_cells
    from bype.training.display import display_here

    if options.item != "all" and options.item not in ITEMS:
        raise UsageError(f"the paper has no {options.item!r}; see the list with: bype reproduce list")
    if options.seeds < 1:
        raise UsageError("take at least one seed")
    if not options.stores.is_dir():
        raise UsageError(f"there is no folder {options.stores}; make the stores in it with: bype data prepare")
    items = tuple(ITEMS.values()) if options.item == "all" else (ITEMS[options.item],)
    shard = (0, 1) if options.shard is None else shard_of(options.shard)
    chosen = [cell for cell, _ in cells_of(items, options.seeds, options.only)]
    _require_some(chosen, options.only)
    work = cells_of(items, options.seeds, options.only, shard)
    protocol = REDUCED if options.reduced else FULL
    data = list(dict.fromkeys(cell.data for cell in chosen))
    records = (options.out / protocol.mark(cell.name) / FILE_NAME for cell in chosen)
    if not any((options.stores / name).exists() for name in data) and not any(map(Path.exists, records)):
        raise UsageError(
            f"there is no store for {' or '.join(data)} in {options.stores}; get the files of {data[0]}, and make it "
            f"with: {preparation(data[0], options.stores)}"
        )
    options.out.mkdir(parents=True, exist_ok=True)

    def show(text: str) -> None:
        say(text)
        sys.stdout.flush()

    def warn(text: str) -> None:
        say(text, sys.stderr)

    try:
        unfilled = fill_cells(work, protocol, options.stores, options.out, show, warn, display_here, progress_bar)
    except StoppedError as error:
        warn(str(error))
        result(items=[item.name for item in items], folder=options.out, state="stopped")
        return 128 + error.signal
    broken: list[str] = []
    found = Records.read(options.out, broken.append)
    for item in items:
        for line in write_item(item, found, options.out, options.only):
            print(line)
    failed = len(unfilled.failed)
    if failed:
        warn(f"{failed} of {len(work)} cells failed, see above; to try them again, run the same command")
    for text in broken:
        warn(f"left out of the tables: {text}")
    names = [item.name for item in items]
    result(items=names, folder=options.out, broken_records=broken, **dataclasses.asdict(unfilled))
    return 1 if failed or broken else 0


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; give the --out of an earlier bype reproduce")


def _require_some(cells: object, only: str) -> None:
    if not cells:
        raise UsageError(f"no cell has the part {only!r}; give whole parts of a name, like fashion-mnist or vae/bype")
