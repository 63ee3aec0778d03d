"""Generation against what the model's own distributions say."""

import pytest
import torch
from scipy import stats

import bype
from bype.evaluation import generation
from bype.evaluation.generation import embed, generate_like, interpolate, reconstruct, sample
from bype.models import conv_hvae, mlp_hvae, mlp_vae
from bype.objective import importance_weighted_bound
from bype.priors import GaussianPrior
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.prior import PseudocoresetPrior
from linear_gaussian import linear_hvae, linear_vae

F64 = torch.float64


def mixture_prior(size: int) -> PseudocoresetPrior:
    points = torch.linspace(-1, 1, 3 * size, dtype=F64).reshape(3, size)
    prior = PseudocoresetPrior(Pseudocoreset(points, 10, torch.tensor([5.0, 0.0, 5.0]), data_range=None))
    with torch.no_grad():
        prior.log_variance.fill_(-1.0)
    return prior


@pytest.mark.parametrize("two_levels", [False, True])
@pytest.mark.parametrize("component", [None, 1])
def test_samples_have_the_exact_mean_and_covariance(two_levels, component):
    model = linear_hvae(mixture_prior(6), 0.1) if two_levels else linear_vae(mixture_prior(5), 0.1)
    prior = model.prior_distribution()
    if component is None:
        centres = prior.means[[0, 2]].detach()
        mean, spread = centres.mean(0), (centres - centres.mean(0)).T @ (centres - centres.mean(0)) / 2
    else:
        mean, spread = prior.means[component].detach(), torch.zeros(2, 2, dtype=F64)
    covariance = spread + prior.log_variance.exp().detach() * torch.eye(2, dtype=F64)
    if two_levels:
        a, c = (w.detach() for w in model.decoder.weights)
        joint = a @ model.conditional.weight.detach() + c
        below = a @ torch.diag(model.conditional.log_variance.exp().detach()) @ a.T
    else:
        (joint,) = (w.detach() for w in model.decoder.weights)
        below = torch.zeros(5, 5, dtype=F64)
    expected_mean = joint @ mean + model.decoder.bias.detach()
    expected_covariance = joint @ covariance @ joint.T + below

    count = 20_000
    generator = torch.Generator().manual_seed(0)
    for with_noise in (False, True):
        if with_noise:
            expected_covariance = expected_covariance + model.likelihood.variance * torch.eye(len(expected_mean))
        drawn = sample(model, count, component=component, with_noise=with_noise, generator=generator)
        deviation = expected_covariance.diag().sqrt()
        assert ((drawn.mean(0) - expected_mean).abs() < 5 * deviation / count**0.5).all()
        # A sample covariance has standard error of at most sqrt(2 / n) of the product of deviations.
        scale = deviation[:, None] * deviation
        assert ((drawn.T.cov() - expected_covariance).abs() < 5 * scale * (2 / count) ** 0.5).all()


def test_columns_of_a_table_vary_as_their_likelihood_says_unless_asked_otherwise():
    model = linear_vae(mixture_prior(5), 0.0)
    x = torch.zeros(20_000, 5, dtype=F64)
    kinds = {}
    for name, drawn in {
        "rows": sample(model, 20_000, component=2, generator=torch.Generator().manual_seed(0)),
        "means": sample(model, 20_000, component=2, with_noise=False, generator=torch.Generator().manual_seed(0)),
        "like": generate_like(model, x, "posterior", generator=torch.Generator().manual_seed(0)),
    }.items():
        kinds[name] = drawn.var(0)
    noise = model.likelihood.variance
    # A sample variance has a standard error of sqrt(2 / n), 1%, of itself.
    torch.testing.assert_close(kinds["rows"], kinds["means"] + noise, rtol=0.06, atol=0)
    assert (kinds["like"] > 0.95 * noise).all()


def test_one_pseudo_point_gives_samples_around_itself():
    model = linear_vae(mixture_prior(5), 0.0)
    drawn = sample(model, 4000, component=2, with_noise=False, generator=torch.Generator().manual_seed(0))
    (a,) = (w.detach() for w in model.decoder.weights)
    z = (drawn - model.decoder.bias.detach()) @ torch.linalg.pinv(a).T
    prior = model.prior_distribution()
    for d in range(2):
        cdf = stats.norm(prior.means[2, d].item(), prior.log_variance.div(2).exp().item()).cdf
        assert stats.kstest(z[:, d].numpy(), cdf).pvalue > 1e-3


@pytest.mark.parametrize("architecture", [mlp_vae, mlp_hvae, conv_hvae])
def test_shapes_ranges_and_repeatability(architecture):
    torch.manual_seed(0)
    model = architecture((1, 12, 12), GaussianPrior(4), latent_dim=4, hidden=20)
    x = torch.rand(3, 1, 12, 12)
    one, two = (sample(model, 5, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(one, two)
    assert one.shape == (5, 1, 12, 12)
    assert ((one >= 1 / 512) & (one <= 1 - 1 / 512)).all()
    assert torch.equal(reconstruct(model, x), reconstruct(model, x))
    assert reconstruct(model, x).shape == x.shape
    assert embed(model, x).shape == (3, 4)
    assert torch.equal(embed(model, x), model.encode(x).mean)
    assert not one.requires_grad


def test_chunks_and_a_prior_at_hand_change_nothing(monkeypatch):
    torch.manual_seed(0)
    model = mlp_vae((6,), GaussianPrior(2), latent_dim=2, hidden=10)
    x = torch.rand(10, 6)

    def results() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        drawn = sample(model, 10, with_noise=False, prior=model.prior_distribution(), generator=generator)
        return [drawn, embed(model, x), reconstruct(model, x)]

    whole = results()
    monkeypatch.setattr(generation, "rows_at_once", lambda shape: 3)
    for one, other in zip(whole, results(), strict=True):
        torch.testing.assert_close(one, other)
    assert embed(model, x[:0]).shape == (0, 2)


def test_reconstruction_uses_the_means_of_both_levels():
    model = linear_hvae(GaussianPrior(2), 0.0)
    x = torch.randn(4, 6, dtype=F64)
    z2 = model.encode(x).mean
    z1, _ = model.joint_encoder(model.joint_encoder.embed(x), z2)
    torch.testing.assert_close(reconstruct(model, x), model.decoder(z1, z2))


def test_interpolation_is_a_straight_line_between_the_ends():
    model = linear_vae(GaussianPrior(2), 0.0)
    start, end = torch.randn(2, 5, dtype=F64, generator=torch.Generator().manual_seed(0))
    path = interpolate(model, start, end, 5)
    torch.testing.assert_close(path[0], reconstruct(model, start[None])[0])
    torch.testing.assert_close(path[-1], reconstruct(model, end[None])[0])
    steps = path.diff(dim=0)
    torch.testing.assert_close(steps, steps[:1].expand_as(steps))


def test_wrong_requests_are_refused():
    with pytest.raises(ValueError, match="no components"):
        sample(linear_vae(GaussianPrior(2), 0.0), 1, component=0)
    with pytest.raises(ValueError, match="between 0 and 2"):
        sample(linear_vae(mixture_prior(5), 0.0), 1, component=3)
    with pytest.raises(ValueError, match="at least 2"):
        interpolate(linear_vae(GaussianPrior(2), 0.0), torch.zeros(5), torch.zeros(5), 1)


def test_examples_in_another_unit_or_kind_are_refused_or_converted():
    model = mlp_vae((1, 8, 8), GaussianPrior(3), latent_dim=3)
    x = torch.rand(4, 1, 8, 8)
    uses = {
        "embed": lambda x: embed(model, x),
        "reconstruct": lambda x: reconstruct(model, x),
        "interpolate": lambda x: interpolate(model, x[0], x[1], 3),
        "generate_like": lambda x: generate_like(model, x, "posterior", generator=torch.Generator().manual_seed(0)),
        "bound": lambda x: (
            importance_weighted_bound(model, x, 2, generator=torch.Generator().manual_seed(0)).log_likelihood
        ),
    }
    for use in uses.values():
        assert torch.equal(use(x.double()), use(x.double().float()))
        with pytest.raises(ValueError, match=r"not bytes; give \(bytes \+ 0.5\) / 256"):
            use((255 * x).byte())
        with pytest.raises(ValueError, match="not numbers up to 2"):
            use(255 * x)
    rows = mlp_vae((5,), GaussianPrior(3), latent_dim=3)
    assert embed(rows, 1000 * torch.randn(4, 5)).shape == (4, 3)


def test_odd_requests_are_refused():
    model = mlp_vae((1, 8, 8), mixture_prior_of_images(), latent_dim=2)
    with pytest.raises(ValueError, match="way must be one of posterior, prior, not 'posteriour'"):
        generate_like(model, torch.rand(2, 1, 8, 8), "posteriour")
    with pytest.raises(ValueError, match="count must be at least 1, not -1"):
        sample(model, -1)
    with pytest.raises(ValueError, match=r"component must be between 0 and 2, not 1.0"):
        sample(model, 2, component=1.0)


def mixture_prior_of_images() -> PseudocoresetPrior:
    return PseudocoresetPrior(Pseudocoreset(torch.rand(3, 1, 8, 8), 10))


def test_a_run_in_place_of_a_model_is_answered_by_the_way_out_and_the_other_way_round(trained_gaussian, tmp_path):
    run = bype.TrainedRun.open(trained_gaussian)
    x = torch.rand(2, *run.data.shape)
    for use in (
        lambda: sample(run, 3),
        lambda: embed(run, x),
        lambda: reconstruct(run, x),
        lambda: interpolate(run, x[0], x[1], 3),
    ):
        with pytest.raises(TypeError, match=r"give a model, such as run.model of a bype.TrainedRun, not TrainedRun"):
            use()
    for use in (
        bype.evaluate,
        bype.coreset,
        bype.score_examples,
        bype.audit_run,
        lambda run: bype.export_onnx(run, tmp_path / "out"),
    ):
        for wrong, name in ((run.model, "HierarchicalVAE"), (str(trained_gaussian), "str")):
            with pytest.raises(TypeError, match=rf"give a run, bype.TrainedRun.open\(folder\), not {name}"):
                use(wrong)
