"""metrics.jsonl: what happened in a run, a line for each thing."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bype.data.decode import decode
from bype.data.files import READ_FLAGS, FileError, parse_json
from bype.system import open_file

_MAX_LINE_BYTES, _MAX_METRICS_BYTES = 2**16, 2**27
"""A line has some hundred bytes; the file may have so many that a run could be validated after every step."""
_MOST_EPOCHS = 1e15
"""A chart cannot tell epochs above this from each other."""


@dataclass(frozen=True)
class MetricsLine:
    """A line of metrics.jsonl: what happened after a step, as numbers by part and name."""

    step: int
    epoch: float
    parts: dict[str, dict[str, float]]

    def __post_init__(self) -> None:
        if self.step < 0 or not 0 <= self.epoch <= _MOST_EPOCHS:
            raise ValueError(f"step {self.step} and epoch {self.epoch}")


def read_metrics(folder: Path) -> list[MetricsLine]:
    """Read the metrics of a run, which may come from a stranger."""
    path = folder / "metrics.jsonl"
    if not os.path.lexists(path):
        return []
    lines = []
    for number, text in enumerate(_bounded_lines(path), start=1):
        if not text.endswith(b"\n"):
            break  # a full disk cut it off; a run that resumes removes it
        try:
            fields = parse_json(text)
            if not isinstance(fields, dict):
                raise FileError("it is not an object")
            parts = {name: value for name, value in fields.items() if isinstance(value, dict)}
            own = {name: fields[name] for name in ("step", "epoch") if name in fields}
            lines.append(decode(MetricsLine, {**own, "parts": parts}))
        except ValueError as error:
            raise FileError(f"{path}, line {number}, is broken: {error}") from error
    return lines


def _bounded_lines(path: Path) -> Iterator[bytes]:
    num_bytes = 0
    try:
        with os.fdopen(open_file(path, READ_FLAGS), "rb") as file:
            while text := file.readline(_MAX_LINE_BYTES + 1):
                num_bytes += len(text)
                if len(text) > _MAX_LINE_BYTES or num_bytes > _MAX_METRICS_BYTES:
                    raise FileError(
                        f"{path} has over {_MAX_METRICS_BYTES:,} bytes, or over {_MAX_LINE_BYTES:,} in a line: "
                        f"more than allowed"
                    )
                yield text
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error


def _bytes_before(path: Path, num_bytes: int, step: int) -> int:
    """Return how long the lines are that are complete and of earlier steps, within so many bytes.

    A resumed run writes those of ``step`` and later ones again, or has lost them.
    """
    kept = 0
    with suppress(FileError, TypeError, KeyError):  # the first line that is no line of ours is the end
        for text in _bounded_lines(path):
            if parse_json(text)["step"] >= step or not text.endswith(b"\n") or kept + len(text) > num_bytes:
                break
            kept += len(text)
    return kept


class MetricsFile:
    """metrics.jsonl: a line for each thing that happened, without any time of day, so that two equal runs are equal.

    Its length at each checkpoint is saved, and a resumed run cuts off what came after. If lines were lost, the run
    continues with those that are left: nothing depends on them.

    Parameters
    ----------
    path
        The file.
    num_bytes, step
        Its length at the checkpoint, and the step of the checkpoint.
    warn
        Called if lines were lost.
    """

    def __init__(self, path: Path, num_bytes: int, step: int, warn: Callable[[str], None]) -> None:
        self._file = os.fdopen(open_file(path, os.O_RDWR | os.O_CREAT), "r+b")
        if not self._ends_at(num_bytes, step):
            kept = _bytes_before(path, num_bytes, step)
            warn(
                f"{path} has lost lines: {num_bytes:,} bytes at the checkpoint of step {step}, {kept:,} now; "
                f"training continues without them"
            )
            num_bytes = kept
        self._file.truncate(num_bytes)
        self._file.seek(num_bytes)

    def _ends_at(self, place: int, step: int) -> bool:
        """Tell whether a line of a step up to this one ends at a place."""
        if place == 0 or os.fstat(self._file.fileno()).st_size < place:
            return place == 0
        start = max(0, place - _MAX_LINE_BYTES)
        self._file.seek(start)
        tail = self._file.read(place - start)
        try:
            return tail.endswith(b"\n") and bool(parse_json(tail.splitlines()[-1])["step"] <= step)
        except (FileError, TypeError, KeyError):
            return False

    def append(self, line: dict[str, Any]) -> None:
        """Add a line."""
        self._file.write((json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode())
        self._file.flush()

    def sync(self) -> int:
        """Wait until all lines are on the disk, and return their length."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # a line that did not fit on the disk; :meth:`append` has raised
            self._file.close()
