"""`twincluster teach` without its page: questions as JSON, answers from a file, and bad input in one line each."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from taught_runs import COUNT, colour_run, opened

from command_line import COLOURS, command, worked
from twincluster.model import load_network
from twincluster.runs import JUNK, NONE, Edits, Run
from twincluster.teacher import Teacher


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return colour_run(tmp_path)


def colour_of(path: str) -> str:
    return COLOURS[int(path.removesuffix(".png")) % 3]


def asked(run: Run, count: int) -> list[dict]:
    return json.loads(worked("teach", run.folder, "--ask", count, "--json").out)["questions"]


def write(path: Path, answers: dict[str, str] | list[tuple[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        rows = answers.items() if isinstance(answers, dict) else answers
        csv.writer(file, lineterminator="\n").writerows([("path", "label"), *rows])
    return path


def truth_of(questions: list[dict]) -> dict[str, str]:
    return {question["path"]: colour_of(question["path"]) for question in questions}


def test_a_person_who_answers_what_is_asked_gets_the_other_images_right(run: Run, tmp_path: Path) -> None:
    answers = truth_of(asked(run, 20))
    said = worked("teach", run.folder, "--answers", write(tmp_path / "answers.csv", answers)).out
    assert said.startswith("20 answers recorded\n")
    assert " would move of 90 images:" in said
    assert "--accept" in said
    before = Edits(run).state
    assert (before.clusters != NONE).all()
    said = worked("teach", run.folder, "--accept").out
    assert said.startswith("moved ")
    assert "of the images are in the right cluster, by 4 random answers" in said
    worked("export", run.folder, tmp_path / "all.csv", "--to", "csv")
    with (tmp_path / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "cluster", "confidence", "status", "name"]
    assert np.mean([row["name"] == colour_of(row["path"]) for row in rows]) > 0.95
    assert len(Edits(run).history[0]) == 2  # one for the answers, one for what moved
    Edits(run).undo()
    assert Edits(run).state.clusters.tolist() == before.clusters.tolist()


def test_answers_and_acceptance_go_together(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "answers.csv", truth_of(asked(run, 20)))
    done = json.loads(worked("teach", run.folder, "--answers", file, "--accept", "--json").out)
    assert done["recorded"] == 20
    assert done["images"] == sum(move["count"] for move in done["moves"]) > 0
    assert [line["kind"] for line in Edits(run).history[0]] == ["answer", "accept"]
    estimate = done["estimate"]
    assert estimate["answers"] == 4
    assert estimate["low"] <= estimate["share"] <= estimate["high"]


def test_json_says_when_more_answers_would_change_little_and_what_is_estimated(run: Run, tmp_path: Path) -> None:
    assert json.loads(worked("teach", run.folder, "--ask", 1, "--json").out)["enough"] is False
    file = write(tmp_path / "first.csv", {"000.png": colour_of("000.png")})
    assert json.loads(worked("teach", run.folder, "--answers", file, "--json").out)["estimate"] is None
    file = write(tmp_path / "many.csv", truth_of(asked(run, 60)))
    assert json.loads(worked("teach", run.folder, "--answers", file, "--json").out)["estimate"]["answers"] == 12
    assert json.loads(worked("teach", run.folder, "--ask", 1, "--json").out)["enough"] is True


def test_questions_are_as_many_as_were_asked_for_until_all_images_are_answered(run: Run, tmp_path: Path) -> None:
    questions = asked(run, 30)
    assert len(questions) == 30
    for question in questions:
        assert set(question) == {"path", "clusters"}
        assert all(set(one) == {"cluster", "name", "probability"} for one in question["clusters"])
        assert {one["cluster"] for one in question["clusters"]} == {0, 1, 2}
        assert all(one["name"] is None for one in question["clusters"])
    Edits(run).rename(1, "green")
    names = {one["cluster"]: one["name"] for one in asked(run, 1)[0]["clusters"]}
    assert names == {0: None, 1: "green", 2: None}
    worked("teach", run.folder, "--answers", write(tmp_path / "answers.csv", truth_of(questions)))
    assert len(asked(run, 1000)) == COUNT - 30
    rest = write(tmp_path / "rest.csv", truth_of(asked(run, 1000)))
    worked("teach", run.folder, "--answers", rest)
    assert asked(run, 5) == []
    assert "every image that can be read has an answer" in worked("teach", run.folder, "--ask", 5).out


def test_random_questions_count_for_the_estimate_when_they_are_answered(run: Run, tmp_path: Path) -> None:
    teacher = Teacher(opened(run))
    random = [one.row for one in teacher.questions(teacher.edits.state, 20) if one.sample]
    before = teacher.edits.state.clusters
    worked("teach", run.folder, "--answers", write(tmp_path / "answers.csv", truth_of(asked(run, 20))))
    state = Edits(run).state
    assert np.flatnonzero(state.sample != NONE).tolist() == sorted(random)
    assert state.sample[random].tolist() == before[random].tolist()


def test_labels_mean_clusters_by_name_name_unnamed_ones_and_open_new_ones(run: Run, tmp_path: Path) -> None:
    Edits(run).rename(0, "red")
    labels = {
        "000.png": "red", "004.png": "green", "007.png": "green", "005.png": "odd", "002.png": "2", "008.png": "junk",
        "010.png": "Junk", "011.png": " ",
    }  # fmt: skip
    done = worked("teach", run.folder, "--answers", write(tmp_path / "answers.csv", labels))
    assert "7 answers recorded\nnew clusters: odd\n" in done.out
    state = Edits(run).state
    assert state.names == {0: "red", 1: "green", 2: "2", 3: "odd"}
    assert state.examples[[0, 4, 7, 5, 2, 8, 10, 11]].tolist() == [0, 1, 1, 3, 2, JUNK, JUNK, NONE]


def merged(run: Run) -> None:
    edits = Edits(run)
    edits.rename(0, "red")
    edits.rename(1, "crimson")
    edits.merge([0, 1])


@pytest.mark.parametrize(
    "before, content, expected",
    [
        (None, "path,label\n000.png,red\nnot/there.png,red\n", "not/there.png is no image of this run"),
        (None, "path,label\n000.png,red\n000.png,blue\n", "000.png has two labels, 'red' and 'blue': keep one"),
        (lambda run: Edits(run).rename(0, "red"), "path,label\n000.png,0\n", "0 is the number of the cluster 'red'"),
        (None, "path;label\n000.png;red\n", "separate the columns by commas"),
        (merged, "path,label\n002.png,2\n000.png,crimson\n", "cluster 'crimson' was merged into 'red' since"),
        (None, "path,label\n", "holds no answer: fill in the column label"),
        (None, "path,label\n000.png,\n", "holds no answer: fill in the column label"),
        (None, "file,label\n000.png,red\n", "it needs one column path"),
        (None, "path,label\n000.png\n", "line 2 has 1 fields, expected 2"),
        (None, f"path,label\n000.png,{'x' * 201}\n", "a name has at most 200 characters"),
    ],
    ids=[
        "unknown path",
        "two labels",
        "number of a name",
        "semicolons",
        "merged since",
        "no row",
        "no label",
        "no column",
        "short row",
        "long name",
    ],
)
def test_bad_answers_are_one_line_and_nothing_is_recorded(before, content, expected, run: Run, tmp_path: Path) -> None:
    if before:
        before(run)
    log = run.folder / "edits.jsonl"
    recorded = log.read_bytes() if log.exists() else b""
    (tmp_path / "answers.csv").write_text(content)
    assert expected in command("teach", run.folder, "--answers", tmp_path / "answers.csv", "--accept").complaint
    assert (log.read_bytes() if log.exists() else b"") == recorded


def test_a_merged_name_that_another_cluster_has_now_is_this_one(run: Run, tmp_path: Path) -> None:
    merged(run)
    Edits(run).rename(2, "crimson")
    worked("teach", run.folder, "--answers", write(tmp_path / "answers.csv", {"002.png": "crimson"}))
    assert Edits(run).state.examples[2] == 2


def test_features_that_are_no_numbers_are_one_line(run: Run) -> None:
    network = load_network(run)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1e30)
    run.save_model(network)
    complaint = command("teach", run.folder, "--ask", 3, "--json").complaint
    assert "NaN or infinity for 90 of 90 inputs, such as 000.png" in complaint


def test_options_that_do_not_go_together_are_refused(run: Run) -> None:
    assert "leave out" in command("teach", run.folder, "--ask", 3, "--accept").complaint
    assert "--json belongs to" in command("teach", run.folder, "--json").complaint
    assert "no such file" in command("teach", run.folder, "--answers", "missing.csv").complaint
    assert "is not a run" in command("teach", run.folder.parent, "--ask", 3).complaint
