"""A source of your own: scikit-learn's digits, read in chunks, become a store that every command takes.

Run it as ``python own_source.py FOLDER``.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import bype
from bype.data.prepare import prepare
from bype.data.sources import Chunk, Pool, Source

ROWS_AT_ONCE = 256


def digits() -> Source:
    """Describe the data; nothing is read until ``read`` is called, and never all of it at once."""
    data = load_digits()

    def read():
        """Yield the positions of some examples, and the examples with their labels."""
        for first in range(0, len(data.target), ROWS_AT_ONCE):
            positions = np.arange(first, min(first + ROWS_AT_ONCE, len(data.target)))
            rows = (15.9 * data.images[positions, None]).astype(np.uint8)  # (n, channels, height, width) in bytes
            yield positions, Chunk(rows, data.target[positions].astype(np.int32))

    return Source(
        description="digits of scikit-learn",
        shape=(1, 8, 8),
        dtype="uint8",
        pools=(Pool(None, len(data.target), read, validation=0.1, test=0.1),),
        has_labels=True,
        classes=tuple(str(k) for k in range(10)),
    )


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    made = prepare(digits(), folder / "store")
    print({name: split.num_rows for name, split in made.manifest.splits.items()})
    size = {"components": 50, "latent_dim": 8, "hidden": 64, "batch_size": 50, "learning_rate": 2e-3}
    noise = {"likelihood": "gaussian", "variance": 0.02}
    config = bype.TrainingConfig(**size, **noise, length="15 epochs", warm_up="5 epochs")
    outcome = bype.train(config, folder / "store", folder / "run")
    print(f"{outcome.state}, validation -ELBO {outcome.best:.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
