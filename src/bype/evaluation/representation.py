"""How well latent means separate the classes: nearest neighbours, a linear probe, a map.

Functions load scikit-learn when they are called: it takes a second or two, and drawing or scoring does not need it.
"""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEIGHBOUR_COUNTS = (3, 5, 7, 9, 11, 13, 15)
"""As in the paper."""

_SPREADS = 1e-12, 1e12
"""scikit-learn's t-SNE fails on means that differ by less or more, and may end the process."""

Means = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]


def knn_accuracy(references: Means, reference_labels: Labels, queries: Means, query_labels: Labels) -> dict[str, float]:
    """Return the accuracy of the vote of the K nearest references, for each K of the paper up to their number.

    Distances are Euclidean; of classes with equal votes the smallest number wins, as in scikit-learn.
    """
    from sklearn.neighbors import NearestNeighbors

    counts = [count for count in NEIGHBOUR_COUNTS if count <= len(references)]
    if not counts:
        return {}
    search = NearestNeighbors(n_neighbors=max(counts), algorithm="brute").fit(references)
    neighbours = reference_labels[search.kneighbors(queries, return_distance=False)]
    return {str(count): float((_vote(neighbours[:, :count]) == query_labels).mean()) for count in counts}


def _vote(labels: Labels) -> Labels:
    """Return the most frequent label of each row (n, K); of equally frequent ones the smallest."""
    ordered = np.sort(labels, axis=1)
    frequency = (ordered[:, :, None] == ordered[:, None, :]).sum(2)
    return np.take_along_axis(ordered, frequency.argmax(1)[:, None], 1)[:, 0]


def probe_accuracy(references: Means, reference_labels: Labels, queries: Means, query_labels: Labels) -> float:
    """Return the accuracy of a logistic regression trained on the references, with standardised latents."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(reference_labels)) < 2:
        return float((query_labels == reference_labels[0]).mean())
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of a probe's weights do not matter
        warnings.filterwarnings("ignore", "The number of unique classes")  # preparing the data noted it
        probe.fit(references, reference_labels)
    return float(probe.score(queries, query_labels))


def can_be_laid_out(means: Means) -> bool:
    """Tell whether there are enough different latent means for a map."""
    if len(means) < 5 or not np.isfinite(means).all():
        return False
    low, high = _SPREADS
    return bool(low < np.ptp(means, axis=0).max() < high)


def tsne(means: Means) -> NDArray[np.float32]:
    """Lay out latent means (n, D) on a plane, (n, 2)."""
    from sklearn.manifold import TSNE

    if not can_be_laid_out(means):
        raise ValueError("a map needs at least five examples that are not all the same")
    start = "pca" if means.shape[1] > 1 else "random"
    layout = TSNE(perplexity=min(30.0, (len(means) - 1) / 4), init=start, random_state=0, n_jobs=2)
    return layout.fit_transform(means)
