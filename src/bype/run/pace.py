"""pace.json: what the clock said in a training whose length is a time."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bype.data.decode import decode_file


@dataclass(frozen=True)
class Pace:
    """Before ``step``, ``seconds`` of training had passed; the clock is read again before ``next``.

    The seconds include what the last validation is expected to take.
    """

    step: int
    seconds: float
    next: int

    def __post_init__(self) -> None:
        if not (0 <= self.step < self.next and self.seconds >= 0):
            raise ValueError("a pace needs 0 <= step < next, and seconds that are not negative")


@dataclass(frozen=True)
class _PaceFile:
    version: Literal[3, 4, 5]
    paces: list[Pace]


def read_paces(folder: Path) -> list[Pace]:
    """Read what the clock said in a run, which may come from a stranger."""
    path = folder / "pace.json"
    return decode_file(_PaceFile, path).paces if path.exists() else []


def paces_file(paces: list[Pace]) -> dict[str, Any]:
    """Return the content of the file."""
    return {"paces": [asdict(pace) for pace in paces]}
