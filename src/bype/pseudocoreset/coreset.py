"""The pseudocoreset: points and weights, and what always holds of them."""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from bype.data.examples import spread_rows
from bype.data.scaling import mean_and_variance
from bype.priors.base import ExampleSource, draw_rows, into_range
from bype.randomness import Randomness, standard_normal

_NOISE_ROWS, _NOISE_NUMBERS = 2_000, 2**27
"""This many examples (fewer if they are huge) are enough for the means and variances of a start as noise."""
_CHUNK_NUMBERS = 2**22

_SUM_TOLERANCE = 1e-3
"""How far weights may be from their total, as a share of it: float32 rounds."""


def project_to_simplex(weights: Tensor, total: float) -> Tensor:
    r"""Return the nearest point to ``weights`` (M,) in :math:`\{w \ge 0, \sum_m w_m = \text{total}\}`.

    Where all stay positive this adds the same amount to every weight, as Algorithm 2 of the paper does.

    Examples
    --------
    >>> project_to_simplex(torch.tensor([3.0, 1.0, -1.0]), total=3.0)
    tensor([2.5000, 0.5000, 0.0000])
    """
    weights = weights - weights.max()  # the answer is the same, and no large number swallows the total
    descending = weights.sort(descending=True).values
    excess = (descending.cumsum(0) - total) / torch.arange(1, len(weights) + 1, device=weights.device)
    num_positive = int((descending > excess).sum())
    return (weights - excess[num_positive - 1]).clamp_min(0)


class Pseudocoreset(nn.Module):
    r"""A small weighted set of pseudo-data (U, w) that stands for N examples.

    Its invariants hold at all times: weights are non-negative and sum to N, points are finite and inside the
    data's range. Weights are kept as probabilities w / N in float64, whatever dtype the model is cast to.

    Parameters
    ----------
    points
        (M, *data_shape), the pseudo-data u_m.
    total
        N, the number of examples that they stand for.
    weights
        (M,), projected onto the simplex; equal ones if left out.
    data_range
        Points are clamped into it; ``None`` for data without a range.
    labels
        (M,), the class that each point stands for; ``None`` if points stand for examples of all classes.

    Examples
    --------
    >>> pseudocoreset = Pseudocoreset(torch.rand(4, 1, 28, 28), total=1000)
    >>> pseudocoreset.weights
    tensor([250., 250., 250., 250.], dtype=torch.float64)
    """

    points: Tensor
    probabilities: Tensor
    labels: Tensor | None
    _total: Tensor

    def __init__(
        self,
        points: Tensor,
        total: int,
        weights: Tensor | None = None,
        data_range: tuple[float, float] | None = (0.0, 1.0),
        labels: Tensor | None = None,
    ) -> None:
        super().__init__()
        if total < 1 or len(points) < 1:
            raise ValueError(f"a pseudocoreset needs points and a positive total, not {len(points)} and {total}")
        if not points.is_floating_point():
            raise ValueError(f"points must be floating-point numbers as the model sees them, not {points.dtype}")
        if not points.isfinite().all():
            raise ValueError("points must be finite numbers; remove or fill what is missing in the data")
        if data_range is not None and not (points.min() >= data_range[0] and points.max() <= data_range[1]):
            raise ValueError(
                f"points lie in [{points.min():g}, {points.max():g}], outside the data's range {data_range}; "
                f"scale the data, or pass data_range=None for data without a range"
            )
        if labels is not None and (labels.shape != points.shape[:1] or int(labels.min()) < 0):
            raise ValueError(f"labels must be {len(points)} numbers from 0 on, one for each point")
        if weights is not None:
            is_valid = weights.shape == points.shape[:1] and bool((weights >= 0).all())
            if not is_valid or abs(float(weights.sum()) / total - 1) > _SUM_TOLERANCE:
                raise ValueError(
                    f"weights must be {len(points)} numbers from 0 on that add up to the total, {total}; "
                    f"scale them: weights * {total} / weights.sum()"
                )
        self.data_range = data_range
        self.register_buffer("points", torch.empty_like(points))
        self.register_buffer("probabilities", torch.empty(len(points), dtype=torch.float64, device=points.device))
        self.register_buffer("_total", torch.tensor(total, device=points.device))
        self.register_buffer("labels", None if labels is None else labels.to(points.device, torch.int32))
        self.register_load_state_dict_post_hook(_check_loaded)  # type: ignore[no-untyped-call]
        self.assign(points, torch.full((len(points),), total / len(points)) if weights is None else weights)

    @classmethod
    def from_source(
        cls,
        source: ExampleSource,
        size: int,
        data_range: tuple[float, float] | None = (0.0, 1.0),
        *,
        generator: Randomness = None,
    ) -> Self:
        """Start at ``size`` different examples of ``source``, drawn uniformly, with equal weights (Algorithm 2)."""
        rows = draw_rows(len(source), size, replace=False, generator=generator)
        return cls(source.take(rows), len(source), data_range=data_range)

    @classmethod
    def from_noise(
        cls,
        source: ExampleSource,
        size: int,
        data_range: tuple[float, float] | None = (0.0, 1.0),
        *,
        generator: Randomness = None,
    ) -> Self:
        """Start at noise with the mean and the variance that each dimension has over ``source``, with equal weights.

        No example is copied: all that the start knows of the data are these means and variances, of at most 2,000
        examples, evenly spread.
        """
        shape = source.take(torch.tensor([0])).shape[1:]
        size_of_one = math.prod(shape)
        rows = torch.from_numpy(spread_rows(len(source), max(2, min(_NOISE_ROWS, _NOISE_NUMBERS // size_of_one))))
        chunks = torch.split(rows, max(1, _CHUNK_NUMBERS // size_of_one))
        mean, variance, _ = mean_and_variance(lambda: (source.take(chunk).cpu().flatten(1) for chunk in chunks))
        noise = standard_normal((size, len(mean)), like=torch.empty(0), generator=generator)
        points = (mean + variance.sqrt() * noise).float().reshape(size, *shape)
        return cls(into_range(points, data_range), len(source), data_range=data_range)

    @classmethod
    def from_classes(
        cls,
        source: ExampleSource,
        labels: Tensor,
        size: int,
        data_range: tuple[float, float] | None = (0.0, 1.0),
        *,
        generator: Randomness = None,
    ) -> Self:
        """Start at examples of each class, in proportion to its share of the examples, at least one.

        Parameters
        ----------
        source
            The examples.
        labels
            (N,), the class of each of them.
        size
            How many points.
        data_range
            As for the class.
        generator
            Random numbers for the choice of examples.
        """
        counts = torch.bincount(labels)
        sizes = _shares(counts, size)
        rows, weights = [], []
        for label, (count, chosen) in enumerate(zip(counts.tolist(), sizes, strict=True)):
            if chosen:
                own = (labels == label).nonzero()[:, 0]
                rows.append(own[draw_rows(count, chosen, replace=False, generator=generator)])
                weights.append(torch.full((chosen,), count / chosen, dtype=torch.float64))
        # Points have their turns in order, so classes are mixed.
        order = draw_rows(size, size, replace=False, generator=generator)
        chosen_rows = torch.cat(rows)[order]
        return cls(
            source.take(chosen_rows), len(source), torch.cat(weights)[order], data_range, labels=labels[chosen_rows]
        )

    @property
    def total(self) -> int:
        """N, the number of examples that the weights add up to."""
        return int(self._total)

    @property
    def weights(self) -> Tensor:
        """The weights w (M,) in float64; they sum to N."""
        return self.probabilities * self.total

    def __len__(self) -> int:
        return len(self.points)

    @torch.no_grad()
    def assign(self, points: Tensor, weights: Tensor) -> None:
        """Replace points and weights by the nearest ones that keep the invariants."""
        if points.shape != self.points.shape or weights.shape != self.probabilities.shape:
            raise ValueError(
                f"points and weights must stay {tuple(self.points.shape)} and {tuple(self.probabilities.shape)}, "
                f"not {tuple(points.shape)} and {tuple(weights.shape)}"
            )
        if not (points.isfinite().all() and weights.isfinite().all()):
            raise ValueError("points or weights are not finite; a smaller step size may help")
        self.points.copy_(into_range(points, self.data_range))
        weights = project_to_simplex(weights.double(), self.total)
        self.probabilities.copy_(weights / weights.sum())

    @torch.no_grad()
    def move(self, rows: slice, points: Tensor) -> None:
        """Replace some points (L, *data_shape), in time that does not grow with those that stay."""
        if points.shape != self.points[rows].shape:
            raise ValueError(f"points must stay {tuple(self.points[rows].shape)}, not {tuple(points.shape)}")
        if not points.isfinite().all():
            raise ValueError("points are not finite; a smaller step size may help")
        self.points[rows] = into_range(points, self.data_range)

    @torch.no_grad()
    def reweight(self, probabilities: Tensor) -> None:
        """Replace the weights by probabilities (M,) that nearly sum to one."""
        if probabilities.shape != self.probabilities.shape:
            raise ValueError(f"weights must stay {tuple(self.probabilities.shape)}, not {tuple(probabilities.shape)}")
        probabilities = probabilities.double().clamp_min(0)
        total = float(probabilities.cumsum(0)[-1])  # one after the other, the same on processors of all kinds
        if not 0 < total < math.inf:
            raise ValueError("weights are not finite, or all zero; a smaller step size may help")
        torch.div(probabilities, total, out=self.probabilities)

    def extra_repr(self) -> str:
        """Describe the set for ``print``."""
        size = math.prod(self.points.shape[1:])
        return f"{len(self)} points of {size} numbers stand for {self.total} examples"

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        probabilities = self.probabilities
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.probabilities = probabilities.to(self.points.device)
        return self


def _shares(counts: Tensor, size: int) -> list[int]:
    """Divide ``size`` points among classes in proportion to their counts; each class that occurs gets one."""
    occurring = int((counts > 0).sum())
    if not occurring <= size <= int(counts.sum()):
        raise ValueError(
            f"{size} points cannot be divided among {occurring} classes of {int(counts.sum())} examples; "
            f"take at least one for each class, and no more than there are examples"
        )
    numbers = counts.tolist()
    shares = [min(number, 1) for number in numbers]
    for _ in range(size - occurring):  # the next one goes where a point stands for the most examples
        open_ = [number / share if share < number else 0.0 for number, share in zip(numbers, shares, strict=True)]
        shares[max(range(len(shares)), key=open_.__getitem__)] += 1
    return shares


def _check_loaded(pseudocoreset: Pseudocoreset, incompatible_keys: object) -> None:
    """Refuse a state that breaks the invariants; a valid one is loaded to the bit."""
    points, probabilities = pseudocoreset.points, pseudocoreset.probabilities
    low, high = pseudocoreset.data_range or (-torch.inf, torch.inf)
    if not (
        pseudocoreset.total >= 1
        and points.isfinite().all()
        and ((points >= low) & (points <= high)).all()
        and (probabilities >= 0).all()
        and abs(probabilities.sum().item() - 1) < 1e-9
        and (pseudocoreset.labels is None or int(pseudocoreset.labels.min()) >= 0)
    ):
        raise ValueError(
            "the saved pseudocoreset is damaged: its points must be finite and inside the data's range, its weights "
            "non-negative with the number of examples as their sum"
        )
