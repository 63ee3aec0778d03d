"""Random numbers: generators that are derived from a seed and never saved, and the slice of a draw of a process."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from bype.data.order import derive_key

Randomness = torch.Generator | None
"""Where random numbers come from: a generator, or ``None`` for PyTorch's global one."""


_GLOBAL = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's global generator, which new networks draw from, and restore it; threads take turns."""
    with _GLOBAL, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True, eq=False)
class BatchSlice:
    """Random numbers for some rows of a larger batch: drawn for all of them, then cut.

    So processes that share a batch and a seed draw what one process would draw.

    Parameters
    ----------
    generator
        In the same state for every slice of the batch.
    part
        The rows that are here.
    total
        The rows of the whole batch.
    """

    generator: torch.Generator
    part: slice
    total: int


@dataclass(frozen=True, eq=False)
class SharedRows:
    """The same random numbers for each row of a batch, so that what a row gets does not depend on the others.

    Parameters
    ----------
    generator
        Draws the numbers of one row.
    """

    generator: torch.Generator


RowRandomness = Randomness | BatchSlice | SharedRows
"""Where random numbers for the rows of a batch come from: a generator, a slice of a larger batch, or shared by rows."""


class GivenNoise:
    """Random numbers that were drawn elsewhere: each request takes the next tensor.

    A model that is exported has them as inputs.

    Examples
    --------
    >>> noise = GivenNoise(torch.ones(1, 2))
    >>> standard_normal((1, 2), like=torch.empty(0), generator=noise)
    tensor([[1., 1.]])
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._left = list(tensors)

    def take(self, shape: Sequence[int]) -> Tensor:
        """Return the next tensor, which has this shape."""
        found = self._left.pop(0)
        if tuple(found.shape) != tuple(shape):
            raise ValueError(f"noise of shape {tuple(found.shape)} cannot serve for {tuple(shape)}")
        return found


Noise = RowRandomness | GivenNoise
"""Where normal random numbers come from: any :data:`RowRandomness`, or tensors that were drawn before."""


def generator_for(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return the generator for one purpose at one moment of a run.

    It depends on nothing else, so a run that is resumed, or shared among processes, draws the same numbers.
    """
    return torch.Generator().manual_seed(derive_key(seed, purpose, *numbers) >> 1)


def standard_normal(shape: Sequence[int], *, like: Tensor, generator: Noise = None) -> Tensor:
    """Draw standard normal numbers (..., rows, D) with the dtype and device of ``like``.

    They are drawn where the generator lives and then moved, so one seed gives one result on every device.
    """
    if isinstance(generator, BatchSlice):
        drawn = standard_normal((*shape[:-2], generator.total, shape[-1]), like=like, generator=generator.generator)
        found = drawn[..., generator.part, :]
        if found.shape[-2] != shape[-2]:
            raise ValueError(f"a slice of {found.shape[-2]} rows cannot serve {shape[-2]} rows")
        return found
    if isinstance(generator, GivenNoise):
        return generator.take(shape)
    if isinstance(generator, SharedRows):
        # In float64, whatever is scored: the numbers of a generator depend on their precision.
        row = (*shape[:-2], 1, shape[-1])
        drawn = standard_normal(row, like=like.new_empty(0, dtype=torch.float64), generator=generator.generator)
        return drawn.to(like.dtype).expand(*shape)
    device = like.device if generator is None else generator.device
    return torch.randn(shape, dtype=like.dtype, device=device, generator=generator).to(like.device)


def uniform(shape: Sequence[int], *, device: torch.device, generator: Randomness = None) -> Tensor:
    """Draw float64 numbers uniform on [0, 1), where the generator lives, and move them to ``device``."""
    source = device if generator is None else generator.device
    return torch.rand(shape, dtype=torch.float64, device=source, generator=generator).to(device)
