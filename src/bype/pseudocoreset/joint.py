"""A pseudocoreset whose points and weights are parameters: backpropagation is the rule that moves them."""

import torch
from torch import Tensor, nn

from bype.distributions import DiagonalNormal
from bype.mixtures import NormalMixture
from bype.priors.base import (
    Encode,
    Prior,
    PriorPoints,
    TrainingBatch,
    encode_points,
    fit_log_variance,
    into_range,
    shared_log_variance,
)
from bype.pseudocoreset.coreset import Pseudocoreset


class JointPseudocoresetPrior(Prior):
    """The mixture of ByPE-VAE with points and weights that are parameters, trained jointly with the network.

    It is a weighted VampPrior with one variance shared by all components, and the control that a rule has to beat.
    Points are clamped into the data's range in the forward pass, which leaves no gradient outside. Nothing is left
    for a rule to do: train it with :class:`~bype.pseudocoreset.rule.Rule`, which moves nothing.

    Parameters
    ----------
    start
        Where points and weights start.

    Examples
    --------
    >>> prior = JointPseudocoresetPrior(Pseudocoreset(torch.rand(4, 1, 28, 28), total=1000))
    >>> [name for name, _ in prior.named_parameters()]
    ['points', 'logits', 'log_variance']
    """

    def __init__(self, start: Pseudocoreset) -> None:
        super().__init__()
        if start.labels is not None:
            raise ValueError(
                "points with labels need the rule Tracking; backpropagation would let all examples move all points"
            )
        self.data_range = start.data_range
        self.points = nn.Parameter(start.points.clone())
        self.logits = nn.Parameter(start.probabilities.log().to(start.points.dtype))
        self.log_variance = shared_log_variance()

    @torch.no_grad()
    def start(self, encode: Encode, latents: Tensor, center: Tensor, rows: Tensor | None = None) -> None:
        fit_log_variance(self(encode), self.log_variance, latents)

    def own_points(self) -> PriorPoints:
        return PriorPoints(self._points().detach(), self.logits.detach().double().softmax(0))

    def around(self, means: Tensor) -> DiagonalNormal:
        return DiagonalNormal(means, self.log_variance.expand_as(means))

    def _points(self) -> Tensor:
        return into_range(self.points, self.data_range)

    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> NormalMixture:
        means = encode_points(encode, self._points(), batch).mean
        return NormalMixture(means, self.log_variance, self.logits)
