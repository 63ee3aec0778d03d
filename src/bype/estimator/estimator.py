"""ByPE-VAE with the interface of scikit-learn."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin, clone
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted
from torch import Tensor

from bype.data.files import FileError
from bype.estimator.fitted import ABOUT, Fitted, Parameters
from bype.estimator.fitting import device_of, fit_examples, seed_of
from bype.estimator.inputs import errors_in_python, examples_to_fit, examples_to_use
from bype.evaluation.generation import generate_like, sample
from bype.evaluation.pseudopoints import require_points_of_class
from bype.evaluation.scores import Scorer
from bype.share.mixin import HubMixin

_DECODED_ROWS = 512


class ByPEVAE(HubMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, OutlierMixin, BaseEstimator):  # type: ignore[misc]
    r"""A VAE whose prior is a mixture around a few learned pseudo-points, as a scikit-learn estimator.

    It begins as factor analysis (tables) or probabilistic PCA (images) and learns what these miss. Settings that are
    not parameters are chosen from the data, as ``bype fit`` does. All values are in the units of the data:
    log-likelihoods, samples, reconstructions and pseudo-points. Columns are scaled inside the model, so it needs no
    scaler before it, except for large numbers that differ by little, which ``fit`` refuses. It warns of numbers that
    are far from all others in their column: one can spoil the model.

    Parameters
    ----------
    n_pseudopoints
        The number of pseudo-points; a quarter of the training examples, if that is fewer.
    latent_dim
        The dimensions of the latent space. If left out: 40 for images, half the columns of a table and at most 40,
        and never more than a fifth of the training examples.
    points_start
        ``examples``, or ``noise`` for private data: then pseudo-points start as noise, which copies no example, and no
        class has points of its own, whatever ``y`` is.
    max_epochs
        Train for this many passes over the data. The best model on a tenth of the data, drawn at random, is kept.
    max_minutes
        Train for this many minutes instead of ``max_epochs``. Then the same call does not give the same model again.
    contamination
        The share of training examples that ``predict`` calls outliers.
    n_draws
        Importance draws for each log-likelihood. More make it higher and more exact.
    device
        ``cpu``, ``cuda``, or ``auto`` for a GPU if there is one.
    random_state
        The same whole number gives the same model to the bit, on one machine with the same number of threads.
    verbose
        Whether to show progress.
    run_dir
        Train in this folder, and keep the run there. If ``fit`` was killed, the same call resumes. Other data, and
        parameters that change the training, are refused; ``n_draws``, ``contamination``, ``device`` and ``verbose`` may
        change. Without it nothing is left on the disk.

    Attributes
    ----------
    coreset_ : bype.Coreset
        The pseudo-points: points, weights, labels, nearest training examples.
    model_ : bype.VAE
        The model itself, for everything else in the library.
    config_ : bype.TrainingConfig
        All settings.
    offset_ : float
        ``decision_function`` is ``score_samples`` minus this.
    n_iter_ : int
        The number of epochs.
    n_features_in_, feature_names_in_
        Of the data.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> vae = ByPEVAE(max_epochs=5).fit(X, y)
    >>> vae.transform(X).shape, vae.sample(3).shape, vae.coreset_.points.shape
    ((569, 15), (3, 30), (128, 30))
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_pseudopoints": [Interval(Integral, 1, None, closed="left")],
        "latent_dim": [Interval(Integral, 1, None, closed="left"), None],
        "points_start": [StrOptions({"examples", "noise"})],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "max_minutes": [Interval(Real, 0, None, closed="neither"), None],
        "contamination": [Interval(Real, 0, 0.5, closed="right")],
        "n_draws": [Interval(Integral, 1, None, closed="left")],
        "device": [str],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "run_dir": [str, os.PathLike, None],
    }

    def __init__(
        self,
        n_pseudopoints: int = 500,
        *,
        latent_dim: int | None = None,
        points_start: str = "examples",
        max_epochs: int = 100,
        max_minutes: float | None = None,
        contamination: float = 0.1,
        n_draws: int = 100,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
        run_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_pseudopoints = n_pseudopoints
        self.latent_dim = latent_dim
        self.points_start = points_start
        self.max_epochs = max_epochs
        self.max_minutes = max_minutes
        self.contamination = contamination
        self.n_draws = n_draws
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.run_dir = run_dir

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train the model.

        Parameters
        ----------
        X
            (N, features): an array, a tensor or a data frame of numbers. Or images: (N, height, width), with 1 or 3
            channels first or last, in bytes or as floats in [0, 1]. Or a path or a store, all that ``bype fit`` takes.
        y
            (N,), class labels: text or whole numbers, which may be floats. Each class gets its own pseudo-points, which
            only its examples move, unless points start as noise, or there are fewer than two for each class. Anything
            else is ignored, such as the target of a regression. For a path to a table: the name of its label column;
            labels are then text.
        """
        self._validate_params()
        run_dir = None if self.run_dir is None else Path(self.run_dir)
        with errors_in_python():
            given = examples_to_fit(clone(self), X, y)  # so that this estimator changes only when all is done
            fitted = fit_examples(given, self._parameters(), run_dir)
        self._become(fitted)
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return embeddings (N, latent_dim): latent means over the linear model's posterior standard deviations."""
        check_is_fitted(self)
        return self._of_each(self._scorer.embed, X)

    def inverse_transform(self, X: Any) -> NDArray[Any]:
        """Return the examples that embeddings (N, latent_dim) decode to, in the units and the shape of the data."""
        check_is_fitted(self)
        latents = check_array(X, dtype=np.float64)
        if latents.shape[1] != self._n_features_out:
            raise ValueError(f"X has {latents.shape[1]} columns, but the latent space has {self._n_features_out}")
        model = self._scorer.model
        to_user, made = self._fitted.about.layout.to_user, []
        with torch.no_grad():
            for part in torch.split(torch.tensor(latents), _DECODED_ROWS):
                output = model.decode(part.to(model.device) / model.latent_scale, at_mean=True)
                made.append(to_user(model.to_data_units(model.unflatten(model.likelihood.mean(output)))))
        return np.concatenate(made)

    def reconstruct(self, X: Any) -> NDArray[Any]:
        """Return each example as the model sees it: encoded and decoded."""
        check_is_fitted(self)
        return self.inverse_transform(self._of_each(self._scorer.embed, X))

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return log p(x) (N,) of examples, in nats and in the units of the data: estimates that are low on average.

        All examples share the same draws, so a result does not depend on the other examples.
        """
        check_is_fitted(self)
        scores = self._of_each(lambda x: self._scorer.log_likelihood(x, self.n_draws), X)
        return np.asarray(scores + self._fitted.about.layout.log_density)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log p(x) over the examples, in nats."""
        return float(self.score_samples(X).mean())

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return ``score_samples(X) - offset_`` (N,): below zero for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Return -1 for outliers and 1 for all others (N,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int64]:
        """Train the model, with labels if there are any, and tell which examples of X are outliers.

        Of a store, ``predict`` takes one split: test, or else validation, or else train.
        """
        return self.fit(X, y).predict(X)

    def sample(self, n: int = 1, y: Any = None, *, random_state: Any = None) -> NDArray[Any]:
        """Generate ``n`` new examples, in the units and the shape of the data.

        Rows of a table are drawn with the noise of each column. Images are drawn without pixel noise, so that they look
        better.

        Parameters
        ----------
        n
            How many.
        y
            A class label: generate examples of this class, from its own pseudo-points. All classes by their share of
            the data, if left out.
        random_state
            The same whole number gives the same examples. If left out, each call gives others, also if the estimator
            itself has a ``random_state``.
        """
        check_is_fitted(self)
        if not isinstance(n, Integral) or isinstance(n, bool) or n < 1:
            raise ValueError(f"n must be a whole number of at least 1, not {n!r}")
        layout, scorer = self._fitted.about.layout, self._scorer
        made = sample(
            scorer.model,
            n,
            label=None if y is None else self._class_number(y),
            prior=scorer.prior,
            generator=_generator(random_state),
        )
        return layout.to_user(made)

    def augment(self, X: Any, y: Any, *, random_state: Any = None) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return X and y, followed by one generated neighbour of each example with the same label.

        The latents of a neighbour are drawn from the posterior of its example, as in ``bype augment``.
        """
        check_is_fitted(self)
        layout = self._fitted.about.layout
        examples, labels = torch.cat([*self._examples(X)]), np.asarray(y)
        check_consistent_length(examples, labels)
        model = self._scorer.model
        known = layout.digits_of_a_store(examples).to(model.device)
        made = generate_like(model, known, "posterior", generator=_generator(random_state))
        return np.concatenate([layout.to_user(examples), layout.to_user(made)]), np.concatenate([labels, labels])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the estimator to a new folder: a run directory without the data.

        ``bype sample``, ``bype embed --data``, ``bype score --data`` and ``TrainedRun.open`` read it too. Commands that
        need the training data do not: fit with ``run_dir`` for these.
        """
        check_is_fitted(self)
        self._current().save(Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an estimator that :meth:`save` wrote, or the folder that was its ``run_dir``.

        No code in the folder is run. ``device`` becomes ``auto``: another machine may not have the one of ``fit``.
        """
        fitted = Fitted.load(Path(path))
        estimator = cls(**{**dataclasses.asdict(fitted.about.parameters), "device": "auto"})
        try:
            estimator._validate_params()
        except ValueError as error:
            raise FileError(f"{Path(path) / ABOUT}: {error}") from error
        estimator._become(fitted)
        return estimator

    def _write_model(self, folder: Path) -> None:
        check_is_fitted(self)
        dataclasses.replace(self._current(), data=self._fitted.data.without_place()).write(folder)

    def _records_folder(self) -> Path | None:
        return self._fitted.folder

    @classmethod
    def _from_folder(cls, folder: Path) -> Self:
        return cls.load(folder)

    def _class_number(self, y: Any) -> int:
        classes = list(self._fitted.about.labels())
        if self.config_.points_start == "noise":
            raise ValueError("points that start as noise have no classes; fit with points_start='examples'")
        if not self.config_.labelled:
            why = self._fitted.why_no_labels
            given = f": no class labels were taken, because {why}" if why else ""
            if len(classes) == 1:
                given = f": there is one class only, {classes[0]!r}"
            raise ValueError(
                f"no class has points of its own{given}; "
                f"give labels to fit, as text or whole numbers in y, or as a folder for each class of images, and two "
                f"points or more for each class"
            )
        if np.ndim(y) != 0:
            raise ValueError("y must be one label; call sample once for each class")
        if y not in classes:
            raise ValueError(f"there is no class {y!r}; there are {', '.join(map(repr, classes))}")
        number = classes.index(y)
        require_points_of_class(self.model_, number, classes)
        return number

    @property
    def _n_features_out(self) -> int:
        return self._fitted.config.latent_dim

    def _current(self) -> Fitted:
        """Return what was fitted, with the ``n_draws`` that are set now."""
        self._validate_params()
        about = self._fitted.about
        parameters = dataclasses.replace(about.parameters, n_draws=int(self.n_draws))
        return dataclasses.replace(self._fitted, about=dataclasses.replace(about, parameters=parameters))

    def _parameters(self) -> Parameters:
        given = {name: value for name, value in self.get_params().items() if name != "run_dir"}
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
        return Parameters(**{**plain, "random_state": seed_of(self.random_state), "verbose": bool(self.verbose)})

    def _become(self, fitted: Fitted) -> None:
        """Take over what was fitted; nothing of an earlier fit is left."""
        about = fitted.about
        self._fitted = fitted
        self.config_, self.coreset_, self.offset_ = fitted.config, fitted.coreset, about.offset
        self.n_iter_, self.n_features_in_ = about.num_epochs, about.layout.num_features
        if about.feature_names:
            self.feature_names_in_ = np.array(about.feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self._open(self.device)

    def _open(self, device: str) -> None:
        """Build the model, and its copy that scores."""
        self.model_ = self._fitted.model(device_of(device))
        self._scorer = Scorer(self.model_)

    def _examples(self, X: Any) -> Iterator[Tensor]:
        return examples_to_use(self, X, self._fitted.about.layout, self._fitted.data.columns_to_find())

    def _of_each(self, function: Callable[[Tensor], Tensor], X: Any) -> NDArray[np.float64]:
        """Apply a function to examples, a bounded number at a time, and join what it returns."""
        digits = self._fitted.about.layout.digits_of_a_store
        return np.concatenate([function(digits(x)).cpu().numpy() for x in self._examples(X)])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is built from plain numbers, so that a copy in another process needs no more than these."""
        state = dict(super().__getstate__())
        return {name: value for name, value in state.items() if name not in ("model_", "_scorer")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_fitted" in state:
            try:
                self._open(self.device)
            except RuntimeError:  # fitted on a device that this machine does not have
                self._open("auto")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _generator(random_state: Any) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(random_state))
