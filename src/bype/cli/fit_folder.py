"""The folder of a fit: what it was asked for, and who may work there. Only the same command resumes it."""

import dataclasses
import hashlib
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal

import tyro

from bype.cli.options import MaybeName, Seed, UsageError, without_default

REQUEST, _LOCK = "fit.json", "fit.lock"


@dataclass(frozen=True)
class FitOptions:
    """What a user asks for."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Read a folder of images, a .csv, .npy, .npz or .parquet file, or a store"""
    out: Path
    """Write the run, the store and the report to this folder"""
    minutes: float = 2.5
    """Train for this long; preparing, evaluating and reporting take extra time"""
    size: Annotated[
        int | None,
        without_default(
            "N",
            "Crop images to a square and resize them to N x N pixels; if left out, only images larger than 64, or of "
            "different sizes, become 64 x 64",
        ),
    ] = None
    label: MaybeName = None
    """Take labels from this column of a table"""
    latent_dim: Annotated[
        int | None,
        without_default(
            "N",
            "Set the dimensions of the latent space; with many images, more of them give better likelihoods and "
            "reconstructions, and worse samples. If left out: 40, but at most half the columns of a table and a fifth "
            "of the training examples",
        ),
    ] = None
    points_start: Annotated[
        Literal["examples", "noise"],
        tyro.conf.arg(
            help="Start pseudo-points as training examples, or as noise, which copies none: choose noise for private "
            "data. Then no class has points of its own, and bype sample --label does not work"
        ),
    ] = "examples"
    seed: Seed = 0


@dataclass(frozen=True)
class Request:
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
    def of(cls, options: FitOptions) -> "Request":
        """Return what the options ask for, with the state that the data's files are in now."""
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
    digest = hashlib.sha256()
    for path in sorted(found):
        if path.exists():
            stat = path.stat()
            digest.update(os.fsencode(f"{path.relative_to(place)} {stat.st_size} {stat.st_mtime_ns}\n"))
    return digest.hexdigest()


def require_same_request(options: FitOptions, asked: Request) -> Request:
    """Refuse to resume a fit of other data or settings, whose results would be taken for those that were asked for.

    Return the request to keep: the store of a run may stand for the data that it was made from.
    """
    from bype.data.decode import decode_file

    path = options.out / REQUEST
    if not path.exists() and (options.out / "config.json").exists() and not _is_own_store(options):
        raise UsageError(
            f"{options.out} holds a run or a model that bype fit did not make, maybe of other data; choose another "
            f"--out, or look at it with bype report {options.out}"
        )
    if not path.exists():
        return asked  # killed just before it was written
    saved = decode_file(Request, path, lambda fields: {**_ADDED, **fields} if isinstance(fields, dict) else fields)
    if _is_own_store(options):
        asked = dataclasses.replace(asked, **{name: getattr(saved, name) for name in _ABOUT_DATA})
    if asked.files is None or saved.files is None:
        asked = dataclasses.replace(asked, files=saved.files)
    may_change = () if (options.out / "config.json").exists() else _ABOUT_TRAINING  # nothing is trained yet
    for name in (field.name for field in dataclasses.fields(Request) if field.name not in may_change):
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


def _command_for_own_store(options: FitOptions) -> str:
    """Return the command that resumes a fit with its store."""
    words = [str(options.out / "store"), "--out", str(options.out), "--minutes", str(options.minutes)]
    for name in ("seed", "latent_dim", "points_start"):
        if (value := getattr(options, name)) != getattr(FitOptions, name):
            words += [_flag(name), str(value)]
    return shlex.join(["bype", "fit", *words])


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _is_own_store(options: FitOptions) -> bool:
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


def is_free(out: Path) -> bool:
    """Tell whether a folder holds no more than what a fit writes before it trains."""
    from bype.data.writer import partial_of

    ours = (REQUEST, _LOCK, "store", partial_of(out / "store").name)
    return not out.exists() or all(
        path.name in ours or fnmatch(path.name, f".{REQUEST}.*.partial") for path in out.iterdir()
    )


def write_request(out: Path, request: Request) -> None:
    """Keep a request in the folder of its fit."""
    from bype.data.files import to_json, write_atomic

    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / REQUEST, to_json(dataclasses.asdict(request)))


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Refuse to work in a folder together with another fit; on a disk without locks, nobody can tell.

    At the end nothing is left that was not there, but for what the fit itself has written.
    """
    from bype.data.files import alone

    new_folders = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    try:
        with alone(out / _LOCK, wait=False) as is_alone:
            if not is_alone:
                raise UsageError(f"another bype fit is at work in {out}; wait for it, or choose another --out")
            yield
    finally:
        with suppress(OSError):  # unless something was written
            for folder in new_folders:
                folder.rmdir()
