"""The corrections a person makes to a run.

Rename, merge and split clusters, move images, mark junk, confirm, answer questions, accept or refuse what the taught
model proposes, undo and redo: every method of `Edits` appends one line to edits.jsonl, beside the model's own
assignments, which never change. Clusters have ids that are never used twice.

Shapes: n rows of the run, m images, P parts, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from twincluster.core import InputError
from twincluster.runs.edit_carry import Carried, carry
from twincluster.runs.edit_history import ConflictError, EditHistory, in_force, newest_lesson
from twincluster.runs.edit_kinds import LONGEST_NAME, Line, name_complaint, next_id
from twincluster.runs.edit_state import JUNK, JUNK_STATUS, UNREADABLE, Features, State, unit
from twincluster.runs.taught import TAUGHT_FILE, Taught
from twincluster.runs.tree import Living, cut_line, groups_of

if TYPE_CHECKING:
    from twincluster.clustering import Head, Tree

MOST_PARTS = 100  # of one split
DECIMALS = 7  # of a centre's numbers: float32 has little more to say of a unit row


class Edits(EditHistory):
    """The edits of one run. Threads may share one; other processes may edit the same run at the same time.

    `expected`, wherever it is taken, is the newest edit that the caller has seen (`State.number`): if somebody else
    wrote since, nothing is done, and ConflictError says so.
    """

    def rename(self, cluster: int, name: str, *, expected: int | None = None) -> State:
        def build(state: State, lines: list[Line]) -> Line:
            renamed = checked_cluster(state, cluster)
            return {"kind": "rename", "cluster": renamed, "name": checked_name(state, name, renamed)}

        return self._append(build, expected)

    def merge(self, clusters: Sequence[int], *, name: str | None = None, expected: int | None = None) -> State:
        """Put all into the first of them, which keeps its id and, unless `name` is given, its name."""

        def build(state: State, lines: list[Line]) -> Line:
            chosen = list(dict.fromkeys(checked_cluster(state, cluster) for cluster in clusters))
            if len(chosen) < 2:
                raise InputError("name at least two clusters to merge")
            into, *others = chosen
            line = {"kind": "merge", "into": into, "clusters": others}
            return line | ({"name": checked_name(state, name, into, *others)} if name is not None else {})

        return self._append(build, expected)

    def split(
        self, cluster: int, parts: int, features: Features | None = None, *, seed: int = 0, expected: int | None = None
    ) -> State:
        """Divide a cluster by k-means on the network's embedding, or on `features`; the largest part is first."""
        state = self.state
        cluster = checked_cluster(state, cluster)
        visible, everyone = state.members(cluster), np.flatnonzero(state.home == cluster)
        most = max(2, min(len(visible), MOST_PARTS))
        if not 2 <= parts <= most or len(visible) < 2:
            raise InputError(f"cluster {cluster} has {len(visible):,} images: a split makes 2 to {most} parts of one")
        embed = features or self._embed
        if embed is None:
            raise InputError("a split needs the features of the images: give features, or use RunImages(run).edits")
        found = k_means_parts(everyone, unit(embed(everyone)), visible, parts, seed)
        if len(found) < 2:
            raise InputError(f"all images of cluster {cluster} look the same to the network: select some instead")

        def build(now: State, lines: list[Line]) -> Line:
            _same_images(now, cluster, everyone)
            first, old = next_id(lines, self.n_clusters), now.names[cluster]
            made = [
                part_line(first + place, free_name(now, part_name(cluster, old, place + 1), cluster), rows, centre)
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
        state, chosen = self.state, checked_rows(rows)
        cluster = checked_cluster(state, cluster)
        everyone = np.flatnonzero(state.home == cluster)
        embedded = unit(features(everyone)) if features else None

        def build(now: State, lines: list[Line]) -> Line:
            members = now.members(cluster)
            _same_images(now, cluster, everyone)
            if not np.isin(chosen, members).all() or len(chosen) == len(members):
                raise InputError(f"select some images of cluster {cluster}, but not all of them")
            new, taken = next_id(lines, self.n_clusters), np.isin(everyone, chosen)
            default = part_name(cluster, now.names[cluster], 2)
            called = free_name(now, default) if name is None else checked_name(now, name)
            middles = (
                [mean_direction(embedded[~taken]), mean_direction(embedded[taken])]
                if embedded is not None
                else [None, None]
            )
            made = [
                part_line(cluster, now.names[cluster], everyone[~taken], middles[0]),
                part_line(new, called, everyone[taken], middles[1]),
            ]
            return {"kind": "split", "cluster": cluster, "how": "selection", "rest": cluster, "parts": made}

        return self._append(build, expected)

    def cut(
        self,
        tree: Tree,
        count: int | None = None,
        *,
        opened: Iterable[int] = (),
        closed: Iterable[int] = (),
        groups: Sequence[Sequence[int]] | None = None,
        expected: int | None = None,
    ) -> State:
        """Change to another cut of the tree: one with `count` clusters, with the branches of some clusters opened or
        closed, or with these groups of leaves. Clusters that a person made stay as they are.
        """
        opened, closed = list(opened), list(closed)

        def build(state: State, lines: list[Line]) -> Line:
            living = Living.of(tree, state)
            chosen = groups_of(living, count, opened, closed) if groups is None else living.chosen(groups)
            return cut_line(living, chosen, state, lines, self._model_clusters, self.n_clusters, self._embedded)

        return self._append(build, expected)

    def move(
        self, rows: Iterable[int], to: int | None = None, *, name: str | None = None, expected: int | None = None
    ) -> State:
        """Put images into a cluster, or, without `to`, into a new one. Later images are not affected."""
        chosen = checked_rows(rows)

        def build(state: State, lines: list[Line]) -> Line:
            line: Line = {"kind": "move", "rows": readable(state, chosen)}
            if to is not None:
                return line | {"to": checked_cluster(state, to)}
            new = next_id(lines, self.n_clusters)
            return line | {"to": new, "name": free_name(state, str(new)) if name is None else checked_name(state, name)}

        return self._append(build, expected)

    def confirm(self, rows: Iterable[int], *, expected: int | None = None) -> State:
        """Confirm that images are in the right cluster: they become examples."""
        chosen = checked_rows(rows)
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
        """Record where images belong: in the cluster `to`, in a new one called `name`, or, with JUNK, nowhere.

        With both, `to` gets the name. `sample` marks the answer to a random question, which counts for the estimate.
        """
        chosen = checked_rows(rows)

        def build(state: State, lines: list[Line]) -> Line:
            if to is None and name is None:
                raise InputError("an answer needs a cluster, or the name of a new one")
            target = next_id(lines, self.n_clusters) if to is None else checked_target(state, to)
            named = []
            if name is not None and target != JUNK:
                named = [{"cluster": target, "name": checked_name(state, name, target), "new": to is None}]
            return {
                "kind": "answer", "rows": readable(state, chosen), "to": [target] * len(chosen), "names": named,
                "sample": sample,
            }  # fmt: skip

        return self._append(build, expected)

    def follow(self, rows: Iterable[int], targets: Iterable[int]) -> State:
        """Put new rows where a person has put the same pictures under other names, as one edit. JUNK is a target, too.

        The line is marked, so that undoing the update takes it back.
        """
        chosen = checked_rows(rows)

        def build(state: State, lines: list[Line]) -> Line:
            to = [checked_target(state, target) for target in targets]
            return {"kind": "answer", "rows": readable(state, chosen), "to": to, "copied": True}

        return self._append(build, None)

    def answer_labels(
        self, labels: Mapping[int, str], samples: Iterable[int] = (), *, expected: int | None = None
    ) -> State:
        """Record the labels of rows as one edit.

        A label that is the name of a cluster means this cluster; "junk" means junk. A new label names the unnamed
        cluster that holds most of its rows, if they outnumber there the rows of each other label; else it opens a new
        cluster. `samples` are rows of random questions.
        """
        chosen = checked_rows(list(labels))

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
        number, key = newest_lesson(self._log.read())
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
        chosen = checked_rows(given)
        if len(targets) != len(given) or len(chosen) != len(given):
            raise InputError("give each image once, and a cluster for each")
        order = np.argsort(np.asarray(given), kind="stable")

        def build(state: State, lines: list[Line]) -> Line:
            placed = [checked_target(state, targets[at]) for at in order]
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
            number, key = newest_lesson(lines)
            if number == lines[-1]["edit"]:  # else somebody else wrote meanwhile, and it is learned again
                Taught(key, head).write(self._run.folder)
        return self.state

    def refuse(self, rows: Iterable[int], to: int | Iterable[int], *, expected: int | None = None) -> State:
        """Record that images do not belong to a cluster, or to any of several."""
        chosen = checked_rows(rows)
        targets = [to] if isinstance(to, int | np.integer) else list(to)

        def build(state: State, lines: list[Line]) -> Line:
            if not targets:
                raise InputError("say which cluster the images do not belong to")
            kept_out = [checked_target(state, target) for target in targets]
            return {"kind": "refuse", "rows": readable(state, chosen), "to": kept_out}

        return self._append(build, expected)

    def mark_junk(self, rows: Iterable[int], *, expected: int | None = None) -> State:
        """Take images out of their clusters."""
        chosen = checked_rows(rows)
        return self._append(lambda state, lines: {"kind": "junk", "rows": readable(state, chosen)}, expected)

    def unmark_junk(self, rows: Iterable[int], *, expected: int | None = None) -> State:
        """Put images back into their clusters, or into those that these have become part of."""
        chosen = checked_rows(rows)
        return self._append(lambda state, lines: {"kind": "unjunk", "rows": readable(state, chosen)}, expected)

    def undo(self, *, expected: int | None = None) -> State:
        """Undo the last edit that is not undone yet, by any user."""

        def build(state: State, lines: list[Line]) -> Line:
            done, _ = in_force(lines)
            if not done:
                raise InputError("there is no edit to undo")
            return {"kind": "undo", "of": done[-1]["edit"]}

        return self._forgetting(build, expected)

    def redo(self, *, expected: int | None = None) -> State:
        """Redo what was undone last, unless another edit has been made since."""

        def build(state: State, lines: list[Line]) -> Line:
            _, undone = in_force(lines)
            if not undone:
                raise InputError("there is no edit to redo")
            return {"kind": "redo", "of": undone[-1]["edit"]}

        return self._forgetting(build, expected)

    def _forgetting(self, build: Callable[[State, list[Line]], Line], expected: int | None) -> State:
        """Add a line and remove a taught model that is no longer valid."""
        before = newest_lesson(self._log.read())
        self._append(build, expected)
        if newest_lesson(self._log.read()) != before:
            with suppress(OSError):  # nobody reads it: its key is another
                (self._run.folder / TAUGHT_FILE).unlink(missing_ok=True)
        return self.state

    def _append(self, build: Callable[[State, list[Line]], Line], expected: int | None) -> State:
        def lines_to_add(lines: list[Line]) -> list[Line]:
            line = build(self._state_of(lines), lines)
            return [line] if lines else [self._start(), line]

        return self._state_of(self._log.append(lines_to_add, expected))


def answer_line(state: State, labels: Mapping[int, str], samples: Iterable[int], free: int) -> Line:
    """Return the edit that records the labels of rows; `free` is an id that no cluster has had."""
    from twincluster.clustering import clusters_for_labels

    names = names_of(state)
    called = {row: label for row, label in labels.items() if label.casefold() != JUNK_STATUS or label in names}
    for label in dict.fromkeys(called.values()):
        _refuse_ended(state, checked_label(label))
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


def _decided_since(state: State, lines: list[Line], chosen: np.ndarray) -> list[int]:
    """Return rows placed by the current taught model since it was accepted, without the rows chosen now."""
    done, _ = in_force(lines)
    inputs = [int(line["inputs"]) for line in done if line["kind"] == "accept"]
    rows = np.arange(len(state.home))[inputs[-1] :] if inputs else np.empty(0, np.int64)
    placed: list[int] = rows[(state.home[rows] != UNREADABLE) & ~state.shown[rows] & ~np.isin(rows, chosen)].tolist()
    return placed


def _same_images(now: State, cluster: int, everyone: np.ndarray) -> None:
    """Raise ConflictError if a cluster has changed while its features were computed, without the lock."""
    if cluster not in now.names or not np.array_equal(np.flatnonzero(now.home == cluster), everyone):
        raise ConflictError(now.number, f"cluster {cluster} has been changed meanwhile: look again")


def checked_name(state: State, name: str, *owners: int) -> str:
    """Return the name if it is valid and no cluster but `owners` has it. Raise InputError otherwise."""
    if complaint := name_complaint(name):
        raise InputError(complaint)
    for cluster, taken in state.names.items():
        if taken == name and cluster not in owners:
            raise InputError(f"cluster {cluster} is called {name[:60]!r} already: choose another name, or merge them")
    return name


def checked_label(label: str) -> str:
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
    """Return the wanted name, with a number appended if another cluster than `owners` has it."""
    taken = {name for cluster, name in state.names.items() if cluster not in owners}
    found, number = wanted, 2
    while found in taken:
        found, number = f"{wanted[: LONGEST_NAME - 10]} ({number})", number + 1
    return found


def checked_cluster(state: State, cluster: Any) -> int:
    if isinstance(cluster, bool | np.bool_) or not isinstance(cluster, int | np.integer):
        raise InputError(f"{str(cluster)[:40]!r} is no cluster: give its number")
    if int(cluster) not in state.names:
        raise InputError(f"there is no cluster {cluster}: it may have been merged or split meanwhile")
    return int(cluster)


def checked_target(state: State, cluster: Any) -> int:
    """Return an existing cluster, or JUNK. Raise InputError otherwise."""
    return JUNK if cluster == JUNK else checked_cluster(state, cluster)


def checked_rows(rows: Iterable[int]) -> np.ndarray:
    """Return rows as (m,) int64, unique and sorted. Raise InputError if they are no row numbers."""
    given = rows if isinstance(rows, np.ndarray) else list(rows)
    array = np.asarray(given)
    if array.ndim != 1 or not array.size:
        raise InputError("select at least one image")
    if array.dtype.kind not in "iu":
        raise InputError("images are given by their row numbers, which are whole")
    return np.unique(array).astype(np.int64)


def readable(state: State, rows: np.ndarray) -> list[int]:
    """Return rows as a list for a line. Raise InputError if one is not a readable image of the run."""
    if rows[0] < 0 or rows[-1] >= len(state.home):
        odd = rows[0] if rows[0] < 0 else rows[-1]
        raise InputError(f"there is no image {odd}: the run has {len(state.home):,}, counted from 0")
    unread = rows[state.home[rows] == UNREADABLE]
    if len(unread):
        raise InputError(f"image {unread[0]} could not be read, and so is in no cluster: leave it out")
    listed: list[int] = rows.tolist()
    return listed


def part_line(cluster: int, name: str, rows: np.ndarray, centre: np.ndarray | None) -> dict[str, Any]:
    numbers = None if centre is None else [round(float(number), DECIMALS) for number in centre]
    return {"id": cluster, "name": name, "rows": rows.tolist(), "centre": numbers}


def part_name(cluster: int, name: str, number: int) -> str:
    """Return the name of a part of a cluster: "beaches 2", or "8, part 2" if the cluster has no name."""
    ending = f", part {number}" if name == str(cluster) else f" {number}"
    return name[: LONGEST_NAME - len(ending)] + ending


def mean_direction(embedded: np.ndarray) -> np.ndarray:
    """Return the direction of the sum of unit rows (m,D), (D,)."""
    return np.asarray(unit(embedded.mean(0, keepdims=True))[0])


def k_means_parts(
    everyone: np.ndarray, embedded: np.ndarray, visible: np.ndarray, parts: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return rows and centre (D,) of each part, the largest first. Junk goes to the nearest centre."""
    import torch

    from twincluster.clustering import spherical_kmeans

    shown = torch.from_numpy(embedded[np.isin(everyone, visible)])
    centres = spherical_kmeans(shown, parts, seed=seed, n_init=10).centres.numpy()
    nearest = (embedded @ centres.T).argmax(1)
    found = [(everyone[nearest == part], centres[part]) for part in range(parts)]
    return sorted((part for part in found if len(part[0])), key=lambda part: len(part[0]), reverse=True)
