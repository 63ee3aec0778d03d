"""Encoding rows of a split, where a sample of a large one does as well as all."""

import numpy as np
import torch
from numpy.typing import NDArray

from bype.data.store import Split
from bype.distributions import DiagonalNormal
from bype.models.base import LatentModel
from bype.priors.base import ExampleSource, SelectedRows, encode_source
from bype.training.examples import StoreSource


def spread_rows(total: int, most: int) -> NDArray[np.int64]:
    """Return all row numbers below ``total``, or ``most`` that are evenly spread."""
    return np.unique(np.linspace(0, total - 1, min(total, most)).round().astype(np.int64))


def encode_rows(model: LatentModel, split: Split, rows: NDArray[np.int64]) -> DiagonalNormal:
    """Return q(z | x) of some rows, (n, D), where the model is."""
    return encode_chosen(model, StoreSource(split, model.device), rows)


@torch.no_grad()
def encode_chosen(model: LatentModel, source: ExampleSource, rows: NDArray[np.int64]) -> DiagonalNormal:
    """Return the same for rows of any source."""
    return encode_source(model.encode, SelectedRows(source, torch.from_numpy(rows)), model.device)
