"""PSVI against Algorithm 2 written out, central differences, and what the mathematics says of it."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bype.likelihoods import (
    Bernoulli,
    DiscretisedLogistic,
    FixedGaussian,
    LearnedGaussian,
    Likelihood,
    SquaredError,
)
from bype.models import conv_hvae, mlp_hvae, mlp_vae
from bype.priors import GaussianPrior
from bype.pseudocoreset import scores as scores_module
from bype.pseudocoreset.coreset import Pseudocoreset, project_to_simplex
from bype.pseudocoreset.prior import PseudocoresetPrior
from bype.pseudocoreset.psvi import PSVI, Centring, PSVIGradient, psvi_gradient
from bype.pseudocoreset.scores import LinearScores, PairwiseScores, scores_of
from bype.pseudocoreset.step_sizes import InverseTimeSteps, RestartedAdam, Steps

F64 = torch.float64
M, S, B, N, D = 6, 9, 5, 40, 7


class Heteroscedastic(Likelihood):
    """A Gaussian whose variance depends on z, so T(x) = (x, x^2) and the closed form does not hold."""

    def log_probs(self, x: Tensor, output: Tensor) -> Tensor:
        log_variance = torch.sin(3 * output)
        return -0.5 * ((x - output).square() * torch.exp(-log_variance) + log_variance)

    def mean(self, output: Tensor) -> Tensor:
        return output

    def sample(self, output: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        raise NotImplementedError


LINEAR = {
    "squared error": SquaredError(),
    "fixed Gaussian": FixedGaussian(0.3),
    "learned Gaussian": LearnedGaussian(D),
    "Bernoulli": Bernoulli(),
}
GENERAL = {"heteroscedastic": Heteroscedastic(), "discretised logistic": DiscretisedLogistic()}
ALL = LINEAR | GENERAL


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, dtype=F64, generator=generator) * 0.8 + 0.1

    weights = rand(M)
    return rand(M, D), weights / weights.sum() * N, rand(S, D), rand(B, D)


def gradient_of(scores, points, weights, x, centring=Centring.SAMPLES) -> PSVIGradient:
    data_score = scores.sum_over_examples(x, torch.full((len(x),), N / len(x), dtype=F64))
    return psvi_gradient(scores, points, weights, data_score, centring)


def algorithm_2(likelihood, points, weights, output, x, centring) -> tuple[Tensor, Tensor]:
    """Algorithm 2 line by line, every g and h of it."""
    u = points[:, None].expand(M, S, D).clone().requires_grad_()
    log_p_u = likelihood.log_prob(u, output[None])
    (h,) = torch.autograd.grad(log_p_u.sum(), u)
    h = h - h.mean(1 if centring is Centring.SAMPLES else 2, keepdim=True)
    log_p_x = likelihood.log_prob(x[:, None], output[None]).detach()
    g = log_p_x - log_p_x.mean(1, keepdim=True)
    g_tilde = (log_p_u - log_p_u.mean(1, keepdim=True)).detach()
    grad_w, grad_u = torch.zeros(M, dtype=F64), torch.zeros(M, D, dtype=F64)
    for s in range(S):
        r = N / len(x) * g[:, s].sum() - g_tilde[:, s] @ weights
        grad_w -= g_tilde[:, s] * r / S
        for m in range(M):
            grad_u[m] -= weights[m] * h[m, s] * r / S
    return grad_u, grad_w


@pytest.mark.parametrize("likelihood", ALL.values(), ids=ALL.keys())
@pytest.mark.parametrize("centring", Centring)
@pytest.mark.parametrize("chunk", [1, 20, 2**19])
def test_gradient_equals_algorithm_2_written_out(likelihood, centring, chunk, problem, monkeypatch):
    monkeypatch.setattr(scores_module, "_CHUNK_ELEMENTS", chunk)
    points, weights, output, x = problem
    likelihood = likelihood.double()
    ours = gradient_of(scores_of(likelihood, output), points, weights, x, centring)
    grad_u, grad_w = algorithm_2(likelihood, points, weights, output, x, centring)
    scale = grad_u.abs().max()
    torch.testing.assert_close(ours.points, grad_u, rtol=0, atol=1e-9 * scale.item())
    torch.testing.assert_close(ours.weights, grad_w, rtol=1e-9, atol=1e-9 * scale.item())


@pytest.mark.parametrize("likelihood", ALL.values(), ids=ALL.keys())
def test_gradient_equals_central_differences_of_the_objective(likelihood, problem):
    points, weights, output, x = problem
    likelihood = likelihood.double()

    def objective(points: Tensor, weights: Tensor) -> float:
        """J = 1/(2S) sum_s r_s^2 with the draws frozen, from the definition."""
        data = N / B * likelihood.log_prob(x[:, None], output[None]).sum(0)
        r = data - weights @ likelihood.log_prob(points[:, None], output[None])
        return ((r - r.mean()) ** 2).sum().item() / (2 * S)

    ours = gradient_of(scores_of(likelihood, output), points, weights, x)
    assert ours.objective == pytest.approx(objective(points, weights), rel=1e-10)
    step = 1e-5  # the error of a central difference is its square
    for m in range(M):
        shift = torch.zeros(M, dtype=F64)
        shift[m] = step
        slope = (objective(points, weights + shift) - objective(points, weights - shift)) / (2 * step)
        assert ours.weights[m].item() == pytest.approx(slope, rel=1e-6, abs=1e-6)
        for i in range(D):
            shift = torch.zeros(M, D, dtype=F64)
            shift[m, i] = step
            slope = (objective(points + shift, weights) - objective(points - shift, weights)) / (2 * step)
            assert ours.points[m, i].item() == pytest.approx(slope, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("likelihood", ALL.values(), ids=ALL.keys())
def test_sums_keep_no_graph(likelihood, problem):
    # A learned variance would otherwise tie every piece to the sum, and the memory of all pairs with it.
    points, weights, output, x = problem
    scores = scores_of(likelihood.double(), output)
    assert not scores.sum_over_examples(x, torch.ones(B)).requires_grad
    assert not gradient_of(scores, points, weights, x).points.requires_grad


@pytest.mark.parametrize("likelihood", LINEAR.values(), ids=LINEAR.keys())
@pytest.mark.parametrize("centring", Centring)
def test_closed_form_equals_the_general_path(likelihood, centring, problem):
    points, weights, output, x = problem
    likelihood = likelihood.double()
    closed = gradient_of(LinearScores(likelihood, output), points, weights, x, centring)
    general = gradient_of(PairwiseScores(likelihood, output), points, weights, x, centring)
    torch.testing.assert_close(closed.points, general.points, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(closed.weights, general.weights, rtol=1e-9, atol=1e-9)
    assert closed.objective == pytest.approx(general.objective, rel=1e-9)


@pytest.mark.parametrize("likelihood", ALL.values(), ids=ALL.keys())
def test_gradient_is_zero_where_the_pseudocoreset_is_the_data(likelihood, problem):
    _, _, output, _ = problem
    x = torch.rand(N, D, dtype=F64, generator=torch.Generator().manual_seed(1))
    ours = gradient_of(scores_of(likelihood.double(), output), x, torch.ones(N, dtype=F64), x)
    assert ours.points.abs().max() < 1e-8
    assert ours.weights.abs().max() < 1e-8


@pytest.mark.parametrize("name", ALL)
def test_one_mean_image_satisfies_the_objective_of_linear_likelihoods_and_of_no_others(name, problem):
    _, _, output, _ = problem
    x = torch.rand(N, D, dtype=F64, generator=torch.Generator().manual_seed(1))
    mean_image, whole_weight = x.mean(0, keepdim=True), torch.tensor([float(N)], dtype=F64)
    ours = gradient_of(scores_of(ALL[name].double(), output), mean_image, whole_weight, x)
    if name in LINEAR:
        assert ours.objective < 1e-16
        assert ours.points.abs().max() < 1e-8
        assert ours.weights.abs().max() < 1e-8
    else:
        assert ours.objective > 1e-3


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("centring", Centring)
def test_a_plain_step_has_rank_one_for_linear_likelihoods_and_for_no_others(name, centring, problem):
    points, weights, output, x = problem
    ours = gradient_of(scores_of(ALL[name].double(), output), points, weights, x, centring)
    displacement, _ = InverseTimeSteps(1e-3)(ours.points, ours.weights)
    first, second, *_ = torch.linalg.svdvals(displacement)
    assert (second < 1e-12 * first) == (name in LINEAR)


def test_the_closed_form_moves_weights_by_one_direction_only(problem):
    # grad_w = -(U v - a) / S: the same v, so weights see of each point only its projection on v.
    points, weights, output, x = problem
    ours = gradient_of(LinearScores(SquaredError(), output), points, weights, x)
    v = -ours.points[0] / weights[0]
    centred = points - points.mean(0)
    torch.testing.assert_close(ours.weights - ours.weights.mean(), -centred @ v, rtol=1e-9, atol=1e-9)


def make_model(architecture=mlp_vae, size=8, likelihood=None):
    torch.manual_seed(0)
    pseudocoreset = Pseudocoreset(torch.rand(size, 1, 12, 12), total=200)
    return architecture((1, 12, 12), PseudocoresetPrior(pseudocoreset), likelihood, latent_dim=4, hidden=20)


def batches(count: int, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(10, 1, 12, 12, generator=generator) for _ in range(count)]


@settings(max_examples=30, deadline=None)
@given(
    step_size=st.floats(1e-8, 1e6),
    adam=st.booleans(),
    seed=st.integers(0, 2**31),
    num_steps=st.integers(1, 4),
    centring=st.sampled_from(Centring),
)
def test_invariants_survive_any_update(step_size, adam, seed, num_steps, centring):
    model = make_model()
    pseudocoreset = model.prior.pseudocoreset
    steps = RestartedAdam(pseudocoreset, step_size) if adam else InverseTimeSteps(step_size)
    PSVI(steps, centring=centring).update(
        model, batches(num_steps, seed), generator=torch.Generator().manual_seed(seed)
    )
    assert (pseudocoreset.weights >= 0).all()
    assert pseudocoreset.weights.sum().item() == pytest.approx(200, rel=1e-12)
    assert pseudocoreset.probabilities.dtype == F64
    assert ((pseudocoreset.points >= 0) & (pseudocoreset.points <= 1)).all()
    assert model.prior_distribution().log_prob(torch.zeros(3, 4)).isfinite().all()


class RecordingSteps(Steps):
    """Moves nothing and keeps the gradients."""

    def start_update(self) -> None:
        self.gradients = []

    def forward(self, points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        self.gradients.append((points, weights))
        return torch.zeros_like(points), torch.zeros_like(weights)


class FixedSteps(Steps):
    """Goes the same way whatever the gradients are."""

    def __init__(self, points: Tensor, weights: Tensor) -> None:
        super().__init__()
        self.displacements = points, weights

    def start_update(self) -> None:
        pass

    def forward(self, points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        return self.displacements


def test_displacements_are_added_and_what_leaves_the_range_or_the_simplex_comes_back():
    model = make_model().double()
    pseudocoreset = model.prior.pseudocoreset
    points, weights = pseudocoreset.points.clone(), pseudocoreset.weights.clone()
    generator = torch.Generator().manual_seed(4)
    moves = torch.randn(points.flatten(1).shape, dtype=F64, generator=generator)
    gains = 20 * torch.randn(len(points), dtype=F64, generator=generator)
    PSVI(FixedSteps(moves, gains)).update(model, [x.double() for x in batches(1)])
    torch.testing.assert_close(pseudocoreset.points, (points + moves.view_as(points)).clamp(0, 1))
    torch.testing.assert_close(pseudocoreset.weights, project_to_simplex((weights + gains).clamp_min(0), 200.0))


def test_plain_steps_descend_the_objective():
    """With the same batch and draws in each update, small steps lower J."""
    model = make_model().double()
    (x,) = batches(1)
    rule = PSVI(InverseTimeSteps(1e-7))
    found = [rule.update_step(model, x.double(), generator=torch.Generator().manual_seed(2)) for _ in range(30)]
    assert found[-1] < found[0]
    assert sum(after < before for before, after in itertools.pairwise(found)) > 20


@pytest.mark.parametrize("architecture", [mlp_vae, mlp_hvae, conv_hvae])
def test_one_draw_of_all_latents_serves_values_and_gradients(architecture, monkeypatch):
    # The update must decode once per step: the gradient is then of the very log-likelihoods that were centred.
    model = make_model(architecture).double()
    decoded, drawn = [], []
    decode = model.decode

    def spy(top: Tensor, **arguments: object) -> Tensor:
        drawn.append(top)
        decoded.append(decode(top, **arguments))
        return decoded[-1]

    monkeypatch.setattr(model, "decode", spy)
    pseudocoreset = model.prior.pseudocoreset
    (x,) = batches(1)
    steps = RecordingSteps()
    PSVI(steps).update(model, [x.double()], generator=torch.Generator().manual_seed(2))
    (output,), (latents,) = decoded, drawn
    of_mixture = model.prior_distribution().sample(latents.shape[:1], generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(latents, of_mixture)
    ((points, weights),) = steps.gradients
    scores = PairwiseScores(model.likelihood, output)
    data = scores.sum_over_examples(model.flatten(x.double()), torch.full((10,), 20.0))
    expected = psvi_gradient(scores, model.flatten(pseudocoreset.points), pseudocoreset.weights, data)
    assert points.abs().max() > 0
    torch.testing.assert_close(points, expected.points, rtol=1e-9, atol=1e-9 * points.abs().max().item())
    torch.testing.assert_close(weights, expected.weights, rtol=1e-9, atol=1e-9 * weights.abs().max().item())
    if architecture is not mlp_vae:
        redecoded = decode(torch.zeros(8, 4, dtype=F64), generator=torch.Generator().manual_seed(3))
        assert not torch.equal(redecoded[0], redecoded[1])  # z1 is a draw for each row, not a mean


def test_one_batch_is_one_step_and_the_step_size_falls_as_one_over_t():
    model = make_model()
    rule = PSVI(InverseTimeSteps(1e-6))
    assert rule.update(model, batches(1))["steps"] == 1
    assert rule.update(model, batches(3))["steps"] == 3
    assert rule.steps.num_steps == 4
    gradient = torch.ones(1, 1), torch.ones(1)
    assert rule.steps(*gradient)[0].item() == pytest.approx(-1e-6 / 5)


def test_restarted_adam_is_adam_with_a_falling_rate_and_keeps_its_moments():
    pseudocoreset = Pseudocoreset(torch.rand(3, 4), total=10)
    steps = RestartedAdam(pseudocoreset, 0.5)
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(3, 4, generator=generator) for _ in range(5)]

    parameter = torch.nn.Parameter(torch.zeros(3, 4))
    adam = torch.optim.Adam([parameter], lr=0.5)
    steps.start_update()
    for j, gradient in enumerate(gradients, start=1):
        adam.param_groups[0]["lr"] = 0.5 / j
        before = parameter.detach().clone()
        parameter.grad = gradient.clone()
        adam.step()
        points, _ = steps(gradient, torch.ones(3, dtype=F64))
        torch.testing.assert_close(points, parameter.detach() - before, rtol=1e-5, atol=1e-7)

    restored = RestartedAdam(pseudocoreset, 0.5)
    restored.load_state_dict(steps.state_dict())
    for resumed in (steps, restored):
        resumed.start_update()
    first, _ = steps(gradients[0], torch.ones(3, dtype=F64))
    mean = adam.state[parameter]["exp_avg"] * 0.9 + 0.1 * gradients[0]
    square = adam.state[parameter]["exp_avg_sq"] * 0.999 + 0.001 * gradients[0] ** 2
    expected = -0.5 * (mean / (1 - 0.9)) / ((square / (1 - 0.999)).sqrt() + 1e-8)  # as if step one, with old moments
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(restored(gradients[0], torch.ones(3, dtype=F64))[0], first)


def test_a_gradient_that_float32_cannot_square_is_refused():
    """Its second moment would be infinite for good, and the points would never move again."""
    steps = RestartedAdam(Pseudocoreset(torch.rand(2, 3), total=10), 0.5)
    steps.start_update()
    with pytest.raises(ValueError, match="gradient of the points is too large for float32"):
        steps(torch.tensor([[1.0, 2.0, 3e21], [1.0, 1.0, 1.0]]), torch.ones(2))


def test_the_general_path_updates_a_model_with_the_discretised_logistic():
    model = make_model(likelihood=DiscretisedLogistic())
    before = model.prior.pseudocoreset.points.clone()
    found = PSVI(InverseTimeSteps(1e-7)).update(model, batches(1))
    assert found["steps"] == 1
    assert found["objective_first"] == found["objective_last"] > 0
    change = (model.prior.pseudocoreset.points - before).flatten(1)
    first, second, *_ = torch.linalg.svdvals(change)
    assert second > 1e-3 * first


def test_a_model_without_a_pseudocoreset_is_refused():
    model = mlp_vae((4,), GaussianPrior(2), latent_dim=2, hidden=3)
    with pytest.raises(ValueError, match="GaussianPrior has no pseudocoreset"):
        PSVI(InverseTimeSteps(1.0)).update(model, [torch.rand(2, 4)])
    single = make_model(size=1)
    with pytest.raises(ValueError, match="at least 2 draws"):
        PSVI(InverseTimeSteps(1.0)).update(single, batches(1))
    assert PSVI(InverseTimeSteps(1e-9), num_samples=5).update(single, batches(1))["steps"] == 1
    with pytest.raises(ValueError, match="at least one training example"):
        PSVI(InverseTimeSteps(1.0), num_samples=2).update(single, [torch.rand(0, 1, 12, 12)])
    with pytest.raises(ValueError, match="positive"):
        InverseTimeSteps(0.0)
