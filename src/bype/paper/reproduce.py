"""Filling cells: train, measure, draw, and keep a record. Several processes may share the work."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bype.console import Stage, no_stage
from bype.data.examples import StoreSource
from bype.data.files import to_json, write_atomic
from bype.data.manifest import SPLITS
from bype.data.store import Store
from bype.evaluation import generation
from bype.evaluation.augmentation import classifier_error
from bype.evaluation.density import DensityOptions, Precision, faster_precision
from bype.evaluation.evaluate import earlier_evaluation, evaluate
from bype.evaluation.records import ClassifierError, Evaluation, change_results, read_results
from bype.paper.cells import Cell, Protocol, config_of, preparation
from bype.paper.items import Classifier, Line
from bype.paper.provenance import commit, describe_classifier, describe_run, is_capped
from bype.paper.records import FILE_NAME, PLATE_LINES, Record
from bype.plates import is_image_shape, plate, png, to_bytes
from bype.run.config import TrainingConfig
from bype.run.directory import RunError, read_config, read_status
from bype.run.lock import LockError, RunLock
from bype.run.opened import TrainedRun
from bype.training.display import Display
from bype.training.loop import train

_PLATE_SAMPLES = 10
_SAMPLE_LINES = 8
_BEAT_SECONDS = 2.0


class StoppedError(RuntimeError):
    """A request to stop came while a cell was trained."""

    def __init__(self, signal: int) -> None:
        super().__init__("stopped; to resume, run the same command")
        self.signal = signal


@dataclass(frozen=True)
class Unfilled:
    """Cells that a call has not filled, each with the reason."""

    failed: list[str] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)
    """Without a store, or in the hands of another process."""


def fill_cells(
    work: Sequence[tuple[Cell, list[Line]]],
    protocol: Protocol,
    stores: Path,
    out: Path,
    say: Callable[[str], None],
    warn: Callable[[str], None] | None = None,
    display: Callable[[], Display] = Display,
    stage: Stage = no_stage,
) -> Unfilled:
    """Fill the cells that are missing, and say what happens to each.

    Parameters
    ----------
    work
        From :func:`bype.paper.items.cells_of`.
    protocol
        How long to train and how well to measure.
    stores
        A folder with a store for each data set, under its name.
    out
        The folder of the records; run directories are in its subfolder ``runs``.
    say, warn
        Called with a line of text: the second one about cells that are not filled, the first one if there is no second.
    display, stage
        Show the progress of training and of measuring.
    """
    unfilled = Unfilled()
    for cell, lines in work:
        title = f"{cell.path}, seed {cell.seed}" + (f", {protocol.name}" if protocol.suffix else "")

        def tell(text: str, title: str = title) -> None:
            say(f"{title}: {text}")

        reason, kept = "", unfilled.left_out
        try:
            if (stores / cell.data).exists():
                _fill_if_missing(cell, lines, protocol, stores / cell.data, out, tell, display, stage)
            else:
                reason = f"left out, there is no store {stores / cell.data}"
        except LockError as holder:
            reason = f"left out, {holder} is working on it"
        except (RunError, ValueError) as error:  # such as a loss that is not finite; other cells may do better
            reason, kept = f"failed, {error}", unfilled.failed
        if reason:
            (warn or say)(f"{title}: {reason}")
            kept.append(f"{title}: {reason}")
    return unfilled


def _fill_if_missing(
    cell: Cell,
    lines: Sequence[Line],
    protocol: Protocol,
    data: Path,
    out: Path,
    tell: Callable[[str], None],
    display: Callable[[], Display],
    stage: Stage,
) -> None:
    folder, store = out / protocol.mark(cell.name), Store(data)
    for split in SPLITS:
        store.split(split)  # raises if there is none
    if cell.data == "binarised-mnist" and store.manifest.dtype != "binarised":
        raise RunError(f"{data} is not binarised; make it with: {preparation(cell.data, data.parent)}")
    if _is_done(cell, folder, lines, protocol, store):
        tell("done before")
        return
    if cell.has_model and (folder / FILE_NAME).exists() and not (out / "runs" / folder.name / "run").exists():
        tell("its record lacks something, and its run is gone; it is trained again")
    with _held(out / "runs" / folder.name, tell) as workplace:
        if _is_done(cell, folder, lines, protocol, store):  # by another process, in the meantime
            tell("done before")
            return
        tell("begins")
        if cell.has_model:
            _fill(cell, lines, protocol, store, workplace, folder, display(), stage)
        else:
            _fill_without_model(cell, lines, protocol, store, folder, stage)
        tell("done")


def _is_done(cell: Cell, folder: Path, lines: Sequence[Line], protocol: Protocol, store: Store) -> bool:
    if not (folder / FILE_NAME).exists():
        return False
    record = Record.read(folder)
    if record.fingerprint != store.manifest.fingerprint:
        raise RunError(f"the record in {folder} is of other data than the store; choose another --out, or remove it")
    if record.evaluation is None:  # of a classifier without a model
        return all(record.value(line, protocol) is not None for line in lines)
    own = protocol.of(cell.data, cell.network)
    differing = _differences(record.content.get("run", {}), config_of(cell, own).to_fields())
    if not _is_measured(record.evaluation, own, len(store.split("test"))):
        differing.append("draws or test images")
    if differing:
        raise RunError(
            f"the record in {folder} has another {', '.join(differing)} than the protocol; move it away to run the cell"
        )
    return all(record.value(line, protocol) is not None for line in lines)


def _differences(recorded: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Return the settings in which a record differs; older records lack some, or have 0 for none."""
    found = []
    for name in recorded.keys() & wanted.keys():
        there, here = recorded[name], wanted[name]
        if isinstance(there, dict) and isinstance(here, dict):
            found += _differences(there, here)
        elif (there or None) != (here or None):
            found.append(name)
    return sorted(found)


@contextmanager
def _held(folder: Path, note: Callable[[str], None]) -> Iterator[Path]:
    """Hold a cell while the block runs, so that no other process fills it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, ended = RunLock(folder, note=note), threading.Event()
    lock.acquire()

    def beat() -> None:
        while not ended.wait(_BEAT_SECONDS):
            lock.beat()

    heart = threading.Thread(target=beat, daemon=True)
    heart.start()
    try:
        yield folder
    finally:
        ended.set()
        heart.join()
        lock.release()


def _fill(
    cell: Cell,
    lines: Sequence[Line],
    protocol: Protocol,
    store: Store,
    workplace: Path,
    out: Path,
    display: Display,
    stage: Stage,
) -> None:
    """Train and measure what a cell still lacks, and write its record."""
    protocol, folder = protocol.of(cell.data, cell.network), workplace / "run"
    config = config_of(cell, protocol)
    # To call train for a finished run would describe this machine, and not the one that trained.
    if not _is_trained(folder, config, store):
        _note_commit(workplace)
        outcome = train(config, store.folder, folder, display)
        if outcome.state != "finished" or outcome.signal is not None:  # there are other cells, and much to measure
            raise StoppedError(outcome.signal or 0)
    run = TrainedRun.open(folder, store.folder)
    known = earlier_evaluation(run, store, "test")
    if known is None or not _is_measured(known, protocol, len(store.split("test"))):
        density = DensityOptions(protocol.draws, protocol.images, precision=_precision(workplace))
        evaluate(run, "test", data=store.folder, density=density, max_examples=protocol.images, stage=stage)
    # Those of an earlier record too: it is replaced, and another table may need them.
    earlier = Record.read(out).classifiers(protocol) if (out / FILE_NAME).exists() else ()
    for classifier in dict.fromkeys([*earlier, *(line.classifier for line in lines if line.classifier is not None)]):
        _train_classifier(run, store, classifier, protocol.classifier_epochs, cell.seed, stage)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in _pictures(run, store).items():
        write_atomic(out / f"{name}.png", content)
    found = describe_run(folder, store, _commits(workplace))
    cap = f", capped at {config.length}" if is_capped(config, found["epochs"]) else ""
    _write_record(out, cell, protocol.name + cap, found)


def _fill_without_model(
    cell: Cell, lines: Sequence[Line], protocol: Protocol, store: Store, out: Path, stage: Stage
) -> None:
    """Train the classifier of real examples that the lines take, and write its record."""
    (chosen,) = {line.classifier for line in lines if line.classifier is not None}
    way, share, epochs, began = chosen.way, chosen.real_share, protocol.classifier_epochs, time.perf_counter()
    with stage("training a classifier on real examples") as report:
        percent = classifier_error(None, store, way, share, epochs=epochs, seed=cell.seed, report=report)
    num_train, fingerprint = len(store.split("train")), store.manifest.fingerprint
    error = ClassifierError(0, fingerprint, way, share, epochs, num_train, [percent])
    found = describe_classifier(error, time.perf_counter() - began)
    _write_record(out, cell, protocol.name, found)


def _write_record(out: Path, cell: Cell, protocol: str, found: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / FILE_NAME, to_json({"cell": dataclasses.asdict(cell), "protocol": protocol, **found}))


def _is_trained(folder: Path, config: TrainingConfig, store: Store) -> bool:
    if read_status(folder).get("state") != "finished":
        return False
    trained, data = read_config(folder)
    if data.fingerprint != store.manifest.fingerprint:
        raise RunError(f"{folder} was trained on other data than the store; choose another --out, or remove it")
    return trained == config


def _is_measured(evaluation: Evaluation, protocol: Protocol, num_test: int) -> bool:
    density, images = evaluation.density, min(protocol.images or num_test, num_test)
    return density is not None and (density.num_samples, density.num_images) == (protocol.draws, images)


def _note_commit(workplace: Path) -> None:
    """Note which source trains: the record is written hours later, perhaps when another commit is checked out."""
    now, before = commit() or "unknown", _commits(workplace)
    if before is None or not before.endswith(now):
        write_atomic(workplace / "commits", (now if before is None else f"{before}, then {now}").encode())


def _commits(workplace: Path) -> str | None:
    path = workplace / "commits"
    return path.read_text() if path.exists() else None


def _precision(workplace: Path) -> Precision:
    """Choose the precision once: an evaluation that resumes in another one would start anew."""
    path = workplace / "precision"
    if not path.exists():
        write_atomic(path, faster_precision().encode())
    return "bfloat16" if path.read_text() == "bfloat16" else "float32"


def _train_classifier(
    run: TrainedRun, store: Store, classifier: Classifier, epochs: int, seed: int, stage: Stage
) -> None:
    fingerprint = store.manifest.fingerprint
    way, share = classifier.way, classifier.real_share
    key = (run.step, fingerprint, way, share, epochs)
    known = read_results(run.folder).augmentation
    if any((e.step, e.fingerprint, e.way, e.real_share, e.epochs) == key for e in known):
        return
    with stage(f"training a classifier, lambda {share:g}, latents from the {way}") as report:
        error = classifier_error(run.model, store, way, share, epochs=epochs, seed=seed, report=report)
    found = ClassifierError(run.step, fingerprint, way, share, epochs, len(store.split("train")), [error])
    change_results(run.folder, lambda results: results.with_augmentation([found]))


def _pictures(run: TrainedRun, store: Store) -> dict[str, bytes]:
    """Draw what the figures need: samples, interpolations, samples from the heaviest components."""
    model = run.model
    if not is_image_shape(run.data.shape):
        return {}
    generator = torch.Generator().manual_seed(0)
    prior = model.prior_distribution()
    drawn = generation.sample(model, _SAMPLE_LINES**2, prior=prior, generator=generator)
    test = store.split("test")
    x = StoreSource(test).take(torch.arange(min(16, len(test))))
    pairs = zip(x[::2], x[1::2], strict=False)  # the last of an odd number of examples has no partner
    pictures = {
        "sample": torch.split(drawn, _SAMPLE_LINES),
        "interpolate": [generation.interpolate(model, start, end, 10) for start, end in pairs],
    }
    if model.prior.own_points() is not None:
        pictures["plates"] = [
            generation.sample(model, _PLATE_SAMPLES, component=k, prior=prior, generator=generator)
            for k in generation.heaviest_components(prior, PLATE_LINES)
        ]
    scale = max(1, 64 // run.data.shape[-1])
    return {
        name: png(plate([to_bytes(line.numpy()) for line in lines]), scale) for name, lines in pictures.items() if lines
    }
