"""Dense networks that begin as a linear model: they are that model, exactly."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA

from bype.data.augment import Augmentation
from bype.data.scaling import Scaling
from bype.evaluation.generation import embed, sample
from bype.likelihoods import (
    Bernoulli,
    ConditionalGaussian,
    DiscretisedLogistic,
    FixedGaussian,
    LearnedGaussian,
    RobustGaussian,
)
from bype.models import dense_vae, linear_start, mlp_vae
from bype.models.linear_start import fit_linear, linear_batches, start_as_linear
from bype.networks.dense import SharedDropout, draw_dropout
from bype.objective import ELBO, importance_weighted_bound
from bype.priors import GaussianPrior, TensorSource, VampPrior
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.prior import PseudocoresetPrior


def digits():
    return torch.from_numpy(load_digits().data).float().reshape(-1, 1, 8, 8).add(0.5).div(17)


def table():
    return torch.from_numpy(load_breast_cancer().data).float()


def test_images_begin_as_probabilistic_pca_to_the_nat():
    x = digits()
    model = dense_vae((1, 8, 8), GaussianPrior(6), LearnedGaussian(mean_range=None), 6, 16)
    start_as_linear(model, TensorSource(x), TensorSource(x), seed=0)
    expected = fit_linear(TensorSource(x), (1, 8, 8), 6, 0).log_prob(x.flatten(1))
    bound = importance_weighted_bound(model, x[:50], 3)
    # The posterior is exact, so every draw has the same weight: log p(x) itself.
    torch.testing.assert_close(bound.log_likelihood, expected[:50], atol=5e-3, rtol=1e-5)
    assert bound.effective_sample_size.min() > 2.99


def test_a_table_with_one_variance_begins_as_probabilistic_pca_to_the_nat():
    x = (table() - table().mean(0)) / table().std(0)
    model = dense_vae((30,), GaussianPrior(8), LearnedGaussian(mean_range=None), 8, 16)
    start_as_linear(model, TensorSource(x), TensorSource(x), seed=0)
    expected = PCA(8).fit(x.double().numpy()).score_samples(x.double().numpy())
    found = importance_weighted_bound(model, x, 3).log_likelihood
    # scikit-learn divides by n - 1 where maximum likelihood divides by n.
    assert float(found.mean()) == pytest.approx(expected.mean(), abs=0.02)


@pytest.mark.parametrize("likelihood", [LearnedGaussian, ConditionalGaussian])
def test_a_table_begins_as_factor_analysis_in_the_units_of_its_columns(likelihood):
    x = table()
    model = dense_vae((30,), GaussianPrior(8), likelihood(30, None, 1e-4), 8, 16)
    model.scaling = Scaling(30)
    model.scaling.fit(linear_batches(TensorSource(x), 0))
    start_as_linear(model, TensorSource(x), TensorSource(x), seed=0)
    linear = fit_linear(model.scaled(TensorSource(x)), (30,), 8, 0)
    expected = linear.log_prob(model.scaling(x)) + model.scaling.log_density
    found = importance_weighted_bound(model, x, 3).log_likelihood
    assert float((found - expected).abs().mean()) < 0.02


def test_a_pseudocoreset_loses_little_and_gains_on_data_that_cluster():
    x = digits()
    scores = {}
    for name in ("gaussian", "bype"):
        prior = GaussianPrior(6)
        if name == "bype":
            prior = PseudocoresetPrior(Pseudocoreset.from_source(TensorSource(x[:1000]), 100))
        model = dense_vae((1, 8, 8), prior, LearnedGaussian(mean_range=None), 6, 16)
        start_as_linear(model, TensorSource(x[:1000]), TensorSource(x[1000:1400]), seed=0)
        scores[name] = float(importance_weighted_bound(model, x[1400:], 20).log_likelihood.mean())
    assert scores["bype"] > scores["gaussian"]


def test_few_points_in_many_dimensions_lose_nothing():
    """A mixture around 20 of 200 examples in 30 dimensions is worse than a normal distribution: points move inwards."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 60, generator=generator)
    scores = {}
    for name in ("gaussian", "bype"):
        prior = GaussianPrior(30)
        if name == "bype":
            prior = PseudocoresetPrior(Pseudocoreset(x[:20], 200, data_range=None))
        model = dense_vae((60,), prior, LearnedGaussian(60, None), 30, 16)
        start_as_linear(model, TensorSource(x[:200]), TensorSource(x[200:300]), seed=0)
        scores[name] = float(importance_weighted_bound(model, x[300:], 20).log_likelihood.mean())
    assert scores["bype"] > scores["gaussian"] - 0.3
    assert model.prior.pseudocoreset.points.norm() < 0.9 * x[:20].norm()
    assert model.prior.pseudocoreset.points.std(0).min() > 0.05  # they stay apart


def test_fewer_components_than_latents_leave_the_rest_unused():
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model = dense_vae((1, 8, 8), GaussianPrior(10), LearnedGaussian(), 10, 16)
    start_as_linear(model, TensorSource(x), TensorSource(x), seed=0)
    assert ELBO(model)(x).elbo.isfinite().all()
    assert torch.equal(model.encoder.projection[3:], torch.zeros(7, 64))


def test_distances_of_embeddings_are_those_of_principal_components():
    x = digits()
    model = dense_vae((1, 8, 8), GaussianPrior(6), LearnedGaussian(mean_range=None), 6, 16)
    start_as_linear(model, TensorSource(x), TensorSource(x), seed=0)
    linear = fit_linear(TensorSource(x), (1, 8, 8), 6, 0)
    components = PCA(6).fit_transform(x.flatten(1).double().numpy())
    # The posterior mean of component k is its value v times sqrt(s^2 - n) / s^2, with s^2 its variance and n that of
    # the noise, and its standard deviation is sqrt(n) / s. So the embedding is v sqrt(1 - n / s^2) / sqrt(n).
    spread, noise = components.var(0), float(linear.noise[0])
    expected = torch.from_numpy(components * (1 - noise / spread) ** 0.5 / noise**0.5)
    found = embed(model, x).double()
    torch.testing.assert_close(torch.cdist(found, found), torch.cdist(expected, expected), atol=1e-3, rtol=1e-3)


def test_other_networks_are_refused():
    with pytest.raises(ValueError, match="dense networks"):
        start_as_linear(mlp_vae((1, 8, 8), GaussianPrior(4), latent_dim=4), None, None, 0)


def test_a_loop_of_ones_own_is_told_to_draw_its_dropout():
    model = dense_vae((1, 8, 8), GaussianPrior(4), latent_dim=4, hidden=16, dropout=0.5)
    objective, x = ELBO(model), digits()[:20]
    with pytest.raises(ValueError, match=r"call bype\.draw_dropout\(model, generator\) before each training step"):
        objective(x)
    with torch.no_grad():
        assert objective(x).elbo.isfinite().all()  # evaluation drops nothing
    draw_dropout(model, torch.Generator().manual_seed(0))
    assert objective(x).elbo.isfinite().all()


def test_dropout_is_the_same_for_all_examples_and_leaves_nothing_behind():
    dropout = SharedDropout(1000, 0.2)
    x = torch.rand(3, 1000)
    assert dropout(x) is x
    draw_dropout(dropout, torch.Generator().manual_seed(0))
    kept = dropout(x) != 0
    assert torch.equal(kept[0], kept[1])
    assert 0.75 < float(kept[0].float().mean()) < 0.85
    torch.testing.assert_close(dropout(x)[kept], x[kept] / 0.8)
    with torch.no_grad():
        assert dropout(x) is x
    draw_dropout(dropout, None)
    assert dropout(x) is x


def test_augmented_passes_are_the_same_each_time():
    batches = linear_batches(TensorSource(digits()[:50]), 3, Augmentation(flips=True, shifts=1))
    first, second = (torch.cat(list(batches())) for _ in range(2))
    assert len(first) == 400
    assert torch.equal(first, second)
    assert not torch.equal(first[:50], first[50:100])


def test_points_do_not_find_themselves_among_the_examples_that_choose_their_variance():
    """Without a validation split, training examples choose it: half of them are points here."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1200, 8, generator=generator) @ torch.randn(8, 20, generator=generator)
    x += 0.3 * torch.randn(x.shape, generator=generator)
    train, new = TensorSource(x[:200]), x[200:]
    coreset = Pseudocoreset.from_source(train, 100, None, generator=torch.Generator().manual_seed(3))
    model = dense_vae((20,), PseudocoresetPrior(coreset), LearnedGaussian(20, None, 1e-4), latent_dim=8)
    start_as_linear(model, train, train, seed=0)
    latents = model.encode(new).sample(generator=generator)
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(latents).sum(1).mean()
    assert model.prior_distribution().log_prob(latents).mean() > normal - 1  # it was 2 nats worse


def test_every_point_among_the_examples_is_found():
    """Fast distances between equal rows of hundreds of pixels are not nearly zero."""
    x = torch.rand(200, 784, generator=torch.Generator().manual_seed(0))
    coreset = Pseudocoreset(x[::2], 200)
    model = dense_vae((784,), PseudocoresetPrior(coreset), LearnedGaussian(784, None, 1e-4), latent_dim=8)
    found = linear_start._without_points(model, TensorSource(x), torch.arange(200))
    assert found.tolist() == list(range(1, 200, 2))


@pytest.mark.parametrize("is_image", [True, False])
def test_a_given_variance_begins_as_the_best_linear_model_with_it(is_image):
    """With noise of variance v, the best model has the variances max(lambda, v) along the first D directions."""
    x, variance = (digits(), 0.05) if is_image else ((table() - table().mean(0)) / table().std(0), 0.5)
    model = dense_vae(x.shape[1:], GaussianPrior(6), FixedGaussian(variance, None), 6, 16)
    start_as_linear(model, TensorSource(x), TensorSource(x), seed=0)
    values = np.linalg.eigvalsh(np.cov(x.flatten(1).double().numpy().T, bias=True))[::-1]
    fitted = np.full_like(values, variance)
    fitted[:6] = np.maximum(values[:6], variance)
    expected = -0.5 * (len(values) * np.log(2 * np.pi) + np.log(fitted).sum() + (values / fitted).sum())
    with torch.no_grad():
        terms = ELBO(model)(x, generator=torch.Generator().manual_seed(0))
        found = importance_weighted_bound(model, x, 3)
    assert float(found.log_likelihood.mean()) == pytest.approx(expected, abs=0.01)
    assert float(terms.elbo.mean()) == pytest.approx(expected, abs=0.02)


def test_the_discretised_logistic_begins_at_the_noise_of_the_linear_model():
    x = digits()
    likelihood = DiscretisedLogistic()
    start_as_linear(dense_vae((1, 8, 8), GaussianPrior(6), likelihood, 6, 16), TensorSource(x), TensorSource(x), 0)
    noise = fit_linear(TensorSource(x), (1, 8, 8), 6, 0).noise.mean()
    assert float(likelihood.scale.detach() ** 2 * math.pi**2 / 3) == pytest.approx(float(noise), rel=1e-5)


def test_two_numbers_for_each_dimension_need_a_decoder_that_gives_them():
    for size in (30, 2):
        for likelihood in (ConditionalGaussian(size, None), RobustGaussian(size, 1e-4)):
            model = mlp_vae((size,), GaussianPrior(4), likelihood, 4)
            with pytest.raises(ValueError, match=rf"takes two numbers for each of {size}.* use dense_vae"):
                ELBO(model)(torch.rand(5, size))
            with pytest.raises(ValueError, match="use dense_vae"):
                sample(model, 3)


def test_features_are_not_clamped_into_the_range_of_pixels_without_a_word():
    for likelihood in (FixedGaussian(1.0), LearnedGaussian()):
        with pytest.raises(ValueError, match="mean in the range of pixels; for features give it mean_range=None"):
            mlp_vae((30,), GaussianPrior(40), likelihood)
    mlp_vae((30,), GaussianPrior(40), LearnedGaussian(mean_range=(0, 1)))
    with pytest.raises(ValueError, match="DiscretisedLogistic is for pixels in bytes"):
        mlp_vae((30,), GaussianPrior(40), DiscretisedLogistic())
    binary = mlp_vae((30,), GaussianPrior(40), Bernoulli())
    with pytest.raises(ValueError, match=r"a Bernoulli likelihood lie in \[0, 1\], not in \[-2, 3\]; scale them"):
        importance_weighted_bound(binary, torch.tensor([[-2.0, 3.0] * 15]), 3)
    with pytest.raises(ValueError, match="for features give data_range=None"):
        VampPrior(5 * torch.randn(9, 3))
    VampPrior(torch.rand(9, 3))
    VampPrior(5 * torch.randn(9, 3), data_range=None)
