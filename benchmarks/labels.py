"""What do labels cost, and are samples of a class of that class? Train the model of ``bype fit`` with and without them.

Run from the root of the repository: ``python benchmarks/labels.py STORE``, with a store of images with labels. Both
models are trained for the same number of steps. The judge is the vote of the 5 nearest training images, by pixels; its
accuracy on test images stands beside that on samples.
"""

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

import bype
from bype.data.examples import StoreSource, spread_rows
from bype.data.store import Split, Store
from bype.evaluation.density import DensityOptions
from bype.run.choice import suitable_config

MOST_IMAGES = 5000
SAMPLES = 100


def examples(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return some images as rows, and their labels."""
    rows = spread_rows(len(split), MOST_IMAGES)
    return StoreSource(split).read(rows).flatten(1).numpy(), split.labels(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="read this store")
    parser.add_argument("--steps", type=int, default=2500, help="train for so many steps")
    parser.add_argument("--seed", type=int, default=0, help="set the seed of all random numbers")
    options = parser.parse_args()
    store = Store(options.store)
    judge = KNeighborsClassifier(5).fit(*examples(store.split("train")))
    config = suitable_config(store, f"{options.steps} steps", options.seed)
    for labelled in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            bype.train(dataclasses.replace(config, labelled=labelled), options.store, Path(folder) / "run")
            run = bype.TrainedRun.open(Path(folder) / "run")
            found = bype.evaluate(run, "test", density=DensityOptions(500, 500), with_map=False)
        assert found.density is not None
        nats = found.density.negative_log_likelihood
        print(f"labelled {labelled}: {nats.value:.2f} ± {nats.error:.2f} nats, {found.density.num_images} test images")
    right = []
    for label, name in enumerate(store.manifest.classes):
        made = bype.sample(run.model, SAMPLES, label=label, generator=torch.Generator().manual_seed(label))
        right.append(float((judge.predict(made.flatten(1).numpy()) == label).mean()))
        print(f"  samples of {name}: {100 * right[-1]:.0f}% recognised")
    print(f"samples {100 * np.mean(right):.1f}%, test images {100 * judge.score(*examples(store.split('test'))):.1f}%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
