"""Add new images to a finished run, and undo that.

An update adds a row for each new image, without training, and compares the new images with those of the training.
assignments.csv is replaced atomically. The files written after it, updates.jsonl and then stamps.csv, may lag behind:
after a kill at any moment, the same command finishes the update. Meanwhile updating.json holds the previous rows, so
that undo never returns to the state of a killed attempt.

Undo removes the rows that an update added and restores those it replaced. The update's line in updates.jsonl holds what
this needs and is removed last.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import twincluster
from twincluster.core import InputError, OnProgress, counted, finite, hold, read_record, settle, strict_json, write_json
from twincluster.data import Listing, may_pass
from twincluster.model import Model
from twincluster.run_images import RunImages, write_problems_of
from twincluster.runs import (
    EDITS_FILE,
    FEWEST,
    Assignments,
    Drift,
    EditLog,
    Line,
    Problem,
    Reference,
    Replaced,
    Run,
    UndoRecord,
    UpdateRecord,
    contents_of,
    count_problems,
    in_words,
    kinds_of,
    read_contents,
    read_stamps,
    row_names,
    stamps_of,
    write_contents,
    write_stamps,
)

LISTED = 5  # clusters whose shares are printed
NOTABLE = 3.0  # standard errors by which a share must differ to be printed

NO_REFERENCE = (
    "this run was made by an earlier version, which did not record what the training images look like: the new images "
    "cannot be compared with them; to get the comparison, fit again"
)


@dataclass(frozen=True)
class Updated:
    """The result of an update, and how the new images compare with the old ones."""

    run: Run
    source: str
    inputs: int  # in the source
    assignments: Assignments  # all rows of the run
    sizes: tuple[list[int], list[int]]  # images per cluster: of the training; added and changed
    added: int = 0
    changed: int = 0  # existing rows whose file has changed
    problems: Counter[str] = field(default_factory=Counter)  # of added and changed images, by kind
    drift: Drift | None = None
    has_reference: bool = True
    suspects: tuple[Problem, ...] = ()  # added and changed images that may not belong, by kind
    followed: int = 0  # new names of pictures that a person has placed, put into the same clusters

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "inputs": self.inputs,
            "added": self.added,
            "changed": self.changed,
            "kept": self.inputs - self.added - self.changed,
            "unreadable": self.problems.total(),
            "incomplete": self.problems["incomplete"],
            "too_large": self.problems["too_large"],
            "rows": len(self.assignments.paths),
            "sizes": {"training": self.sizes[0], "new": self.sizes[1]},
            "drift": self.drift.to_dict() if self.drift else None,
        }

    def to_json(self) -> str:
        return strict_json(self.to_dict(), indent=2)

    def to_text(self) -> str:
        kept = self.inputs - self.added - self.changed
        count = self.problems.total()
        unread = f"; {count:,} could not be read{kinds_of(self.problems)}: see the status" if count else ""
        lines = [
            f"{self.inputs:,} inputs in {self.source}: {self.added:,} new, {self.changed:,} changed, "
            f"{kept:,} already in the run{unread}",
            f"{len(self.assignments.paths):,} rows in {self.run.folder / 'assignments.csv'}",
        ]
        if self.suspects:
            lines.append(f"to clean up among them: {in_words(self.suspects)}; see problems.csv")
        if self.followed:
            known = counted(self.followed, "picture")
            lines.append(f"{known} that you have corrected before, under another name: put where you put them")
        if not self.added + self.changed:
            return "\n".join([*lines, "nothing to compare: no new images"])
        if not self.has_reference:
            return "\n".join([*lines, NO_REFERENCE])
        if not self.drift:
            return "\n".join([*lines, "nothing to compare: no new image can be read"])
        return "\n".join([*lines, *_mix(*self.sizes), *self.drift.lines()])


def update(
    run: Run,
    listing: Listing,
    *,
    location: str | None,
    device: str = "auto",
    decoding: OnProgress | None = None,
    encoding: OnProgress | None = None,
    problems: bool = True,
) -> Updated:
    """Assign the inputs of a source that are new or have changed since, and write their rows.

    `problems` compares them with all others, and adds what it finds to problems.csv.
    """
    config, data = run.config, run.data
    reference = Reference.read(run.folder, config.n_clusters)
    with hold(run.folder, "rows"):
        recover(run)
        before, stamps = run.read_assignments(), read_stamps(run.folder)
        training = before.first(data.inputs).sizes(config.n_clusters)
        nothing = Updated(run, listing.name, len(listing.paths), before, (training, [0] * config.n_clusters))
        tasks = _tasks(listing, row_names(listing, location, data, before.paths), before, stamps, data.inputs)
        if not tasks:
            return nothing
        model = Model.load(run, device)
        images = model.open(_part(listing, tasks), decoding, encoding)
        probabilities = model.predict(images)
        now = Assignments.of(images, images.usable, probabilities)
        fresh = np.array([_is_fresh(task, now, before) for task in tasks])
        readable = fresh[images.usable]
        features = model.embed(images, images.usable[readable])
        done = dataclasses.replace(
            nothing,
            assignments=_merged(before, now, tasks, fresh),
            added=sum(task.is_new for task in tasks if fresh[task.row]),
            changed=sum(not task.is_new for task in tasks if fresh[task.row]),
            problems=count_problems(compress(now.status, fresh)),
            sizes=(training, np.bincount(now.clusters[images.usable][readable], minlength=config.n_clusters).tolist()),
            drift=Drift.between(reference, features, probabilities[readable]) if reference else None,
            has_reference=reference is not None,
        )
        edits = RunImages(run, device=device).edits
        if edits.taught:  # before the rows: what is noted of a row that never comes is not read
            later = [row for row in images.usable.tolist() if fresh[row]]
            said, _ = edits.taught.head.predict(*model.kinds(images, np.array(later, np.int64)))
            edits.learn_later([images.listing.paths[row] for row in later], said)
        found = {task.name: task.stamp for task in tasks if not _is_away(task, now, before)}
        source = {"location": location, "files": listing.files is not None, "fingerprint": images.fingerprint}
        contents = contents_of(images, config.train.frame)
        _write(done, source, before, stamps, found, tasks, fresh)
        write_contents(run.folder, read_contents(run.folder) | contents)
        if problems:
            changed = {task.name for task in tasks if fresh[task.row]}
            suspects = write_problems_of(RunImages(run, device=device), changed)
            done = dataclasses.replace(done, suspects=tuple(each for each in suspects if each.path in changed))
    return dataclasses.replace(done, followed=_follow(RunImages(run, device=device), done.suspects))


def _follow(images: RunImages, suspects: Sequence[Problem]) -> int:
    """Put new names of pictures where a person has put these pictures; return how many there are."""
    edits, paths = images.edits, images.assignments.paths
    if not edits.any or not suspects:
        return 0
    state, row_of = edits.state, {path: row for row, path in reversed(list(enumerate(paths)))}
    targets = {}
    for suspect in suspects:
        new, old = row_of[suspect.path], row_of.get(suspect.copy_of, -1)
        if suspect.kind == "exact_copy" and state.shown[old] and not state.shown[new]:
            targets[new] = int(state.clusters[old])
    if targets:
        edits.follow(targets.keys(), targets.values())
    return len(targets)


class _Task(NamedTuple):
    """An input to encode."""

    row: int  # among the tasks
    input: int  # in the listing
    name: str
    stamp: str
    place: int | None  # its row in assignments.csv; None if new
    is_new: bool  # no row yet, or only one of an interrupted update
    is_changed: bool  # the file has changed


def _tasks(
    listing: Listing, names: Sequence[str], before: Assignments, stamps: dict[str, str], n_training: int
) -> list[_Task]:
    """Return the inputs without a row or stamp, with another stamp, or with a read error that may have passed."""
    places = {path: row for row, path in reversed(list(enumerate(before.paths)))}
    tasks: dict[str, _Task] = {}  # a list may name a file twice
    for position, (name, stamp) in enumerate(zip(names, stamps_of(listing), strict=True)):
        place = places.get(name)
        if place is not None and stamps.get(name) == stamp and not may_pass(before.status[place]):
            continue
        is_new = place is None or (place >= n_training and name not in stamps)
        is_changed = not is_new and stamps.get(name, stamp) != stamp
        tasks.setdefault(name, _Task(len(tasks), position, name, stamp, place, is_new, is_changed))
    return list(tasks.values())


def _part(listing: Listing, tasks: Sequence[_Task]) -> Listing:
    """Return the inputs of the tasks as a listing, under the names of their rows.

    Files get a store of their own: the store of their folder may hold the only copy of the training images. An array
    that is entirely new is not copied.
    """
    names, chosen = tuple(task.name for task in tasks), [task.input for task in tasks]
    is_whole = listing.files is None and len(chosen) == len(listing.paths)
    part = listing if is_whole else listing.part(chosen)
    return dataclasses.replace(part, paths=names, labels=None, class_names=None, split=None)


def _is_fresh(task: _Task, now: Assignments, before: Assignments) -> bool:
    """Return True if the row of a task has to be written."""
    if task.place is None:
        return True
    if _is_away(task, now, before):
        return False
    new, old = ((of.clusters[row], of.status[row]) for of, row in ((now, task.row), (before, task.place)))
    return task.is_new or task.is_changed or new != old


def _is_away(task: _Task, now: Assignments, before: Assignments) -> bool:
    """Return True if a file that was readable before is temporarily unreadable: it keeps its old row."""
    return task.place is not None and before.clusters[task.place] >= 0 and may_pass(now.status[task.row])


def _merged(before: Assignments, now: Assignments, tasks: Sequence[_Task], fresh: np.ndarray) -> Assignments:
    """Return the old rows, with those of changed files replaced, followed by the new ones."""
    chosen = {task.name: task.row for task in tasks if fresh[task.row]}
    paths = [*before.paths, *(task.name for task in tasks if task.place is None)]
    clusters = np.concatenate([before.clusters, np.full(len(paths) - len(before.paths), -1)])
    confidence = np.concatenate([before.confidence, np.full(len(paths) - len(before.paths), np.nan)])
    status = [*before.status, *("" for _ in paths[len(before.paths) :])]
    for row, path in enumerate(paths):
        if (found := chosen.get(path)) is not None:
            clusters[row], confidence[row] = now.clusters[found], now.confidence[found]
            status[row] = now.status[found]
    return Assignments(tuple(paths), clusters, confidence, tuple(status))


def _write(
    done: Updated,
    source: dict[str, Any],
    before: Assignments,
    stamps: dict[str, str],
    found: dict[str, str],
    tasks: Sequence[_Task],
    fresh: np.ndarray,
) -> None:
    """Write the rows, if any, then the line of the update, then the stamps."""
    if done.added + done.changed:
        begun = [task.place for task in tasks if task.is_new and task.place is not None]  # by an interrupted update
        changed = {task.name for task in tasks if not task.is_new and fresh[task.row]}
        replaced = [row for row, path in enumerate(before.paths) if path in changed]  # a list may name a file twice
        begin(done.run, before, stamps, replaced, found)
        done.run.append_update()
        # before the table: after a kill in between, the mark is merely early
        done.run.mark_outdated(f"{done.added:,} images added, {done.changed:,} changed")
        done.run.write_assignments(done.assignments)
        done.run.append_update(
            {
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                **source,
                "version": twincluster.__version__,
                **done.to_dict(),
                "undo": undo_record(before, stamps, begun, replaced),
            }
        )
    write_stamps(done.run.folder, stamps | found)
    end(done.run)


def _mix(then: list[int], now: list[int]) -> list[str]:
    """Return a line on how cluster shares differ, which alone is no drift; none if there are too few images."""
    old, new = np.array(then) / max(1, sum(then)), np.array(now) / max(1, sum(now))
    pooled = (np.array(then) + np.array(now)) / max(1, sum(then) + sum(now))
    error = np.sqrt(pooled * (1 - pooled) * (1 / max(1, sum(then)) + 1 / max(1, sum(now))))
    differ = [int(k) for k in np.argsort(-np.abs(new - old)) if abs(new[k] - old[k]) > NOTABLE * error[k]]
    if not differ:
        return ["the clusters are about as frequent as among the training images"] if sum(now) >= FEWEST else []
    shares = ", ".join(f"{k} {new[k]:.0%} (was {old[k]:.0%})" for k in differ[:LISTED])
    more = f", and {len(differ) - LISTED} others" if len(differ) > LISTED else ""
    return [f"clusters whose share differs from the training images: {shares}{more}"]


UNDER_WAY = "updating.json"  # exists only while an update writes, or after it was interrupted
BROKEN_OFF = "an update was interrupted; repeat it, then undo it"


@dataclass(frozen=True)
class _Begun:
    """The content of updating.json."""

    updates: int  # number of updates before this one
    replaced: tuple[Replaced, ...]  # the rows before the update
    stamps: dict[str, str]  # to be written


@dataclass(frozen=True)
class Undone:
    """The result of undoing an update."""

    table: Path
    source: str  # of the update
    removed: int  # rows
    put_back: int  # rows restored
    rows: int  # remaining

    def to_json(self) -> str:
        return strict_json({"undone": True, **asdict(self), "table": str(self.table)}, indent=2)

    def to_text(self) -> str:
        what = f"{counted(self.removed, 'row')} removed, {self.put_back:,} restored"
        return f"the update with {self.source} is undone: {what}\n{self.rows:,} rows in {self.table}"


def undo_record(
    before: Assignments, stamps: Mapping[str, str], added_rows: Iterable[int], replaced: Iterable[int]
) -> dict[str, Any] | None:
    """Return what an undo needs, for the line of an update: the number of rows before it, and the rows it replaces.

    `added_rows` are rows that an interrupted update has already added. Return None if they are not the last ones,
    because another update came in between: then the update cannot be undone.
    """
    count = len(before.paths) - len(added := sorted(added_rows))
    if added and added != list(range(count, len(before.paths))):
        return None
    return {"rows": count, "replaced": _as_they_are(before, stamps, replaced)}


def begin(
    run: Run, before: Assignments, stamps: Mapping[str, str], replaced: Iterable[int], found: Mapping[str, str]
) -> None:
    """Save the rows that an update replaces and the stamps that it will write, before it changes anything."""
    content = {
        "updates": len(run.read_updates()),  # before this one
        "replaced": _as_they_are(before, stamps, replaced),
        "stamps": dict(found),
    }
    write_json(run.folder / UNDER_WAY, finite(content))


def end(run: Run) -> None:
    (run.folder / UNDER_WAY).unlink(missing_ok=True)


def recover(run: Run) -> None:
    """Clean up after an interrupted update: finish it if its line was written, otherwise restore the rows it replaced.

    Rows that it added stay, because corrections may refer to them by now; the next attempt finds them without a stamp.
    """
    if (begun := _under_way(run)) is None:
        return
    if len(run.read_updates()) > begun.updates:
        write_stamps(run.folder, read_stamps(run.folder) | begun.stamps)
    elif begun.replaced:
        table = run.read_assignments()
        run.write_assignments(_as_it_was(run, table, len(table.paths), begun.replaced))
    end(run)


def undo_update(run: Run) -> Undone:
    """Undo the last update."""
    with hold(run.folder, "undo"):
        settle(run.folder / EDITS_FILE)  # finish pending edits first: they may refer to rows of the update
        table, records = run.read_assignments(), run.read_updates()
        _unfollow(run, records)
        back = _check(run, table, records)
        recover(run)
        count, replaced = back.rows, back.replaced
        stamps = read_stamps(run.folder)
        for path in table.paths[count:]:
            stamps.pop(path, None)
        for row, _, _, _, stamp in replaced:
            if stamp is None:
                stamps.pop(table.paths[row], None)
            else:
                stamps[table.paths[row]] = stamp
        write_stamps(run.folder, stamps)
        run.mark_outdated(f"an update was undone, {len(table.paths) - count:,} images removed")
        run.write_assignments(_as_it_was(run, table, count, replaced))
        run.drop_update()
    removed = len(table.paths) - count
    return Undone(run.folder / "assignments.csv", records[-1].source, removed, len(replaced), count)


def _unfollow(run: Run, records: Sequence[UpdateRecord]) -> None:
    """Remove the edit that the last update made of earlier corrections, if nothing was edited since."""
    log, back = EditLog(run.folder / EDITS_FILE), records[-1].undo if records else None
    lines = log.read() if back else []
    if back and lines and lines[-1].get("copied") and min(lines[-1]["rows"]) >= back.rows:
        log.rewrite(lines[:-1])


def _as_they_are(table: Assignments, stamps: Mapping[str, str], rows: Iterable[int]) -> list[list[Any]]:
    return [
        [row, int(table.clusters[row]), float(table.confidence[row]), table.status[row], stamps.get(table.paths[row])]
        for row in rows
    ]


def _under_way(run: Run) -> _Begun | None:
    path = run.folder / UNDER_WAY
    try:
        return read_record(path, _Begun)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): delete it to continue without it") from None


def _check(run: Run, table: Assignments, records: list[UpdateRecord]) -> UndoRecord:
    if not records:
        more = f": {BROKEN_OFF}" if run.is_updated else ""
        raise InputError(f"{run.folder} has no update to undo{more}")
    if len(table.paths) > (records[-1].rows or len(table.paths)) or _is_half_way(run, table, len(records)):
        raise InputError(f"the updates of {run.folder} cannot be undone now: {BROKEN_OFF}")
    back = records[-1].undo
    if back is None:
        raise InputError(
            f"the last update of {run.folder} cannot be undone: it was made by an earlier version, or it completed an "
            "interrupted update after another one"
        )
    lines = EditLog(run.folder / EDITS_FILE).read()
    without = f"to discard them, move {run.folder / EDITS_FILE} away, then undo"
    if _last_row(lines) >= back.rows:
        raise InputError(f"{run.folder} has corrections by hand of images of that update: {without}")
    # the first line records the number of rows: with fewer rows the file could not be read
    if any(line["kind"] in ("start", "accept") and line["inputs"] > back.rows for line in lines):
        raise InputError(f"{run.folder} has corrections by hand that were made after that update: {without}")
    return back


def _is_half_way(run: Run, table: Assignments, n_records: int) -> bool:
    """Return True if an interrupted update without a line has replaced rows of the table."""
    begun = _under_way(run)
    if begun is None or n_records > begun.updates:
        return False
    then = _as_it_was(run, table, len(table.paths), begun.replaced)
    same_confidence = np.array_equal(then.confidence, table.confidence, equal_nan=True)
    return not (np.array_equal(then.clusters, table.clusters) and then.status == table.status and same_confidence)


def _last_row(lines: list[Line]) -> int:
    """Return the largest row number in edits, including undone ones; -1 without edits."""
    last, waiting = -1, [*lines]
    while waiting:  # rows may lie in parts, and parts in what a cut ends
        line = waiting.pop()
        last = max([last, *map(int, line.get("rows", ()))])
        inside = (part for value in line.values() if isinstance(value, list) for part in value)
        waiting += [part for part in inside if isinstance(part, dict)]
    return last


def _as_it_was(run: Run, table: Assignments, count: int, replaced: Iterable[Replaced]) -> Assignments:
    clusters, confidence, status = table.clusters[:count].copy(), table.confidence[:count].copy(), [*table.status]
    for row, cluster, sure, said, _ in replaced:
        if not 0 <= row < len(clusters):
            raise InputError(
                f"{run.folder}: updates.jsonl names row {row} of {len(clusters):,}: restore the file from a copy"
            )
        clusters[row], confidence[row] = cluster, math.nan if sure is None else sure
        status[row] = said
    return Assignments(table.paths[:count], clusters, np.asarray(confidence), tuple(status[:count]))
