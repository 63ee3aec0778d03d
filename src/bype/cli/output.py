"""What a command prints: lines for people; with --json one object; with --quiet only errors, warnings and notes."""

import dataclasses
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

HELP = "Add --json to print the result as one JSON object, or --quiet to print only errors, warnings and notes."
_found: dict[str, Any] = {}


def result(**fields: Any) -> None:
    """Keep what a command has found, for --json."""
    _found.update(fields)


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line, to standard output if no file is given; on a terminal too narrow for it, break it between words.

    Names in files of strangers may hold commands for the terminal: these are shown, not obeyed.
    """
    from bype.data.files import harmless

    file, text = file or sys.stdout, "\n".join(map(harmless, text.split("\n")))
    print(wrapped(text) if file.isatty() else text, file=file)


def wrapped(text: str, columns: int | None = None) -> str:
    """Return a line as lines that fit the terminal, or these columns; all but the first are indented.

    The indent matters in help: tyro joins lines that begin with a letter.

    Examples
    --------
    >>> print(wrapped("  standard error over examples 38.702", columns=24))
      standard error over
        examples 38.702
    """
    start = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(
        text.strip(),
        columns or shutil.get_terminal_size().columns,
        initial_indent=start,
        subsequent_indent=start + "  ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


@contextmanager
def printing(words: list[str]) -> Iterator[list[str]]:
    """Take --json and --quiet out of the words of a command, and print what they ask for."""
    rest = [word for word in words if word not in ("--json", "--quiet")]
    _found.clear()
    if rest == words or {"-h", "--help", "--help-all"} & set(words):
        yield rest
        return
    from bype.console import silent

    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), silent():
        yield rest
    if "--json" in words and _found:
        print(json.dumps(_plain(_found), ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    """Return a result as what JSON can hold; a number that is not finite becomes null."""
    from bype.data.files import printable

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return printable(str(value)) if isinstance(value, str | Path) else value
