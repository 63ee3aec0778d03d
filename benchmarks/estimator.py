"""What the scikit-learn face gives on real tables: likelihood, time, and the points as a small training set.

Run ``python benchmarks/estimator.py``; it takes some minutes on two cores.
"""

import time

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_score
from sklearn.preprocessing import StandardScaler

import bype

_NUM_FACTORS = 15


def likelihood() -> None:
    """Print the mean held-out log-likelihood over 5 folds, beside the linear models of as many latents."""
    X, _ = load_breast_cancer(return_X_y=True)
    folds = KFold(5, shuffle=True, random_state=0)
    found = {"ByPEVAE": cross_val_score(bype.ByPEVAE(), X, cv=folds)}
    for linear in (FactorAnalysis(_NUM_FACTORS, max_iter=1000), PCA(_NUM_FACTORS)):
        scores = []
        for train, test in folds.split(X):
            scaler = StandardScaler().fit(X[train])
            score = linear.fit(scaler.transform(X[train])).score(scaler.transform(X[test]))
            scores.append(score - np.log(scaler.scale_).sum())  # in the units of the data
        found[type(linear).__name__] = np.array(scores)
    for name, scores in found.items():
        print(f"{name}: {scores.mean():.2f} nats per example, folds {', '.join(f'{score:.2f}' for score in scores)}")


def points_as_training_set() -> None:
    """Print the accuracy of logistic regression from all examples, from the points, and from as many examples."""
    for name, (X, y) in {
        "digits": (load_digits().data * 16, load_digits().target),
        "breast cancer": load_breast_cancer(return_X_y=True),
    }.items():
        generator = np.random.default_rng(0)
        train, test = np.split(generator.permutation(len(X)), [2 * len(X) // 3])
        images = np.clip(X[train], 0, 255).astype(np.uint8).reshape(-1, 8, 8) if name == "digits" else X[train]
        coreset = bype.ByPEVAE().fit(images, y[train]).coreset_
        scaler = StandardScaler().fit(X[train])

        def accuracy(rows, labels, weights=None, scaler=scaler, X=X, y=y, test=test):
            model = LogisticRegression(max_iter=3000).fit(scaler.transform(rows), labels, sample_weight=weights)
            return model.score(scaler.transform(X[test]), y[test])

        size = len(coreset)
        draws = [generator.choice(train, size, replace=False) for _ in range(5)]
        print(
            f"{name}: all {len(train)} examples {accuracy(X[train], y[train]):.3f}, "
            f"{size} points {accuracy(coreset.points.reshape(size, -1), coreset.labels, coreset.weights):.3f}, "
            f"{size} random examples {np.mean([accuracy(X[rows], y[rows]) for rows in draws]):.3f}"
        )


def seconds() -> None:
    """Print how long 2,000 rows of 30 columns take with default settings."""
    X, _ = load_breast_cancer(return_X_y=True)
    noise = np.random.default_rng(0).normal(size=(2000, 30)) * X.std(0) / 10
    start, work = time.perf_counter(), time.process_time()
    bype.ByPEVAE().fit(np.tile(X, (4, 1))[:2000] + noise)
    print(f"2,000 rows: {time.perf_counter() - start:.0f} s, {time.process_time() - work:.0f} s of processor time")


if __name__ == "__main__":
    likelihood()
    points_as_training_set()
    seconds()
