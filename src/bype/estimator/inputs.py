"""What a user may hand to the estimator: arrays, tensors, data frames, paths and stores."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, validate_data
from torch import Tensor

from bype.data.examples import as_model_input
from bype.data.files import FileError, harmless, printable
from bype.data.manifest import Manifest
from bype.data.prepare import Prepared, with_workable_size
from bype.data.sources import Source, SourceError, SourceOptions, open_source
from bype.data.sources.base import LARGEST_NUMBER, can_be_stored
from bype.data.sources.memory import source_of
from bype.data.store import Store, is_store
from bype.estimator.labels import MISSING, labels_of
from bype.estimator.layout import Layout
from bype.priors.base import rows_at_once
from bype.run.directory import RunError
from bype.run.identity import different_column, own_names

MIN_EXAMPLES = 3
"""Two to train on, and one to validate with."""


@dataclass(frozen=True)
class Given:
    """Examples to fit: in a store, or with a source to make one from."""

    layout: Layout
    store: Store | None
    source: Source | None
    examples: NDArray[Any] | None = None
    """What was in memory, as the user has it."""
    classes: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    why_no_labels: str = ""
    """Why ``y`` was not taken as labels, if it was given."""


_IN_PYTHON = {
    "--label": "y",
    "folder (--out), or run the command that began it": "run_dir, or the parameters of the fit that began it",
    "another --out": "another run_dir",
}


@contextmanager
def errors_in_python() -> Iterator[None]:
    """Let errors name parameters of ``fit`` and of the estimator, instead of options of the command line."""
    try:
        yield
    except (SourceError, RunError, FileError) as error:
        text = str(error)
        for of_commands, of_python in _IN_PYTHON.items():
            text = text.replace(of_commands, of_python)
        error.args = (text,)
        raise


def examples_to_fit(estimator: BaseEstimator, X: Any, y: Any) -> Given:
    """Check what ``fit`` was given, and set ``n_features_in_`` and ``feature_names_in_`` of ``estimator``."""
    if _is_place(X):
        return _place_to_fit(estimator, X, y)
    if isinstance(y, str):
        raise ValueError(
            f"y can name a column only if X is the path of a table; here give the column: fit(X.drop(columns=y), X[y]) "
            f"with y = {y!r}"
        )
    array = _array(estimator, X, None)
    layout = Layout.of_array(array)
    if len(array) < MIN_EXAMPLES:
        raise ValueError(f"fit needs at least {MIN_EXAMPLES} samples, n_samples = {len(array)}; add some")
    estimator.n_features_in_ = layout.num_features
    if y is not None:
        check_consistent_length(array, y)
    labels = labels_of(y)
    if labels.why_none == MISSING:
        warnings.warn("y has missing values, so it is not taken as class labels", UserWarning, stacklevel=3)
    names = tuple(map(str, getattr(estimator, "feature_names_in_", ())))
    rows, classes = layout.to_stored_shape(array), tuple(map(str, labels.classes))
    source = source_of(rows, labels.numbers, classes=classes, names=names)
    return Given(layout, None, source, array, labels.classes, names, labels.why_none)


def examples_to_use(estimator: BaseEstimator, X: Any, layout: Layout, columns: tuple[str, ...]) -> Iterator[Tensor]:
    """Yield examples for a fitted estimator as its model takes them, in float64, a bounded number at a time.

    In a table at a path, the ``columns`` are looked for, if it has names.
    """
    size = rows_at_once(layout.stored_shape)
    if not _is_place(X):
        array = _array(estimator, X, layout)
        for first in range(0, len(array), size):
            yield layout.to_model(array[first : first + size])
    elif (store := _store(X)) is not None:
        _require_kind(estimator, X, store.manifest, layout)
        split = store.split(store.default_split)
        for first in range(0, len(split), size):
            rows = split.read(np.arange(first, min(first + size, len(split)), dtype=np.int64))
            yield as_model_input(torch.from_numpy(rows)).double()
    else:
        source = open_source(X, SourceOptions(shape=layout.stored_shape, columns=columns))
        _require_kind(estimator, X, source, layout)
        found = 0
        for pool in source.pools:
            for _, chunk in pool.read():
                found += len(chunk.rows)
                for first in range(0, len(chunk.rows), size):
                    rows = np.array(chunk.rows[first : first + size])  # a copy: those of a file may be read-only
                    yield as_model_input(torch.from_numpy(rows)).double()
        if not found:
            raise SourceError(f"none of the examples in {X} can be read; the first: {harmless(source.skipped[0])}")
        warn_of_findings(source)


def warn_of_findings(found: Source | Prepared) -> None:
    """Warn of files that could not be read, and of what seems to be wrong with the data."""
    if skipped := found.skipped:
        files = "1 file was" if len(skipped) == 1 else f"{len(skipped)} files were"
        warnings.warn(f"{files} skipped; the first: {harmless(skipped[0])}", UserWarning, stacklevel=2)
    for note in found.notes:
        warnings.warn(harmless(note), UserWarning, stacklevel=2)


def _require_kind(estimator: BaseEstimator, X: Any, found: Manifest | Source, layout: Layout) -> None:
    """Refuse a place whose examples are not like those that were fitted."""
    takes_bytes = layout.is_image and layout.dtype == "float32"  # as pixels (byte + 0.5) / 256
    dtype = layout.dtype if takes_bytes and found.dtype == "uint8" else found.dtype
    if (found.shape, dtype) != (layout.stored_shape, layout.dtype):
        raise ValueError(
            f"{X} holds {found.dtype} examples of shape {found.shape}, "
            f"fitted were {layout.dtype} of shape {layout.stored_shape}"
        )
    if difference := different_column(tuple(getattr(estimator, "feature_names_in_", ())), found.names):
        raise ValueError(
            f"{X} has other columns than were fitted: {difference}; give the same columns in the same order"
        )


def _is_place(X: Any) -> bool:
    return isinstance(X, (str, os.PathLike, Store))


def _store(X: Any) -> Store | None:
    if isinstance(X, Store):
        return X
    return Store(X) if is_store(X) else None


def _place_to_fit(estimator: BaseEstimator, X: Any, y: Any) -> Given:
    store = _store(X)
    if y is not None and (store is not None or not isinstance(y, str)):
        raise ValueError(
            "a path or a store brings its own labels, and y can only name the label column of a table; leave y out"
        )
    if store is not None:
        manifest = store.manifest
        shape, dtype, names, classes = manifest.shape, manifest.dtype, manifest.names, manifest.classes
        source = None
    else:
        options, why = with_workable_size(X, SourceOptions(label=y))
        if why:
            warnings.warn(
                f"{why}: they are cropped and resized to {options.size} x {options.size} pixels; to choose another "
                f"size, make a store with bype data prepare --size",
                UserWarning,
                stacklevel=4,
            )
        source = open_source(X, options)
        shape, dtype, names = source.shape, source.dtype, source.names
        classes = tuple(map(printable, source.classes))
        if source.why_no_labels:
            warnings.warn(f"no class labels are taken: {harmless(source.why_no_labels)}", UserWarning, stacklevel=4)
        if source.unused:
            warnings.warn(f"not used: {harmless(', '.join(source.unused[:10]))}", UserWarning, stacklevel=4)
    layout, names = Layout.of_store(shape, dtype), own_names(names)
    estimator.n_features_in_ = layout.num_features
    if names:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    return Given(layout, store, source, None, classes, names, "" if source is None else source.why_no_labels)


def _array(estimator: BaseEstimator, X: Any, fitted: Layout | None) -> NDArray[Any]:
    """Return examples as an array: images as they are, tables after scikit-learn's own checks."""
    if isinstance(X, Tensor):
        X = X.detach().cpu()
        X = (X.float() if X.dtype == torch.bfloat16 else X).numpy()  # numpy has no bfloat16
    if type(X).__module__.partition(".")[0] == "PIL":
        raise ValueError("X is one image; give an array of images (N, height, width[, channels]): np.stack(images)")
    are_separate = isinstance(X, (list, tuple)) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1)
    if are_separate and len(X) and np.ndim(X[0]) in (2, 3):
        if len({np.shape(image) for image in X}) > 1:
            raise ValueError("the images in X have different sizes; resize them to one, or give fit their folder")
        raise ValueError("X is a list of images; give one array (N, height, width[, channels]): np.stack(images)")
    if getattr(X, "ndim", 2) in (3, 4):
        array = np.asarray(X)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)  # torch knows no other order of bytes
        if fitted is not None and not (fitted.is_image and Layout.of_array(array) == fitted):
            kind = "images" if fitted.is_image else "rows of a table"
            way_out = ""
            if fitted.is_image and array.shape[1:] == fitted.shape:
                way_out = "; give bytes from 0 to 255" if fitted.dtype == "uint8" else "; give numbers from 0 to 1"
            raise ValueError(
                f"X holds {array.dtype} examples of shape {array.shape[1:]}, "
                f"fitted were {kind} ({fitted.dtype}) of shape {fitted.shape}{way_out}"
            )
        return array
    if fitted is not None and fitted.is_image:
        raise ValueError(
            f"X must hold images of shape {fitted.shape}, as in fit; for one image x give x[None], for rows of pixels "
            f"X.reshape{(-1, *fitted.shape)}"
        )
    _refuse_text_columns(X)
    table = validate_data(
        estimator, X, dtype=np.float64, reset=fitted is None, ensure_min_samples=1 if fitted else MIN_EXAMPLES
    )
    if not can_be_stored(table).all():
        raise ValueError(f"X holds numbers beyond {LARGEST_NUMBER:g}; bring its columns to another unit")
    return np.asarray(table)


def _refuse_text_columns(X: Any) -> None:
    """Name a column of a data frame that holds no numbers; scikit-learn would show a cell of it, or take a date."""
    for name, dtype, column in _columns_of(X):
        kind = getattr(dtype, "kind", None) or np.asarray(column).dtype.kind
        if kind in "Mm" or (kind in "OUS" and not _holds_numbers(column)):
            raise ValueError(
                f"could not convert column {name!r} ({dtype}) to numbers; encode it before, for instance with "
                f"OneHotEncoder(sparse_output=False) in scikit-learn's ColumnTransformer, and turn dates into numbers"
            )
    if getattr(getattr(X, "dtype", None), "kind", "") in ("M", "m"):
        raise ValueError(f"X holds {X.dtype}; turn dates and times into numbers")


def _columns_of(X: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the columns of a data frame of pandas or polars, with names and types; two may have one name."""
    if hasattr(X, "iloc") and hasattr(X, "dtypes") and getattr(X, "ndim", 2) == 2:
        for place, (name, dtype) in enumerate(X.dtypes.items()):
            yield name, dtype, X.iloc[:, place]
    elif hasattr(X, "get_columns"):
        for column in X.get_columns():
            yield column.name, column.dtype, column


def _holds_numbers(column: Any) -> bool:
    try:
        np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return True
