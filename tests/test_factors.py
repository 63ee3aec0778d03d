"""Probabilistic PCA and factor analysis against scikit-learn and against the normal density itself."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.preprocessing import StandardScaler

from bype import factors
from bype.factors import LinearGaussian, factor_analysis, probabilistic_pca


def table():
    x = StandardScaler().fit_transform(load_breast_cancer().data)
    return torch.from_numpy(x)


def table_of_varied_scales():
    generator = torch.Generator().manual_seed(0)
    loadings, scales = torch.randn(80, 5, generator=generator), torch.randn(80, generator=generator).exp()
    return torch.randn(2000, 5, generator=generator) @ loadings.T + scales * torch.randn(2000, 80, generator=generator)


def in_batches(x):
    return lambda: torch.split(x, 100)


def test_log_prob_is_that_of_the_normal_distribution():
    model = probabilistic_pca(in_batches(table()), 7)
    dense = model.loadings @ model.loadings.T + model.noise.diag()
    expected = torch.distributions.MultivariateNormal(model.center, dense).log_prob(table())
    torch.testing.assert_close(model.log_prob(table()), expected)


def test_the_posterior_is_that_of_bayes_rule():
    model = factor_analysis(in_batches(table()), 5)
    precision = torch.eye(5, dtype=torch.float64) + model.loadings.T @ (model.loadings / model.noise[:, None])
    torch.testing.assert_close(torch.linalg.inv(precision), model.posterior_variance.diag(), atol=1e-8, rtol=1e-6)


def test_variances_are_those_of_the_data():
    x = table()
    torch.testing.assert_close(
        factor_analysis(in_batches(x), 10).variance, x.var(0, correction=0), atol=1e-3, rtol=1e-3
    )
    assert float(probabilistic_pca(in_batches(x), 10).variance.mean()) == pytest.approx(
        float(x.var(0, correction=0).mean())
    )


def test_pca_is_scikit_learns():
    x = torch.from_numpy(load_digits().data)
    model = probabilistic_pca(in_batches(x), 12)
    expected = PCA(12, svd_solver="full").fit(x.numpy()).score(x.numpy())
    # Its covariance divides by N - 1.
    assert float(model.log_prob(x).mean()) == pytest.approx(expected, abs=2e-2)


def test_factor_analysis_is_at_least_as_likely_as_scikit_learns():
    x = table()
    theirs = FactorAnalysis(10, tol=1e-3, max_iter=1000, svd_method="lapack").fit(x.numpy()).score(x.numpy())
    assert float(factor_analysis(in_batches(x), 10).log_prob(x).mean()) > theirs - 0.05


def test_factor_analysis_of_varied_scales_is_scikit_learns():
    x = table_of_varied_scales()
    # From its usual start, noise of 1, it stays 15 nats behind.
    theirs = FactorAnalysis(5, tol=0.1, svd_method="lapack", noise_variance_init=x.var(0).numpy()).fit(x.numpy())
    assert float(factor_analysis(in_batches(x), 5).log_prob(x).mean()) == pytest.approx(
        theirs.score(x.numpy()), abs=0.01
    )


def test_leading_components_without_the_covariance_matrix(monkeypatch):
    x = torch.from_numpy(load_digits().data)
    exact = probabilistic_pca(in_batches(x), 12)
    monkeypatch.setattr(factors, "_EXACT_DIMENSIONS", 10)
    found = probabilistic_pca(in_batches(x.float()), 12)
    assert float((found.log_prob(x) - exact.log_prob(x)).mean().abs()) < 0.02


def test_factor_analysis_without_the_covariance_matrix(monkeypatch):
    x = table_of_varied_scales()
    exact = factor_analysis(in_batches(x), 5)
    monkeypatch.setattr(factors, "_EXACT_DIMENSIONS", 10)
    found = factor_analysis(in_batches(x), 5)
    assert float((found.log_prob(x) - exact.log_prob(x)).mean().abs()) < 0.1  # after 8 steps instead of 300
    monkeypatch.setattr(factors, "_FEW_STEPS", factors._FACTOR_STEPS)
    found = factor_analysis(in_batches(x), 5)
    assert float((found.log_prob(x) - exact.log_prob(x)).mean().abs()) < 0.02
    components = probabilistic_pca(in_batches(x), 5)
    leftover = x.var(0, correction=0) - components.loadings.square().sum(1)
    coarse = LinearGaussian.of(components.center, components.loadings, leftover)
    assert float((exact.log_prob(x) - coarse.log_prob(x)).mean()) > 1  # what the steps gain


def test_constant_columns_and_few_examples_have_a_floor():
    x = torch.zeros(3, 6)
    x[:, 0] = torch.tensor([1.0, 2.0, 4.0])
    for fit in (probabilistic_pca, factor_analysis):
        model = fit(lambda: [x], 4, 1e-4)
        assert model.loadings.shape == (6, 2)
        assert model.noise.min() >= 1e-4
        assert model.log_prob(x).isfinite().all()


def test_one_column_or_one_example_has_no_latents():
    for x in (torch.randn(50, 1, generator=torch.Generator().manual_seed(0)), torch.ones(1, 5)):
        for fit in (probabilistic_pca, factor_analysis):
            model = fit(lambda x=x: [x], 1, 1e-4)
            assert model.loadings.shape == (x.shape[1], 0)
            torch.testing.assert_close(model.noise, x.double().var(0, correction=0).clamp_min(1e-4))


def test_rotation_changes_nothing_but_the_posteriors_form():
    generator = torch.Generator().manual_seed(0)
    loadings, noise = torch.randn(6, 3, generator=generator).double(), torch.rand(6, generator=generator).double() + 0.1
    model = LinearGaussian.of(torch.zeros(6).double(), loadings, noise)
    torch.testing.assert_close(model.loadings @ model.loadings.T, loadings @ loadings.T)
    scaled = (model.loadings / model.noise[:, None]).T @ model.loadings
    assert float((scaled - scaled.diag().diag()).abs().max()) < 1e-9


def test_reconstruction_is_the_expected_example():
    x = table()
    model = probabilistic_pca(in_batches(x), 29, 1e-9)
    error = (model.reconstruct(x) - x).square().sum(1).mean()
    assert float(error) == pytest.approx(0.0, abs=np.sqrt(1e-3))
