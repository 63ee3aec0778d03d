"""The bounds against exact log-likelihoods."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from bype import objective
from bype.likelihoods import Bernoulli
from bype.models import conv_hvae, mlp_hvae, mlp_vae
from bype.objective import ELBO, importance_weighted_bound, kl_weight
from bype.priors import ExemplarPrior, GaussianPrior, TensorSource, TrainingBatch, VampPrior
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.joint import JointPseudocoresetPrior
from bype.pseudocoreset.prior import PseudocoresetPrior
from bype.randomness import BatchSlice
from linear_gaussian import exact_log_likelihood, linear_hvae, linear_vae, three_standard_errors

F64 = torch.float64


def gaussian(dim: int, size: int):
    return GaussianPrior(dim), lambda model: (torch.zeros(1, dim, dtype=F64), 1.0, torch.ones(1, dtype=F64))


def pseudocoreset(dim: int, size: int):
    generator = torch.Generator().manual_seed(8)
    weights = torch.tensor([5.0, 1.0, 0.0, 4.0])
    prior = PseudocoresetPrior(
        Pseudocoreset(torch.randn(4, size, dtype=F64, generator=generator), 10, weights, data_range=None)
    )
    with torch.no_grad():
        prior.log_variance.fill_(-0.2)
    return prior, lambda model: (
        model.encode(prior.pseudocoreset.points).mean.detach(),
        prior.log_variance.exp().item(),
        prior.pseudocoreset.weights,
    )


@pytest.fixture(params=["VAE, Gaussian", "VAE, pseudocoreset", "HVAE, Gaussian", "HVAE, pseudocoreset"])
def linear_model(request):
    """A model, examples from near its own distribution, and their exact log p(x)."""
    name, prior_name = request.param.split(", ")
    make, size = (linear_vae, 5) if name == "VAE" else (linear_hvae, 6)
    prior, parameters = (gaussian if prior_name == "Gaussian" else pseudocoreset)(2, size)
    model = make(prior, error=0.05)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        top = model.prior_distribution().sample((200,), generator=generator)
        x = model.likelihood.sample(model.decode(top, generator=generator), generator=generator)
    return model, x, exact_log_likelihood(model, x, *parameters(model))


def log_weights(model, x: Tensor, num_samples: int, seed: int) -> Tensor:
    """One bound of a single sample at a time: (K, B) log importance weights through the public function."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(
        [importance_weighted_bound(model, x, 1, generator=generator).log_likelihood for _ in range(num_samples)]
    )


def test_elbo_and_the_bound_with_one_sample_agree(linear_model):
    model, x, _ = linear_model
    generator = torch.Generator().manual_seed(2)
    objective = ELBO(model)
    with torch.no_grad():
        elbo = torch.stack([objective(x, generator=generator).elbo for _ in range(50)])
    one = log_weights(model, x, 50, seed=3)
    difference = (elbo - one).mean(1)  # 50 independent means over the same examples
    assert abs(difference.mean().item()) < three_standard_errors(difference)


def test_bounds_tighten_on_nested_samples(linear_model):
    model, x, _ = linear_model
    x = x[:40]

    def bound(group: int) -> Tensor:
        """The bound with so many samples, averaged over the groups that 1,000 draws make: (B,)."""
        # One row of draws at a time, so that every grouping sees the same 1,000 draws in the same order.
        generator = torch.Generator().manual_seed(4)
        groups = [
            importance_weighted_bound(model, x, group, max_rows=len(x), generator=generator).log_likelihood
            for _ in range(1000 // group)
        ]
        return torch.stack(groups).mean(0)

    one, ten, thousand = bound(1), bound(10), bound(1000)
    # On nested groups Jensen's inequality holds for each example, not only on average.
    assert (one <= ten).all()
    assert (ten <= thousand).all()
    assert (thousand - one).mean() > 1e-3  # q is close to the posterior, but not equal
    # And the largest is made of the very weights of the smallest.
    expected = log_weights(model, x, 1000, seed=4).logsumexp(0) - math.log(1000)
    torch.testing.assert_close(thousand, expected, rtol=0, atol=1e-10)


def test_the_bound_with_5000_samples_is_the_exact_log_likelihood(linear_model):
    model, x, exact = linear_model
    bound = importance_weighted_bound(model, x, 5000, generator=torch.Generator().manual_seed(5))
    error = bound.log_likelihood - exact
    assert abs(error.mean().item()) < three_standard_errors(error)
    # The error reported for each example is of the size of the error made.
    z_score = (error / bound.monte_carlo_error).square().mean().sqrt().item()
    assert 0.7 < z_score < 1.4
    assert (bound.effective_sample_size <= 5000 * (1 + 1e-9)).all()
    assert (bound.effective_sample_size > 50).all()


def test_with_the_exact_posterior_one_sample_suffices():
    model = linear_vae(GaussianPrior(2), error=0.0)
    x = torch.randn(20, 5, dtype=F64, generator=torch.Generator().manual_seed(0))
    exact = exact_log_likelihood(model, x, torch.zeros(1, 2, dtype=F64), 1.0, torch.ones(1, dtype=F64))
    bound = importance_weighted_bound(model, x, 3)
    torch.testing.assert_close(bound.log_likelihood, exact, rtol=0, atol=1e-10)
    torch.testing.assert_close(bound.effective_sample_size, torch.full((20,), 3.0, dtype=F64))
    assert (bound.monte_carlo_error < 1e-6).all()


@pytest.mark.parametrize("max_rows", [1, 7, 20, 4096])
def test_chunks_change_nothing_but_the_order_of_draws(max_rows):
    # With the exact posterior every draw has the same weight, so any dropped or doubled chunk would show.
    model = linear_vae(GaussianPrior(2), error=0.0)
    x = torch.randn(4, 5, dtype=F64, generator=torch.Generator().manual_seed(0))
    one = importance_weighted_bound(model, x, 1).log_likelihood
    bound = importance_weighted_bound(model, x, 13, max_rows=max_rows)
    torch.testing.assert_close(bound.log_likelihood, one, rtol=0, atol=1e-10)
    torch.testing.assert_close(bound.effective_sample_size, torch.full((4,), 13.0, dtype=F64))


@pytest.mark.parametrize("numbers", [1, 37, 100])
def test_draws_are_scored_with_their_own_latents_however_many_at_once(numbers, monkeypatch):
    """Here draws have different weights, so a draw that is scored with another one's latents would show."""
    model = linear_vae(GaussianPrior(2), error=0.3)
    x = torch.randn(4, 5, dtype=F64, generator=torch.Generator().manual_seed(0))

    def bound():
        return importance_weighted_bound(model, x, 50, generator=torch.Generator().manual_seed(1))

    whole = bound()
    assert whole.effective_sample_size.max() < 49
    monkeypatch.setattr(objective, "_CACHED_NUMBERS", numbers)
    torch.testing.assert_close(bound().log_likelihood, whole.log_likelihood, rtol=1e-12, atol=0)


def test_no_more_latents_are_decoded_at_once_than_allowed():
    model = linear_vae(GaussianPrior(2), error=0.1)
    rows = []
    model.decoder.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    importance_weighted_bound(model, torch.zeros(4, 5, dtype=F64), 100, max_rows=50)
    assert max(rows) == 48
    assert sum(rows) == 400


@pytest.mark.parametrize(
    ("architecture", "levels"), [(mlp_vae, ["z"]), (mlp_hvae, ["z2", "z1"]), (conv_hvae, ["z2", "z1"])]
)
def test_kl_splits_by_level_and_the_terms_add_up(architecture, levels):
    torch.manual_seed(0)
    model = architecture((1, 12, 12), GaussianPrior(4), latent_dim=4, hidden=20)
    x = torch.rand(3, 1, 12, 12)
    terms = ELBO(model)(x, beta=0.3, generator=torch.Generator().manual_seed(1))
    assert list(terms.kl) == levels
    assert all(kl.shape == (3,) for kl in terms.kl.values())
    torch.testing.assert_close(terms.elbo, terms.reconstruction - sum(terms.kl.values()))
    torch.testing.assert_close(terms.loss, (0.3 * sum(terms.kl.values()) - terms.reconstruction).mean())

    # Each level from its own definition, at the same draws.
    draw = model.posterior(x).draw(1, generator=torch.Generator().manual_seed(1))
    top = model.encode(x)
    expected_top = top.log_prob(draw.top[0]) - model.prior_distribution().log_prob(draw.top[0])
    torch.testing.assert_close(terms.kl[levels[0]], expected_top)
    if len(levels) == 2:
        generator = torch.Generator().manual_seed(1)
        z2 = top.sample((1,), generator=generator)
        lower = model.posterior(x).lower(z2)
        z1 = lower.sample(generator=generator)
        expected = lower.log_prob(z1) - model.lower_prior(z2).log_prob(z1)
        torch.testing.assert_close(terms.kl["z1"], expected[0])
        output = model.decoder(z1[0], z2[0]).flatten(1)
        torch.testing.assert_close(terms.reconstruction, model.likelihood.log_prob(x.flatten(1), output))


@pytest.mark.parametrize("architecture", [mlp_vae, mlp_hvae])
def test_a_prior_of_other_dimensions_than_the_networks_is_refused(architecture):
    model = architecture((6,), GaussianPrior(30), latent_dim=3, hidden=10)
    with pytest.raises(ValueError, match="latents have 3 dimensions and this distribution 30"):
        ELBO(model)(torch.rand(5, 6))


def test_the_kl_of_a_gaussian_prior_has_its_closed_form_on_average():
    model = linear_vae(GaussianPrior(2), error=0.2)
    x = torch.randn(5, 5, dtype=F64, generator=torch.Generator().manual_seed(0))
    q = model.encode(x)
    closed = 0.5 * (q.mean**2 + q.log_variance.exp() - q.log_variance - 1).sum(1).detach()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        kl = torch.stack([ELBO(model)(x, generator=generator).kl["z"] for _ in range(4000)])
    error = (kl - closed).mean(1)
    assert abs(error.mean().item()) < three_standard_errors(error)


def test_a_training_step_tells_the_prior_which_rows_it_sees():
    x = torch.rand(6, 4, dtype=F64)
    torch.manual_seed(0)
    model = mlp_vae((4,), ExemplarPrior(TensorSource(x), num_exemplars=200), latent_dim=2, hidden=5).double()
    indices = torch.tensor([1, 4])

    def elbo(**arguments: object) -> Tensor:
        return ELBO(model)(x[indices], generator=torch.Generator().manual_seed(1), **arguments).elbo

    with pytest.raises(ValueError, match="pass indices"):
        elbo()
    with pytest.raises(ValueError, match="not both"):
        elbo(indices=indices, prior=model.prior_distribution())
    left_out = elbo(indices=indices, prior_generator=torch.Generator().manual_seed(2))
    others = elbo(indices=torch.tensor([0, 0]), prior_generator=torch.Generator().manual_seed(2))
    assert not torch.allclose(left_out, others)
    with torch.no_grad():
        torch.testing.assert_close(elbo(prior=model.prior_distribution()), elbo())
        at_hand = model.prior_distribution()
        assert ELBO(model)(x, prior=at_hand).prior is at_hand


@pytest.mark.parametrize("architecture", [mlp_vae, mlp_hvae])
def test_slices_of_a_batch_draw_what_the_whole_batch_draws(architecture):
    torch.manual_seed(0)
    model = architecture((6,), GaussianPrior(3), latent_dim=3, hidden=10).double()
    x = torch.rand(10, 6, dtype=F64)
    whole = ELBO(model)(x, beta=0.3, generator=torch.Generator().manual_seed(1))
    edges = (0, 3, 3, 10)  # an empty slice among them
    parts = [
        ELBO(model)(x[i:j], beta=0.3, generator=BatchSlice(torch.Generator().manual_seed(1), slice(i, j), 10))
        for i, j in itertools.pairwise(edges)
    ]
    torch.testing.assert_close(torch.cat([part.elbo for part in parts]), whole.elbo, rtol=0, atol=1e-12)
    assert [part.num_examples for part in (whole, *parts)] == [10] * 4
    torch.testing.assert_close(sum(part.loss for part in parts), whole.loss, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="cannot serve"):
        ELBO(model)(x, generator=BatchSlice(torch.Generator(), slice(0, 3), 10))


@pytest.mark.parametrize("architecture", [mlp_vae, mlp_hvae, conv_hvae])
def test_every_parameter_gets_a_gradient(architecture):
    torch.manual_seed(0)
    prior = PseudocoresetPrior(Pseudocoreset(torch.rand(5, 1, 12, 12), total=50))
    model = architecture((1, 12, 12), prior, latent_dim=4, hidden=20)
    ELBO(model)(torch.rand(8, 1, 12, 12), indices=torch.arange(8)).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


def test_wrong_arguments_are_refused():
    model = linear_vae(GaussianPrior(2), error=0.0)
    with pytest.raises(ValueError, match="num_samples"):
        importance_weighted_bound(model, torch.zeros(2, 5, dtype=F64), 0)
    with pytest.raises(ValueError, match="negative"):
        kl_weight(1, -1)
    assert kl_weight(0, 0) == 1.0


@pytest.mark.parametrize(
    "make_prior", [PseudocoresetPrior, JointPseudocoresetPrior, lambda start: VampPrior(start.points)]
)
@pytest.mark.parametrize("make_model", [mlp_vae, mlp_hvae])
def test_encoding_points_beside_the_batch_changes_nothing(make_model, make_prior, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    points, x = torch.rand(4, 1, 4, 4, generator=generator), torch.rand(6, 1, 4, 4, generator=generator)
    torch.manual_seed(0)
    model = make_model((1, 4, 4), make_prior(Pseudocoreset(points, 100)), latent_dim=3, hidden=8).double()

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        terms = ELBO(model)(x.double(), indices=torch.arange(6), generator=torch.Generator().manual_seed(1))
        terms.loss.backward()
        return [terms.elbo.detach(), *(parameter.grad for parameter in model.parameters())]

    calls = []
    encode = type(model).encode
    monkeypatch.setattr(type(model), "encode", lambda self, rows: calls.append(len(rows)) or encode(self, rows))
    beside = gradients()
    monkeypatch.setattr(TrainingBatch, "encode_with", lambda self, points: (self.posterior, model.encode(points))[1])
    apart = gradients()
    assert calls == [10, 6, 4]
    for ours, theirs in zip(beside, apart, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_black_and_white_pixels_are_not_taken_for_grey():
    bits = torch.randint(0, 2, (6, 1, 4, 4)).float()
    pixels = (255 * bits + 0.5) / 256
    plain, of_bytes = (
        mlp_vae((1, 4, 4), GaussianPrior(3), kind, 3, 8) for kind in (Bernoulli(), Bernoulli(levels=256))
    )
    for score in (ELBO(plain), lambda x: importance_weighted_bound(plain, x, 2)):
        score(bits)
        with pytest.raises(ValueError, match=r"take Bernoulli\(levels=256\)"):
            score(pixels)
    assert ELBO(of_bytes)(pixels).elbo.isfinite().all()


def test_bytes_are_refused_in_training_too():
    with pytest.raises(ValueError, match=r"give \(bytes \+ 0.5\) / 256"):
        ELBO(mlp_vae((1, 4, 4), GaussianPrior(3), None, 3, 8))(torch.full((2, 1, 4, 4), 255.0))


def test_the_terms_hold_the_latents_that_were_scored():
    model = mlp_vae((1, 4, 4), GaussianPrior(3), None, 3, 8)
    x = torch.rand(5, 1, 4, 4)
    terms = ELBO(model)(x)
    expected = model.encode(x).log_prob(terms.latents) - model.prior_distribution().log_prob(terms.latents)
    torch.testing.assert_close(terms.kl["z"], expected)
