"""The prior of ByPE-VAE: a mixture around the points of a pseudocoreset."""

import torch
from torch import Tensor

from bype.distributions import DiagonalNormal, Distribution
from bype.mixtures import NormalMixture
from bype.models.base import LatentModel
from bype.priors.base import (
    Encode,
    Prior,
    PriorPoints,
    TrainingBatch,
    encode_points,
    fit_log_variance,
    shared_log_variance,
)
from bype.pseudocoreset.coreset import Pseudocoreset


class PseudocoresetPrior(Prior):
    r"""The prior of ByPE-VAE: a weighted mixture around the latent means of a pseudocoreset (Eq. 9 to 12).

    .. math:: p(z \mid U, w) = \sum_m \frac{w_m}{N} N(z \mid \mu(u_m), \sigma^2 I)

    One learned variance is shared by all components. The points and weights are no parameters: a
    :class:`~bype.pseudocoreset.rule.Rule` moves them.

    References
    ----------
    Q. Ai, L. He, S. Liu and Z. Xu, ByPE-VAE: Bayesian Pseudocoresets Exemplar VAE, NeurIPS 2021.

    Examples
    --------
    >>> import torch
    >>> from bype.models import mlp_vae
    >>> prior = PseudocoresetPrior(Pseudocoreset(torch.rand(4, 1, 28, 28), total=1000))
    >>> model = mlp_vae((1, 28, 28), prior)
    >>> model.prior_distribution().sample((5,)).shape
    torch.Size([5, 40])
    """

    def __init__(self, pseudocoreset: Pseudocoreset) -> None:
        super().__init__()
        self.pseudocoreset = pseudocoreset
        self.log_variance = shared_log_variance()

    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> NormalMixture:
        means = encode_points(encode, self.pseudocoreset.points, batch).mean
        return NormalMixture(means, self.log_variance, self.pseudocoreset.probabilities.log())

    @torch.no_grad()
    def start(self, encode: Encode, latents: Tensor, center: Tensor, rows: Tensor | None = None) -> None:
        """Bring the points towards the mean example until the mixture is no worse than one normal distribution.

        Few points in many dimensions are far from most examples, and a mixture around them would then be the worse
        prior. They stop at a tenth of their distance: no rule could part points that coincide. Points with labels come
        to the mean point of their class instead, so that classes stay apart.
        """
        points, labels = self.pseudocoreset.points.clone(), self.pseudocoreset.labels
        centers = center.expand_as(points) if labels is None else _class_means(points, labels)

        def score(places: Tensor) -> float:
            self.pseudocoreset.move(slice(None), places)
            return fit_log_variance(self(encode), self.log_variance, latents)

        lowest = score(center.expand_as(points))
        for tenths in range(10, 0, -1):
            if score(centers + tenths / 10 * (points - centers)) >= lowest:
                return

    def own_points(self) -> PriorPoints:
        return PriorPoints(self.pseudocoreset.points, self.pseudocoreset.probabilities, self.pseudocoreset.labels)

    def given_label(self, distribution: Distribution, label: int) -> Distribution:
        labels = self.pseudocoreset.labels
        if labels is None or not isinstance(distribution, NormalMixture):
            return super().given_label(distribution, label)
        if not (labels == label).any():
            raise ValueError(f"no pseudo-point has the label {label}; there are {sorted(set(labels.tolist()))}")
        return distribution.of_components((labels == label).nonzero()[:, 0])

    def around(self, means: Tensor) -> DiagonalNormal:
        return DiagonalNormal(means, self.log_variance.expand_as(means))


def _class_means(points: Tensor, labels: Tensor) -> Tensor:
    """Return for each point (M, *data_shape) the mean point of its class."""
    flat, number = points.flatten(1), labels.long()
    num_classes = int(number.max()) + 1
    sums = flat.new_zeros(num_classes, flat.shape[1]).index_add_(0, number, flat)
    counts = torch.bincount(number, minlength=num_classes).to(flat)
    return (sums[number] / counts[number, None]).view_as(points)


def pseudocoreset_prior_of(model: LatentModel) -> PseudocoresetPrior:
    """Return a model's prior, or say why a rule cannot update its pseudocoreset as a whole."""
    if not isinstance(model.prior, PseudocoresetPrior):
        raise ValueError(f"{type(model.prior).__name__} has no pseudocoreset to update; use PseudocoresetPrior")
    if model.prior.pseudocoreset.labels is not None:
        raise ValueError("points with labels need the rule Tracking; this rule would let all examples move all points")
    return model.prior
