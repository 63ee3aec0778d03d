"""The state of a run and its way through checkpoints."""

import copy

import pytest
import torch

from bype.distributed import Group
from bype.objective import ELBOTerms
from bype.training.state import TrainingState, named_sums

FIELDS = {
    "step": 7,
    "best": 1.5,
    "best_step": 5,
    "metrics_bytes": 90,
    "is_update_due": True,
    "shares": [[3, {"kl": 0.1}], [4, {"kl": 0.2}]],
}


def test_one_process_gets_back_what_it_saved():
    state = TrainingState(step=3, sums={"kl": 0.1}, num_examples=5, best=None)
    assert TrainingState.from_fields(state.to_fields(Group()), Group()) == state


def test_as_many_processes_get_their_own_sums_and_another_number_loses_none():
    for rank, (count, value) in enumerate([(3, 0.1), (4, 0.2)]):
        state = TrainingState.from_fields(FIELDS, Group(rank, 2))
        assert (state.num_examples, state.sums) == (count, {"kl": value})
    assert TrainingState.from_fields(FIELDS, Group()).num_examples == 7
    others = [TrainingState.from_fields(FIELDS, Group(rank, 3)) for rank in range(3)]
    assert sum(state.num_examples for state in others) == 7
    assert sum(state.sums["kl"] for state in others) == pytest.approx(0.3)


def test_means_are_over_examples_with_the_full_weight_of_the_kl():
    """Two steps of unlike size in the warm-up: what is logged counts each example once, whatever beta is."""
    state = TrainingState()
    state.add(ELBOTerms(torch.tensor([-5.0, -7.0]), {"z": torch.tensor([1.0, 2.0])}, beta=0.1))
    state.add(ELBOTerms(torch.tensor([-1.0]), {"z": torch.tensor([0.0])}, beta=0.2))
    means = {"negative_elbo": 16 / 3, "negative_reconstruction": 13 / 3, "kl_z": 1.0}
    assert state.take_means(Group()) == pytest.approx(means)
    assert (state.sums, state.num_examples) == ({}, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "must not be negative"),
        ({"metrics_bytes": -1}, "must not be negative"),
        ({"step": True}, "step: True is not a whole number"),
        ({"best": "1"}, "best: '1' is not a number"),
        ({"is_update_due": 1}, "is_update_due: 1 is not true or false"),
        ({"best": float("inf")}, "best: inf is out of range"),
        ({"shares": []}, "shares must not be empty"),
        ({"shares": [[1, {"kl": "1"}]]}, r"shares\[0\]\[1\]\['kl'\]: '1' is not a number"),
        ({"shares": [[1.5, {}]]}, r"shares\[0\]\[0\]: 1.5 is not a whole number"),
        ({"shares": [[-1, {}]]}, "must not be negative"),
        ({"shares": [[1]]}, r"shares\[0\]: \[1\] is not a list of 2"),
        ({"shares": {"kl": 1}}, "shares: .* is not a list"),
        ({"more": 1}, "the field 'more' is unknown"),
    ],
)
def test_a_state_of_a_stranger_is_looked_at(change, message):
    with pytest.raises(ValueError, match=f"^its state is broken: .*{message}"):
        TrainingState.from_fields({**copy.deepcopy(FIELDS), **change}, Group())


def test_very_large_sums_come_back():
    state = TrainingState(sums={"kl": 2e40}, num_examples=3, best=-1e38)
    assert TrainingState.from_fields(state.to_fields(Group()), Group()) == state


def test_the_kl_of_each_level_has_its_own_name():
    terms = ELBOTerms(torch.tensor([1.0, 2.0]), {"z2": torch.tensor([3.0, 4.0]), "z1": torch.tensor([10.0, 20.0])})
    expected = {"negative_elbo": 34.0, "negative_reconstruction": -3.0, "kl_z2": 7.0, "kl_z1": 30.0}
    assert named_sums(terms) == expected
