"""The planned claim: decided by a paired t-test, and only when all numbers are there."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import t, ttest_rel

from bype.paper.cells import Cell
from bype.paper.claim import OURS, T_LIMIT, THEIRS, claim, paired_t
from bype.paper.records import Records


def record(cell: Cell, seed: int, value: float, protocol: str = "full"):
    density = SimpleNamespace(negative_log_likelihood=SimpleNamespace(value=value))
    return SimpleNamespace(cell=dataclasses.replace(cell, seed=seed), protocol=protocol, density=density)


def lines(ours: list[float], theirs: list[float]) -> str:
    pairs = [(OURS, ours), (THEIRS, theirs)]
    return "\n".join(claim(Records(record(cell, k, v) for cell, values in pairs for k, v in enumerate(values))))


def test_t_is_that_of_scipy():
    random = np.random.default_rng(0)
    for _ in range(20):
        ours, theirs = random.normal(21, 0.02, (2, 3))
        assert paired_t(list(theirs - ours)) == pytest.approx(ttest_rel(theirs, ours).statistic, rel=1e-9)
    assert pytest.approx(t.ppf(0.95, df=2), abs=5e-4) == T_LIMIT


def test_the_claim_follows_the_test():
    assert "The claim is shown: t = 14.00" in lines([20.85, 20.86, 20.87], [20.90, 20.90, 20.92])
    assert "**not** shown" in lines([20.85, 20.86, 20.87], [20.86, 20.86, 20.92])
    assert "**not** shown" in lines([20.90, 20.90, 20.92], [20.85, 20.86, 20.87])  # worse for certain


def test_the_claim_waits_for_all_numbers():
    found = lines([20.85, 20.86, 20.87], [20.90, 20.90])
    assert "not decided" in found
    assert "| 2 | 20.870 | not yet run |  |" in found
    assert "| 1 | 20.860 | 20.900 | +0.040 |" in found


def test_reduced_numbers_do_not_count():
    found = Records([*(record(OURS, k, 20.8) for k in range(3)), *(record(THEIRS, k, 21, "reduced") for k in range(3))])
    assert "not decided" in "\n".join(claim(found))
