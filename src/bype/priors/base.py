"""What all priors have in common: the contract, and encoding many examples in little memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bype.distributions import DiagonalNormal, Distribution, Randomness

Encode = Callable[[Tensor], DiagonalNormal]
"""The model's encoder, q(z | x) for a batch of examples; for two levels, the top one."""

Gather = Callable[[Tensor], Tensor]
"""Returns the rows of all processes that share a batch, in order."""

_CHUNK_ROWS = 512
"""How many examples are encoded at once; the activations of more are not held together."""
_LOG_VARIANCE_START = 0.0
"""Where the log variance shared by all components starts; docs/method/deviations.md says how it was chosen."""


class ExampleSource(Protocol):
    """Where examples come from: a data set that is read by row number and never held as a whole."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def take(self, indices: Tensor) -> Tensor:
        """Return the examples (len(indices), *data_shape), as the model is to see them."""


@dataclass(frozen=True, eq=False)
class SelectedRows:
    """Some rows of a source, as a source."""

    source: ExampleSource
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Tensor) -> Tensor:
        """Return the examples with these numbers among the selected rows."""
        return self.source.take(self.rows[indices])


@dataclass(frozen=True, eq=False)
class TensorSource:
    """Examples (N, *data_shape) that fit in memory, as an :class:`ExampleSource`."""

    examples: Tensor

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, indices: Tensor) -> Tensor:
        """Return the examples with these row numbers."""
        return self.examples[indices]


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """What a prior may know of the batch that it will score in a training step.

    Parameters
    ----------
    indices
        (B,), the rows of the training set that the batch holds.
    means
        (B, D), where the encoder puts them now, without gradient.
    generator
        For what the prior draws at random in this step.
    beside
        Where the encoder puts what :meth:`Prior.points_beside` returned, with gradient.
    gather
        Joins the rows that each process has, if other processes hold the rest of the batch.
    """

    indices: Tensor
    means: Tensor
    generator: Randomness = None
    beside: DiagonalNormal | None = None
    gather: Gather | None = None

    def whole_indices(self) -> Tensor:
        """Return the indices of the whole batch, for choices that all processes must make alike."""
        return self.indices if self.gather is None else self.gather(self.indices)

    def whole_means(self) -> Tensor:
        """Return the means of the whole batch."""
        return self.means if self.gather is None else self.gather(self.means)


class Prior(nn.Module, ABC):
    """A distribution over the latent space that may depend on the encoder.

    The encoder is handed to ``forward`` and never stored, so a prior has only the state that is its own.
    """

    needs_training_batch = False
    """Whether training without a :class:`TrainingBatch` would be wrong."""

    def points_beside(self) -> Tensor | None:
        """Return points to encode in one call with the batch of a training step, if there are any: that is quicker."""
        return None

    @abstractmethod
    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> Distribution:
        """Return p(z): the one to evaluate and sample with, or the one to train ``batch`` with."""


def shared_log_variance() -> nn.Parameter:
    """Return the log variance that all components share, as it starts.

    The authors draw the start from N(0, 1). The number is still drawn, and not used: networks that are built next from
    the same random numbers start as they would with it.
    """
    torch.randn(())
    return nn.Parameter(torch.tensor(_LOG_VARIANCE_START))


def into_range(points: Tensor, data_range: tuple[float, float] | None) -> Tensor:
    """Return the points clamped into the data's range, which leaves no gradient outside; as they are without one."""
    return points if data_range is None else points.clamp(*data_range)


def few_points(points: Tensor) -> Tensor | None:
    """Return the points, if they are few enough to be encoded beside a batch."""
    return points if len(points) <= _CHUNK_ROWS else None


def encoded_beside(encode: Encode, points: Tensor, batch: TrainingBatch | None) -> DiagonalNormal:
    """Return the points as they were encoded beside the batch, or encode them now."""
    return encode_points(encode, points) if batch is None or batch.beside is None else batch.beside


def encode_points(encode: Encode, points: Tensor) -> DiagonalNormal:
    """Encode points (M, *data_shape), a chunk at a time; gradients reach the points.

    Where a gradient is wanted and there are several chunks, each is encoded again for it, so that no more than
    one chunk's activations are in memory.
    """
    return _encode_chunks(encode, torch.split(points, _CHUNK_ROWS))


def encode_source(encode: Encode, source: ExampleSource, device: torch.device) -> DiagonalNormal:
    """Encode every example of a source in the same way; no more than one chunk's pixels are in memory."""
    rows = torch.split(torch.arange(len(source)), _CHUNK_ROWS)
    return _encode_chunks(lambda chunk: encode(source.take(chunk).to(device)), rows)


def _encode_chunks(encode: Encode, chunks: Sequence[Tensor]) -> DiagonalNormal:
    def parameters(chunk: Tensor) -> tuple[Tensor, Tensor]:
        posterior = encode(chunk)
        return posterior.mean, posterior.log_variance

    if len(chunks) > 1 and torch.is_grad_enabled():
        encoded = [checkpoint(parameters, chunk, use_reentrant=False) for chunk in chunks]
    else:
        encoded = [parameters(chunk) for chunk in chunks]
    means, log_variances = zip(*encoded, strict=True)
    return DiagonalNormal(torch.cat(means), torch.cat(log_variances))


def draw_rows(total: int, count: int, *, replace: bool, generator: Randomness = None) -> Tensor:
    """Draw row numbers below ``total`` uniformly, in memory of the order of ``count``.

    They come back on the CPU, where row numbers are used.
    """

    def draw(number: int) -> Tensor:
        device = torch.device("cpu") if generator is None else generator.device
        return torch.randint(total, (number,), generator=generator, device=device).cpu()

    if replace:
        return draw(count)
    if not count <= total:
        raise ValueError(f"cannot draw {count} different examples from {total}; ask for at most {total}")
    if 2 * count > total:
        device = torch.device("cpu") if generator is None else generator.device
        return torch.randperm(total, generator=generator, device=device)[:count].cpu()
    seen: dict[int, None] = {}
    while len(seen) < count:  # each round finds more than half of what is missing
        seen.update(dict.fromkeys(draw(count - len(seen)).tolist()))
    return torch.tensor(list(seen))
