"""What the server learns from corrections: proposals, questions, sheets, growing sets; and what it refuses."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from colour_window import COUNT, colour_run, lesson, teach_some, wrong
from explorer_server import Served, cache_in

from twincluster.pages.explorer import lessons
from twincluster.runs import JUNK, Edits, Run, State
from twincluster.teacher import Question, Teacher


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("taught")
    with cache_in(folder / "cache"):
        yield colour_run(folder)


def test_without_examples_nothing_would_move(served: Served) -> None:
    found = lesson(served)
    assert (found["moves"], found["examples"], found["trust"]) == (0, 0, None)
    assert served.get("/api/proposals").json()["groups"] == []
    assert served.edit("accept").status_code == 400


def test_accepting_all_is_one_edit_that_one_undo_takes_back(served: Served) -> None:
    found = teach_some(served)
    before, apart = served.library.edits.state.clusters, wrong(served)
    shown = served.get("/api/proposals").json()
    assert found["moves"] == shown["moves"] == sum(group["size"] for group in shown["groups"]) > 0
    certainty = [group["certainty"] for group in shown["groups"]]
    assert certainty == sorted(certainty, reverse=True)
    answer = served.edit("accept")
    assert answer.status_code == 200, answer.text
    assert answer.json()["undo"] == f"accept that {shown['moves']} images move"
    assert len(wrong(served)) < len(apart)
    assert not served.library.edits.state.shown[np.flatnonzero(before != served.library.edits.state.clusters)].any()
    served.edit("undo")
    assert (served.library.edits.state.clusters == before).all()


def test_one_group_is_accepted_and_another_refused(served: Served) -> None:
    teach_some(served)
    first, second, *_ = served.get("/api/proposals").json()["groups"]
    rows = served.get(f"/api/proposals/{first['source']}/{first['to']}").json()["rows"]
    assert rows[: len(first["rows"])] == first["rows"]
    assert len(rows) == first["size"]
    assert served.edit("accept", groups=[[first["source"], first["to"]]]).status_code == 200
    assert (served.library.edits.state.clusters[rows] == first["to"]).all()
    lesson(served)
    pair = [second["source"], second["to"]]
    apart = served.get("/api/proposals/{}/{}".format(*pair)).json()["rows"]
    assert apart
    assert served.edit("refuse", groups=[pair]).status_code == 200
    assert set(apart) <= set(Edits(served.run).state.refused[second["to"]].tolist())
    lesson(served)
    left = served.get("/api/proposals/{}/{}".format(*pair)).json()["rows"]
    assert not set(left) & set(apart)


def test_proposals_of_an_older_lesson_are_not_accepted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    teach_some(served)
    monkeypatch.setattr(served.library.lessons, "wake", lambda: None)  # no lesson about what comes now
    assert served.edit("rename", cluster=0, name="red").status_code == 200
    late = served.edit("accept")
    assert late.status_code == 409
    assert "being made anew" in late.json()["error"]
    assert Edits(served.run).state.names[0] == "red"
    assert served.get("/api/lesson").json()["number"] == served.number - 1


def test_proposals_are_shown_while_questions_are_still_computed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lesson(served)
    questions, go_on = Teacher.questions, threading.Event()

    def slow(teacher: Teacher, state: State, count: int) -> list[Question]:
        assert go_on.wait(60)
        return questions(teacher, state, count)

    monkeypatch.setattr(Teacher, "questions", slow)
    assert served.edit("rename", cluster=0, name="red").status_code == 200
    end = time.monotonic() + 60
    while (found := served.get("/api/lesson").json())["number"] != served.number:
        assert time.monotonic() < end, "no proposals without questions"
        time.sleep(0.01)
    assert (found["asked"], found["settled"]) == (before["asked"], False)
    assert served.get("/api/proposals").json()["number"] == served.number
    shown = served.get("/api/questions?count=6").json()
    assert shown["asked"] == before["asked"]
    assert len(shown["questions"]) == 6
    assert shown["questions"][0]["clusters"]
    go_on.set()
    assert lesson(served)["asked"] == served.number


def test_questions_name_clusters_and_pass_over_what_is_answered(served: Served) -> None:
    lesson(served)
    found = served.get("/api/questions?count=6").json()
    rows = [one["row"] for one in found["questions"]]
    assert len(set(rows)) == 6
    assert found["samples"], "every fifth of the questions made is about a random image"
    assert found["left"] == COUNT
    for one in found["questions"]:
        assert [choice["id"] for choice in one["clusters"]] != []
        assert sum(choice["probability"] for choice in one["clusters"]) == pytest.approx(1, abs=0.01)
    first, second, third = rows[:3]
    assert served.edit("answer", rows=[first], to=1).status_code == 200
    assert served.edit("answer", rows=[second], name="odd", sample=True).status_code == 200
    assert served.edit("answer", rows=[third], to=JUNK).status_code == 200
    state = Edits(served.run).state
    assert state.examples[[first, third]].tolist() == [1, JUNK]
    assert state.names[int(state.examples[second])] == "odd"
    assert (state.sample != -3).sum() == 1
    again = served.get(f"/api/questions?count=6&keep={first},{rows[3]}&without={rows[4]}").json()
    assert [one["row"] for one in again["kept"]] == [rows[3]]
    assert not {*rows[:5]} & {one["row"] for one in again["questions"]}
    assert again["left"] == COUNT - 3 - 2
    assert lesson(served)["trust"]["overall"]["count"] == 1


def test_more_questions_are_made_when_many_are_left_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "QUESTIONS", 10)
    served.library.lessons._wanted = 10
    served.edit("rename", cluster=0, name="red")
    lesson(served)
    rows: list[int] = []
    for _ in range(400):
        query = {"count": 8, "without": ",".join(map(str, rows))}
        found = served.get("/api/questions", params=query).json()
        rows += [one["row"] for one in found["questions"] + found["samples"] if one["row"] not in rows]
        if not found["left"]:
            break
    assert sorted(rows) == list(range(COUNT))


def test_a_name_that_is_taken_makes_no_new_cluster(served: Served) -> None:
    served.edit("rename", cluster=0, name="red")
    answer = served.edit("answer", rows=[1], name="red")
    assert answer.status_code == 400
    assert answer.json()["error"] == "cluster 0 is called 'red' already: choose another name, or merge them"


def test_a_sheet_holds_images_of_one_cluster_that_nobody_has_placed(served: Served) -> None:
    lesson(served)
    sheet = served.get("/api/sheet").json()
    clusters = served.library.edits.state.clusters
    assert len(sheet["rows"]) == 24
    assert set(clusters[sheet["rows"]].tolist()) == {sheet["cluster"]}
    other = served.get(f"/api/sheet?without={sheet['cluster']}").json()
    assert other["cluster"] != sheet["cluster"]
    served.edit("confirm", rows=sheet["rows"])
    lesson(served)
    rest = served.get(f"/api/sheet?cluster={sheet['cluster']}").json()["rows"]
    assert not set(rest) & set(sheet["rows"])
    assert served.get("/api/sheet?cluster=99").status_code == 400


def test_a_set_grows_from_all_images(served: Served) -> None:
    lesson(served)
    like = [row for row in range(COUNT) if row % 3 == 0][:3]
    found = served.client.post("/api/grow", json={"like": like, "unlike": []}).json()
    assert found["searched"] == COUNT
    assert len(found["rows"]) == len(set(found["rows"])) == 50
    assert not set(found["rows"]) & set(like)
    assert len(set(served.library.edits.state.clusters[found["rows"]].tolist())) == 3
    after = served.client.post("/api/grow", json={"like": like, "unlike": found["rows"][:5]}).json()["rows"]
    assert not set(after) & set(found["rows"][:5])


@pytest.mark.parametrize(
    "asked",
    [{}, [], {"like": []}, {"like": [], "unlike": []}, {"like": [-1], "unlike": []}, {"like": [999], "unlike": []}],
)
def test_a_set_grows_only_from_images_of_the_run(served: Served, asked: object) -> None:
    assert served.client.post("/api/grow", json=asked).status_code == 400


@pytest.mark.parametrize(
    "path", ["/api/questions?keep=x", "/api/questions?without=1,,2", "/api/questions?count=-1", "/api/sheet?without=-"]
)
def test_odd_addresses_are_refused(served: Served, path: str) -> None:
    lesson(served)
    assert served.get(path).status_code == 400


@pytest.mark.parametrize("groups", [[], [[1]], [[1, 2, 3]], [["a", 1]], "all", [[0, 0]], {}])
def test_odd_groups_are_refused(served: Served, groups: object) -> None:
    teach_some(served)
    assert served.edit("accept", groups=groups).status_code == 400
    assert served.edit("refuse", groups=groups).status_code == 400


def test_an_edit_of_another_program_is_learned_from(served: Served) -> None:
    lesson(served)
    Edits(served.run).confirm([0, 1, 2])
    assert lesson(served)["examples"] == 3


def test_why_nothing_can_be_learned_is_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    lesson(served)

    def broken(*_: object) -> None:
        raise ValueError("no lesson\ntoday")

    monkeypatch.setattr(Teacher, "proposals", broken)
    served.edit("rename", cluster=0, name="red")
    while not (found := served.get("/api/lesson").json())["absent"]:
        pass
    assert found["absent"] == "no lesson today"
    monkeypatch.undo()
    served.edit("rename", cluster=0, name="blue")
    while served.get("/api/lesson").json()["absent"]:
        pass
    assert lesson(served)["number"] == 2


def test_a_stopped_library_ends_its_thread(served: Served) -> None:
    lesson(served)
    before = lesson_threads()
    served.library.lessons.stop()
    while len(lesson_threads()) == len(before):
        time.sleep(0.01)
    assert len(lesson_threads()) == len(before) - 1


def lesson_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lessons"]
