"""A trained model as one callable, for tools that map functions over batches of a large data set."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bype.data.examples import as_model_input
from bype.data.manifest import DTYPES
from bype.data.sources.image_files import pixels_of
from bype.distributions import Distribution
from bype.evaluation.generation import embed
from bype.evaluation.scores import log_likelihood_by_shared_draws
from bype.plates import is_image_shape
from bype.run.directory import RunError
from bype.run.opened import TrainedRun, best_checkpoint
from bype.wording import counted


class Embedder:
    """Replaces the examples of a batch by their embeddings, and adds their log-likelihoods if asked for.

    For Ray Data, ``dataset.map_batches(Embedder, fn_constructor_args=[run])``; for Hugging Face datasets,
    ``dataset.map(Embedder(run), batched=True)``. The model is opened in the process that gets the first batch,
    so an embedder is small to send.

    Parameters
    ----------
    run
        The run directory.
    column
        Where the examples are: images as bytes, (height, width), with channels first or last, or as Pillow
        images; or feature vectors. They must have the shape that the run was trained on.
    num_samples
        Draws for each example's ``log_likelihood``; 0 to leave it out.
    device
        The device that computes, such as ``cuda``.

    Examples
    --------
    >>> embedder = Embedder("runs/fashion")
    >>> embedder.column
    'image'
    """

    def __init__(
        self, run: Path | str, column: str = "image", num_samples: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        self.run = Path(run)
        self.column = column
        self.num_samples = num_samples
        self.device = device
        self._opened: TrainedRun | None = None
        self._prior: Distribution | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the model, but keep its fingerprint, so that a cache of results notices another model."""
        try:
            checkpoints, step = best_checkpoint(self.run)
            model = checkpoints.model_checksum(step)
        except RunError:  # the run may exist only on the machines that compute
            model = None
        return {**self.__dict__, "_opened": None, "_prior": None, "_model": model}

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch without its examples, with ``embedding`` (B, D) and, if wanted, ``log_likelihood`` (B,)."""
        if self._opened is None:
            self._opened = TrainedRun.open(self.run, device=self.device)
            self._prior = self._opened.model.prior_distribution() if self.num_samples else None
        if self.column not in batch:
            raise ValueError(f"the batch has no column {self.column!r}, it has {', '.join(batch)}; choose another")
        x = self._examples(batch[self.column], self._opened).to(self.device)
        rest = {name: values for name, values in batch.items() if name != self.column}
        found: dict[str, Any] = {**rest, "embedding": embed(self._opened.model, x).cpu().numpy()}
        if self._prior is not None:
            scores = log_likelihood_by_shared_draws(self._opened.model, x, self.num_samples, self._prior)
            found["log_likelihood"] = scores.cpu().numpy()
        return found

    @staticmethod
    def _examples(values: Any, run: TrainedRun) -> Tensor:
        shape, dtype = run.data.shape, DTYPES[run.data.dtype]
        array = values if isinstance(values, list) else np.asarray(values)
        if isinstance(array, list) or array.dtype == object:  # each row is an array, or a picture
            rows = [_array(value, shape) for value in array]
            if len(sizes := {row.shape for row in rows}) > 1:
                found = ", ".join(map(str, sorted(sizes)))
                raise ValueError(f"the batch has examples of shapes {found}; bring all to the run's, {shape}")
            array = np.stack(rows) if rows else np.empty((0, *shape), dtype)
        if dtype == np.uint8 and array.dtype.kind in "iu" and array.size and array.min() >= 0 and array.max() <= 255:
            array = array.astype(np.uint8)  # bytes that went through lists come back as larger integers
        given = array.shape[1:]
        array = _channels_first(array, shape) if is_image_shape(shape) else array
        if array.shape[1:] != shape or (dtype == np.uint8) != (array.dtype == np.uint8):
            raise ValueError(
                f"examples are {array.dtype} of shape {given}, the run was trained on {dtype} of shape "
                f"{shape}; convert them first"
            )
        if run.data.dtype == "binarised" and not np.isin(array, (0, 255)).all():
            raise ValueError(
                "the run was trained on black and white images, these are grey; give bytes 0 and 255 alone"
            )
        with np.errstate(over="ignore"):  # the check below names what float32 cannot hold
            numbers = np.array(array, dtype=dtype)
        bad = ~np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
        if bad.any():
            raise ValueError(
                f"{counted(int(bad.sum()), 'example')} of the batch (the first is number {int(bad.argmax())}) hold "
                f"missing or infinite numbers; fill them in or remove them first"
            )
        return as_model_input(torch.from_numpy(numbers))


def _array(value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    return pixels_of(value, shape[0]) if isinstance(value, Image.Image) else np.asarray(value)


def _channels_first(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if array.ndim == 3 and shape[0] == 1:
        return array[:, None]
    if array.shape[1:] == (*shape[1:], shape[0]) and array.shape[1:] != shape:
        return np.moveaxis(array, -1, 1)
    return array
