"""A folder of images becomes a model, with the bype that is installed: python .ci/smoke.py."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image


def bype(*words: str | Path) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "bype", *map(str, words)], check=True)


def main() -> None:
    """Make images, train on them for a second, and look at the result."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        for number in range(80):
            pixels = random.normal(128, 40, (8, 8, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
        bype("--version")
        bype("fit", folder / "photos", "--out", folder / "run", "--minutes", "0.02")
        bype("sample", folder / "run", "--out", folder / "new.png")
        for made in (folder / "run" / "report.html", folder / "new.png"):
            if made.stat().st_size == 0:
                raise SystemExit(f"{made} is empty")


if __name__ == "__main__":
    main()
