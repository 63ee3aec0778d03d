"""An inverted file: components sorted into cells, so that those near to a point are found without looking at all.

Shape letters: ``B`` rows, ``M`` components, ``C`` cells, ``W`` places in a cell, ``K`` places that are searched, ``D``
dimensions.
"""

import math

import torch
from torch import Tensor, nn

_PLACES = 128
"""Components of a cell at most."""
_PROBES = 6
"""Cells that are searched at least."""
_LOOKED_AT = 64
"""Components of a cell that tell where it spreads the most."""


class InvertedFile(nn.Module):
    """Cells of latent means, all of one size. It is part of a checkpoint: a search gives the same after a resume.

    Parameters
    ----------
    num_components
        M.
    latent_dim
        D.

    Examples
    --------
    >>> means = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    >>> index = InvertedFile(1000, 3)
    >>> index.build(means)
    >>> ids = index.nearest(means[:2], means, count=5)
    >>> ids.shape, ids[:, 0].tolist()
    (torch.Size([2, 5]), [0, 1])
    """

    cells: Tensor
    centres: Tensor

    def __init__(self, num_components: int, latent_dim: int) -> None:
        super().__init__()
        num_cells, places = self.sizes(num_components)
        self._depth = num_cells.bit_length() - 1
        self.register_buffer("cells", torch.zeros(num_cells, places, dtype=torch.int64))
        self.register_buffer("centres", torch.zeros(num_cells, latent_dim))

    @staticmethod
    def sizes(num_components: int) -> tuple[int, int]:
        """Return C and W for so many components.

        Examples
        --------
        >>> InvertedFile.sizes(1000)
        (8, 125)
        """
        num_cells = 2 ** max(0, math.ceil(math.log2(num_components / _PLACES)))
        return num_cells, -(-num_components // num_cells)

    @torch.no_grad()
    def build(self, means: Tensor) -> None:
        """Sort the components with these means (M, D) into cells: halve again and again where they spread the most.

        Places beyond M are filled with components from the front, so that every cell has the same size.
        """
        ids_CW = torch.arange(self.cells.numel(), device=means.device)[None] % len(means)
        for _ in range(self._depth):
            spread_CD = means[ids_CW[:, :: max(1, ids_CW.shape[1] // _LOOKED_AT)]].var(1, correction=0)
            widest_CW = spread_CD.argmax(1)[:, None].expand_as(ids_CW)
            order_CW = means[ids_CW, widest_CW].argsort(stable=True, dim=1)
            ids_CW = ids_CW.gather(1, order_CW).reshape(2 * len(ids_CW), -1)
        self.cells.copy_(ids_CW)
        self.centres.copy_(means[ids_CW].mean(1))

    @torch.no_grad()
    def nearest(self, rows: Tensor, means: Tensor, count: int, num_probes: int | None = None) -> Tensor:
        """Return components (B, count) near to rows (B, D), the nearest first; few of them may come twice.

        They are the nearest of those in the cells whose centres are nearest: some may be missed. The ``means`` (M, D)
        may have moved since the cells were made; the more, the more are missed.

        Parameters
        ----------
        rows, means
            Where to look, and where the components are now.
        count
            How many to return, at most all.
        num_probes
            How many cells to search; enough for four times ``count`` if left out.
        """
        if num_probes is None:
            num_probes = max(_PROBES, -(-4 * count // self.cells.shape[1]))
        num_probes = min(num_probes, len(self.cells))
        ids_BK = self.cells[torch.cdist(rows, self.centres).topk(num_probes, largest=False).indices].flatten(1)
        near_BKD = means.index_select(0, ids_BK.flatten()).reshape(*ids_BK.shape, -1)
        with torch.autocast(rows.device.type, enabled=False):  # which would round them to half as many digits
            squares_BK = torch.linalg.vecdot(near_BKD, near_BKD)
            distance_BK = torch.baddbmm(squares_BK[:, :, None], near_BKD, rows[:, :, None], alpha=-2)[:, :, 0]
        found = distance_BK.topk(min(count, distance_BK.shape[1]), largest=False).indices
        return ids_BK.gather(1, found)
