"""What all priors have in common: the contract, and encoding many examples in little memory."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bype.distributed import Group
from bype.distributions import DiagonalNormal, Distribution
from bype.mixtures import NormalMixture
from bype.randomness import Randomness

Encode = Callable[[Tensor], DiagonalNormal]
"""The model's encoder, q(z | x) for a batch of examples; for two levels, the top one."""

_CHUNK_ROWS = 512
"""How many examples are encoded at once; the activations of more are not held together."""
_CHUNK_NUMBERS = 2**23
"""How many numbers these examples may have: the residual network has activations of some 40 times as many."""
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
class MappedSource:
    """The examples of a source, each changed by a function."""

    source: ExampleSource
    change: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Tensor) -> Tensor:
        """Return the changed examples with these row numbers."""
        return self.change(self.source.take(indices))


@dataclass(frozen=True, eq=False)
class TensorSource:
    """Examples (N, *data_shape) that fit in memory, as an :class:`ExampleSource`.

    Examples
    --------
    >>> source = TensorSource(torch.rand(50, 1, 28, 28))
    >>> len(source), source.take(torch.tensor([3, 4])).shape
    (50, torch.Size([2, 1, 28, 28]))
    """

    examples: Tensor

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, indices: Tensor) -> Tensor:
        """Return the examples with these row numbers."""
        return self.examples[indices]


class TrainingBatch:
    """The batch of a training step, as a prior sees it.

    Its examples are encoded once. If a prior hands points to :meth:`encode_with`, both are encoded in one call, since
    one large product is quicker than two. Otherwise the examples are encoded when they are first needed.

    Parameters
    ----------
    x
        (B, *data_shape), the examples.
    indices
        (B,), the rows of the training set that they are.
    encode
        The model's encoder.
    generator
        For what the prior draws at random in this step.
    group
        The processes that share the batch; ``x`` is then the part of it that is here.
    labels
        (B,), the classes of the examples, for a prior whose components belong to classes.
    """

    def __init__(
        self,
        x: Tensor,
        indices: Tensor,
        encode: Encode,
        generator: Randomness = None,
        group: Group | None = None,
        labels: Tensor | None = None,
    ) -> None:
        self.indices = indices
        self.labels = labels
        self.generator = generator
        self.group = group or Group()
        self._x = x
        self._encode = encode
        self._with_gradient = torch.is_grad_enabled()
        self._posterior: DiagonalNormal | None = None

    @property
    def posterior(self) -> DiagonalNormal:
        """Where the encoder puts the examples: q(z | x), of the top level where there are several, with gradient."""
        if self._posterior is None:
            with torch.set_grad_enabled(self._with_gradient):  # a prior may look for neighbours without gradient first
                self._posterior = self._encode(self._x)
        return self._posterior

    def encode_with(self, points: Tensor) -> DiagonalNormal:
        """Encode points (M, *data_shape), in one call with the examples if these are not encoded yet."""
        if self._posterior is not None:
            return self._encode(points)
        both = self._encode(torch.cat([self._x, points]))
        sizes = [len(self._x), len(points)]
        means, log_variances = (torch.split(part, sizes) for part in (both.mean, both.log_variance))
        self._posterior, encoded = (DiagonalNormal(*parts) for parts in zip(means, log_variances, strict=True))
        return encoded

    def whole_indices(self) -> Tensor:
        """Return the indices of the whole batch, for choices that all processes must make alike."""
        return self.group.gather_rows(self.indices)

    def whole_means(self) -> Tensor:
        """Return the latent means of the whole batch, without gradient."""
        return self.group.gather_rows(self.posterior.mean.detach())


class PriorPoints(NamedTuple):
    """The points around which a prior is a mixture, and the weight of each."""

    points: Tensor
    """(M, *data_shape), as the encoder sees them."""
    probabilities: Tensor
    """(M,), float64; they sum to one."""
    labels: Tensor | None = None
    """(M,), the class that each point stands for; ``None`` if points stand for all classes."""

    def heaviest(self, most: int) -> Tensor:
        """Return the numbers of the points with the largest weights, the heaviest first; of equal ones the first."""
        return torch.argsort(self.probabilities, descending=True, stable=True)[:most]


class Prior(nn.Module, ABC):
    """A distribution over the latent space that may depend on the encoder.

    The encoder is handed to ``forward`` and never stored, so a prior has only the state that is its own.

    Examples
    --------
    >>> from bype.distributions import StandardNormal
    >>> from bype.models import mlp_vae
    >>> class Plain(Prior):  # a prior of your own is a module with a forward
    ...     def forward(self, encode, batch=None):
    ...         return StandardNormal(torch.zeros(40))
    >>> mlp_vae((1, 28, 28), Plain()).prior_distribution().sample((2,)).shape
    torch.Size([2, 40])
    """

    needs_training_batch = False
    """Whether training without a :class:`TrainingBatch` would be wrong."""

    @abstractmethod
    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> Distribution:
        """Return p(z): the one to evaluate and sample with, or the one to train ``batch`` with."""

    def start(self, encode: Encode, latents: Tensor, center: Tensor, rows: Tensor | None = None) -> None:
        """Fit the prior before training, to an encoder that is not random any more. Most priors have nothing to fit.

        Parameters
        ----------
        encode
            The model's encoder.
        latents
            (B, D), drawn from the posteriors of held-out examples.
        center
            (*data_shape), the mean example.
        rows
            (B,), which training examples the latents are of, if none are held out.
        """

    def given_label(self, distribution: Distribution, label: int) -> Distribution:
        """Return p(z | y), the part of an evaluation's distribution that stands for one class."""
        raise ValueError(
            "no class has points of its own here; train with labels of at least two classes and two points or more for "
            "each; points that start as noise have no classes"
        )

    def leave_out(self, distribution: Distribution, rows: Tensor) -> Distribution:
        """Return an evaluation's distribution for scoring the training examples ``rows`` (B,): each leaves itself out.

        Most priors are not made of training examples, and leave nothing out.
        """
        return distribution

    def own_points(self) -> PriorPoints | None:
        """Return the learned points that one can look at, if the prior has any."""
        return None

    def around(self, means: Tensor) -> DiagonalNormal | None:
        """Return the components that the prior would have at latent means (B, D), if its components share a variance.

        Drawing from them gives latents like those of the examples at ``means``.
        """
        return None


def shared_log_variance() -> nn.Parameter:
    """Return the log variance that all components share, as it starts.

    The authors draw the start from N(0, 1). The number is still drawn, but not used, so that networks that are built
    next start from the same random numbers.
    """
    torch.randn(())
    return nn.Parameter(torch.tensor(_LOG_VARIANCE_START))


@torch.no_grad()
def fit_log_variance(mixture: NormalMixture, log_variance: nn.Parameter, latents: Tensor) -> float:
    """Set the log variance that a prior's components share to the best for latents (B, D), of values from -5 to 2.

    Return the mean log density of the latents then. The best of every fifth value is found, then the best around it.
    """
    values = torch.linspace(-5, 2, 36)
    scores: dict[int, float] = {}

    def best_of(numbers: range) -> int:
        for number in numbers:
            if number not in scores:
                value = values[number].to(latents)
                tried = NormalMixture(mixture.means, value, mixture.log_weights, normalise=False)
                scores[number] = float(tried.log_prob(latents).mean())
        return max(scores, key=scores.__getitem__)

    coarse = best_of(range(0, len(values), 5))  # then all values around it
    best = best_of(range(max(0, coarse - 4), min(len(values), coarse + 5)))
    log_variance.fill_(values[best])
    return scores[best]


def into_range(points: Tensor, data_range: tuple[float, float] | None) -> Tensor:
    """Return the points, clamped if the data have a range. There is no gradient outside the range."""
    return points if data_range is None else points.clamp(*data_range)


def rows_at_once(data_shape: Sequence[int]) -> int:
    """Return how many examples to encode or decode at once; few, if they are so large that activations fill memory."""
    return max(1, min(_CHUNK_ROWS, _CHUNK_NUMBERS // max(1, math.prod(data_shape))))


def encode_points(encode: Encode, points: Tensor, batch: TrainingBatch | None = None) -> DiagonalNormal:
    """Encode points (M, *data_shape), in one call with a batch if they are few; gradients reach the points.

    Many points are encoded a chunk at a time. Where a gradient is wanted, each chunk is then encoded again for it, so
    that no more than one chunk's activations are in memory.
    """
    size = rows_at_once(points.shape[1:])
    if batch is not None and len(points) <= size:
        return batch.encode_with(points)
    return _encode_chunks(encode, torch.split(points, size))


def encode_source(encode: Encode, source: ExampleSource, device: torch.device) -> DiagonalNormal:
    """Encode every example of a source, a chunk at a time; no more than one chunk's pixels are in memory."""
    shape = source.take(torch.arange(min(1, len(source)))).shape[1:]
    rows = torch.split(torch.arange(len(source)), rows_at_once(shape))
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
