"""The Exemplar prior: a mixture around the training examples themselves."""

import torch
from torch import Tensor

from bype.distributions import DiagonalNormal, Distribution
from bype.mixtures import LeaveOneOutMixture, NormalMixture
from bype.priors.base import (
    Encode,
    ExampleSource,
    Prior,
    SelectedRows,
    TrainingBatch,
    draw_rows,
    encode_source,
    fit_log_variance,
    shared_log_variance,
)


class ExemplarPrior(Prior):
    r"""Equal mixture around the latent means of training examples, with one learned variance (Eq. 2).

    .. math:: p(z) = \frac1N \sum_n N(z \mid \mu(x_n), \sigma^2 I)

    In a training step a fresh uniform subset stands for all, drawn with replacement, and each example of the
    batch leaves itself out. To evaluate and sample, all training examples count.

    Parameters
    ----------
    source
        The training examples; they are read by row, never held.
    num_exemplars
        The size of the subset drawn in each training step.

    References
    ----------
    S. Norouzi, D. Fleet and M. Norouzi, Exemplar VAE, NeurIPS 2020.

    Examples
    --------
    >>> from bype.models import mlp_vae
    >>> from bype.objective import ELBO
    >>> from bype.priors import TensorSource
    >>> images = torch.rand(50, 1, 28, 28)
    >>> model = mlp_vae((1, 28, 28), ExemplarPrior(TensorSource(images), num_exemplars=20))
    >>> rows = torch.arange(10)  # in training each example leaves itself out
    >>> ELBO(model)(images[rows], indices=rows).elbo.shape
    torch.Size([10])
    """

    needs_training_batch = True

    def __init__(self, source: ExampleSource, num_exemplars: int) -> None:
        super().__init__()
        if len(source) < 2 or num_exemplars < 2:
            raise ValueError(
                f"an exemplar prior needs at least two examples and two exemplars, since each one leaves itself out, "
                f"not {len(source)} and {num_exemplars}"
            )
        self.source = source
        self.num_exemplars = num_exemplars
        self.log_variance = shared_log_variance()

    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> NormalMixture:
        device = self.log_variance.device
        if batch is None:
            means = encode_source(encode, self.source, device).mean
            return NormalMixture(means, self.log_variance, means.new_zeros(len(means)))
        ids = self._draw_subset(batch)
        means = encode_source(encode, SelectedRows(self.source, ids), device).mean
        return self._leave_one_out(means, ids, batch)

    def start(self, encode: Encode, latents: Tensor, center: Tensor, rows: Tensor | None = None) -> None:
        mixture = self(encode)
        if rows is not None:  # half of them are scored, and are no components: no example may find itself
            is_other = torch.ones(len(mixture.means), dtype=torch.bool)
            is_other[rows[::2]] = False
            mixture, latents = mixture.of_components(is_other.nonzero()[:, 0]), latents[::2]
        fit_log_variance(mixture, self.log_variance, latents)

    def leave_out(self, distribution: Distribution, rows: Tensor) -> Distribution:
        if not isinstance(distribution, NormalMixture):
            raise ValueError(f"this is not a distribution of {type(self).__name__}")
        ids = torch.arange(len(distribution.means), device=distribution.means.device)
        parts = distribution.means, distribution.log_variance, distribution.log_weights
        return LeaveOneOutMixture(*parts, ids, rows.to(ids.device))

    def around(self, means: Tensor) -> DiagonalNormal:
        return DiagonalNormal(means, self.log_variance.expand_as(means))

    def _draw_subset(self, batch: TrainingBatch) -> Tensor:
        """Draw exemplars with replacement, at least two different ones, so that leaving one out leaves another."""
        while True:
            ids = draw_rows(len(self.source), self.num_exemplars, replace=True, generator=batch.generator)
            if (ids != ids[0]).any():
                return ids

    def _leave_one_out(self, means: Tensor, ids: Tensor, batch: TrainingBatch) -> LeaveOneOutMixture:
        device = means.device
        equal = means.new_zeros(len(means))
        return LeaveOneOutMixture(means, self.log_variance, equal, ids.to(device), batch.indices.to(device))


class NearestExemplarPrior(ExemplarPrior):
    """The Exemplar prior with a cache of latent means, to train with many exemplars.

    A training step draws a subset of exemplars. For each example of the batch it takes the ``num_neighbours`` of them
    that are nearest by cached mean, without the example itself. The union of these is encoded, with gradient, and the
    cache keeps their new means. Every example is scored against the whole union, with equal weights. The value is not
    that of the exact prior: it lacks the mass of far exemplars and the size of the subset. So use it to train, as the
    authors of the Exemplar VAE did. Evaluation is exact.

    Parameters
    ----------
    source, num_exemplars
        As for :class:`ExemplarPrior`.
    latent_dim
        D; the cache takes N x D numbers.
    num_neighbours
        How many exemplars each example of the batch brings.

    Examples
    --------
    >>> from bype.priors import TensorSource
    >>> source = TensorSource(torch.rand(50, 1, 28, 28))
    >>> prior = NearestExemplarPrior(source, num_exemplars=40, latent_dim=8, num_neighbours=5)
    >>> prior.cache.shape
    torch.Size([50, 8])
    """

    cache: Tensor
    is_cached: Tensor

    def __init__(self, source: ExampleSource, num_exemplars: int, latent_dim: int, num_neighbours: int = 10) -> None:
        super().__init__(source, num_exemplars)
        if num_neighbours < 1:
            raise ValueError(f"num_neighbours must be at least 1, not {num_neighbours}")
        self.num_neighbours = num_neighbours
        self.register_buffer("cache", torch.zeros(len(source), latent_dim))
        self.register_buffer("is_cached", torch.tensor(False))

    @torch.no_grad()
    def refresh(self, encode: Encode) -> None:
        """Encode every example into the cache. The first training step does so by itself."""
        self.cache.copy_(encode_source(encode, self.source, self.cache.device).mean)
        self.is_cached.fill_(True)

    def forward(self, encode: Encode, batch: TrainingBatch | None = None) -> NormalMixture:
        if batch is None:
            return super().forward(encode)
        if not self.is_cached:
            self.refresh(encode)
            batch.group.copy_first_([self.cache])
        drawn = torch.unique(self._draw_subset(batch))
        ids = drawn[self._nearest(drawn, batch)]
        means = encode_source(encode, SelectedRows(self.source, ids), self.cache.device).mean
        kept = means.detach().clone()
        batch.group.copy_first_([kept])
        self.cache[ids] = kept
        return self._leave_one_out(means, ids, batch)

    @torch.no_grad()
    def _nearest(self, candidates: Tensor, batch: TrainingBatch) -> Tensor:
        """Return the positions in ``candidates`` that are among the nearest to some example of the batch."""
        device = self.cache.device
        indices, means = batch.whole_indices(), batch.whole_means()
        distance_BC = torch.cdist(means.to(device), self.cache[candidates])
        distance_BC[indices[:, None].to(device) == candidates.to(device)] = torch.inf
        count = min(self.num_neighbours, len(candidates))
        is_near = torch.zeros(len(candidates), dtype=torch.bool)
        is_near[distance_BC.topk(count, largest=False).indices.flatten().cpu()] = True
        batch.group.copy_first_([is_near])
        return is_near.nonzero()[:, 0]
