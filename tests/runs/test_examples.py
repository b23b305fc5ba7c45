"""Examples: what a person has placed or confirmed, what counts as a random question, and names that are unique."""

import json
from pathlib import Path

import pytest

from edited_runs import features, table, untrained_run
from twincluster.core import InputError
from twincluster.runs import JUNK, NONE, Edits, Run

CLUSTERS = [0, 0, 0, 0, 1, 1, 1, 2, 2, -1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return untrained_run(tmp_path / "run", CLUSTERS)


def test_moving_splitting_off_junk_confirming_and_answering_make_examples(run: Run) -> None:
    edits = Edits(run)
    edits.move([4], 0)
    edits.split_off(0, [0, 1], features)
    edits.mark_junk([5])
    edits.confirm([7])
    state = edits.answer([6], 2)
    assert state.examples.tolist() == [3, 3, NONE, NONE, 0, JUNK, 2, 2, NONE, NONE]


def test_naming_and_merging_make_none_and_examples_follow_a_merge(run: Run) -> None:
    edits = Edits(run)
    edits.rename(0, "cats")
    assert (edits.merge([0, 1]).examples == NONE).all()
    edits.confirm([7])
    assert edits.merge([0, 2]).examples[7] == 0
    assert edits.split(0, 2, features).examples[7] == edits.state.home[7]


def test_what_comes_out_of_the_junk_is_no_example(run: Run) -> None:
    edits = Edits(run)
    edits.mark_junk([0])
    assert edits.unmark_junk([0]).examples[0] == NONE


def test_confirming_leaves_images_where_they_are(run: Run) -> None:
    edits = Edits(run)
    before = edits.mark_junk([0]).clusters
    state = edits.confirm([0, 1, 4])
    assert state.clusters.tolist() == before.tolist()
    assert state.examples[[0, 1, 4]].tolist() == [JUNK, 0, 1]


def test_an_answer_opens_a_cluster_names_one_or_is_junk(run: Run) -> None:
    edits = Edits(run)
    state = edits.answer([0], name="owls")
    assert (state.clusters[0], state.names[3]) == (3, "owls")
    state = edits.answer([4], 1, name="cats")
    assert (state.names[1], state.examples[4]) == ("cats", 1)
    assert edits.answer([5], JUNK).clusters[5] == JUNK
    assert edits.move([6]).clusters[6] == 4  # an id that an answer has taken is not used again


def test_accepting_moves_images_makes_no_examples_and_is_undone_at_once(run: Run) -> None:
    edits = Edits(run)
    edits.mark_junk([1])
    before = edits.state
    state = edits.accept([4, 0, 5], [0, 2, JUNK])
    assert state.clusters.tolist() == [2, JUNK, 0, 0, 0, JUNK, 1, 2, 2, -1]
    assert state.examples.tolist() == before.examples.tolist()
    assert edits.undo().clusters.tolist() == before.clusters.tolist()


def test_examples_are_locked(run: Run) -> None:
    edits = Edits(run)
    edits.confirm([0])
    with pytest.raises(InputError, match="never moved by a proposal"):
        edits.accept([0, 4], [1, 0])
    append(run, {"kind": "accept", "rows": [0, 4], "to": [1, 0], "inputs": 10})  # as a race would have it
    assert Edits(run).state.clusters[[0, 4]].tolist() == [0, 0]


def test_refusing_keeps_images_out_of_a_cluster_until_a_person_puts_them_there(run: Run) -> None:
    edits = Edits(run)
    state = edits.refuse([0, 1], 1)
    assert {cluster: rows.tolist() for cluster, rows in state.refused.items()} == {1: [0, 1]}
    assert state.clusters.tolist() == CLUSTERS
    assert (state.examples == NONE).all()
    state = edits.refuse([2], [1, 2, JUNK])
    assert {cluster: rows.tolist() for cluster, rows in state.refused.items()} == {1: [0, 1, 2], 2: [2], JUNK: [2]}
    state = edits.answer([0], 1)
    assert state.refused[1].tolist() == [1, 2]
    state = edits.merge([2, 1])
    assert state.refused[2].tolist() == [1, 2]
    assert set(edits.split(2, 2, features).refused) == {JUNK, 3, 4}


def test_a_sample_keeps_the_cluster_that_a_row_had_before_its_answer(run: Run) -> None:
    edits = Edits(run)
    edits.confirm([7])
    edits.answer([0, 1, 7], 1, sample=True)
    state = edits.answer([4], 2)
    assert state.sample.tolist() == [0, 0] + [NONE] * 8  # the person had placed 7 before
    assert edits.move([0], 2).sample[0] == 0
    assert edits.merge([1, 0]).sample[0] == 1
    assert edits.answer([1], 2, sample=True).sample[1] == 1


def test_an_answer_to_a_random_question_that_was_right_stays_right_after_a_split(run: Run) -> None:
    edits = Edits(run)
    edits.answer([0], 0, sample=True)
    edits.answer([1], 1, sample=True)
    state = edits.split(0, 2, features)
    assert state.sample[0] == state.examples[0] == state.home[0]
    assert state.sample[1] == 0
    assert state.examples[1] == 1


@pytest.mark.parametrize(
    "attempt, said",
    [
        (lambda edits: edits.confirm([]), "at least one image"),
        (lambda edits: edits.confirm([9]), "could not be read"),
        (lambda edits: edits.answer([0]), "a cluster, or the name of a new one"),
        (lambda edits: edits.answer([0], 7), "no cluster 7"),
        (lambda edits: edits.answer([0], name="b"), "cluster 1 is called 'b' already"),
        (lambda edits: edits.answer([0], 0, name="b"), "cluster 1 is called 'b' already"),
        (lambda edits: edits.rename(0, "b"), "cluster 1 is called 'b' already"),
        (lambda edits: edits.rename(0, "2"), "cluster 2 is called '2' already"),
        (lambda edits: edits.merge([0, 2], name="b"), "cluster 1 is called 'b' already"),
        (lambda edits: edits.move([0], name="b"), "cluster 1 is called 'b' already"),
        (lambda edits: edits.split_off(0, [0], name="b"), "cluster 1 is called 'b' already"),
        (lambda edits: edits.split_off(0, [0], name="0"), "cluster 0 is called '0' already"),
        (lambda edits: edits.accept([0, 0], [1, 1]), "each image once"),
        (lambda edits: edits.accept([0, 1], [1]), "each image once"),
        (lambda edits: edits.accept([0], [7]), "no cluster 7"),
        (lambda edits: edits.refuse([0], 7), "no cluster 7"),
        (lambda edits: edits.refuse([0], []), "which cluster"),
    ],
)
def test_what_cannot_be_done_is_refused(run: Run, attempt, said: str) -> None:
    edits = Edits(run)
    edits.rename(1, "b")
    with pytest.raises(InputError, match=said):
        attempt(edits)
    assert edits.state.number == 1


def test_default_names_make_way_for_names_that_are_taken(run: Run) -> None:
    edits = Edits(run)
    edits.rename(1, "3")
    assert edits.move([0]).names[3] == "3 (2)"
    edits.rename(2, "0, part 2")
    assert edits.split(0, 2, features).names[5] == "0, part 2 (2)"


def test_a_log_with_the_same_name_twice_still_opens(run: Run) -> None:
    """Earlier versions allowed it."""
    edits = Edits(run)
    edits.rename(0, "b")
    append(run, {"kind": "rename", "cluster": 1, "name": "b"})
    assert Edits(run).state.names == {0: "b", 1: "b", 2: "2"}
    assert Edits(run).rename(2, "c").names[2] == "c"


def test_a_kind_of_a_newer_version_is_refused_by_name(run: Run) -> None:
    Edits(run).rename(0, "b")
    append(run, {"kind": "blend", "rows": [0]})
    for attempt in (lambda: Edits(run).state, lambda: Edits(run).undo(), lambda: Edits(run).rename(1, "c")):
        with pytest.raises(InputError, match="edit 2 in edits.jsonl is of a kind .* 'blend'; a newer version"):
            attempt()


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "answer", "rows": [0], "to": [7]},
        {"kind": "answer", "rows": [0, 1], "to": [1]},
        {"kind": "answer", "rows": [0], "to": [7], "names": [{"cluster": 1, "name": "x", "new": True}]},
        {"kind": "answer", "rows": [0], "to": [1], "names": [{"cluster": 1, "name": "", "new": False}]},
        {"kind": "answer", "rows": [0], "to": 1},
        {"kind": "accept", "rows": [0], "to": [1]},
        {"kind": "accept", "rows": [99], "to": [1], "inputs": 10},
        {"kind": "refuse", "rows": [0], "to": [9]},
        {"kind": "confirm", "rows": [10]},
    ],
    ids=lambda line: json.dumps(line)[:60],
)
def test_odd_lines_are_told(run: Run, line: dict) -> None:
    Edits(run).rename(0, "x")
    append(run, line)
    with pytest.raises(InputError, match="edit 2|line 3"):
        _ = Edits(run).state


def test_a_row_that_can_no_longer_be_read_drops_out_of_answers_and_accepted_moves(run: Run) -> None:
    edits = Edits(run)
    edits.answer([0, 4], 2, sample=True)
    edits.accept([1, 5], [2, 0])
    run.write_assignments(table([-1, -1, *CLUSTERS[2:]]))
    state = Edits(run).state
    assert state.clusters.tolist() == [-1, -1, 0, 0, 2, 0, 1, 2, 2, -1]
    assert state.examples.tolist() == [NONE] * 4 + [2] + [NONE] * 5


def test_a_shared_copy_keeps_new_clusters_and_names_no_row(run: Run) -> None:
    edits = Edits(run)
    edits.answer([0], name="owls", sample=True)
    edits.confirm([1])
    edits.refuse([2], 1)
    edits.accept([3], [3])
    lines = edits.without_rows()
    assert [line["kind"] for line in lines] == ["start", "answer", "accept"]
    assert all(line.get("rows", []) == line.get("to", []) == [] for line in lines)
    assert lines[1]["names"] == [{"cluster": 3, "name": "owls", "new": True}]


def append(run: Run, line: dict) -> None:
    with (run.folder / "edits.jsonl").open("a") as file:
        file.write(json.dumps({"edit": 2, "time": "", **line}) + "\n")
