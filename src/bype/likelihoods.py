"""Likelihoods of an example given the decoder's output.

All of them work on flat examples (..., d), whose d numbers are independent given the output.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bype.randomness import Randomness, standard_normal, uniform

Range = tuple[float, float]

PIXEL_RANGE: Range = (1 / 512, 1 - 1 / 512)
"""The range of the pixels ``(byte + 0.5) / 256``."""

QUANTISATION_VARIANCE = 1 / (12 * 256**2)
"""The variance of rounding to one of 256 levels of [0, 1]: no byte says more about a pixel than this."""


_LARGEST_CHANGE = 10.0
"""The largest change of a log-variance by z, so that no latent makes it infinite."""

_WRONG = 1e-3
"""The share of outliers that a robust likelihood starts with."""
_VARIANCE_OF_WRONG = 3.0**2
"""The variance of outliers, in data of variance 1."""


class Likelihood(nn.Module, ABC):
    """A density or probability of an example x given the decoder's output, p(x | output).

    Attributes
    ----------
    value_kind
        What ``exp(log_prob)`` is. If ``unnormalised``, it does not integrate or sum to one over x. Then it must not be
        called a likelihood or be compared across likelihoods.
    log_normaliser
        What to add to ``log_prob``, for each dimension, to make it that of a density; ``None`` if no constant does.
    outputs_per_dimension
        How many numbers of the decoder's output say something about one number of an example.
    fixed_variance
        The variance of each dimension given the output, if it is the same for all and never changes.
    has_one_variance
        Whether all dimensions have the same variance given the output.

    Examples
    --------
    >>> class StudentT(Likelihood):  # a likelihood of your own
    ...     def log_probs(self, x, output):
    ...         return torch.distributions.StudentT(3.0, output, 0.1).log_prob(x)
    ...     def mean(self, output):
    ...         return output
    ...     def sample(self, output, *, generator=None):
    ...         normal = torch.randn(4, *output.shape, generator=generator)
    ...         return output + 0.1 * normal[0] / (normal[1:].square().mean(0)).sqrt()
    >>> StudentT().log_prob(torch.zeros(5, 7), torch.zeros(5, 7)).shape
    torch.Size([5])
    """

    outputs_per_dimension = 1
    fixed_variance: float | None = None
    has_one_variance = False
    value_kind: Literal["density", "probability", "unnormalised", "cross-entropy"] = "density"
    log_normaliser: float | None = 0.0

    @abstractmethod
    def log_probs(self, x: Tensor, output: Tensor) -> Tensor:
        """Return nats per dimension (..., d) for ``x`` (..., d) and ``output`` (..., d), which broadcast.

        The output is (..., 2 d) where there are two numbers per dimension.
        """

    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        """Return nats per example (...), the sum of :meth:`log_probs` over the dimensions."""
        return self.log_probs(x, output).sum(-1)

    @abstractmethod
    def mean(self, output: Tensor) -> Tensor:
        """Return the expected example (..., d)."""

    @abstractmethod
    def sample(self, output: Tensor, *, generator: Randomness = None) -> Tensor:
        """Draw an example (..., d), with the noise of the likelihood."""

    def start(self, variance: Tensor) -> None:
        """Begin at the variances (d,) of a linear model's noise. Most likelihoods have none to set."""


class NaturalForm(NamedTuple):
    """A likelihood that is linear in x, up to a term without z: log p(x | z) = <eta(z), x> - A(z) + h(x)."""

    eta: Tensor
    """(..., d), the natural parameter; also the part of the gradient in x that depends on z."""
    log_partition: Tensor
    """(...), the term A(z)."""


class LinearLikelihood(Likelihood):
    """A likelihood with sufficient statistic T(x) = x, which the pseudocoreset update can use in closed form.

    Gaussians whose variance does not depend on z belong here, and the Bernoulli.
    """

    @abstractmethod
    def natural_form(self, output: Tensor) -> NaturalForm:
        """Return eta and A for each decoder output."""


def _normal_log_probs(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    squared = (x - mean).square() / variance
    return -0.5 * (squared + torch.log(2 * torch.pi * variance))


class _Normal(LinearLikelihood):
    """What the Gaussian likelihoods share: a mean, clamped where the data have a range, and a variance."""

    def __init__(self, mean_range: Range | None) -> None:
        super().__init__()
        if mean_range is not None and not mean_range[0] < mean_range[1]:
            raise ValueError(f"mean_range must be (low, high) with low < high, not {mean_range}")
        self.mean_range = mean_range

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance, () or (d,)."""

    def mean(self, output: Tensor) -> Tensor:
        # ``clamp`` has the same values; on a CPU its backward pass takes ten times as long.
        return output if self.mean_range is None else F.hardtanh(output, *self.mean_range)

    def log_probs(self, x: Tensor, output: Tensor) -> Tensor:
        return _normal_log_probs(x, self.mean(output), self.variance)

    def sample(self, output: Tensor, *, generator: Randomness = None) -> Tensor:
        noise = standard_normal(output.shape, like=output, generator=generator)
        return self.mean(output) + noise * self.variance.sqrt()

    def natural_form(self, output: Tensor) -> NaturalForm:
        mean = self.mean(output)
        eta = mean * self.variance.reciprocal()
        return NaturalForm(eta, 0.5 * torch.linalg.vecdot(eta, mean))


class FixedGaussian(_Normal):
    """Gaussian whose variance is given once and for all.

    Parameters
    ----------
    variance
        One number for every dimension.
    mean_range
        Clamps the decoder's output, as the paper's authors do; ``None`` for data without a range.

    Examples
    --------
    >>> FixedGaussian(variance=1.0, mean_range=None).log_prob(torch.zeros(2), torch.zeros(2))
    tensor(-1.8379)
    """

    def __init__(self, variance: float, mean_range: Range | None = PIXEL_RANGE) -> None:
        super().__init__(mean_range)
        if not variance > 0:
            raise ValueError(f"variance must be positive, not {variance}")
        self.fixed_variance: float = float(variance)
        self.has_one_variance = True

    @property
    def variance(self) -> Tensor:
        # A scalar tensor takes on the device and dtype of what it meets.
        return torch.tensor(self.fixed_variance, dtype=torch.float64)


class SquaredError(FixedGaussian):
    r"""The paper's reconstruction term, :math:`-\lVert x - \mu \rVert^2`, which is not normalised.

    It is a Gaussian of variance 1/2 without its normaliser: ``FixedGaussian(0.5)`` is the same model, and its
    log-likelihood is smaller by :math:`\frac{d}{2} \log \pi`. Every 'NLL' of the paper is on this scale.

    Examples
    --------
    >>> x, output = torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.25])
    >>> SquaredError().log_prob(x, output)
    tensor(-0.0625)
    """

    value_kind = "unnormalised"
    log_normaliser = -0.5 * math.log(math.pi)

    def __init__(self, mean_range: Range | None = PIXEL_RANGE) -> None:
        super().__init__(variance=0.5, mean_range=mean_range)

    def log_probs(self, x: Tensor, output: Tensor) -> Tensor:
        return -(x - self.mean(output)).square()

    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        mean = self.mean(output)
        is_spare = mean is not output and mean.shape[-x.ndim :] == x.shape and mean.dtype == x.dtype
        if is_spare and not torch.is_grad_enabled():
            return -mean.sub_(x).square_().sum(-1)  # in the memory of the clamped mean, which no other code uses
        return -(x - mean).square().sum(-1)


class LearnedGaussian(_Normal):
    """Gaussian whose variance is learned with the network, but does not depend on z.

    Parameters
    ----------
    num_dimensions
        d for a variance of each dimension's own, ``None`` for one that all share.
    mean_range
        Clamps the decoder's output; ``None`` for data without a range.
    floor
        The smallest variance. Without one, a pixel that never changes would drive its own to zero and the
        density to infinity.

    Examples
    --------
    >>> LearnedGaussian(mean_range=None).variance
    tensor(1.0000, grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        num_dimensions: int | None = None,
        mean_range: Range | None = PIXEL_RANGE,
        floor: float = QUANTISATION_VARIANCE,
    ) -> None:
        super().__init__(mean_range)
        if not floor > 0:
            raise ValueError(f"floor must be positive, not {floor}")
        self.floor = floor
        self.has_one_variance = num_dimensions is None
        self.log_excess = nn.Parameter(torch.zeros(() if num_dimensions is None else num_dimensions))

    @torch.no_grad()
    def start(self, variance: Tensor) -> None:
        """Begin at variances (d,); where all dimensions share one, at their mean."""
        value = variance if self.log_excess.ndim else variance.mean()
        self.log_excess.copy_((value - self.floor).clamp_min(0.01 * self.floor).log())

    @property
    def variance(self) -> Tensor:
        return self.floor + self.log_excess.exp()


class ConditionalGaussian(Likelihood):
    r"""Gaussian whose variance is learned for each dimension and depends on z.

    .. math:: \sigma_i^2(z) = \text{floor} + \exp(l_i + h_i(z))

    The decoder's output is the mean, followed by h. At h = 0 this is :class:`LearnedGaussian`.

    Parameters
    ----------
    num_dimensions
        d, the numbers in one example.
    mean_range
        Clamps the mean; ``None`` for data without a range.
    floor
        The smallest variance.

    Examples
    --------
    >>> likelihood = ConditionalGaussian(2, mean_range=None)
    >>> narrow, wide = torch.tensor([0.0, 0.0, -4.0, -4.0]), torch.zeros(4)
    >>> bool(likelihood.log_prob(torch.zeros(2), narrow) > likelihood.log_prob(torch.zeros(2), wide))
    True
    """

    outputs_per_dimension = 2

    def __init__(
        self, num_dimensions: int, mean_range: Range | None = PIXEL_RANGE, floor: float = QUANTISATION_VARIANCE
    ) -> None:
        super().__init__()
        self.base = LearnedGaussian(num_dimensions, mean_range, floor)

    def start(self, variance: Tensor) -> None:
        """Begin at variances (d,), whatever z is."""
        self.base.start(variance)

    def _halves(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean (..., d) and h (..., d)."""
        size = len(self.base.log_excess)
        if output.shape[-1] != 2 * size:
            raise ValueError(
                f"{type(self).__name__} takes two numbers for each of {size}, a mean and h, and the decoder gives "
                f"{output.shape[-1]}; use dense_vae, or a decoder of your own"
            )
        return output[..., :size], output[..., size:]

    def _variance(self, output: Tensor) -> Tensor:
        change = self._halves(output)[1].clamp(-_LARGEST_CHANGE, _LARGEST_CHANGE)
        return self.base.floor + (self.base.log_excess + change).exp()

    def mean(self, output: Tensor) -> Tensor:
        return self.base.mean(self._halves(output)[0])

    def log_probs(self, x: Tensor, output: Tensor) -> Tensor:
        return _normal_log_probs(x, self.mean(output), self._variance(output))

    def sample(self, output: Tensor, *, generator: Randomness = None) -> Tensor:
        mean = self.mean(output)
        noise = standard_normal(mean.shape, like=mean, generator=generator)
        return mean + noise * self._variance(output).sqrt()


class RobustGaussian(ConditionalGaussian):
    r"""A :class:`ConditionalGaussian` for data of mean 0 and variance 1 with a few outliers.

    .. math:: p(x_i \mid z) = (1 - \epsilon_i) \, N(x_i; \mu_i(z), \sigma_i^2(z)) + \epsilon_i \, N(x_i; 0, 3^2)

    Where z says almost exactly what a number is, a single outlier costs a plain Gaussian thousands of nats. Here z says
    nothing about outliers. Their probabilities start at 0.001 and are learned. Examples are drawn without outliers.

    Parameters
    ----------
    num_dimensions
        d, the numbers in one example. Each should have mean 0 and variance 1 over the data.
    floor
        The smallest variance.

    Examples
    --------
    >>> output = torch.tensor([0.0, -20.0])  # the mean, and a variance next to nothing
    >>> ConditionalGaussian(1, None, floor=1e-4).log_prob(torch.ones(1), output)
    tensor(-3435.2922, grad_fn=<SumBackward1>)
    >>> RobustGaussian(1, floor=1e-4).log_prob(torch.ones(1), output)
    tensor(-8.9819, grad_fn=<SumBackward1>)
    """

    def __init__(self, num_dimensions: int, floor: float) -> None:
        super().__init__(num_dimensions, None, floor)
        self.log_odds = nn.Parameter(torch.full((num_dimensions,), math.log(_WRONG)))

    def log_probs(self, x: Tensor, output: Tensor) -> Tensor:
        wide = torch.tensor(_VARIANCE_OF_WRONG, dtype=x.dtype, device=x.device)
        outlier = F.logsigmoid(self.log_odds) + _normal_log_probs(x, torch.zeros_like(x), wide)
        return torch.logaddexp(F.logsigmoid(-self.log_odds) + super().log_probs(x, output), outlier)


class Bernoulli(LinearLikelihood):
    """Independent bits; the decoder's output is their logits.

    Normalised over bits. Grey values, as in pseudo-data, are scored by the same formula.

    Parameters
    ----------
    levels
        For pixels (k + 0.5) / levels, as a model sees bytes: level k counts as k / (levels - 1), so that black is the
        bit 0 and white the bit 1. ``None`` if x is in [0, 1] itself.

    Examples
    --------
    >>> Bernoulli().log_prob(torch.tensor([0.0, 1.0]), torch.tensor([-9.0, 9.0]))
    tensor(-0.0002)
    >>> Bernoulli(levels=256).log_prob(torch.tensor([0.5, 255.5]) / 256, torch.tensor([-9.0, 9.0]))
    tensor(-0.0002)
    """

    value_kind = "cross-entropy"
    log_normaliser = None  # for grey pixels it would depend on the output

    def __init__(self, levels: int | None = None) -> None:
        super().__init__()
        if levels is not None and levels < 2:
            raise ValueError(f"levels must be at least 2, not {levels}")
        self.levels = levels

    def log_probs(self, x: Tensor, output: Tensor) -> Tensor:
        # In this order black and white become exactly 0 and 1.
        bits = x if self.levels is None else (x * self.levels - 0.5) / (self.levels - 1)
        return bits * output - F.softplus(output)

    def mean(self, output: Tensor) -> Tensor:
        return self._as_data(output.sigmoid())

    def sample(self, output: Tensor, *, generator: Randomness = None) -> Tensor:
        threshold = uniform(output.shape, device=output.device, generator=generator)
        return self._as_data((threshold < output.double().sigmoid()).to(output.dtype))

    def natural_form(self, output: Tensor) -> NaturalForm:
        log_partition = F.softplus(output).sum(-1)
        if self.levels is None:
            return NaturalForm(output, log_partition)
        scale = 1 / (self.levels - 1)
        return NaturalForm(self.levels * scale * output, log_partition + 0.5 * scale * output.sum(-1))

    def _as_data(self, bits: Tensor) -> Tensor:
        return bits if self.levels is None else (bits * (self.levels - 1) + 0.5) / self.levels


class DiscretisedLogistic(Likelihood):
    """Logistic density of a learned scale, summed over the bin of each level: a probability of bytes.

    Level k of ``levels`` is the pixel (k + 0.5) / levels; the outermost bins reach to infinity. The scale is
    shared by all dimensions and does not depend on z.

    Parameters
    ----------
    levels
        The number of pixel levels, 256 for bytes.
    floor
        The smallest scale. A tenth of a bin already puts all but 1.3% of the mass into one bin.

    Examples
    --------
    >>> bytes_ = (torch.arange(256)[:, None] + 0.5) / 256
    >>> DiscretisedLogistic().log_prob(bytes_, torch.tensor([0.3])).exp().sum()
    tensor(1., grad_fn=<SumBackward0>)
    """

    value_kind = "probability"
    has_one_variance = True

    def __init__(self, levels: int = 256, floor: float = 0.1 / 256) -> None:
        super().__init__()
        if levels < 2 or not floor > 0:
            raise ValueError(f"levels must be at least 2 and floor positive, not {levels} and {floor}")
        self.levels = levels
        self.floor = floor
        self.log_normaliser = math.log(levels)  # the density of a byte plus uniform noise is constant in each bin
        self.log_excess = nn.Parameter(torch.tensor(math.log(0.1)))

    @torch.no_grad()
    def start(self, variance: Tensor) -> None:
        """Begin at the scale whose logistic density has the mean of these variances (d,)."""
        scale = variance.mean().sqrt() * math.sqrt(3) / math.pi
        self.log_excess.copy_((scale - self.floor).clamp_min(0.01 * self.floor).log())

    @property
    def scale(self) -> Tensor:
        """The scale of the logistic density, in units of the pixel range."""
        return self.floor + self.log_excess.exp()

    def log_probs(self, x: Tensor, output: Tensor) -> Tensor:
        scale = self.scale
        half_bin = 0.5 / self.levels
        lower = (x - half_bin - output) / scale
        upper = (x + half_bin - output) / scale
        # sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(a - b)), and b - a is the same for all bins.
        below_upper, above_lower = F.logsigmoid(upper), F.logsigmoid(-lower)
        inside = below_upper + above_lower + torch.log(-torch.expm1(-2 * half_bin / scale))
        # The centres of the outermost bins are half a bin from 0 and 1; the next ones are three halves away.
        return torch.where(x < 2 * half_bin, below_upper, torch.where(x > 1 - 2 * half_bin, above_lower, inside))

    def mean(self, output: Tensor) -> Tensor:
        """Return the location of the logistic density, inside the pixel range.

        It is the density's median too; clipping at the ends moves the true mean by at most about a scale.
        """
        half_bin = 0.5 / self.levels
        return output.clamp(half_bin, 1 - half_bin)

    def sample(self, output: Tensor, *, generator: Randomness = None) -> Tensor:
        position = uniform(output.shape, device=output.device, generator=generator)
        value = output + self.scale * torch.logit(position, eps=1e-12).to(output.dtype)
        level = torch.floor(value * self.levels).clamp(0, self.levels - 1)
        return (level + 0.5) / self.levels
