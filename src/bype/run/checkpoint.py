"""Checkpoints: written all or nothing, and used only if complete.

A checkpoint is a folder named by its step: tensors in safetensors files, the rest in JSON, and a manifest of sizes
and checksums that is written last. Nothing in it is executed.
"""

import hashlib
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from bype.data.decode import decode
from bype.data.files import MAX_JSON_BYTES, FileError, parse_json, read_bounded, to_json, write_synced
from bype.system import sync_folder

_TENSOR_FILES = ("model", "training")
_FILES = ("model.safetensors", "training.safetensors", "state.json")
_MAX_HEADER_BYTES = 2**20


class CheckpointError(FileError):
    """A checkpoint that cannot be used, and why."""


@dataclass(frozen=True)
class _File:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Manifest:
    format: Literal["bype-checkpoint"]
    version: Literal[1]
    step: int
    files: dict[str, _File]

    def __post_init__(self) -> None:
        if set(self.files) != set(_FILES):
            raise ValueError(f"files must be {', '.join(_FILES)}")


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to resume."""

    step: int
    model: dict[str, Tensor]
    training: dict[str, Tensor]
    state: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Pack it, to be sent to another process."""
        about = torch.frombuffer(bytearray(to_json({"step": self.step, "state": self.state})), dtype=torch.uint8)
        parts = {"model": self.model, "training": self.training, "about": {"": about}}
        return save_tensors(
            {f"{part}/{name}": value for part, of in parts.items() for name, value in _plain(of).items()}
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Unpack what :meth:`to_bytes` returned."""
        tensors = load_tensors(content)
        about = parse_json(tensors.pop("about/").numpy().tobytes())
        model, training = (
            {name.removeprefix(f"{part}/"): value for name, value in tensors.items() if name.startswith(f"{part}/")}
            for part in _TENSOR_FILES
        )
        return cls(about["step"], model, training, about["state"])


class CheckpointFolder:
    """A folder of checkpoints by step, of which the newest ones are kept.

    Parameters
    ----------
    folder
        Where they are.
    keep
        How many are kept. A folder to resume from keeps two, so that there is another if one is damaged.
    before_commit
        Called before a checkpoint is written, and again before it is put in its place; if it raises, nothing is kept.
    """

    def __init__(self, folder: Path, keep: int, before_commit: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self._keep = keep
        self._before_commit = before_commit

    def save(self, checkpoint: Checkpoint, more: int = 0) -> None:
        """Write a checkpoint and remove the oldest, but keep so many more than usual."""
        self._before_commit()
        self.remove_partials()  # a nearly full disk needs their space
        # A unique name: a process that has lost the run, and does not know it yet, may be writing too.
        partial = self.folder / f".{checkpoint.step}.{secrets.token_hex(4)}.partial"
        try:
            self._write(checkpoint, partial)
        except OSError as error:
            self._before_commit()  # who has taken the run over removes what is being written here
            raise CheckpointError(
                f"cannot write a checkpoint to {self.folder}: {error.strerror}; "
                f"earlier ones are intact: solve this, then run the same command to resume"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # if it still exists: a full disk needs the space
        found = self.steps()
        # Newer ones are damaged, or best models of steps that are now repeated.
        older = [step for step in found if step <= checkpoint.step]
        self._remove([str(step) for step in found if step not in older[: self._keep + more]])
        self.remove_partials()

    def remove_partials(self) -> None:
        """Remove what was left by processes that were killed while they wrote."""
        if not self.folder.is_symlink():
            self._remove([path.name for path in self.folder.glob(".*.partial")])

    def _remove(self, names: list[str]) -> None:
        """Remove folders that were listed before: a process that hangs meanwhile must not remove its successor's."""
        for name in names:
            self._before_commit()
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _write(self, checkpoint: Checkpoint, partial: Path) -> None:
        self._refuse_link()
        self.folder.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        model, training = (save_tensors(_plain(tensors)) for tensors in (checkpoint.model, checkpoint.training))
        files = {}
        for name, content in zip(_FILES, (model, training, to_json(checkpoint.state)), strict=True):
            write_synced(partial / name, content)
            self._before_commit()  # which sends a heartbeat too: a large file takes long
            files[name] = _File(len(content), hashlib.sha256(content).hexdigest())
        manifest = _Manifest("bype-checkpoint", 1, checkpoint.step, files)
        write_synced(partial / "manifest.json", to_json(asdict(manifest)))
        sync_folder(partial)
        self._before_commit()
        place = self.folder / str(checkpoint.step)
        if place.is_symlink():
            place.unlink()
        elif place.exists():
            place.rename(self.folder / f".{partial.name}")  # a resumed run repeats this step; save removes it
        partial.rename(place)
        sync_folder(self.folder)

    def _refuse_link(self) -> None:
        if self.folder.is_symlink():
            raise CheckpointError(f"{self.folder} is a link; bype does not write through links: replace it by a folder")

    def return_to(self, step: int) -> None:
        """Remove what was saved after ``step``, if there is a checkpoint of this step."""
        self._refuse_link()
        found = self.steps()
        if step in found:
            self._remove([str(later) for later in found if later > step])

    def steps(self) -> list[int]:
        """Return the steps that have checkpoints, newest first, complete or not."""
        if not self.folder.is_dir():
            return []
        names = [path.name for path in self.folder.iterdir() if re.fullmatch(r"0|[1-9][0-9]{0,17}", path.name)]
        return sorted(map(int, names), reverse=True)

    def load(self, step: int, max_bytes: int) -> Checkpoint:
        """Read and check the checkpoint of a step; no file of tensors may be larger than ``max_bytes``."""
        place, manifest = self._manifest(step)
        tensors = {name: _load_tensors(place, f"{name}.safetensors", manifest, max_bytes) for name in _TENSOR_FILES}
        content = _read_checked(place, "state.json", manifest, MAX_JSON_BYTES)
        try:
            state = parse_json(content)
        except FileError as error:
            raise CheckpointError(f"{place / 'state.json'}: {error}") from error
        _require(isinstance(state, dict), f"{place / 'state.json'} is broken")
        return Checkpoint(step, tensors["model"], tensors["training"], state)

    def load_model(self, step: int, max_bytes: int) -> dict[str, Tensor]:
        """Read and check only the model."""
        place, manifest = self._manifest(step)
        return _load_tensors(place, "model.safetensors", manifest, max_bytes)

    def model_checksum(self, step: int) -> str:
        """Return the checksum of a model's file, from the manifest."""
        _, manifest = self._manifest(step)
        return manifest.files["model.safetensors"].sha256

    def model_bytes(self, step: int) -> int:
        """Return the size of a model's file, before it is read."""
        path = self.folder / str(step) / "model.safetensors"
        try:
            return path.lstat().st_size
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error

    def _manifest(self, step: int) -> tuple[Path, _Manifest]:
        place = self.folder / str(step)
        if place.is_symlink():
            raise CheckpointError(f"{place} is a link")
        path = place / "manifest.json"
        try:
            content = read_bounded(path, MAX_JSON_BYTES)
        except FileError as error:
            raise CheckpointError(str(error)) from error
        try:
            manifest = decode(_Manifest, parse_json(content))
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from error
        _require(manifest.step == step, f"{place} is of step {manifest.step}, according to its manifest")
        # The content is written in one way only, so even a missing line feed at the end is noticed.
        _require(content == to_json(asdict(manifest)), f"{path} has changed since it was written")
        return place, manifest

    def load_newest(self, warn: Callable[[str], None], max_bytes: int) -> Checkpoint | None:
        """Return the newest checkpoint that is complete, with a warning for each newer one; None if there are none.

        If there are some and all are damaged or cannot be read, this raises: a run that began again would remove them.
        """
        problems = []
        for step in self.steps():
            try:
                found = self.load(step, max_bytes)
            except CheckpointError as error:
                problems.append(f"checkpoint {step} is not used: {error}")
                continue
            for problem in problems:
                warn(problem)
            return found
        if problems:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be used ({problems[0]}); if the disk cannot be read at the "
                f"moment, try again later; if the files are lost, choose another --out to train anew"
            )
        return None


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise CheckpointError(message)


def _read_checked(place: Path, name: str, manifest: _Manifest, max_bytes: int) -> bytes:
    path, entry = place / name, manifest.files[name]
    _require(0 <= entry.bytes <= max_bytes, f"{path} has an impossible size in its manifest, {entry.bytes}")
    try:
        content = read_bounded(path, entry.bytes)
    except FileError as error:
        raise CheckpointError(str(error)) from error
    _require(len(content) == entry.bytes, f"{path} has {len(content)} bytes, but its manifest says {entry.bytes}")
    _require(hashlib.sha256(content).hexdigest() == entry.sha256, f"{path} does not match its checksum")
    return content


def _load_tensors(place: Path, name: str, manifest: _Manifest, max_bytes: int) -> dict[str, Tensor]:
    content = _read_checked(place, name, manifest, max_bytes)
    header_bytes = int.from_bytes(content[:8], "little")
    _require(
        len(content) >= 8 and header_bytes <= min(_MAX_HEADER_BYTES, len(content)), f"{place / name} has no header"
    )
    try:
        return load_tensors(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{place / name} holds no tensors: {error}") from error
