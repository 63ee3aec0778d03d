"""How many hours tables and figures take, from the paces that were measured for their cells."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bype.data.decode import decode_file
from bype.data.files import FileError, to_json, write_atomic
from bype.evaluation.augmentation import CLASSIFIER_BATCH
from bype.paper.cells import DATA_LABELS, FULL, LABELS, NETWORK_LABELS, REDUCED, Cell, Protocol, config_of
from bype.paper.items import ITEMS, Item, cells_of
from bype.span import Span, steps_per_epoch

FILE_NAME = "cost.json"
ASSUMED_EPOCHS = 500
"""At full protocol validation decides when to stop; the runs so far stopped after 381 to 600 epochs."""
_BATCH = 100
"""The examples of a step at full protocol."""


@dataclass(frozen=True)
class DataSize:
    """The shape of a data set's examples, and how many there are."""

    shape: tuple[int, int, int]
    num_train: int
    num_validation: int
    num_test: int
    stand_ins: int
    """So many random examples stand for the training examples while we measure.

    With the Exemplar prior all of them are components in evaluation. On CelebA the decoder takes nearly all the time of
    a draw, so that few are enough.
    """


DATA = {
    "mnist": DataSize((1, 28, 28), 50_000, 10_000, 10_000, 50_000),
    "fashion-mnist": DataSize((1, 28, 28), 50_000, 10_000, 10_000, 50_000),
    "cifar10": DataSize((3, 32, 32), 40_000, 10_000, 10_000, 40_000),
    "binarised-mnist": DataSize((1, 28, 28), 50_000, 10_000, 10_000, 50_000),
    "celeba": DataSize((3, 64, 64), 26_000, 2_000, 2_000, 500),
}


@dataclass(frozen=True)
class Pace:
    """Seconds that a kind of cell takes."""

    step: float
    """For a step of training at full protocol, on 100 examples."""
    update: float
    """For a batch of an update of the pseudocoreset; 0 without updates."""
    draw: float
    """For one importance sample of one image."""
    classifier: float
    """For a step of the classifier."""


def seconds(cell: Cell, pace: Pace, protocol: Protocol, num_classifiers: int) -> float:
    """Return how long a cell takes.

    Validation counts as a third of as many training steps: it has no backward pass. The larger batches of the reduced
    protocol count as so many steps of 100 examples, which is more than they take.
    """
    protocol, data = protocol.of(cell.data, cell.network), DATA[cell.data]
    classifiers = num_classifiers * protocol.classifier_epochs * data.num_train / CLASSIFIER_BATCH * pace.classifier
    if not cell.has_model:
        return classifiers
    config = config_of(cell, protocol)
    per_epoch = steps_per_epoch(data.num_train, config.batch_size)
    epochs = min(Span.parse(config.length).in_steps(per_epoch) / per_epoch, ASSUMED_EPOCHS)
    training = pace.step * (epochs * data.num_train + max(epochs, 1) * data.num_validation / 3) / _BATCH
    if every := getattr(config.rule, "every", None):
        num_updates = epochs / (Span.parse(every).in_steps(per_epoch) / per_epoch)
        training += num_updates * (protocol.update_steps or per_epoch) * pace.update * config.batch_size / _BATCH
    measuring = (protocol.images or data.num_test) * protocol.draws * pace.draw
    return training + measuring + classifiers


def hours(items: tuple[Item, ...], paces: Mapping[str, Pace], protocol: Protocol, seeds: int) -> float:
    """Return how many hours items take together; a cell that several share is counted once.

    Parameters
    ----------
    items
        The tables and figures.
    paces
        The pace of each cell, by its path; cells that are not in it are left out.
    protocol, seeds
        How long, and how often.
    """
    total = 0.0
    for cell, lines in cells_of(items, seeds):
        if cell.path in paces:
            classifiers = {line.classifier for line in lines} - {None}
            total += seconds(cell, paces[cell.path], protocol, len(classifiers))
    return total / 3600


def is_measured(item: Item, paces: Mapping[str, Pace]) -> bool:
    """Tell whether the pace of any cell of an item is known."""
    return any(cell.path in paces for cell in item.cells)


@dataclass(frozen=True)
class Costs:
    """What was measured on a machine, for the page."""

    version: Literal[1] = dataclasses.field(default=1, kw_only=True)
    commit: str | None
    platform: str
    torch: str
    """The version of PyTorch."""
    threads: int
    paces: dict[str, Pace]
    """By the path of a cell."""

    def write(self, folder: Path) -> None:
        """Write the file in the folder of the records."""
        write_atomic(folder / FILE_NAME, to_json(dataclasses.asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "Costs | None":
        """Read the file; None if nothing was measured yet."""
        path = folder / FILE_NAME
        try:
            return decode_file(cls, path) if path.exists() else None
        except FileError as error:
            raise FileError(f"{error}; remove the file and measure again: bype reproduce cost --out") from error


def lines_of(costs: Costs, seeds: int) -> Iterator[str]:
    """Say for every item of which something was measured how long it takes, and all of them together."""
    paces = costs.paces
    measured = [item for item in ITEMS.values() if is_measured(item, paces)]
    for title, items in [*((item.name, (item,)) for item in measured), ("all", tuple(measured))]:
        full, reduced = (hours(items, paces, protocol, seeds) for protocol in (FULL, REDUCED))
        cells = len([cell for cell, _ in cells_of(items, seeds) if cell.path in paces])
        yield f"{title:<9} {full:>10,.1f} h full, {reduced:>8,.2f} h reduced, for {cells} trainings"
    yield (
        f"with {seeds} seeds, one process, threads: {costs.threads}; assumed: {ASSUMED_EPOCHS} epochs at "
        "full protocol, where validation decides; items that share cells train them once; kNN, maps and pictures take "
        "minutes more for each cell"
    )


def hours_by_prior(costs: Costs) -> tuple[list[str], list[list[str]]]:
    """Return a table of the hours that a cell takes at full protocol: its head, and a row for each network."""
    cells = {cell.path: cell for item in (ITEMS["table1"], ITEMS["table4"]) for cell in item.cells}
    priors = [
        prior
        for prior in dict.fromkeys(cell.prior for cell in cells.values())
        if not prior.endswith(("-decay", "-average"))
    ]
    rows = []
    for data, network in dict.fromkeys((cell.data, cell.network) for cell in cells.values()):
        paths = [f"{data}/{network}/{prior}" for prior in priors]
        took = [
            f"{seconds(cells[path], costs.paces[path], FULL, 0) / 3600:,.1f}" if path in costs.paces else ""
            for path in paths
        ]
        rows.append([DATA_LABELS[data], NETWORK_LABELS[network], *took])
    return ["data", "network", *(LABELS[prior] for prior in priors)], rows
