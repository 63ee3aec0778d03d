"""A run directory: one writer, files that are whole, and enough to go on or to repeat the run."""

import dataclasses
import json
import os
import platform
import shutil
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from bype.data.files import READ_FLAGS, WRITE_FLAGS, FileError, is_number, parse_json, read_json, to_json, write_atomic
from bype.training.checkpoint import CheckpointFolder
from bype.training.config import ConfigError, Span, TrainingConfig, steps_per_epoch
from bype.training.identity import DataIdentity
from bype.training.lock import LockError, RunLock

FORMAT_VERSION = 1
_KEPT_CHECKPOINTS = 2
_MAX_METRICS_BYTES = 2**24
_WRITTEN = (
    "best",
    "broken.json",
    "checkpoints",
    "config.json",
    "evaluation.json",
    "manifest.json",
    "metrics.jsonl",
    "monitor.prom",
    "status.json",
    "tensorboard",
    "timings.jsonl",
)
"""What training writes into a run directory, apart from the lock."""


class RunError(RuntimeError):
    """A run that cannot begin or go on, and why."""


class RunDirectory:
    """The folder of one run, held by one process.

    Use it as a context manager: it takes the lock, and gives it back. A token in the lock's file fences off a process
    that has lost the lock without noticing: it is compared before every write.

    Parameters
    ----------
    folder
        Where it is; it is made if it does not exist.
    patience
        How many seconds to wait for another process that holds it and may be about to end.
    """

    def __init__(self, folder: Path, patience: float = 0.0) -> None:
        self.folder = folder
        self.checkpoints = CheckpointFolder(folder / "checkpoints", _KEPT_CHECKPOINTS, self.check_fence)
        self.best = CheckpointFolder(folder / "best", 1, self.check_fence)
        self.lock = RunLock(folder, patience)

    def __enter__(self) -> Self:
        try:
            self._refuse_others_files()
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock.acquire()
        except LockError as holder:
            raise RunError(
                f"{self.folder} is being trained by {holder}; wait for it, or choose another --out"
            ) from None
        except OSError as error:
            raise RunError(f"cannot write to {self.folder}: {error.strerror}") from error
        for left in self.folder.glob(".*.partial"):  # of a process that was killed while it wrote
            if not left.is_dir():  # a store that is being prepared is a folder, and not ours
                left.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()

    def _refuse_others_files(self) -> None:
        """Refuse a folder in which a run would write over files that are not a run's."""
        found = [name for name in _WRITTEN if os.path.lexists(self.folder / name)]
        if not found:
            return
        try:
            read_config(self.folder)
        except RunError as error:
            raise RunError(
                f"{self.folder} holds {' and '.join(found[:2])}, but no run that can go on ({error}); "
                f"choose another --out"
            ) from error

    def check_fence(self) -> None:
        """Refuse to write if another process has taken the run over."""
        try:
            is_ours = self.lock.is_ours()
        except OSError as error:
            raise RunError(f"cannot read the lock of {self.folder}: {error.strerror}") from error
        if not is_ours:
            raise RunError(f"another process has taken over {self.folder}; this one stops and writes nothing more")

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file of the run."""
        write_atomic(self.folder / name, to_json({"version": FORMAT_VERSION, **content}), self.check_fence)

    def write_text(self, name: str, text: str) -> None:
        """Replace a text file of the run that nothing depends on."""
        write_atomic(self.folder / name, text.encode(), self.check_fence)

    def append(self, name: str, content: Any) -> None:
        """Add a line to a file of the run that nothing depends on."""
        self.check_fence()
        with os.fdopen(os.open(self.folder / name, WRITE_FLAGS | os.O_APPEND, 0o644), "a") as file:
            file.write(json.dumps(content) + "\n")

    def subfolder(self, name: str) -> Path:
        """Return a folder in the run, to write to."""
        folder = self.folder / name
        if folder.is_symlink():
            raise RunError(f"{folder} is a link; nothing is written through it")
        return folder

    def settle_config(self, config: TrainingConfig, data: DataIdentity) -> None:
        """Save the config and the data's identity, or compare them with those of the run that is here."""
        if not self.checkpoints.steps():  # nothing was trained yet, or nothing that could be continued
            self.check_fence()
            shutil.rmtree(self.best.folder, ignore_errors=True)
            (self.folder / "evaluation.json").unlink(missing_ok=True)  # of a model that is gone
            self.write("config.json", {"config": config.to_fields(), "data": data.to_fields()})
            return
        saved_config, saved_data = read_config(self.folder)
        is_same_data = saved_data.fingerprint == data.fingerprint
        if is_same_data and config != saved_config and self._is_longer(saved_config, config, data):
            self.write("config.json", {"config": config.to_fields(), "data": saved_data.to_fields()})
            return
        if differences := saved_config.differences(config):
            raise RunError(
                f"{self.folder} holds a run with another config ({'; '.join(differences)}); "
                f"choose another --out, or repeat the command that began it"
            )
        if not is_same_data:
            raise RunError(f"{self.folder} was trained on other data than {data.store}; choose another --out")

    def _is_longer(self, saved: TrainingConfig, config: TrainingConfig, data: DataIdentity) -> bool:
        """Tell whether nothing but the length is new, and it is not shorter than what was trained."""
        if dataclasses.replace(saved, length=config.length) != config:
            return False
        length = Span.parse(config.length).in_steps(steps_per_epoch(data.num_train, config.batch_size))
        return length >= max(self.checkpoints.steps())

    def set_status(self, state: str, **details: Any) -> None:
        """Tell the world how the run stands: running, finished, stopped or failed."""
        self.write("status.json", {"state": state, **details, "updated": round(time.time(), 1)})

    def describe_machine(self, data: DataIdentity, threads: int, processes: int, device: str) -> None:
        """Write what the numbers may depend on, besides config and data."""
        self.write(
            "manifest.json",
            {
                "bype": metadata.version("bype"),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
                "machine": platform.machine(),
                "threads": threads,
                "processes": processes,
                "device": device,
                "data": {"store": data.store, "fingerprint": data.fingerprint},
            },
        )


def read_config(folder: Path) -> tuple[TrainingConfig, DataIdentity]:
    """Read the config of a run and the identity of its data."""
    try:
        fields = read_json(folder / "config.json")
        if not (isinstance(fields, dict) and fields.get("version") == FORMAT_VERSION):
            raise RunError(f"{folder / 'config.json'} is no config of this format")
        config, data = fields.get("config"), fields.get("data")
        if not (isinstance(config, dict) and isinstance(data, dict)):
            raise RunError(f"{folder / 'config.json'} is broken")
        return TrainingConfig.from_fields(config), DataIdentity.from_fields(data, folder / "config.json")
    except (FileError, ConfigError) as error:
        raise RunError(str(error)) from error


@dataclass(frozen=True)
class MetricsLine:
    """A line of metrics.jsonl: what happened after a step, as numbers by part and name."""

    step: int
    epoch: float
    parts: dict[str, dict[str, float]]


def read_metrics(folder: Path) -> list[MetricsLine]:
    """Read the metrics of a run, which may come from a stranger."""
    path = folder / "metrics.jsonl"
    try:
        with os.fdopen(os.open(path, READ_FLAGS), "rb") as file:
            content = file.read(_MAX_METRICS_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > _MAX_METRICS_BYTES:
        raise RunError(f"{path} is larger than {_MAX_METRICS_BYTES >> 20} MiB")
    lines = []
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            fields = parse_json(text)
        except FileError:
            fields = None
        if not isinstance(fields, dict) or not all(is_number(fields.get(name)) for name in ("step", "epoch")):
            raise RunError(f"{path}, line {number}, is broken")
        parts = {
            part: {name: float(value) for name, value in values.items() if is_number(value)}
            for part, values in fields.items()
            if isinstance(values, dict)
        }
        lines.append(MetricsLine(int(fields["step"]), float(fields["epoch"]), parts))
    return lines


class MetricsFile:
    """metrics.jsonl: a line for each thing that happened, without any time of day, so that two equal runs are equal.

    Its length at each checkpoint is saved, and a continued run cuts off what came after.
    """

    def __init__(self, path: Path, num_bytes: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._file = os.fdopen(descriptor, "r+b")
        size = os.fstat(descriptor).st_size
        if size < num_bytes:
            self._file.close()
            raise RunError(f"{path} has lost lines: {size} bytes, where the checkpoint knows {num_bytes}")
        self._file.truncate(num_bytes)
        self._file.seek(num_bytes)

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
        self._file.close()
