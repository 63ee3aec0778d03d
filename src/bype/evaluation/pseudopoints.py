"""A pseudocoreset to look at: its points by weight, the real examples nearest to them, the mix of labels."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from bype.data.examples import StoreSource, spread_rows
from bype.data.store import Split
from bype.models.base import LatentModel
from bype.plates import stored_to_bytes, to_bytes
from bype.priors.base import PriorPoints, encode_points
from bype.run.directory import RunError
from bype.run.opened import TrainedRun, open_store, require_run

if TYPE_CHECKING:
    import pandas

_NEIGHBOURS = 15
_MAX_REFERENCES = 100_000


@dataclass(frozen=True, eq=False)
class Coreset:
    r"""Pseudo-points that stand for the training examples, the heaviest first.

    Points, labels and weights go straight into any ``fit(X, y, sample_weight)``: a weighted sum over the points,
    :math:`\sum_m w_m f(u_m)`, stands for the sum over all examples, :math:`\sum_n f(x_n)`.

    Examples
    --------
    >>> points, weights = np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([6.0, 4.0])
    >>> neighbours = np.array([[7, 3], [1, 2]])
    >>> mix = np.array([[0.2, 0.8], [1.0, 0.0]])
    >>> coreset = Coreset(points, weights, np.array([1, 0]), neighbours, mix, classes=("cat", "dog"))
    >>> coreset
    <Coreset of 2 points of 2 that stand for 10 examples, 2 classes>
    >>> coreset.labels.tolist(), coreset.nearest_indices.tolist()
    (['dog', 'cat'], [7, 1])
    """

    points: NDArray[Any]
    """(M, *shape), in the units of the data; images of a run have pixels in [0, 1]."""
    weights: NDArray[np.float64]
    """(M,), they sum to the number of training examples."""
    component: NDArray[np.int64]
    """(M,), the number of each in the prior: what ``bype sample --component`` takes."""
    neighbours: NDArray[np.int64]
    """(M, k), the training examples nearest to each in latent space, by row, the nearest first."""
    label_mix: NDArray[np.float64] | None = None
    """(M, classes), the shares of the labels among these neighbours; the points' own labels, if they have any."""
    classes: Sequence[Any] = ()
    """The labels that there are."""
    names: tuple[str, ...] = ()
    """Of the features, if they have any."""
    has_channels_last: bool = False
    """Whether points with channels are (M, height, width, channels), as the estimator may have them."""

    def __len__(self) -> int:
        return len(self.weights)

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.points.shape[1:]))
        of = "" if not self.classes else f", {len(self.classes)} classes"
        return f"<Coreset of {len(self)} points of {size} that stand for {self.weights.sum():,.0f} examples{of}>"

    @property
    def labels(self) -> NDArray[Any] | None:
        """(M,), the label of each, or the most frequent one among its neighbours; ``None`` for data without labels."""
        return None if self.label_mix is None else np.asarray(self.classes)[self.label_mix.argmax(1)]

    @property
    def nearest_indices(self) -> NDArray[np.int64]:
        """(M,), the training example that is nearest to each, by row."""
        return self.neighbours[:, 0]

    @property
    def effective_number(self) -> float:
        """The effective number of points: (sum w)^2 / sum w^2, which is M if all weights are equal."""
        return float(self.weights.sum() ** 2 / np.square(self.weights).sum())

    def to_frame(self) -> "pandas.DataFrame":
        """Return a data frame with a row for each point: its features, its weight and, if there are any, its label."""
        if importlib.util.find_spec("pandas") is None:
            raise ImportError("a data frame needs pandas; install it with: pip install pandas")
        import pandas

        flat = self.points.reshape(len(self), -1)
        frame = pandas.DataFrame(flat, columns=list(self.names) or [f"x{k}" for k in range(flat.shape[1])])
        labels = self.labels
        added = {"weight": self.weights} | ({} if labels is None else {"label": labels})
        if clash := [name for name in added if name in frame.columns]:
            raise ValueError(
                f"a column of the data is called {clash[0]!r} too; take points, weights and labels instead"
            )
        return frame.assign(**added)

    def to_images(self) -> list[Image.Image]:
        """Return the points as Pillow images."""
        if self.points.ndim < 3:
            raise ValueError("these points are rows of a table, not images; take to_frame() instead")
        pixels = stored_to_bytes(self.points)
        if pixels.ndim == 4 and not self.has_channels_last:
            pixels = np.moveaxis(pixels, 1, 3)
        return [Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image) for image in pixels]

    def with_neighbours(self, train: Split, count: int, num_neighbours: int) -> list[NDArray[np.uint8]]:
        """Return the heaviest points in bytes, each followed by the training examples nearest to it."""
        pixels = to_bytes(self.points[:count])
        return [
            np.concatenate([point[None], stored_to_bytes(train.read(self.neighbours[k, :num_neighbours]))])
            for k, point in enumerate(pixels)
        ]


def coreset(run: TrainedRun, data: Path | str | None = None) -> Coreset:
    """Return the pseudocoreset of a run, with the training examples nearest to its points.

    Parameters
    ----------
    run
        A run with a pseudocoreset or a VampPrior.
    data
        Where the store that it was trained on is, if it has moved.
    """
    require_run(run)
    points_of(run.model)  # refuses a run without points before it looks for the data
    store = open_store(run.folder, run.data, data)
    return describe_points(run.model, store.split("train"), run.data.classes, run.data.names)


def points_of(model: LatentModel) -> PriorPoints:
    """Return the points of a model's prior with their probabilities, or say that it has none."""
    own = model.prior.own_points()
    if own is None:
        raise RunError("this run's prior has no pseudo-points; train one with the prior bype or vamp")
    return own


def require_points_of_class(model: LatentModel, label: int, classes: Sequence[Any]) -> None:
    """Refuse a class without pseudo-points by its name. Points without labels are left to the prior to refuse."""
    own = model.prior.own_points()
    if own is None or own.labels is None:
        return
    with_points = set(own.labels.tolist())
    if label not in with_points:
        there = ", ".join(repr(name) for k, name in enumerate(classes) if k in with_points)
        raise ValueError(
            f"class {classes[label]!r} has no pseudo-points, since none of its examples was trained on; "
            f"choose one of {there}, or give it more examples and train again"
        )


@torch.no_grad()
def describe_points(
    model: LatentModel, train: Split, classes: Sequence[Any] = (), names: tuple[str, ...] = ()
) -> Coreset:
    """Sort a prior's pseudo-points by weight and find the training examples nearest to them.

    Parameters
    ----------
    model
        A model with a pseudocoreset or a VampPrior.
    train
        The training examples.
    classes
        The labels that there are; none without labels.
    names
        Of the features.
    """
    from sklearn.neighbors import NearestNeighbors  # loaded late: samples from a point do not need it

    points, probabilities, point_labels = points_of(model)
    order = torch.argsort(probabilities, descending=True, stable=True)
    rows = spread_rows(len(train), _MAX_REFERENCES)
    scale = model.latent_scale
    means = (model.encode_rows(StoreSource(train), torch.from_numpy(rows)).mean * scale).cpu().numpy()
    latents = (encode_points(model.encode, points[order]).mean * scale).cpu().numpy()
    search = NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(rows)), algorithm="brute").fit(means)
    neighbours = rows[search.kneighbors(latents, return_distance=False)]
    label_mix = None
    if point_labels is not None and len(classes):
        label_mix = np.eye(len(classes))[point_labels[order].cpu().numpy()]
    elif len(classes) and train.has_labels:
        labels = train.labels(neighbours.reshape(-1)).reshape(neighbours.shape)
        label_mix = np.stack([(labels == k).mean(1) for k in range(len(classes))], axis=1)
    return Coreset(
        points=model.to_data_units(points[order]).cpu().numpy(),
        weights=(probabilities[order] * len(train)).cpu().numpy(),
        component=order.cpu().numpy(),
        neighbours=neighbours,
        label_mix=label_mix,
        classes=classes,
        names=names,
    )
