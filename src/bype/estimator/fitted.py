"""What a fitted estimator consists of, in memory and as a run directory."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from bype.data.decode import decode_file
from bype.data.files import FileError, new_folder, read_bounded, to_json, write_atomic
from bype.estimator.layout import Layout
from bype.evaluation.pseudopoints import Coreset
from bype.models.base import LatentModel
from bype.run.build import build_model
from bype.run.config import TrainingConfig
from bype.run.identity import DataIdentity
from bype.run.opened import BlankSource, TrainedRun, write_model

ABOUT = "estimator.json"
"""The file of a run directory that holds what the estimator knows besides its model."""
_CORESET = "coreset.safetensors"
_ARRAYS = ("points", "weights", "component", "neighbours", "label_mix")
_SLACK_BYTES = 2**20


@dataclass(frozen=True)
class Parameters:
    """The parameters of an estimator, except ``run_dir``. A random state becomes the seed that was drawn."""

    n_pseudopoints: int
    latent_dim: int | None
    points_start: Literal["examples", "noise"]
    max_epochs: int
    max_minutes: float | None
    contamination: float
    n_draws: int
    device: str
    random_state: int
    verbose: bool


@dataclass(frozen=True)
class About:
    """What an estimator knows besides its model."""

    format: Literal["bype-estimator"]
    version: Literal[1]
    parameters: Parameters
    layout: Layout
    num_epochs: int
    offset: float
    feature_names: tuple[str, ...]
    classes: tuple[str, ...]
    class_kind: Literal["text", "whole number", "truth value"]

    def labels(self) -> tuple[Any, ...]:
        """Return the classes as they were given to ``fit``."""
        if self.class_kind == "text":
            return self.classes
        if self.class_kind == "truth value":
            return tuple(name == "True" for name in self.classes)
        return tuple(int(name) for name in self.classes)

    def __post_init__(self) -> None:
        """Refuse classes that are not of their kind, and names that are not of the columns: they may be a file's."""
        self.labels()
        if self.num_epochs < 0:
            raise ValueError(f"num_epochs must not be negative, not {self.num_epochs}")
        if self.feature_names and len(self.feature_names) != self.layout.num_features:
            raise ValueError(f"{len(self.feature_names)} names are too few or too many for the columns")


def kind_of_classes(classes: tuple[Any, ...]) -> Literal["text", "whole number", "truth value"]:
    """Tell how to read the names of classes."""
    if classes and isinstance(classes[0], bool):
        return "truth value"
    return "whole number" if classes and isinstance(classes[0], int) else "text"


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model as plain numbers, with what the estimator knows besides."""

    config: TrainingConfig
    data: DataIdentity
    step: int
    numbers: dict[str, NDArray[Any]]
    about: About
    coreset: Coreset
    folder: Path | None = None
    """The run directory that it came from, if there is one: an evaluation or an audit may be there."""
    why_no_labels: str = ""
    """Why the ``y`` of this very ``fit`` was not taken as labels; it is not saved."""

    def model(self, device: torch.device | str) -> LatentModel:
        """Build the model."""
        return model_of(self.config, self.data, self.numbers, device)

    def save(self, folder: Path) -> None:
        """Write a run directory that must not exist yet, all or nothing."""
        with new_folder(folder) as partial:
            self.write(partial)

    def write(self, folder: Path) -> None:
        """Write a run directory into an empty folder."""
        tensors = {name: torch.tensor(value) for name, value in self.numbers.items()}
        write_model(folder, self.config, self.data, self.step, tensors)
        self.save_beside(folder)

    def save_beside(self, folder: Path) -> None:
        """Write what the estimator knows into the run directory of its model."""
        values = {name: getattr(self.coreset, name) for name in _ARRAYS}
        arrays = {name: np.ascontiguousarray(value) for name, value in values.items() if value is not None}
        write_atomic(folder / _CORESET, save_arrays(arrays))
        write_atomic(folder / ABOUT, to_json(dataclasses.asdict(self.about)))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` or :meth:`save_beside` wrote; it may come from a stranger."""
        run = TrainedRun.open(folder)
        if not (folder / ABOUT).exists():
            raise FileError(
                f"{folder} is a run, but no saved estimator; open it with bype.TrainedRun.open, or load it from the "
                f"hub with bype.TrainedRun.from_pretrained"
            )
        about = decode_file(About, folder / ABOUT, _with_points_start)
        if (about.layout.stored_shape, about.layout.dtype) != (run.data.shape, run.data.dtype):
            raise FileError(f"{folder / ABOUT} does not fit the model beside it; save the estimator again")
        numbers = {name: value.numpy() for name, value in run.model.state_dict().items()}
        coreset = _read_coreset(folder / _CORESET, about, run.config)
        return cls(run.config, run.data, run.step, numbers, about, coreset, folder)


def _with_points_start(fields: Any) -> Any:
    """Return the fields of a file from before points could start as noise."""
    if not (isinstance(fields, dict) and isinstance(fields.get("parameters"), dict)):
        return fields
    return {**fields, "parameters": {"points_start": "examples", **fields["parameters"]}}


def model_of(
    config: TrainingConfig, data: DataIdentity, numbers: dict[str, NDArray[Any]], device: torch.device | str
) -> LatentModel:
    """Build the model of a config with these numbers."""
    model = build_model(config, data.shape, BlankSource(data))
    model.load_state_dict({name: torch.tensor(value) for name, value in numbers.items()})
    return model.train(False).requires_grad_(False).to(device)


def _read_coreset(path: Path, about: About, config: TrainingConfig) -> Coreset:
    size, shape = config.components, about.layout.shape
    # Each point has its numbers, a share of each class, and its neighbours: at most eight bytes each.
    most = 8 * size * (math.prod(shape) + len(about.classes) + 64) + _SLACK_BYTES
    try:
        arrays = load_arrays(read_bounded(path, most))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} holds no coreset: {error}") from error
    num_neighbours = math.prod(arrays["neighbours"].shape[1:]) if "neighbours" in arrays else 0
    expected = {
        "points": ("u" if about.layout.dtype == "uint8" else "f", (size, *shape)),
        "weights": ("f", (size,)),
        "component": ("i", (size,)),
        "neighbours": ("i", (size, num_neighbours)),
        "label_mix": ("f", (size, len(about.classes))),
    }
    found = {name: (array.dtype.kind, array.shape) for name, array in arrays.items()}
    if not (found == {name: expected[name] for name in found if name in expected} and set(_ARRAYS[:4]) <= set(found)):
        raise FileError(f"{path} does not fit the model beside it; save the estimator again")
    if not (
        all(np.isfinite(array).all() for array in arrays.values())
        and (arrays["weights"] >= 0).all()
        and np.array_equal(np.sort(arrays["component"]), np.arange(size))
        and num_neighbours > 0
        and (arrays["neighbours"] >= 0).all()
    ):
        raise FileError(f"{path} holds numbers that no coreset has; save the estimator again")
    known = {name: arrays.get(name) for name in _ARRAYS}
    return Coreset(
        **known,  # type: ignore[arg-type]
        classes=about.labels(),
        names=about.feature_names,
        has_channels_last=about.layout.is_channels_last,
    )
