"""A run that was trained, opened for use."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from bype.data.examples import StoreSource
from bype.data.files import FileError, to_json, write_synced
from bype.data.manifest import PIXELS
from bype.data.store import Split, Store, is_store
from bype.distributed import device_named
from bype.models.base import LatentModel
from bype.priors import ExampleSource
from bype.run.build import build_model, model_bytes, require_known_classes
from bype.run.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from bype.run.config import ConfigError, TrainingConfig
from bype.run.directory import FORMAT_VERSION, RunError, config_fields, read_config
from bype.run.identity import DataIdentity, different_column
from bype.run.own import OwnPrior
from bype.system import memory_bytes

if TYPE_CHECKING:
    from bype.data.manifest import Manifest
    from bype.data.sources import Source

_SLACK_BYTES = 2**22
"""What names, headers and numbers in float64 may add to the size of a model's file."""


@dataclass(frozen=True)
class TrainedRun:
    """The best model of a run directory, which may come from a stranger.

    Examples
    --------
    >>> from pathlib import Path
    >>> TrainedRun.open(Path("nowhere"))
    Traceback (most recent call last):
    bype.run.directory.RunError: nowhere does not exist; give a run, such as bype fit makes
    """

    folder: Path
    config: TrainingConfig
    data: DataIdentity
    step: int
    fingerprint: str
    """Of the model's numbers."""
    model: LatentModel

    def __repr__(self) -> str:
        return f"<TrainedRun {self.folder}: {self.config.network}, prior {self.config.prior}, step {self.step:,}>"

    @classmethod
    def open(
        cls,
        folder: Path | str,
        data: Path | str | None = None,
        device: torch.device | str = "cpu",
        prior: OwnPrior | None = None,
    ) -> Self:
        """Open the best model of a run, or the newest if none was validated yet.

        Parameters
        ----------
        folder
            The run directory.
        data
            Where the store that it was trained on may be, if it has moved. Only an exemplar prior needs it; other data
            are ignored.
        device
            Where the model is to be.
        prior
            The prior of your own that the run was trained with, as :func:`bype.train` took it.
        """
        folder, data = Path(folder), None if data is None else Path(data)
        device = device_named(device) if isinstance(device, str) else device
        if not (folder / "config.json").exists():
            if not folder.exists():
                raise RunError(f"{folder} does not exist; give a run, such as bype fit makes")
            is_data = is_store(folder)
            way_out = "this is a store; give a run that was trained on it" if is_data else "make one with: bype fit"
            raise RunError(f"{folder} is no run, it has no config.json; {way_out}")
        while True:
            checkpoints, step = best_checkpoint(folder)
            try:
                return cls._open(folder, data, device, checkpoints, step, prior)
            except CheckpointError:
                if best_checkpoint(folder)[1] == step:  # else training has replaced it by a better one
                    raise

    @classmethod
    def _open(
        cls,
        folder: Path,
        data: Path | None,
        device: torch.device | str,
        checkpoints: CheckpointFolder,
        step: int,
        own_prior: OwnPrior | None,
    ) -> Self:
        config, identity = read_config(folder)
        if own_prior is not None and not config.has_own_prior:
            raise ConfigError(f"{folder} was trained with the prior {config.prior}; leave out prior")
        size = checkpoints.model_bytes(step)
        needed = model_bytes(config, identity.shape, identity.num_train)
        if not (needed <= size and (config.has_own_prior or size <= needed + _SLACK_BYTES)):
            raise CheckpointError(
                f"checkpoint {step} in {folder} does not fit its config: {size} bytes, not {needed}; "
                f"{_way_out(checkpoints)}"
            )
        memory = memory_bytes()
        if memory is not None and 2 * size > memory:
            raise CheckpointError(
                f"the model in {folder} needs {2 * size / 1e9:.0f} GB of memory, and this machine has "
                f"{memory / 1e9:.0f} GB; open it on a larger machine"
            )
        source: ExampleSource = BlankSource(identity)
        if config.prior == "exemplar":
            moved_to = data if data is not None and is_store(data) else None
            source = StoreSource(own_store(folder, identity, moved_to).split("train"), device)
        model = build_model(config, identity.shape, source, own_prior=own_prior)
        try:
            tensors = checkpoints.load_model(step, size)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {_way_out(checkpoints)}") from error
        try:
            model.load_state_dict(tensors)
            require_known_classes(model, len(identity.classes))
        except (RuntimeError, ValueError) as error:
            what = "its config" if own_prior is None else "its config or the prior that was given"
            raise CheckpointError(f"checkpoint {step} in {folder} does not fit {what}") from error
        if not all(value.isfinite().all() for value in model.state_dict().values()):
            raise CheckpointError(f"checkpoint {step} in {folder} holds numbers that are not finite")
        fingerprint = checkpoints.model_checksum(step)
        model = model.train(False).requires_grad_(False).to(device)
        return cls(folder, config, identity, step, fingerprint, model)

    def store(self, data: Path | str | None = None) -> Store:
        """Open the store that the run remembers, or another one with examples of the same kind."""
        store = open_store(self.folder, self.data, None) if data is None else Store(data)
        self.require_kind(store.folder, store.manifest)
        return store

    def is_training_split(self, split: Split) -> bool:
        """Tell whether a split holds the examples that the run was trained on."""
        return split.name == "train" and split.fingerprint == self.data.fingerprint

    def require_kind(self, place: Path | str, found: "Manifest | Source") -> None:
        """Refuse examples at ``place`` that are of another kind than those that the run was trained on."""
        takes_bytes = len(self.data.shape) == 3 and self.data.dtype == "float32"  # as pixels (byte + 0.5) / 256
        dtype = self.data.dtype if takes_bytes and found.dtype == "uint8" else found.dtype
        if (found.shape, dtype) != (self.data.shape, self.data.dtype):
            known = set(self.data.names)
            unknown = [name for name in found.names if name not in known]
            more = f" (it does not know {', '.join(map(repr, unknown[:3]))})" if self.data.names and unknown else ""
            raise RunError(
                f"{place} holds {found.dtype} examples of shape {found.shape}, "
                f"{self.folder} was trained on {self.data.dtype} of shape {self.data.shape}{more}; "
                f"give such examples, or leave out --data"
            )
        if difference := different_column(self.data.names, found.names):
            raise RunError(
                f"{place} has other columns than {self.folder} was trained on: {difference}; "
                f"give the same columns in the same order, or rename them"
            )


class MissingDataError(RunError):
    """The data that a run was trained on are not where they were."""


def require_run(run: object) -> None:
    """Refuse what is no opened run: a folder, or a model."""
    if not isinstance(run, TrainedRun):
        raise TypeError(f"give a run, bype.TrainedRun.open(folder), not {type(run).__name__}")


def _way_out(damaged: CheckpointFolder) -> str:
    """Say what to do if a model cannot be read."""
    others = CheckpointFolder(damaged.folder.parent / "checkpoints", 2)
    if damaged.folder != others.folder and others.steps():
        return f"restore it from a copy, or remove the folder {damaged.folder.name} to use the newest checkpoint"
    return "restore it from a copy"


def best_checkpoint(folder: Path) -> tuple[CheckpointFolder, int]:
    """Return where the best model of a run is, or the newest if none was validated yet, and its step."""
    for checkpoints in (CheckpointFolder(folder / "best", 1), CheckpointFolder(folder / "checkpoints", 2)):
        if steps := checkpoints.steps():
            return checkpoints, steps[0]
    raise RunError(f"{folder} has no model yet; run the command that began it, or train one with: bype train")


def write_model(folder: Path, config: TrainingConfig, data: DataIdentity, step: int, model: dict[str, Tensor]) -> None:
    """Write a model into an empty folder as a run directory, with nothing to resume from."""
    write_config(folder, config, data)
    CheckpointFolder(folder / "best", 1).save(Checkpoint(step, model, {}, {}))


def write_config(folder: Path, config: TrainingConfig, data: DataIdentity) -> None:
    """Write the config of a run and what it remembers of its data."""
    write_synced(folder / "config.json", to_json({"version": FORMAT_VERSION, **config_fields(config, data)}))


class BlankSource:
    """Blank examples for a model whose state is loaded next: only their shape and number matter."""

    def __init__(self, data: DataIdentity) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data.num_train

    def take(self, indices: Tensor) -> Tensor:
        """Return mid-grey, or zeros for features."""
        return torch.full((len(indices), *self._data.shape), 0.5 if self._data.dtype in PIXELS else 0.0)


def open_store(run: Path, identity: DataIdentity, moved_to: Path | str | None) -> Store:
    """Open the store that a run was trained on, and make sure that it is the same one.

    Parameters
    ----------
    run
        The run directory. The store may be in it: then it moves with it.
    identity
        What the run remembers of its data.
    moved_to
        Where the store is. If left out, it is where the run remembers it, or in the run directory.
    """
    remembered = [Path(identity.store)] if identity.store else []
    places = [*remembered, run / "store"] if moved_to is None else [Path(moved_to)]
    what = f"the data of this run were in {places[0]}, which does not exist"
    if moved_to is None and not identity.store:  # as a model that was shared
        what = "this run came without its data"
    problems = []
    for place in places:
        try:
            if not place.exists():
                continue
            store = Store(place)
        except (OSError, FileError) as error:  # a copy of a run may remember a folder that others cannot read
            problems.append(error)
            continue
        if store.manifest.fingerprint == identity.fingerprint:
            return store
        what = f"{place} does not hold the data that this run was trained on"
    if moved_to is not None:
        if problems:
            raise problems[0]
        raise MissingDataError(f"{what}; give the store that it was trained on, or leave out --data")
    if problems:
        what = f"the data of this run cannot be read ({problems[0]})"
    raise MissingDataError(f"{what}; say where they are with --data, or move them to {run / 'store'}")


def own_store(run: Path, identity: DataIdentity, other: Path | str | None) -> Store:
    """Open the store that a run was trained on: ``other``, if it is that one, else as :func:`open_store` finds it."""
    is_own = other is None or Store(other).manifest.fingerprint == identity.fingerprint
    return open_store(run, identity, other if is_own else None)
