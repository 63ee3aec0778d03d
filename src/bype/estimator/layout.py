"""How examples look outside a model, and the ways in and out."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bype.data.examples import as_model_input
from bype.data.manifest import DTYPES
from bype.data.sources.arrays import layout
from bype.plates import is_image_shape, to_bytes


@dataclass(frozen=True)
class Layout:
    """The shape and the units of a user's examples.

    Parameters
    ----------
    shape
        Of one example as the user has it: (height, width), with channels first or last, or (features,).
    stored_shape
        The same as a store has it: (channels, height, width) or (features,).
    dtype
        ``uint8`` for pixels in bytes, else ``float32``.
    """

    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        """Refuse shapes that do not fit together: a layout may come from a file."""
        if len(self.stored_shape) not in (1, 3):
            raise ValueError(f"examples are images or rows of features, not of shape {self.stored_shape}")
        channels_last = (*self.stored_shape[1:], self.stored_shape[0])
        grey = self.stored_shape[1:] if self.stored_shape[0] == 1 else channels_last
        if self.shape not in (self.stored_shape, channels_last, grey) or self.dtype not in DTYPES:
            raise ValueError(f"examples of shape {self.shape} cannot be stored as {self.dtype} {self.stored_shape}")

    @classmethod
    def of_array(cls, array: NDArray[Any]) -> Self:
        """Describe an array of images in bytes or in [0, 1], or of features."""
        if array.ndim == 2:
            return cls(array.shape[1:], array.shape[1:], "float32")
        is_bytes = array.dtype == np.uint8
        if not is_bytes and array.dtype.kind != "f":
            raise ValueError(f"images must be uint8, or floats in [0, 1], not {array.dtype}; convert them first")
        if array.size == 0:
            raise ValueError(f"Found array with 0 sample(s) or 0 pixel(s) (shape={array.shape})")
        if not is_bytes and not (array.min() >= 0 and array.max() <= 1):  # also refuses nan
            raise ValueError(
                f"images of floats must have values in [0, 1], not from {array.min():.9g} to {array.max():.9g}; bring "
                f"them there, for instance by (X - low) / (high - low), or convert them to uint8"
            )
        stored_shape, _, _ = layout("X", array.shape, np.dtype(np.uint8))
        return cls(array.shape[1:], stored_shape, "uint8" if is_bytes else "float32")

    @classmethod
    def of_store(cls, shape: tuple[int, ...], dtype: str) -> Self:
        """Describe the examples of a store: grey images come out as (height, width), others with channels last."""
        if not is_image_shape(shape):
            return cls(shape, shape, dtype)
        return cls(shape[1:] if shape[0] == 1 else (*shape[1:], shape[0]), shape, dtype)

    @property
    def is_image(self) -> bool:
        """Whether examples are images."""
        return len(self.stored_shape) == 3

    @property
    def num_features(self) -> int:
        """The numbers in one example."""
        return math.prod(self.shape)

    @property
    def log_density(self) -> float:
        """What to add to a model's log p(x) to have it in the units of the data: a byte is 1/256 of a pixel's range."""
        return -self.num_features * math.log(256) if self.dtype == "uint8" else 0.0

    def to_stored_shape(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a user's examples (N, *shape) in the shape that a store has, with all their digits."""
        if self.is_channels_last and len(self.shape) == 3:
            array = np.moveaxis(array, -1, 1)
        return array.reshape(len(array), *self.stored_shape)

    def to_model(self, array: NDArray[Any]) -> Tensor:
        """Return a user's examples (N, *shape) as a model takes them, in float64."""
        rows = torch.tensor(np.ascontiguousarray(self.to_stored_shape(array)))
        return as_model_input(rows).double()

    @staticmethod
    def digits_of_a_store(examples: Tensor) -> Tensor:
        """Return examples with the digits that the model was fitted to: more of them change even a constant column."""
        return examples.float().double()

    def to_user(self, examples: Tensor) -> NDArray[Any]:
        """Return examples as a model has them, (N, *stored_shape), in the shape and the units of the user's."""
        array = examples.cpu().numpy()
        array = to_bytes(array) if self.dtype == "uint8" else array
        if self.is_channels_last:
            array = np.moveaxis(array, 1, -1)
        return np.ascontiguousarray(array).reshape(len(array), *self.shape)

    @property
    def is_channels_last(self) -> bool:
        """Whether images are not as a store has them, but (height, width), or with channels last."""
        return self.is_image and self.shape != self.stored_shape
