"""An inverted file: components sorted into cells, so that those near to a point are found without looking at all.

Shape letters: ``B`` rows, ``M`` components, ``C`` cells, ``P`` probed cells, ``W`` places in a cell, ``D`` dimensions.
"""

import math

import torch
from torch import Tensor, nn

_PLACES = 256
"""Components of a cell on average."""
_SAMPLE = 64
"""Cells are found on so many components for each."""
_ROUNDS = 5
_BLOCK_ELEMENTS = 2**24


class InvertedFile(nn.Module):
    """Cells of latent means. Its buffers are part of a checkpoint, so that a search gives the same after a resume.

    Parameters
    ----------
    num_components
        M.
    latent_dim
        D.

    Examples
    --------
    >>> means = torch.randn(1000, 3)
    >>> index = InvertedFile(1000, 3)
    >>> index.build(means)
    >>> ids = index.nearest(means[:2], means, count=5, num_probes=4)
    >>> ids.shape, bool((ids[:, 0] == torch.arange(2)).all())
    (torch.Size([2, 5]), True)
    """

    centres: Tensor
    cell_of: Tensor

    def __init__(self, num_components: int, latent_dim: int) -> None:
        super().__init__()
        self.num_cells = max(1, num_components // _PLACES)
        self.register_buffer("centres", torch.zeros(self.num_cells, latent_dim))
        self.register_buffer("cell_of", torch.zeros(num_components, dtype=torch.int32))
        self._places: Tensor | None = None
        self.register_load_state_dict_post_hook(_forget_places)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def build(self, means: Tensor) -> None:
        """Sort the components with these means (M, D) into cells, by a few rounds of k-means on some of them."""
        num_components = len(means)
        spread = torch.linspace(0, num_components - 1, min(num_components, _SAMPLE * self.num_cells)).long()
        sample_SD = means[spread]
        # Evenly spread components are the first centres: no random numbers, the same cells each time.
        centres_CD = sample_SD[torch.linspace(0, len(sample_SD) - 1, self.num_cells).long()].clone()
        for _ in range(_ROUNDS):
            cell_S = _nearest_centre(sample_SD, centres_CD)
            counts_C = torch.bincount(cell_S, minlength=self.num_cells)
            sums_CD = torch.zeros_like(centres_CD).index_add_(0, cell_S, sample_SD)
            filled_C = counts_C > 0
            centres_CD[filled_C] = sums_CD[filled_C] / counts_C[filled_C, None]
        self.centres.copy_(centres_CD)
        self.cell_of.copy_(_nearest_centre(means, centres_CD))
        self._places = None

    def _cells(self) -> Tensor:
        """Return the components of each cell, (C, W), with M for places that are empty."""
        if self._places is None:
            order = torch.argsort(self.cell_of, stable=True)
            cell = self.cell_of[order].long()
            counts = torch.bincount(cell, minlength=self.num_cells)
            place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[cell]
            places = torch.full((self.num_cells, int(counts.max())), len(order), device=order.device)
            places[cell, place] = order
            self._places = places
        return self._places

    @torch.no_grad()
    def nearest(self, rows: Tensor, means: Tensor, count: int, num_probes: int) -> Tensor:
        """Return components (B, count) near to rows (B, D), the nearest first.

        They are the nearest of those in the ``num_probes`` cells whose centres are nearest; ``means`` (M, D) may have
        moved a little since the cells were made. Places that stay empty hold M.
        """
        places_CW = self._cells()
        num_probes = min(num_probes, self.num_cells)
        cells_BP = torch.cdist(rows, self.centres).topk(num_probes, largest=False).indices
        ids_BK = places_CW[cells_BP].flatten(1)
        near_BKD = means[ids_BK.clamp_max(len(means) - 1)]
        squares_BK = torch.linalg.vecdot(near_BKD, near_BKD)
        distance_BK = torch.baddbmm(squares_BK[:, :, None], near_BKD, rows[:, :, None], alpha=-2)[:, :, 0]
        distance_BK[ids_BK == len(means)] = math.inf
        found = distance_BK.topk(min(count, distance_BK.shape[1]), largest=False).indices
        return ids_BK.gather(1, found)


def _forget_places(index: InvertedFile, incompatible_keys: object) -> None:
    index._places = None


def _nearest_centre(rows: Tensor, centres_CD: Tensor) -> Tensor:
    step = max(1, _BLOCK_ELEMENTS // len(centres_CD))
    return torch.cat([torch.cdist(block, centres_CD).argmin(1) for block in torch.split(rows, step)])
