"""A pseudocoreset as files: an archive, a store, plates and a histogram."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from bype.data.examples import as_stored
from bype.data.files import new_folder
from bype.data.manifest import PIXELS
from bype.data.store import Store
from bype.data.writer import StoreWriter
from bype.evaluation.pseudopoints import Coreset
from bype.plates import grid, is_image_shape, plate, png, to_bytes
from bype.report.charts import weights_chart
from bype.run.opened import TrainedRun

_COLUMNS = 20
_NEIGHBOURS = 9
_NEAREST_LINES = 40


def export_points(points: Coreset, run: TrainedRun, store: Store, out: Path) -> None:
    """Write a pseudocoreset to a new folder, which appears when it is complete.

    ``coreset.npz`` has points, weights, component numbers, the rows of the nearest training examples and the mix of
    their labels. ``store`` is a store of the points, with the most frequent of these labels. ``weights.svg`` is a
    histogram of the weights. For images, ``points.png`` shows all points by weight, and ``nearest.png`` the heaviest,
    each with the training examples nearest to it. For tables, ``points.csv`` has the points by weight.
    """
    with new_folder(out) as folder:
        _write(points, run, store, folder)


def _write(points: Coreset, run: TrainedRun, store: Store, folder: Path) -> None:
    arrays: dict[str, Any] = {
        "points": points.points,
        "weights": points.weights,
        "component": points.component,
        "neighbours": points.neighbours,
    }
    if points.label_mix is not None:
        arrays |= {"label_mix": points.label_mix, "classes": np.array(run.data.classes)}
    np.savez(folder / "coreset.npz", **arrays)
    _write_store(points, run, folder / "store")
    (folder / "weights.svg").write_text(weights_chart(points.weights.tolist()).as_file(), encoding="utf-8")
    if is_image_shape(run.data.shape):
        pixels = to_bytes(points.points)
        (folder / "points.png").write_bytes(png(grid(pixels, _COLUMNS)))
        train = store.split("train")
        (folder / "nearest.png").write_bytes(png(plate(points.with_neighbours(train, _NEAREST_LINES, _NEIGHBOURS))))
    elif len(run.data.shape) == 1:
        _write_table(points, run, folder / "points.csv")


def _write_table(points: Coreset, run: TrainedRun, path: Path) -> None:
    """Write rows: weight, most frequent label of the nearest examples if there are labels, component, features."""
    names = run.data.column_names()
    labels = [] if points.label_mix is None else [[run.data.classes[k]] for k in points.label_mix.argmax(1)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        added = ["weight", *(["label"] if labels else []), "component"]
        writer.writerow([*(f"{name} of the point" if name in names else name for name in added), *names])
        numbered = zip(points.weights, points.component.tolist(), points.points, strict=True)
        for k, (weight, component, point) in enumerate(numbered):
            label = labels[k] if labels else []
            writer.writerow([f"{weight:g}", *label, component, *(f"{value:.9g}" for value in point)])


def _write_store(points: Coreset, run: TrainedRun, folder: Path) -> None:
    labels = None if points.label_mix is None else points.label_mix.argmax(1).astype(np.int32)
    dtype = (
        "uint8" if run.data.dtype in PIXELS else run.data.dtype
    )  # points are grey, also among black and white images
    with StoreWriter(
        folder,
        run.data.shape,
        dtype,
        classes=run.data.classes,
        names=run.data.names,
        source=f"pseudocoreset of {run.data.source}, by weight",
        has_labels=labels is not None,
    ) as writer:
        writer.append("train", as_stored(points.points, dtype), labels)
