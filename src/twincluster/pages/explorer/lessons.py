"""What a person's corrections teach: proposals, questions, contact sheets and trust.

A thread prepares the teacher once and computes a lesson after every edit. Requests read the newest lesson and never
wait for the next. Results are plain data for JSON. Shapes: m rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from twincluster.clustering import Head, Lesson
from twincluster.core import InputError
from twincluster.runs import ConflictError, State
from twincluster.teacher import Group, Question, Share, Teacher, Trust

if TYPE_CHECKING:
    from twincluster.pages.explorer.library import Library

QUESTIONS = 64  # made with each lesson; a page asks for a few at a time
CHOICES = 25  # clusters offered with a question, five at a time
SHEET = 24  # images of a contact sheet
ON_GROUPS = 12  # images shown of a proposed group
MOST_GROUPS = 200  # shown at once
ALIKE = 50  # images that one step of "more like these" adds


@dataclass(frozen=True, eq=False)
class Taught:
    """The newest lesson, and what follows from it.

    Questions, trust and `enough` are those of the lesson before until they have been computed.
    """

    state: State  # after the edits that the lesson is about
    rows: np.ndarray  # (m,) with features, sorted
    lesson: Lesson
    groups: Sequence[Group]  # that would move, most certain first
    questions: Sequence[Question] = ()
    trust: Trust | None = None
    asked: int | None = None  # number of the edits that questions and trust are about
    enough: bool = False  # whether more answers would change little
    settled: bool = False  # whether everything is about this lesson

    @property
    def moves(self) -> int:
        return sum(len(group.rows) for group in self.groups)


class Lessons:
    """The lessons of one library; call `start` when its features are ready."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.teacher: Teacher | None = None
        self.taught: Taught | None = None
        self.absent = ""  # why there are none
        self.busy = False
        self._news = Condition()
        self._wanted = QUESTIONS
        self._woken = True  # there is something to do
        self._stopped = False

    def start(self) -> None:
        Thread(target=self._work, daemon=True, name="lessons").start()

    def stop(self) -> None:
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def wake(self) -> None:
        """Tell the thread that there may be new edits."""
        with self._news:
            self._woken = True
            self._news.notify_all()

    def status(self) -> dict[str, Any]:
        """Return what a page polls until the lesson is about the newest edit."""
        taught, ready = self.taught, self.library.ready.is_set()
        absent = self.absent or (self.library.no_features if ready and self.library.seen is None else "")
        found: dict[str, Any] = {"stage": "absent" if absent else "preparing", "absent": absent, "number": None}
        if taught is None or absent:
            return found
        return found | {
            "stage": "ready", "number": taught.state.number, "moves": taught.moves,
            "groups": len(taught.groups), "examples": int(taught.state.shown.sum()), "enough": taught.enough,
            "settled": taught.settled, "asked": taught.asked,
            "trust": _trust_as_json(taught.trust),
        }  # fmt: skip

    # -- proposals

    def proposals(self) -> dict[str, Any]:
        taught = self._taught()
        return {
            "number": taught.state.number, "moves": taught.moves, "more": max(0, len(taught.groups) - MOST_GROUPS),
            "groups": [
                {"source": group.source, "to": group.to, "size": len(group.rows),
                 "certainty": round(float(np.mean(group.certainty)), 4), "rows": group.rows[:ON_GROUPS].tolist()}
                for group in taught.groups[:MOST_GROUPS]
            ],
        }  # fmt: skip

    def group(self, source: int, to: int) -> dict[str, Any]:
        """Return the rows of one group, most certain first; none if nothing would move that way any more."""
        taught = self._taught()
        rows = [group.rows for group in taught.groups if (group.source, group.to) == (source, to)]
        return {"number": taught.state.number, "rows": rows[0].tolist() if rows else []}

    def chosen(self, asked: Collection[tuple[int, int]] | None, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (m,) of some groups, None for all, and where each row would move (m,).

        Raise ConflictError if the page shows other proposals than the newest.
        """
        taught = self._taught()
        if taught.state.number != number:
            raise ConflictError(number, "the proposals are being made anew: look again in a moment")
        groups = [group for group in taught.groups if asked is None or (group.source, group.to) in asked]
        if not groups:
            raise InputError("nothing would move that way any more: look again")
        return (
            np.concatenate([group.rows for group in groups]),
            np.concatenate([np.full(len(group.rows), group.to) for group in groups]),
        )

    def head(self, number: int) -> Head | None:
        """Return the model taught by the edits up to a number; None if the newest lesson is about others."""
        taught = self.taught
        return taught.lesson.head if taught is not None and taught.state.number == number else None

    # -- questions

    def questions(self, count: int, keep: Sequence[int], without: Collection[int]) -> dict[str, Any]:
        """Return the next questions: useful ones, and some about random rows.

        `keep` names rows that the page already asks about; they come again unless somebody has placed them.
        """
        taught, state, out = self._taught(), self.library.edits.state, {*keep, *without}
        fresh = [one for one in taught.questions if one.row not in out and _is_open(state, one.row)]
        ordinary = [one.row for one in fresh if not one.sample][:count]
        samples = [one.row for one in fresh if one.sample][:count]
        if len(ordinary) < count:
            self._want(len(out) + QUESTIONS)
        return {
            "asked": taught.asked,
            "kept": [self._question(taught, row) for row in keep if _is_open(state, row)],
            "questions": [self._question(taught, row) for row in ordinary],
            "samples": [self._question(taught, row) for row in samples],
            "left": int(_open(state, taught.rows).sum()) - sum(_is_open(state, row) for row in out),
        }

    def _question(self, taught: Taught, row: int) -> dict[str, Any]:
        return {"row": row, "clusters": self._choices(taught, row)}

    def _choices(self, taught: Taught, row: int) -> list[dict[str, Any]]:
        """Return the likeliest clusters of a row, without junk and without those that have ended since."""
        assert self.teacher is not None
        names = self.library.edits.state.names
        likeliest = self.teacher.likeliest(taught.state, row, CHOICES)
        return [{"id": cluster, "probability": round(chance, 4)} for cluster, chance in likeliest if cluster in names]

    # -- contact sheets

    def sheet(self, cluster: int | None, without: Collection[int]) -> dict[str, Any]:
        """Return up to SHEET images of a cluster that nobody has placed; by default, of the least certain cluster.

        `without` names clusters that the page has just shown.
        """
        taught = self._taught()
        assert self.teacher is not None
        chosen = self._least_settled(taught, without) if cluster is None else cluster
        if chosen is None:
            return {"cluster": None, "rows": []}
        if chosen not in taught.state.names:
            raise InputError(f"there is no cluster {chosen} yet in the newest lesson: try again in a moment")
        state = self.library.edits.state
        rows = [int(row) for row in self.teacher.sheet(taught.state, chosen, SHEET) if _is_open(state, int(row))]
        return {"number": taught.state.number, "cluster": chosen, "rows": rows}

    def _least_settled(self, taught: Taught, without: Collection[int]) -> int | None:
        """Return the cluster with the largest expected number of wrong images."""
        lesson, state = taught.lesson, taught.state
        clusters, known = state.clusters[taught.rows], state.shown[taught.rows]
        places = np.flatnonzero((clusters >= 0) & ~known)
        if not len(places):
            return None
        mine = clusters[places]
        wrong = np.bincount(mine, 1 - lesson.probabilities[places, np.searchsorted(lesson.classes, mine)])
        there, living = np.unique(mine), self.library.edits.state.names
        left = [one for one in there[np.argsort(-wrong[there], kind="stable")].tolist() if one in living]
        return next((one for one in left if one not in without), left[0] if left else None)

    # -- more like these

    def grow(self, like: np.ndarray, unlike: np.ndarray) -> dict[str, Any]:
        """Return the images most similar to some and unlike others, from all rows."""
        taught = self._taught()
        assert self.teacher is not None
        rows = self.teacher.grow(like, unlike, ALIKE)
        searched = int((taught.state.home >= 0).sum())
        return {"number": taught.state.number, "rows": [int(row) for row in rows], "searched": searched}

    # -- the thread

    def _taught(self) -> Taught:
        if self.taught is None:
            why = self.absent or "the teacher is being prepared"
            raise InputError(f"{why}: try again in a moment" if not self.absent else why)
        return self.taught

    def _want(self, count: int) -> None:
        with self._news:
            if count > self._wanted:
                self._wanted, self._woken = count, True
                self._news.notify_all()

    def _work(self) -> None:
        try:
            self.busy = True
            teacher = self._prepared()
        except Exception as error:  # nobody catches errors of a thread: show them on the page
            self.absent = _in_a_line(error)
            return
        finally:
            self.busy = False
        done: tuple[int, int] | None = None
        while True:
            with self._news:
                while not (self._woken or self._stopped):
                    self._news.wait()
                self._woken = False
                if self._stopped:
                    return
                count = self._wanted
            try:
                self.busy = True
                state = self.library.edits.state
                if done != (state.number, count):
                    self._learn(teacher, state, count)
                done = (state.number, count)
            except Exception as error:
                self.absent = _in_a_line(error)
            finally:
                self.busy = False

    def _prepared(self) -> Teacher:
        if self.library.seen is None:
            raise InputError(self.library.no_features)
        teacher = Teacher(self.library.inputs)
        teacher.prepare()
        return teacher

    def _learn(self, teacher: Teacher, state: State, count: int) -> None:
        """Publish what follows from the edits, piece by piece.

        Proposals come first; `enough`, which takes a second lesson, comes last.
        """
        lesson, groups = teacher.lesson(state), teacher.proposals(state)
        taught = Taught(state, teacher.rows, lesson, groups)
        if (last := self.taught) is not None:
            taught = replace(taught, questions=last.questions, trust=last.trust, asked=last.asked, enough=last.enough)
        self.teacher, self.taught, self.absent = teacher, taught, ""
        questions, trust = teacher.questions(state, count), teacher.trust(state)
        self.taught = taught = replace(taught, questions=questions, trust=trust, asked=state.number)
        if self.library.edits.state.number == state.number:
            self.taught = replace(taught, enough=bool(teacher.enough(state)), settled=True)


def _trust_as_json(trust: Trust | None) -> dict[str, Any] | None:
    if trust is None:
        return None
    clusters = [{"id": cluster} | _share_as_json(share) for cluster, share in trust.clusters.items()]
    return {"overall": _share_as_json(trust), "clusters": clusters}


def _share_as_json(share: Share) -> dict[str, Any]:
    numbers = {name: round(float(getattr(share, name)), 4) for name in ("share", "low", "high")}
    return numbers | {"count": share.count}


def _is_open(state: State, row: int) -> bool:
    """Return True if a person can still be asked about a row."""
    return bool(0 <= row < len(state.home) and _open(state, np.array([row]))[0])


def _open(state: State, rows: np.ndarray) -> np.ndarray:
    return np.asarray((state.clusters[rows] >= 0) & ~state.shown[rows])


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
