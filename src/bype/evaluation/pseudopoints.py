"""A pseudocoreset that people can look at: its points by weight, real examples near to them, the mix of labels."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from bype.data.store import Split
from bype.models.base import LatentModel
from bype.pictures import to_bytes
from bype.priors import JointPseudocoresetPrior, Pseudocoreset, PseudocoresetPrior, VampPrior
from bype.priors.base import encode_points
from bype.training.rows import encode_rows, spread_rows
from bype.training.run import RunError

_NEIGHBOURS = 15
_MAX_REFERENCES = 100_000


@dataclass(frozen=True)
class PseudoPoints:
    """Pseudo-points, the heaviest first."""

    points: NDArray[np.float32]
    """(M, *data_shape), as the model sees them."""
    weights: NDArray[np.float64]
    """(M,), they sum to the number of training examples."""
    component: NDArray[np.int64]
    """(M,), the number of each in the prior: what ``bype sample --component`` takes."""
    neighbours: NDArray[np.int64]
    """(M, k), the rows of the training split nearest to each in latent space, the nearest first."""
    label_mix: NDArray[np.float64] | None
    """(M, classes), the shares of the labels among these neighbours."""

    @property
    def effective_number(self) -> float:
        """How many points of equal weight would be as varied: (sum w)^2 / sum w^2."""
        return float(self.weights.sum() ** 2 / np.square(self.weights).sum())

    def with_neighbours(self, train: Split, count: int, num_neighbours: int) -> list[NDArray[np.uint8]]:
        """Return the heaviest points in bytes, each followed by the training examples nearest to it."""
        pixels = to_bytes(self.points[:count])
        return [
            np.concatenate([point[None], train.read(self.neighbours[k, :num_neighbours])])
            for k, point in enumerate(pixels)
        ]


def points_and_weights(model: LatentModel, num_train: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return a prior's points, their probabilities in float64, and how many examples they stand for."""
    coreset: Pseudocoreset | None = None
    if isinstance(model.prior, PseudocoresetPrior):
        coreset = model.prior.pseudocoreset
    elif isinstance(model.prior, JointPseudocoresetPrior):
        coreset = model.prior.as_pseudocoreset()
    if coreset is not None:
        return coreset.points, coreset.probabilities, coreset.total
    if isinstance(model.prior, VampPrior):
        count = len(model.prior.pseudo_inputs)
        return model.prior.inputs(), torch.full((count,), 1 / count, dtype=torch.float64), num_train
    raise RunError("this run's prior has no pseudo-points; train one with the prior bype or vamp")


@torch.no_grad()
def describe_points(model: LatentModel, train: Split, num_classes: int) -> PseudoPoints:
    """Sort a prior's pseudo-points by weight and find the training examples near to them.

    Parameters
    ----------
    model
        With a pseudocoreset or a VampPrior.
    train
        The training examples.
    num_classes
        Of their labels; 0 if they have none.
    """
    points, probabilities, total = points_and_weights(model, len(train))
    order = torch.argsort(probabilities, descending=True, stable=True)
    rows = spread_rows(len(train), _MAX_REFERENCES)
    means = encode_rows(model, train, rows).mean.numpy()
    latents = encode_points(model.encode, points[order]).mean.numpy()
    search = NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(rows)), algorithm="brute").fit(means)
    neighbours = rows[search.kneighbors(latents, return_distance=False)]
    label_mix = None
    if num_classes and train.has_labels:
        labels = train.labels(neighbours.reshape(-1)).reshape(neighbours.shape)
        label_mix = np.stack([(labels == k).mean(1) for k in range(num_classes)], axis=1)
    return PseudoPoints(
        points=points[order].numpy(),
        weights=(probabilities[order] * total).numpy(),
        component=order.numpy(),
        neighbours=neighbours,
        label_mix=label_mix,
    )
