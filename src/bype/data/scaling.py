"""Columns of a table brought to a common scale."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Batches = Callable[[], Iterable[Tensor]]
"""Each call returns all examples again, (B, d) at a time: data are read in several passes and never held."""


class Scaling(nn.Module):
    """Brings each column to mean 0 and standard deviation 1, and back.

    It belongs to a model and is saved with it: what a model learns is in these units.

    Parameters
    ----------
    num_columns
        Of the table; until :meth:`fit` is called, nothing is scaled.

    Examples
    --------
    >>> scaling = Scaling(2)
    >>> scaling.fit(lambda: [torch.tensor([[1.0, 700.0], [3.0, 900.0]])])
    >>> scaling(torch.tensor([[2.0, 1000.0]]))
    tensor([[0., 2.]])
    """

    center: Tensor
    scale: Tensor

    def __init__(self, num_columns: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(num_columns))
        self.register_buffer("scale", torch.ones(num_columns))
        self.register_load_state_dict_post_hook(_check_loaded)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def fit(self, batches: Batches) -> None:
        """Take the scale from training examples.

        A column that never changes has the median scale of the columns that change, or its absolute value if that is
        smaller and not 0: in another row it may change as much as the others do.
        """
        mean, variance, _ = mean_and_variance(batches)
        scale, size = variance.sqrt().float(), mean.abs().float()
        changes = scale > 1e-6 * size  # rounding in float32 gives a constant column a spread that means nothing
        usual = scale[changes].median() if changes.any() else torch.tensor(1.0)
        constant = torch.where(size > 0, torch.minimum(size, usual), usual)
        self.center.copy_(mean)
        self.scale.copy_(torch.where(changes, scale, constant).clamp_min(torch.finfo().tiny))

    def forward(self, x: Tensor) -> Tensor:
        """Return rows (..., columns) in the model's units."""
        return (x - self.center) / self.scale

    def invert(self, x: Tensor) -> Tensor:
        """Return rows (..., columns) in the units of the data."""
        return self.center + x * self.scale

    @property
    def log_density(self) -> Tensor:
        """What to add to log p in the model's units to have it in those of the data."""
        return -self.scale.double().log().sum()


def _check_loaded(scaling: Scaling, incompatible_keys: object) -> None:
    """Refuse a state that cannot be inverted."""
    if not bool((scaling.scale > 0).all()):
        raise ValueError("the saved scale of a column is not positive")


def mean_and_variance(batches: Batches) -> tuple[Tensor, Tensor, int]:
    """Return the mean and the variance (d,) of each dimension in float64, and the number of examples."""
    count, mean, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for batch in batches():  # each about its own mean, since a mean of squares loses the digits of a small spread
        x = batch.double()
        center, before, count = x.mean(0), count, count + len(x)
        squares = squares + (x - center).square().sum(0) + (center - mean).square() * (before * len(x) / count)
        mean = mean + (center - mean) * (len(x) / count)
    if count == 0:
        raise ValueError("there are no examples")
    return mean, squares / count, count
