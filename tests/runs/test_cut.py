"""A cut of the tree as an edit: levels, branches, ids and names, what a person made, images that come later."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edited_runs import untrained_run
from twincluster.clustering import Tree, grow_tree
from twincluster.core import InputError
from twincluster.runs import (
    JUNK,
    TREE_FILE,
    ConflictError,
    Edits,
    Run,
    applied,
    apply_edits,
    initial,
    read_tree,
    write_tree,
)

PER_PART, PARTS = 15, 6  # rows of a blob; cluster 0 has the blobs 0 and 1, cluster 1 has 2 and 3, and so on
PART = np.repeat(np.arange(PARTS), PER_PART)
CLUSTERS = [*(PART // 2).tolist(), -1, -1]  # two that could not be read


def features_of(rows: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(0)
    groups = np.repeat(random.normal(size=(3, 6)) * 5, 2, axis=0) + random.normal(size=(PARTS, 6)) * 2
    every = groups[PART] + random.normal(size=(len(PART), 6)) * 0.1
    return every[rows].astype(np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = untrained_run(tmp_path / "run", CLUSTERS)
    write_tree(run, whole_tree())
    return run


def whole_tree() -> Tree:
    tree = grow_tree(features_of(np.arange(len(PART))), PART // 2)
    return replace(tree, leaf=np.concatenate([tree.leaf, [-1, -1]]).astype(np.int32))


@pytest.fixture
def tree(run: Run) -> Tree:
    tree, why = read_tree(run)
    assert tree is not None, why
    return tree


def partition(clusters: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(np.flatnonzero(clusters == one).tolist()) for one in np.unique(clusters[clusters >= 0])}


def test_a_level_and_the_way_back(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    state = edits.cut(tree, 6)
    assert partition(state.clusters) == partition(np.append(PART, [-1, -1]))
    assert state.names == {cluster: str(cluster) for cluster in range(3, 9)}  # ids of the model are not used again
    back = edits.cut(tree, 3)
    assert back.clusters.tolist() == CLUSTERS
    assert back.names == {0: "0", 1: "1", 2: "2"}  # the same clusters: the same ids
    again = edits.cut(tree, 6)
    assert again.clusters.tolist() == state.clusters.tolist()
    assert Edits(run).state.clusters.tolist() == state.clusters.tolist()
    assert edits.undo().clusters.tolist() == CLUSTERS
    assert edits.redo().clusters.tolist() == state.clusters.tolist()
    assert run.read_assignments().clusters.tolist() == CLUSTERS  # of the fit


def test_branches_open_and_close_one_by_one(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    state = edits.cut(tree, opened=[1])
    assert state.names.keys() == {0, 2, 3, 4}
    assert partition(state.clusters) == partition(np.where(PART // 2 == 1, PART, -2 - PART // 2 + 10))
    assert edits.cut(tree, closed=[3]).names.keys() == {0, 1, 2}
    joined = edits.cut(tree, closed=[0])
    assert len(joined.names) == 2
    assert edits.cut(tree, 3).names.keys() == {0, 1, 2}


def test_names_come_back_with_their_clusters(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    edits.rename(0, "dogs")
    assert sorted(edits.cut(tree, opened=[0]).names.values()) == ["1", "2", "dogs 3", "dogs 4"]
    edits.rename(3, "poodles")
    assert edits.cut(tree, closed=[3]).names == {0: "dogs", 1: "1", 2: "2"}
    assert "poodles" in edits.cut(tree, opened=[0]).names.values()


def test_an_id_of_an_undone_cut_is_not_given_to_another_cluster(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    edits.cut(tree, opened=[0])
    edits.undo()
    assert edits.move([50], name="new").names.keys() == {0, 1, 2, 5}
    assert edits.cut(tree, opened=[0]).names.keys() == {1, 2, 3, 4, 5}  # the same branches as before


def test_what_a_person_made_is_neither_split_nor_joined(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    edits.merge([0, 1], name="across")
    edits.move([60, 61], name="mine")
    edits.answer([62], name="taught")
    state = edits.state
    for count in (5, 8, 4):
        state = edits.cut(tree, count)
        assert len(state.names) == count
        assert state.members(0).tolist() == list(range(60))
        assert [name for name in state.names.values() if not name.isdecimal()] == ["across", "mine", "taught"]
        assert state.members(3).tolist() == [60, 61]
    for cluster in (0, 3):
        with pytest.raises(InputError, match="made by hand"):
            edits.cut(tree, opened=[cluster])
    with pytest.raises(InputError, match="has 4 to"):
        edits.cut(tree, 3)
    edits.merge([2, 0])
    with pytest.raises(InputError, match="all clusters were made by hand"):
        edits.cut(tree, 9)


def test_rows_moved_by_hand_and_junk_follow_their_cluster(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    edits.move([0, 1], 2)  # of the blob 0 into the cluster of the blobs 4 and 5
    edits.mark_junk([3])
    state = edits.cut(tree, 6)
    homes = {int(state.home[row]) for row in range(60, 90)}
    assert {int(state.home[0]), int(state.home[1])} <= homes
    assert state.clusters[3] == JUNK
    assert state.home[3] == state.home[4]
    assert edits.cut(tree, 3).clusters[[0, 1]].tolist() == [2, 2]


def test_other_images_follow_a_cut(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    state = edits.cut(tree, 6)
    rows = np.arange(len(PART))
    found = state.route(PART // 2, features_of(rows))
    assert found.tolist() == state.home[rows].tolist()
    even, kinds = np.full((2, 3), 1 / 3), (features_of(rows[:2]),)
    assert state.chances(even, kinds).sum(1) == pytest.approx(1)
    edits.cut(tree, closed=[int(state.home[0])])
    state = edits.cut(tree, 2)
    assert set(state.route(PART // 2, features_of(rows)).tolist()) == set(state.names)
    assert state.chances(even, kinds)[:, list(state.names)].sum(1) == pytest.approx(1)


def test_rows_of_an_update_follow_a_cut(run: Run, tree: Tree) -> None:
    short = replace(tree, leaf=tree.leaf[:80])  # as if the last rows had come later
    edits = Edits(run, features_of)
    state = edits.cut(short, 6)
    assert partition(state.clusters) == partition(np.append(PART, [-1, -1]))
    edits.undo()
    blind = Edits(run).cut(short, 6)
    assert len({int(blind.home[row]) for row in range(80, 90)}) == 1  # all in the largest part
    assert blind.guessed[80:90].all()


def test_another_tree_of_the_same_run_can_be_cut(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    edits.cut(tree, 5)
    other = grow_tree(features_of(np.arange(len(PART))), PART // 2, seed=9)
    other = replace(other, leaf=np.append(other.leaf, [-1, -1]).astype(np.int32))
    state = edits.cut(other, 6)
    assert partition(state.clusters) == partition(np.append(PART, [-1, -1]))
    assert edits.cut(other, 3).clusters.tolist() == CLUSTERS


def test_a_shared_model_takes_its_cut_along(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    state = edits.cut(tree, 6)
    lines = edits.without_rows()
    assert all(not part["rows"] for one in lines[1]["ended"] for part in one["parts"])
    shared = initial(np.empty(0, np.int64), 3)
    for line in lines[1:]:
        shared = applied(shared, line)
    features = features_of(np.arange(len(PART)))
    assert shared.route(PART // 2, features).tolist() == state.route(PART // 2, features).tolist()


def test_a_stale_view_changes_nothing(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    edits.rename(0, "a")
    with pytest.raises(ConflictError):
        edits.cut(tree, 5, expected=0)
    with pytest.raises(InputError, match="nothing would change"):
        edits.cut(tree, 3)
    for odd in (0, 10**6):
        with pytest.raises(InputError, match="the tree has 1 to"):
            edits.cut(tree, odd)
    with pytest.raises(InputError, match="does not exist"):
        edits.cut(tree, opened=[77])


def test_a_damaged_or_foreign_tree_is_not_used(run: Run) -> None:
    path = run.folder / TREE_FILE
    whole = path.read_bytes()
    for damaged in (whole[:-5], whole[: len(whole) // 2], b"", whole.replace(b"leaf", b"loaf")):
        path.write_bytes(damaged)
        assert read_tree(run) == (None, "the old one was damaged")
    path.write_bytes(whole)
    run.model.write_bytes(run.model.read_bytes() + b" ")
    assert read_tree(run)[0] is None
    path.unlink()
    assert read_tree(run) == (None, "there was none")


def test_the_table_follows_a_cut(run: Run, tree: Tree) -> None:
    edits = Edits(run)
    state = edits.cut(tree, 6)
    table = apply_edits(run.read_assignments(), state)
    assert table.names is not None
    assert table.clusters.tolist() == state.clusters.tolist()
    assert table.names[0] == state.names[int(state.home[0])]
