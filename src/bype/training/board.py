"""Curves and pictures for TensorBoard, where it is installed."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bype.distributions import Distribution
from bype.models.base import LatentModel
from bype.pictures import grid, is_picture, to_bytes
from bype.priors import PseudocoresetPrior

_NUM_PICTURES = 64
_COLUMNS = 8


class Board:
    """Writes what :mod:`metrics.jsonl` holds, samples and the heaviest pseudo-points.

    Parameters
    ----------
    folder
        Where the events go.
    step
        Events after this step, left by an earlier process, no longer count.
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
    def show_pictures(self, step: int, model: LatentModel, prior: Distribution, generator: torch.Generator) -> None:
        """Add pictures of the model as it is."""
        if not is_picture(model.data_shape):
            return
        output = model.decode(prior.sample((_NUM_PICTURES,), generator=generator), at_mean=True)
        self._add("samples", step, model.unflatten(model.likelihood.mean(output)))
        if isinstance(model.prior, PseudocoresetPrior):
            heaviest = model.prior.pseudocoreset.probabilities.argsort(descending=True)[:_NUM_PICTURES]
            self._add("pseudocoreset", step, model.prior.pseudocoreset.points[heaviest])

    def _add(self, name: str, step: int, images: torch.Tensor) -> None:
        picture = np.asarray(grid(to_bytes(images.cpu().numpy()), _COLUMNS).convert("RGB"))
        self._writer.add_image(name, picture, step, dataformats="HWC")

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def open_board(folder: Path, step: int) -> Board | None:
    """Return a board, or nothing if TensorBoard is not installed."""
    return Board(folder, step) if importlib.util.find_spec("tensorboard") else None
