"""The nearest training examples, found exactly in one pass over the data and in bounded memory."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bype.console import Report, no_report
from bype.data.examples import spread_rows
from bype.priors.base import ExampleSource

_CHUNK_ROWS = 2048
_CANDIDATES = 8
_CENTRE_ROWS = 1000


@dataclass(frozen=True)
class Nearest:
    """The nearest example of a source to each query, and how much further the second nearest is.

    Examples that are equal to the nearest are its twins. Up to seven of them are passed over; if there are more, one
    of them is the second nearest.
    """

    rows: NDArray[np.int64]
    """(Q,), the row of the nearest."""
    distance: NDArray[np.float64]
    """(Q,), Euclidean."""
    second: NDArray[np.float64]
    """(Q,), the distance of the nearest other one, not counting its twins; infinite if there is none."""
    largest: NDArray[np.float64]
    """(Q,), the largest difference from the nearest in any coordinate."""

    @property
    def ratio(self) -> NDArray[np.float64]:
        """(Q,), nearest over second nearest: near 0 for a copy of one example, near 1 if others are as near."""
        both_zero = self.second == 0
        return np.where(both_zero, 1.0, self.distance / np.where(both_zero, 1.0, self.second))


@torch.no_grad()
def nearest(queries: Tensor, source: ExampleSource, report: Report = no_report) -> Nearest:
    """Find the nearest example to each query (Q, d) among the flattened examples of a source.

    A product of matrices finds a few candidates. Their distances are then computed from differences in float64, since
    the product loses the digits of a distance near zero.
    """
    count = len(source)
    kept = min(_CANDIDATES, count)
    squares = torch.full((len(queries), kept), torch.inf)
    rows = torch.zeros(len(queries), kept, dtype=torch.int64)
    # Shorter vectors leave more digits. A median of examples: one extreme query must not cost the others their digits.
    center = source.take(torch.from_numpy(spread_rows(count, _CENTRE_ROWS))).cpu().flatten(1).median(0).values
    centred = queries - center
    for first in range(0, count, _CHUNK_ROWS):
        numbers = torch.arange(first, min(first + _CHUNK_ROWS, count))
        x = source.take(numbers).cpu().flatten(1) - center
        # |q - x|^2 without |q|^2, which is the same for all x.
        found = torch.addmm(x.square().sum(1), centred, x.T, alpha=-2)
        best = found.topk(min(kept, len(numbers)), largest=False)
        squares, order = torch.cat([squares, best.values], 1).topk(kept, largest=False)
        rows = torch.cat([rows, numbers[best.indices]], 1).gather(1, order)
        report(first + len(numbers), count)
    exact = torch.empty(len(queries), kept, dtype=torch.float64)
    largest = torch.empty_like(exact)
    for first in range(0, len(queries), _CHUNK_ROWS):
        part = slice(first, first + _CHUNK_ROWS)
        for k in range(kept):
            x = source.take(rows[part, k]).cpu().flatten(1).double()
            difference = queries[part].double() - x
            exact[part, k], largest[part, k] = difference.square().sum(1).sqrt(), difference.abs().amax(1)
    distances, order = exact.sort(dim=1, stable=True)
    rows = rows.gather(1, order)
    others = distances.masked_fill(_twins(rows, distances, source), torch.inf).amin(1)
    second = others if kept == count else others.minimum(distances[:, -1])
    return Nearest(rows[:, 0].numpy(), distances[:, 0].numpy(), second.numpy(), largest.gather(1, order)[:, 0].numpy())


def _twins(rows: Tensor, distances: Tensor, source: ExampleSource) -> Tensor:
    """Tell which of the sorted candidates (Q, K) are equal to the first, which itself counts as one of them."""
    are_twins = distances == distances[:, :1]
    suspects = are_twins.nonzero()
    for part in torch.split(suspects[suspects[:, 1] > 0], _CHUNK_ROWS):
        query, place = part.unbind(1)
        first, other = (source.take(rows[query, k]).cpu().flatten(1) for k in (torch.zeros_like(place), place))
        are_twins[query, place] = (first == other).all(1)
    return are_twins
