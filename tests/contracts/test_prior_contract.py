"""What every prior must do, checked for all of them by the same tests."""

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from bype.distributions import DiagonalNormal
from bype.mixtures import NormalMixture
from bype.priors import (
    ExemplarPrior,
    GaussianPrior,
    NearestExemplarPrior,
    Prior,
    TensorSource,
    TrainingBatch,
    VampPrior,
)
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.joint import JointPseudocoresetPrior
from bype.pseudocoreset.prior import PseudocoresetPrior
from bype.pseudocoreset.tracking import TrackedPseudocoresetPrior

LATENT_DIM = 2
EXAMPLES = torch.rand(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Encoder(nn.Module):
    """A small smooth encoder with different variances everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(3, LATENT_DIM)
        self.log_variance = nn.Linear(3, LATENT_DIM)

    def forward(self, x: Tensor) -> DiagonalNormal:
        return DiagonalNormal(2 * self.mean(x), self.log_variance(x) - 1)


def pseudocoreset_prior() -> Prior:
    weights = torch.rand(8, generator=torch.Generator().manual_seed(1)).index_fill(0, torch.tensor([2, 5]), 0.0)
    return PseudocoresetPrior(Pseudocoreset(EXAMPLES[:8], total=30, weights=30 * weights / weights.sum()))


def tracked_prior(num_scored: int | None = None) -> Prior:
    return TrackedPseudocoresetPrior(pseudocoreset_prior().pseudocoreset, LATENT_DIM, num_live=3, num_scored=num_scored)


PRIORS = {
    "Gaussian": lambda: GaussianPrior(LATENT_DIM),
    "VampPrior": lambda: VampPrior(EXAMPLES[:8]),
    "Exemplar": lambda: ExemplarPrior(TensorSource(EXAMPLES), num_exemplars=10),
    "Exemplar, nearest": lambda: NearestExemplarPrior(TensorSource(EXAMPLES), 20, LATENT_DIM, num_neighbours=3),
    "pseudocoreset": pseudocoreset_prior,
    "pseudocoreset, joint": lambda: JointPseudocoresetPrior(pseudocoreset_prior().pseudocoreset),
    "pseudocoreset, tracked": tracked_prior,
    "pseudocoreset, tracked in parts": lambda: tracked_prior(num_scored=2),
}


@pytest.fixture(params=PRIORS, ids=list(PRIORS))
def prior(request) -> Prior:
    torch.manual_seed(4)
    return PRIORS[request.param]().double()


@pytest.fixture
def encode() -> Encoder:
    torch.manual_seed(5)
    return Encoder().double()


def training_batch(encode: Encoder, seed: int = 0) -> TrainingBatch:
    indices = torch.tensor([3, 11, 29])
    return TrainingBatch(EXAMPLES[indices], indices, encode, torch.Generator().manual_seed(seed))


def test_samples_fit_the_density_and_its_mass_is_one(prior, encode):
    """A grid of cells: their mass by quadrature of ``log_prob`` alone, their counts by ``sample`` alone."""
    low, high, num_cells, points_per_cell = -8.0, 8.0, 40, 8
    width = (high - low) / num_cells
    with torch.no_grad():
        distribution = prior(encode)
        fine = low + (torch.arange(num_cells * points_per_cell, dtype=torch.float64) + 0.5) * width / points_per_cell
        grid = torch.cartesian_prod(fine, fine)
        density = distribution.log_prob(grid).exp().reshape(num_cells, points_per_cell, num_cells, points_per_cell)
        mass = density.mean((1, 3)) * width**2
        drawn = distribution.sample((20_000,), generator=torch.Generator().manual_seed(6))
    assert mass.sum().item() == pytest.approx(1, abs=1e-5)  # what lies outside the grid

    cells = ((drawn - low) / width).floor().long()
    counts = torch.zeros(num_cells, num_cells, dtype=torch.float64)
    counts.index_put_((cells[:, 0], cells[:, 1]), torch.ones(len(cells), dtype=torch.float64), accumulate=True)
    expected = mass / mass.sum() * len(drawn)
    frequent = expected >= 5  # where the chi-square approximation holds; the rest is one cell more
    observed = [*counts[frequent].tolist(), counts[~frequent].sum().item()]
    predicted = [*expected[frequent].tolist(), expected[~frequent].sum().item()]
    assert stats.chisquare(observed, predicted).pvalue > 1e-3


def test_log_prob_keeps_leading_dimensions(prior, encode):
    z = torch.randn(4, 3, LATENT_DIM, dtype=torch.float64)
    for distribution in (prior(encode), prior(encode, training_batch(encode))):
        log_prob = distribution.log_prob(z)
        assert log_prob.shape == (4, 3)
        torch.testing.assert_close(log_prob[2], distribution.log_prob(z[2]))
    assert prior(encode).sample((5, 2)).shape == (5, 2, LATENT_DIM)


def test_the_same_generator_gives_the_same_distribution_and_samples(prior, encode):
    z = torch.randn(3, LATENT_DIM, dtype=torch.float64)
    first, second = (prior(encode, training_batch(encode, seed=9)).log_prob(z) for _ in range(2))
    assert torch.equal(first, second)
    one, two = (prior(encode).sample((7,), generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(one, two)


def test_training_gradients_reach_the_encoder_and_the_priors_own_parameters(prior, encode):
    z = torch.randn(3, LATENT_DIM, dtype=torch.float64, requires_grad=True)
    prior(encode, training_batch(encode)).log_prob(z).sum().backward()
    assert z.grad.isfinite().all()
    own = list(prior.parameters())
    assert bool(own) == (not isinstance(prior, GaussianPrior))
    for parameter in [*own, encode.mean.weight] if own else []:
        assert parameter.grad.isfinite().all()
        assert (parameter.grad != 0).any()


def test_all_state_survives_saving_into_another_object(request, prior, encode):
    prior(encode, training_batch(encode))  # fills caches
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.mul_(0.9)
        if isinstance(prior, PseudocoresetPrior):
            prior.pseudocoreset.assign(0.9 * prior.pseudocoreset.points, 30 * torch.rand(8))
    torch.manual_seed(17)
    other = PRIORS[request.node.callspec.params["prior"]]().double()
    other.load_state_dict(prior.state_dict())
    for (name, saved), (other_name, loaded) in zip(
        [*prior.named_buffers(), *prior.named_parameters()],
        [*other.named_buffers(), *other.named_parameters()],
        strict=True,
    ):
        assert name == other_name
        assert torch.equal(saved, loaded), name
    z = torch.randn(3, LATENT_DIM, dtype=torch.float64)
    assert torch.equal(prior(encode).log_prob(z), other(encode).log_prob(z))
    ours, theirs = (p(encode, training_batch(encode)).log_prob(z) for p in (prior, other))
    assert torch.equal(ours, theirs)


def test_the_batch_is_encoded_once_and_as_if_it_were_alone(prior, encode):
    seen = []

    def spy(x: Tensor) -> DiagonalNormal:
        seen.append(x)
        return encode(x)

    indices = torch.tensor([3, 11, 29])
    marked = EXAMPLES[indices] + 1e-6  # unlike any exemplar or point
    batch = TrainingBatch(marked, indices, spy, torch.Generator().manual_seed(0))
    prior(spy, batch)
    expected = encode(marked)
    torch.testing.assert_close(batch.posterior.mean, expected.mean)
    torch.testing.assert_close(batch.posterior.log_variance, expected.log_variance)
    assert batch.posterior.mean.requires_grad
    times = [(torch.cat(seen) == row).all(1).sum().item() for row in marked]
    assert times == [1, 1, 1]


def test_components_around_its_own_points_make_up_the_prior(prior, encode):
    own, around = prior.own_points(), prior.around(torch.zeros(5, LATENT_DIM, dtype=torch.float64))
    assert (own is not None) == isinstance(prior, VampPrior | PseudocoresetPrior | JointPseudocoresetPrior)
    assert (around is None) == isinstance(prior, VampPrior | GaussianPrior)
    if around is not None:
        assert torch.equal(around.mean, torch.zeros(5, LATENT_DIM, dtype=torch.float64))
        assert torch.equal(around.log_variance, prior.log_variance.expand(5, LATENT_DIM))
    if own is None:
        return
    assert own.points.shape == (8, 3)
    assert own.probabilities.dtype == torch.float64
    assert own.probabilities.sum().item() == pytest.approx(1, abs=1e-12)
    assert not own.points.requires_grad
    assert not own.probabilities.requires_grad
    posterior = encode(own.points)
    components = posterior if around is None else prior.around(posterior.mean)
    z = torch.randn(6, LATENT_DIM, dtype=torch.float64)
    mixture = NormalMixture(components.mean, components.log_variance, own.probabilities.log())
    torch.testing.assert_close(prior(encode).log_prob(z), mixture.log_prob(z))
