"""Timing training on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bype.cli.options import UsageError, parse

if TYPE_CHECKING:
    from bype.training.bench import Timing


@dataclass(frozen=True)
class _Bench:
    data: Path
    """Train on this store"""
    repetitions: int = 15
    """Time this many blocks of steps of each configuration, in turn"""
    components: tuple[int, ...] = (5000, 50000)
    """Also time these numbers of components; if there are more components than examples, examples are copied"""


def bench(words: list[str]) -> int:
    """Print what training costs with each prior."""
    what = "Time training steps of the paper's VAE with each prior. Run nothing else meanwhile."
    options = parse(_Bench, words, "bype bench", what)
    from bype.console import progress_bar
    from bype.data.store import Store
    from bype.training.bench import components_to_time, machine, priors_to_time, rule_shares, time_in_turn

    if options.repetitions < 1 or any(not 2 <= size <= 10**7 for size in options.components):
        raise UsageError("--repetitions must be at least 1, and --components between 2 and ten million")
    store = Store(options.data)
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


def _table(title: str, timings: "list[Timing]") -> list[str]:
    def cell(values: tuple[float, float, float], digits: int) -> str:
        low, middle, high = (f"{value:,.{digits}f}" for value in values)
        return f"{middle} ({low} to {high})"

    lines = [f"| {title} | ms a step | times the first |", "| --- | --- | --- |"]
    return lines + [f"| {t.name} | {cell(t.milliseconds, 1)} | {cell(t.ratio, 2)} |" for t in timings]
