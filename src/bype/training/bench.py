"""What training costs with one prior and another, as ratios on this machine."""

import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bype.console import Report, no_report
from bype.coreset import PSVI, ELBOAscent, Tracking
from bype.data.store import Store
from bype.priors import ExampleSource
from bype.training.config import TrainingConfig, steps_per_epoch
from bype.training.examples import StoreSource, TrainingOrder
from bype.training.step import TrainingStep

_BLOCK_SECONDS = 0.2
_JITTER = 0.02
_TRACKING = TrainingConfig(update="tracking")
_SHARES = {
    "tracking, in every step": (_TRACKING, 0, 0),
    "psvi, a pass every 10 epochs": (TrainingConfig(update="psvi"), 10, 0),
    "elbo, 100 steps of 1,000 every 5 epochs": (
        TrainingConfig(update="elbo", update_batch=1000),
        5,
        100,
    ),
}


def priors_to_time(num_train: int) -> dict[str, TrainingConfig]:
    """Return what is compared, the reference first; 25,000 exemplars, 5,000 points, or half of the training split."""
    exemplars = min(25000, num_train // 2)
    exact = dataclasses.replace(_TRACKING, live_components=0)
    more = min(5000, num_train // 2)
    return {
        "Gaussian prior": TrainingConfig(prior="gaussian"),
        "pseudocoreset, tracking": _TRACKING,
        f"pseudocoreset, tracking, {more:,} points, 64 encoded": dataclasses.replace(
            _TRACKING, components=more, live_components=64
        ),
        "pseudocoreset, tracking, all points encoded": exact,
        "pseudocoreset, no update between epochs": TrainingConfig(update="frozen"),
        "pseudocoreset, joint": TrainingConfig(update="joint"),
        "VampPrior": TrainingConfig(prior="vamp"),
        "Exemplar, 500 drawn in each step": TrainingConfig(prior="exemplar"),
        f"Exemplar, nearest 10 of {exemplars:,}": TrainingConfig(prior="exemplar", components=exemplars, neighbours=10),
        f"Exemplar, {exemplars:,} exact": TrainingConfig(prior="exemplar", components=exemplars),
    }


def components_to_time(sizes: tuple[int, ...]) -> dict[str, TrainingConfig]:
    """Return tracking with so many components, 500 first: all of them counted, and those near by an inverted file."""
    found = {"500 components": _TRACKING}
    for size in sizes:
        more = dataclasses.replace(_TRACKING, components=size)
        found[f"{size:,} components, 32 near and others in turn"] = dataclasses.replace(more, neighbours=32)
        found[f"{size:,} components, all counted"] = more
    return found


@dataclass(frozen=True, eq=False)
class JitteredCopies:
    """A source repeated until there are ``size`` examples, each copy a little different: more components than data."""

    source: ExampleSource
    size: int

    def __len__(self) -> int:
        return self.size

    def take(self, indices: Tensor) -> Tensor:
        """Return the examples with these row numbers."""
        examples = self.source.take(indices % len(self.source))
        noise = torch.randn(examples.shape, generator=torch.Generator().manual_seed(int(indices[0])))
        jittered = examples + _JITTER * noise
        return jittered.clamp_(0, 1) if examples.ndim == 4 else jittered  # pixels have a range, features have none


class Racer:
    """Steps of one configuration on real data, timed in blocks."""

    def __init__(self, config: TrainingConfig, store: Store) -> None:
        split = store.split("train")
        self._source = StoreSource(split)
        is_more = config.prior in ("bype", "vamp") and config.components > len(split)
        examples: ExampleSource = JitteredCopies(self._source, config.components) if is_more else self._source
        self._order = TrainingOrder(split, config.seed, config.batch_size, config.window_blocks)
        self.take = TrainingStep(config, split.shape, examples)
        self._num_taken = 0
        self._block = 1

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return the next examples of the order, and their rows."""
        rows = self._order.rows(self._num_taken)
        self._num_taken += 1
        return self._source.read(rows), torch.from_numpy(rows)

    def seconds(self) -> float:
        """Return the time of a step, the mean over a block of them."""
        start = time.perf_counter()
        for _ in range(self._block):
            x, rows = self.next_batch()
            generator = torch.Generator().manual_seed(self._num_taken)
            self.take(x, rows, generator=generator, prior_generator=generator)
        mean = (time.perf_counter() - start) / self._block
        steps = round(_BLOCK_SECONDS / mean)
        self._block = max(1, min(100, steps) // 4 * 4)  # points that are tracked move in one step of four
        return mean


@dataclass(frozen=True)
class Timing:
    """How long a step took, and how much longer than one of the reference beside it."""

    name: str
    milliseconds: tuple[float, float, float]
    """Lower quartile, median, upper quartile."""
    ratio: tuple[float, float, float]


def race(
    configs: dict[str, TrainingConfig], store: Store, repetitions: int, report: Report = no_report
) -> Iterator[Timing]:
    """Time steps in turn, block by block, so that what else the machine does falls on all; compare with the first."""
    racers = {name: Racer(config, store) for name, config in configs.items()}
    found: dict[str, list[float]] = {name: [] for name in racers}
    for repetition in range(repetitions + 2):  # two to warm up: the first step works out caches, the second block sizes
        for name, racer in racers.items():
            seconds = racer.seconds()
            if repetition >= 2:
                found[name].append(seconds)
        report(repetition + 1, repetitions + 2)
    reference = found[next(iter(racers))]
    for name, times in found.items():
        ratios = [own / other for own, other in zip(times, reference, strict=True)]
        yield Timing(name, _quartiles([1e3 * each for each in times]), _quartiles(ratios))


def update_shares(store: Store, repetitions: int) -> Iterator[tuple[str, float]]:
    """Return, for each rule, which part of the training time goes into moving the pseudocoreset."""
    split = store.split("train")
    for name, (config, num_epochs, num_steps) in _SHARES.items():
        racer = Racer(config, store)
        rule, batch_size = racer.take.rule, config.update_batch or config.batch_size
        order = TrainingOrder(split, 1, batch_size, 0)
        step = statistics.median(racer.seconds() for _ in range(repetitions + 2))
        if isinstance(rule, Tracking):
            yield name, _tracking_share(racer, rule, repetitions)
        elif isinstance(rule, PSVI | ELBOAscent):
            moves = []
            rule.start_update()
            for j in range(repetitions + 2):
                x = StoreSource(split).read(order.rows(j))
                start = time.perf_counter()
                rule.step(racer.take.model, x)
                moves.append(time.perf_counter() - start)
            update = statistics.median(moves) * (num_steps or order.steps_per_epoch)
            epochs = num_epochs * step * steps_per_epoch(len(split), config.batch_size)
            yield name, update / (update + epochs)


def _tracking_share(racer: Racer, rule: Tracking, repetitions: int) -> float:
    """Return which part of training steps moves the pseudocoreset, apart from the gradient that all of it shares."""
    timed = {name: _Timed(getattr(rule, name)) for name in ("pull", "step")}
    for name, function in timed.items():
        setattr(rule, name, function)
    start = time.perf_counter()
    for _ in range(repetitions):
        racer.seconds()
    return sum(function.seconds for function in timed.values()) / (time.perf_counter() - start)


class _Timed:
    """A function that remembers how long its calls took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        found = self._function(*arguments)
        self.seconds += time.perf_counter() - start
        return found


def machine() -> str:
    """Say on what the numbers were taken."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{platform.machine()}, {os.cpu_count()} processors, {torch.get_num_threads()} threads, {versions}"


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
