"""What latent means know of the classes: nearest neighbours, a linear probe, a map."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

NEIGHBOUR_COUNTS = (3, 5, 7, 9, 11, 13, 15)
"""As in the paper."""

Means = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]


def knn_accuracy(references: Means, reference_labels: Labels, queries: Means, query_labels: Labels) -> dict[str, float]:
    """Return the accuracy of the vote of the K nearest references, for each K of the paper that there are enough for.

    Neighbours are Euclidean; of classes with equal votes the smallest number wins, as in scikit-learn.
    """
    counts = [count for count in NEIGHBOUR_COUNTS if count <= len(references)]
    if not counts:
        return {}
    search = NearestNeighbors(n_neighbors=max(counts), algorithm="brute").fit(references)
    neighbours = reference_labels[search.kneighbors(queries, return_distance=False)]
    num_classes = int(reference_labels.max()) + 1
    accuracy = {}
    for count in counts:
        votes = np.zeros((len(queries), num_classes), dtype=np.int64)
        for k in range(count):
            votes[np.arange(len(queries)), neighbours[:, k]] += 1
        accuracy[str(count)] = float((votes.argmax(1) == query_labels).mean())
    return accuracy


def probe_accuracy(references: Means, reference_labels: Labels, queries: Means, query_labels: Labels) -> float:
    """Return the accuracy of a logistic regression that was trained on the references, each latent standardised."""
    if len(np.unique(reference_labels)) < 2:
        return float((query_labels == reference_labels[0]).mean())
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of a probe's weights do not matter
        probe.fit(references, reference_labels)
    return float(probe.score(queries, query_labels))


def tsne(means: Means, seed: int = 0) -> NDArray[np.float32]:
    """Lay out latent means (n, D) on a plane, (n, 2)."""
    if len(means) < 5:
        raise ValueError(f"a map needs at least five examples, not {len(means)}")
    layout = TSNE(perplexity=min(30.0, (len(means) - 1) / 4), init="pca", random_state=seed, n_jobs=2)
    placed: NDArray[np.float32] = layout.fit_transform(means)
    return placed
