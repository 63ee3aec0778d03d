"""How much faster two processes of one thread train than one.

Run from the root of the repository: ``python benchmarks/processes.py STORE``, while nothing else runs. Each repetition
starts one process and then two, each on one thread, and takes the examples per second of their training steps, with
reading the batch and everything that is sent; ratios are between neighbours.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from bype.data.store import Store
from bype.distributed import Group, open_group
from bype.distributions import BatchSlice
from bype.training.config import TrainingConfig
from bype.training.examples import StoreSource, TrainingOrder
from bype.training.randomness import generator_for
from bype.training.step import TrainingStep
from measure import machine

REPETITIONS = 5
SECONDS = 4.0
CASES = {
    "Gaussian prior, batches of 100": {"prior": "gaussian", "batch_size": 100},
    "Gaussian prior, batches of 1,000": {"prior": "gaussian", "batch_size": 1000},
    "Gaussian prior, batches of 5,000": {"prior": "gaussian", "batch_size": 5000},
    "Gaussian prior, batches of 20,000": {"prior": "gaussian", "batch_size": 20000},
    "the same, by processes that do not talk: what the machine allows": {
        "prior": "gaussian",
        "batch_size": 2500,
        "apart": True,
    },
    "Gaussian prior, batches of 1,000, DistributedDataParallel": {"prior": "gaussian", "batch_size": 1000, "ddp": True},
    "500 components, tracking, batches of 5,000": {"update": "tracking", "batch_size": 5000},
    "500 components, all encoded, batches of 100": {"update": "frozen", "batch_size": 100},
    "500 components, all encoded, batches of 5,000": {"update": "frozen", "batch_size": 5000},
}


def worker(folder: Path, fields: dict[str, object]) -> None:
    """Train for some seconds and print examples per second, and the share of the time that communication took."""
    is_ddp, is_apart = bool(fields.pop("ddp", False)), bool(fields.pop("apart", False))
    config = TrainingConfig(**fields)
    split = Store(folder).split("train")
    source = StoreSource(split)
    with open_group() as everyone:
        group = Group() if is_apart else everyone
        step = TrainingStep(config, split.shape, source, group=group)
        order = TrainingOrder(split, 0, config.batch_size, 0)
        wrapped = (
            DistributedDataParallel(step.objective, find_unused_parameters=True) if is_ddp and group.size > 1 else None
        )

        def take(number: int) -> int:
            rows = order.rows(number % (order.steps_per_epoch - 1))
            part = group.part(len(rows))
            noise = BatchSlice(generator_for(0, "latents", number), part.start, part.stop, len(rows))
            x, indices = source.read(rows[part]), torch.from_numpy(rows[part])
            if wrapped is None:
                step(x, indices, num_examples=len(rows), generator=noise)
            else:
                wrapped(x, indices=indices, generator=noise).loss.backward()
                step.optimizer.step()
            return len(rows)

        for number in range(3):
            take(number)
        everyone.require_same(b"ready", "the start")
        count, number, waited, start = 0, 3, group.seconds, time.perf_counter()
        while True:
            count += take(number)
            number += 1
            seconds = torch.tensor([time.perf_counter() - start if group.is_first else 0.0])
            group.sum_([seconds])
            if seconds > SECONDS:
                break
        rate = torch.tensor([count / float(seconds)])
        if is_apart:
            everyone.sum_([rate])
        if everyone.is_first:
            print(json.dumps({"rate": float(rate), "waiting": (group.seconds - waited) / float(seconds)}))


def measured(folder: Path, fields: dict[str, object], processes: int) -> dict[str, float]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = [*launcher, __file__, "--worker", str(folder), json.dumps(fields)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1] == "--worker":
        worker(Path(sys.argv[2]), json.loads(sys.argv[3]))
        return
    print(machine().replace(f"{torch.get_num_threads()} threads", "1 thread a process"))
    print("\n| training | examples/s, one process | two | ratio, median (smallest to largest) | waiting of two |")
    print("| --- | --- | --- | --- | --- |")
    for name, fields in CASES.items():
        pairs = [[measured(Path(sys.argv[1]), fields, n) for n in (1, 2)] for _ in range(REPETITIONS)]
        one, two = (statistics.median(pair[k]["rate"] for pair in pairs) for k in range(2))
        ratios = sorted(pair[1]["rate"] / pair[0]["rate"] for pair in pairs)
        waiting = statistics.median(pair[1]["waiting"] for pair in pairs)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {name} | {one:,.0f} | {two:,.0f} | {spread} | {100 * waiting:.0f}% |", flush=True)


if __name__ == "__main__":
    main()
