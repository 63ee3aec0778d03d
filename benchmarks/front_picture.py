"""Draw the picture of the README: data, samples, and pseudo-points by weight, side by side.

Run from the root of the repository: ``python benchmarks/front_picture.py RUN --out docs/results/pictures/front.png``,
with a run that ``bype fit`` made of 5,000 images of Fashion-MNIST (``own_data.py`` says which).
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bype.evaluation.generation import sample
from bype.evaluation.pseudopoints import describe_points
from bype.plates import grid, to_bytes
from bype.run.opened import TrainedRun

ROWS, COLUMNS, GAP = 6, 6, 18


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="open this run")
    parser.add_argument("--out", type=Path, required=True, help="write the picture to this file")
    options = parser.parse_args()
    run = TrainedRun.open(options.run)
    store = run.store()
    made = sample(run.model, ROWS * COLUMNS, generator=torch.Generator().manual_seed(0))
    points = describe_points(run.model, store.split("train"), run.data.classes)
    test = store.split("test")
    panels = [
        test.read(np.random.default_rng(0).permutation(len(test))[: ROWS * COLUMNS]),
        to_bytes(made.numpy()),
        to_bytes(points.points[: ROWS * COLUMNS]),
    ]
    plates = [grid(panel, COLUMNS).convert("RGB") for panel in panels]
    width, height = plates[0].size
    picture = Image.new("RGB", (3 * width + 2 * GAP, height), "white")
    for place, plate in enumerate(plates):
        picture.paste(plate, (place * (width + GAP), 0))
    picture.save(options.out, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
