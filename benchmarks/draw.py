"""Pictures of pseudo-points, drawn the same way in every benchmark."""

from pathlib import Path

from torch import Tensor

from bype.plates import grid, png, to_bytes


def draw_heaviest(points: Tensor, weights: Tensor, file: Path) -> None:
    """Draw the 40 points (M, *data_shape) of the greatest weight (M,), or all if there are fewer, 20 in a row."""
    heaviest = weights.argsort(descending=True, stable=True)[:40]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(png(grid(to_bytes(points[heaviest].detach().numpy()), 20)))
