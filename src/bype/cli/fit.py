"""From the data of a user to a report, in one go."""

import dataclasses
import hashlib
import math
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bype.cli.data import say_findings
from bype.cli.evaluate import describe
from bype.cli.options import MaybeCount, MaybeName, Seed, UsageError, parse
from bype.cli.output import result, say
from bype.wording import counted

if TYPE_CHECKING:
    from bype.data.store import Store
    from bype.evaluation.records import Evaluation
    from bype.run.opened import TrainedRun

_DRAWS, _IMAGES = 500, 500
_NEIGHBOURS = 5
_FEWEST, _FEWEST_FOR_TRAINING = 10, 4
_REQUEST, _LOCK = "fit.json", "fit.lock"
_MAX_MINUTES = 60 * 24 * 365


@dataclass(frozen=True)
class _Fit:
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Read a folder of images, a .csv, .npy, .npz or .parquet file, or a store"""
    out: Path
    """Write the run, the store and the report to this folder"""
    minutes: float = 2.5
    """Train for this long; preparing, evaluating and reporting take extra time"""
    size: MaybeCount = None
    """Crop images to a square and resize them to N x N pixels; if left out, only images larger than 64, or of
    different sizes, become 64 x 64"""
    label: MaybeName = None
    """Take labels from this column of a table"""
    latent_dim: MaybeCount = None
    """Set the dimensions of the latent space; more of them give better likelihoods and reconstructions, and worse
    samples. If left out: 40, but at most half the columns of a table and a fifth of the training examples"""
    points_start: Literal["examples", "noise"] = "examples"
    """Start pseudo-points as training examples, or as noise, which copies none: choose noise for private data. Then
    no class has points of its own, and bype sample --label does not work"""
    seed: Seed = 0


def fit(words: list[str]) -> int:
    """Prepare, train, evaluate and report."""
    options = parse(
        _Fit,
        words,
        "bype fit",
        "Prepare the data, train a model, evaluate it, and write a report. To resume, run the same command.",
    )
    if not 0 < options.minutes <= _MAX_MINUTES:
        raise UsageError(f"--minutes must be positive, and at most {_MAX_MINUTES:,} (a year), not {options.minutes}")
    if options.latent_dim is not None and options.latent_dim < 1:
        raise UsageError(f"--latent-dim must be at least 1, not {options.latent_dim}")
    from bype.console import progress_bar
    from bype.data.files import write_atomic
    from bype.distributed import place_among_processes
    from bype.evaluation.density import DensityOptions
    from bype.evaluation.evaluate import evaluate
    from bype.evaluation.records import read_results
    from bype.report.contents import gather
    from bype.report.page import render
    from bype.run.choice import length_of, suitable_config
    from bype.run.directory import read_config
    from bype.run.opened import TrainedRun
    from bype.training.display import Display, display_here
    from bype.training.loop import train

    if place_among_processes()[1] > 1:
        raise UsageError("bype fit is for one process; under torchrun use bype data prepare, train and evaluate")
    request, is_trained = _Request.of(options), False
    with _alone_in(options.out):
        if (options.out / "store").exists() or (options.out / "config.json").exists():
            request = _require_same_request(options, request)
            if is_trained := _is_finished(options.out):
                say(
                    f"{options.out} is trained already; showing its results. To train longer, choose another --out and "
                    f"more --minutes."
                )
            else:
                say(f"resuming {options.out}")
        store = _store(options, request)
        if (options.out / "config.json").exists():
            config, _ = read_config(options.out)
        else:
            config = suitable_config(
                store,
                length_of(options.minutes),
                options.seed,
                latent_dim=options.latent_dim,
                points_start=options.points_start,
            )
            if (options.out / _REQUEST).exists() or _is_free(options.out):  # not into a folder that training may refuse
                _write_request(options.out, request)
        if not is_trained:
            start = "PCA" if len(store.manifest.shape) == 3 else "factor analysis"
            length = counted(round(60 * options.minutes) or 1, "second")
            say(f"training a VAE that begins as {start}, with {config.components} pseudo-points, for {length}")
        outcome = train(config, store.folder, options.out, Display() if is_trained else display_here())
    if outcome.state == "stopped":
        say(f"stopped at step {outcome.step}. To resume, run the same command.")
        result(run=options.out, state=outcome.state, step=outcome.step)
        return 128 + (outcome.signal or 0)
    run = TrainedRun.open(options.out, store.folder)
    known = read_results(options.out).find(store.manifest.fingerprint, store.default_split)
    is_known = (
        known is not None
        and known.step == run.step
        and known.density is not None
        and known.density.num_samples >= _DRAWS  # bype evaluate may have measured less since
        and known.density.num_images >= min(_IMAGES, len(store.split(known.split)))
    )
    density = None if is_known else DensityOptions(_DRAWS, _IMAGES)
    found = evaluate(
        run, store.default_split, data=store.folder, density=density, with_baseline=True, stage=progress_bar
    )
    for line in _beside_the_linear_model(found, math.prod(run.data.shape)):
        say(line)
    page = options.out / "report.html"
    result(run=options.out, report=page, **dataclasses.asdict(found))
    write_atomic(page, render([gather(options.out, options.out.absolute().name, store.folder)]).encode())
    print(f"\nopen {page.absolute()} in a browser: pictures, and all figures")
    _say_what_to_try(run)
    return 0


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Refuse to work in a folder together with another fit; on a disk without locks, nobody can tell.

    At the end nothing is left that was not there, but for what the fit itself has written.
    """
    from bype.data.files import WRITE_FLAGS
    from bype.system import lock, open_file

    path, new_folders = out / _LOCK, [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    descriptor = open_file(path, WRITE_FLAGS)
    try:
        is_held = lock(descriptor) is False
        if is_held or not (path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())):
            raise UsageError(f"another bype fit is at work in {out}; wait for it, or choose another --out")
        try:
            yield
        finally:
            with suppress(OSError):  # Windows removes no open file
                path.unlink()
    finally:
        os.close(descriptor)
        with suppress(OSError):  # unless something was written
            for folder in new_folders:
                folder.rmdir()


def _is_finished(out: Path) -> bool:
    from bype.data.files import FileError
    from bype.run.directory import read_status

    try:
        return read_status(out).get("state") == "finished"
    except FileError:  # a full disk can damage it; training finds out what there is, and writes it anew
        return False


def _say_what_to_try(run: "TrainedRun") -> None:
    """Print commands that the run can be used with."""
    from bype.data.files import harmless

    print("\nthen try:")
    plate = "more.png" if len(run.data.shape) == 3 else "more.csv"
    folder = shlex.quote(str(run.folder))
    print(f"  bype sample {folder} --like 0 --count 9 --out {plate}")
    points = run.model.prior.own_points()
    if points is not None and points.labels is not None:
        name = run.data.classes[int(points.labels[0])]
        if harmless(name) == name:  # else nobody could paste it
            print(f"  bype sample {folder} --label {shlex.quote(name)} --out class{Path(plate).suffix}")
    print(f"  bype coreset {folder} --out coreset")
    print(f"  bype embed {folder} --out embedding")
    print(f"  bype score {folder} --out scores.csv")
    print(f"  bype audit {folder}  # before you share the model")
    print(f"  bype evaluate {folder}  # slower, and more exact")


def _beside_the_linear_model(found: "Evaluation", num_dimensions: int) -> Iterator[str]:
    """Say in a few lines how good the model is; the report has the rest."""
    if found.density is None or found.density.of_density is None or found.baseline is None:
        yield from describe(found)
        return
    linear, own = found.baseline, found.density
    rows = [
        ("-log p(x), nats per example", f"{own.of_density:,.1f}", f"{linear.negative_log_likelihood.value:,.1f}"),
        ("squared error of reconstructions", f"{linear.own_squared_error:.4g}", f"{linear.squared_error:.4g}"),
    ]
    if found.representation is not None and linear.knn_accuracy:
        accuracy, of_linear = found.representation.knn_accuracy, linear.knn_accuracy
        k = min(accuracy, key=lambda k: abs(int(k) - _NEIGHBOURS))
        queries = found.representation.num_queries
        same = queries == own.num_images
        name = f"accuracy of {k} nearest neighbours, %" if same else f"kNN accuracy (K = {k}) of {queries:,}, %"
        rows.append((name, f"{100 * accuracy[k]:.1f}", f"{100 * of_linear[k]:.1f}"))
    wide, examples = len(linear.kind), "on " + counted(own.num_images, f"{found.split} example")
    yield ""
    yield f"{examples:<36}  this model  {linear.kind}"
    for name, value, of_linear_model in rows:
        yield f"{name:<36}  {value:>10}  {of_linear_model:>{wide}}"
    yield ""
    yield linear.verdict(own, num_dimensions)
    if linear.gain_in_training is not None:
        yield f"Training gained {linear.gain_in_training:.1f} nats of validation -ELBO over the start of the model."


@dataclass(frozen=True)
class _Request:
    """What a fit was asked for, kept in its folder: only the same command resumes it."""

    data: str
    minutes: float
    size: int | None
    label: str | None
    seed: int
    latent_dim: int | None
    points_start: Literal["examples", "noise"]
    files: str | None
    """Changes with the files that the data are in; None if they are not known."""

    @classmethod
    def of(cls, options: _Fit) -> "_Request":
        from bype.data.files import printable
        from bype.data.sources.hub import PREFIX

        data = options.data if options.data.startswith(PREFIX) else str(Path(options.data).absolute())
        files = _digest(Path(data), options.out)
        given = {name: getattr(options, name) for name in ("size", "label", "seed", *_ABOUT_TRAINING)}
        return cls(data=printable(data), files=files, **given)


_ABOUT_DATA = ("data", "files", "size", "label")
_ABOUT_TRAINING = ("minutes", "latent_dim", "points_start")
_ADDED = {"latent_dim": None, "points_start": "examples", "files": None}
"""Fields that older requests do not have."""


def _digest(place: Path, out: Path) -> str | None:
    """Return a digest of the names, sizes and times of a file, or of all files below a folder that are not hidden.

    Return None for a store, which never changes, for data on the hub, which have a revision, and if nothing is there.
    """
    from bype.data.store import is_store

    if not place.exists() or is_store(place):
        return None
    found = [place] if place.is_file() else []
    seen = {os.path.realpath(out)}  # --out may be inside the folder of the data
    for folder, folders, names in os.walk(place, followlinks=True):
        inner = {name: os.path.realpath(Path(folder, name)) for name in sorted(folders) if not name.startswith(".")}
        folders[:] = [name for name, real in inner.items() if real not in seen]  # links may lead in a circle
        seen.update(inner.values())
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    stats = {path: path.stat() for path in sorted(found) if path.exists()}
    lines = [f"{path.relative_to(place)} {stat.st_size} {stat.st_mtime_ns}\n" for path, stat in stats.items()]
    return hashlib.sha256(os.fsencode("".join(lines))).hexdigest()


def _require_same_request(options: _Fit, asked: _Request) -> _Request:
    """Refuse to resume a fit of other data or settings, whose results would be taken for those that were asked for.

    Return the request to keep: the store of a run may stand for the data that it was made from.
    """
    from bype.data.decode import decode_file

    path = options.out / _REQUEST
    if not path.exists():
        return asked  # killed just before it was written
    saved = decode_file(_Request, path, lambda fields: {**_ADDED, **fields} if isinstance(fields, dict) else fields)
    if _is_own_store(options):
        asked = dataclasses.replace(asked, **{name: getattr(saved, name) for name in _ABOUT_DATA})
    if asked.files is None or saved.files is None:
        asked = dataclasses.replace(asked, files=saved.files)
    may_change = () if (options.out / "config.json").exists() else _ABOUT_TRAINING  # nothing is trained yet
    for name in (field.name for field in dataclasses.fields(_Request) if field.name not in may_change):
        before, now = getattr(saved, name), getattr(asked, name)
        if before != now and name == "files":
            raise UsageError(
                f"{options.data} has changed since this fit began; choose another --out. "
                f"To use the data as they were: {_command_for_own_store(options)}"
            )
        if before != now:
            before, now = ("unset" if value is None else value for value in (before, now))
            raise UsageError(
                f"{options.out} holds a fit with {name if name == 'data' else _flag(name)} {before}, not {now}; "
                f"choose another --out, or run the command that began it"
            )
    return asked


def _command_for_own_store(options: _Fit) -> str:
    """Return the command that resumes a fit with its store."""
    words = [str(options.out / "store"), "--out", str(options.out), "--minutes", str(options.minutes)]
    for name in ("seed", "latent_dim", "points_start"):
        if (value := getattr(options, name)) != getattr(_Fit, name):
            words += [_flag(name), str(value)]
    return shlex.join(["bype", "fit", *words])


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _is_own_store(options: _Fit) -> bool:
    """Tell whether the data are the store in the run's folder, or the one that it was trained on, at another place."""
    from bype.data.store import Store, is_store
    from bype.run.directory import read_config

    if not is_store(options.data):
        return False
    if os.path.realpath(options.data) == os.path.realpath(options.out / "store"):
        return True
    if not (options.out / "config.json").exists():
        return False
    return read_config(options.out)[1].fingerprint == Store(Path(options.data)).manifest.fingerprint


def _store(options: _Fit, request: _Request) -> "Store":
    """Open the store, or make it."""
    from bype.console import progress_bar
    from bype.data.prepare import prepare, with_workable_size
    from bype.data.sources import SourceOptions
    from bype.data.store import Store, is_store
    from bype.data.writer import partial_of

    if is_store(options.data):
        if options.size is not None or options.label is not None:
            raise UsageError("a store is prepared already; leave out --size and --label")
        _require_usable(Store(options.data))
        return Store(options.data)
    folder = options.out / "store"
    if folder.exists():
        return Store(folder)
    if not _is_free(options.out):
        raise UsageError(f"{options.out} exists and is not empty; choose another --out")
    asked = SourceOptions(label=options.label, size=options.size)
    chosen = with_workable_size(options.data, asked)
    if chosen.size != asked.size:
        say(f"images are cropped and resized to {chosen.size} x {chosen.size} pixels; --size sets another size")
    options.out.mkdir(parents=True, exist_ok=True)
    _write_request(options.out, request)  # before the store, so that no other command can take it for its own
    is_ours = False
    try:
        with progress_bar("preparing") as report:
            prepared = prepare(options.data, folder, chosen, seed=options.seed, progress=report)
        is_ours = True
        say_findings(prepared)
        _require_usable(Store(folder))
    except Exception:
        if is_ours:  # so that this command reads the data again when the user has corrected them
            shutil.rmtree(folder, ignore_errors=True)
        if not (folder.exists() or partial_of(folder).exists()):  # else another process is at work here
            (options.out / _REQUEST).unlink(missing_ok=True)
        raise
    counts = ", ".join(f"{split.num_rows:,} {name}" for name, split in prepared.manifest.splits.items())
    skipped = f"; {len(prepared.skipped)} files were skipped, see above" if prepared.skipped else ""
    say(f"{prepared.manifest.source}: {counts}{skipped}")
    return Store(folder)


def _is_free(out: Path) -> bool:
    """Tell whether a folder holds no more than what a fit writes before it trains."""
    from bype.data.writer import partial_of

    ours = (_REQUEST, _LOCK, "store", partial_of(out / "store").name)
    return not out.exists() or all(
        path.name in ours or fnmatch(path.name, f".{_REQUEST}.*.partial") for path in out.iterdir()
    )


def _require_usable(store: "Store") -> None:
    from bype.run.choice import require_normal

    require_normal(store)
    total = sum(split.num_rows for split in store.manifest.splits.values())
    if total < _FEWEST:
        raise UsageError(f"{store.manifest.source} has {counted(total, 'example')}; bype fit needs at least {_FEWEST}")
    if (count := store.manifest.splits["train"].num_rows) < _FEWEST_FOR_TRAINING:
        raise UsageError(f"{store.manifest.source} has {counted(count, 'training example')}; give more")
    if "validation" not in store.manifest.splits:
        raise UsageError(
            f"{store.manifest.source} leaves no example to validate with; give more, or repair the skipped files"
        )


def _write_request(out: Path, request: _Request) -> None:
    from bype.data.files import to_json, write_atomic

    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / _REQUEST, to_json(dataclasses.asdict(request)))
