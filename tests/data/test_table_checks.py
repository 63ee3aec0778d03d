"""Columns for which float32 has too few digits are refused, and numbers far from all others are named."""

import re

import numpy as np
import pytest

import bype
from bype.cli import main
from bype.data.prepare import prepare
from bype.data.sources import SourceError
from bype.data.table_checks import TableChecks

RNG = np.random.default_rng(0)
LOST = r"float32 has too few digits for column 'time' \(about 1e\+08, standard deviation [01][.\d]*\); subtract"


def far_table(count=200):
    return np.column_stack([RNG.normal(size=count), 1e8 + RNG.normal(size=count)])


def refused(table, step=37):
    """Return the columns that are refused when the table comes in pieces."""
    checks = TableChecks(table.shape[1])
    for first in range(0, len(table), step):
        checks.add(table[first : first + step])
    found = []
    for k in range(table.shape[1]):
        column = TableChecks(1)
        column.add(table[:, k : k + 1])
        try:
            column.require_digits("t", ())
        except SourceError:
            found.append(k)
    if found:
        with pytest.raises(SourceError) as error:
            checks.require_digits("t", ())
        assert all(f"column {k} (" in str(error.value) for k in found[:3])
        assert (f"and {len(found) - 3} more" in str(error.value)) == (len(found) > 3)
    else:
        checks.require_digits("t", ())
    return found


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, 1e4, 1e6, 1e8, 1.7e9, -1e12])
def test_refused_is_what_rounding_would_blur(offset):
    table = offset + RNG.normal(size=(5000, 1)) * np.array([1.0, 30.0, 1e6])
    error = np.abs(table.astype(np.float32).astype(np.float64) - table).max(0) / table.std(0)
    # Rounding errs by up to half the spacing, so by half a percent of the standard deviation at the border; the largest
    # number may be in a coarser binade than the rest, which doubles its spacing.
    for k in range(3):
        assert (k in refused(table)) == (error[k] > 0.005) or 0.002 < error[k] < 0.006


def test_constant_columns_and_outliers_are_allowed():
    table = np.column_stack([np.full(300, 0.1), np.full(300, 1e9), np.full(300, 0.3), RNG.normal(size=300)])
    table[::3, 2] = 0.1 + 0.2  # differs from 0.3 in the last bit of float64
    table[7, 3] = 1e9
    assert refused(table) == []
    assert refused(table.astype(np.float32)) == []
    assert refused(1e8 + RNG.normal(size=(300, 5))) == [0, 1, 2, 3, 4]


def test_files_are_refused_and_leave_nothing(tmp_path, capsys):
    table = far_table()
    lines = ["mass,time", *(f"{a},{b}" for a, b in table.tolist())]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    np.save(tmp_path / "t.npy", table)
    np.save(tmp_path / "ids.npy", 10**12 + RNG.integers(0, 1000, (50, 1)))
    with pytest.raises(SourceError, match=LOST):
        prepare(tmp_path / "t.csv", tmp_path / "store")
    for name in ("t.npy", "ids.npy"):
        with pytest.raises(SourceError, match="float32 has too few digits for column"):
            prepare(tmp_path / name, tmp_path / "store")
    assert main(["fit", str(tmp_path / "t.csv"), "--out", str(tmp_path / "run")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "StandardScaler().fit_transform(table)" in line
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"t.csv", "t.npy", "ids.npy"}
    np.save(tmp_path / "t.npy", table - [0, 1e8])
    assert prepare(tmp_path / "t.npy", tmp_path / "store").manifest.splits["train"].num_rows == 160


def test_parquet_is_refused(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for values in (far_table()[:, 1], 10**8 + RNG.integers(0, 4, 200)):
        parquet.write_table(arrow.table({"time": values}), tmp_path / "t.parquet")
        with pytest.raises(SourceError, match="float32 has too few digits for column 'time'"):
            prepare(tmp_path / "t.parquet", tmp_path / "store")


def test_the_estimator_refuses_and_scores_with_all_digits(tmp_path):
    frames = pytest.importorskip("pandas")
    table, tiny = far_table(), bype.ByPEVAE(n_pseudopoints=6, max_epochs=2, n_draws=10)
    with pytest.raises(ValueError, match=LOST):
        tiny.fit(frames.DataFrame(table, columns=["mass", "time"]))
    fitted = tiny.fit(table - [0, 1e8])
    new = table[:20] - [0, 1e8]
    np.save(tmp_path / "new.npy", new)
    np.testing.assert_array_equal(fitted.score_samples(tmp_path / "new.npy"), fitted.score_samples(new))


def far_numbers(table, step=37):
    checks = TableChecks(table.shape[1])
    for first in range(0, len(table), step):
        checks.add(table[first : first + step])
    return checks.far_numbers(())


def test_numbers_far_from_all_others_are_named():
    table = RNG.normal(1000.0, 300.0, (400, 6))
    table[:, 1] = RNG.random(400) < 0.01  # rare, and most numbers are equal
    table[:, 2] = np.exp(1.5 * RNG.normal(size=400))
    table[:, 3] = 5.0
    assert far_numbers(table) == ""
    table[7, 0] = 1e7
    table[::20, 4] = -9999999.0  # for missing
    found = far_numbers(table)
    assert found == far_numbers(table, step=400)
    assert re.search(r"column 0 \(from \S+ to 1e\+07, half of them between [78]\d\d.*column 4 \(from -1e\+07", found)
    assert found.count("column") == 2


def test_quartiles_of_a_long_table_are_those_of_rows_spread_over_it(monkeypatch):
    monkeypatch.setattr("bype.data.table_checks._SAMPLED_NUMBERS", 512)
    table = np.sort(RNG.normal(size=(50_000, 2)), axis=0)
    checks = TableChecks(2)
    for first in range(0, len(table), 777):
        checks.add(table[first : first + 777])
    assert 128 < len(checks._sample) <= 256
    np.testing.assert_array_equal(checks._sample, table[:: checks._stride])


def test_a_row_far_from_all_others_is_named_by_the_command_and_the_estimator(tmp_path, capsys):
    table = RNG.normal(size=(200, 3))
    table[3] *= 1e7
    np.save(tmp_path / "t.npy", table)
    assert main(["data", "prepare", str(tmp_path / "t.npy"), "--out", str(tmp_path / "store")]) == 0
    assert "a few numbers are far from all others" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="a few numbers are far from all others"):
        bype.ByPEVAE(n_pseudopoints=6, max_epochs=1, n_draws=10).fit(table)
