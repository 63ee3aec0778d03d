"""Time training steps of the paper's VAE with each prior and rule, as ratios on this machine.

Run from the root of the repository: ``python benchmarks/step_times.py STORE``. Run nothing else meanwhile. It takes
about ten minutes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bype.console import Report, no_report, progress_bar
from bype.data.examples import StoreSource, TrainingOrder
from bype.data.store import Store
from bype.priors import ExampleSource
from bype.pseudocoreset.settings import (
    AscentSettings,
    FrozenSettings,
    JointSettings,
    PSVISettings,
    TrackingSettings,
)
from bype.run.config import TrainingConfig
from bype.span import steps_per_epoch
from bype.training.step import TrainingStep
from measure import machine

_BLOCK_SECONDS = 0.2
_JITTER = 0.02
_TRACKING = TrainingConfig()
_RULES = {
    "tracking, in every step": _TRACKING,
    "psvi, a pass every 10 epochs": TrainingConfig(rule=PSVISettings()),
    "ascent, 100 steps of 1,000 every 5 epochs": TrainingConfig(rule=AscentSettings()),
}


def priors_to_time(num_train: int) -> dict[str, TrainingConfig]:
    """Return what is compared, the reference first; 25,000 exemplars, 5,000 points, or half of the training split."""
    exemplars = min(25000, num_train // 2)
    more = min(5000, num_train // 2)
    return {
        "Gaussian prior": TrainingConfig(prior="gaussian"),
        "pseudocoreset, tracking": _TRACKING,
        f"pseudocoreset, tracking, {more:,} points, 64 encoded": TrainingConfig(
            components=more, rule=TrackingSettings(live_points=64)
        ),
        "pseudocoreset, tracking, all points encoded": TrainingConfig(rule=TrackingSettings(live_points=None)),
        "pseudocoreset, no update between epochs": TrainingConfig(rule=FrozenSettings()),
        "pseudocoreset, joint": TrainingConfig(rule=JointSettings(), clamp_points=False),  # as in the ablation
        "VampPrior": TrainingConfig(prior="vamp"),
        "Exemplar, 500 drawn in each step": TrainingConfig(prior="exemplar"),
        f"Exemplar, nearest 10 of {exemplars:,}": TrainingConfig(prior="exemplar", components=exemplars, neighbours=10),
        f"Exemplar, {exemplars:,} exact": TrainingConfig(prior="exemplar", components=exemplars),
    }


def components_to_time(sizes: tuple[int, ...]) -> dict[str, TrainingConfig]:
    """Return tracking with so many components, 500 first: 3,200 counted in turn, and all of them counted."""
    found = {"500 components": _TRACKING}
    for size in sizes:
        in_turn = TrackingSettings(scored_points=3200)
        found[f"{size:,} components, 3,200 in turn"] = TrainingConfig(components=size, rule=in_turn)
        found[f"{size:,} components, all counted"] = TrainingConfig(components=size)
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


class TimedTraining:
    """Steps of one configuration on real data, timed in blocks."""

    def __init__(self, config: TrainingConfig, store: Store) -> None:
        split = store.split("train")
        self._source = StoreSource(split)
        is_more = config.prior in ("bype", "vamp") and config.components > len(split)
        examples: ExampleSource = JitteredCopies(self._source, config.components) if is_more else self._source
        self._order = TrainingOrder(split, config.seed, config.batch_size, None)
        self.step = TrainingStep.build(config, split.shape, examples)
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
            self.step(x, rows, generator=generator, prior_generator=generator)
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


def time_in_turn(
    configs: dict[str, TrainingConfig], store: Store, repetitions: int, report: Report = no_report
) -> Iterator[Timing]:
    """Time steps in turn, block by block, so that what else the machine does falls on all; compare with the first."""
    trainings = {name: TimedTraining(config, store) for name, config in configs.items()}
    found: dict[str, list[float]] = {name: [] for name in trainings}
    for repetition in range(repetitions + 2):  # two to warm up: the first step works out caches, the second block sizes
        for name, training in trainings.items():
            seconds = training.seconds()
            if repetition >= 2:
                found[name].append(seconds)
        report(repetition + 1, repetitions + 2)
    reference = found[next(iter(trainings))]
    for name, times in found.items():
        ratios = [own / other for own, other in zip(times, reference, strict=True)]
        yield Timing(name, _quartiles([1e3 * each for each in times]), _quartiles(ratios))


def rule_shares(store: Store, repetitions: int) -> Iterator[tuple[str, float]]:
    """Return, for each rule, which part of the training time goes into moving the pseudocoreset.

    The gradient that rule and network share is not counted. An update is timed on a few batches.
    """
    split = store.split("train")
    for name, config in _RULES.items():
        training = TimedTraining(config, store)
        rule, num_steps = training.step.rule, steps_per_epoch(len(split), config.batch_size)
        timed = [_Timed(getattr(rule, method)) for method in ("loss_term", "to_sum", "step")]
        for method, function in zip(("loss_term", "to_sum", "step"), timed, strict=True):
            setattr(rule, method, function)
        step_seconds = statistics.median(training.seconds() for _ in range(repetitions + 2))
        rule_seconds = sum(function.seconds for function in timed) / max(1, timed[-1].calls)
        update_seconds = 0.0  # for each training step
        if rule.every is not None:
            order = TrainingOrder(split, 1, rule.batch_size or config.batch_size, None)
            batches = [StoreSource(split).read(order.rows(j)) for j in range(repetitions + 2)]
            start = time.perf_counter()
            rule.update(training.step.model, batches)
            a_batch = (time.perf_counter() - start) / len(batches)
            update_seconds = a_batch * (rule.num_batches or order.steps_per_epoch) / rule.every.in_steps(num_steps)
        yield name, (rule_seconds + update_seconds) / (step_seconds + update_seconds)


class _Timed:
    """A function that remembers how often it was called, and how long that took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.calls, self.seconds = 0, 0.0

    def __call__(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        found = self._function(*arguments)
        self.seconds += time.perf_counter() - start
        self.calls += 1
        return found


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _table(title: str, timings: list[Timing]) -> list[str]:
    def cell(values: tuple[float, float, float], digits: int) -> str:
        low, middle, high = (f"{value:,.{digits}f}" for value in values)
        return f"{middle} ({low} to {high})"

    lines = [f"| {title} | ms a step | times the first |", "| --- | --- | --- |"]
    return lines + [f"| {t.name} | {cell(t.milliseconds, 1)} | {cell(t.ratio, 2)} |" for t in timings]


def main(words: list[str] | None = None) -> int:
    """Print what training costs with each prior, number of components, and rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="train on this store")
    parser.add_argument("--repetitions", type=int, default=15, help="time this many blocks of each configuration")
    parser.add_argument(
        "--components",
        type=int,
        nargs="*",
        default=(5000, 50000),
        help="also time these numbers of components; examples are copied if there are fewer",
    )
    options = parser.parse_args(words)
    store = Store(options.store)
    num_train = len(store.split("train"))
    print(f"{machine()}; {options.repetitions} repetitions, interleaved; median (quartiles)\n")
    for title, configs in (
        ("prior", priors_to_time(num_train)),
        ("tracking with", components_to_time(options.components)),
    ):
        with progress_bar(title) as report:
            timings = list(time_in_turn(configs, store, options.repetitions, report))
        print("\n".join(_table(title, timings)) + "\n")
    print("| rule | share of the training time, without gradients shared with the network |\n| --- | --- |")
    for name, share in rule_shares(store, options.repetitions):
        print(f"| {name} | {100 * share:.1f}% |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
