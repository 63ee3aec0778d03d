"""Tracking against brute force, finite differences and the best fit that a mixture of its kind has."""

import copy
import math
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from bype.likelihoods import FixedGaussian
from bype.mixtures import NormalMixture
from bype.models import VAE
from bype.networks.dense import SharedDropout, draw_dropout
from bype.objective import ELBO, ELBOTerms
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.prior import PseudocoresetPrior
from bype.pseudocoreset.tracking import TrackedPseudocoresetPrior, Tracking

F64 = torch.float64


class SmallEncoder(nn.Module):
    """Not linear, so that the way from latents to points depends on the point."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.mean, self.log_variance = nn.Linear(6, 12), nn.Linear(12, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(torch.tanh(self.hidden(x))), self.log_variance(x) - 4


def small_model(num_live: int, num_points: int = 5, seed: int = 0, num_scored: int | None = None) -> VAE:
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(num_points, 6, dtype=F64, generator=generator)
    weights = torch.rand(num_points, dtype=F64, generator=generator)
    pseudocoreset = Pseudocoreset(points, 1000, weights * 1000 / weights.sum())
    torch.manual_seed(seed)
    prior = TrackedPseudocoresetPrior(pseudocoreset, 2, num_live, num_scored)
    return VAE((6,), FixedGaussian(0.1, (0, 1)), prior, SmallEncoder(), nn.Linear(2, 6)).double()


def examples(count: int = 40, seed: int = 3) -> Tensor:
    return torch.rand(count, 6, dtype=F64, generator=torch.Generator().manual_seed(seed))


def training_terms(model: VAE, x: Tensor, beta: float = 1.0, seed: int = 1) -> ELBOTerms:
    generator = torch.Generator().manual_seed(seed)
    return ELBO(model)(x, indices=torch.arange(len(x)), beta=beta, generator=generator)


def test_with_all_points_live_training_is_exact():
    model, x = small_model(num_live=5), examples()
    exact = PseudocoresetPrior(model.prior.pseudocoreset)
    exact.log_variance = model.prior.log_variance
    terms = training_terms(model, x)
    (terms.loss + Tracking(model.prior).loss_term(model, terms)).backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.prior = exact
    model.zero_grad()
    training_terms(model, x).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=0, atol=1e-12)
    assert terms.prior.made.rows == slice(0, 5)


def test_each_point_is_live_in_turn_and_the_rest_stand_at_their_targets():
    model, x = small_model(num_live=2), examples()
    seen: list[int] = []
    for _ in range(6):
        before = model.prior.targets.clone()
        terms = training_terms(model, x)
        made = terms.prior.made
        live = list(range(5))[made.rows]
        seen += live
        resting = [m for m in range(5) if m not in live]
        if len(seen) > 2:
            assert torch.equal(made.mixture_means[resting].detach(), before[resting])
        with torch.no_grad():
            here = model.encode(model.prior.pseudocoreset.points).mean
            torch.testing.assert_close(made.mixture_means[made.rows], here[made.rows])
        terms.loss.backward()
        model.prior.advance(made.rows, made.means.detach())
        model.prior.targets += 0.1  # anything that is not where the points are
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_evaluation_encodes_every_point_and_ignores_targets():
    model = small_model(num_live=2)
    training_terms(model, examples()).loss.backward()
    model.prior.targets += 7
    z = torch.randn(9, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        means = model.encode(model.prior.pseudocoreset.points).mean
        expected = NormalMixture(means, model.prior.log_variance, model.prior.pseudocoreset.probabilities.log())
        torch.testing.assert_close(model.prior_distribution().log_prob(z), expected.log_prob(z))


def follow(model: VAE, rule: Tracking, x: Tensor, beta: float = 1.0, seed: int = 1) -> None:
    terms = training_terms(model, x, beta, seed)
    (terms.loss + rule.loss_term(model, terms)).backward()
    rule.step(model, terms)


@pytest.mark.parametrize("beta", [1.0, 0.1])
def test_weights_follow_the_mean_responsibilities(beta):
    model, x = small_model(num_live=2), examples()
    old = model.prior.pseudocoreset.probabilities.clone()
    with torch.no_grad():
        means = model.encode(model.prior.pseudocoreset.points).mean  # where targets begin
        z = model.encode(x).sample((1,), generator=torch.Generator().manual_seed(1))[0]
        distance = (z[:, None] - means).square().sum(2)
        responsibilities = torch.softmax(old.log() - 0.5 * distance / model.prior.log_variance.exp(), 1).mean(0)
    follow(model, Tracking(model.prior, memory=32), x, beta)
    expected = 0.75 * old + 0.25 * responsibilities  # 40 examples of the 32 x 5 that weights remember
    torch.testing.assert_close(model.prior.pseudocoreset.probabilities, expected, rtol=0, atol=1e-12)


def test_the_loss_term_is_the_curvature_of_the_steps_that_a_point_missed():
    # The second derivative of the loss in a lone component's mean is beta w / sigma^2, here of two steps.
    model, x = small_model(num_live=2), examples()
    terms = training_terms(model, x, beta=0.3)
    made = terms.prior.made
    model.prior.targets[:2] = torch.tensor([[1.0, -1.0], [0.3, 0.2]], dtype=F64)
    pull = Tracking(model.prior).loss_term(model, terms)
    precision, weights = 1 / model.prior.log_variance.exp(), model.prior.pseudocoreset.probabilities
    gaps = made.means - model.prior.targets[:2]
    expected = sum(0.5 * 0.3 * 2 * weights[m] * precision * gap.square().sum() for m, gap in enumerate(gaps))
    torch.testing.assert_close(pull, expected.detach() + 0 * pull, rtol=1e-12, atol=0)
    (in_points,) = torch.autograd.grad(pull, made.points, retain_graph=True)
    assert in_points.abs().min(1).values.max() > 0
    (in_variance,) = torch.autograd.grad(pull, model.prior.log_variance, allow_unused=True)
    assert in_variance is None  # the variance must not grow to escape


def test_a_point_takes_a_share_of_its_own_reconstruction():
    models = [small_model(num_live=2) for _ in range(2)]
    moved = []
    for model, rate in zip(models, (0.0, 0.25 / 12), strict=True):  # three turns, four rounds
        model.decoder.weight.data.uniform_(0, 0.1, generator=torch.Generator().manual_seed(2))
        terms = training_terms(model, examples())
        rule = Tracking(model.prior, step_size=1e-4, decoded_rate=rate)
        reconstruction = model.likelihood.mean(model.decoder(terms.prior.made.means)).detach()
        (terms.loss + rule.loss_term(model, terms)).backward()
        rule.step(model, terms)
        moved.append(model.prior.pseudocoreset.points[:2].clone())
    expected = (0.75 * moved[0] + 0.25 * reconstruction).clamp(0, 1)
    torch.testing.assert_close(moved[1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("num_live", "num_turns"), [(1, 5), (2, 3), (5, 1)])
def test_points_move_as_far_in_as_many_steps_however_many_are_live(num_live, num_turns):
    model = small_model(num_live=num_live)
    rule = Tracking(model.prior, step_size=1e-4, decoded_rate=0.0)
    model.prior.pseudocoreset.assign(torch.full((5, 6), 0.5, dtype=F64), model.prior.pseudocoreset.weights)
    follow(model, rule, examples())
    moved = (model.prior.pseudocoreset.points[:num_live] - 0.5).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 4e-4 * num_turns), rtol=1e-3, atol=0)  # Adam's first step


def test_a_model_with_another_prior_is_refused():
    model = small_model(num_live=2)
    rule = Tracking(model.prior)
    model.prior = PseudocoresetPrior(model.prior.pseudocoreset)
    terms = training_terms(model, examples())
    with pytest.raises(ValueError, match="use TrackedPseudocoresetPrior"):
        rule.loss_term(model, terms)


def test_no_rule_is_built_from_a_prior_without_targets():
    with pytest.raises(ValueError, match="use TrackedPseudocoresetPrior"):
        Tracking(PseudocoresetPrior(small_model(num_live=2).prior.pseudocoreset))


def test_points_move_in_one_round_of_four():
    model, x = small_model(num_live=2), examples()
    rule = Tracking(model.prior)
    moved = []
    for step in range(15):  # rounds of three turns
        before = model.prior.pseudocoreset.points.clone()
        follow(model, rule, x, seed=step)
        if not torch.equal(before, model.prior.pseudocoreset.points):
            moved.append(step)
    assert moved == [0, 8, 10, 12]  # place 0 of round 0, 2 of round 2, 1 of round 3; round 4 is as round 0
    num_moves = rule.point_powers[:, 0].log() / math.log(0.9)
    assert num_moves.round().tolist() == [2, 2, 1, 1, 1]


def test_targets_move_along_the_gradient_of_the_mixture():
    model, x = small_model(num_live=2), examples()
    rule = Tracking(model.prior, target_step_size=1e-3)
    follow(model, rule, x)  # the second step looks at targets that have left their points
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        z = model.encode(x).sample((1,), generator=generator)[0]
        before = model.prior.targets.clone()
    resting = [0, 1, 4]  # the second step encodes points 2 and 3

    def mean_log_density(targets: Tensor) -> float:
        mixture_means = targets.clone()
        with torch.no_grad():
            mixture_means[2:4] = model.encode(model.prior.pseudocoreset.points[2:4]).mean
            weights = model.prior.pseudocoreset.probabilities.log()
            return float(NormalMixture(mixture_means, model.prior.log_variance, weights).log_prob(z).mean())

    differences = torch.zeros(5, 2, dtype=F64)
    for m in resting:
        for axis in range(2):
            high, low = before.clone(), before.clone()
            high[m, axis] += 1e-5
            low[m, axis] -= 1e-5
            differences[m, axis] = (mean_log_density(high) - mean_log_density(low)) / 2e-5
    terms = training_terms(model, x)
    (terms.loss + rule.loss_term(model, terms)).backward()
    gradient = terms.prior.made.mixture_means.grad
    torch.testing.assert_close(gradient[resting], -differences[resting], rtol=0, atol=1e-8)
    rule = Tracking(model.prior, target_step_size=1e-3)  # its first step goes along the signs
    rule.step(model, terms)
    moved = (model.prior.targets - before)[resting]
    torch.testing.assert_close(moved, 1e-3 * differences[resting].sign(), rtol=1e-4, atol=0)


def test_points_keep_to_the_range_and_weights_to_the_simplex():
    model, x = small_model(num_live=2), examples()
    rule = Tracking(model.prior, step_size=5.0, target_step_size=1.0, memory=1e-3)
    for seed in range(20):
        follow(model, rule, x, seed=seed)
        pseudocoreset = model.prior.pseudocoreset
        assert pseudocoreset.points.min() >= 0
        assert pseudocoreset.points.max() <= 1
        assert pseudocoreset.weights.min() >= 0
        assert float(pseudocoreset.weights.sum()) == pytest.approx(1000)


def test_on_a_network_at_rest_it_comes_near_to_the_best_mixture():
    # Three kinds of examples, and six points that all start among the first kind.
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.1] * 6, [0.9] * 3 + [0.1] * 3, [0.1] * 3 + [0.9] * 3], dtype=F64)
    kind = torch.randint(3, (600,), generator=generator)
    x = (centres[kind] + 0.05 * torch.randn(600, 6, dtype=F64, generator=generator)).clamp(0, 1)
    model = small_model(num_live=2, num_points=6)
    model.prior.pseudocoreset.assign(x[kind == 0][:6], torch.full((6,), 1000 / 6, dtype=F64))
    nn.init.constant_(model.prior.log_variance, -3.0)
    with torch.no_grad():
        model.encoder.mean.weight *= 10  # the three kinds lie apart in the latent space
        z = model.encode(x).sample(generator=generator)
        start = float(model.prior_distribution().log_prob(z).mean())
    best = best_log_density(z, 6, model.prior.log_variance.detach())
    rule = Tracking(model.prior, step_size=8e-4, decoded_rate=0.0)  # the decoder was never trained
    for seed in range(1500):
        rows = torch.randint(600, (50,), generator=generator)
        follow(model, rule, x[rows], seed=seed)
    with torch.no_grad():
        end = float(model.prior_distribution().log_prob(z).mean())
    assert end > start + 0.9 * (best - start)


def best_log_density(z: Tensor, num_components: int, log_variance: Tensor) -> float:
    """EM on means that are free, from k-means++ starts, written out."""
    from sklearn.cluster import kmeans_plusplus

    found = []
    for seed in range(3):
        means = torch.from_numpy(kmeans_plusplus(z.numpy(), num_components, random_state=seed)[0])
        weights = torch.full((num_components,), 1 / num_components, dtype=F64)
        for _ in range(200):
            distance = (z[:, None] - means).square().sum(2)
            joint = weights.log() - 0.5 * distance / log_variance.exp()
            responsibilities = joint.softmax(1)
            weights = responsibilities.mean(0)
            means = responsibilities.T @ z / responsibilities.sum(0)[:, None]
        found.append(float(NormalMixture(means, log_variance, weights.log()).log_prob(z).mean()))
    return max(found)


def test_a_step_without_gradients_says_what_is_missing():
    model, x = small_model(num_live=2), examples()
    rule = Tracking(model.prior)
    with pytest.raises(ValueError, match="with indices first"):
        rule.loss_term(model, ELBO(model)(x))
    terms = training_terms(model, x)
    with pytest.raises(RuntimeError, match="call backward"):
        rule.step(model, terms)


def test_no_step_is_taken_twice():
    model, x = small_model(num_live=2), examples()
    rule, terms = Tracking(model.prior), training_terms(model, x)
    (terms.loss + rule.loss_term(model, terms)).backward()
    rule.step(model, terms)
    before = state_of(model, rule)
    with pytest.raises(RuntimeError, match="call backward"):
        rule.step(model, terms)
    assert_same_state(before, state_of(model, rule))


def state_of(model: VAE, rule: Tracking) -> dict[str, Tensor]:
    """Return all that a step changes."""
    state = {f"prior.{name}": value for name, value in model.prior.state_dict().items()}
    state |= {f"rule.{name}": value for name, value in rule.state_dict().items()}
    return {name: value.clone() for name, value in state.items()}


def assert_same_state(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


@pytest.mark.parametrize("scale", [1000.0, 0.25])
@pytest.mark.parametrize("num_before", [0, 1, 8])  # the first step and the ninth move points, the second does not
def test_a_scaled_loss_is_refused_and_nothing_moves(scale, num_before):
    """What a gradient scaler or accumulated gradients would give: weights would follow the scale."""
    model, x = small_model(num_live=2), examples()
    rule = Tracking(model.prior)
    for seed in range(num_before):
        follow(model, rule, x, seed=seed)
    terms = training_terms(model, x)
    (scale * (terms.loss + rule.loss_term(model, terms))).backward()
    assert (terms.prior.made.points.grad is not None) == (num_before != 1)
    before = state_of(model, rule)
    with pytest.raises(ValueError, match="unscale gradients"):
        rule.step(model, terms)
    assert_same_state(before, state_of(model, rule))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("num_before", [0, 8])
def test_gradients_in_points_that_are_not_finite_are_refused_and_nothing_moves(value, num_before):
    model, x = small_model(num_live=2), examples()
    rule = Tracking(model.prior)
    for seed in range(num_before):
        follow(model, rule, x, seed=seed)
    terms = training_terms(model, x)
    (terms.loss + rule.loss_term(model, terms)).backward()
    terms.prior.made.points.grad[0, 3] = value
    before = state_of(model, rule)
    with pytest.raises(ValueError, match="gradients of the pseudocoreset are not finite"):
        rule.step(model, terms)
    assert_same_state(before, state_of(model, rule))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("which", ["places", "in means", "in log weights", "in points", "decoded"])
def test_whatever_else_is_not_finite_is_refused_and_nothing_moves(which, value):
    model, x = small_model(num_live=2), examples()
    model.prior.pseudocoreset.data_range = None  # or what is decoded would be clamped
    rule, terms = Tracking(model.prior), training_terms(model, x)
    (terms.loss + rule.loss_term(model, terms)).backward()
    summed = dict(
        zip(["places", "in means", "in log weights", "in points", "decoded"], rule.to_sum(model, terms), strict=True)
    )
    summed[which].view(-1)[1] = value
    before = state_of(model, rule)
    with pytest.raises(ValueError, match=r"finite|infinitely far|unscale gradients"):
        rule.step(model, terms, list(summed.values()))
    assert_same_state(before, state_of(model, rule))


@pytest.mark.parametrize("num_scored", [10, 6])
def test_with_a_single_part_nothing_is_left_out(num_scored):
    x = examples(6)
    models = [small_model(num_live=2, num_points=10, num_scored=count) for count in (None, num_scored)]
    rules = [Tracking(model.prior, memory=40) for model in models]
    for seed in range(7):
        for model, rule in zip(models, rules, strict=True):
            follow(model, rule, x, seed=seed)
    assert_same_state(*(state_of(model, rule) for model, rule in zip(models, rules, strict=True)))


@pytest.mark.parametrize(("num_scored", "num_members"), [(31, 61), (30, 21 + 1)])
def test_components_are_left_out_only_if_there_are_two_parts(num_scored, num_members):
    model = small_model(num_live=2, num_points=61, num_scored=num_scored)
    terms = training_terms(model, examples(6))
    members = torch.arange(61)[terms.prior.made.members]
    assert len(members) == num_members  # every third one, and 1, which is live


def test_parts_take_turns_so_that_the_density_is_right_on_average():
    model, x = (
        small_model(num_live=2, num_points=61, num_scored=8),
        examples(6),
    )  # seven parts of nine components or fewer
    follow(model, Tracking(model.prior), x)
    z = model.encode(x).sample((1,), generator=torch.Generator().manual_seed(1))
    densities, seen = [], []
    for _ in range(7):
        terms = training_terms(model, x)
        made = terms.prior.made
        densities.append((model.encode(x).log_prob(z[0]) - terms.kl["z"]).exp().detach())
        seen.append(set(made.members.tolist()))
        turn = model.prior.turn.clone()
        model.prior.advance(made.rows, model.prior.targets[made.rows].clone())
        model.prior.turn.copy_(turn)  # the same points are live in all seven
    means = model.prior.targets.clone()
    means[made.rows] = made.means.detach()
    whole = NormalMixture(means, model.prior.log_variance, model.prior.pseudocoreset.probabilities.log())
    torch.testing.assert_close(torch.stack(densities).mean(0), whole.log_prob(z)[0].exp().detach())
    assert max(map(len, seen)) <= 2 + 9
    assert set.union(*seen) == set(range(61))


@pytest.mark.parametrize(
    ("num_points", "num_scored"), [(61, 6), (64, 16), (48, 8)]
)  # 31 turns and 11 parts, 32 and 5, 24 and 7
def test_over_all_turns_each_component_counts_as_often_as_any_other(num_points, num_scored):
    """Live points count once even if it is their part's turn, so the two must not always fall together."""
    model, x = small_model(num_live=2, num_points=num_points, num_scored=num_scored), examples(6)
    probabilities = model.prior.pseudocoreset.probabilities
    num_steps = math.lcm(model.prior.steps_between_moves, model.prior.num_parts)
    counts, moves = torch.zeros(num_points, dtype=F64), Counter()
    with torch.no_grad():
        for _ in range(num_steps):
            made = training_terms(model, x).prior.made
            moves[made.rows.start, int(model.prior.part)] += made.points.requires_grad
            counts[made.members] += made.log_weights.exp() / probabilities[made.members]
            model.prior.advance(made.rows, made.means)
    torch.testing.assert_close(counts / num_steps, torch.ones(num_points, dtype=F64))
    assert set(moves.values()) == {1}  # every point moves in the turn of every part
    assert len(moves) == model.prior.num_turns * model.prior.num_parts


def test_what_stands_for_others_moves_and_gains_weight_and_the_rest_waits():
    model, x = small_model(num_live=2, num_points=61, num_scored=8), examples(6)
    rule = Tracking(model.prior, memory=12)
    follow(model, rule, x)
    before = model.prior.targets.clone(), model.prior.pseudocoreset.probabilities.clone()
    terms = training_terms(model, x)
    made = terms.prior.made
    members, means = made.members, made.mixture_means.detach()
    assert members.tolist() == sorted({2, 3, *range(1, 61, 7)})  # whose turn it is, and the second step's part
    counts = torch.tensor([1.0 if m in (2, 3) else 7.0 for m in members.tolist()], dtype=F64)
    z = model.encode(x).sample((1,), generator=torch.Generator().manual_seed(1))[0]
    log_share = -0.5 * torch.cdist(z, means).square() * torch.exp(-model.prior.log_variance)
    share = torch.softmax(log_share + (before[1][members] * counts).log(), 1).mean(0).detach()
    (terms.loss + rule.loss_term(model, terms)).backward()
    rule.step(model, terms)
    rate = 6 / (12 * 61)
    expected = before[1] * (1 - rate)
    expected[members] += rate * share
    torch.testing.assert_close(model.prior.pseudocoreset.probabilities, expected)
    resting = [m for m in range(61) if m not in members.tolist()]
    assert torch.equal(model.prior.targets[resting], before[0][resting])
    assert (model.prior.targets[members] != before[0][members]).any(1).all()


def test_a_loop_that_forgets_the_rule_is_told():
    model, x = small_model(num_live=2), examples(4)
    rule = Tracking(model.prior)
    for _ in range(150):  # with the rule, however long
        terms = training_terms(model, x)
        (terms.loss + rule.loss_term(model, terms)).backward()
        rule.step(model, terms)
    with torch.no_grad():
        for _ in range(150):  # to look at a loss is no training
            training_terms(model, x)
    for _ in range(99):
        training_terms(model, x)
    with pytest.warns(UserWarning, match=r"no point has moved in 100 training steps; after each of them, call step"):
        training_terms(model, x)


def test_looking_at_a_training_loss_changes_nothing():
    model, x = small_model(num_live=2), examples()
    follow(model, Tracking(model.prior), x)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        training_terms(model, x)
    terms = training_terms(model, x)
    assert terms.loss.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    copy.deepcopy(model)  # a step under way is no obstacle


def test_the_pseudocoreset_follows_a_frozen_network_too():
    model, x = small_model(num_live=2), examples()
    model.requires_grad_(False)
    rule, moved = Tracking(model.prior), set()
    for seed in range(4):
        before = {name: value.clone() for name, value in model.prior.state_dict().items()}
        follow(model, rule, x, seed=seed)
        after = model.prior.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert {"targets", "pseudocoreset.probabilities"} <= changed
        moved.add("pseudocoreset.points" in changed)
    assert moved == {True, False}  # points move in some steps only


def test_a_point_that_waits_very_long_does_not_move_further():
    """It would leap over all the data's range, or become its own reconstruction."""
    displacements = []
    for num_points in (80, 81, 800):  # 320 steps between moves, 324, 3200
        model, x = small_model(num_live=1, num_points=num_points), examples()
        model.prior.pseudocoreset.data_range = None
        rule = Tracking(model.prior, decoded_rate=0.0)
        before = model.prior.pseudocoreset.points[0].clone()
        follow(model, rule, x)
        displacements.append((model.prior.pseudocoreset.points[0] - before).abs())
    for displacement in displacements:  # Adam's first step is one step size in each direction
        torch.testing.assert_close(displacement, torch.full((6,), 320 * rule.step_size, dtype=F64), rtol=5e-3, atol=0)


def test_without_kl_terms_there_is_nothing_to_follow():
    model = small_model(num_live=2)
    terms = training_terms(model, examples(), beta=0.0)
    with pytest.raises(ValueError, match="beta must be positive"):
        Tracking(model.prior).loss_term(model, terms)


def test_targets_start_again_where_the_whole_network_puts_the_point():
    """Not where it is under the dropout of that step: the next step drops other features."""
    model = small_model(num_live=2)
    model.encoder.hidden = nn.Sequential(SharedDropout(6, 0.5), model.encoder.hidden)
    rule = Tracking(model.prior, target_step_size=1e-12)
    draw_dropout(model, torch.Generator().manual_seed(0))
    terms = training_terms(model, examples())
    made = terms.prior.made
    with torch.no_grad():
        whole = model.encode(made.points).mean
    assert (whole - made.means).abs().max() > 0.01
    (terms.loss + rule.loss_term(model, terms)).backward()
    rule.step(model, terms)
    torch.testing.assert_close(model.prior.targets[made.rows], whole, atol=1e-9, rtol=0)
