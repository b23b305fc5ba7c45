"""Edits that cannot be made, that somebody else got ahead of, or that are not about this run."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from edited_runs import features, table, untrained_run
from twincluster.core import InputError, without_checksum
from twincluster.runs import ConflictError, Edits, Run

CLUSTERS = [0, 0, 0, 0, 1, 1, 1, 2, 2, -1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return untrained_run(tmp_path / "run", CLUSTERS)


@pytest.mark.parametrize(
    "attempt, said",
    [
        (lambda edits: edits.rename(3, "x"), "no cluster 3"),
        (lambda edits: edits.rename("0", "x"), "'0' is no cluster"),
        (lambda edits: edits.rename(True, "x"), "'True' is no cluster"),
        (lambda edits: edits.rename(0, ""), "at least one letter"),
        (lambda edits: edits.rename(0, " \n"), "at least one letter"),
        (lambda edits: edits.rename(0, "x" * 201), "at most 200 characters"),
        (lambda edits: edits.rename(0, "a\ud800"), "half a character"),
        (lambda edits: edits.rename(0, "a\0b"), "zero character"),
        (lambda edits: edits.merge([0]), "at least two clusters"),
        (lambda edits: edits.merge([1, 1]), "at least two clusters"),
        (lambda edits: edits.merge([]), "at least two clusters"),
        (lambda edits: edits.merge([0, 7]), "no cluster 7"),
        (lambda edits: edits.split(0, 5, features), "2 to 4 parts"),
        (lambda edits: edits.split(0, 1, features), "2 to 4 parts"),
        (lambda edits: edits.split(0, 2), "needs the features"),
        (lambda edits: edits.split(0, 2, lambda rows: np.ones((len(rows), 4))), "look the same"),
        (lambda edits: edits.split_off(0, [0, 1, 2, 3]), "not all of them"),
        (lambda edits: edits.split_off(0, [4]), "some images of cluster 0"),
        (lambda edits: edits.move([], 0), "at least one image"),
        (lambda edits: edits.move([10], 0), "no image 10"),
        (lambda edits: edits.move([-1], 0), "no image -1"),
        (lambda edits: edits.move([0.5], 0), "whole"),
        (lambda edits: edits.move([9], 0), "could not be read"),
        (lambda edits: edits.move([0], 9), "no cluster 9"),
        (lambda edits: edits.mark_junk([9]), "could not be read"),
    ],
)
def test_what_cannot_be_done_is_refused_and_leaves_no_line(run: Run, attempt, said: str) -> None:
    edits = Edits(run)
    with pytest.raises(InputError, match=said):
        attempt(edits)
    assert edits.state.number == 0
    assert edits.state.clusters.tolist() == CLUSTERS


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "a\nb\x1b[31m", "../../etc", "猫" * 200, "\u202eabc", '{"']
)
def test_any_text_is_a_name(run: Run, name: str) -> None:
    Edits(run).rename(1, name)
    assert Edits(run).state.names[1] == name
    assert len((run.folder / "edits.jsonl").read_bytes().splitlines()) == 2


def test_a_zero_character_in_an_old_name_is_shown_as_a_replacement(run: Run) -> None:
    edits = Edits(run)
    edits.rename(1, "a?b")
    log = run.folder / "edits.jsonl"
    lines = [without_checksum(json.loads(line)) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(line).replace("a?b", "a\\u0000b") + "\n" for line in lines))
    assert Edits(run).state.names[1] == "a\ufffdb"


def test_somebody_elses_edit_is_noticed_when_asked_for(run: Run) -> None:
    mine, theirs = Edits(run), Edits(run)
    known = mine.state.number
    theirs.rename(0, "theirs")
    with pytest.raises(ConflictError, match="somebody else has edited") as conflict:
        mine.rename(0, "mine", expected=known)
    assert conflict.value.last == 1
    assert mine.state.names[0] == "theirs"
    assert mine.rename(0, "mine", expected=1).number == 2

    def slow(rows: np.ndarray) -> np.ndarray:
        theirs.move([0], 1)
        return features(rows)

    with pytest.raises(ConflictError, match="cluster 0 has been changed"):
        mine.split(0, 2, slow)


def test_edits_of_another_model_or_of_other_rows_are_not_applied(run: Run, tmp_path: Path) -> None:
    Edits(run).rename(0, "x")
    content = (run.folder / "assignments.csv").read_text()
    run.write_assignments(table(CLUSTERS[::-1]))  # other clusters, as after a replaced file: the rows are the same
    assert Edits(run).state.names[0] == "x"
    (run.folder / "checksums.json").unlink()
    (run.folder / "assignments.csv").write_text(content.replace("0.png", "zero.png"))
    with pytest.raises(InputError, match="on another model or on other rows"):
        _ = Edits(run).state
    (run.folder / "assignments.csv").write_text(content)
    save_file({"weight": np.zeros(1, np.float32)}, run.folder / "model.safetensors")
    with pytest.raises(InputError, match="on another model or on other rows"):
        _ = Edits(run).state


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "rename", "cluster": 9, "name": "x"},
        {"kind": "rename", "cluster": [0], "name": "x"},
        {"kind": "rename", "cluster": 0, "name": 3},
        {"kind": "rename", "cluster": 0, "name": "x" * 201},
        {"kind": "rename", "cluster": 0, "name": "a\ud800"},
        {"kind": "move", "rows": [0], "to": -2, "name": "hidden"},
        {"kind": "move", "rows": [0], "to": 2**70, "name": "huge"},
        {"kind": "merge", "into": 0, "clusters": [0]},
        {"kind": "merge", "into": 0, "clusters": None},
        {"kind": "move", "rows": [99], "to": 0},
        {"kind": "move", "rows": [-1], "to": 0},
        {"kind": "move", "rows": "abc", "to": 0},
        {"kind": "move", "rows": [0], "to": 1, "name": "taken"},
        {"kind": "split", "cluster": 0, "rest": 5, "parts": []},
        {"kind": "split", "cluster": 0, "rest": 1, "parts": [{"id": 1, "name": "1", "rows": [], "centre": None}]},
        {"kind": "junk"},
        {"kind": "explode"},
    ],
    ids=lambda line: ascii(line)[:60],
)
def test_odd_lines_of_a_strangers_run_are_told(run: Run, line: dict) -> None:
    edits = Edits(run)
    edits.rename(0, "x")
    with (run.folder / "edits.jsonl").open("a") as file:
        file.write(json.dumps({"edit": 2, "time": "", **line}) + "\n")
    with pytest.raises(InputError, match="edit 2"):
        _ = Edits(run).state


def test_another_file_of_edits_in_its_place_is_read(run: Run, tmp_path: Path) -> None:
    """With the same numbers, so that only what the lines say tells them apart."""
    file, edits = run.folder / "edits.jsonl", Edits(run)
    Edits(run).rename(0, "theirs")
    theirs = file.read_bytes()
    file.unlink()
    edits.rename(0, "ours")
    file.write_bytes(theirs)
    assert edits.state.names[0] == "theirs"


def test_threads_that_share_the_edits_see_rows_that_update_adds(run: Run) -> None:
    """Whoever still computes with the old rows must not leave that to those who ask later."""
    reached, go_on = threading.Event(), threading.Event()

    def slow(rows: np.ndarray) -> None:
        reached.set()
        assert go_on.wait(30)

    run.append_update()
    run.write_assignments(table([*CLUSTERS, 0]))
    Edits(run).split(0, 2, features)
    run.write_assignments(table([*CLUSTERS, 0, 0]))  # the last row came after the split
    edits = Edits(run, slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: edits.state)
        assert reached.wait(30)
        run.write_assignments(table([*CLUSTERS, 0, 0, 1]))
        second = pool.submit(lambda: edits.state)
        go_on.set()
        assert len(first.result().home) == 12
        assert len(second.result().home) == 13
    assert len(edits.state.home) == 13
