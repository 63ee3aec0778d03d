"""Weighted mixtures of normals over the latent space.

Shape letters: ``B`` rows to score, ``M`` mixture components, ``D`` latent dimensions, ``F`` features made of
them, ``...`` any leading dimensions. Every log density is in nats, summed over the ``D`` latent dimensions.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from bype.distributions import LOG_TWO_PI, DiagonalNormal, Randomness, squared_length, uniform

_BLOCK_ELEMENTS = 2**22
"""The largest rows x components block that a mixture holds at once: 16 MB in float32."""
_CACHED_ELEMENTS = 2**20
"""The same where nothing is kept for a gradient, and the cache counts."""
_RECOMPUTED_ELEMENTS = 2**18
"""The same where they are worked out again for a gradient."""
_LOG_NOTHING = -60.0
"""No component is taken to be further below the nearest: products of numbers near the smallest one are very slow."""
_ROUNDING = 0.01
"""How many nats the squares of means may lose in float32; without a gradient narrower mixtures take float64."""
_MIN_COMPONENTS = 512
"""Narrower blocks than this would spend their time in overhead: fewer rows are taken instead."""


def _overwriting_logsumexp(joint_BM: Tensor) -> Tensor:
    """Return log-sum-exp over the last dimension of finite numbers, in their own memory, which is then of no use."""
    largest_B1 = joint_BM.amax(1, keepdim=True)
    return joint_BM.sub_(largest_B1).exp_().sum(1).log_().add_(largest_B1[:, 0])


class _SharedVarianceScore(torch.autograd.Function):
    """The log density of rows under a mixture with one variance, with a gradient written out.

    All of it is made of the responsibilities, so that one pass forward and two products backward are enough. Where
    there are too many pairs to keep them, responsibilities are worked out again, a block of components at a time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows_BD: Tensor,
        means_MD: Tensor,
        log_variance: Tensor,
        log_weights_M: Tensor,
        centre_D: Tensor,
        excluded: Callable[[int, int], Tensor | None],
    ) -> Tensor:
        precision = float(torch.exp(-log_variance))  # a plain number saves a dozen operations on tensors of one element
        offset_BD, mean_MD = rows_BD - centre_D, means_MD - centre_D
        step = len(means_MD)
        if len(rows_BD) * step > _BLOCK_ELEMENTS:
            step = max(_MIN_COMPONENTS, min(_BLOCK_ELEMENTS, _RECOMPUTED_ELEMENTS) // len(rows_BD))
        blocks = [slice(first, min(first + step, len(means_MD))) for first in range(0, len(means_MD), step)]
        # Expanded squares need the digits of float32; autocast would round them to half as many.
        with torch.autocast(rows_BD.device.type, enabled=False):
            square_B, square_M = torch.linalg.vecdot(offset_BD, offset_BD), torch.linalg.vecdot(mean_MD, mean_MD)
            bias_M = torch.add(log_weights_M, square_M, alpha=-0.5 * precision)
            logs_B1 = []
            for block in blocks:
                left_out = excluded(block.start, block.stop)
                joint_BM = _joint(offset_BD, mean_MD[block], precision, bias_M[block], left_out)
                largest_B1 = joint_BM.amax(1, keepdim=True)
                share_BM = joint_BM.sub_(largest_B1).clamp_min_(_LOG_NOTHING).exp_()
                total_B1 = share_BM.sum(1, keepdim=True)
                logs_B1.append(total_B1.log().add_(largest_B1))
        log_sum_B1 = logs_B1[0] if len(blocks) == 1 else torch.cat(logs_B1, 1).logsumexp(1, keepdim=True)
        kept = (share_BM, total_B1) if len(blocks) == 1 else (log_sum_B1, torch.ones_like(log_sum_B1))
        ctx.save_for_backward(*kept, offset_BD, mean_MD, square_B, square_M, bias_M)
        ctx.blocks, ctx.excluded, ctx.precision = blocks, excluded, precision
        log_normaliser = 0.5 * means_MD.shape[1] * (LOG_TWO_PI + float(log_variance))
        return torch.add(log_sum_B1[:, 0], square_B, alpha=-0.5 * precision).sub_(log_normaliser)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        kept, total_B1, offset_BD, mean_MD, square_B, square_M, bias_M = ctx.saved_tensors
        precision = ctx.precision
        weight_B1 = gradient_B[:, None] / total_B1
        masses_M, pulls_MD, pushed_BD = [], [], (-precision * gradient_B)[:, None] * offset_BD
        for block in ctx.blocks:
            mean_of_block_MD = mean_MD[block]
            if len(ctx.blocks) == 1:
                shared_BM = kept * weight_B1
            else:
                left_out = ctx.excluded(block.start, block.stop)
                joint_BM = _joint(offset_BD, mean_of_block_MD, precision, bias_M[block], left_out)
                shared_BM = joint_BM.sub_(kept).clamp_min_(_LOG_NOTHING).exp_().mul_(weight_B1)
            masses_M.append(shared_BM.sum(0))
            pulls_MD.append(shared_BM.T @ offset_BD)
            if ctx.needs_input_grad[0]:
                pushed_BD.addmm_(shared_BM, mean_of_block_MD, alpha=precision)
        mass_M, pulled_MD = _joined(masses_M), _joined(pulls_MD)
        in_means = in_log_variance = None
        if ctx.needs_input_grad[1]:
            in_means = torch.addcmul(pulled_MD, mass_M[:, None], mean_MD, value=-1).mul_(precision)
        if ctx.needs_input_grad[2]:
            # The sum of gradient times responsibility times squared distance, less D for each row.
            crossed = pulled_MD.flatten() @ mean_MD.flatten()
            distance = (gradient_B @ square_B).add_(mass_M @ square_M).sub_(crossed, alpha=2)
            in_log_variance = distance.mul_(0.5 * precision).sub_(gradient_B.sum(), alpha=0.5 * mean_MD.shape[1])
        return pushed_BD, in_means, in_log_variance, mass_M, None, None


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _joint(offset_BD: Tensor, mean_MD: Tensor, precision: float, bias_M: Tensor, excluded_BM: Tensor | None) -> Tensor:
    """Return the logs of weight times density of each pair, up to what is the same for all components."""
    joint_BM = torch.addmm(bias_M, offset_BD, mean_MD.T, alpha=precision)
    return joint_BM if excluded_BM is None else joint_BM.masked_fill_(excluded_BM, _lowest(joint_BM.dtype))


class NormalMixture:
    r"""Weighted mixture of normals, :math:`p(z) = \sum_m \pi_m N(z \mid \mu_m, \sigma_m^2)` (the paper's Eq. 12).

    Scoring is exact up to rounding: some thousandths of a nat in float32, more with a gradient if components are very
    narrow. It runs over blocks of rows and components, and a gradient recomputes blocks instead of storing them where
    there are many, so memory stays bounded for any number of components.

    Parameters
    ----------
    means
        (M, D).
    log_variance
        () for one isotropic variance shared by all components, or (M, D) for a diagonal of each one's own.
    log_weights
        (M,), on any scale: they are normalised here. A weight of zero is ``-inf``; such a component is
        never drawn, and no gradient becomes NaN because of it.
    take_as_they_are
        Do not normalise the weights: they are, or these components are to stand for a larger mixture.

    Examples
    --------
    >>> mixture = NormalMixture(torch.tensor([[-1.0], [1.0]]), torch.tensor(0.0), torch.zeros(2))
    >>> mixture.log_prob(torch.zeros(1))
    tensor(-1.4189)
    """

    def __init__(
        self, means: Tensor, log_variance: Tensor, log_weights: Tensor, *, take_as_they_are: bool = False
    ) -> None:
        if means.ndim != 2 or len(means) < 1 or log_weights.shape != means.shape[:1]:
            raise ValueError(
                f"a mixture needs means (M, D) and log_weights (M,) of at least one component, "
                f"not {tuple(means.shape)} and {tuple(log_weights.shape)}"
            )
        if log_variance.shape not in ((), means.shape):
            raise ValueError(
                f"log_variance must be a scalar or shaped like the means {tuple(means.shape)}, "
                f"not {tuple(log_variance.shape)}"
            )
        if means.dtype.itemsize < 4:  # half precision, as an encoder under autocast gives it
            means, log_variance = means.float(), log_variance.float()
        self.means = means
        # A shared variance is a parameter that an optimiser changes in place; this mixture stays what it is.
        self.log_variance = log_variance.clone() if log_variance.ndim == 0 else log_variance
        self.log_weights = log_weights if take_as_they_are else log_weights - torch.logsumexp(log_weights, 0)
        # A block whose weights are all zero would have log-sum-exp -inf, and NaN for a gradient.
        self._finite_log_weights_M = self.log_weights.to(means.dtype).clamp_min(_lowest(means.dtype))
        self._centre = means.detach().mean(0)
        self._parts: tuple[Tensor, Tensor] | None = None
        """Without gradient: those with one are part of a graph that may be gone when rows are scored again."""

    def _product_parts(self) -> tuple[Tensor, Tensor]:
        """Return coefficients (M, F) and bias (M,), worked out once if no gradient is wanted.

        The log of weight times density of row b under component m is made of one product: features_b . coefficients_m +
        bias_m + constant_b. Expanding squares loses the fewest digits near the origin, hence the centre.
        """
        if self._parts is not None and not torch.is_grad_enabled():
            return self._parts
        mean_MD = self.means - self._centre
        num_dimensions = mean_MD.shape[1]
        precision = torch.exp(-self.log_variance)
        scaled_MD = precision * mean_MD
        if self.log_variance.ndim == 0:
            coefficients_MF = scaled_MD
            log_determinant = num_dimensions * self.log_variance
        else:
            coefficients_MF = torch.cat([scaled_MD, -0.5 * precision], 1)
            log_determinant = self.log_variance.sum(1)
        normaliser_M = (scaled_MD * mean_MD).sum(1) + num_dimensions * LOG_TWO_PI + log_determinant
        parts = coefficients_MF, self._finite_log_weights_M - 0.5 * normaliser_M
        if not torch.is_grad_enabled():
            self._parts = parts
        return parts

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (...) of ``value`` (..., D)."""
        num_components, num_dimensions = self.means.shape
        rows_BD = value.reshape(-1, num_dimensions).to(self.means.dtype)
        is_shared = self.log_variance.ndim == 0
        if is_shared and not torch.is_grad_enabled() and type(self) is NormalMixture:
            if self._finer is not None:
                return self._finer.log_prob(value.double()).to(self.means.dtype)
            blocks = torch.split(rows_BD, max(1, _CACHED_ELEMENTS // num_components))
            return torch.cat([self._shared_variance_block(rows) for rows in blocks]).reshape(value.shape[:-1])
        if is_shared and torch.is_grad_enabled():
            row_blocks = torch.split(rows_BD, _BLOCK_ELEMENTS // _MIN_COMPONENTS)
            firsts = range(0, max(1, len(rows_BD)), _BLOCK_ELEMENTS // _MIN_COMPONENTS)
            scored = [self._score_shared(rows, first) for rows, first in zip(row_blocks, firsts, strict=True)]
            return _joined(scored).reshape(value.shape[:-1])
        component_step = min(num_components, max(_MIN_COMPONENTS, _BLOCK_ELEMENTS // max(1, len(rows_BD))))
        row_step = max(1, _BLOCK_ELEMENTS // component_step)
        coefficients_MF, bias_M = self._product_parts()
        # Splitting once keeps the gradient linear in M: a slice taken inside each block would cost M of its own.
        component_blocks = list(
            zip(
                range(0, num_components, component_step),
                torch.split(coefficients_MF, component_step),
                torch.split(bias_M, component_step),
                strict=True,
            )
        )
        row_blocks = torch.split(rows_BD, row_step)
        if len(component_blocks) * len(row_blocks) == 1:
            return self._block(rows_BD, 0, *component_blocks[0]).reshape(value.shape[:-1])
        score = self._recomputed_block if torch.is_grad_enabled() else self._block
        log_prob_B = torch.cat(
            [
                torch.logsumexp(torch.stack([score(rows, first_row, *part) for part in component_blocks]), 0)
                for first_row, rows in zip(range(0, max(1, len(rows_BD)), row_step), row_blocks, strict=True)
            ]
        )
        return log_prob_B.reshape(value.shape[:-1])

    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw (*shape, D): a component by its weight, then a point of that component."""
        return self.component(self.sample_components(shape, generator=generator)).sample(generator=generator)

    def sample_components(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw component numbers by weight, by inverting the cumulative weights in float64."""
        support = torch.nonzero(self.log_weights > -torch.inf).squeeze(1)
        cumulative = self.log_weights[support].double().exp().cumsum(0)
        position = uniform(shape, device=self.means.device, generator=generator) * cumulative[-1]
        # Rounding can lift the largest uniform number onto the total itself.
        return support[torch.searchsorted(cumulative, position, right=True).clamp_max(len(support) - 1)]

    def component(self, index: int | Tensor) -> DiagonalNormal:
        """Return the component or components numbered ``index``."""
        mean = self.means[index]
        shared = self.log_variance.ndim == 0
        return DiagonalNormal(mean, self.log_variance.expand_as(mean) if shared else self.log_variance[index])

    def _score_shared(self, rows_BD: Tensor, first_row: int) -> Tensor:
        """Return the log density of some rows, (rows,), where there is one variance and a gradient is wanted."""

        def excluded(start: int, stop: int) -> Tensor | None:
            return self._excluded(first_row, len(rows_BD), start, stop - start)

        arguments = (rows_BD, self.means, self.log_variance, self._finite_log_weights_M, self._centre, excluded)
        scored_B: Tensor = _SharedVarianceScore.apply(*arguments)  # type: ignore[no-untyped-call]
        return scored_B

    def _block(
        self, rows_BD: Tensor, first_row: int, first_component: int, coefficients_MF: Tensor, bias_M: Tensor
    ) -> Tensor:
        """Return the log density of some rows under some components, with their weights: (rows,)."""
        offset_BD = rows_BD - self._centre
        # Expanded squares need the digits of float32; autocast would round them to half as many.
        with torch.autocast(rows_BD.device.type, enabled=False):
            if self.log_variance.ndim == 0:
                features_BF = offset_BD
                constant_B = -0.5 * torch.exp(-self.log_variance) * torch.linalg.vecdot(offset_BD, offset_BD)
            else:
                features_BF = torch.cat([offset_BD, offset_BD.square()], 1)
                constant_B = offset_BD.new_zeros(len(offset_BD))
            joint_BM = torch.addmm(bias_M, features_BF, coefficients_MF.T)
        own_BM = self._excluded(first_row, len(rows_BD), first_component, len(bias_M))
        if own_BM is not None:
            joint_BM = joint_BM.masked_fill(own_BM, _lowest(joint_BM.dtype))
        if torch.is_grad_enabled():
            floor_B1 = joint_BM.detach().amax(1, keepdim=True) + _LOG_NOTHING
            log_sum_B = torch.logsumexp(joint_BM.clamp_min(floor_B1), 1)
        else:
            log_sum_B = _overwriting_logsumexp(joint_BM)
        return torch.add(log_sum_B, constant_B)

    def _shared_variance_block(self, rows_BD: Tensor) -> Tensor:
        """Return the log density of some rows, (rows,), where there is one variance and no gradient is wanted.

        Exponents relative to a component's peak are at most 0, so no largest one has to be found and taken off first.
        They all come from one product, biases and squares of rows included. Rows that are far from every component are
        scored once more in the way that suits them.
        """
        floor = -80.0 if rows_BD.dtype == torch.float32 else -690.0  # exponentials below are no normal numbers
        offset_BD = rows_BD - self._centre
        half_square_B = squared_length(offset_BD).mul_(-0.5 * torch.exp(-self.log_variance))
        features_BF = torch.cat([offset_BD, half_square_B[:, None], torch.ones_like(half_square_B)[:, None]], 1)
        with torch.autocast(rows_BD.device.type, enabled=False):
            exponent_BM = features_BF @ self._quick_coefficients
        sum_B = exponent_BM.clamp_min_(floor).exp_().sum(1)
        log_prob_B = sum_B.log() + self._log_peak
        is_far_B = sum_B < 1e7 * len(self.means) * math.exp(floor)
        if is_far_B.any():
            far_BD = rows_BD[is_far_B]
            log_prob_B[is_far_B] = self._block(far_BD, 0, 0, *self._product_parts())
        return log_prob_B

    @cached_property
    def _finer(self) -> "NormalMixture | None":
        """The same in float64, if components are so narrow that expanded squares would be off by more than 0.01."""
        square = squared_length(self.means - self._centre).max() * torch.exp(-self.log_variance)
        if self.means.dtype == torch.float64 or square * torch.finfo(self.means.dtype).eps < _ROUNDING:
            return None
        parts = self.means.double(), self.log_variance.double(), self.log_weights.double()
        return NormalMixture(*parts, take_as_they_are=True)

    @cached_property
    def _log_peak(self) -> Tensor:
        """The log density of a component at its mean."""
        return -0.5 * self.means.shape[1] * (LOG_TWO_PI + self.log_variance)

    @cached_property
    def _quick_coefficients(self) -> Tensor:
        coefficients_MF, bias_M = self._product_parts()
        columns = [coefficients_MF, torch.ones_like(bias_M)[:, None], (bias_M - self._log_peak)[:, None]]
        return torch.cat(columns, 1).T.contiguous()

    def _recomputed_block(
        self, rows_BD: Tensor, first_row: int, first_component: int, coefficients_MF: Tensor, bias_M: Tensor
    ) -> Tensor:
        """Return the same, keeping nothing for the gradient but the result."""
        arguments = (rows_BD, first_row, first_component, coefficients_MF, bias_M)
        block: Tensor = checkpoint(self._block, *arguments, use_reentrant=False, preserve_rng_state=False)
        return block

    def _excluded(self, first_row: int, num_rows: int, first_component: int, num_components: int) -> Tensor | None:
        """Tell which pairs of a row and a component do not count, (rows, components); here, none."""
        return None


class LeaveOneOutMixture(NormalMixture):
    """A mixture in which each row to score leaves out its own component, and the others share its weight.

    It is a batch of ``B`` mixtures, one a row: ``log_prob`` takes (..., B, D).

    Parameters
    ----------
    component_ids
        (M,): which example each component stands for; the same example may appear several times.
    row_ids
        (B,): which example each row is. Its components do not count for that row.

    Examples
    --------
    >>> mixture = LeaveOneOutMixture(
    ...     means=torch.tensor([[-1.0], [1.0]]),
    ...     log_variance=torch.tensor(0.0),
    ...     log_weights=torch.zeros(2),
    ...     component_ids=torch.tensor([7, 8]),
    ...     row_ids=torch.tensor([8]),
    ... )
    >>> mixture.log_prob(torch.tensor([[-1.0]]))  # only the component of example 7 is left
    tensor([-0.9189])
    """

    def __init__(
        self, means: Tensor, log_variance: Tensor, log_weights: Tensor, component_ids: Tensor, row_ids: Tensor
    ) -> None:
        super().__init__(means, log_variance, log_weights)
        self.component_ids = component_ids
        self.row_ids = row_ids
        weights_M = self.log_weights.double().exp()
        kept = [
            torch.where(self._own(ids, 0, len(weights_M)), 0.0, weights_M).sum(1)
            for ids in torch.split(row_ids, max(1, _BLOCK_ELEMENTS // len(weights_M)))
        ]
        self._log_kept = torch.cat(kept).log().to(self.means.dtype)
        if self._log_kept.isneginf().any():
            raise ValueError(
                "leave-one-out leaves a row without any component: every exemplar is the row's own example; "
                "draw more exemplars, or use more than one training example"
            )

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density (..., B) of ``value`` (..., B, D), row b without example ``row_ids[b]``."""
        if value.shape[-2] != len(self.row_ids):
            raise ValueError(f"this mixture scores {len(self.row_ids)} rows at a time, not {value.shape[-2]}")
        return super().log_prob(value) - self._log_kept

    def sample(self, shape: Sequence[int] = (), *, generator: Randomness = None) -> Tensor:
        """Draw (*shape, B, D), row b from the mixture without example ``row_ids[b]``."""
        index = self.sample_components((*shape, len(self.row_ids)), generator=generator)
        while (own := self.component_ids[index] == self.row_ids).any():
            index = torch.where(own, self.sample_components(own.shape, generator=generator), index)
        return self.component(index).sample(generator=generator)

    def _own(self, row_ids: Tensor, first_component: int, num_components: int) -> Tensor:
        return row_ids[:, None] == self.component_ids[first_component : first_component + num_components]

    def _excluded(self, first_row: int, num_rows: int, first_component: int, num_components: int) -> Tensor | None:
        position = torch.arange(first_row, first_row + num_rows, device=self.row_ids.device)
        return self._own(self.row_ids[position % len(self.row_ids)], first_component, num_components)


def _lowest(dtype: torch.dtype) -> float:
    """Return a finite stand-in for log 0: its exponential is zero, its gradient is not NaN."""
    return torch.finfo(dtype).min / 4
