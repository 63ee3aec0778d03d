"""A run directory: one writer, complete files, and all that is needed to resume or to repeat the run."""

import dataclasses
import errno
import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch

from bype.data.decode import decode
from bype.data.files import WRITE_FLAGS, FileError, overwrite, read_json, to_json, write_atomic
from bype.run.checkpoint import CheckpointFolder
from bype.run.config import TrainingConfig
from bype.run.identity import DataIdentity
from bype.run.lock import LockError, RunLock
from bype.span import Span, steps_per_epoch
from bype.system import open_file

FORMAT_VERSION = 5
_READ_VERSIONS = (2, 3, 4, 5)
_KEPT_CHECKPOINTS = 2
_WRITTEN = (
    "audit.json",
    "best",
    "broken.json",
    "checkpoints",
    "config.json",
    "evaluation.json",
    "manifest.json",
    "metrics.jsonl",
    "monitor.prom",
    "pace.json",
    "status.json",
    "tensorboard",
    "timings.jsonl",
)
"""What a run directory holds, apart from the lock."""
_WRITTEN_BY_OTHERS = (".audit.json.", ".evaluation.json.", ".report.html.")
"""The beginnings of partial files that commands without the lock write into it, maybe just now."""
_OLD_SECONDS = 3600.0
"""Nobody writes a partial file any more that was not changed for so long."""
_FENCE_WAITS = (0.1, 0.5, 2.0, 5.0)
"""Seconds to wait before the lock is read again, if that failed."""
_SHOWN = 4
"""How many differences between two configs a message names."""


class RunError(RuntimeError):
    """A run that cannot begin or resume, and why."""


class RunDirectory:
    """The folder of one run, held by one process.

    Use it as a context manager: it takes the lock, and releases it. A token in the lock's file fences off a process
    that has lost the lock without noticing: the token is compared before every write.

    Parameters
    ----------
    folder
        The folder; it is made if it does not exist.
    patience
        How many seconds to wait for another process that holds the lock and may soon end.
    note
        Called with a line of text before such a wait.
    """

    def __init__(self, folder: Path, patience: float = 0.0, note: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder
        self.checkpoints = CheckpointFolder(folder / "checkpoints", _KEPT_CHECKPOINTS, self.check_fence)
        self.best = CheckpointFolder(folder / "best", 1, self.check_fence)
        self.lock = RunLock(folder, patience, note)

    def __enter__(self) -> Self:
        try:
            self._refuse_others_files()
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock.acquire()
        except LockError as holder:
            raise RunError(
                f"{self.folder} is being trained by {holder}; wait for it, or choose another --out; "
                f"if it was killed, try again in a minute"
            ) from None
        except OSError as error:
            raise RunError(f"cannot write to {error.filename or self.folder}: {error.strerror}") from error
        try:
            self._remove_partials()
        except BaseException:
            self.lock.release()
            raise
        return self

    def _remove_partials(self) -> None:
        for left in self.folder.glob(".*.partial"):  # of a process that was killed while it wrote
            if left.is_dir():  # a store that is being prepared
                continue
            with suppress(FileNotFoundError):  # it was finished meanwhile
                is_ours = not left.name.startswith(_WRITTEN_BY_OTHERS)
                if is_ours or time.time() - left.stat().st_mtime > _OLD_SECONDS:
                    left.unlink()
        for kept in (self.checkpoints, self.best):
            kept.remove_partials()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()

    def _refuse_others_files(self) -> None:
        """Refuse a folder in which a run would overwrite files that are not of a run."""
        found = [name for name in _WRITTEN if os.path.lexists(self.folder / name)]
        if not found:
            return
        try:
            read_config(self.folder)
        except RunError as error:
            raise RunError(
                f"{self.folder} holds {' and '.join(found[:2])}, but no run that can resume ({error}); "
                f"choose another --out"
            ) from error

    def check_fence(self) -> None:
        """Refuse to write if another process has taken the run over; a network disk may need some seconds to tell."""
        for wait in (*_FENCE_WAITS, None):
            try:
                is_ours = self.lock.is_ours()
                break
            except OSError as error:
                if wait is None or isinstance(error, FileNotFoundError):
                    raise RunError(f"cannot read the lock of {self.folder}: {error.strerror}") from error
                time.sleep(wait)
        if not is_ours:
            raise RunError(f"another process has taken over {self.folder}; this one stops and writes nothing")
        self.lock.beat()

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file of the run."""
        write_atomic(self.folder / name, to_json({"version": FORMAT_VERSION, **content}), self.check_fence)

    def write_text(self, name: str, text: str) -> None:
        """Replace a text file of the run; nothing depends on it."""
        write_atomic(self.folder / name, text.encode(), self.check_fence)

    def append(self, name: str, content: Any) -> None:
        """Add a line to a file of the run; nothing depends on it."""
        self.check_fence()
        with os.fdopen(open_file(self.folder / name, WRITE_FLAGS | os.O_APPEND), "a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")

    def subfolder(self, name: str) -> Path:
        """Return a folder in the run, to write to."""
        folder = self.folder / name
        if folder.is_symlink():
            raise RunError(f"{folder} is a link; bype does not write through links: replace it by a folder")
        return folder

    def save_or_compare_config(self, config: TrainingConfig, data: DataIdentity) -> None:
        """Save the config and the data's identity, or compare them with those of the run in this folder.

        A longer length is accepted, and saved later by :meth:`save_changes`.
        """
        if not self.checkpoints.steps():  # nothing was trained yet, or nothing that could be resumed
            if self.best.steps() and not (self.folder / "manifest.json").exists():  # training writes that file first
                raise RunError(
                    f"{self.folder} holds a model that was saved or shared, which cannot be trained further; "
                    f"choose another --out"
                )
            results = [name for name in ("evaluation.json", "audit.json") if (self.folder / name).exists()]
            if results or self._had_checkpoint():
                found = results[0] if results else "a trained model" if self.best.steps() else "a run that was trained"
                raise RunError(
                    f"{self.folder} holds {found}, but its checkpoints are gone, so it cannot be trained further; "
                    f"choose another --out, or remove the folder if you do not need what is in it"
                )
            self.check_fence()
            self._remove_leftovers(config, data)
            self.write("config.json", config_fields(config, data))
            return
        saved_config, saved_data = read_config(self.folder)
        is_same_data = saved_data.fingerprint == data.fingerprint
        if is_same_data and self._is_longer(saved_config, config, data):
            return  # it is saved when the run resumes
        if differences := saved_config.differences(config):
            more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
            is_length_alone = dataclasses.replace(saved_config, length=config.length) == config
            rule = "a length can only grow, and not if the rate decays or anything is in seconds or percent; "
            raise RunError(
                f"{self.folder} holds a run with another config ({'; '.join(differences[:_SHOWN])}{more}); "
                f"{rule if is_length_alone else ''}choose another folder (--out), or run the command that began it"
            )
        if not is_same_data:
            raise RunError(f"{self.folder} was trained on other data, not {data.store}; choose another --out")

    def save_changes(self, config: TrainingConfig, data: DataIdentity) -> None:
        """Save what may change in a run that resumes: a longer length, and where the same data are now."""
        saved_config, saved_data = read_config(self.folder)
        moved = dataclasses.replace(saved_data, store=data.store)
        if (config, moved) != (saved_config, saved_data):
            self.write("config.json", config_fields(config, moved))

    def _had_checkpoint(self) -> bool:
        """Tell whether the run had a checkpoint once; with a best model it had, if nothing says that it had none."""
        status = self._status()
        if not self.best.steps():
            return bool(status.get("checkpoint"))
        # Before there was the field "checkpoint", the step was that of the checkpoint unless the run had failed.
        return status.get("checkpoint", status.get("step")) != 0

    def _status(self) -> dict[str, Any]:
        """Return the status, empty if it cannot be read."""
        try:
            return read_status(self.folder)
        except FileError:
            return {}

    def is_finished(self) -> bool:
        """Tell whether training has come to its end."""
        return self._status().get("state") == "finished"

    def _remove_leftovers(self, config: TrainingConfig, data: DataIdentity) -> None:
        """Remove what a run left that failed before its first checkpoint."""
        for folder in (self.best.folder, self.folder / "tensorboard"):
            shutil.rmtree(folder, ignore_errors=True)
        names = ["broken.json", "timings.jsonl"]
        if (self.folder / "config.json").exists():
            saved_config, saved_data = read_config(self.folder)
            if saved_config != config or saved_data.fingerprint != data.fingerprint:
                names.append("pace.json")  # with the same config and data, the run follows the clock of the run before
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def _is_longer(self, saved: TrainingConfig, config: TrainingConfig, data: DataIdentity) -> bool:
        """Tell whether only the length has changed, nothing else depends on it, and it was not exceeded yet."""
        length, before = Span.parse(config.length), Span.parse(saved.length)
        depends = config.decay or Span.parse(config.validate_every).unit == "percent"
        depends = depends or not (length.is_fixed and before.is_fixed)
        if dataclasses.replace(saved, length=config.length) != config or depends:
            return False
        return length.in_steps(steps_per_epoch(data.num_train, config.batch_size)) >= max(self.checkpoints.steps())

    def set_status(self, state: str, **details: Any) -> None:
        """Write the state of the run: running, finished, stopped or failed; and where it would resume."""
        newest = max(self.checkpoints.steps(), default=0)
        content = {"state": state, **details, "checkpoint": newest, "updated": round(time.time(), 1)}
        try:
            self.write("status.json", content)
        except OSError as error:
            path = self.folder / "status.json"
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
                raise
            self.check_fence()
            overwrite(path, to_json({"version": FORMAT_VERSION, **content}))

    def describe_machine(self, data: DataIdentity, threads: int, processes: int, device: str) -> None:
        """Write what the results may depend on, besides config and data."""
        identity = {"store": data.store, "fingerprint": data.fingerprint}
        self.write("manifest.json", {**machine_fields(threads, processes, device), "data": identity})


def machine_fields(threads: int, processes: int, device: str) -> dict[str, Any]:
    """Return the versions and the kind of machine that results may depend on."""
    return {
        "bype": metadata.version("bype"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "threads": threads,
        "processes": processes,
        "device": device,
    }


@dataclass(frozen=True)
class _ConfigFile:
    version: Literal[5]
    config: TrainingConfig
    data: DataIdentity


def config_fields(config: TrainingConfig, data: DataIdentity) -> dict[str, Any]:
    """Return what the file of a config holds beside its version."""
    return {"config": config.to_fields(), "data": dataclasses.asdict(data)}


def read_config(folder: Path) -> tuple[TrainingConfig, DataIdentity]:
    """Read the config of a run and the identity of its data."""
    try:
        fields = read_json(folder / "config.json")
        _require_version(fields, folder)
        file = decode(_ConfigFile, _newest(fields))
    except FileError as error:
        raise RunError(str(error)) from error
    except ValueError as error:
        raise RunError(f"{folder / 'config.json'}: {error}") from error
    return file.config, file.data


def read_status(folder: Path) -> dict[str, Any]:
    """Read the state of a run, empty if there is none."""
    path = folder / "status.json"
    status = read_json(path) if path.exists() else {}
    if not isinstance(status, dict):
        raise FileError(f"{path} does not hold the state of a run; remove it and run the same command again")
    return status


def _newest(fields: Any) -> Any:
    """Return the fields of an older config file in the newest format; settings that did not exist then are off."""
    version = fields.get("version") if isinstance(fields, dict) else None
    if version not in _READ_VERSIONS[:-1] or not isinstance(fields.get("config"), dict):
        return fields
    added: dict[str, Any] = {"average": 0.0}
    if version < 4:
        added |= {"labelled": False, "points_start": "examples"}
    if version == 2:
        added |= {"dropout": 0.0, "flips": False, "shifts": 0, "decay": False, "scale_columns": False}
    return {**fields, "version": FORMAT_VERSION, "config": {**added, **fields["config"]}}


def _require_version(fields: Any, folder: Path) -> None:
    """Refuse a run of another format, and say which bype wrote it."""
    version = fields.get("version") if isinstance(fields, dict) else None
    if type(version) is int and version not in _READ_VERSIONS:
        made = read_json(folder / "manifest.json") if (folder / "manifest.json").exists() else {}
        maker = str(made.get("bype", "another version") if isinstance(made, dict) else "another version")[:40]
        raise RunError(
            f"{folder} is a run of format {version}, made by bype {maker}; this bype reads formats "
            f"{_READ_VERSIONS[0]} to {FORMAT_VERSION}: use that version, or train again"
        )
