"""The records of cells: what is left of a training when its run directory is gone."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bype.data.files import FileError, read_json
from bype.paper.cells import Cell, Protocol
from bype.paper.items import Classifier, Item, Line

FILE_NAME = "record.json"
PLATE_LINES = 14
"""Lines of the picture ``plates.png`` beside a record: one for each of the heaviest components."""


@dataclass(frozen=True)
class Record:
    """A cell that was trained and measured."""

    folder: Path
    cell: Cell
    protocol: str
    """``full``, perhaps with a remark after a comma, or ``reduced``."""
    content: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Record":
        """Read the record in a folder."""
        content = read_json(folder / FILE_NAME)
        try:
            record = cls(folder, Cell(**content["cell"]), str(content["protocol"]), content)
            record.evaluation["density"]["negative_log_likelihood"]["value"]
        except (KeyError, TypeError, StopIteration) as error:
            raise FileError(f"{folder / FILE_NAME} is not the record of a cell; remove it") from error
        return record

    @property
    def evaluation(self) -> dict[str, Any]:
        """What was measured on the test split."""
        return next(found for found in self.content["results"]["evaluations"] if found["split"] == "test")

    @property
    def fingerprint(self) -> str:
        """The checksum of the data."""
        return str(self.content["data"]["fingerprint"])

    def classifiers(self, protocol: Protocol) -> list[Classifier]:
        """Return the classifiers that were trained at a protocol."""
        entries = self.content["results"].get("augmentation", ())
        return [
            Classifier(entry["way"], entry["real_share"])
            for entry in entries
            if entry["epochs"] == protocol.classifier_epochs
        ]

    def value(self, line: Line, protocol: Protocol) -> Any:
        """Return what a line takes from the record; None if it is not in it."""
        results, evaluation = self.content["results"], self.evaluation
        density = evaluation["density"]
        match line.measure:
            case "nll":
                return density["negative_log_likelihood"]["value"]
            case "kl":
                return sum(level["value"] for level in density["kl"].values())
            case "seconds":
                return self.content.get("seconds_per_epoch")
            case "error" if line.classifier is not None:
                return next(
                    (
                        sum(entry["test_errors"]) / len(entry["test_errors"])
                        for entry in results.get("augmentation", ())
                        if (entry["way"], entry["real_share"]) == (line.classifier.way, line.classifier.real_share)
                        and entry["epochs"] == protocol.classifier_epochs
                    ),
                    None,
                )
            case "knn":
                return (evaluation.get("representation") or {}).get("knn_accuracy")
            case "map":
                return evaluation.get("map")
            case "curve":
                return self.content.get("curve", {}).get("rows")
            case picture:
                path = self.folder / f"{picture}.png"
                return path if path.exists() else None


def is_comparable(line: Line, protocol: Protocol) -> bool:
    """Tell whether a number of a protocol may stand in the table: seconds of runs with other batches may not."""
    return not (line.measure == "seconds" and protocol.suffix)


class Records:
    """All records in a folder."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.all = sorted(records, key=lambda record: record.cell.seed)

    @classmethod
    def read(cls, folder: Path) -> "Records":
        """Read the records in the subfolders of a folder."""
        return cls(Record.read(path.parent) for path in sorted(folder.glob(f"*/{FILE_NAME}")))

    def of(self, cell: Cell, protocol: Protocol) -> list[Record]:
        """Return the records of a cell for all seeds, in their order."""
        return [
            record
            for record in self.all
            if record.cell.path == cell.path and record.protocol.split(",")[0] == protocol.name
        ]

    def values(self, line: Line, protocol: Protocol) -> dict[int, Any]:
        """Return by seed what a line takes from its records, as far as they have it."""
        if not is_comparable(line, protocol):
            return {}
        found = {record.cell.seed: record.value(line, protocol) for record in self.of(line.cell, protocol)}
        return {seed: value for seed, value in found.items() if value is not None}

    def count(self, item: Item, protocol: Protocol) -> int:
        """Count the lines of an item that have a value."""
        return sum(bool(self.values(line, protocol)) for line in item.lines)
