"""Showing runs on a page."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bype.cli.options import Force, MaybePath, UsageError, parse, require_free, require_store, without_default
from bype.cli.output import result, say


@dataclass(frozen=True)
class _Report:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, without_default("RUN [RUN ...]")]
    """Show these run directories; several are shown side by side"""
    out: Path
    """Write the page to this .html file, which needs no other file"""
    data: MaybePath = None
    """Look here for the store that the runs were trained on, if it has moved"""
    force: Force = False


def report(words: list[str]) -> int:
    """Make a page."""
    options = parse(_Report, words, "bype report", "Show runs on one page.")
    from bype.data.files import write_atomic
    from bype.report.contents import gather
    from bype.report.page import render

    if not options.runs:
        raise UsageError("name at least one run: bype report RUN --out report.html")
    if options.out.suffix not in (".html", ".htm"):
        raise UsageError(f"cannot write a page to {options.out}; choose a name that ends in .html")
    require_free(options.out, options.force)
    require_store(options.data)
    names = _names(options.runs)
    contents = [gather(folder, name, options.data) for folder, name in zip(options.runs, names, strict=True)]
    page = render(contents)
    write_atomic(options.out, page.encode())
    for run in contents:
        for note in run.notes:
            say(f"{run.name}: {note}", sys.stderr)
    print(f"{options.out}, {max(1, len(page) // 1000):,} kB; open it in a browser")
    notes = {run.name: run.notes for run in contents if run.notes}
    result(out=options.out, bytes=len(page.encode()), notes=notes)
    return 0


def _names(folders: tuple[Path, ...]) -> list[str]:
    """Return the shortest ends of the paths that tell the runs apart."""
    paths = [folder.absolute().parts for folder in folders]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]
