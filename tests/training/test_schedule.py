"""The share of a training that is done, by steps and by the clock."""

import functools
import json
import math

import numpy as np
import pytest

from bype.data.prepare import prepare
from bype.distributed import Group
from bype.run.checkpoint import CheckpointFolder
from bype.run.config import ConfigError, TrainingConfig
from bype.run.directory import RunError
from bype.run.pace import Pace, read_paces
from bype.training import loop, schedule
from bype.training.loop import train
from bype.training.schedule import Schedule
from small_runs import assert_same_tensors, image_store


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def timed(seconds, clock, known=(), write=lambda paces: None, **changes):
    config = TrainingConfig(length=f"{seconds} seconds", decay=True, **changes)
    return Schedule(config, 10, list(known), write, Group(), clock)


def run_by(clock, plan, seconds_of_step, step=0):
    plan.resume(step)
    while plan.share < 1:
        clock.now += seconds_of_step(step)
        step += 1
        plan.advance(step)
    return step


@pytest.mark.parametrize(
    ("warm_up", "expected"),
    [
        ("8 steps", [1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8, 1, 1, 1]),
        ("4 epochs", [1 / 4] * 3 + [2 / 4] * 3 + [3 / 4] * 3 + [1]),
        ("0 epochs", [1] * 10),
    ],
)
def test_the_weight_of_the_kl_terms_rises_to_one(warm_up, expected):
    plan = Schedule(TrainingConfig(warm_up=warm_up), 3, [], lambda paces: None, Group(), Clock())
    assert [plan.beta(step) for step in range(10)] == expected


def test_the_last_weight_of_the_kl_terms_is_known_unless_the_clock_decides():
    def last(**settings):
        return Schedule(TrainingConfig(**settings), 3, [], lambda paces: None, Group(), Clock()).last_beta

    assert last(length="40 epochs", warm_up="100 epochs") == 0.4
    assert last(length="100 epochs", warm_up="100 epochs") == 1
    assert last(length="30 steps", warm_up="100 epochs") == 0.1
    assert last(length="30 seconds", warm_up="100 epochs") is None


@pytest.mark.parametrize(
    ("killed_at", "resumed_at", "most"),
    [(None, None, 61), (0.35, 0.35, 67), (0.55, 0.15, 86), (0.55, 0.0, 97)],
    ids=["whole", "killed", "killed long after the checkpoint", "killed before the first checkpoint"],
)
def test_the_last_validation_is_within_the_time(killed_at, resumed_at, most):
    """Validations take 6 of 60 seconds each, at the start, at every tenth and at the end.

    What passed between the last reading of the clock and the kill is lost: up to a validation. Steps that are done
    again follow the log, whatever time they take.
    """
    clock, kept, steps = Clock(), [], {}

    def validate(plan):
        clock.now += 6
        plan.reserve(6)

    def go(plan, step, until):
        while plan.share < until:
            clock.now += 0.05
            step += 1
            plan.advance(step)
            steps[step] = plan.share
            if plan.is_due("10 percent", step):
                validate(plan)
        return step

    def write(paces):
        kept[:] = paces

    plan = timed(60, clock, write=write)
    plan.resume(0)
    validate(plan)
    step = 0
    if killed_at is not None:
        go(plan, step, killed_at)
        step = min((step for step, share in steps.items() if share >= resumed_at > 0), default=0)
        plan = timed(60, clock, known=kept, write=write)
        plan.resume(step)
        if step == 0:
            validate(plan)
    go(plan, step, 1.0)
    assert most - 2 <= clock.now <= most
    assert plan.share == 1


def test_a_validation_that_was_slow_once_does_not_stop_the_clock():
    clock = Clock()
    plan = timed(60, clock)
    plan.resume(0)
    step = num_validations = 0
    while plan.share < 1:
        clock.now += 0.05
        step += 1
        plan.advance(step)
        if plan.is_due("10 percent", step):
            num_validations += 1
            seconds = 10 if num_validations == 5 else 1
            clock.now += seconds
            plan.reserve(seconds)
    assert clock.now == pytest.approx(60, abs=1.5)


def test_a_length_in_epochs_is_its_steps():
    config = TrainingConfig(length="3 epochs", learning_rate=1.0, decay=True)
    plan = Schedule(config, 10, [], lambda paces: None, Group())
    plan.resume(0)
    shares = [plan.share]
    for step in range(1, 31):
        plan.advance(step)
        shares.append(plan.share)
    np.testing.assert_allclose(shares, np.arange(31) / 30)
    plan.resume(15)
    assert plan.learning_rate(15) == pytest.approx(0.5 * 16 / 20)  # half a cosine, and the first 20 steps


@pytest.mark.parametrize(
    "seconds_of_step",
    [
        lambda step: 0.01,
        lambda step: 0.7,
        lambda step: 0.02 if step < 900 else 0.06,
        lambda step: 2 * (step == 0) + 0.05,
    ],
    ids=["quick", "slow", "busier later", "slow first step"],
)
def test_the_time_asked_for_is_kept(seconds_of_step):
    clock = Clock()
    run_by(clock, timed(60, clock), seconds_of_step)
    assert clock.now == pytest.approx(60, rel=0.05)


def test_the_log_makes_a_second_run_take_the_same_steps_whatever_its_clock_says():
    clock, kept = Clock(), []
    noisy = np.random.default_rng(0).uniform(0.01, 0.05, 10**5)
    first = timed(30, clock, write=lambda paces: kept.append(paces))
    rates = []
    first.resume(0)
    step = 0
    while first.share < 1:
        rates.append(first.learning_rate(step))
        clock.now += noisy[step]
        step += 1
        first.advance(step)
    slow = Clock()
    again = timed(30, slow, known=kept[-1], write=lambda paces: pytest.fail("the log is complete"))
    again.resume(0)
    for k in range(step):
        assert again.learning_rate(k) == rates[k]
        slow.now += 5.0
        again.advance(k + 1)
    assert again.share == 1


def test_a_process_that_resumes_at_any_step_is_where_the_other_was():
    clock, kept = Clock(), [[]]
    plan = timed(20, clock, write=kept.append)
    noisy = np.random.default_rng(1).exponential(0.05, 10**5)
    noisy[:3] = 1.0  # the first steps are slow, so that the share runs ahead of the clock and has to wait
    plan.resume(0)
    step, shares = 0, [0.0]
    while plan.share < 1:
        clock.now += noisy[step]
        step += 1
        plan.advance(step)
        shares.append(plan.share)
    assert shares == sorted(shares)
    for place in range(0, step, 7):
        other = timed(20, Clock(), known=kept[-1])
        other.resume(place)
        assert other.share == shares[place]
        other.advance(place + 1)
        assert other.share == shares[place + 1]


def test_events_by_percent_happen_once_each():
    clock = Clock()
    plan = timed(20, clock)
    plan.resume(0)
    step, count = 0, 0
    while plan.share < 1:
        clock.now += 0.013
        step += 1
        plan.advance(step)
        count += plan.is_due("5 percent", step)
    assert count == 20


@pytest.mark.parametrize(("length", "every", "number"), [(100, 1, 100), (200, 1, 100), (150, 3, 33), (7, 50, 2)])
def test_events_by_percent_are_where_they_are_expected(length, every, number):
    """As binary fractions, some shares are a little below what they should be: 100 * 0.29 is 28.999…"""
    plan = Schedule(TrainingConfig(length=f"{length} steps", warm_up="1 step"), 10, [], lambda _: None, Group())
    plan.resume(0)
    due = []
    for step in range(1, length + 1):
        plan.advance(step)
        if plan.is_due(f"{every} percent", step):
            due.append(step)
    assert due == [-(-length * every * k // 100) for k in range(1, number + 1)]


def test_lengths_that_make_no_sense_are_refused():
    for changes in ({"length": "50 percent"}, {"warm_up": "9 seconds"}, {"validate_every": "9 seconds"}):
        with pytest.raises(ConfigError):
            TrainingConfig(**changes)
    with pytest.raises(ValueError, match="step < next"):
        Pace(4, 1.0, 4)


@pytest.fixture
def store(tmp_path):
    return image_store(tmp_path, count=300)


CONFIG = TrainingConfig(
    network="dense",
    likelihood="learned-gaussian",
    components=20,
    latent_dim=4,
    hidden=16,
    batch_size=30,
    learning_rate=2e-3,
    dropout=0.2,
    flips=True,
    shifts=1,
    decay=True,
    length="2 seconds",
    warm_up="0 epochs",
    patience="0 epochs",
    validate_every="20 percent",
    checkpoint_every="20 percent",
)


def test_a_run_by_the_clock_is_replayed_to_the_bit(store, tmp_path):
    first = train(CONFIG, store, tmp_path / "first")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "config.json").write_bytes((tmp_path / "first" / "config.json").read_bytes())
    (tmp_path / "second" / "pace.json").write_bytes((tmp_path / "first" / "pace.json").read_bytes())
    second = train(CONFIG, store, tmp_path / "second")
    assert (first.step, first.best) == (second.step, second.best)
    loaded = [
        CheckpointFolder(tmp_path / name / "checkpoints", 2).load_newest(print, 2**26) for name in ("first", "second")
    ]
    assert_same_tensors(*loaded)
    lines = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("first", "second")]
    assert lines[0] == lines[1]


def test_a_stopped_run_resumes_by_its_log(store, tmp_path, monkeypatch):
    """Stopped in the middle and resumed, then replayed without a stop: the same model.

    The clock counts steps: on a busy machine, two real seconds may be over before the tenth step.
    """
    steps = 0
    original = loop.Trainer._wish_to_stop

    def wish(trainer):
        nonlocal steps
        steps += 1
        found = original(trainer)
        return found + 1 if steps == 10 else found

    monkeypatch.setattr(loop, "Schedule", functools.partial(Schedule, clock=lambda: 0.01 * steps))
    monkeypatch.setattr(loop.Trainer, "_wish_to_stop", wish)
    assert train(CONFIG, store, tmp_path / "run").state == "stopped"
    resumed = train(CONFIG, store, tmp_path / "run")
    assert resumed.state == "finished"
    (tmp_path / "again").mkdir()
    for name in ("config.json", "pace.json"):
        (tmp_path / "again" / name).write_bytes((tmp_path / "run" / name).read_bytes())
    replayed = train(CONFIG, store, tmp_path / "again")
    assert (resumed.step, resumed.best) == (replayed.step, replayed.best)
    assert_same_tensors(
        *(CheckpointFolder(tmp_path / n / "checkpoints", 2).load_newest(print, 2**26) for n in ("run", "again"))
    )


def test_a_broken_log_is_refused(store, tmp_path):
    train(CONFIG, store, tmp_path / "run")
    fields = json.loads((tmp_path / "run" / "pace.json").read_text())
    assert read_paces(tmp_path / "run")
    for broken in ({**fields, "paces": [{"step": 3, "seconds": 1.0, "next": 2}]}, {**fields, "version": 7}, []):
        (tmp_path / "run" / "pace.json").write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=r"pace\.json"):
            read_paces(tmp_path / "run")


@pytest.mark.parametrize("paces", [None, [{"step": 1, "seconds": 0.1, "next": 2}]], ids=["missing", "too short"])
def test_without_its_log_a_run_by_the_clock_is_refused(store, tmp_path, paces):
    train(CONFIG, store, tmp_path / "run")
    path = tmp_path / "run" / "pace.json"
    if paces is None:
        path.unlink()
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), "paces": paces}))
    with pytest.raises(RunError, match=r"pace\.json is missing or does not reach step \d+.*choose another --out"):
        train(CONFIG, store, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"


def test_the_learning_rate_ends_at_zero():
    clock = Clock()
    plan = timed(10, clock, learning_rate=0.1)
    run_by(clock, plan, lambda step: 0.01)
    assert plan.learning_rate(10**6) == pytest.approx(0.0, abs=1e-12)
    assert math.isclose(schedule.kl_weight(1, 0), 1.0)


def test_training_examples_of_a_table_may_have_any_scale(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 2)) @ generator.normal(size=(2, 5)) + 0.1 * generator.normal(size=(300, 5))
    best = []
    for scale in (np.ones(5), np.array([1e-4, 1.0, 3e6, 1.0, 1e2])):
        folder = tmp_path / f"{scale[2]:g}"
        folder.mkdir()
        np.save(folder / "x.npy", (x * scale).astype(np.float32))
        prepare(folder / "x.npy", folder / "store")
        config = TrainingConfig(
            network="dense", likelihood="diagonal-gaussian", components=20, latent_dim=2, hidden=16, length="30 steps",
            validate_every="10 steps", warm_up="0 epochs", batch_size=50,
        )  # fmt: skip
        best.append(train(config, folder / "store", folder / "run").best - np.log(scale).sum())
    assert best[0] == pytest.approx(best[1], abs=0.02)
