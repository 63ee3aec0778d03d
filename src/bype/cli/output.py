"""What a command prints: lines for people; with --json one object; with --quiet nothing but errors."""

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

HELP = "With --json it prints its result as one JSON object, with --quiet only errors."
_found: dict[str, Any] = {}


def result(**fields: Any) -> None:
    """Keep what a command has found, for --json."""
    _found.update(fields)


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
        print(json.dumps(_found, default=_plain, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a result holds a {type(value).__name__}, which JSON cannot hold")
