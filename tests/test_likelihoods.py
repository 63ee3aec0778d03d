"""One table of likelihoods drives the checks: mass, samples against density, natural form, bits."""

import math

import pytest
import torch
from scipy import stats

from bype.likelihoods import (
    QUANTISATION_VARIANCE,
    Bernoulli,
    ConditionalGaussian,
    DiscretisedLogistic,
    FixedGaussian,
    LearnedGaussian,
    Likelihood,
    LinearLikelihood,
    RobustGaussian,
    SquaredError,
)

F64 = torch.float64
OUTPUT = torch.tensor([0.3], dtype=F64)
REAL_LINE = torch.linspace(-12, 12, 200_001, dtype=F64)[:, None]
BYTES = (torch.arange(256, dtype=F64)[:, None] + 0.5) / 256
BITS = torch.tensor([[0.0], [1.0]], dtype=F64)


def learned(cls: type[Likelihood], value: float, **arguments: object) -> Likelihood:
    likelihood = cls(**arguments)
    with torch.no_grad():
        likelihood.log_excess.fill_(value)
    return likelihood


# likelihood, the points of its support, the measure of each point
NORMALISED = {
    "fixed Gaussian": (FixedGaussian(0.7), REAL_LINE, 24 / 200_000),
    "fixed Gaussian, no range": (FixedGaussian(0.7, mean_range=None), REAL_LINE, 24 / 200_000),
    "learned Gaussian": (learned(LearnedGaussian, -1.0), REAL_LINE, 24 / 200_000),
    "Bernoulli": (Bernoulli(), BITS, 1.0),
    "Bernoulli of bytes": (Bernoulli(levels=256), (255 * BITS + 0.5) / 256, 1.0),
    "discretised logistic": (DiscretisedLogistic(), BYTES, 1.0),
    "discretised logistic, sharp": (learned(DiscretisedLogistic, -20.0), BYTES, 1.0),
    "discretised logistic, flat": (learned(DiscretisedLogistic, 3.0), BYTES, 1.0),
}


@pytest.fixture(params=NORMALISED, ids=list(NORMALISED))
def normalised(request):
    likelihood, support, measure = NORMALISED[request.param]
    return likelihood.double(), support, measure


@pytest.mark.parametrize("output", [-0.4, 0.001, 0.3, 1.0, 1.7])
def test_mass_is_one(normalised, output):
    likelihood, support, measure = normalised
    assert likelihood.value_kind != "unnormalised"
    log_prob = likelihood.log_prob(support, torch.tensor([output], dtype=F64))
    # Trapezia over 24 standard deviations err far below 1e-9; sums over finite sets only by rounding.
    assert abs((log_prob.exp().sum() * measure).item() - 1) < 1e-9


def test_samples_fit_the_density(normalised):
    likelihood, support, measure = normalised
    generator = torch.Generator().manual_seed(3)
    drawn = likelihood.sample(OUTPUT.expand(20_000, 1), generator=generator).detach().squeeze(1)
    mass = likelihood.log_prob(support, OUTPUT).detach().exp() * measure
    edges = torch.searchsorted(mass.cumsum(0), torch.linspace(0.05, 0.95, 19, dtype=F64)).unique()
    bins = torch.bucketize(drawn, support.squeeze(1)[edges] + 1e-9)
    expected = torch.zeros(len(edges) + 1, dtype=F64)
    expected.index_add_(0, torch.bucketize(support.squeeze(1), support.squeeze(1)[edges] + 1e-9), mass)
    counts = torch.bincount(bins, minlength=len(expected)).double()
    likely = expected > 1e-9
    assert counts[~likely].sum() == 0
    if likely.sum() > 1:
        assert stats.chisquare(counts[likely], expected[likely] / expected.sum() * 20_000).pvalue > 1e-3


LINEAR = {
    "squared error": SquaredError(),
    "fixed Gaussian": FixedGaussian(0.7),
    "learned Gaussian": learned(LearnedGaussian, -1.0),
    "learned Gaussian, each dimension": learned(LearnedGaussian, -1.0, num_dimensions=5),
    "Bernoulli": Bernoulli(),
    "Bernoulli of bytes": Bernoulli(levels=256),
}


@pytest.mark.parametrize("likelihood", LINEAR.values(), ids=LINEAR.keys())
def test_natural_form_differs_from_log_prob_by_a_function_of_x_alone(likelihood: LinearLikelihood):
    likelihood = likelihood.double()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 5, dtype=F64, generator=generator)
    output = 1.5 * torch.randn(6, 5, dtype=F64, generator=generator)
    form = likelihood.natural_form(output)
    linear = x @ form.eta.T - form.log_partition
    rest = likelihood.log_prob(x[:, None], output[None]) - linear
    torch.testing.assert_close(rest, rest[:, :1].expand_as(rest), rtol=0, atol=1e-12)


SEVERAL = [
    SquaredError(),
    FixedGaussian(0.3),
    LearnedGaussian(3),
    ConditionalGaussian(3),
    RobustGaussian(3, floor=1e-3),
    Bernoulli(),
    Bernoulli(levels=256),
    DiscretisedLogistic(),
]


@pytest.mark.parametrize("likelihood", SEVERAL, ids=lambda likelihood: type(likelihood).__name__)
@torch.no_grad()
def test_nats_of_dimensions_add_up_and_each_depends_on_its_own_number_alone(likelihood):
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(4, 3, generator=generator)
    output = torch.rand(5, 4, 3 * likelihood.outputs_per_dimension, generator=generator)
    whole = likelihood.log_probs(x, output)
    assert whole.shape == (5, 4, 3)
    torch.testing.assert_close(whole.sum(-1), likelihood.log_prob(x, output))
    for place in range(3):
        changed = x.clone()
        changed[:, place] += 0.2
        is_other = likelihood.log_probs(changed, output) != whole
        assert is_other[..., place].all()
        assert is_other.sum() == 5 * 4


def test_a_bernoulli_of_bytes_takes_black_and_white_for_certain_bits():
    """With x = 0.998 for white, as a model sees it, 784 pixels would cost at least 11 nats that no model can gain."""
    x, output = (torch.tensor([0.0, 255.0]) + 0.5) / 256, torch.tensor([-40.0, 40.0])
    assert Bernoulli(levels=256).log_prob(x, output) > -1e-15
    as_bytes = 256 * Bernoulli(levels=256).mean(torch.linspace(-9, 9, 50)) - 0.5
    torch.testing.assert_close(as_bytes, 255 * torch.linspace(-9, 9, 50).sigmoid())
    with pytest.raises(ValueError, match="at least 2"):
        Bernoulli(levels=1)


def test_squared_error_is_a_gaussian_of_variance_one_half_without_its_normaliser():
    x, output = torch.rand(3, 784, dtype=F64), torch.rand(3, 784, dtype=F64)
    squared = SquaredError().double()
    assert squared.value_kind == "unnormalised"
    normalised = FixedGaussian(0.5).double().log_prob(x, output)
    torch.testing.assert_close(
        squared.log_prob(x, output) - normalised, torch.full((3,), 392 * math.log(math.pi)).double()
    )
    clamped = squared.log_prob(x, output + 5)
    torch.testing.assert_close(clamped, -((x - (1 - 1 / 512)) ** 2).sum(-1))


def test_the_discretised_logistic_against_scipy():
    likelihood = DiscretisedLogistic().double()
    cdf = stats.logistic(loc=0.3, scale=likelihood.scale.item()).cdf
    inner = BYTES[1:-1].squeeze(1).numpy()
    expected = [cdf(1 / 256), *(cdf(inner + 0.5 / 256) - cdf(inner - 0.5 / 256)), 1 - cdf(255 / 256)]
    torch.testing.assert_close(likelihood.log_prob(BYTES, OUTPUT).exp(), torch.tensor(expected, dtype=F64))


def test_the_conditional_gaussian_against_scipy_and_its_samples_against_it():
    likelihood = ConditionalGaussian(2, mean_range=None, floor=1e-3).double()
    likelihood.start(torch.tensor([0.5, 2.0], dtype=F64))
    output = torch.tensor([0.3, -1.0, 1.5, -2.0], dtype=F64)  # two means, then two changes of log-variances
    variances = 1e-3 + (torch.tensor([0.5, 2.0], dtype=F64) - 1e-3) * output[2:].exp()
    x = torch.randn(7, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    expected = stats.norm.logpdf(x.numpy(), output[:2].numpy(), variances.sqrt().numpy()).sum(-1)
    # float32 holds the logarithms of the start, so seven digits are equal
    assert torch.allclose(likelihood.log_prob(x, output), torch.from_numpy(expected), rtol=1e-6)
    drawn = likelihood.sample(output.expand(100_000, 4), generator=torch.Generator().manual_seed(1))
    assert torch.equal(likelihood.mean(output), output[:2])
    # means to five standard errors, variances of 100,000 draws to two percent
    assert bool(((drawn.mean(0) - output[:2]).abs() < 5 * (variances / 100_000).sqrt()).all())
    assert torch.allclose(drawn.var(0), variances, rtol=0.02)


def robust(share: float) -> RobustGaussian:
    likelihood = RobustGaussian(2, floor=1e-3).double()
    likelihood.start(torch.tensor([0.01, 0.5], dtype=F64))
    with torch.no_grad():
        likelihood.log_odds.fill_(math.log(share / (1 - share)))
    return likelihood


def test_the_robust_gaussian_against_scipy():
    share, output = 0.05, torch.tensor([1.0, -2.0, 0.3, -0.4], dtype=F64)
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    expected = torch.zeros(50, dtype=F64)
    for column, (mean, change, variance) in enumerate([(1.0, 0.3, 0.01), (-2.0, -0.4, 0.5)]):
        spread = math.sqrt(1e-3 + (variance - 1e-3) * math.exp(change))
        right = stats.norm.pdf(x[:, column], mean, spread)
        expected += torch.from_numpy((1 - share) * right + share * stats.norm.pdf(x[:, column], 0, 3)).log()
    torch.testing.assert_close(robust(share).log_prob(x, output), expected)


def test_one_wrong_number_costs_a_robust_gaussian_little_and_moves_nothing():
    output = torch.tensor([0.0, 0.0, -9.0, -9.0], dtype=F64, requires_grad=True)
    right, wrong = torch.zeros(2, dtype=F64), torch.tensor([0.0, 2.0], dtype=F64)
    likelihood = robust(1e-3)
    plain = ConditionalGaussian(2, mean_range=None, floor=1e-3).double()
    plain.start(torch.tensor([0.01, 0.5], dtype=F64))
    costs = [kind.log_prob(right, output) - kind.log_prob(wrong, output) for kind in (likelihood, plain)]
    assert 0 < costs[0] < 15
    assert costs[1] > 1000
    (gradient,) = torch.autograd.grad(likelihood.log_prob(wrong, output), output)
    assert gradient[1].abs() < 1e-3  # the mean is not drawn to a wrong number


def test_without_wrong_numbers_the_robust_gaussian_is_the_conditional_one():
    plain = ConditionalGaussian(2, mean_range=None, floor=1e-3).double()
    plain.start(torch.tensor([0.01, 0.5], dtype=F64))
    x, output = torch.randn(5, 2, dtype=F64), torch.randn(7, 5, 4, dtype=F64)
    likelihood = robust(1e-300)
    torch.testing.assert_close(likelihood.log_prob(0.1 * x, 0.1 * output), plain.log_prob(0.1 * x, 0.1 * output))
    seeds = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert torch.equal(likelihood.sample(output, generator=seeds[0]), plain.sample(output, generator=seeds[1]))


def test_without_a_change_the_conditional_gaussian_is_the_learned_one():
    variance, x = torch.tensor([0.4, 3.0]), torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    conditional, plain = ConditionalGaussian(2, mean_range=None), LearnedGaussian(2, mean_range=None)
    conditional.start(variance)
    plain.start(variance)
    mean = torch.tensor([1.0, -1.0])
    output = torch.cat([mean, torch.zeros(2)])
    assert torch.equal(conditional.log_prob(x, output), plain.log_prob(x, mean))
    far = torch.cat([mean, torch.full((2,), 1e6)])
    assert conditional.log_prob(x, far).isfinite().all()  # no latent makes a variance infinite


def test_a_constant_pixel_cannot_drive_the_density_to_infinity():
    likelihood = LearnedGaussian(num_dimensions=2, mean_range=None).double()
    x = torch.stack([torch.zeros(50), torch.randn(50, generator=torch.Generator().manual_seed(0))], 1).double()
    optimiser = torch.optim.Adam(likelihood.parameters(), lr=0.5)
    for _ in range(400):
        optimiser.zero_grad()
        (-likelihood.log_prob(x, torch.zeros_like(x)).mean()).backward()
        optimiser.step()
    constant, varying = likelihood.variance.tolist()
    assert QUANTISATION_VARIANCE <= constant < 1.1 * QUANTISATION_VARIANCE
    assert varying == pytest.approx(x[:, 1].square().mean().item(), rel=1e-3)
    assert likelihood.log_prob(x, torch.zeros_like(x)).isfinite().all()


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="positive"):
        FixedGaussian(0.0)
    with pytest.raises(ValueError, match="low < high"):
        SquaredError(mean_range=(1.0, 0.0))
    with pytest.raises(ValueError, match="floor"):
        LearnedGaussian(floor=0.0)
    with pytest.raises(ValueError, match="levels"):
        DiscretisedLogistic(levels=1)
