"""What all rules share: updates that are kept or taken back, and a rule that moves nothing."""

import math

import pytest
import torch
from torch import Tensor

from bype.models import mlp_vae
from bype.models.base import LatentModel
from bype.objective import ELBO
from bype.pseudocoreset.ascent import ELBOAscent
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.prior import PseudocoresetPrior
from bype.pseudocoreset.psvi import PSVI
from bype.pseudocoreset.rule import Rule, UpdateBatch
from bype.pseudocoreset.step_sizes import RestartedAdam
from bype.randomness import BatchSlice

SHAPE = (1, 4, 4)
RULES = {
    "ascent": lambda coreset: ELBOAscent(coreset, step_size=0.05, num_steps=3),
    "psvi": lambda coreset: PSVI(RestartedAdam(coreset, step_size=0.1)),
}


def make_model() -> LatentModel:
    torch.manual_seed(0)
    weights = torch.rand(6) + 0.2
    prior = PseudocoresetPrior(Pseudocoreset(torch.rand(6, *SHAPE), 100, 100 * weights / weights.sum()))
    return mlp_vae(SHAPE, prior, latent_dim=3, hidden=8)


def batches(count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(20, *SHAPE, generator=generator) for _ in range(count)]


def state_of(model: LatentModel) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def changed(before: dict[str, Tensor], model: LatentModel) -> set[str]:
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


class Measured:
    """A validation KL that is told beforehand, and what it was asked of."""

    def __init__(self, model: LatentModel, *values: float) -> None:
        self._model, self._values = model, iter(values)
        self.seen: list[Tensor] = []

    def __call__(self) -> float:
        self.seen.append(self._model.prior.pseudocoreset.points.clone())
        return next(self._values)


MOVED = {"prior.pseudocoreset.points", "prior.pseudocoreset.probabilities"}


@pytest.mark.parametrize("after", [3.0001, math.inf, math.nan])
def test_an_ascent_that_makes_the_kl_worse_is_taken_back_to_the_bit(after):
    model = make_model()
    before, kl = state_of(model), Measured(model, 3.0, after)
    found = RULES["ascent"](model.prior.pseudocoreset).update(model, batches(), validation_kl=kl)
    assert changed(before, model) == set()
    assert found["taken_back"] == 1
    assert (found["steps"], found["kl_before"]) == (3, 3.0)
    assert found["kl_after"] == pytest.approx(after, nan_ok=True)
    assert torch.equal(kl.seen[0], before["prior.pseudocoreset.points"])
    assert not torch.equal(kl.seen[1], kl.seen[0])  # it had moved


@pytest.mark.parametrize("after", [3.0, 2.5])
def test_an_ascent_that_makes_the_kl_no_worse_is_kept(after):
    model = make_model()
    before, kl = state_of(model), Measured(model, 3.0, after)
    found = RULES["ascent"](model.prior.pseudocoreset).update(model, batches(), validation_kl=kl)
    assert changed(before, model) == MOVED
    assert torch.equal(model.prior.pseudocoreset.points, kl.seen[1])
    assert "taken_back" not in found


def test_psvi_is_kept_though_the_kl_gets_worse():
    model = make_model()
    before, kl = state_of(model), Measured(model, 3.0, 9.0)
    found = RULES["psvi"](model.prior.pseudocoreset).update(model, batches(), validation_kl=kl)
    assert changed(before, model) == MOVED
    assert torch.equal(model.prior.pseudocoreset.points, kl.seen[1])
    assert (found["kl_before"], found["kl_after"]) == (3.0, 9.0)
    assert "taken_back" not in found


@pytest.mark.parametrize("name", RULES)
def test_an_update_after_one_that_was_taken_back_is_as_if_it_had_never_been(name):
    results = []
    for values in [(3.0, 2.0)], [(3.0, 4.0), (3.0, 2.0)]:
        model = make_model()
        rule = RULES[name](model.prior.pseudocoreset)
        for pair in values:
            generator = torch.Generator().manual_seed(2)
            rule.update(model, batches(), validation_kl=Measured(model, *pair), generator=generator)
        results.append(model.prior.pseudocoreset.points)
    assert torch.equal(*results) == (name == "ascent")  # psvi keeps its first update


@pytest.mark.parametrize("name", RULES)
def test_an_update_tells_its_steps_and_objectives_and_measures_nothing_unasked(name):
    model = make_model()
    rule = RULES[name](model.prior.pseudocoreset)
    objectives = []
    update_step = rule.update_step

    def spy(*arguments: object, **options: object) -> float:
        objectives.append(update_step(*arguments, **options))
        return objectives[-1]

    rule.update_step = spy
    found = rule.update(model, batches())
    assert found == {"steps": 3, "objective_first": objectives[0], "objective_last": objectives[2]}
    with pytest.raises(ValueError, match="at least one batch"):
        rule.update(model, [])


@pytest.mark.parametrize("name", RULES)
def test_plain_batches_draw_from_the_generator_and_others_from_their_own(name):
    results = []
    for is_plain in (True, False):
        model = make_model()
        generator = torch.Generator().manual_seed(2)
        given = batches() if is_plain else [UpdateBatch(x, BatchSlice(generator, slice(0, 20), 20)) for x in batches()]
        RULES[name](model.prior.pseudocoreset).update(model, given, generator=generator if is_plain else None)
        results.append(model.prior.pseudocoreset.points)
    assert torch.equal(*results)


def test_the_plain_rule_moves_nothing_and_has_no_updates():
    model, rule = make_model(), Rule()
    before = state_of(model)
    terms = ELBO(model)(torch.rand(5, *SHAPE), indices=torch.arange(5))
    assert rule.loss_term(model, terms) == 0.0
    terms.loss.backward()
    summed = rule.to_sum(model, terms, is_first=True)
    assert summed == []
    rule.step(model, terms, summed)
    assert changed(before, model) == set()
    with pytest.raises(NotImplementedError, match="no updates"):
        rule.update(model, batches())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("is_empty", [True, False])
def test_an_update_that_raises_leaves_everything_as_it_was(name, is_empty):
    model = make_model()
    rule = RULES[name](model.prior.pseudocoreset)
    rule.update(model, batches())  # so that the rule remembers something
    before, own = state_of(model), {key: value.clone() for key, value in rule.state_dict().items()}
    given = [] if is_empty else [*batches(1), torch.rand(20, 1, 5, 5)]
    with pytest.raises((ValueError, RuntimeError)):
        rule.update(model, given)
    assert changed(before, model) == set()
    assert all(torch.equal(value, own[key]) for key, value in rule.state_dict().items())


def test_an_update_whose_last_measurement_is_interrupted_is_taken_back():
    model = make_model()
    rule = RULES["ascent"](model.prior.pseudocoreset)
    before = state_of(model)
    with pytest.raises(StopIteration):
        rule.update(model, batches(), validation_kl=Measured(model, 1.0))  # the second measurement fails
    assert changed(before, model) == set()
