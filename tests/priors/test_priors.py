"""What is particular to each prior."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bype.distributions import DiagonalNormal
from bype.mixtures import NormalMixture
from bype.priors import ExemplarPrior, NearestExemplarPrior, TensorSource, TrainingBatch, VampPrior, base
from bype.priors.base import fit_log_variance, rows_at_once
from bype.pseudocoreset.coreset import Pseudocoreset, project_to_simplex
from bype.pseudocoreset.joint import JointPseudocoresetPrior
from bype.pseudocoreset.prior import PseudocoresetPrior

F64 = torch.float64
EXAMPLES = torch.rand(30, 3, generator=torch.Generator().manual_seed(0), dtype=F64)


def encode(x: Tensor) -> DiagonalNormal:
    flat = x.flatten(1)
    return DiagonalNormal(torch.sin(3 * flat[:, :2]), flat[:, 1:3] - 2)


def naive_log_prob(z: Tensor, examples: Tensor, log_variance: Tensor) -> Tensor:
    densities = [DiagonalNormal(encode(x[None]).mean[0], log_variance.expand(2)).log_prob(z).exp() for x in examples]
    return torch.stack(densities).mean(0).log()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ExemplarPrior(TensorSource(EXAMPLES), num_exemplars=5),
        lambda: PseudocoresetPrior(Pseudocoreset(EXAMPLES, total=30)),
        lambda: JointPseudocoresetPrior(Pseudocoreset(EXAMPLES, total=30)),
    ],
    ids=["exemplar", "pseudocoreset", "joint"],
)
def test_the_shared_variance_starts_at_one_on_every_seed_and_networks_as_if_it_were_drawn(make):
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch.randn(())  # the authors' draw
        next_number = torch.randn(())
        torch.manual_seed(seed)
        assert make().log_variance.item() == 0.0
        assert torch.equal(torch.randn(()), next_number)


def test_exemplar_evaluates_with_all_examples():
    prior = ExemplarPrior(TensorSource(EXAMPLES), num_exemplars=5).double()
    z = torch.randn(4, 2, dtype=F64)
    torch.testing.assert_close(prior(encode).log_prob(z), naive_log_prob(z, EXAMPLES, prior.log_variance))


def test_exemplar_trains_with_a_fresh_subset_and_leaves_each_example_out():
    prior = ExemplarPrior(TensorSource(EXAMPLES), num_exemplars=25).double()
    indices = torch.tensor([0, 7, 7, 29])
    z = torch.randn(4, 2, dtype=F64)
    generator = torch.Generator().manual_seed(3)
    batch = TrainingBatch(EXAMPLES[indices], indices, encode, generator)
    subsets = []
    for _ in range(2):
        mixture = prior(encode, batch)
        subsets.append(mixture.component_ids.tolist())
        expected = torch.stack(
            [
                naive_log_prob(row, EXAMPLES[[i for i in subsets[-1] if i != own]], prior.log_variance)
                for row, own in zip(z, indices.tolist(), strict=True)
            ]
        )
        torch.testing.assert_close(mixture.log_prob(z), expected)
    assert len(subsets[0]) == 25
    assert subsets[0] != subsets[1]
    assert any(i in subsets[0] for i in (0, 7, 29))  # or the test would not see leaving out
    assert len(set(subsets[0])) < 25  # drawn with replacement


def test_equal_points_and_weights_make_exemplar_and_pseudocoreset_priors_one_density():
    exemplar = ExemplarPrior(TensorSource(EXAMPLES), num_exemplars=5).double()
    pseudocoreset = PseudocoresetPrior(Pseudocoreset(EXAMPLES, total=30)).double()
    with torch.no_grad():
        pseudocoreset.log_variance.copy_(exemplar.log_variance)
    z = torch.randn(50, 2, dtype=F64)
    torch.testing.assert_close(exemplar(encode).log_prob(z), pseudocoreset(encode).log_prob(z), rtol=0, atol=1e-12)


def test_pseudocoreset_prior_is_equation_12():
    weights = torch.tensor([20.0, 0.0, 10.0], dtype=F64)
    prior = PseudocoresetPrior(Pseudocoreset(EXAMPLES[:3], total=30, weights=weights)).double()
    z = torch.randn(5, 2, dtype=F64)
    sigma = torch.exp(prior.log_variance / 2)
    means = encode(EXAMPLES[:3]).mean
    squared = ((z[:, None] - means) ** 2).sum(-1)
    expected = (
        -2 * torch.log(math.sqrt(2 * math.pi) * sigma)
        - math.log(30)
        + torch.log((weights * torch.exp(-squared / (2 * sigma**2))).sum(1))
    )
    torch.testing.assert_close(prior(encode).log_prob(z), expected)


@pytest.mark.parametrize("num_exemplars", [1000, 20])
def test_nearest_exemplars_equal_the_naive_union(num_exemplars):
    prior = NearestExemplarPrior(TensorSource(EXAMPLES), num_exemplars, latent_dim=2, num_neighbours=3).double()
    indices = torch.tensor([4, 20])
    batch = TrainingBatch(EXAMPLES[indices], indices, encode, torch.Generator().manual_seed(0))
    drawn = set(prior._draw_subset(batch).tolist())
    assert len(drawn) == 30 if num_exemplars == 1000 else 10 < len(drawn) < 25
    mixture = prior(encode, TrainingBatch(EXAMPLES[indices], indices, encode, torch.Generator().manual_seed(0)))
    latent = encode(EXAMPLES).mean
    union = set()
    for own in indices.tolist():
        distance = ((latent - latent[own]) ** 2).sum(1)
        nearest = [k for k in distance.argsort().tolist() if k != own and k in drawn]
        union |= set(nearest[:3])
    assert sorted(mixture.component_ids.tolist()) == sorted(union)
    z = torch.randn(2, 2, dtype=F64)
    expected = torch.stack(
        [
            naive_log_prob(row, EXAMPLES[sorted(union - {own})], prior.log_variance)
            for row, own in zip(z, indices.tolist(), strict=True)
        ]
    )
    torch.testing.assert_close(mixture.log_prob(z), expected)


def test_the_cache_of_nearest_exemplars_follows_what_is_encoded():
    prior = NearestExemplarPrior(TensorSource(EXAMPLES), num_exemplars=1000, latent_dim=2, num_neighbours=2).double()
    indices = torch.tensor([4])
    batch = TrainingBatch(EXAMPLES[indices], indices, encode, torch.Generator().manual_seed(0))
    prior(encode, batch)
    torch.testing.assert_close(prior.cache, encode(EXAMPLES).mean)

    def moved(x: Tensor) -> DiagonalNormal:
        posterior = encode(x)
        return DiagonalNormal(posterior.mean + 100, posterior.log_variance)

    ids = prior(moved, batch).component_ids
    stale = torch.ones(30, dtype=torch.bool)
    stale[ids] = False
    torch.testing.assert_close(prior.cache[ids], moved(EXAMPLES[ids]).mean)
    torch.testing.assert_close(prior.cache[stale], encode(EXAMPLES[stale]).mean)


def test_vamp_clamps_pseudo_inputs_and_uses_their_own_variances():
    inputs = torch.tensor([[0.2, 0.5, 1.7], [-0.4, 0.1, 0.9]], dtype=F64)
    prior = VampPrior(inputs.clamp(0, 1))
    with torch.no_grad():
        prior.pseudo_inputs.copy_(inputs)  # training may lead them there
    posterior = encode(inputs.clamp(0, 1))
    z = torch.randn(4, 1, 2, dtype=F64)
    expected = posterior.log_prob(z).exp().mean(1).log()
    torch.testing.assert_close(prior(encode).log_prob(z).squeeze(1), expected)
    (gradient,) = torch.autograd.grad(prior(encode).log_prob(z).sum(), prior.pseudo_inputs)
    assert gradient[0, 2] == 0
    assert gradient[1, 0] == 0
    assert (gradient[:, 1] != 0).all()
    assert torch.equal(VampPrior(inputs, data_range=None)(encode).means, encode(inputs).mean)


def test_both_starts_of_the_vampprior():
    generator = torch.Generator().manual_seed(0)
    examples = torch.rand(200, 50, generator=generator)
    noise = VampPrior.start_at_examples(examples, generator=generator) - examples
    assert noise.std().item() == pytest.approx(0.01, rel=0.03)  # 10,000 draws: 0.7% standard error
    start = VampPrior.start_at_random(200, (1, 50), generator=generator)
    assert start.shape == (200, 1, 50)
    assert start.std().item() == pytest.approx(math.sqrt(2 / 200), rel=0.03)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(-1e12, 1e12, allow_subnormal=False), min_size=1, max_size=12),
    st.sampled_from([1.0, 30.0, 1e9]),
)
def test_projection_satisfies_the_conditions_of_the_nearest_point(values, total):
    # Karush-Kuhn-Tucker: w = max(v - theta, 0) for one theta, and the sum is right; that is the only such point.
    v = torch.tensor(values, dtype=F64)
    w = project_to_simplex(v, total)
    scale = max(total, v.abs().max().item())
    assert (w >= 0).all()
    assert w.sum().item() == pytest.approx(total, abs=1e-14 * len(values) * scale, rel=1e-12)
    theta = (v - w)[w > 0]
    assert theta.max() - theta.min() <= 1e-15 * 8 * scale
    assert (v[w == 0] <= theta.max() + 1e-15 * 8 * scale).all()


@given(st.lists(st.floats(0.5, 1.5), min_size=2, max_size=12))
def test_projection_is_the_papers_shift_where_that_stays_positive(values):
    v = torch.tensor(values, dtype=F64)
    total = float(len(values))
    shifted = v + (total / len(v) - v.mean())
    if (shifted >= 0).all():
        torch.testing.assert_close(project_to_simplex(v, total), shifted)


def test_projection_survives_weights_beyond_all_measure():
    w = project_to_simplex(torch.tensor([1e300, -1e300, 3.0], dtype=F64), 30.0)
    assert w.tolist() == [30.0, 0.0, 0.0]


def test_a_pseudocoreset_starts_at_different_examples_with_equal_weights():
    pseudocoreset = Pseudocoreset.from_source(TensorSource(EXAMPLES), 12, generator=torch.Generator().manual_seed(1))
    rows = [(point == EXAMPLES).all(1).nonzero().item() for point in pseudocoreset.points]
    assert len(set(rows)) == 12
    torch.testing.assert_close(pseudocoreset.weights, torch.full((12,), 30 / 12, dtype=F64))
    assert pseudocoreset.total == 30


@pytest.mark.parametrize(("total", "count"), [(30, 30), (30, 4), (10**9, 500)])
def test_drawn_rows_are_different_and_uniform(total, count):
    rows = base.draw_rows(total, count, replace=False, generator=torch.Generator().manual_seed(2))
    assert len(set(rows.tolist())) == count
    assert rows.min() >= 0
    assert rows.max() < total
    if total > 30:
        # The mean of n uniform numbers has standard error 1 / sqrt(12 n).
        assert abs(rows.double().mean().item() / total - 0.5) < 4 / math.sqrt(12 * count)


def test_a_pseudocoreset_keeps_its_invariants_through_casts_and_assignments():
    weights = torch.tensor([1e8, 2e8, 3e8, 4e8])
    pseudocoreset = Pseudocoreset(EXAMPLES[:4], total=10**9, weights=weights)
    before = pseudocoreset.weights
    torch.testing.assert_close(before, weights.double(), rtol=1e-6, atol=0)
    pseudocoreset.half().float()
    assert pseudocoreset.points.dtype == torch.float32
    assert torch.equal(pseudocoreset.weights, before)
    pseudocoreset.assign(pseudocoreset.points + 7, torch.tensor([-5.0, 1e9, 0.0, 0.0]))
    assert (pseudocoreset.points == 1).all()
    assert pseudocoreset.weights.sum().item() == pytest.approx(1e9, rel=1e-15)
    with pytest.raises(ValueError, match="finite"):
        pseudocoreset.assign(pseudocoreset.points * torch.nan, before)
    with pytest.raises(ValueError, match="must stay"):
        pseudocoreset.assign(pseudocoreset.points[:2], before)
    free = Pseudocoreset(EXAMPLES[:4] * 9, total=4, data_range=None)
    assert torch.equal(free.points, EXAMPLES[:4] * 9)


@pytest.mark.parametrize("weights", [[0.7, 0.2, 0.1], [700.0, 400.0, -100.0], [1000.0]], ids=str)
def test_weights_that_do_not_add_up_to_the_total_are_refused(weights):
    """The nearest weights with the right sum would be almost equal."""
    with pytest.raises(ValueError, match=r"3 numbers from 0 on that add up to the total, 1000; scale them"):
        Pseudocoreset(EXAMPLES[:3], total=1000, weights=torch.tensor(weights))


def test_impossible_sizes_are_refused():
    for examples, num_exemplars in ((EXAMPLES[:1], 5), (EXAMPLES, 1)):
        with pytest.raises(ValueError, match="at least two examples and two exemplars"):
            ExemplarPrior(TensorSource(examples), num_exemplars)
    with pytest.raises(ValueError, match="num_neighbours"):
        NearestExemplarPrior(TensorSource(EXAMPLES), 5, latent_dim=2, num_neighbours=0)
    with pytest.raises(ValueError, match="at most 30"):
        Pseudocoreset.from_source(TensorSource(EXAMPLES), 31)
    with pytest.raises(ValueError, match="positive total"):
        Pseudocoreset(EXAMPLES[:2], total=0)


def test_data_of_another_range_or_type_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="data_range=None"):
        Pseudocoreset.from_source(TensorSource(3 * EXAMPLES - 1), 4)
    with pytest.raises(ValueError, match="floating-point"):
        Pseudocoreset(torch.zeros(3, 2, dtype=torch.uint8), total=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("points", torch.full((3, 3), 7.9)),
        ("points", torch.full((3, 3), torch.nan)),
        ("probabilities", torch.tensor([-0.5, 1.0, 0.5])),
        ("probabilities", torch.tensor([0.5, 0.6, 0.5])),
        ("probabilities", torch.tensor([0.5, torch.nan, 0.5])),
        ("_total", torch.tensor(0)),
    ],
)
def test_a_damaged_state_is_refused(name, value):
    prior = PseudocoresetPrior(Pseudocoreset(EXAMPLES[:3].float(), total=30))
    state = prior.state_dict()
    state[f"pseudocoreset.{name}"] = value
    with pytest.raises(ValueError, match="damaged"):
        prior.load_state_dict(state)


def test_a_tiny_training_set_never_leaves_a_row_without_exemplars():
    prior = ExemplarPrior(TensorSource(EXAMPLES[:2]), num_exemplars=2).double()
    generator = torch.Generator().manual_seed(0)
    batch = TrainingBatch(EXAMPLES[:2], torch.tensor([0, 1]), encode, generator)
    for _ in range(50):
        assert prior(encode, batch).log_prob(torch.zeros(2, 2, dtype=F64)).isfinite().all()


def test_a_batch_that_was_first_looked_at_without_gradient_has_one():
    layer = torch.nn.Linear(3, 2).double()

    def through_layer(x: Tensor) -> DiagonalNormal:
        return DiagonalNormal(layer(x), x[:, :2])

    indices = torch.arange(4)
    batch = TrainingBatch(EXAMPLES[:4], indices, through_layer)
    with torch.no_grad():
        assert not batch.whole_means().requires_grad
    assert batch.posterior.mean.requires_grad
    with torch.no_grad():
        evaluated = TrainingBatch(EXAMPLES[:4], indices, through_layer)
    assert not evaluated.posterior.mean.requires_grad


@pytest.mark.parametrize(("num_points", "calls"), [(5, [9]), (6, [5, 1, 4])])
def test_few_points_are_encoded_in_one_call_with_the_batch_and_many_apart(num_points, calls, monkeypatch):
    monkeypatch.setattr(base, "_CHUNK_ROWS", 5)
    found = []

    def spy(x: Tensor) -> DiagonalNormal:
        found.append(len(x))
        return encode(x)

    batch = TrainingBatch(EXAMPLES[:4], torch.arange(4), spy)
    points = EXAMPLES[10 : 10 + num_points]
    encoded = base.encode_points(spy, points, batch)
    torch.testing.assert_close(encoded.mean, encode(points).mean)
    torch.testing.assert_close(encoded.log_variance, encode(points).log_variance)
    torch.testing.assert_close(batch.posterior.mean, encode(EXAMPLES[:4]).mean)
    assert found == calls


def test_gradients_of_many_points_cost_work_in_proportion(monkeypatch):
    # Rows taken by index or slice would each pass back a gradient as large as all points together.
    monkeypatch.setattr(base, "_CHUNK_ROWS", 5)
    points = EXAMPLES.clone().requires_grad_()
    origins = set()

    def spy(x: Tensor) -> DiagonalNormal:
        origins.add(x.grad_fn.name())
        return encode(x)

    (gradient,) = torch.autograd.grad(base.encode_points(spy, points).mean.sum(), points)
    (expected,) = torch.autograd.grad(encode(points).mean.sum(), points)
    torch.testing.assert_close(gradient, expected)
    assert origins == {"SplitBackward0"}


def test_large_sources_are_encoded_in_chunks_with_the_same_gradient(monkeypatch):
    scale = torch.tensor(1.3, dtype=F64, requires_grad=True)
    largest = 0

    def scaled(x: Tensor) -> DiagonalNormal:
        nonlocal largest
        largest = max(largest, len(x))
        posterior = encode(x)
        return DiagonalNormal(posterior.mean * scale, posterior.log_variance)

    prior = ExemplarPrior(TensorSource(EXAMPLES), num_exemplars=5).double()
    z = torch.randn(4, 2, dtype=F64)
    results = []
    for rows in (512, 7):
        largest = 0
        monkeypatch.setattr(base, "_CHUNK_ROWS", rows)
        log_prob = prior(scaled).log_prob(z)
        results.append((log_prob, *torch.autograd.grad(log_prob.sum(), [scale, prior.log_variance])))
        assert largest == min(rows, 30)
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked)


@pytest.mark.parametrize("data_range", [None, (0.0, 1.0)])
def test_missing_values_are_called_by_their_name(data_range):
    with pytest.raises(ValueError, match="remove or fill what is missing"):
        Pseudocoreset(torch.tensor([[0.5], [torch.nan]]), total=2, data_range=data_range)


def test_an_exemplar_prior_that_starts_on_its_own_exemplars_is_as_wide_as_for_new_ones():
    generator = torch.Generator().manual_seed(0)
    x, new = torch.randn(800, 8, generator=generator), torch.randn(800, 8, generator=generator)

    def encode(x):
        return DiagonalNormal(x, torch.zeros_like(x))

    starts = []
    for latents, rows in ((new, None), (x, torch.arange(800))):
        prior = ExemplarPrior(TensorSource(x), num_exemplars=20)
        with torch.no_grad():
            prior.start(encode, latents, torch.zeros(8), rows)
        starts.append(prior.log_variance.item())
    assert starts[0] == pytest.approx(starts[1], abs=0.41)  # two steps of the search; half of the exemplars are wider
    assert starts[0] > -2


@pytest.mark.parametrize("true", [-4.6, -2.2, -0.7, 0.9])
def test_the_start_of_the_variance_is_the_best_of_all_values_tried(true):
    generator = torch.Generator().manual_seed(5)
    means = 3 * torch.randn(6, 2, dtype=F64, generator=generator)
    noise = torch.randn(400, 2, dtype=F64, generator=generator)
    latents = means[torch.arange(400) % 6] + math.exp(true / 2) * noise
    mixture = NormalMixture(means, torch.tensor(0.0, dtype=F64), torch.full((6,), -math.log(6), dtype=F64))
    log_variance = nn.Parameter(torch.tensor(0.0))
    found = fit_log_variance(mixture, log_variance, latents)
    values = torch.linspace(-5, 2, 36)
    scores = [float(NormalMixture(means, v.double(), mixture.log_weights).log_prob(latents).mean()) for v in values]
    assert log_variance.item() == values[np.argmax(scores)].item()
    assert found == pytest.approx(max(scores))


def test_large_examples_are_encoded_a_few_at_a_time():
    assert rows_at_once((1, 28, 28)) == rows_at_once((3, 64, 64)) == rows_at_once((30,)) == 512
    assert 1 < rows_at_once((3, 256, 256)) < 64
    assert rows_at_once((3, 2**14, 2**14)) == 1


def test_points_with_labels_that_move_before_training_keep_the_means_of_their_classes():
    """Few examples in many dimensions, in three classes: one normal distribution is the better prior at first."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(12) % 3
    centers = 3 * torch.randn(3, 40, generator=generator)
    points = centers[labels] + 4 * torch.randn(12, 40, generator=generator)
    latents = centers[torch.arange(300) % 3] + 4 * torch.randn(300, 40, generator=generator)

    def start(labels):
        coreset = Pseudocoreset(points.clone(), total=12, data_range=None)
        coreset.labels = labels
        prior = PseudocoresetPrior(coreset)
        prior.start(lambda x: DiagonalNormal(x, torch.zeros_like(x)), latents, torch.zeros(40))
        return coreset.points

    def by_class(x):
        return torch.stack([x[labels == kind].mean(0) for kind in range(3)])

    apart, together = start(labels.int()), start(None)
    torch.testing.assert_close(by_class(apart), by_class(points))
    shrunk = (apart - by_class(apart)[labels]) / (points - by_class(points)[labels])
    share = shrunk.median()  # of their distance, the same for all
    assert share < 0.95
    torch.testing.assert_close(shrunk, share.expand_as(shrunk), rtol=1e-3, atol=1e-3)
    share = (together / points).median()
    assert share < 0.95
    torch.testing.assert_close(together, share * points)
