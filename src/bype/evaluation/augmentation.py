"""Generated examples with labels, and the paper's experiment: a classifier trained on real and generated ones.

Each generated example takes the label of the training example that its latents come from: from the posterior of
that example, or from the prior's component around it. Real images that are only shifted are what they have to beat.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bype.console import Report, no_report
from bype.data.augment import Augmentation
from bype.data.examples import StoreSource, TrainingOrder, as_model_input, as_stored
from bype.data.manifest import PIXELS, Manifest
from bype.data.order import derive_key
from bype.data.store import Split, Store
from bype.data.writer import StoreWriter
from bype.evaluation.generation import Way, generate_like
from bype.models.base import LatentModel
from bype.randomness import generator_for, seeded
from bype.run.directory import RunError
from bype.run.opened import TrainedRun

_HIDDEN = 1024
CLASSIFIER_BATCH = 100
_LEARNING_RATE = 0.1
_LAST_SHARE = 0.01
_MOMENTUM = 0.9
_SMOOTHING = 0.1
_SHIFTED = Augmentation(shifts=2)

Made = Way | Literal["shifts"]
"""How examples are made from real ones: by the model, or by shifts of up to 2 pixels, which need none."""


def require_labels(store: Store) -> None:
    """Refuse a store that a classifier cannot be trained and tested on."""
    if missing := [name for name in ("train", "test") if name not in store.manifest.splits]:
        raise RunError(f"{store.folder} has no split {missing[0]}; prepare it with --test, to test a classifier")
    if not (store.split("train").has_labels and store.split("test").has_labels):
        raise RunError(f"{store.folder} has no labels, which a classifier needs; prepare it with labels")
    if len(store.manifest.classes) < 2:
        raise RunError(f"{store.folder} has one class only; a classifier needs two or more")


def classifier_error(
    model: LatentModel | None,
    store: Store,
    way: Made,
    real_share: float,
    *,
    epochs: int = 100,
    seed: int = 0,
    report: Report = no_report,
) -> float:
    """Train a classifier on real and generated examples and return its test error in percent.

    The network has two hidden layers of 1,024 ReLU units and sees an example as a plain vector. SGD with momentum 0.9,
    rate 0.1 decayed linearly to 1%, batches of 100, labels smoothed by 0.1; as in the program of the paper's authors,
    but in float32.

    Parameters
    ----------
    model, store
        The model and the labelled data. Without a model nothing is scaled, and ``real_share`` must be 1 or ``way``
        ``shifts``.
    way
        How examples are generated; with ``shifts``, real images are shifted instead.
    real_share
        Lambda, the weight of real examples in the loss; with 1 nothing is generated.
    epochs
        Passes over the training split; the authors' program takes 100.
    seed
        Seed of the classifier and of the generated examples.
    report
        Called with the number of steps done and the total.
    """
    require_labels(store)
    train, test = store.split("train"), store.split("test")
    if not 0 <= real_share <= 1:
        raise ValueError(f"lambda must be between 0 and 1, not {real_share}")
    if way == "shifts" and len(train.shape) != 3:
        raise ValueError("only images can be shifted; generate rows of a table from the posterior or the prior")
    if model is None and real_share < 1 and way != "shifts":
        raise ValueError("generated examples need a model; without one, lambda must be 1")
    in_units = nn.Identity() if model is None else model.to_model_units
    source = StoreSource(train)
    order = TrainingOrder(train, derive_key(seed, "classifier order"), CLASSIFIER_BATCH, None)
    classifier = build_classifier(int(np.prod(train.shape)), len(store.manifest.classes), seed)
    optimizer = torch.optim.SGD(classifier.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)
    num_steps = epochs * order.steps_per_epoch
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, _LAST_SHARE, num_steps)
    for step in range(num_steps):
        rows = order.rows(step)
        x, labels = source.read(rows), torch.from_numpy(train.labels(rows)).long()
        loss = torch.zeros(())
        if real_share > 0:
            loss = real_share * classifier_loss(classifier, in_units(x), labels)
        if real_share < 1:
            made = _made(model, x, way, generator_for(seed, "augmentation", step))
            if store.manifest.dtype in PIXELS:  # real pixels are rounded too, and a classifier would see the difference
                made = as_model_input(torch.from_numpy(as_stored(made.numpy(), store.manifest.dtype)))
            loss = loss + (1 - real_share) * classifier_loss(classifier, in_units(made), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        decay.step()
        report(step + 1, num_steps)
    return _test_error(classifier, in_units, test)


def _made(model: LatentModel | None, x: Tensor, way: Made, generator: torch.Generator) -> Tensor:
    if way == "shifts" or model is None:
        return _SHIFTED(x, torch.rand(len(x), 3, generator=generator))
    return generate_like(model, x, way, generator=generator)


def build_classifier(num_inputs: int, num_classes: int, seed: int) -> nn.Module:
    """Return the network of :func:`classifier_error` before it is trained."""
    with seeded(derive_key(seed, "classifier") >> 1):
        sizes = [(num_inputs, _HIDDEN), (_HIDDEN, _HIDDEN)]
        hidden = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(_HIDDEN, num_classes))


def classifier_loss(classifier: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Return what a classifier minimises on examples in the model's units: the cross-entropy with smoothed labels."""
    return F.cross_entropy(classifier(x), labels, label_smoothing=_SMOOTHING)


@torch.no_grad()
def _test_error(classifier: nn.Module, in_units: Callable[[Tensor], Tensor], test: Split) -> float:
    source, wrong = StoreSource(test), 0
    for rows in np.array_split(np.arange(len(test), dtype=np.int64), -(-len(test) // 1000)):
        predicted = classifier(in_units(source.read(rows))).argmax(1).numpy()
        wrong += int((predicted != test.labels(rows)).sum())
    return 100 * wrong / len(test)


def export_generated(
    run: TrainedRun,
    store: Store,
    way: Way,
    out: Path,
    *,
    report: Report = no_report,
) -> Manifest:
    """Write a store with one generated example for each training example, with its label."""
    train = store.split("train")
    source, manifest = StoreSource(train), store.manifest
    with StoreWriter(
        out,
        manifest.shape,
        manifest.dtype,
        classes=manifest.classes,
        names=manifest.names,
        source=f"generated like {manifest.source}, from the {way}",
        has_labels=train.has_labels,
    ) as writer:
        for first in range(0, len(train), 1000):
            rows = np.arange(first, min(first + 1000, len(train)), dtype=np.int64)
            generator = generator_for(0, "export", first)
            made = generate_like(run.model, source.read(rows), way, generator=generator).numpy()
            writer.append("train", as_stored(made, manifest.dtype), train.labels(rows) if train.has_labels else None)
            report(first + len(rows), len(train))
    if writer.manifest is None:
        raise RuntimeError("the writer did not finish")
    return writer.manifest
