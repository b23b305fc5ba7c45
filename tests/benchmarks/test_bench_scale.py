"""The benchmark of growth with rows: its groups, its table and its exponents."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.memory import Peak
from benchmarks.scale import Scale, Size, write_groups
from command_line import benchmark, benchmark_worked


def test_groups_are_separated_and_the_same_each_time(tmp_path: Path) -> None:
    labels = write_groups(tmp_path / "a.npy", 500, 64, 5)
    again = write_groups(tmp_path / "b.npy", 500, 64, 5)
    rows = np.load(tmp_path / "a.npy")
    assert np.array_equal(labels, again)
    assert np.array_equal(rows, np.load(tmp_path / "b.npy"))
    centres = np.stack([rows[labels == group].mean(0) for group in range(5)])
    assert np.array_equal(((rows[:, None] - centres) ** 2).sum(2).argmin(1), labels)


def test_exponents_are_those_of_powers() -> None:
    sizes = tuple(Size(rows, Peak(int(1e3 * rows**0.5), 0, 1.0), 0.1 * rows, 1.0) for rows in (100, 10_000, 1_000_000))
    found = Scale(8, 2, None, sizes)
    assert found.exponent(lambda size: size.peak.resident) == pytest.approx(0.5, abs=1e-3)
    assert "memory n^0.50, processor time n^1.00" in found.to_text()


def test_the_table_has_memory_and_scores_of_a_fit() -> None:
    said = benchmark_worked("scale", "--rows", "60", "--columns", "8", "--clusters", "3", "--epochs", "1").out
    rows, _, own, *_, ari = said.splitlines()[-1].split()
    assert rows == "60"
    assert 0.1 < float(own) < 5
    assert -1 <= float(ari) <= 1
    assert benchmark("scale", "--rows", "ten").complaint.startswith("--rows is ten")
