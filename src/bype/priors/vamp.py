"""The VampPrior: a mixture of posteriors at pseudo-inputs that are learned by backpropagation."""

import math

import torch
from torch import Tensor, nn

from bype.distributions import Randomness, standard_normal
from bype.mixtures import NormalMixture
from bype.priors.base import Encode, Prior, TrainingBatch, encoded_beside, few_points, into_range


class VampPrior(Prior):
    r"""Equal mixture of the posteriors of learned pseudo-inputs, :math:`p(z) = \frac1M \sum_m q(z \mid u_m)`.

    Parameters
    ----------
    pseudo_inputs
        (M, *data_shape), where they start: see :meth:`start_at_examples` and :meth:`start_at_random`.
    data_range
        Pseudo-inputs are clamped into it in the forward pass, which leaves no gradient outside; ``None`` does not.

    References
    ----------
    J. Tomczak and M. Welling, VAE with a VampPrior, AISTATS 2018.
    """

    def __init__(self, pseudo_inputs: Tensor, data_range: tuple[float, float] | None = (0.0, 1.0)) -> None:
        super().__init__()
        self.pseudo_inputs = nn.Parameter(pseudo_inputs.clone())
        self.data_range = data_range

    @staticmethod
    def start_at_examples(examples: Tensor, *, generator: Randomness = None) -> Tensor:
        """Return examples (M, *data_shape) plus N(0, 0.01^2): what the authors' program means to start at."""
        return examples + 0.01 * standard_normal(examples.shape, like=examples, generator=generator)

    @staticmethod
    def start_at_random(size: int, data_shape: tuple[int, ...], *, generator: Randomness = None) -> Tensor:
        """Return N(0, 2 / M): what their program really starts at, since a later initialisation overwrites it."""
        return math.sqrt(2 / size) * standard_normal((size, *data_shape), like=torch.empty(0), generator=generator)

    def inputs(self) -> Tensor:
        """Return the pseudo-inputs as the encoder sees them."""
        return into_range(self.pseudo_inputs, self.data_range)

    def points_beside(self) -> Tensor | None:
        return few_points(self.inputs())

    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> NormalMixture:
        posterior = encoded_beside(encode, self.inputs(), batch)
        return NormalMixture(posterior.mean, posterior.log_variance, posterior.mean.new_zeros(len(self.pseudo_inputs)))
