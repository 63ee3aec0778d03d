"""Is the time kept that is asked for? Train as ``bype fit`` does: each store alone, then all of them at once.

Run from the root of the repository, while nothing else runs: ``python benchmarks/budget.py STORE STORE``. Each training
uses every core, so two at once have half of the machine each. It takes the minutes that it asks for once for each store
and once for all of them. The time of a training is that between the first step and the end, with validation and
checkpoints.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bype.data.store import Store
from bype.run.choice import length_of, suitable_config
from bype.training import loop
from measure import machine


def seconds_of(store: Path, minutes: float, barrier: Any) -> float:
    """Train, and return the seconds between the first step and the end; wait for the others before the first step."""
    trainer = loop.Trainer
    began = []

    class Timed(trainer):  # type: ignore[valid-type, misc]
        def run(self) -> loop.Outcome:
            barrier.wait(timeout=600)  # another one may have failed
            began.append(time.monotonic())
            return super().run()

    loop.Trainer = Timed  # type: ignore[misc]
    try:
        with tempfile.TemporaryDirectory() as folder:
            loop.train(suitable_config(Store(store), length_of(minutes), 0), store, Path(folder) / "run")
            return time.monotonic() - began[0]
    finally:
        loop.Trainer = trainer  # type: ignore[misc]


def seconds_at_once(stores: list[Path], minutes: float) -> list[float]:
    """Train on all stores at the same time, each in a process of its own, whose threads wait as those of bype fit."""
    with multiprocessing.get_context("spawn").Manager() as manager:
        barrier = manager.Barrier(len(stores))
        with ProcessPoolExecutor(len(stores), multiprocessing.get_context("spawn")) as pool:
            found = [pool.submit(seconds_of, store, minutes, barrier) for store in stores]
            return [each.result() for each in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="+", help="train on these stores")
    parser.add_argument("--minutes", type=float, nargs="+", default=[1, 2.5, 10], help="ask for these times")
    options = parser.parse_args()
    print(f"{machine()}\n", flush=True)
    print("| examples | minutes asked for | machine | training time, s | of what was asked for |", flush=True)
    print("| --- | --- | --- | --- | --- |", flush=True)

    def report(store: Path, minutes: float, state: str, seconds: float) -> None:
        count, share = len(Store(store).split("train")), seconds / (60 * minutes)
        print(f"| {count:,} | {minutes:g} | {state} | {seconds:.1f} | {100 * share:.0f} % |", flush=True)

    for minutes in options.minutes:
        for store in options.stores:
            report(store, minutes, "idle", *seconds_at_once([store], minutes))
        beside = options.stores if len(options.stores) > 1 else 2 * options.stores
        for store, seconds in zip(beside, seconds_at_once(beside, minutes), strict=True):
            report(store, minutes, "busy", seconds)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())
