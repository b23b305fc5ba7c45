"""Samples of large sources to train on: rare kinds keep their rows, and runs assign all rows."""

from pathlib import Path

import numpy as np
import pytest

from command_line import worked
from twincluster import fit
from twincluster.clustering import grow_tree, grow_tree_of_sample, score, spread_sample
from twincluster.runs import Run, read_tree


def blobs(sizes: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Separated groups of rows of 16 numbers, in random order, and the group of each."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = 4 * random.normal(size=(len(sizes), 16))
    return (centres[labels] + random.normal(size=(len(labels), 16))).astype(np.float32), labels


def test_a_sample_is_exact_ascending_and_follows_the_seed() -> None:
    rows, _ = blobs((3000, 3000))
    some = np.arange(0, 6000, 2)
    sample = spread_sample(rows, some, 501, seed=1)
    assert len(sample) == 501
    assert (np.diff(sample) > 0).all()
    assert np.isin(sample, some).all()
    assert np.array_equal(sample, spread_sample(rows, some, 501, seed=1))
    assert not np.array_equal(sample, spread_sample(rows, some, 501, seed=2))
    assert np.array_equal(spread_sample(rows, some, 3000, seed=1), some)


def test_a_sample_keeps_more_of_a_rare_kind_than_chance() -> None:
    rows, labels = blobs((40_000, 40_000, 80))
    sample = spread_sample(rows, np.arange(len(rows)), 16_384, seed=0)
    assert (labels[sample] == 2).sum() >= 1.5 * 16_384 * 80 / 80_080
    assert (labels[sample] == 0).sum() > 6000


def test_a_tree_of_a_sample_puts_every_row_inside_its_cluster() -> None:
    rows, labels = blobs((900, 700, 30))
    tree = grow_tree_of_sample(lambda some: rows[some], labels, seed=0, count=300)
    owner = np.array([np.bincount(labels[tree.leaf == leaf]).argmax() for leaf in range(tree.n_leaves)])
    assert np.array_equal(owner[tree.leaf], labels)
    assert tree.n_leaves < grow_tree(rows, labels, 0).n_leaves


def test_a_large_source_is_trained_on_a_sample_and_assigned_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, labels = blobs((700,) * 5)
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "labels.npy", labels)
    monkeypatch.setattr(fit, "MOST_ROWS", 3000)
    monkeypatch.setattr(fit, "SAMPLE", 600)
    monkeypatch.setattr(fit, "PER_CLUSTER", 10)
    said = worked("fit", tmp_path / "rows.npy", "-k", "5", "--epochs", "4", "--out", tmp_path / "run").err
    assert "training on 600 of 3,500 rows" in said
    run = Run.open(tmp_path / "run")
    clusters = run.read_assignments().clusters
    assert score(labels, clusters).ari > 0.95
    assert run.shape.n_samples == 600
    tree, _ = read_tree(run)
    assert tree is not None
    assert (tree.leaf >= 0).all()
    again = worked("predict", tmp_path / "run", tmp_path / "rows.npy", "--out", tmp_path / "new.csv")
    assert "3,500 rows" in again.out
    assert (tmp_path / "new.csv").read_text() == (tmp_path / "run" / "assignments.csv").read_text()


def test_the_user_sets_how_many_rows_are_trained_on(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", blobs((200,) * 3)[0])
    worked(
        "fit", tmp_path / "rows.npy", "-k", "3", "--epochs", "1", "--set", "train.rows=100", "--out", tmp_path / "run"
    )
    assert Run.open(tmp_path / "run").shape.n_samples == 100
    assert (Run.open(tmp_path / "run").read_assignments().clusters >= 0).all()
