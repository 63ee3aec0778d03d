"""Draw the picture of the README: data, samples, pseudo-points with their weights, and samples like one image.

Run from the root of the repository, with the run that these commands make of the four IDX files of Fashion-MNIST::

    bype data prepare fashion-mnist --out store
    bype train fashion-mnist/vae/bype --data store --out run --length "10 epochs" --warm-up "8 epochs" --seed 1
    python benchmarks/front_picture.py run --out docs/results/pictures/front.png

Nothing in it is chosen by hand: rows are the first of a permutation, draws are the first of a seed.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from bype.data.examples import StoreSource
from bype.evaluation.generation import default_way, generate_like, sample
from bype.evaluation.pseudopoints import describe_points
from bype.plates import to_bytes
from bype.run.opened import TrainedRun

LINES, COLUMNS = 4, 8
SIDE, GAP, MARGIN, TITLE, LETTERS = 56, 4, 28, 36, 22  # in pixels
INK, CLEAR, MARK = "#7d8694", (0, 0, 0, 0), "#d64533"  # to be read on white and on black


def panel(title: str, images: np.ndarray, weights: np.ndarray | None = None, marks_first: bool = False) -> Image.Image:
    """Lay out images under a title; bars under them show weights, the first of each line may be marked."""
    pitch = SIDE + GAP
    sheet = Image.new("RGBA", (COLUMNS * pitch - GAP, TITLE + LINES * (pitch + GAP) - GAP), CLEAR)
    draw = ImageDraw.Draw(sheet)
    draw.text((0, 0), title, INK, ImageFont.load_default(LETTERS))
    for number, pixels in enumerate(images[: LINES * COLUMNS]):
        line, column = divmod(number, COLUMNS)
        x, y = column * pitch, TITLE + line * (pitch + GAP)
        sheet.paste(Image.fromarray(pixels[0]).resize((SIDE, SIDE), Image.Resampling.BICUBIC), (x, y))
        if weights is not None:
            draw.rectangle((x, y + SIDE + 1, x + SIDE * weights[number] / weights[0], y + SIDE + GAP), MARK)
        if marks_first and column == 0:
            draw.rectangle((x, y, x + SIDE - 1, y + SIDE - 1), None, MARK, 3)
    return sheet


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="open this run")
    parser.add_argument("--out", type=Path, required=True, help="write the picture to this file")
    options = parser.parse_args()
    run = TrainedRun.open(options.run)
    model, store = run.model, run.store()
    test = StoreSource(store.split("test"))
    rows = np.random.default_rng(0).permutation(len(test))[: LINES * COLUMNS]
    real = test.read(rows)
    made = sample(model, LINES * COLUMNS, generator=torch.Generator().manual_seed(0))
    given = real[:LINES].repeat_interleave(COLUMNS, dim=0)
    like = generate_like(model, given, default_way(model), generator=torch.Generator().manual_seed(0))
    like[::COLUMNS] = real[:LINES]
    points = describe_points(model, store.split("train"), run.data.classes)
    panels = [
        panel("test images", to_bytes(real.numpy())),
        panel("random samples", to_bytes(made.numpy())),
        panel(
            f"the heaviest of {len(points.points)} points, weights in red",
            to_bytes(points.points),
            points.weights,
        ),
        panel("more like the first of each line", to_bytes(like.numpy()), marks_first=True),
    ]
    width, height = panels[0].size
    picture = Image.new("RGBA", (2 * width + MARGIN, 2 * height + MARGIN), CLEAR)
    for place, sheet in enumerate(panels):
        line, column = divmod(place, 2)
        picture.paste(sheet, (column * (width + MARGIN), line * (height + MARGIN)))
    picture.save(options.out, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
