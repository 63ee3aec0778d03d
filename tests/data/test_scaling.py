"""Scaling of columns: there and back, streamed, and log densities in the units of the data."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from bype.data.scaling import Scaling, mean_and_variance
from bype.likelihoods import LearnedGaussian
from bype.models import mlp_vae
from bype.objective import ELBO, importance_weighted_bound
from bype.priors import GaussianPrior


def columns(count=500):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, generator=generator) * torch.tensor([1e-3, 1.0, 5e4]) + torch.tensor([0.0, -2.0, 1e6])


def fitted(x):
    scaling = Scaling(x.shape[1])
    scaling.fit(lambda: torch.split(x, 70))
    return scaling


def test_it_is_scikit_learns_standard_scaler_and_has_an_inverse():
    x = columns()
    scaling = fitted(x)
    expected = StandardScaler().fit_transform(x.double().numpy())
    np.testing.assert_allclose(scaling(x).numpy(), expected, atol=2e-4)
    torch.testing.assert_close(scaling.invert(scaling(x)), x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 300.0])
def test_a_constant_column_has_the_scale_of_the_others_or_of_its_value(unit):
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(200, 3, generator=generator) * torch.tensor([0.5, 1.0, 2.0])
    rows = unit * torch.cat([spread, torch.tensor([[0.0, 0.02, -7.0]]).expand(200, 3)], 1)
    scaling = Scaling(6)
    scaling.fit(lambda: [rows])
    usual = scaling.scale[:3].median().item()
    assert usual == pytest.approx(unit, rel=0.2)
    assert scaling.scale[3:].tolist() == pytest.approx([usual, 0.02 * unit, usual])
    assert scaling(rows)[:, 3:].abs().max() < 1e-3
    assert torch.allclose(scaling.invert(scaling(rows)), rows)


def test_constant_columns_alone_keep_their_units():
    scaling = fitted(torch.tensor([[0.0, 0.5, 40.0]]).expand(20, 3))
    assert scaling.scale.tolist() == [1, 0.5, 1]


def test_the_spread_of_large_numbers_is_not_lost():
    x = torch.tensor([[1e7 + k] for k in range(10)])
    mean, variance, count = mean_and_variance(lambda: torch.split(x, 3))
    assert (float(mean), float(variance), count) == pytest.approx((1e7 + 4.5, 8.25, 10))


def test_log_densities_are_in_the_units_of_the_data():
    """A model that sees scaled columns has the density of the one that sees them as they are, times the scale."""
    x = columns(20)
    scaling = fitted(x)
    model = mlp_vae((3,), GaussianPrior(2), LearnedGaussian(mean_range=None), latent_dim=2, hidden=8)
    plain = importance_weighted_bound(model, scaling(x), 7, generator=torch.Generator().manual_seed(1)).log_likelihood
    terms = ELBO(model)(scaling(x), generator=torch.Generator().manual_seed(1)).elbo
    model.scaling = scaling
    shift = torch.log(scaling.scale.double()).sum()
    found = importance_weighted_bound(model, x, 7, generator=torch.Generator().manual_seed(1)).log_likelihood
    torch.testing.assert_close(found, plain - shift, atol=1e-4, rtol=1e-6)
    torch.testing.assert_close(
        ELBO(model)(x, generator=torch.Generator().manual_seed(1)).elbo, terms - shift.float(), atol=1e-3, rtol=1e-5
    )


def test_a_scale_that_is_not_positive_is_refused():
    state = fitted(columns()).state_dict()
    state["scale"] = state["scale"].clone()
    state["scale"][1] = 0
    with pytest.raises(ValueError, match="not positive"):
        Scaling(3).load_state_dict(state)
