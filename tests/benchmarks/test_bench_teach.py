"""The benchmark of teaching: a simulated person teaches clusters, and the table says what came of it."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.teach import (
    HEAD_ONLY,
    ON_PAGE,
    OURS,
    RANDOM,
    ROWS_ONLY,
    Case,
    all_ways,
    examples_of,
    measure_scale,
    scale_text,
)
from twincluster.clustering import NO_EXAMPLE, Space


@pytest.fixture(scope="module")
def case() -> Case:
    """Four kinds; two of them are in one cluster, and a fifth of all rows is in a wrong one."""
    rng = np.random.default_rng(0)
    truth = np.arange(4).repeat(60)
    rows = rng.normal(size=(4, 24))[truth] + 0.5 * rng.normal(size=(240, 24))
    clusters = np.where(rng.random(240) < 0.2, rng.integers(3, size=240), np.array([0, 0, 1, 2])[truth])
    return Case("made up", Space.of(rows.astype(np.float32)), clusters, truth)


def test_answers_raise_accuracy_and_count_in_every_way(case: Case) -> None:
    ways = all_ways(case, (10, 40, 240), seed=0)
    assert list(ways) == [OURS, ON_PAGE, RANDOM, HEAD_ONLY, ROWS_ONLY]
    for curve, _ in ways.values():
        assert len(curve) == 3
        assert curve[-1] == 1  # every row is answered
    start = (case.clusters == np.array([0, 3, 1, 2])[case.truth]).mean()
    assert ways[OURS][0][1] > 0.97 > start
    assert ways[ROWS_ONLY][0][0] < ways[OURS][0][0]
    assert len(ways[OURS][1]) == 24  # rounds of ten


def test_classes_are_answered_as_clusters_and_a_class_without_one_is_new(case: Case) -> None:
    asked = np.array([0, 1, 2, 60, 120, 180])
    examples = examples_of(Case(case.name, case.space, np.array([0, 0, 1, 2])[case.truth], case.truth), asked)
    assert examples[asked[[0, 1, 2, 4, 5]]].tolist() == [0, 0, 0, 1, 2]
    assert examples[60] > 2
    assert (examples != NO_EXAMPLE).sum() == 6


def test_command_fits_digits_teaches_them_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--recipe", "digits", "--set", "train.epochs=1", "--seeds", "1", "--answers", "10,20"]
    place = ["--out", str(tmp_path / "runs"), "--plot", str(tmp_path / "curve.svg")]
    assert main(["teach", *settings, *place]) == 0
    printed = capsys.readouterr().out
    assert "| digits: ours | " in printed
    assert "ours, every fifth question random" in printed
    assert (tmp_path / "curve.svg").read_text().count("digits")
    assert (tmp_path / "runs" / "digits-0" / "assignments.csv").exists()


def test_bad_answers_and_plots_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["teach", "--answers", "ten"]) != 0
    assert "--answers is ten" in capsys.readouterr().err
    assert main(["teach", "--plot", str(tmp_path / "curve.txt")]) != 0
    assert "name a .svg" in capsys.readouterr().err


def test_scale_is_timed_on_made_up_rows() -> None:
    steps = measure_scale([400], [3, 6])
    assert [(step.rows, step.classes) for step in steps] == [(400, 3), (400, 6)]
    assert all(step.space > 0 for step in steps)
    assert all(step.lesson > 0 for step in steps)
    assert scale_text(steps).count("| 400 |") == 2
