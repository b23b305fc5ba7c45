"""The corrections a person makes to a run, and what the run looks like with them.

Rename, merge and split clusters, move images, mark junk, confirm, answer questions, accept or refuse what the taught
model proposes, undo and redo: every method of `Edits` appends one line to edits.jsonl, beside the model's own
assignments, which never change. `Edits.state` is what all lines make of the run; `apply_edits` puts it on top of the
model's assignments. Clusters have ids that are never used twice.

Shapes: n rows of the run, m images, P parts, D features.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from twincluster.core import InputError, json_line, write_atomically
from twincluster.data import Listing
from twincluster.runs.edit_log import (
    JUNK,
    LONGEST_NAME,
    NONE,
    UNREADABLE,
    ConflictError,
    EditLog,
    Features,
    Kinds,
    Later,
    Line,
    State,
    applied,
    in_force,
    initial,
    name_complaint,
    unit,
)
from twincluster.runs.folder import Assignments, Run
from twincluster.runs.inputs import read_stamps, row_names, stamps_of
from twincluster.runs.taught import TAUGHT_FILE, Taught, key_of

if TYPE_CHECKING:
    from twincluster.clustering import Head

Stamp = tuple[tuple[int, int] | None, ...]
EDITS_FILE = "edits.jsonl"
JUNK_STATUS = "junk"
TRAINS_ON = ""  # in the place of the model's checksum, while a run with edits is trained further
MOST_PARTS = 100  # of one split
DECIMALS = 7  # of a centre's numbers: float32 has little more to say of a unit row
OF_ROWS = ("junk", "unjunk", "confirm", "refuse")  # kinds of edits that decide about the images they name alone


class Edits:
    """The edits of one run. Threads may share one; other processes may edit the same run at the same time.

    `features` gives the features of rows of the run, their embedding last; it is asked only for rows that came by
    `update` after their cluster had been split or the model taught. `relearn` makes the head of an `accept` again, by
    its number. `expected`, wherever it is taken, is the newest edit that the caller has seen (`State.number`): if
    somebody else wrote since, nothing is done, and ConflictError says so.
    """

    def __init__(
        self,
        run: Run,
        features: Callable[[np.ndarray], np.ndarray | Kinds | None] | None = None,
        embed: Features | None = None,
        relearn: Callable[[int], Head] | None = None,
    ) -> None:
        self._run, self._features, self._embed, self._relearn = run, features, embed, relearn
        self.n_clusters = run.n_clusters  # of the model
        self._log = EditLog(run.folder / EDITS_FILE)
        self._paths: tuple[str, ...] = ()
        self._model_clusters = np.empty(0, np.int64)  # a model can be shared without its rows
        self._stamp: Stamp | None = None  # of assignments.csv and taught.safetensors, when they were read
        self._taught: Taught | None = None
        self._known: tuple[list[Line], State] | None = None  # the edits in force, and what they make of the run
        self._checked: Line | None = None  # the first line, once it is known to be about this run
        self._guard = RLock()  # of the six above

    @property
    def state(self) -> State:
        return self._state_of(self._log.read())

    @property
    def paths(self) -> tuple[str, ...]:
        """What the rows are called in assignments.csv."""
        with self._guard:
            self._read_rows([])
            return self._paths

    @property
    def any(self) -> bool:
        """Whether an edit is in force."""
        return bool(self.history[0])

    @property
    def history(self) -> tuple[list[Line], list[Line]]:
        """The edits in force, and those that `redo` would bring back, the next one last."""
        return in_force(self._log.read())

    def before(self, number: int) -> State:
        """Return the state before an edit, without undone edits."""
        lines = self._log.read()
        done, _ = in_force(lines)
        return self._replayed(lines, [line for line in done if line["edit"] < number])

    def apply(self, state: State, line: Line) -> State:
        """Return any state after one more edit."""
        return applied(state, line, self._later(self._log.read()))

    @property
    def taught(self) -> Taught | None:
        """The model taught by the examples, as of the newest accepted proposals; None without any in force.

        Read from taught.safetensors, or recomputed if that file is missing, damaged or of other edits.
        """
        lines = self._log.read()
        number, key = _newest_lesson(lines)
        if not number:
            return None
        with self._guard:
            if self._taught is None or self._taught.key != key:
                self._taught = Taught.read(self._run.folder, key) or self._learned_again(number, key)
            return self._taught

    def learn_later(self, paths: Sequence[str], clusters: np.ndarray) -> None:
        """Record the clusters (m,) that the taught model gives to images added to the run."""
        if taught := self.taught:
            taught = taught.with_later(paths, clusters)
            taught.write(self._run.folder)
            with self._guard:
                self._taught = taught

    def applied_to(
        self, found: Assignments, listing: Listing, location: str | None, kinds: Callable[[np.ndarray], Kinds]
    ) -> Assignments:
        """Return what the model made of a source as these edits have it; `location` opens the source again."""
        if not self.any:
            return found
        return apply_edits(found, self.state, self._rows_of(listing, location), kinds)

    def share(self, folder: Path) -> None:
        """Write the edits and the taught model for a copy of the model in another folder. They name no image."""
        lines = self.without_rows()
        write_atomically(folder / EDITS_FILE, "".join(map(json_line, lines)))
        if taught := self.taught:
            _, key = _newest_lesson(lines)
            Taught(key, taught.head).write(folder)

    def without_rows(self) -> list[Line]:
        """Lines that decide about other images as these edits do, and name none of the run's own: to go with a copy of
        the model. Junk is left out, and so is what was undone."""
        start = self._start() | {"inputs": 0, "paths": _digest_of_paths(())}
        kept = [line for line in in_force(self._log.read())[0] if line["kind"] not in OF_ROWS]
        lines = [start]
        for line in kept:
            parts = {"parts": [part | {"rows": []} for part in line["parts"]]} if line["kind"] == "split" else {}
            rowless: Line = {name: [] for name in ("rows", "to") if isinstance(line.get(name), list)}
            lines.append(line | parts | rowless)
        return [
            {"edit": number, "time": kept[0].get("time", "") if kept else ""} | line | {"edit": number}
            for number, line in enumerate(lines)
        ]

    def rename(self, cluster: int, name: str, *, expected: int | None = None) -> State:
        def build(state: State, lines: list[Line]) -> Line:
            renamed = a_cluster(state, cluster)
            return {"kind": "rename", "cluster": renamed, "name": a_name(state, name, renamed)}

        return self._append(build, expected)

    def merge(self, clusters: Sequence[int], *, name: str | None = None, expected: int | None = None) -> State:
        """Put all into the first of them, which keeps its id and, unless one is given, its name."""

        def build(state: State, lines: list[Line]) -> Line:
            chosen = list(dict.fromkeys(a_cluster(state, cluster) for cluster in clusters))
            if len(chosen) < 2:
                raise InputError("name at least two clusters to merge")
            into, *others = chosen
            line = {"kind": "merge", "into": into, "clusters": others}
            return line | ({"name": a_name(state, name, into, *others)} if name is not None else {})

        return self._append(build, expected)

    def split(
        self, cluster: int, parts: int, features: Features | None = None, *, seed: int = 0, expected: int | None = None
    ) -> State:
        """Divide a cluster by k-means on the network's embedding, or on `features`; the largest part is first."""
        state = self.state
        cluster = a_cluster(state, cluster)
        visible, everyone = state.members(cluster), np.flatnonzero(state.home == cluster)
        most = max(2, min(len(visible), MOST_PARTS))
        if not 2 <= parts <= most or len(visible) < 2:
            raise InputError(f"cluster {cluster} has {len(visible):,} images: a split makes 2 to {most} parts of one")
        embed = features or self._embed
        if embed is None:
            raise InputError("a split needs the features of the images: give features, or use RunImages(run).edits")
        found = by_k_means(everyone, unit(embed(everyone)), visible, parts, seed)
        if len(found) < 2:
            raise InputError(f"all images of cluster {cluster} look the same to the network: select some instead")

        def build(now: State, lines: list[Line]) -> Line:
            _same_images(now, cluster, everyone)
            first, old = next_id(lines, self.n_clusters), now.names[cluster]
            made = [
                a_part(first + place, free_name(now, part_name(cluster, old, place + 1), cluster), rows, centre)
                for place, (rows, centre) in enumerate(found)
            ]
            return {"kind": "split", "cluster": cluster, "how": "k-means", "rest": first, "parts": made}

        return self._append(build, expected)

    def split_off(
        self,
        cluster: int,
        rows: Iterable[int],
        features: Features | None = None,
        *,
        name: str | None = None,
        expected: int | None = None,
    ) -> State:
        """Divide a cluster by a selection, which becomes a new cluster; the others keep id and name.

        Without features (`Edits.features` gives them) new images cannot be compared with the two parts, and stay with
        the others.
        """
        state, chosen = self.state, some_rows(rows)
        cluster = a_cluster(state, cluster)
        everyone = np.flatnonzero(state.home == cluster)
        embedded = unit(features(everyone)) if features else None

        def build(now: State, lines: list[Line]) -> Line:
            members = now.members(cluster)
            _same_images(now, cluster, everyone)
            if not np.isin(chosen, members).all() or len(chosen) == len(members):
                raise InputError(f"select some images of cluster {cluster}, but not all of them")
            new, taken = next_id(lines, self.n_clusters), np.isin(everyone, chosen)
            default = part_name(cluster, now.names[cluster], 2)
            called = free_name(now, default) if name is None else a_name(now, name)
            middles = [middle(embedded[~taken]), middle(embedded[taken])] if embedded is not None else [None, None]
            made = [
                a_part(cluster, now.names[cluster], everyone[~taken], middles[0]),
                a_part(new, called, everyone[taken], middles[1]),
            ]
            return {"kind": "split", "cluster": cluster, "how": "selection", "rest": cluster, "parts": made}

        return self._append(build, expected)

    def move(
        self, rows: Iterable[int], to: int | None = None, *, name: str | None = None, expected: int | None = None
    ) -> State:
        """Put images into a cluster, or, without `to`, into a new one: these images, and none that come later."""
        chosen = some_rows(rows)

        def build(state: State, lines: list[Line]) -> Line:
            line: Line = {"kind": "move", "rows": readable(state, chosen)}
            if to is not None:
                return line | {"to": a_cluster(state, to)}
            new = next_id(lines, self.n_clusters)
            return line | {"to": new, "name": free_name(state, str(new)) if name is None else a_name(state, name)}

        return self._append(build, expected)

    def confirm(self, rows: Iterable[int], *, expected: int | None = None) -> State:
        """Say that images are right where they are: they become examples."""
        chosen = some_rows(rows)
        return self._append(lambda state, lines: {"kind": "confirm", "rows": readable(state, chosen)}, expected)

    def answer(
        self,
        rows: Iterable[int],
        to: int | None = None,
        *,
        name: str | None = None,
        sample: bool = False,
        expected: int | None = None,
    ) -> State:
        """Say where images belong: in the cluster `to`, in a new one called `name`, or, with JUNK, nowhere.

        With both, `to` gets the name. `sample` marks the answer to a random question, which counts for the estimate.
        """
        chosen = some_rows(rows)

        def build(state: State, lines: list[Line]) -> Line:
            if to is None and name is None:
                raise InputError("an answer needs a cluster, or the name of a new one")
            target = next_id(lines, self.n_clusters) if to is None else a_target(state, to)
            named = []
            if name is not None and target != JUNK:
                named = [{"cluster": target, "name": a_name(state, name, target), "new": to is None}]
            return {
                "kind": "answer", "rows": readable(state, chosen), "to": [target] * len(chosen), "names": named,
                "sample": sample,
            }  # fmt: skip

        return self._append(build, expected)

    def answer_labels(
        self, labels: Mapping[int, str], samples: Iterable[int] = (), *, expected: int | None = None
    ) -> State:
        """Record the labels of rows as one edit.

        A label that is the name of a cluster means this cluster; "junk" means junk. A new label names the unnamed
        cluster that holds most of its rows, if they outnumber there the rows of each other label; else it opens a new
        cluster. `samples` are rows of random questions.
        """
        chosen = some_rows(list(labels))

        def build(state: State, lines: list[Line]) -> Line:
            return answer_line(
                state, {row: labels[row] for row in readable(state, chosen)}, samples, next_id(lines, self.n_clusters)
            )

        return self._append(build, expected)

    def extend(self, lines: Iterable[Line], head: Head | None = None) -> State:
        """Append edits made in memory about the same rows, and the model taught by them."""
        _ = self.paths  # which the first line names
        added = [{name: value for name, value in line.items() if name not in ("edit", "time")} for line in lines]
        self._log.append(lambda before: [*([] if before else [self._start()]), *added])
        number, key = _newest_lesson(self._log.read())
        if number and head is not None:
            Taught(key, head).write(self._run.folder)
        return self.state

    def take_over(self, old: State, rows: np.ndarray) -> Carried:
        """Carry examples, names and junk over from another run; `rows` (n,) are its rows of the same images."""
        with self._guard:
            self._read_rows([])
            carried = carry(old, rows, self._model_clusters, self.n_clusters)
        if (line := carried.line) is not None:
            self._append(lambda state, lines: line, expected=0)
        return carried

    def accept(
        self, rows: Iterable[int], to: Iterable[int], *, head: Head | None = None, expected: int | None = None
    ) -> State:
        """Move images (m,) into clusters (m,) as the taught model proposes: one edit, which makes no examples.

        From now on the taught model, `head`, decides about images that the run does not know.
        """
        given, targets = list(rows), list(to)
        chosen = some_rows(given)
        if len(targets) != len(given) or len(chosen) != len(given):
            raise InputError("give each image once, and a cluster for each")
        order = np.argsort(np.asarray(given), kind="stable")

        def build(state: State, lines: list[Line]) -> Line:
            placed = [a_target(state, targets[at]) for at in order]
            if state.shown[readable(state, chosen)].any():
                raise InputError("an image that a person has placed is never moved by a proposal: look again")
            others = _decided_since(state, lines, chosen)  # the lesson that decided about them ends
            return {
                "kind": "accept", "rows": chosen.tolist() + others, "inputs": len(state.home),
                "to": placed + state.clusters[others].tolist(),
            }  # fmt: skip

        self._append(build, expected)
        if head is not None:
            lines = self._log.read()
            number, key = _newest_lesson(lines)
            if number == lines[-1]["edit"]:  # else somebody else wrote meanwhile, and it is learned again
                Taught(key, head).write(self._run.folder)
        return self.state

    def refuse(self, rows: Iterable[int], to: int | Iterable[int], *, expected: int | None = None) -> State:
        """Say that images do not belong to a cluster, or to any of several, and nothing else."""
        chosen = some_rows(rows)
        targets = [to] if isinstance(to, int | np.integer) else list(to)

        def build(state: State, lines: list[Line]) -> Line:
            if not targets:
                raise InputError("say which cluster the images do not belong to")
            kept_out = [a_target(state, target) for target in targets]
            return {"kind": "refuse", "rows": readable(state, chosen), "to": kept_out}

        return self._append(build, expected)

    def mark_junk(self, rows: Iterable[int], *, expected: int | None = None) -> State:
        """Take images out of their clusters."""
        chosen = some_rows(rows)
        return self._append(lambda state, lines: {"kind": "junk", "rows": readable(state, chosen)}, expected)

    def unmark_junk(self, rows: Iterable[int], *, expected: int | None = None) -> State:
        """Put images back into the clusters they were in, or that those have become part of."""
        chosen = some_rows(rows)
        return self._append(lambda state, lines: {"kind": "unjunk", "rows": readable(state, chosen)}, expected)

    def undo(self, *, expected: int | None = None) -> State:
        """Take back the newest edit that is in force, whoever made it."""

        def build(state: State, lines: list[Line]) -> Line:
            done, _ = in_force(lines)
            if not done:
                raise InputError("there is no edit to undo")
            return {"kind": "undo", "of": done[-1]["edit"]}

        return self._forgetting(build, expected)

    def redo(self, *, expected: int | None = None) -> State:
        """Bring back what was undone last, unless another edit has come since."""

        def build(state: State, lines: list[Line]) -> Line:
            _, undone = in_force(lines)
            if not undone:
                raise InputError("there is no edit to redo")
            return {"kind": "redo", "of": undone[-1]["edit"]}

        return self._forgetting(build, expected)

    def _forgetting(self, build: Callable[[State, list[Line]], Line], expected: int | None) -> State:
        """Add a line and remove a taught model that is no longer valid."""
        before = _newest_lesson(self._log.read())
        self._append(build, expected)
        if _newest_lesson(self._log.read()) != before:
            with suppress(OSError):  # nobody reads it: its key is another
                (self._run.folder / TAUGHT_FILE).unlink(missing_ok=True)
        return self.state

    def _append(self, build: Callable[[State, list[Line]], Line], expected: int | None) -> State:
        def lines_to_add(lines: list[Line]) -> list[Line]:
            line = build(self._state_of(lines), lines)
            return [line] if lines else [self._start(), line]

        return self._state_of(self._log.append(lines_to_add, expected))

    def _state_of(self, lines: list[Line]) -> State:
        """Only what came since the last time is applied, unless something was undone or `update` added rows."""
        done, _ = in_force(lines)
        with self._guard:
            self._read_rows(lines)
            known, state = self._known or ([], None)
            if state is None or done[: len(known)] != known:  # not by numbers: the file may be another
                known, state = [], initial(self._model_clusters, self.n_clusters)
            for line in done[len(known) :]:
                state = applied(state, line, self._later(lines))
            self._known = (done, state)
        return replace(state, number=int(lines[-1]["edit"]) if lines else 0, head=self._head)

    def _replayed(self, lines: list[Line], done: list[Line]) -> State:
        with self._guard:
            self._read_rows(lines)
            state = initial(self._model_clusters, self.n_clusters)
            for line in done:
                state = applied(state, line, self._later(lines))
        return replace(state, number=int(done[-1]["edit"]) if done else 0)

    def _later(self, lines: list[Line]) -> Later:
        number, _ = _newest_lesson(lines)

        def taught(edit: int, rows: np.ndarray) -> np.ndarray | None:
            return self._decided(rows) if edit == number else None  # later lessons name the rows of earlier ones

        return Later(self._embedded, taught)

    def _embedded(self, rows: np.ndarray) -> np.ndarray | None:
        kinds = self._features(rows) if self._features else None
        return kinds[-1] if isinstance(kinds, tuple) else kinds

    def _decided(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the taught clusters of rows added after the newest lesson, (m,); UNREADABLE where unknown."""
        try:
            taught = self.taught
        except InputError:  # it is told to those who need it for new images
            return None
        if taught is None:
            return None
        found = taught.clusters_of([self._paths[row] for row in rows])
        missing = np.flatnonzero(found == UNREADABLE)
        kinds = self._features(rows[missing]) if len(missing) and self._features else None
        if isinstance(kinds, tuple) and len(kinds) == len(taught.head.views):
            found[missing] = taught.head.predict(*kinds)[0]
        return found

    def _head(self) -> Head:
        taught = self.taught
        if taught is None:
            raise ConflictError(self.state.number)
        return taught.head

    def _learned_again(self, number: int, key: str) -> Taught:
        path = self._run.folder / TAUGHT_FILE
        problem = "is damaged or of other edits" if path.is_file() else "is missing"
        if self._relearn is None:
            raise InputError(f"{path} {problem}: put back a copy of it")
        try:
            taught = Taught(key, self._relearn(number))
        except InputError as error:
            raise InputError(
                f"{path} {problem}, and cannot be made again ({error}): put back a copy, or undo edit {number}"
            ) from error
        with suppress(OSError):  # where nothing can be written it is learned each time
            taught.write(self._run.folder)
        return taught

    def _read_rows(self, lines: list[Line]) -> None:
        """Read the rows of the run if they have changed, and check that the lines are about them."""
        stamp = tuple(
            (found.st_mtime_ns, found.st_size) if (found := _stat(self._run.folder / name)) else None
            for name in ("assignments.csv", TAUGHT_FILE)
        )
        if stamp != self._stamp:
            if stamp[0] != (self._stamp or (None,))[0]:
                assignments = self._run.read_assignments()
                self._paths, self._model_clusters = assignments.paths, assignments.clusters
                self._checked = None
            self._stamp, self._known, self._taught = stamp, None, None
        if lines and lines[0] is not self._checked:
            self._check(lines[0])
            self._checked = lines[0]

    def _rows_of(self, listing: Listing, location: str | None) -> np.ndarray:
        """(m,) the row in the run of each input; -1 for those it does not know, or that have changed since."""
        names = row_names(listing, location, self._run.data, self.paths)
        places = {path: row for row, path in reversed(list(enumerate(self.paths)))}
        stamps = read_stamps(self._run.folder)
        rows = [
            places.get(name, -1) if stamps.get(name, stamp) == stamp else -1
            for name, stamp in zip(names, stamps_of(listing), strict=True)
        ]
        return np.array(rows, dtype=np.int64)

    def _start(self) -> Line:
        """What the edits are about, so that they are never applied to something else."""
        return {
            "kind": "start",
            "clusters": self.n_clusters,
            "model": _digest_of_model(self._run),
            "inputs": len(self._paths),
            "paths": _digest_of_paths(self._paths),
        }

    def _check(self, start: Line) -> None:
        inputs = start.get("inputs")
        if start["kind"] != "start" or type(inputs) is not int:
            raise InputError(f"{self._log.path} does not begin as a file of edits does: move it away to do without")
        same_rows = not self._paths or start.get("paths") == _digest_of_paths(self._paths[: max(0, inputs)])
        if (
            start.get("clusters") != self.n_clusters
            or start.get("model") not in (TRAINS_ON, _digest_of_model(self._run))
            or not same_rows
        ):
            self._run.check_model()
            raise InputError(
                f"the edits in {self._log.path} were made on another model or on other rows than this run has now: "
                "move that file away to start anew, or put the run back as it was"
            )


def apply_edits(
    found: Assignments,
    state: State,
    rows: np.ndarray | None = None,
    kinds: Callable[[np.ndarray], np.ndarray | Kinds] | None = None,
) -> Assignments:
    """Return what the model made of some inputs as the edits of its run have it.

    `rows` (m,) are the inputs' rows in the run, -1 for images that it does not know; None: all rows of the run. Known
    images stay where a person put them, or let the taught model put them; others go where that model says, and follow
    merges and splits. `kinds` gives features of inputs, (m,D) each. cluster is the final id; confidence is the taught
    model's where that decided, else the model's, of the cluster that this had chosen. Junk has no cluster.
    """
    confidence = found.confidence
    if rows is None:
        clusters = state.clusters
    else:
        known = np.array([row >= 0 and state.home[row] >= 0 and not state.guessed[row] for row in rows], dtype=bool)
        known &= found.clusters >= 0
        clusters, others = found.clusters.copy(), np.flatnonzero((found.clusters >= 0) & ~known)
        if len(others):
            features = kinds(others) if kinds and state.needs_features else None
            confidence = confidence.copy()
            clusters[others], confidence[others] = state.decide(clusters[others], confidence[others], features)
        clusters[known] = state.clusters[rows[known]]
    junk = clusters == JUNK
    return replace(
        found,
        clusters=np.where(junk, -1, clusters),
        confidence=np.where(junk, np.nan, confidence),
        status=tuple(JUNK_STATUS if out else said for out, said in zip(junk, found.status, strict=True)),
        names=tuple(state.names.get(int(cluster), "") for cluster in clusters),
    )


def answer_line(state: State, labels: Mapping[int, str], samples: Iterable[int], free: int) -> Line:
    """Return the edit that records the labels of rows; `free` is an id that no cluster has had."""
    from twincluster.clustering import clusters_for_labels

    names = names_of(state)
    called = {row: label for row, label in labels.items() if label.casefold() != JUNK_STATUS or label in names}
    for label in dict.fromkeys(called.values()):
        _refuse_ended(state, a_label(label))
        number = int(label) if label.isdecimal() else -1
        if label not in names and number in state.names:
            raise InputError(f"{label} is the number of the cluster {state.names[number]!r}: answer with its name")
    known = {c: name for c, name in state.names.items() if name != str(c) or name in called.values()}
    found, named = clusters_for_labels(called, known, state.clusters), []
    for label, cluster in found.items():
        if cluster is None or state.names[cluster] != label:
            found[label] = target = free if cluster is None else cluster
            free += cluster is None
            named.append({"cluster": target, "name": label, "new": cluster is None})
    to = [found[called[row]] if row in called else JUNK for row in labels]
    random = sorted(set(map(int, samples)) & set(labels))
    return {"kind": "answer", "rows": list(labels), "to": to, "names": named, "sample": False, "samples": random}


@dataclass(frozen=True)
class Carried:
    """Examples, names and junk of one run as an edit of another."""

    line: Line | None  # None where nothing is left
    examples: int
    junk: int
    names: tuple[str, ...]  # of clusters
    homeless: tuple[str, ...]  # names that match no cluster


def carry(old: State, rows: np.ndarray, clusters: np.ndarray, n_clusters: int) -> Carried:
    """Carry examples, names and junk of one run over to another, whose model has clusters (n,) of its own.

    `rows` (n,) are the rows of the old run with the same images, -1 for none. An old cluster becomes the new cluster
    that holds most of its examples, if they outnumber there the examples of other clusters; else it opens a new
    cluster. An old cluster without examples only names the cluster that holds most of its images. Answers to random
    questions stay random answers, because the new model has not seen them.
    """
    there = np.flatnonzero((rows >= 0) & (clusters >= 0))
    given = there[old.shown[rows[there]] & (old.home[rows[there]] >= 0)]
    examples = old.examples[rows[given]]
    homes = _homes(dict(zip(given.tolist(), examples.tolist(), strict=True)), clusters, ())
    free, ids = n_clusters, {}
    for cluster, home in homes.items():
        ids[cluster] = free if home is None else home
        free += home is None
    named = {c: name for c, name in old.names.items() if name != str(c)}
    rest = [row for row in there.tolist() if old.home[rows[row]] in named.keys() - ids.keys()]
    others = _homes({row: int(old.home[rows[row]]) for row in rest}, clusters, tuple(ids.values()))
    ids |= {cluster: home for cluster, home in others.items() if home is not None}
    called = [
        {"cluster": home, "name": named.get(cluster, str(home)), "new": home >= n_clusters}
        for cluster, home in ids.items()
        if cluster in named or home >= n_clusters
    ]
    to = [JUNK if cluster == JUNK else ids[cluster] for cluster in examples.tolist()]
    samples = given[old.sample[rows[given]] != NONE].tolist()
    line = {"kind": "answer", "rows": given.tolist(), "to": to, "names": called, "sample": False, "samples": samples}
    junk = to.count(JUNK)
    return Carried(
        line if to or called else None, len(to) - junk, junk, tuple(named[c] for c in ids if c in named),
        tuple(name for c, name in named.items() if c not in ids),
    )  # fmt: skip


def _homes(belongs: Mapping[int, int], clusters: np.ndarray, taken: Iterable[int]) -> dict[int, int | None]:
    """Return the new cluster of each old one, by where its rows are; None for none."""
    from twincluster.clustering import clusters_for_labels

    labels = {row: str(cluster) for row, cluster in belongs.items() if cluster != JUNK}
    found = clusters_for_labels(labels, {cluster: f"taken {cluster}" for cluster in taken}, clusters)
    return {int(label): home for label, home in found.items()}


def unbind(run: Run) -> State | None:
    """Prepare the edits of a run for more training: make them valid for any model. Return their state, None without."""
    log = EditLog(run.folder / EDITS_FILE)
    if not (lines := log.read()) or not run.model.is_file():
        return None
    state = Edits(run).state if lines[0].get("clusters") == run.n_clusters else None
    log.rewrite([lines[0] | {"model": TRAINS_ON}, *lines[1:]])
    return state


def carry_over(run: Run, before: State, clusters: np.ndarray, n_clusters: int) -> None:
    """After more training, carry the edits over if the number of clusters has changed."""
    log = EditLog(run.folder / EDITS_FILE)
    start = log.read()[0]
    if start["clusters"] != n_clusters:
        carried = carry(before, np.arange(len(clusters)), clusters, n_clusters)
        log.rewrite(
            [
                start | {"clusters": n_clusters},
                *([{"edit": 1, "time": start["time"]} | carried.line] if carried.line else []),
            ]
        )


def bind(run: Run) -> None:
    """Bind the edits of a run to its model."""
    log = EditLog(run.folder / EDITS_FILE)
    if lines := log.read():
        log.rewrite([lines[0] | {"model": _digest_of_model(run)}, *lines[1:]])


def _stat(path: Path) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return path.stat()
    return None


def _newest_lesson(lines: list[Line]) -> tuple[int, str]:
    """Return the number of the newest `accept` in force, 0 without one, and the key of its taught model."""
    done, _ = in_force(lines)
    last = max((at for at, line in enumerate(done) if line["kind"] == "accept"), default=-1)
    return (int(done[last]["edit"]), key_of([lines[0], *done[: last + 1]])) if last >= 0 else (0, "")


def _decided_since(state: State, lines: list[Line], chosen: np.ndarray) -> list[int]:
    """Return rows placed by the current taught model since it was accepted, without the rows chosen now."""
    done, _ = in_force(lines)
    inputs = [int(line["inputs"]) for line in done if line["kind"] == "accept"]
    rows = np.arange(len(state.home))[inputs[-1] :] if inputs else np.empty(0, np.int64)
    placed: list[int] = rows[(state.home[rows] != UNREADABLE) & ~state.shown[rows] & ~np.isin(rows, chosen)].tolist()
    return placed


def _same_images(now: State, cluster: int, everyone: np.ndarray) -> None:
    """Features were computed before the lock was taken, which is not held for as long as that takes."""
    if cluster not in now.names or not np.array_equal(np.flatnonzero(now.home == cluster), everyone):
        raise ConflictError(now.number, f"cluster {cluster} has been changed meanwhile: look again")


def _digest_of_model(run: Run) -> str:
    path = run.folder / "model.safetensors"
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _digest_of_paths(paths: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(paths).encode(errors="surrogatepass")).hexdigest()[:32]


def a_name(state: State, name: str, *owners: int) -> str:
    """The name as it is, if it can be one and no cluster but `owners` has it."""
    if complaint := name_complaint(name):
        raise InputError(complaint)
    for cluster, taken in state.names.items():
        if taken == name and cluster not in owners:
            raise InputError(f"cluster {cluster} is called {name[:60]!r} already: choose another name, or merge them")
    return name


def a_label(label: str) -> str:
    if complaint := name_complaint(label):
        raise InputError(complaint)
    return label


def names_of(state: State) -> set[str]:
    return set(state.names.values())


def _refuse_ended(state: State, label: str) -> None:
    if label in state.ended and label not in names_of(state) and (into := state.ended[label]) in state.names:
        now = state.names[into]
        raise InputError(f"cluster {label[:60]!r} was merged into {now[:60]!r} since: answer with that name")


def free_name(state: State, wanted: str, *owners: int) -> str:
    """The wanted name, with a number behind it where another cluster than `owners` has it."""
    taken = {name for cluster, name in state.names.items() if cluster not in owners}
    found, number = wanted, 2
    while found in taken:
        found, number = f"{wanted[: LONGEST_NAME - 10]} ({number})", number + 1
    return found


def a_cluster(state: State, cluster: Any) -> int:
    if isinstance(cluster, bool | np.bool_) or not isinstance(cluster, int | np.integer):
        raise InputError(f"{str(cluster)[:40]!r} is no cluster: give its number")
    if int(cluster) not in state.names:
        raise InputError(f"there is no cluster {cluster}: it may have been merged or split meanwhile")
    return int(cluster)


def a_target(state: State, cluster: Any) -> int:
    """A cluster there is, or junk."""
    return JUNK if cluster == JUNK else a_cluster(state, cluster)


def some_rows(rows: Iterable[int]) -> np.ndarray:
    """(m,) int64, each once, rising."""
    given = rows if isinstance(rows, np.ndarray) else list(rows)
    array = np.asarray(given)
    if array.ndim != 1 or not array.size:
        raise InputError("select at least one image")
    if array.dtype.kind not in "iu":
        raise InputError("images are given by their row numbers, which are whole")
    return np.unique(array).astype(np.int64)


def readable(state: State, rows: np.ndarray) -> list[int]:
    """The rows as they go into a line; all are images of the run that could be read."""
    if rows[0] < 0 or rows[-1] >= len(state.home):
        odd = rows[0] if rows[0] < 0 else rows[-1]
        raise InputError(f"there is no image {odd}: the run has {len(state.home):,}, counted from 0")
    unread = rows[state.home[rows] == UNREADABLE]
    if len(unread):
        raise InputError(f"image {unread[0]} could not be read, and so is in no cluster: leave it out")
    listed: list[int] = rows.tolist()
    return listed


def next_id(lines: Sequence[Line], n_clusters: int) -> int:
    """An id that no cluster has ever had, not even one of an edit that was undone."""
    used = [n_clusters - 1]
    for line in lines:
        if line["kind"] == "split":
            used += [int(part["id"]) for part in line["parts"]]
        elif line["kind"] == "move":
            used.append(int(line["to"]))
        elif line["kind"] == "answer":
            used += [one["cluster"] for one in line.get("names") or []]
    return max(used) + 1


def a_part(cluster: int, name: str, rows: np.ndarray, centre: np.ndarray | None) -> dict[str, Any]:
    numbers = None if centre is None else [round(float(number), DECIMALS) for number in centre]
    return {"id": cluster, "name": name, "rows": rows.tolist(), "centre": numbers}


def part_name(cluster: int, name: str, number: int) -> str:
    """What a part of a cluster is called, no longer than names may be: "beaches 2", or "8, part 2" without a name."""
    ending = f", part {number}" if name == str(cluster) else f" {number}"
    return name[: LONGEST_NAME - len(ending)] + ending


def middle(embedded: np.ndarray) -> np.ndarray:
    """(D,) the direction of unit rows (m,D) taken together."""
    return np.asarray(unit(embedded.mean(0, keepdims=True))[0])


def by_k_means(
    everyone: np.ndarray, embedded: np.ndarray, visible: np.ndarray, parts: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and centre (D,) of each part, the largest first. Junk, which is not visible, follows the centres."""
    import torch

    from twincluster.clustering import spherical_kmeans

    shown = torch.from_numpy(embedded[np.isin(everyone, visible)])
    centres = spherical_kmeans(shown, parts, seed=seed, n_init=10).centres.numpy()
    nearest = (embedded @ centres.T).argmax(1)
    found = [(everyone[nearest == part], centres[part]) for part in range(parts)]
    return sorted((part for part in found if len(part[0])), key=lambda part: len(part[0]), reverse=True)
