"""edits.jsonl, its replay to a `State` of the run, and the model taught by accepted proposals."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from twincluster.core import (
    HeldError,
    InputError,
    JsonLines,
    disk_is_full,
    json_line,
    naming,
    record_of,
    refuse_held,
    write_atomically,
)
from twincluster.runs.edit_kinds import KINDS, Later, Line, applied, without_rows
from twincluster.runs.edit_state import UNREADABLE, Features, Kinds, State, apply_edits, initial
from twincluster.runs.folder import Assignments, Run
from twincluster.runs.inputs import read_stamps, row_names, stamps_of
from twincluster.runs.taught import TAUGHT_FILE, Taught, key_of

if TYPE_CHECKING:
    from twincluster.clustering import Head
    from twincluster.data import Listing

Stamp = tuple[tuple[int, int] | None, ...]
EDITS_FILE = "edits.jsonl"
TRAINS_ON = ""  # instead of the model's checksum, while a run with edits is trained further


class ConflictError(InputError):
    """Another process has written in between. `last` is the number of its newest line."""

    def __init__(self, last: int, what: str = "") -> None:
        super().__init__(what or f"somebody else has edited meanwhile (edit {last}): look again, and repeat it")
        self.last = last


class EditLog:
    """The lines of one file. Lines that were read before are not read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = JsonLines(path, _line_of, "delete it from there on")

    def read(self) -> list[Line]:
        """Return all whole lines. Does not block on concurrent writers."""
        return self._lines.read()

    def append(self, build: Callable[[list[Line]], list[Line]], expected: int | None = None) -> list[Line]:
        """Add what `build` makes of the lines, while no other process can write, and return all lines.

        Lines get a number and a time. `expected` is the number of the newest line that the caller knows: if there is a
        newer one, nothing is written. Raise InputError while another process writes the run: its model is replaced.
        """

        def numbered(lines: list[Line]) -> list[Line]:
            refuse_held(self.path.parent, patience=0)
            last = int(lines[-1]["edit"]) if lines else 0
            if expected is not None and expected != last:
                raise ConflictError(last)
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            return [{"edit": number, "time": now} | line for number, line in enumerate(build(lines), len(lines))]

        with _room(self.path):
            while True:
                refuse_held(self.path.parent)
                with suppress(HeldError):  # another process took the run in between and waits for this file
                    return self._lines.append(numbered)

    def rewrite(self, lines: Sequence[Line]) -> None:
        """Replace the file by other lines."""
        self._lines.rewrite(lines)


def in_force(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """Return the edits that count, and those that `redo` would bring back, the next one last."""
    done: list[Line] = []
    undone: list[Line] = []
    for line in lines:
        if line["kind"] == "undo" and done:
            undone.append(done.pop())
        elif line["kind"] == "redo" and undone:
            done.append(undone.pop())
        elif line["kind"] not in ("start", "undo", "redo"):
            done.append(line)
            undone = []
    return done, undone


def _line_of(line: Line, place: int) -> Line:
    """Check the number, the kind and the types of a line; kinds of later versions pass."""
    if type(line.get("edit")) is not int or line["edit"] != place:
        raise ValueError(f"its number is {str(line.get('edit'))[:20]}, expected {place}")
    if not isinstance(line.get("kind"), str):
        raise ValueError("it has no kind")
    if line["kind"] in KINDS:
        record_of(KINDS[line["kind"]].line, line, f"edit {place}")
    return line


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Raise InputError for an edit that the disk has no room for."""
    try:
        with naming(path):
            yield
    except OSError as error:
        if full := disk_is_full(error):
            raise InputError(f"{full}; the edit was not made") from error
        raise


class EditHistory:
    """The edits of one run, read only; `Edits` adds the methods that make edits.

    `features` gives the features of rows of the run, their embedding last; it is called only for rows that `update`
    added after their cluster had been split or the model taught. `relearn` computes the head of an `accept` again,
    given its number.
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
        self._known: tuple[list[Line], State] | None = None  # the edits in force, and the state after them
        self._checked: Line | None = None  # the first line, once it has been checked
        self._guard = RLock()  # of the six above

    @property
    def state(self) -> State:
        return self._state_of(self._log.read())

    @property
    def paths(self) -> tuple[str, ...]:
        """The names of the rows in assignments.csv."""
        with self._guard:
            self._read_rows([])
            return self._paths

    @property
    def any(self) -> bool:
        """True if an edit is in force."""
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
        number, key = newest_lesson(lines)
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
        """Apply the edits to the model's assignments of a source; `location` opens the source again."""
        if not self.any:
            return found
        return apply_edits(found, self.state, self._rows_of(listing, location), kinds)

    def share(self, folder: Path) -> None:
        """Write the edits and the taught model for a copy of the model in another folder. They name no image."""
        lines = self.without_rows()
        write_atomically(folder / EDITS_FILE, "".join(map(json_line, lines)))
        if taught := self.taught:
            _, key = newest_lesson(lines)
            Taught(key, taught.head).write(folder)

    def without_rows(self) -> list[Line]:
        """Lines that decide about other images as these edits do, and name none of the run's own: to go with a copy of
        the model. Junk is left out, and so is what was undone."""
        start = self._start() | {"inputs": 0, "paths": _digest_of_paths(())}
        done, _ = in_force(self._log.read())
        lines = [start, *without_rows(done)]
        time = lines[1].get("time", "") if len(lines) > 1 else ""
        return [{"edit": number, "time": time} | line | {"edit": number} for number, line in enumerate(lines)]

    def _state_of(self, lines: list[Line]) -> State:
        """Return the state. Apply only new edits, unless something was undone or `update` added rows."""
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
        number, _ = newest_lesson(lines)

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
        except InputError:  # reported where new images need it
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
        with suppress(OSError):  # if nothing can be written, it is learned each time
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
        """Return the row of each input, (m,); -1 for inputs that the run does not have, or that have changed since."""
        names = row_names(listing, location, self._run.data, self.paths)
        places = {path: row for row, path in reversed(list(enumerate(self.paths)))}
        stamps = read_stamps(self._run.folder)
        rows = [
            places.get(name, -1) if stamps.get(name, stamp) == stamp else -1
            for name, stamp in zip(names, stamps_of(listing), strict=True)
        ]
        return np.array(rows, dtype=np.int64)

    def _start(self) -> Line:
        """Return the first line: what the edits are about, so that they are never applied to anything else."""
        return {
            "kind": "start",
            "clusters": self.n_clusters,
            "model": digest_of_model(self._run),
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
            or start.get("model") not in (TRAINS_ON, digest_of_model(self._run))
            or not same_rows
        ):
            self._run.check_model()
            raise InputError(
                f"the edits in {self._log.path} were made on another model or on other rows than this run has now: "
                "move that file away to start anew, or put the run back as it was"
            )


def newest_lesson(lines: list[Line]) -> tuple[int, str]:
    """Return the number of the newest `accept` in force, 0 without one, and the key of its taught model."""
    done, _ = in_force(lines)
    last = max((at for at, line in enumerate(done) if line["kind"] == "accept"), default=-1)
    return (int(done[last]["edit"]), key_of([lines[0], *done[: last + 1]])) if last >= 0 else (0, "")


def _stat(path: Path) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return path.stat()
    return None


def digest_of_model(run: Run) -> str:
    path = run.folder / "model.safetensors"
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _digest_of_paths(paths: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(paths).encode(errors="surrogatepass")).hexdigest()[:32]
