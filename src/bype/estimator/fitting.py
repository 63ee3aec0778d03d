"""From checked examples to a fitted model."""

import dataclasses
import math
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from bype.data.examples import StoreSource, spread_rows
from bype.data.order import Rows
from bype.data.prepare import prepare, train_positions
from bype.data.store import Store
from bype.data.writer import partial_of
from bype.distributed import device_named
from bype.estimator.fitted import About, Fitted, Parameters, kind_of_classes, model_of
from bype.estimator.inputs import MIN_EXAMPLES, Given, warn_of_findings
from bype.evaluation.pseudopoints import Coreset, describe_points
from bype.evaluation.scores import Scorer
from bype.models.base import LatentModel
from bype.run.choice import length_of, suitable_config
from bype.run.config import TrainingConfig
from bype.run.identity import DataIdentity
from bype.run.opened import TrainedRun
from bype.span import steps_per_epoch
from bype.training.display import Display, display_here
from bype.training.loop import Outcome, train
from bype.training.memory import train_in_memory

_MOST_SCORED = 5_000
"""At most this many training examples, evenly spread, decide where the border of outliers is."""


def device_of(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is a GPU if there is one."""
    return device_named(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def seed_of(random_state: Any) -> int:
    """Return a whole number for whatever scikit-learn takes as a random state."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def fit_examples(given: Given, parameters: Parameters, run_dir: Path | None) -> Fitted:
    """Train a model and describe it.

    Parameters
    ----------
    given
        The examples.
    parameters
        Of the estimator.
    run_dir
        The folder to train in, where the run is kept; without it nothing is kept.
    """
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller has switched off
        return _fit_examples(given, parameters, run_dir)


def _fit_examples(given: Given, parameters: Parameters, run_dir: Path | None) -> Fitted:
    seed, device = parameters.random_state, device_of(parameters.device)
    minutes = parameters.max_minutes
    length = f"{parameters.max_epochs} epochs" if minutes is None else length_of(minutes)
    with _prepared(given, run_dir, seed) as (store, positions):
        if (num_train := store.manifest.splits["train"].num_rows) < MIN_EXAMPLES - 1:
            raise ValueError(f"fit needs at least {MIN_EXAMPLES - 1} samples to train on, not {num_train}; add some")
        config = suitable_config(
            store, length, seed, parameters.n_pseudopoints, parameters.latent_dim, parameters.points_start
        )
        display = display_here() if parameters.verbose else Display()
        outcome, step, numbers = _train(config, store, display, device, run_dir)
        data = DataIdentity.of(store)
        model = model_of(config, data, numbers, device)
        coreset = _coreset(model, store, given, positions)
        scored = _spread_examples(given, store)
    scores = Scorer(model).log_likelihood(scored, parameters.n_draws).cpu().numpy() + given.layout.log_density
    about = About(
        format="bype-estimator",
        version=1,
        parameters=dataclasses.replace(parameters, device="auto"),  # a model may be opened on another machine
        layout=given.layout,
        num_epochs=math.ceil(outcome.step / steps_per_epoch(data.num_train, config.batch_size)),
        offset=float(np.percentile(scores, 100 * parameters.contamination)),
        feature_names=given.names,
        classes=tuple(map(str, given.classes)),
        class_kind=kind_of_classes(given.classes),
    )
    if run_dir is None and given.store is None:
        data = data.without_place()  # its folder is gone
    fitted = Fitted(config, data, step, numbers, about, coreset, run_dir, given.why_no_labels)
    if run_dir is not None:
        fitted.save_beside(run_dir)
    return fitted


@contextmanager
def _prepared(given: Given, run_dir: Path | None, seed: int) -> Iterator[tuple[Store, Rows | None]]:
    """Yield the data in a store: the user's own, or one in the run directory or in a temporary folder.

    For the last two, also yield the places of its training examples among those that were given.
    """
    if given.store is not None:
        yield given.store, None
        return
    if given.source is None:
        raise RuntimeError("there are no examples to fit")
    if run_dir is not None and not (run_dir / "store").exists():
        left_over = partial_of(run_dir / "store").name
        if run_dir.exists() and any(path.name != left_over for path in run_dir.iterdir()):
            raise ValueError(f"{run_dir} is not empty and holds no fit; choose another run_dir")
        run_dir.mkdir(parents=True, exist_ok=True)
        warn_of_findings(prepare(given.source, run_dir / "store", test=0, seed=seed))
        yield Store(run_dir / "store"), train_positions(given.source, seed, test=0)
        return
    with tempfile.TemporaryDirectory(prefix="bype-") as scratch:
        made = prepare(given.source, Path(scratch) / "store", test=0, seed=seed)
        warn_of_findings(made)
        place = Path(scratch) if run_dir is None else run_dir
        store = Store(place / "store")
        if store.manifest.fingerprint != made.manifest.fingerprint:
            raise ValueError(
                f"{run_dir} holds a fit of other data, or with another random_state; choose another run_dir"
            )
        yield store, train_positions(given.source, seed, test=0)


def _train(
    config: TrainingConfig, store: Store, display: Display, device: torch.device, run_dir: Path | None
) -> tuple[Outcome, int, dict[str, NDArray[Any]]]:
    """Train in memory, or in a run directory; return how it ended, and the best step with its numbers."""
    if run_dir is None:
        kept = train_in_memory(config, store, display, device)
        _stop_if_asked(kept.outcome)
        return kept.outcome, kept.step, _numbers(kept.model)
    outcome = train(config, store.folder, run_dir, display, device=device)
    _stop_if_asked(outcome)
    run = TrainedRun.open(run_dir)
    return outcome, run.step, _numbers(run.model.state_dict())


def _stop_if_asked(outcome: Outcome) -> None:
    """Act on a signal that came during training, now that training has stopped or ended."""
    if outcome.signal is not None:
        signal.raise_signal(outcome.signal)
    if outcome.state == "stopped":
        raise KeyboardInterrupt


def _numbers(state: dict[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: value.numpy() for name, value in state.items()}


def _coreset(model: LatentModel, store: Store, given: Given, positions: Rows | None) -> Coreset:
    """Return the pseudo-points as the user's examples look, with neighbours by where these are in what was given."""
    found = describe_points(model, store.split("train"), given.classes, given.names)
    neighbours = found.neighbours if positions is None else positions[found.neighbours]
    layout = given.layout
    points = layout.to_user(torch.from_numpy(found.points))
    return dataclasses.replace(found, points=points, neighbours=neighbours, has_channels_last=layout.is_channels_last)


def _spread_examples(given: Given, store: Store) -> Tensor:
    """Return examples that were fitted, all of them or evenly spread ones, in float64."""
    if given.examples is not None:
        rows = given.examples[spread_rows(len(given.examples), _MOST_SCORED)]
        return given.layout.digits_of_a_store(given.layout.to_model(rows))
    train = store.split("train")
    return StoreSource(train).read(spread_rows(len(train), _MOST_SCORED)).double()
