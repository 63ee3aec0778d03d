"""A pseudocoreset to look at: its points by weight, the real examples nearest to them, the mix of labels."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from bype.data.examples import StoreSource, spread_rows
from bype.data.store import Split
from bype.models.base import LatentModel
from bype.plates import to_bytes
from bype.priors.base import PriorPoints, encode_points
from bype.run.directory import RunError

_NEIGHBOURS = 15
_MAX_REFERENCES = 100_000


@dataclass(frozen=True)
class PseudoPoints:
    """Pseudo-points, the heaviest first."""

    points: NDArray[np.float32]
    """(M, *data_shape), in the units of the data."""
    weights: NDArray[np.float64]
    """(M,), they sum to the number of training examples."""
    component: NDArray[np.int64]
    """(M,), the number of each in the prior: what ``bype sample --component`` takes."""
    neighbours: NDArray[np.int64]
    """(M, k), the rows of the training split nearest to each in latent space, the nearest first."""
    label_mix: NDArray[np.float64] | None
    """(M, classes), the shares of the labels among these neighbours; the points' own labels, if they have any."""

    @property
    def effective_number(self) -> float:
        """The effective number of points: (sum w)^2 / sum w^2, which is M if all weights are equal."""
        return float(self.weights.sum() ** 2 / np.square(self.weights).sum())

    def with_neighbours(self, train: Split, count: int, num_neighbours: int) -> list[NDArray[np.uint8]]:
        """Return the heaviest points in bytes, each followed by the training examples nearest to it."""
        pixels = to_bytes(self.points[:count])
        return [
            np.concatenate([point[None], train.read(self.neighbours[k, :num_neighbours])])
            for k, point in enumerate(pixels)
        ]


def points_of(model: LatentModel) -> PriorPoints:
    """Return the points of a model's prior with their probabilities, or say that it has none."""
    own = model.prior.own_points()
    if own is None:
        raise RunError("this run's prior has no pseudo-points; train one with the prior bype or vamp")
    return own


@torch.no_grad()
def describe_points(model: LatentModel, train: Split, num_classes: int) -> PseudoPoints:
    """Sort a prior's pseudo-points by weight and find the training examples nearest to them.

    Parameters
    ----------
    model
        A model with a pseudocoreset or a VampPrior.
    train
        The training examples.
    num_classes
        The number of classes; 0 without labels.
    """
    points, probabilities, point_labels = points_of(model)
    order = torch.argsort(probabilities, descending=True, stable=True)
    rows = spread_rows(len(train), _MAX_REFERENCES)
    scale = model.latent_scale
    means = (model.encode_rows(StoreSource(train), torch.from_numpy(rows)).mean * scale).numpy()
    latents = (encode_points(model.encode, points[order]).mean * scale).numpy()
    search = NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(rows)), algorithm="brute").fit(means)
    neighbours = rows[search.kneighbors(latents, return_distance=False)]
    label_mix = None
    if point_labels is not None and num_classes:
        label_mix = np.eye(num_classes)[point_labels[order].cpu().numpy()]
    elif num_classes and train.has_labels:
        labels = train.labels(neighbours.reshape(-1)).reshape(neighbours.shape)
        label_mix = np.stack([(labels == k).mean(1) for k in range(num_classes)], axis=1)
    return PseudoPoints(
        points=model.to_data_units(points[order]).numpy(),
        weights=(probabilities[order] * len(train)).numpy(),
        component=order.numpy(),
        neighbours=neighbours,
        label_mix=label_mix,
    )
