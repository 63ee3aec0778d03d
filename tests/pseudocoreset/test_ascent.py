"""ELBO ascent against responsibilities written out, finite differences, and EM's monotony."""

from itertools import pairwise

import pytest
import torch

from bype.models import mlp_hvae, mlp_vae
from bype.priors import GaussianPrior
from bype.pseudocoreset.ascent import ELBOAscent, ascent_gradient
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.prior import PseudocoresetPrior

F64 = torch.float64
SHAPE = (1, 4, 4)


def make_model(two_levels: bool = False, zero_weight: bool = False):
    torch.manual_seed(0)
    weights = torch.rand(6, dtype=F64) + 0.2
    if zero_weight:
        weights[2] = 0
    weights *= 100 / weights.sum()
    prior = PseudocoresetPrior(Pseudocoreset(torch.rand(6, *SHAPE, dtype=F64) * 0.8 + 0.1, 100, weights))
    torch.nn.init.constant_(prior.log_variance, -0.5665)  # narrow enough that there is something to gain
    build = mlp_hvae if two_levels else mlp_vae
    return build(SHAPE, prior, latent_dim=3, hidden=8).double()


def objective(model, z):
    return model.prior_distribution().log_prob(z).mean()


@pytest.mark.parametrize("two_levels", [False, True])
def test_responsibilities_and_objective_are_those_written_out(two_levels):
    model = make_model(two_levels)
    z = torch.randn(40, 3, dtype=F64)
    found = ascent_gradient(model, z)
    mixture = model.prior_distribution()
    joint = torch.stack([mixture.component(m).log_prob(z) for m in range(6)], 1) + mixture.log_weights
    assert found.objective == pytest.approx(joint.logsumexp(1).mean().item(), abs=1e-10)
    torch.testing.assert_close(found.responsibilities, joint.softmax(1).mean(0).detach())


def test_the_gradient_in_the_points_is_that_of_finite_differences():
    model = make_model()
    z = torch.randn(40, 3, dtype=F64)
    gradient = ascent_gradient(model, z).points
    points = model.prior.pseudocoreset.points
    for index in [(0, 0, 0, 0), (3, 0, 2, 1), (5, 0, 3, 3)]:
        values = []
        for sign in (1, -1):
            points[index] += sign * 1e-5
            values.append(objective(model, z).item())
            points[index] -= sign * 1e-5
        assert gradient[index].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-9)


def test_em_on_fixed_latents_never_descends():
    model = make_model()
    z = torch.randn(200, 3, dtype=F64)
    coreset = model.prior.pseudocoreset
    values = [objective(model, z).item()]
    for _ in range(30):
        coreset.assign(coreset.points, ascent_gradient(model, z).responsibilities * coreset.total)
        values.append(objective(model, z).item())
    assert all(b >= a - 1e-12 for a, b in pairwise(values))
    assert values[-1] > values[0] + 1e-3


def test_an_update_ascends_and_leaves_the_network_alone():
    model = make_model()
    x = torch.rand(500, *SHAPE, dtype=F64)
    before = {name: value.clone() for name, value in model.state_dict().items() if "pseudocoreset" not in name}
    with torch.no_grad():
        z = model.encode(x).sample((20,), generator=torch.Generator().manual_seed(1))
        start = objective(model, z)
    rule = ELBOAscent(model.prior.pseudocoreset, step_size=0.02, num_steps=100)
    rule.update(model, [x] * 100, generator=torch.Generator().manual_seed(0))
    assert objective(model, z) > start + 0.1
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    points = model.prior.pseudocoreset.points
    assert ((points >= 0) & (points <= 1)).all()
    assert model.prior.pseudocoreset.weights.sum().item() == pytest.approx(100)


def test_a_step_takes_a_share_of_the_responsibilities_and_steps_grow_shorter():
    """Adam's step in a gradient that never changes is the step size itself, which falls to a tenth."""
    model = make_model()
    coreset = model.prior.pseudocoreset
    coreset.data_range = None
    rule = ELBOAscent(coreset, step_size=0.02, num_steps=10, weight_rate=0.05)
    x = torch.rand(30, *SHAPE, dtype=F64)
    z = model.encode(x).sample(generator=torch.Generator().manual_seed(4)).detach()
    gradient, before = ascent_gradient(model, z), coreset.probabilities.clone()
    points = coreset.points.clone()
    rule.update_step(model, x, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(coreset.probabilities, 0.95 * before + 0.05 * gradient.responsibilities)
    torch.testing.assert_close(coreset.points - points, 0.02 * gradient.points.sign(), rtol=1e-3, atol=0)
    for _ in range(10):
        rule.steps_in_update += 1
        last = rule._displacement(gradient.points)
    torch.testing.assert_close(last, 0.002 * gradient.points.sign(), rtol=1e-3, atol=0)


def test_points_of_no_weight_stay_and_nothing_becomes_nan():
    model = make_model(zero_weight=True)
    coreset = model.prior.pseudocoreset
    before = coreset.points[2].clone()
    rule = ELBOAscent(coreset)
    rule.update(model, [torch.rand(50, *SHAPE, dtype=F64)] * 3)
    assert coreset.points.isfinite().all()
    assert coreset.probabilities[2] < 1e-15
    torch.testing.assert_close(coreset.points[2], before)


def test_state_is_saved_and_the_next_update_begins_anew():
    model = make_model()
    x = torch.rand(50, *SHAPE, dtype=F64)
    one, two = (ELBOAscent(model.prior.pseudocoreset) for _ in range(2))
    one.update(model, [x] * 3)
    two.load_state_dict(one.state_dict())
    assert torch.equal(one.mean, two.mean)
    assert int(two.steps_in_update) == 3
    two.start_update()
    assert not two.mean.any()


def test_mistakes():
    coreset = make_model().prior.pseudocoreset
    with pytest.raises(ValueError, match="positive"):
        ELBOAscent(coreset, step_size=0)
    with pytest.raises(ValueError, match="no pseudocoreset"):
        ELBOAscent(coreset).update_step(mlp_vae(SHAPE, GaussianPrior(3), latent_dim=3), torch.rand(2, *SHAPE))
