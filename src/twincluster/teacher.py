"""Learning from a person's corrections: proposals, questions, growing clusters, and an estimate of correctness.

`Teacher` applies the functions of `clustering/teaching.py` to the features and the edits of a run. It only proposes;
`Edits` records what a person decides. Shapes: n rows of the run, m of them with features, D dimensions.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any, TypeVar

import numpy as np

from twincluster.clustering import NO_EXAMPLE, Lesson, Space, choose_questions, saturated, share_interval
from twincluster.core import InputError, counted
from twincluster.run_images import RunImages
from twincluster.runs import NONE, UNREADABLE, Learned, State, is_by_hand

RANDOM_EVERY = 5  # every fifth question is about a random image; only these answers feed the estimate
LIKELIEST = 5  # clusters offered with a question
SHEET = 24  # images of a contact sheet
STEP = 50  # images by which a cluster grows
FEWEST_OF_CLUSTER = 10  # random answers needed to estimate one cluster
FOLDS = 5  # of the cross-fitted estimate
UNLIKE_WEIGHT = 0.5  # of negative examples, relative to positive ones
LESSONS_KEPT = 4
LISTED = 5  # names in a message
Kept = TypeVar("Kept")


@dataclass(frozen=True, eq=False)
class Group:
    """Images proposed to move from one cluster to another."""

    source: int  # JUNK too
    to: int  # JUNK too
    rows: np.ndarray  # (g,) most certain first
    certainty: np.ndarray  # (g,) probability of `to`


@dataclass(frozen=True)
class Question:
    """An image to ask about."""

    row: int
    clusters: tuple[tuple[int, float], ...]  # the likeliest first, with probability; JUNK is not among them
    sample: bool  # a random image, whose answer feeds the estimate


@dataclass(frozen=True)
class Share:
    """Estimated share of images in the right cluster, with a 95 % interval."""

    share: float
    low: float
    high: float
    count: int  # random answers behind it

    def to_text(self) -> str:
        return (
            f"{self.share:.1%} of the images are in the right cluster, by {counted(self.count, 'random answer')} "
            f"(95 % interval {self.low:.1%} to {self.high:.1%})"
        )


@dataclass(frozen=True)
class Trust(Share):
    """Estimate for a whole run, and for each cluster with enough random answers."""

    clusters: Mapping[int, Share] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        own = {"share": self.share, "low": self.low, "high": self.high, "answers": self.count}
        shares = {cluster: vars(share) for cluster, share in self.clusters.items()}
        return own | {"clusters": shares}


class Teacher:
    """Learn from the edits of one run. Thread-safe."""

    def __init__(self, images: RunImages) -> None:
        self.images, self.edits = images, images.edits
        self.seed = images.config.seed
        self.ready = False  # whether `prepare` is done
        self._kept: dict[tuple[str, int], object] = {}  # what was computed of a state, by the number of an edit
        self._folded: dict[tuple[int, int], tuple[State, ...]] = {}  # by the number of rows and of an `accept`
        self._guard = RLock()

    def prepare(self, progress: Callable[[str], None] | None = None) -> None:
        """Compute the space of the features, or read it from the cache. Raise InputError if no image can be read."""
        if self.ready:
            return
        with self._guard:
            if not self.ready:
                if progress:
                    progress("comparing the images")
                _ = self.images.space
                self.ready = True

    @property
    def space(self) -> Space:
        self.prepare()
        return self.images.space[1]

    @property
    def rows(self) -> np.ndarray:
        """Return the rows of the run that have features, (m,), sorted."""
        self.prepare()
        return self.images.space[0]

    def lesson(self, state: State) -> Lesson:
        """Return what the examples say about every row with features; entry i is about `rows[i]`."""
        return self._once("lesson", state.number, lambda: self.images.learn(state))

    def proposals(self, state: State) -> list[Group]:
        """Return the images that would move, grouped by source and target, most certain group first."""
        rows, to, certainty = self.lesson(state).proposals(state.clusters[self.rows])
        rows, pairs = self.rows[rows], defaultdict[tuple[int, int], list[int]](list)
        for place, pair in enumerate(zip(state.clusters[rows].tolist(), to.tolist(), strict=True)):
            pairs[pair].append(place)
        groups = [Group(source, to, rows[places], certainty[places]) for (source, to), places in pairs.items()]
        return sorted(groups, key=lambda group: (-float(group.certainty.mean()), group.source, group.to))

    def answer(self, state: State, labels: Mapping[int, str]) -> State:
        """Record labels of rows as one edit. Rows that `questions` drew at random count for the estimate."""
        free = len([row for row in labels if not state.shown[row]])
        samples = self.sample_rows(state, len(self._random_places(state, free)))
        return self.edits.answer_labels(labels, samples.tolist(), expected=state.number)

    def accept(self, state: State, groups: Iterable[Group]) -> State:
        """Move the images of these groups as one edit. From then on the taught model also decides about new images."""
        some = list(groups)
        rows = np.concatenate([group.rows for group in some]) if some else np.empty(0, np.int64)
        to = np.concatenate([np.full(len(group.rows), group.to) for group in some]) if some else rows
        return self.edits.accept(rows, to, head=self.lesson(state).head, expected=state.number)

    def questions(self, state: State, count: int) -> list[Question]:
        """Return at most `count` questions, the most useful first. Every fifth is about a random image."""
        lesson, free = self.lesson(state), self._free(state)
        random = [place for place in self._random_places(state, count) if place < min(count, len(free))]
        drawn = self.sample_rows(state, len(random))
        examples, clusters = state.examples[self.rows].copy(), state.clusters[self.rows]
        examples[np.searchsorted(self.rows, drawn)] = UNREADABLE  # neither free nor a cluster: not asked about twice
        chosen = choose_questions(
            self.space, lesson if lesson.count else None, clusters, examples, count - len(drawn), self.seed
        )
        useful, by_chance = iter(self.rows[chosen].tolist()), iter(drawn.tolist())
        asked: list[Question] = []
        for place in range(min(count, len(free))):
            sample = place in random
            row = next(by_chance if sample else useful, None)
            if row is not None:
                asked.append(Question(row, self.likeliest(state, row), sample))
        return asked

    def likeliest(self, state: State, row: int, count: int = LIKELIEST) -> tuple[tuple[int, float], ...]:
        """Return the likeliest clusters of a row, with probabilities."""
        lesson, place = self.lesson(state), np.searchsorted(self.rows, row)
        if place >= len(self.rows) or self.rows[place] != row:
            return ()
        chances = lesson.probabilities[place]
        best = [at for at in np.argsort(-chances, kind="stable") if lesson.classes[at] >= 0][:count]
        return tuple((int(lesson.classes[at]), float(chances[at])) for at in best)

    def sample_rows(self, state: State, count: int) -> np.ndarray:
        """Return the next `count` random rows, from a fixed permutation of all rows without examples."""
        order = self._order(len(state.home))
        return np.asarray(order[np.isin(order, self._free(state))][:count])

    def _order(self, count: int) -> np.ndarray:
        """Return the order in which random questions are about rows."""
        return np.random.default_rng([self.seed, 22]).permutation(count)

    def _random_places(self, state: State, count: int) -> list[int]:
        """Return the positions of random questions among the next `count`."""
        answered = int(state.shown.sum())
        return [place for place in range(count) if (answered + place + 1) % RANDOM_EVERY == 0]

    def _free(self, state: State) -> np.ndarray:
        """Return rows with a cluster and features that are not examples."""
        rows = self.rows
        return np.asarray(rows[(state.examples[rows] == NONE) & (state.clusters[rows] >= 0)])

    def sheet(self, state: State, cluster: int, count: int = SHEET) -> np.ndarray:
        """Return a contact sheet of a cluster: rows that are not examples, most doubtful first."""
        lesson = self.lesson(state)
        places = np.flatnonzero((state.clusters[self.rows] == cluster) & (state.examples[self.rows] == NONE))
        if not len(places):
            return np.empty(0, np.int64)
        chance = lesson.probabilities[places, np.searchsorted(lesson.classes, cluster)]
        return np.asarray(self.rows[places[np.argsort(chance, kind="stable")[:count]]])

    def grow(self, like: Iterable[int], unlike: Iterable[int] = (), count: int = STEP) -> np.ndarray:
        """Return the rows of the whole run most like some rows and least like others, best first, without these."""
        wanted, other = (self._places(rows) for rows in (like, unlike))
        if not len(wanted):
            raise InputError("none of the selected images can be read again: select others")
        rows = self.space.rows
        way = rows[wanted].mean(0) - (UNLIKE_WEIGHT * rows[other].mean(0) if len(other) else 0)
        likeness = rows @ way
        likeness[np.concatenate([wanted, other])] = -np.inf
        best = np.argsort(-likeness, kind="stable")[:count]
        return np.asarray(self.rows[best[np.isfinite(likeness[best])]])

    def enough(self, state: State) -> bool:
        """Return True if more answers would change little, because half of them give the same result."""

        def compare() -> bool:
            given = np.flatnonzero(state.shown)
            half = state.examples.copy()
            half[np.random.default_rng([self.seed, len(given)]).permutation(given)[len(given) // 2 :]] = NO_EXAMPLE
            return saturated([self.images.learn(state, half), self.lesson(state)])

        return bool(state.shown.any()) and self._once("enough", state.number, compare)

    def trust(self, state: State) -> Trust | None:
        """Estimate the share of images in the right cluster from random questions; None without answers.

        What a person has put right or confirmed is right, sampled or not. Of the other rows as large a share is right
        as of the sampled ones before their answers: a sampled row counts with the cluster it had then. After proposals
        were accepted, cross-fitting gives this cluster: where models that were taught without the answer would have
        put it, one accepted lesson after the other.
        """
        asked = np.flatnonzero((state.sample != NONE) & state.shown)
        if not len(asked):
            return None
        before, answer = state.sample[asked], state.examples[asked]
        lesson = max((step.edit for step in state.joined if isinstance(step, Learned)), default=0)
        if lesson:
            rows, found, right = self._once("unseen", lesson, lambda: self._unseen(lesson))
            taught = np.isin(asked, rows)
            places, before = np.searchsorted(rows, asked[taught]), before.copy()
            # what was right is so still, even where its cluster was split since
            before[taught] = np.where(right, state.examples[rows], state.merged(found, lesson))[places]
        readable = state.home != UNREADABLE
        whole = _share(before == answer, int((state.shown & readable).sum()), int((~state.shown & readable).sum()))
        clusters = {}
        for cluster in np.unique(before).tolist():
            inside, members = before == cluster, state.clusters == cluster
            if cluster in state.names and inside.sum() >= FEWEST_OF_CLUSTER and members.any():
                right, known = answer[inside] == cluster, int((members & state.shown).sum())
                clusters[cluster] = _share(right, known, int((members & ~state.shown).sum()))
        return Trust(whole.share, whole.low, whole.high, whole.count, clusters)

    def _unseen(self, edit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cross-fit the random answers before an `accept`. Return their rows (a,), sorted, the cluster of each row
        without its own answer, and whether this cluster is right."""
        past = self.edits.before(edit)
        asked = np.intersect1d(np.flatnonzero((past.sample != NONE) & past.shown), self.rows)
        found, part = past.sample[asked].copy(), self._fold_of(len(past.home))[asked]
        for fold, state in enumerate(self._folds(edit)):
            found[part == fold] = state.clusters[asked[part == fold]]
        return asked, found, found == past.examples[asked]

    def _fold_of(self, count: int) -> np.ndarray:
        """Return the fold of each row, the same at every `accept`. Random questions share out evenly."""
        fold = np.empty(count, np.int64)
        fold[self._order(count)] = np.arange(count) % FOLDS
        return fold

    def _folds(self, edit: int) -> tuple[State, ...]:
        """Return for each fold the state after an `accept` as it would be without the random answers about its rows.

        Every accepted lesson is learned again without them, from where the lesson before it would have put all rows.
        """
        with self._guard:
            count, states, last = len(self.images.assignments.paths), (self.edits.before(0),) * FOLDS, 0
            for line in self.edits.history[0]:
                if line["kind"] == "accept" and line["edit"] <= edit:
                    key = (count, int(line["edit"]))
                    if key not in self._folded:
                        self._folded[key] = self._replayed(states, last, line)
                    states, last = self._folded[key], key[1]
            return states

    def _replayed(self, states: Iterable[State], last: int, accept: dict[str, Any]) -> tuple[State, ...]:
        """Return the state of each fold after an `accept`, from those after edit `last`."""
        past = self.edits.before(accept["edit"])
        asked, fold_of = (past.sample != NONE) & past.shown, self._fold_of(len(past.home))
        lines, taken = self.edits.history[0], self._accepted(past, accept)
        between, ends = [line for line in lines if last < line["edit"] < accept["edit"]], []
        for fold, start in enumerate(states):
            state, out = start, asked & (fold_of == fold)
            for line in between:
                state = self.edits.apply(state, _without(line, np.flatnonzero(out)))
                state = replace(state, shown=state.shown & ~out)
            ends.append(self.edits.apply(state, self._accept_of(state, accept, taken)))
        return tuple(ends)

    def _accepted(self, past: State, line: Mapping[str, Any]) -> set[tuple[int, int]] | None:
        """Return the groups that an `accept` took, as (source, to); None if it took all that were proposed."""
        moves = set(zip(past.clusters[line["rows"]].tolist(), line["to"], strict=True))
        return None if {(group.source, group.to) for group in self.proposals(past)} <= moves else moves

    def _accept_of(self, state: State, line: dict[str, Any], taken: set[tuple[int, int]] | None) -> dict[str, Any]:
        """Return an `accept` of what would have been proposed in another state, of the groups that were taken."""
        own = state.clusters[self.rows]
        places, to, _ = self.images.learn(state).proposals(own)
        pairs = zip(own[places].tolist(), to.tolist(), strict=True)
        chosen = np.array([taken is None or pair in taken for pair in pairs], bool)
        given, targets = np.array(line["rows"], np.int64), np.array(line["to"], np.int64)
        later = state.guessed[given]  # came by `update`, and the lesson before had decided about them
        rows = np.concatenate([self.rows[places[chosen]], given[later]])
        return line | {"rows": rows.tolist(), "to": np.concatenate([to[chosen], targets[later]]).tolist()}

    def _places(self, rows: Iterable[int]) -> np.ndarray:
        given = np.asarray(list(rows), np.int64)
        return np.searchsorted(self.rows, given[np.isin(given, self.rows)])

    def _once(self, what: str, number: int, compute: Callable[[], Kept]) -> Kept:
        """Compute what depends on the edits up to a number, once. What is there already is returned without waiting."""
        key = (what, number)
        if (kept := self._kept.get(key)) is not None:
            return kept  # type: ignore[return-value]
        with self._guard:
            if key not in self._kept:
                while len(self._kept) >= 2 * LESSONS_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = compute()
            return self._kept[key]  # type: ignore[return-value]


def take_over(old: RunImages, new: RunImages) -> list[str]:
    """Carry examples, names and junk from an old run to a new one, image by image. Return a report, in lines.

    The old run does not change. Its merges, splits and accepted proposals are not carried.
    """
    state, (rows, by_path, others) = old.edits.state, same_images(old, new)
    carried = new.edits.take_over(state, rows)
    lost = np.setdiff1d(np.flatnonzero(state.shown), [*rows, *others])
    lines = [
        f"from {old.run.folder}: {counted(carried.examples, 'example')}, {counted(len(carried.names), 'name')} and "
        f"{carried.junk:,} junk"
    ]
    if by_path:
        lines.append(f"{counted(by_path, 'image')} known by path alone: what is in the files has changed")
    if others:
        some = old.assignments.paths[others[0]][:200]
        lines.append(f"{counted(len(others), 'example')} left out: other images have their paths here, such as {some}")
    if len(lost):
        some = old.assignments.paths[int(lost[0])][:200]
        lines.append(f"{counted(len(lost), 'example')} of images that this run does not have, such as {some}")
    if carried.homeless:
        names = ", ".join(name[:60] for name in carried.homeless[:LISTED])
        more = f" and {len(carried.homeless) - LISTED} more" if len(carried.homeless) > LISTED else ""
        lines.append(f"names whose images are in no cluster of their own: {names}{more}")
    return lines


def same_images(old: RunImages, new: RunImages) -> tuple[np.ndarray, int, list[int]]:
    """Match rows of two runs by content, then by path. Return the old row of each new one, (n,), -1 for none, how many
    examples were matched by path alone, and old rows of examples whose paths belong to other images now.

    A path alone tells something in the same source, or of images without a content hash.
    """
    now, before, shown = new.contents(), old.contents(), old.edits.state.shown
    places: dict[str, list[int]] = defaultdict(list)
    for place, content in before.items():
        places[content].append(place)
    sizes = {content.rpartition("-")[0] for content in now.values()}
    for place in np.flatnonzero(shown).tolist():  # decoded at another size, they have other hashes
        for size in sizes - {before.get(place, "").rpartition("-")[0]}:
            if (seen := old.content_at(place, size)) is not None:
                places[seen].append(place)
    own = {path: place for place, path in reversed(list(enumerate(old.assignments.paths)))}
    rows, by_path = np.full(len(new.assignments.paths), -1), 0
    for row, content in now.items():
        path = new.assignments.paths[row]
        alike = places.get(content, [])
        rows[row] = min(alike, key=lambda one: (one != own.get(path), not shown[one], one), default=-1)
    matched, others = set(rows.tolist()), []
    in_place = _same_source(old, new)
    for row in np.flatnonzero(rows < 0).tolist():
        path = new.assignments.paths[row]
        place = own.get(path, -1)
        if place >= 0 and place not in matched:
            if in_place or os.path.isabs(path) or row not in now or place not in before:
                rows[row] = place
                by_path += bool(shown[place])
            elif shown[place]:
                others.append(place)
    return rows, by_path, others


def _same_source(old: RunImages, new: RunImages) -> bool:
    """Return True if two runs were made on the same folder, file or named data set."""
    one, other = (images.data.location for images in (old, new))
    return bool(one and other) and os.path.realpath(str(one)) == os.path.realpath(str(other))


def trust_of(images: RunImages) -> Trust | None:
    """Return `Teacher.trust` of the current state; None also if it needs images that are gone."""
    teacher = Teacher(images)
    with suppress(InputError):
        return teacher.trust(teacher.edits.state)
    return None


def _share(right: np.ndarray, known: int, rest: int) -> Share:
    """Estimate the share of correct rows among `known` + `rest`, by a random sample (a,) of rows.

    `right` tells whether sampled rows were right before their answer. By now all of them are, or have left: `known`
    rows are correct for certain, and of the `rest`, about which nobody has said anything, as large a share as of the
    sample.
    """
    before, correct = len(right) + rest, int(right.sum())
    low, high = (round(part * before) - correct for part in share_interval(correct, len(right), before))
    shares = [(known + count) / (known + rest) for count in (low, float(right.mean()) * rest, high)]
    return Share(shares[1], shares[0], shares[2], len(right))


def _without(line: dict[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """Return an edit without what a person said in it of some rows."""
    if not is_by_hand(line):
        return line
    kept = np.flatnonzero(~np.isin(np.array(line["rows"], np.int64), rows)).tolist()
    lists = {name: line[name] for name in ("rows", "to") if isinstance(line.get(name), list)}
    return line | {name: [values[at] for at in kept] for name, values in lists.items()}
