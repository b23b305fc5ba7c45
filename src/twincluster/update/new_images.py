"""New images for a finished run: each gets a row, without training, and is compared with those of the training.

assignments.csv is replaced in one move. What comes after it, updates.jsonl and then stamps.csv, only ever lags behind:
after a kill at any moment the same command finishes what it began. What the rows were before lies in updating.json
meanwhile, so that the way back never leads to what a killed attempt has left.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

import twincluster
from twincluster.core import hold, strict_json
from twincluster.data import Listing, may_pass
from twincluster.model import Model
from twincluster.run_images import RunImages
from twincluster.runs import (
    FEWEST,
    Assignments,
    Drift,
    Reference,
    Run,
    count_problems,
    kinds_of,
    read_stamps,
    row_names,
    stamps_of,
    write_stamps,
)
from twincluster.update.undo import begin, end, recover, way_back

LISTED = 5  # clusters whose shares are told
NOTABLE = 3.0  # standard errors by which the share of a cluster differs

NO_REFERENCE = (
    "what the training images look like was not kept with this run, which an earlier version made: "
    "whether the new images look like them cannot be told; fit again to have it"
)


@dataclass(frozen=True)
class Updated:
    """What an update did, and how the new images compare."""

    run: Run
    source: str
    inputs: int  # in the source
    assignments: Assignments  # all rows of the run
    sizes: tuple[list[int], list[int]]  # images in each cluster: of the training, of the added and the changed
    added: int = 0
    changed: int = 0  # rows that were there, of files that are others now
    problems: Counter[str] = field(default_factory=Counter)  # of the added and the changed, by kind
    drift: Drift | None = None
    has_reference: bool = True

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
            f"{kept:,} known already{unread}",
            f"{len(self.assignments.paths):,} rows in {self.run.folder / 'assignments.csv'}",
        ]
        if not self.added + self.changed:
            return "\n".join([*lines, "nothing to compare: there is no new image"])
        if not self.has_reference:
            return "\n".join([*lines, NO_REFERENCE])
        if not self.drift:
            return "\n".join([*lines, "nothing to compare: none of the new images can be read"])
        return "\n".join([*lines, *_mix(*self.sizes), *self.drift.lines()])


def update(
    run: Run,
    listing: Listing,
    *,
    location: str | None,
    device: str = "auto",
    decoding: Callable[[int, int], None] | None = None,
    encoding: Callable[[int, int], None] | None = None,
) -> Updated:
    """Assign the inputs of a source that a run does not know, or that changed since, and write their rows."""
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
        _write(done, source, before, stamps, found, tasks, fresh)
    return done


class _Task(NamedTuple):
    """An input to look at."""

    row: int  # among the tasks
    input: int  # in the listing
    name: str
    stamp: str
    place: int | None  # of its row in assignments.csv, if there is one
    is_new: bool  # no row yet, or one that an interrupted update left
    is_changed: bool  # the file is another one, whatever comes of it


def _tasks(
    listing: Listing, names: Sequence[str], before: Assignments, stamps: dict[str, str], n_training: int
) -> list[_Task]:
    """What has no row yet, has another stamp or none, or could not be read for a reason that may have passed."""
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
    """The inputs that tasks are about, under the names of their rows. Files never share a store with their folder: the
    one that is there may be all that is left of the images of a training. An array that is all new is not copied."""
    names, chosen = tuple(task.name for task in tasks), [task.input for task in tasks]
    is_whole = listing.files is None and len(chosen) == len(listing.paths)
    part = listing if is_whole else listing.part(chosen)
    return dataclasses.replace(part, paths=names, labels=None, class_names=None, split=None)


def _is_fresh(task: _Task, now: Assignments, before: Assignments) -> bool:
    """Whether the row of a task is to be written."""
    if task.place is None:
        return True
    if _is_away(task, now, before):
        return False
    found, known = ((of.clusters[row], of.status[row]) for of, row in ((now, task.row), (before, task.place)))
    return task.is_new or task.is_changed or found != known


def _is_away(task: _Task, now: Assignments, before: Assignments) -> bool:
    """Whether a file that was read once cannot be for the moment: it keeps what is known of it."""
    return task.place is not None and before.clusters[task.place] >= 0 and may_pass(now.status[task.row])


def _merged(before: Assignments, now: Assignments, tasks: Sequence[_Task], fresh: np.ndarray) -> Assignments:
    """The old rows in their places, with those of changed files replaced, and the new ones after them."""
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
    """The rows, where there are any, then the line of the update, then the stamps that were found."""
    if done.added + done.changed:
        begun = [task.place for task in tasks if task.is_new and task.place is not None]  # by one that was broken off
        changed = {task.name for task in tasks if not task.is_new and fresh[task.row]}
        replaced = [row for row, path in enumerate(before.paths) if path in changed]  # a list may name a file twice
        begin(done.run, before, stamps, replaced, found)
        done.run.append_update()
        # before the table: after a kill in between it is only told too early
        done.run.mark_outdated(f"{done.added:,} images added, {done.changed:,} changed")
        done.run.write_assignments(done.assignments)
        done.run.append_update(
            {
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                **source,
                "version": twincluster.__version__,
                **done.to_dict(),
                "undo": way_back(before, stamps, begun, replaced),
            }
        )
    write_stamps(done.run.folder, stamps | found)
    end(done.run)


def _mix(then: list[int], now: list[int]) -> list[str]:
    """A line on how the shares of the clusters differ, which is no drift by itself; none where too few are alike."""
    old, new = np.array(then) / max(1, sum(then)), np.array(now) / max(1, sum(now))
    pooled = (np.array(then) + np.array(now)) / max(1, sum(then) + sum(now))
    error = np.sqrt(pooled * (1 - pooled) * (1 / max(1, sum(then)) + 1 / max(1, sum(now))))
    differ = [int(k) for k in np.argsort(-np.abs(new - old)) if abs(new[k] - old[k]) > NOTABLE * error[k]]
    if not differ:
        return ["the clusters are about as frequent as among the training images"] if sum(now) >= FEWEST else []
    told = ", ".join(f"{k} {new[k]:.0%} (was {old[k]:.0%})" for k in differ[:LISTED])
    more = f", and {len(differ) - LISTED} others" if len(differ) > LISTED else ""
    return [f"clusters of another share than among the training images: {told}{more}"]
