"""The VampPrior: a mixture of posteriors at pseudo-inputs that are learned by backpropagation."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bype.mixtures import NormalMixture
from bype.priors.base import Encode, Prior, PriorPoints, TrainingBatch, encode_points
from bype.randomness import Randomness, standard_normal


class VampPrior(Prior):
    r"""Equal mixture of the posteriors of learned pseudo-inputs, :math:`p(z) = \frac1M \sum_m q(z \mid u_m)`.

    Parameters
    ----------
    pseudo_inputs
        (M, *data_shape), where they start: see :meth:`start_at_examples` and :meth:`start_at_random`.
    data_range
        Pseudo-inputs are clamped into it in the forward pass, which leaves no gradient outside; ``None``: no clamp.

    References
    ----------
    J. Tomczak and M. Welling, VAE with a VampPrior, AISTATS 2018.

    Examples
    --------
    >>> from bype.models import mlp_vae
    >>> prior = VampPrior(VampPrior.start_at_random(5, (1, 28, 28)))
    >>> mlp_vae((1, 28, 28), prior).prior_distribution().log_prob(torch.zeros(3, 40)).shape
    torch.Size([3])
    """

    def __init__(self, pseudo_inputs: Tensor, data_range: tuple[float, float] | None = (0.0, 1.0)) -> None:
        super().__init__()
        # Pseudo-inputs of images may begin outside, as those of the authors' program do.
        if data_range is not None and pseudo_inputs.ndim == 2:
            low, high = data_range
            if not (low <= pseudo_inputs.min() and pseudo_inputs.max() <= high):
                raise ValueError(f"pseudo-inputs lie outside {data_range}; for features give data_range=None")
        self.pseudo_inputs = nn.Parameter(pseudo_inputs.clone())
        self.data_range = data_range

    @staticmethod
    def start_at_examples(examples: Tensor, *, generator: Randomness = None) -> Tensor:
        """Return examples (M, *data_shape) plus N(0, 0.01^2): what the authors' program means to start at."""
        return examples + 0.01 * standard_normal(examples.shape, like=examples, generator=generator)

    @staticmethod
    def start_at_random(size: int, data_shape: tuple[int, ...], *, generator: Randomness = None) -> Tensor:
        """Return N(0, 2 / M). The authors' program starts at this: a later initialisation overwrites its examples."""
        return math.sqrt(2 / size) * standard_normal((size, *data_shape), like=torch.empty(0), generator=generator)

    def inputs(self) -> Tensor:
        """Return the pseudo-inputs as the encoder sees them."""
        # ``clamp`` has the same values; on a CPU its backward pass takes ten times as long.
        return self.pseudo_inputs if self.data_range is None else F.hardtanh(self.pseudo_inputs, *self.data_range)

    def own_points(self) -> PriorPoints:
        count = len(self.pseudo_inputs)
        return PriorPoints(self.inputs().detach(), torch.full((count,), 1 / count, dtype=torch.float64))

    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> NormalMixture:
        posterior = encode_points(encode, self.inputs(), batch)
        return NormalMixture(posterior.mean, posterior.log_variance, posterior.mean.new_zeros(len(self.pseudo_inputs)))
