"""The aggregate posterior: how much of the KL term a better prior could save."""

import torch
from torch import Tensor

from bype.distributions import DiagonalNormal, Distribution
from bype.evaluation.records import ActiveUnits, Estimate, PriorGap
from bype.mixtures import LeaveOneOutMixture
from bype.randomness import Randomness

ACTIVE_THRESHOLD = 0.01


def active_units(means: Tensor) -> ActiveUnits:
    """Count the latents whose posterior mean (N, D) varies over the examples.

    References
    ----------
    Y. Burda, R. Grosse and R. Salakhutdinov, Importance Weighted Autoencoders, ICLR 2016.
    """
    variance = means.double().var(0, correction=0)
    return ActiveUnits(int((variance > ACTIVE_THRESHOLD).sum()), means.shape[1], ACTIVE_THRESHOLD)


@torch.no_grad()
def prior_gap(
    posteriors: DiagonalNormal,
    references: DiagonalNormal,
    own_reference: Tensor,
    prior: Distribution,
    *,
    generator: Randomness = None,
) -> PriorGap:
    r"""Split the KL term: :math:`E_x KL(q(z|x) \| p(z)) = I(x; z) + KL(q(z) \| p(z))`.

    The last term is what a better prior could gain with the same encoder. The aggregate q(z) is a mean over infinitely
    many examples; here it is a mean over the references. If the references leave out the example that z was drawn for,
    log q(z) is too small on average (Jensen's inequality), and so is the gap; if they include it, both are too large.

    Parameters
    ----------
    posteriors
        q(z | x) of the examples, (B, D).
    references
        q(z | x) of the references, examples that stand for all, (R, D).
    own_reference
        (B,): which reference each example is; -1 if it is not a reference. It is then added for the largest gap.
    prior
        p(z).
    generator
        Random numbers for one draw of z for each example.
    """
    z, log_posterior = posteriors.rsample_and_score(generator=generator)
    log_prior = prior.log_prob(z).double()
    # Expanded squares lose digits where posteriors are narrow and far from the origin.
    z, log_posterior = z.double(), log_posterior.double()
    references = DiagonalNormal(references.mean.double(), references.log_variance.double())
    count = len(references.mean)
    ids = torch.arange(count, device=z.device)
    equal = z.new_zeros(count)
    without = LeaveOneOutMixture(references.mean, references.log_variance, equal, ids, own_reference).log_prob(z)
    others = (count - (own_reference >= 0).long()).to(without.dtype)  # the references that are not the example itself
    with_own = torch.logaddexp(without + others.log(), log_posterior) - torch.log(others + 1)
    return PriorGap(
        num_images=len(z),
        num_references=count,
        kl=estimate(log_posterior - log_prior),
        smallest_gap=estimate(without - log_prior),
        largest_gap=estimate(with_own - log_prior),
    )


def estimate(values: Tensor) -> Estimate:
    """Return the mean of values over examples, and its standard error."""
    values = values.double()
    error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else 0.0
    return Estimate(float(values.mean()), error)
