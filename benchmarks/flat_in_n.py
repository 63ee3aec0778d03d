"""A training step on 10^8 examples costs what one on 50,000 costs: at most 1.1 times, and 50 MB of memory more.

Run from the root of the repository: ``python benchmarks/flat_in_n.py``. The stores are sparse files of zeros, so the
disk needs no room and gives no delay: what is measured is the order, the reading and the loop. It exits with 1 if a
claim fails.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bype.data.manifest import Manifest, Shard, SplitManifest, shard_name
from bype.data.order import Order
from bype.data.store import Store
from bype.pseudocoreset.settings import FrozenSettings
from bype.run.config import TrainingConfig
from bype.run.directory import RunDirectory
from bype.training.display import Display
from bype.training.loop import Trainer
from bype.training.reporter import RunReporter
from measure import machine

SHAPE = (1, 28, 28)
SHARD_ROWS = 10_000_000
ROUNDS, STEPS = 9, 60
CONFIGS = {
    "gaussian": TrainingConfig(prior="gaussian", length="1 epoch"),
    "pseudocoreset, all points encoded": TrainingConfig(rule=FrozenSettings(), length="1 epoch"),
}


def sparse_store(folder: Path, num_rows: int) -> Store:
    folder.mkdir()
    shards = []
    for number, first in enumerate(range(0, num_rows, SHARD_ROWS)):
        count = min(SHARD_ROWS, num_rows - first)
        name = shard_name("train", number, "rows")
        with (folder / name).open("wb") as file:
            os.truncate(file.fileno(), count * 784)
        shards.append(Shard(name, count, "0" * 64))
    manifest = Manifest(SHAPE, "uint8", (), (), "zeros", {"train": SplitManifest(tuple(shards), ())})
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return Store(folder)


def anonymous_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def main() -> int:
    failures = []
    print(f"{machine()}\n")
    print(f"| prior | N = 50,000, ms a step (median of {ROUNDS}) | N = 10^8 | ratio | memory more |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stores = {n: sparse_store(folder / str(n), n) for n in (50_000, 10**8)}
        for prior, config in CONFIGS.items():
            trainers, memory = {}, {}
            for n, store in stores.items():
                before = anonymous_bytes()
                run = RunDirectory(folder / f"run-{config.prior}-{n}").__enter__()
                trainers[n] = Trainer(config, store, RunReporter(run, Display()))
                for _ in range(STEPS):
                    trainers[n].take_step()
                memory[n] = anonymous_bytes() - before
            seconds: dict[int, list[float]] = {n: [] for n in stores}
            for _ in range(ROUNDS):
                for n, trainer in trainers.items():
                    start = time.perf_counter()
                    for _ in range(STEPS):
                        trainer.take_step()
                    seconds[n].append((time.perf_counter() - start) / STEPS)
            small, large = (statistics.median(seconds[n]) for n in stores)
            more = max(0, memory[10**8] - memory[50_000]) / 1e6
            print(f"| {prior} | {small * 1e3:.2f} | {large * 1e3:.2f} | {large / small:.2f} | {more:.0f} MB |")
            if large / small > 1.1:
                failures.append(f"{prior}: a step on 10^8 examples takes {large / small:.2f} times as long")
            if more > 50:
                failures.append(f"{prior}: 10^8 examples take {more:.0f} MB more")

        split = stores[10**8].split("train")
        rows = np.random.default_rng(0).integers(0, 10**8, 20_000)
        start = time.perf_counter()
        for first in range(0, len(rows), 100):
            split.read(rows[first : first + 100])
        row_time = (time.perf_counter() - start) / len(rows) * 1e6
        print(f"\nA random row of 784 bytes among 10^8 is read in {row_time:.1f} us (claimed: at most 20).")
        if row_time > 20:
            failures.append("rows take more than 20 us")

    before = anonymous_bytes()
    order = Order(10**9, seed=0, window_blocks=64)
    for epoch in range(20):
        order.rows(epoch, 5 * 10**8, 5 * 10**8 + 10_000)
    print(f"The order of 10^9 examples takes {max(0, anonymous_bytes() - before) / 1e6:.1f} MB.")
    print("\n" + ("\n".join(f"FAILED: {failure}" for failure in failures) or "All claims hold."))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
