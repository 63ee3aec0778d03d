"""Each kernel against the definition, forward and backward, and the definition against brute force."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from bype.mixtures import LeaveOneOutMixture, NormalMixture, kernels
from bype.mixtures.kernels import Components, by_definition, by_peaks, by_products, by_responsibilities
from small_mixtures import brute_force, make_mixture

F64 = torch.float64
COMPONENT_IDS = torch.tensor([4, 2, 9, 2, 5, 7, 4])
BOTH = (False, True)
# What each kernel is made for: one variance or more, with a gradient or without, with components left out or not.
CASES = [
    *((by_products, *case) for case in itertools.product(BOTH, BOTH, BOTH)),
    *((by_responsibilities, True, True, with_ids) for with_ids in BOTH),
    (by_peaks, True, False, False),
]


def score_and_gradient(
    kernel, leaves: list[Tensor], row_ids: Tensor | None, with_gradient: bool, only_own: bool = False
) -> list[Tensor]:
    """Return what a kernel makes of rows, means, log variance and log weights, and the gradient in each of them."""
    rows, *parts = (leaf.clone().requires_grad_() for leaf in leaves)
    with torch.set_grad_enabled(with_gradient):
        scored = kernel(Components(*parts, COMPONENT_IDS, only_own), rows, row_ids)
    if not with_gradient:
        return [scored]
    cotangent = torch.randn(len(rows), dtype=F64, generator=torch.Generator().manual_seed(7))
    return [scored.detach(), *torch.autograd.grad((scored * cotangent).sum(), (rows, *parts))]


@pytest.fixture
def rows() -> Tensor:
    return torch.randn(8, 3, dtype=F64, generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize("shared", [True, False])
def test_the_definition_is_the_sum_over_components(shared, rows):
    means, log_variance, weights = make_mixture(shared)
    found = by_definition(Components(means, log_variance, weights.log()), rows)
    expected = brute_force(rows, means, log_variance, weights) + weights.sum().log()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("block", [1, 3, 4, 2**22])
@pytest.mark.parametrize(("kernel", "shared", "with_gradient", "with_ids"), CASES)
def test_a_kernel_does_what_the_definition_says(kernel, shared, with_gradient, with_ids, block, rows, monkeypatch):
    # A block of one to four elements cuts rows and components everywhere; the floor of 512 columns must go too.
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", block)
    monkeypatch.setattr(kernels, "_CACHED_ROWS", block)
    monkeypatch.setattr(kernels, "_CACHED_COMPONENTS", block)
    monkeypatch.setattr(kernels, "_MIN_COMPONENTS", 1)
    means, log_variance, weights = make_mixture(shared)
    leaves = [rows, means, log_variance, weights.log()]
    row_ids = torch.tensor([2, 3, 4, 2, 7, 4, 9, 5]) if with_ids else None
    found = score_and_gradient(kernel, leaves, row_ids, with_gradient)
    expected = score_and_gradient(by_definition, leaves, row_ids, with_gradient)
    for ours, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize("block", [1, 3, 2**22])
@pytest.mark.parametrize(("kernel", "shared", "with_gradient"), [case[:3] for case in CASES if case[3]])
def test_a_kernel_takes_the_components_of_a_rows_own_id(kernel, shared, with_gradient, block, rows, monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", block)
    monkeypatch.setattr(kernels, "_MIN_COMPONENTS", 1)
    means, log_variance, weights = make_mixture(shared)
    row_ids = torch.tensor([2, 5, 4, 2, 7, 4, 9, 5])
    found = score_and_gradient(kernel, [rows, means, log_variance, weights.log()], row_ids, with_gradient, True)
    for number, own in enumerate(row_ids.tolist()):  # the mixture of these components alone
        kept = own == COMPONENT_IDS
        variances = log_variance if shared else log_variance[kept]
        expected = brute_force(rows[number], means[kept], variances, weights[kept]) + weights[kept].sum().log()
        torch.testing.assert_close(found[0][number], expected, rtol=0, atol=1e-10)
    expected = score_and_gradient(
        by_definition, [rows, means, log_variance, weights.log()], row_ids, with_gradient, True
    )
    for ours, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, exact, rtol=0, atol=1e-10)


def narrow_mixture(shared: bool, log_variance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, log variances and, near to each of some means, a row, all in float32."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(200, 40, generator=generator)
    own = log_variance + 0.5 * torch.randn(200, 40, generator=generator)
    rows = means[:50] + math.exp(log_variance / 2) * torch.randn(50, 40, generator=generator)
    return means, torch.tensor(log_variance) if shared else own, rows


@pytest.mark.parametrize("log_variance", [-4.0, -6.0, -7.0, -10.0, -14.0])
@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("shared", [True, False])
def test_narrow_components_do_not_cost_digits(shared, leave_one_out, log_variance):
    """Squares reach 40 / variance: in float32 their rounding alone would be some nats at the end of this list."""
    means, log_variance, rows = narrow_mixture(shared, log_variance)
    ids, row_ids = torch.arange(200), torch.arange(100, 150)  # not the components that rows are near to
    with torch.no_grad():
        if leave_one_out:
            found = LeaveOneOutMixture(means, log_variance, torch.zeros(200), ids, row_ids).log_prob(rows)
        else:
            found = NormalMixture(means, log_variance, torch.zeros(200)).log_prob(rows)
    log_weights = torch.full((200,), -math.log(199 if leave_one_out else 200), dtype=F64)
    exact = by_definition(
        Components(means.double(), log_variance.double(), log_weights, ids),
        rows.double(),
        row_ids if leave_one_out else None,
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=0.02)  # the rounding that is let pass, and some more


@pytest.mark.parametrize("shared", [True, False])
def test_only_narrow_components_take_float64(shared):
    wide, narrow = (Components(*narrow_mixture(shared, value)[:2], torch.zeros(200)) for value in (-4.0, -10.0))
    assert wide.finer is None
    assert narrow.finer.means.dtype == F64
    assert narrow.finer.finer is None


@pytest.mark.parametrize("shared", [True, False])
def test_float32_stays_close_to_float64_far_from_the_origin(shared):
    # The paper's smallest log-variance and a cloud of latents far from zero: what expanded squares do worst.
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(500, 40, dtype=F64, generator=generator) + 10
    log_variance = torch.full(() if shared else (500, 40), -6.0, dtype=F64)
    z = means[:100] + 0.05 * torch.randn(100, 40, dtype=F64, generator=generator)
    means, z = means.float().double(), z.float().double()  # the same numbers for both
    exact = NormalMixture(means, log_variance, torch.zeros(500, dtype=F64)).log_prob(z)
    single = NormalMixture(means.float(), log_variance.float(), torch.zeros(500)).log_prob(z.float())
    # float32 has 1.2e-7 relative precision; the squares reach |z|^2 / sigma^2 = 40 * 400 = 16,000.
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=0.01)


def test_a_million_components_score_and_backpropagate_in_bounded_memory():
    # 64 rows x 10^6 components are 256 MB in float32 for each intermediate that autograd would keep.
    means = torch.randn(1_000_000, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mixture = NormalMixture(means, torch.tensor(-2.0), torch.zeros(1_000_000))
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        log_prob = mixture.log_prob(torch.zeros(64, 2))
    assert saved < 5 * means.numel()
    (gradient,) = torch.autograd.grad(log_prob.sum(), means)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("shared", [True, False])
def test_very_far_components_have_no_gradient_rather_than_a_denormal_one(shared):
    """Numbers next to the smallest one make products many times slower, in every layer that they reach."""
    means = torch.tensor([[0.0], [13.8]], requires_grad=True)  # exp(-95) of the nearest
    log_variance = torch.zeros(()) if shared else torch.zeros(2, 1)
    NormalMixture(means, log_variance, torch.zeros(2)).log_prob(torch.tensor([[0.1]])).sum().backward()
    assert means.grad[0] != 0
    assert means.grad[1].abs() == 0 or means.grad[1].abs() > torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("log_variance", [-4.0, 0.0, 3.0])
def test_scoring_without_gradient_is_scoring_with_one_near_and_far(dtype, log_variance):
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(300, 6, dtype=dtype, generator=generator)
    weights = torch.rand(300, dtype=dtype, generator=generator).log()
    weights[5] = -torch.inf
    mixture = NormalMixture(means, torch.tensor(log_variance, dtype=dtype), weights)
    distances = torch.logspace(-2, 4, 200, dtype=dtype)[:, None]
    z = means[:200] + distances * torch.nn.functional.normalize(torch.randn(200, 6, generator=generator).to(dtype))
    with_gradient = mixture.log_prob(z)
    with torch.no_grad():
        without = mixture.log_prob(z)
    tolerance = {"rtol": 3e-6, "atol": 3e-4} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-9}
    torch.testing.assert_close(without, with_gradient, **tolerance)


@pytest.mark.parametrize("shared", [True, False])
def test_rows_may_be_scored_twice_with_a_gradient(shared):
    means, log_variance, weights = make_mixture(shared)
    leaf = means.clone().requires_grad_()
    mixture = NormalMixture(leaf, log_variance, weights.log())
    z = torch.randn(5, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    mixture.log_prob(z).sum().backward()
    once = leaf.grad.clone()
    mixture.log_prob(z).sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * once)


@pytest.mark.parametrize("log_variance", [-1000.0, 1000.0, torch.inf, torch.nan])
def test_a_variance_that_broke_down_gives_numbers_that_say_so(log_variance):
    leaf = torch.tensor(log_variance, requires_grad=True)
    scored = NormalMixture(torch.ones(4, 3), leaf, torch.zeros(4)).log_prob(torch.zeros(5, 3))
    scored.sum().backward()
    assert not (scored > -400).any()


@pytest.mark.parametrize("with_gradient", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_autocast_does_not_round_the_density(shared, with_gradient):
    means, log_variance, weights = (t.float() for t in make_mixture(shared))
    z = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    expected = NormalMixture(means, log_variance, weights.log()).log_prob(z)
    with torch.set_grad_enabled(with_gradient), torch.autocast("cpu", dtype=torch.bfloat16):
        inside = NormalMixture(means, log_variance, weights.log()).log_prob(z)
        if with_gradient:
            assert torch.equal(inside, expected)
        torch.testing.assert_close(inside, expected, rtol=1e-5, atol=1e-5)  # without, squares are summed another way
        half = NormalMixture(means.bfloat16(), log_variance.bfloat16(), weights.log()).log_prob(z)
        assert half.dtype == torch.float32
        assert half.isfinite().all()


@pytest.mark.parametrize("recomputed", [False, True])
def test_autocast_does_not_round_the_gradient(recomputed, monkeypatch):
    if recomputed:
        monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 40)
        monkeypatch.setattr(kernels, "_MIN_COMPONENTS", 2)
    given = [t.float() for t in (torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), *make_mixture(True))]

    def gradients(is_half: bool) -> tuple[torch.Tensor, ...]:
        z, means, log_variance, weights = leaves = [t.clone().requires_grad_() for t in given]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            return torch.autograd.grad(NormalMixture(means, log_variance, weights.log()).log_prob(z).sum(), leaves)

    for half, whole in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(half, whole)


@pytest.mark.parametrize("block", [1, 2**22])
def test_zero_weights_leave_value_and_gradient_finite(block, monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", block)
    monkeypatch.setattr(kernels, "_MIN_COMPONENTS", 1)
    means, log_variance, weights = make_mixture(shared=True)
    log_weights = weights.log().index_fill(0, torch.tensor([0, 3, 6]), -torch.inf)
    z = torch.randn(4, 3, dtype=F64, generator=torch.Generator().manual_seed(6))
    leaves = [t.requires_grad_() for t in (z, means, log_variance, log_weights)]
    log_prob = NormalMixture(means, log_variance, log_weights).log_prob(z)
    gradients = torch.autograd.grad(log_prob.sum(), leaves)
    keep = torch.tensor([1, 2, 4, 5])
    torch.testing.assert_close(log_prob, brute_force(z, means[keep], log_variance, weights[keep]), rtol=0, atol=1e-10)
    assert all(g.isfinite().all() for g in gradients)
    assert gradients[1][[0, 3, 6]].abs().max() < 1e-20
    assert (gradients[3][[0, 3, 6]] == 0).all()


@pytest.mark.parametrize("log_variance", [-4.0, -6.0, -8.0])
def test_the_gradient_in_a_small_variance_keeps_its_digits_in_float32(log_variance):
    generator = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(500, 40, generator=generator)
    rows = means[:64] + math.exp(log_variance / 2) * torch.randn(64, 40, generator=generator)
    found = {}
    for kernel, dtype in ((by_definition, F64), (by_responsibilities, torch.float32)):
        shared = torch.tensor(log_variance, dtype=dtype, requires_grad=True)
        components = Components(means.to(dtype), shared, torch.full((500,), -math.log(500), dtype=dtype))
        (found[kernel],) = torch.autograd.grad(kernel(components, rows.to(dtype)).sum(), shared)
    # Each of the 64 rows has a part of the size of half its 40 dimensions, with either sign.
    assert abs(found[by_responsibilities] - found[by_definition]) < 0.5
