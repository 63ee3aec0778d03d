"""Curves and images for TensorBoard, if it is installed."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bype.distributions import Distribution
from bype.models.base import LatentModel
from bype.plates import grid, is_image_shape, to_bytes

_NUM_IMAGES = 64
_COLUMNS = 8


class Board:
    """Writes the numbers of ``metrics.jsonl``, samples and the heaviest pseudo-points.

    Parameters
    ----------
    folder
        Where the events are written.
    step
        Later events, left by an earlier process, are discarded.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def show(self, step: int, line: dict[str, Any]) -> None:
        """Add the numbers of a line of metrics."""
        for part, values in line.items():
            if isinstance(values, dict):
                for name, value in values.items():
                    self._writer.add_scalar(f"{part}/{name}", value, step)

    @torch.no_grad()
    def show_samples(self, step: int, model: LatentModel, prior: Distribution, generator: torch.Generator) -> None:
        """Add samples of the current model, and its heaviest points."""
        if not is_image_shape(model.data_shape):
            return
        output = model.decode(prior.sample((_NUM_IMAGES,), generator=generator), at_mean=True)
        self._add("samples", step, model.unflatten(model.likelihood.mean(output)))
        if own := model.prior.own_points():
            self._add("points", step, own.points[own.heaviest(_NUM_IMAGES)])

    def _add(self, name: str, step: int, images: torch.Tensor) -> None:
        picture = np.asarray(grid(to_bytes(images.cpu().numpy()), _COLUMNS).convert("RGB"))
        self._writer.add_image(name, picture, step, dataformats="HWC")

    def close(self) -> None:
        """Write what is left, and close."""
        self._writer.close()


def open_board(folder: Path, step: int) -> Board | None:
    """Return a board, or ``None`` if TensorBoard is not installed; raise ImportError if it is, and does not work."""
    try:
        return Board(folder, step)
    except (ImportError, AttributeError, TypeError) as error:  # another version of protobuf or numpy than it needs
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorboard":
            return None
        raise ImportError(f"TensorBoard does not work ({error})") from error
