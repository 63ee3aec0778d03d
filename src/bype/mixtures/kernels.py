"""Ways to score a mixture of normals: its definition, and faster ones that are tested against it.

A kernel takes components, rows (B, D) of their dtype and, if rows leave components out, the ids of the rows (B,). It
returns the log densities (B,). :func:`log_prob` alone chooses among them.

Shape letters: ``B`` rows to score, ``M`` mixture components, ``D`` latent dimensions, ``F`` features made of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from bype.distributions import LOG_TWO_PI, DiagonalNormal, squared_length

BLOCK_ELEMENTS = 2**22
"""The largest rows x components block that is held at once: 16 MB in float32."""
_CACHED_ROWS, _CACHED_COMPONENTS = 1024, 512
"""The sides of a block without a gradient: it fits into the processor's cache, and neither side makes products slow."""
_RECOMPUTED_ELEMENTS = 2**18
"""About how large a block of :func:`by_responsibilities` is where it is worked out again for a gradient."""
_MIN_COMPONENTS = 512
"""Blocks with fewer components would spend their time on overhead: fewer rows are taken instead."""
_LOG_NOTHING = -60.0
"""Log shares below this, relative to the largest share of a row, are raised to it: denormal numbers are very slow."""
_ROUNDING = 0.01
"""How many nats the square of a mean may lose in float32. Without a gradient, narrower components take float64."""


@dataclass(frozen=True, eq=False)
class Components:
    """The components of a mixture, with what kernels keep of them between calls that want no gradient.

    With a gradient nothing is kept: it would be part of a graph that may be gone when rows are scored again.

    Parameters
    ----------
    means, log_variance, log_weights
        As :class:`NormalMixture` has them, with the weights normalised if they are to be.
    ids
        (M,). Rows of the same id leave the component out.
    only_own
        Rows of other ids leave it out instead.
    """

    means: Tensor
    log_variance: Tensor
    log_weights: Tensor
    ids: Tensor | None = None
    only_own: bool = False

    @property
    def is_shared(self) -> bool:
        """Tell whether all components have one variance."""
        return self.log_variance.ndim == 0

    @cached_property
    def centre(self) -> Tensor:
        """The mean of the means, without gradient: expanded squares lose the fewest digits around it."""
        return self.means.detach().mean(0)

    def finite_log_weights(self) -> Tensor:
        """Return the log weights (M,): a block whose weights are all zero would have NaN for a gradient."""
        dtype = self.means.dtype
        return self.log_weights.to(dtype).clamp_min(_lowest(dtype))

    def product_parts(self) -> tuple[Tensor, Tensor]:
        """Return coefficients (M, F) and bias (M,).

        The log of weight times density of row b under component m comes from one product: features_b . coefficients_m +
        bias_m, and a constant for each row if components share one variance.
        """
        mean_MD = self.means - self.centre
        num_dimensions = mean_MD.shape[1]
        precision = torch.exp(-self.log_variance)
        scaled_MD = precision * mean_MD
        if self.is_shared:
            coefficients_MF, log_determinant = scaled_MD, num_dimensions * self.log_variance
        else:
            coefficients_MF, log_determinant = torch.cat([scaled_MD, -0.5 * precision], 1), self.log_variance.sum(1)
        normaliser_M = (scaled_MD * mean_MD).sum(1) + num_dimensions * LOG_TWO_PI + log_determinant
        return coefficients_MF, self.finite_log_weights() - 0.5 * normaliser_M

    @cached_property
    def kept_product_parts(self) -> tuple[Tensor, Tensor]:
        """What :meth:`product_parts` returns, computed once, without gradient."""
        return self.product_parts()

    @cached_property
    def log_peak(self) -> Tensor:
        """The log density of a component at its mean, if they share one variance; without gradient."""
        return -0.5 * self.means.shape[1] * (LOG_TWO_PI + self.log_variance)

    @cached_property
    def peak_coefficients(self) -> Tensor:
        """What :func:`by_peaks` multiplies features with, (D + 2, M); without gradient."""
        coefficients_MD, bias_M = self.kept_product_parts
        columns = [coefficients_MD, torch.ones_like(bias_M)[:, None], (bias_M - self.log_peak)[:, None]]
        return torch.cat(columns, 1).T.contiguous()

    @cached_property
    def finer(self) -> "Components | None":
        """These components in float64, if they are so narrow that expanded squares lose too much; no gradient."""
        if self.means.dtype == torch.float64:
            return None
        square_M = (self.means - self.centre).square_().mul_(torch.exp(-self.log_variance)).sum(1)
        # Variances of their own make sums twice as long; a quarter keeps their loss below 0.02 in up to 400 dimensions.
        allowed = _ROUNDING if self.is_shared else _ROUNDING / 4
        if square_M.max() * torch.finfo(square_M.dtype).eps < allowed:
            return None
        return replace(
            self,
            means=self.means.double(),
            log_variance=self.log_variance.double(),
            log_weights=self.log_weights.double(),
        )


Kernel = Callable[[Components, Tensor, Tensor | None], Tensor]


def log_prob(components: Components, rows_BD: Tensor, row_ids_B: Tensor | None = None) -> Tensor:
    """Return the log density (B,) of rows (B, D), by the kernel and in the precision that suit."""
    dtype = components.means.dtype
    tensors = rows_BD, components.means, components.log_variance, components.log_weights
    with_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if not with_gradient and components.finer is not None:
        components = components.finer
    kernel: Kernel = by_products
    if components.is_shared and with_gradient:
        kernel = by_responsibilities
    elif components.is_shared and row_ids_B is None:
        kernel = by_peaks
    with torch.set_grad_enabled(with_gradient):  # kernels ask for this
        return kernel(components, rows_BD.to(components.means.dtype), row_ids_B).to(dtype)


def log_joint(components: Components, rows_BD: Tensor, row_ids_B: Tensor | None = None) -> Tensor:
    """Return the log of weight times density (B, M) of rows (B, D) under each component."""
    means_MD = components.means
    normals = DiagonalNormal(means_MD, components.log_variance.expand_as(means_MD))
    joint_BM = components.finite_log_weights() + normals.log_prob(rows_BD[:, None])
    return _masked(joint_BM, row_ids_B, components.ids, components.only_own)


def by_definition(components: Components, rows_BD: Tensor, row_ids_B: Tensor | None = None) -> Tensor:
    """Sum weight times density over components: what all other kernels must agree with."""
    return torch.logsumexp(log_joint(components, rows_BD, row_ids_B), 1)


def by_products(components: Components, rows_BD: Tensor, row_ids_B: Tensor | None = None) -> Tensor:
    """Score by one product of features and coefficients, in blocks; for all components, with and without gradient.

    Where there are several blocks, a gradient works them out again instead of keeping them.
    """
    with_gradient, num_components = torch.is_grad_enabled(), len(components.means)
    component_step = min(num_components, max(_MIN_COMPONENTS, BLOCK_ELEMENTS // max(1, len(rows_BD))))
    row_step = max(1, BLOCK_ELEMENTS // component_step)
    coefficients_MF, bias_M = components.product_parts() if with_gradient else components.kept_product_parts
    # Splitting once keeps the gradient linear in M: a slice taken inside each block would cost M of its own.
    parts = _blocks(component_step, coefficients_MF, bias_M, components.ids)
    row_blocks = _blocks(row_step, rows_BD, row_ids_B)
    score: Callable[..., Tensor] = partial(_product_block, components)
    if with_gradient and len(parts) * len(row_blocks) > 1:
        score = partial(checkpoint, score, use_reentrant=False, preserve_rng_state=False)
    if len(parts) == 1:
        return _joined([score(*block, *parts[0]) for block in row_blocks])
    return _joined([torch.stack([score(*block, *part) for part in parts]).logsumexp(0) for block in row_blocks])


def _product_block(
    components: Components,
    rows_BD: Tensor,
    row_ids_B: Tensor | None,
    coefficients_MF: Tensor,
    bias_M: Tensor,
    ids_M: Tensor | None,
) -> Tensor:
    offset_BD = rows_BD - components.centre
    constant_B: Tensor | float = 0.0
    # Expanded squares need the digits of float32; autocast would round them to half as many.
    with torch.autocast(rows_BD.device.type, enabled=False):
        if components.is_shared:
            features_BF = offset_BD
            constant_B = -0.5 * torch.exp(-components.log_variance) * torch.linalg.vecdot(offset_BD, offset_BD)
        else:
            features_BF = torch.cat([offset_BD, offset_BD.square()], 1)
        product_BM = torch.addmm(bias_M, features_BF, coefficients_MF.T)
        joint_BM = _masked(product_BM, row_ids_B, ids_M, components.only_own)
    if torch.is_grad_enabled():
        floor_B1 = joint_BM.detach().amax(1, keepdim=True) + _LOG_NOTHING
        log_sum_B = torch.logsumexp(joint_BM.clamp_min(floor_B1), 1)
    else:  # the same, in place
        largest_B1 = joint_BM.amax(1, keepdim=True)
        log_sum_B = joint_BM.sub_(largest_B1).clamp_min_(_LOG_NOTHING).exp_().sum(1).log_().add_(largest_B1[:, 0])
    return log_sum_B + constant_B


def by_peaks(components: Components, rows_BD: Tensor, row_ids_B: Tensor | None = None) -> Tensor:
    """Score where components share one variance, no gradient is wanted and no row leaves a component out.

    Exponents relative to a component's peak are at most 0, so the largest one need not be found and subtracted first.
    They all come from one product, biases and squares of rows included. Rows that are far from every component are
    scored once more by :func:`by_products`.
    """
    return _joined([_peak_block(components, rows) for rows in torch.split(rows_BD, _CACHED_ROWS)])


def _peak_block(components: Components, rows_BD: Tensor) -> Tensor:
    floor = -80.0 if rows_BD.dtype == torch.float32 else -690.0  # exponentials below are no normal numbers
    offset_BD = rows_BD - components.centre
    half_square_B = squared_length(offset_BD).mul_(-0.5 * torch.exp(-components.log_variance))
    features_BF = torch.cat([offset_BD, half_square_B[:, None], torch.ones_like(half_square_B)[:, None]], 1)
    sum_B = torch.zeros_like(half_square_B)
    with torch.autocast(rows_BD.device.type, enabled=False):
        for coefficients_FM in torch.split(components.peak_coefficients, _CACHED_COMPONENTS, 1):
            sum_B += (features_BF @ coefficients_FM).clamp_min_(floor).exp_().sum(1)
    log_prob_B = sum_B.log() + components.log_peak
    is_far_B = sum_B < 1e7 * len(components.means) * math.exp(floor)
    if is_far_B.any():
        log_prob_B[is_far_B] = by_products(components, rows_BD[is_far_B])
    return log_prob_B


def by_responsibilities(components: Components, rows_BD: Tensor, row_ids_B: Tensor | None = None) -> Tensor:
    """Score where components share one variance, with a gradient written out.

    All of it follows from the responsibilities, so that one pass forward and two products backward are enough. Where
    there are too many pairs to keep them, responsibilities are worked out again, a block of components at a time.
    """
    tensors = components.means, components.log_variance, components.finite_log_weights(), components.centre
    return _joined(
        [
            _Responsibilities.apply(rows, *tensors, ids, components.ids, components.only_own)  # type: ignore[no-untyped-call]
            for rows, ids in _blocks(BLOCK_ELEMENTS // _MIN_COMPONENTS, rows_BD, row_ids_B)
        ]
    )


class _Responsibilities(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows_BD: Tensor,
        means_MD: Tensor,
        log_variance: Tensor,
        log_weights_M: Tensor,
        centre_D: Tensor,
        row_ids_B: Tensor | None,
        ids_M: Tensor | None,
        only_own: bool,
    ) -> Tensor:
        precision = float(torch.exp(-log_variance))  # a plain number saves a dozen operations on tensors of one element
        num_dimensions = means_MD.shape[1]
        step = len(means_MD)
        if len(rows_BD) * step > BLOCK_ELEMENTS:
            step = max(_MIN_COMPONENTS, min(BLOCK_ELEMENTS, _RECOMPUTED_ELEMENTS) // len(rows_BD))
        # Expanded squares need the digits of float32; autocast would round them to half as many.
        with torch.autocast(rows_BD.device.type, enabled=False):
            offset_BD = rows_BD - centre_D
            # The last column holds what does not depend on the row, so that scores come from one product.
            mean_MF = means_MD.new_empty(len(means_MD), num_dimensions + 1)
            mean_MD = torch.sub(means_MD, centre_D, out=mean_MF[:, :-1])
            square_B, square_M = torch.linalg.vecdot(offset_BD, offset_BD), torch.linalg.vecdot(mean_MD, mean_MD)
            torch.add(log_weights_M, square_M, alpha=-0.5 * precision, out=mean_MF[:, -1])
            feature_BF = _with_column(precision * offset_BD, 1.0)
            logs_B1 = []
            for mean, ids in _blocks(step, mean_MF, ids_M):
                joint_BM = _masked(feature_BF @ mean.T, row_ids_B, ids, only_own)
                largest_B1 = joint_BM.amax(1, keepdim=True)
                share_BM = joint_BM.sub_(largest_B1).clamp_min_(_LOG_NOTHING).exp_()
                total_B1 = share_BM.sum(1, keepdim=True)
                logs_B1.append(total_B1.log().add_(largest_B1))
        if len(logs_B1) == 1:
            log_sum_B1, kept = logs_B1[0], (share_BM, total_B1)
        else:
            log_sum_B1 = torch.cat(logs_B1, 1).logsumexp(1, keepdim=True)
            kept = log_sum_B1, torch.ones_like(log_sum_B1)
        ctx.save_for_backward(*kept, offset_BD, feature_BF, mean_MF, row_ids_B, ids_M)
        ctx.step, ctx.precision, ctx.only_own = step, precision, only_own
        log_normaliser = 0.5 * num_dimensions * (LOG_TWO_PI + float(log_variance))
        return torch.add(log_sum_B1[:, 0], square_B, alpha=-0.5 * precision).sub_(log_normaliser)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        kept, total_B1, offset_BD, feature_BF, mean_MF, row_ids_B, ids_M = ctx.saved_tensors
        precision, mean_MD = ctx.precision, mean_MF[:, :-1]
        # The engine runs this with the autocast of its caller, which would round products to half of their digits.
        with torch.autocast(gradient_B.device.type, enabled=False):
            # Rows are weighted, not responsibilities: these are by far the largest tensor, and are only read.
            weight_B1 = gradient_B[:, None] / total_B1
            weighted_BF = _with_column(weight_B1 * offset_BD, weight_B1)
            pulls_MF, pushed_BD = [], torch.zeros_like(offset_BD)
            blocks = _blocks(ctx.step, mean_MF, ids_M)
            for mean, ids in blocks:
                share_BM = kept
                if len(blocks) > 1:
                    joint_BM = _masked(feature_BF @ mean.T, row_ids_B, ids, ctx.only_own)
                    share_BM = joint_BM.sub_(kept).clamp_min_(_LOG_NOTHING).exp_()
                pulls_MF.append(share_BM.T @ weighted_BF)
                pushed_BD.addmm_(share_BM, mean[:, :-1])
            pull_MF = _joined(pulls_MF)
            mass_M = pull_MF[:, -1].contiguous()
            in_means = torch.addcmul(pull_MF[:, :-1], mass_M[:, None], mean_MD, value=-1).mul_(precision)
            pushed_BD.mul_(weight_B1).addcmul_(gradient_B[:, None], offset_BD, value=-1).mul_(precision)
            in_log_variance = None
            if ctx.needs_input_grad[2]:
                # The sum of gradient times responsibility times squared distance, less D for each row. The other
                # gradients hold differences of rows and means already: whole sums of squares would lose all digits.
                distance = (pushed_BD * offset_BD).sum() + (in_means * mean_MD).sum()
                in_log_variance = distance.mul_(-0.5).sub_(gradient_B.sum(), alpha=0.5 * mean_MD.shape[1])
        return pushed_BD, in_means, in_log_variance, mass_M, None, None, None, None


def _with_column(rows_BD: Tensor, column: Tensor | float) -> Tensor:
    """Return rows (B, D + 1) with one more column: a number, or (B, 1)."""
    wider = rows_BD.new_empty(len(rows_BD), rows_BD.shape[1] + 1)
    wider[:, :-1], wider[:, -1:] = rows_BD, column
    return wider


def _masked(joint_BM: Tensor, row_ids_B: Tensor | None, ids_M: Tensor | None, only_own: bool) -> Tensor:
    """Set a score to log 0, in place, where row and component have one id; with ``only_own``, where ids differ."""
    if row_ids_B is None or ids_M is None:
        return joint_BM
    left_out = row_ids_B[:, None] != ids_M if only_own else row_ids_B[:, None] == ids_M
    return joint_BM.masked_fill_(left_out, _lowest(joint_BM.dtype))


def _blocks(step: int, first: Tensor, *others: Tensor | None) -> list[tuple[Any, ...]]:
    """Cut tensors of one length into blocks, in parallel; ``None`` stays ``None`` in each block."""
    blocks = torch.split(first, step)
    cut = [[None] * len(blocks) if other is None else torch.split(other, step) for other in others]
    return list(zip(blocks, *cut, strict=True))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _lowest(dtype: torch.dtype) -> float:
    """Return a finite stand-in for log 0: its exponential is zero, its gradient is not NaN."""
    return torch.finfo(dtype).min / 4
