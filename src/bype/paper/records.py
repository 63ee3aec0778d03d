"""The records of cells: what is left of a training when its run directory is gone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bype.data.files import FileError, read_json
from bype.evaluation.records import ClassifierError, Density, Evaluation, results_from
from bype.paper.cells import Cell, Protocol
from bype.paper.items import Classifier, Item, Line

FILE_NAME = "record.json"
PLATE_LINES = 14
"""Lines of the picture ``plates.png`` beside a record: one for each of the heaviest components."""


@dataclass(frozen=True)
class Record:
    """A cell that was trained and measured; or a classifier of real examples, which has neither of the two measures."""

    folder: Path
    cell: Cell
    protocol: str
    """``full``, perhaps with a remark after a comma, or ``reduced``."""
    fingerprint: str
    """The checksum of the data."""
    evaluation: Evaluation | None
    """What was measured of the model on the test split."""
    density: Density | None
    """The likelihood of the test split."""
    errors: list[ClassifierError]
    """Of the classifiers."""
    content: dict[str, Any]
    """The fields of the file."""

    @classmethod
    def read(cls, folder: Path) -> "Record":
        """Read the record in a folder."""
        content = read_json(folder / FILE_NAME)
        try:
            cell, protocol = Cell(**content["cell"]), str(content["protocol"])
            fingerprint = str(content["data"]["fingerprint"])
            results = results_from(content["results"])
            evaluation = results.find(fingerprint, "test")
            density = None if evaluation is None else evaluation.density
            if cell.has_model and density is None:
                raise ValueError("the test split was not measured")
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{folder / FILE_NAME} is not the record of a cell ({error!r}); remove it") from error
        errors = [error for error in results.augmentation if error.fingerprint == fingerprint]
        return cls(folder, cell, protocol, fingerprint, evaluation, density, errors, content)

    def classifiers(self, protocol: Protocol) -> dict[Classifier, float]:
        """Return the classifiers that were trained at a protocol, and the test error of each in percent."""
        return {
            Classifier(entry.way, entry.real_share): sum(entry.test_errors) / len(entry.test_errors)
            for entry in self.errors
            if entry.epochs == protocol.classifier_epochs
        }

    def value(self, line: Line, protocol: Protocol) -> Any:
        """Return what a line takes from the record; None if it is not in it."""
        match line.measure:
            case "nll":
                return None if self.density is None else self.density.negative_log_likelihood.value
            case "kl":
                return None if self.density is None else sum(level.value for level in self.density.kl.values())
            case "seconds":
                return self.content.get("seconds_per_epoch")
            case "error" if line.classifier is not None:
                return self.classifiers(protocol).get(line.classifier)
            case "knn":
                found = None if self.evaluation is None else self.evaluation.representation
                return None if found is None else found.knn_accuracy
            case "map":
                return None if self.evaluation is None else self.evaluation.map
            case "curve":
                return self.content.get("curve", {}).get("rows")
            case picture:
                path = self.folder / f"{picture}.png"
                return path if path.exists() else None


def comparable(lines: Iterable[Line], protocol: Protocol) -> list[Line]:
    """Return the lines that a protocol can fill: seconds of reduced runs, which have other batches, do not count."""
    return [line for line in lines if not (line.measure == "seconds" and protocol.suffix)]


class Records:
    """All records in a folder."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.all = sorted(records, key=lambda record: record.cell.seed)

    @classmethod
    def read(cls, folder: Path, warn: Callable[[str], None] | None = None) -> "Records":
        """Read the records in the subfolders of a folder; with ``warn``, broken ones are left out and named to it."""
        found = []
        for path in sorted(folder.glob(f"*/{FILE_NAME}")):
            try:
                found.append(Record.read(path.parent))
            except FileError as error:
                if warn is None:
                    raise
                warn(str(error))
        return cls(found)

    def of(self, cell: Cell, protocol: Protocol) -> list[Record]:
        """Return the records of a cell for all seeds, in their order."""
        return [
            record
            for record in self.all
            if record.cell.path == cell.path and record.protocol.split(",")[0] == protocol.name
        ]

    def values(self, line: Line, protocol: Protocol) -> dict[int, Any]:
        """Return by seed what a line takes from its records, as far as they have it."""
        if not comparable([line], protocol):
            return {}
        found = {record.cell.seed: record.value(line, protocol) for record in self.of(line.cell, protocol)}
        return {seed: value for seed, value in found.items() if value is not None}

    def count(self, item: Item, protocol: Protocol) -> int:
        """Count the lines of an item that have a value."""
        return sum(bool(self.values(line, protocol)) for line in item.lines)
