"""Is the time kept that is asked for? Train as ``bype fit`` does, idle and with another process on every core.

Run from the root of the repository, while nothing else runs: ``python benchmarks/budget.py STORE [STORE ...]``. It
takes twice the minutes that it asks for, for each store. The time of a training is that between the first step and the
end, with validation and checkpoints.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from bype.data.store import Store
from bype.run.choice import length_of, suitable_config
from bype.training import loop
from measure import machine


def burn(until: float) -> None:
    """Keep a core busy."""
    torch.set_num_threads(1)
    x = torch.rand(300, 300)
    while time.time() < until:
        x = (x @ x).clamp_(0, 1)


def seconds_of(store: Path, minutes: float, out: Path) -> float:
    """Train, and return the seconds between the first step and the end."""
    trainer = loop.Trainer
    began = []

    class Timed(trainer):  # type: ignore[valid-type, misc]
        def run(self) -> loop.Outcome:
            began.append(time.monotonic())
            return super().run()

    loop.Trainer = Timed  # type: ignore[misc]
    try:
        loop.train(suitable_config(Store(store), length_of(minutes), 0), store, out)
    finally:
        loop.Trainer = trainer  # type: ignore[misc]
    return time.monotonic() - began[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="+", help="train on these stores")
    parser.add_argument("--minutes", type=float, nargs="+", default=[1, 2.5, 10], help="ask for these times")
    options = parser.parse_args()
    print(
        f"{machine()}\n\n| examples | minutes asked for | machine | training time, s | of what was asked for |",
        flush=True,
    )
    print("| --- | --- | --- | --- | --- |", flush=True)
    for store in options.stores:
        count = len(Store(store).split("train"))
        for minutes in options.minutes:
            for is_busy in (False, True):
                burners = [
                    multiprocessing.Process(target=burn, args=(time.time() + 3600,), daemon=True)
                    for _ in range(os.cpu_count() or 1 if is_busy else 0)
                ]
                for burner in burners:
                    burner.start()
                with tempfile.TemporaryDirectory() as folder:
                    seconds = seconds_of(store, minutes, Path(folder) / "run")
                for burner in burners:
                    burner.kill()
                state = "busy" if is_busy else "idle"
                share = seconds / (60 * minutes)
                print(f"| {count:,} | {minutes:g} | {state} | {seconds:.1f} | {100 * share:.0f} % |", flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())
