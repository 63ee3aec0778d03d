"""How much faster two processes of one thread train than one.

Run from the root of the repository: ``python benchmarks/processes.py STORE``, while nothing else runs. Each repetition
starts one process and then two, each on one thread, and takes the examples per second of their training steps, with
reading the batch and everything that is sent; ratios are between neighbours. PyTorch's DistributedDataParallel trains
the same model beside ours, set up as its documentation advises: a static graph in which every parameter has a
gradient, gradients that live in the buckets that are sent, and no buffers sent.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bype.data.examples import StoreSource, TrainingOrder
from bype.data.store import Store
from bype.distributed import Group, open_group
from bype.objective import ELBO
from bype.pseudocoreset.settings import SETTINGS
from bype.randomness import BatchSlice, generator_for
from bype.run.config import TrainingConfig
from bype.training.step import TrainingStep
from measure import machine

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
    **{
        f"Gaussian prior, batches of {size:,}, DistributedDataParallel, buckets of {megabytes} MB": {
            "prior": "gaussian",
            "batch_size": size,
            "bucket_megabytes": megabytes,
        }
        for size in (1000, 5000)
        for megabytes in (2, 25)  # the gradients are 4 MB: sent in parts behind the backward pass, or nearly at once
    },
    "500 components, tracking, batches of 5,000": {"rule": "tracking", "batch_size": 5000},
    "500 components, all encoded, batches of 100": {"rule": "frozen", "batch_size": 100},
    "500 components, all encoded, batches of 5,000": {"rule": "frozen", "batch_size": 5000},
}


class Loss(nn.Module):
    """What DistributedDataParallel differentiates; it takes the mean over processes, where our loss is to be summed."""

    def __init__(self, objective: ELBO, num_processes: int) -> None:
        super().__init__()
        self.objective = objective
        self.num_processes = num_processes

    def forward(self, x: Tensor, indices: Tensor, noise: BatchSlice) -> Tensor:
        loss: Tensor = self.objective(x, indices=indices, generator=noise).loss
        return self.num_processes * loss


def worker(folder: Path, seconds_to_take: float, fields: dict[str, object]) -> None:
    """Train for some seconds and print examples per second, and the share of the time that communication took."""
    bucket_megabytes, is_apart = fields.pop("bucket_megabytes", None), fields.pop("apart", False)
    rule = fields.pop("rule", None)
    config = TrainingConfig(**fields, rule=None if rule is None else SETTINGS[rule]())
    split = Store(folder).split("train")
    source = StoreSource(split)
    with open_group() as everyone:
        group = Group() if is_apart else everyone
        step = TrainingStep.build(config, split.shape, source, group=group)
        order = TrainingOrder(split, 0, config.batch_size, None)
        wrapped = None
        if bucket_megabytes is not None and group.size > 1:
            wrapped = DistributedDataParallel(
                Loss(step.objective, group.size),
                broadcast_buffers=False,
                bucket_cap_mb=bucket_megabytes,
                gradient_as_bucket_view=True,
                static_graph=True,
            )

        def take(number: int) -> int:
            rows = order.rows(number % (order.steps_per_epoch - 1))
            part = group.part(len(rows))
            noise = BatchSlice(generator_for(0, "latents", number), part, len(rows))
            x, indices = source.read(rows[part]), torch.from_numpy(rows[part])
            if wrapped is None:
                step(x, indices, generator=noise)
            else:
                wrapped(x, indices, noise).backward()
                step.optimizer.step()
                step.optimizer.clear()
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
            if seconds > seconds_to_take:
                break
        rate = torch.tensor([count / float(seconds)])
        if is_apart:
            everyone.sum_([rate])
        if everyone.is_first:
            print(json.dumps({"rate": float(rate), "waiting": (group.seconds - waited) / float(seconds)}))


def measured(folder: Path, seconds: float, fields: dict[str, object], processes: int) -> dict[str, float]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = [*launcher, __file__, "--worker", str(folder), str(seconds), json.dumps(fields)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(Path(sys.argv[2]), float(sys.argv[3]), json.loads(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of training in each repetition")
    parser.add_argument("--cases", default="", help="only cases whose name holds this")
    arguments = parser.parse_args()
    print(machine().replace(f"{torch.get_num_threads()} threads", "1 thread a process"))
    columns = "training", "examples/s, one process", "two", "ratio, median (smallest to largest)", "time that two wait"
    print("\n|", " | ".join(columns), "|")
    print("| --- | --- | --- | --- | --- |")
    for name, fields in CASES.items():
        if arguments.cases not in name:
            continue
        pairs = [
            [measured(arguments.store, arguments.seconds, fields, n) for n in (1, 2)]
            for _ in range(arguments.repetitions)
        ]
        one, two = (statistics.median(pair[k]["rate"] for pair in pairs) for k in range(2))
        ratios = sorted(pair[1]["rate"] / pair[0]["rate"] for pair in pairs)
        # DistributedDataParallel sends behind the backward pass, and does not say how long it waited.
        waiting = (
            "-"
            if "bucket_megabytes" in fields
            else f"{100 * statistics.median(pair[1]['waiting'] for pair in pairs):.0f}%"
        )
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {name} | {one:,.0f} | {two:,.0f} | {spread} | {waiting} |", flush=True)


if __name__ == "__main__":
    main()
