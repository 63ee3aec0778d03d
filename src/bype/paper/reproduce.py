"""Filling cells: train, measure, draw, and keep a record. Several processes may share the work."""

import itertools
import json
import platform
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bype.data.examples import StoreSource
from bype.data.files import to_json, write_atomic
from bype.data.store import Store
from bype.evaluation import generation
from bype.evaluation.augmentation import classifier_error
from bype.evaluation.density import DensityOptions, faster_precision
from bype.evaluation.evaluate import Stage, evaluate, silent
from bype.evaluation.records import ClassifierError, read_results, write_results
from bype.models.base import LatentModel
from bype.paper.cells import Cell, Protocol, config_of
from bype.paper.items import Classifier, Line
from bype.paper.records import FILE_NAME, Record
from bype.plates import is_image_shape, plate, png, to_bytes
from bype.run.lock import LockError, RunLock
from bype.run.opened import TrainedRun
from bype.span import Span, steps_per_epoch
from bype.training.display import Display
from bype.training.loop import train

_PLATES, _PLATE_SAMPLES = 14, 10
_SAMPLE_LINES = 8
_BEAT_SECONDS = 2.0


class StoppedError(RuntimeError):
    """A request to stop came while a cell was trained."""

    def __init__(self, signal: int) -> None:
        super().__init__("stopped; to resume, run the same command")
        self.signal = signal


def fill_cells(
    work: Sequence[tuple[Cell, list[Line]]],
    protocol: Protocol,
    stores: Path,
    out: Path,
    say: Callable[[str], None],
    display: Callable[[], Display] = Display,
    stage: Stage = silent,
) -> None:
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
    say
        Called with a line of text.
    display, stage
        Show the progress of training and of measuring.
    """
    for cell, lines in work:
        folder = out / f"{cell.name}{protocol.suffix}"
        title = f"{cell.path}, seed {cell.seed}" + (f", {protocol.name}" if protocol.suffix else "")
        if not (stores / cell.data).exists():
            say(f"{title}: left out, there is no store {stores / cell.data}")
        elif _is_done(folder, lines, protocol):
            say(f"{title}: done before")
        else:
            if (folder / FILE_NAME).exists() and not (out / "runs" / folder.name / "run").exists():
                say(f"{title}: its record lacks something, and its run is gone; it is trained again")
            try:
                with _held(out / "runs" / folder.name) as workplace:
                    if _is_done(folder, lines, protocol):
                        say(f"{title}: done before")
                        continue
                    say(f"{title}: begins")
                    _fill(cell, lines, protocol, stores / cell.data, workplace / "run", folder, display(), stage)
                    say(f"{title}: done")
            except LockError as holder:
                say(f"{title}: left out, {holder} is working on it")


def _is_done(folder: Path, lines: Sequence[Line], protocol: Protocol) -> bool:
    if not (folder / FILE_NAME).exists():
        return False
    record = Record.read(folder)
    return all(record.value(line, protocol) is not None for line in lines)


@contextmanager
def _held(folder: Path) -> Iterator[Path]:
    """Hold a cell while the block runs, so that no other process fills it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, ended = RunLock(folder), threading.Event()
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
    data: Path,
    folder: Path,
    out: Path,
    display: Display,
    stage: Stage,
) -> None:
    """Train and measure what a cell still lacks, and write its record."""
    store, protocol = Store(data), protocol.of(cell.network)
    outcome = train(config_of(cell, protocol), data, folder, display)
    if outcome.state != "finished":
        raise StoppedError(outcome.signal or 0)
    run = TrainedRun.open(folder, data)
    known = read_results(folder).find(store.manifest.fingerprint, "test")
    if known is None or known.step != run.step or known.density is None:
        density = DensityOptions(protocol.draws, protocol.images, precision=faster_precision())
        evaluate(run, "test", data=data, density=density, max_examples=protocol.images, stage=stage)
    for classifier in dict.fromkeys(line.classifier for line in lines if line.classifier is not None):
        _train_classifier(run, store, classifier, protocol.classifier_epochs, cell.seed, stage)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in _pictures(run, store).items():
        write_atomic(out / f"{name}.png", content)
    write_atomic(out / FILE_NAME, to_json(_record(cell, protocol, store, folder)))


def _train_classifier(
    run: TrainedRun, store: Store, classifier: Classifier, epochs: int, seed: int, stage: Stage
) -> None:
    results, fingerprint = read_results(run.folder), store.manifest.fingerprint
    way, share = classifier.way, classifier.real_share
    key = (run.step, fingerprint, way, share, epochs)
    if any((e.step, e.fingerprint, e.way, e.real_share, e.epochs) == key for e in results.augmentation):
        return
    with stage(f"training a classifier, lambda {share:g}, latents from the {way}") as report:
        error = classifier_error(run, store, way, share, epochs=epochs, seed=seed, report=report)
    found = ClassifierError(run.step, fingerprint, way, share, epochs, len(store.split("train")), [error])
    write_results(run.folder, results.with_augmentation([found]))


def _pictures(run: TrainedRun, store: Store) -> dict[str, bytes]:
    """Draw what the figures need: samples, samples from the heaviest components, reconstructions, interpolations."""
    model = run.model
    if not is_image_shape(run.data.shape):
        return {}
    generator = torch.Generator().manual_seed(0)
    prior = model.prior_distribution()
    drawn = generation.sample(model, _SAMPLE_LINES**2, prior=prior, generator=generator)
    test = store.split("test")
    x = StoreSource(test).take(torch.arange(min(20, len(test))))
    made = generation.reconstruct(model, x)
    pairs = zip(x[:16:2], x[1:16:2], strict=False)  # the last of an odd number of examples has no partner
    pictures = {
        "sample": torch.split(drawn, _SAMPLE_LINES),
        "reconstruct": [part for pair in zip(torch.split(x, 10), torch.split(made, 10), strict=True) for part in pair],
        "interpolate": [generation.interpolate(model, start, end, 10) for start, end in pairs],
    }
    if has_points(model):
        pictures["plates"] = [
            generation.sample(model, _PLATE_SAMPLES, component=k, prior=prior, generator=generator)
            for k in generation.heaviest_components(prior, _PLATES)
        ]
    scale = max(1, 64 // run.data.shape[-1])
    return {
        name: png(plate([to_bytes(line.numpy()) for line in lines]), scale) for name, lines in pictures.items() if lines
    }


def has_points(model: LatentModel) -> bool:
    """Tell whether a model's prior has points of its own, whose samples can be shown."""
    return model.prior.own_points() is not None


def _record(cell: Cell, protocol: Protocol, store: Store, run: Path) -> dict[str, Any]:
    """Describe a cell: what was trained, of which source and data, on what, and what was found."""
    config = json.loads((run / "config.json").read_text())["config"]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [
        [line["epoch"], *(round(line[split]["negative_elbo"], 4) for split in ("train", "validation"))]
        for line in metrics
        if "validation" in line
    ]
    epochs = curve[-1][0]
    machine = json.loads((run / "manifest.json").read_text())
    machine.pop("data")  # where the store was
    steps = steps_per_epoch(len(store.split("train")), config["batch_size"])
    return {
        "cell": {"data": cell.data, "network": cell.network, "prior": cell.prior, "seed": cell.seed},
        "protocol": protocol.name + (f", capped at {config['length']}" if is_capped(config, epochs) else ""),
        "commit": commit(),
        "machine": {**machine, "platform": platform.platform()},
        "data": {"fingerprint": store.manifest.fingerprint},
        "run": config,
        "status": json.loads((run / "status.json").read_text()),
        "epochs": epochs,
        "seconds_per_epoch": seconds_per_epoch(run, steps),
        "curve": {"columns": ["epoch", "train -ELBO", "validation -ELBO"], "rows": curve},
        "results": json.loads((run / "evaluation.json").read_text()),
    }


def is_capped(config: Mapping[str, Any], epochs: float) -> bool:
    """Tell whether a training that may stop by itself went on until it was stopped."""
    length = Span.parse(config["length"])
    may_stop = Span.parse(config["patience"]).count > 0
    return may_stop and length.unit == "epochs" and epochs >= length.count


def seconds_per_epoch(run: Path, steps: int) -> float | None:
    """Return how long an epoch took on average, with validation and updates; None if that is not known."""
    path = run / "timings.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    seconds = done = 0.0
    for before, after in itertools.pairwise(lines):
        passed, steps_apart = (after[name] - before[name] for name in ("seconds_in_process", "step"))
        if passed > 0 and steps_apart >= 0:  # else another process resumed in between; an update adds time and no step
            seconds += passed
            done += steps_apart
    return round(seconds / done * steps, 3) if done else None


def commit() -> str | None:
    """Return the commit of this source, and whether it was changed since; None if it is not in a clone of bype."""
    git, here = shutil.which("git"), Path(__file__).parent
    if git is None:
        return None
    asked = (
        ["ls-files", "--error-unmatch", __file__],  # fails if another project's clone holds an installed bype
        ["rev-parse", "HEAD"],
        ["status", "--porcelain", "--", str(here.parent)],
    )
    try:
        _, head, changes = (
            subprocess.run([git, "-C", str(here), *words], capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
            for words in asked
        )
    except subprocess.CalledProcessError:
        return None
    return f"{head}, with changes" if changes else head
