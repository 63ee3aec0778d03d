"""A shuffled pass over a store that is not in memory, at 70% or more of the disk's sequential rate.

Run from the root of the repository, as root, since the system's cache must be dropped:
``python benchmarks/cold_pass.py FOLDER``, where the folder has 4 GB of room. It exits with 1 if the claim fails.
"""

import os
import shutil
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from bype.data.examples import TrainingOrder
from bype.data.store import Split, Store
from bype.data.writer import StoreWriter
from measure import machine

SHAPE, NUM_ROWS, BATCH, WINDOW_BLOCKS = (3, 64, 64), 300_000, 100, 64
ROUNDS = 3


def make_store(folder: Path) -> Store:
    generator = np.random.default_rng(0)
    with StoreWriter(folder, SHAPE, "uint8", source="noise", has_labels=False) as writer:
        for _ in range(NUM_ROWS // 10_000):
            writer.append("train", generator.integers(0, 256, (10_000, *SHAPE), dtype=np.uint8))
    return Store(folder)


def drop_cache() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def sequential_pass(folder: Path) -> float:
    drop_cache()
    start = time.perf_counter()
    buffer = bytearray(2**22)
    for path in sorted(folder.glob("*.rows")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def shuffled_pass(split: Split, seed: int) -> float:
    drop_cache()
    order = TrainingOrder(split, seed, BATCH, WINDOW_BLOCKS)
    start = time.perf_counter()
    for step in range(order.steps_per_epoch):
        split.read(order.rows(step))
    return time.perf_counter() - start


def main() -> int:
    folder = Path(sys.argv[1]) / "cold-pass-store"
    store = make_store(folder)
    try:
        split = store.split("train")
        size = len(split) * split.row_bytes
        rates = {"in sequence": [], f"shuffled in windows of {WINDOW_BLOCKS} MiB": []}
        for seed in range(ROUNDS):
            for name, seconds in zip(rates, (sequential_pass(folder), shuffled_pass(split, seed)), strict=True):
                rates[name].append(size / seconds / 1e6)
    finally:
        shutil.rmtree(folder)
    print(f"{machine()}\n")
    print(
        f"| {size / 1e9:.1f} GB, rows of {split.row_bytes} bytes, nothing cached | MB/s (median, range of {ROUNDS}) |"
    )
    print("| --- | --- |")
    for name, values in rates.items():
        print(f"| {name} | {statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f}) |")
    sequential, shuffled = (statistics.median(values) for values in rates.values())
    print(f"\nRatio of medians: {shuffled / sequential:.2f} (claimed: at least 0.70)")
    return int(shuffled / sequential < 0.7)


if __name__ == "__main__":
    sys.exit(main())
