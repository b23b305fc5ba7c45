"""The benchmark of the chosen number: sets are what their names say, and its table counts right answers."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import choose
from benchmarks.__main__ import main


def case(n_clusters: int, test: bool = True) -> choose.Case:
    return choose.Case("made up", "blobs", test, np.zeros((n_clusters, 2)), np.arange(n_clusters))


def test_blobs_are_as_far_apart_as_asked_and_as_uneven() -> None:
    rows, truth = choose.blobs(np.random.default_rng(0), 700, 5, 4, 30.0, uneven=True)
    sizes = np.bincount(truth)
    assert sizes.max() / sizes.min() == pytest.approx(choose.UNEVEN, rel=0.05)
    centres = np.stack([rows[truth == one].mean(0) for one in range(4)])
    nearest = min(np.linalg.norm(centres[a] - centres[b]) for a in range(4) for b in range(a))
    assert nearest == pytest.approx(30, abs=1)


def test_at_most_half_of_the_made_up_sets_are_blobs_and_both_halves_have_every_kind() -> None:
    for table in (choose.DEVELOPMENT, choose.TEST):
        kinds = [kind for kind, _, _ in table]
        assert kinds.count("blobs") <= len(kinds) / 2 + 1
        assert {"blobs", "shapes", "nothing"} == set(kinds)
    assert not {str(entry) for entry in choose.TEST[2:]} & {str(entry) for entry in choose.DEVELOPMENT}


def test_the_table_counts_clear_answers_that_are_right() -> None:
    answers = [
        choose.Answer(case(5), 5, True, 1.0, 1.0),  # easy, clear, right
        choose.Answer(case(5), 4, True, 0.5, 1.0),  # clear and wrong
        choose.Answer(case(5), 5, False, 0.97, 1.0),  # easy, a right guess
        choose.Answer(case(1), 7, False, 1.0, 3.0),  # nothing to find: never easy, never right
    ]
    text = choose.to_text(answers)
    assert "| test, all | 4 | 2 | 2 | 2 | 1 | 1 | 1.5 |" in text
    assert "development" not in text


def test_a_set_that_nobody_developed_on_is_for_the_test_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 6
    rows = (10 * rng.standard_normal((6, 40))[labels] + rng.standard_normal((300, 40))).astype(np.float32)
    for name in ("digits-again", "strange"):
        np.savez(tmp_path / f"{name}.npz", images=rows, labels=labels)
    developed, strange = (list(choose.of_images(str(tmp_path / f"{name}.npz"))) for name in ("digits-again", "strange"))
    assert [one.test for one in developed] == [False, False, False, True, True]
    assert [one.test for one in strange] == [True] * 5
    assert [one.n_clusters for one in strange] == [6, 3, 4, 3, 4]
    assert strange[0].rows.shape == (300, choose.FEWEST)


def test_the_command_prints_a_line_per_set_and_the_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 3
    rows = (10 * rng.standard_normal((3, 40))[labels] + rng.standard_normal((240, 40))).astype(np.float32)
    np.savez(tmp_path / "three.npz", images=rows, labels=labels)
    assert main(["choose", str(tmp_path / "three.npz"), "--no-made-up"]) == 0
    told = capsys.readouterr().out
    assert "| test | images | three: 3 classes, 240 rows | 1.00 | 3 | 3 | clear |" in told
    assert "| test, all | 1 | 1 | 1 | 1 | 1 | 1 |" in told
    assert main(["choose", "--no-made-up"]) != 0
