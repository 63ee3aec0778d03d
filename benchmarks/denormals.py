"""Does flushing denormal numbers to zero make training faster, and does it change what is learned?

Run from the root of the repository: ``python benchmarks/denormals.py STORE``, while nothing else runs. Each repetition
takes the first 100 training steps of each prior without ``torch.set_flush_denormal(True)`` and with it, one after the
other. Each time it is a fresh process, since threads keep the setting that they were started with. The loss afterwards
is the mean -ELBO of 2,000 validation images, with the same noise.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from bype.data.examples import StoreSource
from bype.data.store import Store
from bype.run.config import TrainingConfig
from measure import machine, summary
from step_times import TimedTraining

CONFIGS = {
    "Gaussian prior": TrainingConfig(prior="gaussian"),
    "pseudocoreset, tracking": TrainingConfig(),
    "VampPrior, random start": TrainingConfig(prior="vamp", vamp_start="random"),
    "Exemplar": TrainingConfig(prior="exemplar"),
}


def worker(folder: Path, name: str, flush: bool, num_steps: int) -> None:
    """Print the seconds of a step, the mean over the first ones, and the loss after them."""
    if flush and not torch.set_flush_denormal(True):  # before any other work, which would start threads
        raise SystemExit("this processor cannot flush denormal numbers")
    assert (torch.tensor([1e-38]) * 1e-3 == 0).item() == flush
    store = Store(folder)
    training = TimedTraining(CONFIGS[name], store)
    start = time.perf_counter()
    for number in range(num_steps):
        x, rows = training.next_batch()
        generator = torch.Generator().manual_seed(number)
        training.step(x, rows, 0.01, generator=generator, prior_generator=generator)  # beta of the first epoch
    seconds = (time.perf_counter() - start) / num_steps
    with torch.no_grad():
        images = StoreSource(store.split("validation")).read(np.arange(2000))
        loss = float(training.step.objective(images, generator=torch.Generator().manual_seed(0)).loss)
    print(json.dumps([seconds, loss]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "FLUSH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        name, flush = arguments.worker
        worker(arguments.store, name, flush == "True", arguments.steps)
        return

    def measured(name: str, flush: bool) -> list[float]:
        words = [sys.executable, __file__, str(arguments.store), "--steps", str(arguments.steps)]
        done = subprocess.run([*words, "--worker", name, str(flush)], stdout=subprocess.PIPE, text=True, check=True)
        found: list[float] = json.loads(done.stdout)
        return found

    heads = [f"first {arguments.steps} steps, median of {arguments.repetitions} (range)", "a step, as it is"]
    heads += ["flushed", "ratio of neighbours", "-ELBO after, as it is", "flushed less as it is, nats"]
    print(f"{machine()}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name in CONFIGS:
        pairs = [[measured(name, flush) for flush in (False, True)] for _ in range(arguments.repetitions)]
        plain, flushed = ([pair[k][0] for pair in pairs] for k in range(2))
        ratios = sorted(b / a for a, b in zip(plain, flushed, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        (_, loss), (_, other) = pairs[0]  # the same in every repetition
        cells = [name, summary(plain), summary(flushed), spread, f"{loss:.3f}", f"{other - loss:+.1e}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
