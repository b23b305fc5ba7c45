"""Edits of a run: what each does, that replaying equals doing, and that nothing can be lost or mixed up."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edited_runs import features, table, untrained_run
from twincluster.core import InputError
from twincluster.runs import JUNK, Assignments, Edits, Run, State, apply_edits

CLUSTERS = [0, 0, 0, 0, 1, 1, 1, 2, 2, -1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return untrained_run(tmp_path / "run", CLUSTERS)


def lines_of(run: Run) -> list[dict]:
    return [json.loads(line) for line in (run.folder / "edits.jsonl").read_text().splitlines()]


def same(one: State, two: State) -> bool:
    kept = ("home", "junk", "moved", "guessed", "shown", "sample")
    arrays = [np.array_equal(getattr(one, name), getattr(two, name)) for name in kept]
    refused = [{cluster: rows.tolist() for cluster, rows in state.refused.items()} for state in (one, two)]
    return (
        all(arrays)
        and refused[0] == refused[1]
        and one.names == two.names
        and one.number == two.number
        and len(one.joined) == len(two.joined)
    )


# -- what each edit does ---------------------------------------------------------------------------------------------


def test_a_run_without_edits_is_the_models_and_gets_no_file(run: Run) -> None:
    edits = Edits(run)
    assert edits.state.clusters.tolist() == CLUSTERS
    assert edits.state.names == {0: "0", 1: "1", 2: "2"}
    assert edits.state.sizes() == {0: 4, 1: 3, 2: 2}
    assert not edits.any
    assert not (run.folder / "edits.jsonl").exists()


def test_renaming_and_merging(run: Run) -> None:
    edits = Edits(run)
    edits.rename(0, "cats")
    state = edits.merge([1, 2], name="dogs")
    assert state.names == {0: "cats", 1: "dogs"}
    assert state.clusters.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, -1]
    assert edits.merge([0, 1]).names == {0: "cats"}
    assert state.route(np.array([0, 1, 2, -1])).tolist() == [0, 1, 1, -1]  # as it was then


def test_splitting_by_k_means_gives_new_ids_and_decides_new_images(run: Run) -> None:
    edits = Edits(run)
    edits.rename(0, "cats")
    state = edits.split(0, 2, features)
    assert state.names == {1: "1", 2: "2", 3: "cats 1", 4: "cats 2"}
    assert sorted(len(state.members(part)) for part in (3, 4)) == sorted([state.sizes()[3], state.sizes()[4]])
    assert state.sizes()[3] >= state.sizes()[4] > 0
    assert state.is_split
    # the images of the run themselves, had they come later
    found = state.route(np.zeros(4, np.int64), unit(features(np.arange(4))))
    assert found.tolist() == state.home[:4].tolist()
    assert state.route(np.array([1, 2]), np.zeros((2, 6), np.float32)).tolist() == [1, 2]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_splitting_off_a_selection_leaves_the_rest_its_id(run: Run) -> None:
    state = Edits(run).split_off(0, [1, 3], features, name="kittens")
    assert state.names == {0: "0", 1: "1", 2: "2", 3: "kittens"}
    assert state.clusters.tolist() == [0, 3, 0, 3, 1, 1, 1, 2, 2, -1]
    for part, rows in ((0, [0, 2]), (3, [1, 3])):
        centre = unit(features(np.array(rows))).mean(0)
        assert state.route(np.array([0]), centre[None]).tolist() == [part]


def test_a_selection_without_features_keeps_new_images_with_the_rest(run: Run) -> None:
    state = Edits(run).split_off(0, [0, 1, 2])
    assert not state.is_split
    assert state.route(np.array([0, 0])).tolist() == [0, 0]


def test_moved_images_stay_and_take_none_along(run: Run) -> None:
    edits = Edits(run)
    state = edits.move([0, 4], 2)
    assert state.clusters.tolist() == [2, 0, 0, 0, 2, 1, 1, 2, 2, -1]
    state = edits.move([8], name="odd")
    assert (state.clusters[8], state.names[3]) == (3, "odd")
    assert state.route(np.array([0, 1, 2])).tolist() == [0, 1, 2]
    assert np.flatnonzero(state.moved).tolist() == [0, 4, 8]


def test_junk_comes_back_to_what_its_cluster_has_become(run: Run) -> None:
    edits = Edits(run)
    assert edits.mark_junk([0, 7]).clusters.tolist() == [JUNK, 0, 0, 0, 1, 1, 1, JUNK, 2, -1]
    edits.merge([1, 2])
    edits.split_off(0, [1, 2], features)
    state = edits.unmark_junk([0, 7])
    assert (state.clusters[7], state.clusters[0]) == (1, 0)
    assert edits.mark_junk([0]).clusters[0] == JUNK
    assert edits.move([0], 1).clusters[0] == 1  # putting it somewhere says that it is no junk


def test_undo_and_redo_are_lines_of_their_own(run: Run) -> None:
    edits = Edits(run)
    edits.rename(0, "a")
    edits.rename(0, "b")
    assert edits.undo().names[0] == "a"
    assert edits.undo().names[0] == "0"
    assert edits.redo().names[0] == "a"
    edits.rename(1, "c")
    with pytest.raises(InputError, match="no edit to redo"):
        edits.redo()
    kinds = [(line["edit"], line["kind"]) for line in lines_of(run)]
    assert kinds == list(enumerate(["start", "rename", "rename", "undo", "undo", "redo", "rename"]))
    assert [line["of"] for line in lines_of(run) if "of" in line] == [2, 1, 1]
    edits.undo(), edits.undo()
    with pytest.raises(InputError, match="no edit to undo"):
        edits.undo()


def test_the_table_has_names_and_assignments_stay_the_models(run: Run) -> None:
    before = (run.folder / "assignments.csv").read_bytes()
    edits = Edits(run)
    edits.rename(0, 'say "hi", <b>\nnow</b>')
    edits.mark_junk([1])
    view = apply_edits(run.read_assignments(), edits.state)
    view.write(run.folder / "view.csv")
    assert (run.folder / "assignments.csv").read_bytes() == before
    text = (run.folder / "view.csv").read_text()
    assert text.startswith("path,cluster,confidence,status,name\n0.png,0,0.7500,ok,")
    assert "\n1.png,,,junk,\n" in text
    assert "\n9.png,,,unreadable: empty file,\n" in text
    again = Assignments.read(run.folder / "view.csv")
    assert again.clusters.tolist() == [0, -1, 0, 0, 1, 1, 1, 2, 2, -1]


@pytest.mark.parametrize("name", ["a\rb", "a\nb", 'a",\r\n"b', "=1+1"])
def test_any_name_keeps_the_rows_of_the_table_apart(run: Run, name: str) -> None:
    state = Edits(run).rename(0, name)
    apply_edits(run.read_assignments(), state).write(run.folder / "view.csv")
    with (run.folder / "view.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [f"{row}.png" for row in range(len(CLUSTERS))]
    assert [row["name"] for row in rows][:4] == [name] * 4


# -- replaying -------------------------------------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "rename",
                "merge",
                "split",
                "split_off",
                "move",
                "new",
                "junk",
                "unjunk",
                "confirm",
                "answer",
                "named",
                "accept",
                "refuse",
                "undo",
                "redo",
            ]
        ),
        st.integers(0, 2**16),
    ),
    max_size=25,
)


def perform(edits: Edits, operation: str, draw: int) -> State:
    """One edit that `draw` decides about; some are refused."""
    random, state = np.random.default_rng(draw), edits.state
    ids = list(state.names)
    cluster = int(random.choice(ids))
    rows = random.choice(len(CLUSTERS) - 1, size=random.integers(1, 5), replace=False)
    actions = {
        "rename": lambda: edits.rename(cluster, f"name {draw}"),
        "merge": lambda: edits.merge(random.choice(ids, size=min(2, len(ids)), replace=False).tolist()),
        "split": lambda: edits.split(cluster, 2, features),
        "split_off": lambda: edits.split_off(cluster, state.members(cluster)[:1], features),
        "move": lambda: edits.move(rows, cluster),
        "new": lambda: edits.move(rows),
        "junk": lambda: edits.mark_junk(rows),
        "unjunk": lambda: edits.unmark_junk(rows),
        "confirm": lambda: edits.confirm(rows),
        "answer": lambda: edits.answer(rows, JUNK if draw % 5 == 0 else cluster, sample=bool(draw % 2)),
        "named": lambda: edits.answer(rows, name=f"name {draw}"),
        "accept": lambda: edits.accept(rows, random.choice([*ids, JUNK], size=len(rows))),
        "refuse": lambda: edits.refuse(rows, cluster),
        "undo": edits.undo,
        "redo": edits.redo,
    }
    return actions[operation]()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS)
def test_any_sequence_of_edits(run: Run, operations: list[tuple[str, int]]) -> None:
    (run.folder / "edits.jsonl").unlink(missing_ok=True)  # of the example before
    edits, ids, undoable = Edits(run), {0, 1, 2}, 0
    for operation, draw in operations:
        before = edits.state
        try:
            state = perform(edits, operation, draw)
        except InputError:
            assert same(edits.state, before)
            continue
        undoable += {"undo": -1}.get(operation, 1)
        if operation not in ("undo", "redo"):
            assert not (set(state.names) - set(before.names)) & ids, "an id was used twice"
        ids |= set(state.names)
        # each image that can be read is in one cluster there is, or junk
        assert all(cluster in state.names or cluster == JUNK for cluster in state.clusters[:-1])
        assert state.clusters[-1] == -1
        assert sum(state.sizes().values()) + state.junk.sum() == len(CLUSTERS) - 1
        assert len(set(state.names.values())) == len(state.names)
        if operation == "accept":
            assert np.array_equal(state.examples, before.examples)
        assert same(state, Edits(run).state)
    for _ in range(undoable):
        edits.undo()
    assert edits.state.clusters.tolist() == CLUSTERS
    assert edits.state.names == {0: "0", 1: "1", 2: "2"}


def test_rows_that_update_adds_follow_merges_and_splits(run: Run) -> None:
    edits = Edits(run)
    edits.split(0, 2, features)
    edits.merge([1, 2])
    run.append_update()
    longer = [*CLUSTERS, 0, 2]
    run.write_assignments(table(longer))
    guessed = edits.state  # notices by itself
    assert guessed.clusters[-1] == 1
    assert guessed.clusters[-2] == 3
    assert np.flatnonzero(guessed.guessed).tolist() == [10]
    asked = []

    def seen(rows: np.ndarray) -> np.ndarray:
        asked.append(rows.tolist())
        return unit(features(np.array([3])))  # as the fourth image looks

    decided = Edits(run, seen).state
    assert asked == [[10]]
    assert decided.clusters[10] == decided.clusters[3]
    assert not decided.guessed.any()
    assert edits.move([10], 1).clusters[10] == 1
    assert not edits.state.guessed.any()
