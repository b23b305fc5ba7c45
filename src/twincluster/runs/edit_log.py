"""edits.jsonl, and what its lines make of a run.

`EditLog` keeps numbered lines that are only ever appended, by any number of processes at once. `State` is a function of
the model's assignments and of these lines: nothing is drawn or trained here. A line names the images it concerns by
their rows in assignments.csv; a split has the centres, and an `accept` the taught model, that decide about images which
come later. Shapes: n rows of the run, m other images, P parts, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twincluster.core import HeldError, InputError, JsonLines, disk_is_full, naming, record_of, refuse_held

if TYPE_CHECKING:
    from twincluster.clustering import Head

Line = dict[str, Any]


class ConflictError(InputError):
    """Somebody else wrote in between. `last` is the number of their newest line."""

    def __init__(self, last: int, what: str = "") -> None:
        super().__init__(what or f"somebody else has edited meanwhile (edit {last}): look again, and repeat it")
        self.last = last


class EditLog:
    """The lines of one file. Only new lines are read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = JsonLines(path, _line_of, "delete it from there on")

    def read(self) -> list[Line]:
        """Return all whole lines. Does not block on concurrent writers."""
        return self._lines.read()

    def append(self, build: Callable[[list[Line]], list[Line]], expected: int | None = None) -> list[Line]:
        """Add what `build` makes of the lines, while no other process can write, and return all lines.

        Lines get a number and a time. `expected` is the number of the newest line the caller knows: if there is a newer
        one, nothing is written. Edits of a run that another process writes are refused: its model is being replaced.
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
                with suppress(HeldError):  # by a process that came in between and waits for this file
                    return self._lines.append(numbered)

    def rewrite(self, lines: Sequence[Line]) -> None:
        """Replace the file by other lines."""
        self._lines.rewrite(lines)


def _line_of(line: Line, place: int) -> Line:
    """Check the number, the kind and the types of a line; a kind of a later version passes."""
    if type(line.get("edit")) is not int or line["edit"] != place:
        raise ValueError(f"its number is {str(line.get('edit'))[:20]}, expected {place}")
    if not isinstance(line.get("kind"), str):
        raise ValueError("it has no kind")
    if line["kind"] in KINDS:
        record_of(KINDS[line["kind"]][0], line, f"edit {place}")
    return line


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Refuse an edit for which the disk has no room."""
    try:
        with naming(path):
            yield
    except OSError as error:
        if full := disk_is_full(error):
            raise InputError(f"{full}; the edit was not made") from error
        raise


@dataclass(frozen=True)
class _RenameLine:
    cluster: int
    name: str


@dataclass(frozen=True)
class _MergeLine:
    into: int
    clusters: list[int]
    name: str | None = None


@dataclass(frozen=True)
class _Part:
    id: int
    name: str
    rows: list[int]
    centre: list[float] | None


@dataclass(frozen=True)
class _SplitLine:
    cluster: int
    rest: int
    parts: list[_Part]


@dataclass(frozen=True)
class _MoveLine:
    rows: list[int]
    to: int
    name: str | None = None


@dataclass(frozen=True)
class _RowsLine:
    rows: list[int]


@dataclass(frozen=True)
class _Named:
    cluster: int
    name: str
    new: bool  # else the cluster had no name yet


@dataclass(frozen=True)
class _AnswerLine:
    rows: list[int]
    to: list[int]  # of each row; JUNK too
    names: list[_Named] | None = None
    sample: bool = False  # answers to random questions, which count for the estimate
    samples: list[int] | None = None  # rows whose answers do, where not all of them do


@dataclass(frozen=True)
class _AcceptLine:
    rows: list[int]
    to: list[int]  # of each row; JUNK too
    inputs: int  # rows of the run at that time: the taught model decides about later ones


@dataclass(frozen=True)
class _RefuseLine:
    rows: list[int]
    to: list[int]  # clusters that none of the rows belongs to


UNREADABLE, JUNK = -1, -2  # in the place of a cluster
NONE = -3  # in the place of a cluster: a row that is no example, or not in the sample
LONGEST_NAME = 200  # characters
DAMAGE = (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError)  # what odd lines can raise
Kinds = tuple[np.ndarray, ...]  # features of m images, each (m,D): what `Model.kinds` returns, the embedding last
Features = Callable[[np.ndarray], np.ndarray]  # rows (m,) to the network's embedding of them, (m,D)


@dataclass(frozen=True)
class Later:
    """Callbacks for rows added to a run after an edit. They return None if the images are gone."""

    features: Callable[[np.ndarray], np.ndarray | None]  # rows (m,) to their embedding
    taught: Callable[[int, np.ndarray], np.ndarray | None]  # number of an `accept` and rows (m,) to their clusters


@dataclass(frozen=True, eq=False)
class Merge:
    into: int
    clusters: np.ndarray  # that end in it


@dataclass(frozen=True, eq=False)
class Split:
    cluster: int
    parts: np.ndarray  # (P,) ids
    rest: int  # where images go that cannot be compared with the centres
    centres: np.ndarray | None  # (P,D) unit rows


@dataclass(frozen=True, eq=False)
class Learned:
    edit: int  # the `accept` from which on the taught model decides about other images


@dataclass(frozen=True, eq=False)
class State:
    """Where every image is, and what the clusters are called."""

    home: np.ndarray  # (n,) int64: the cluster of each row, of junk too; -1 unreadable
    junk: np.ndarray  # (n,) bool
    moved: np.ndarray  # (n,) bool: put where it is by hand
    guessed: np.ndarray  # (n,) bool: came after a split or a lesson, and nobody could tell its cluster
    shown: np.ndarray  # (n,) bool: an example, which a person has put where it is or confirmed there
    sample: np.ndarray  # (n,) int64: the cluster a row had before a random question about it was answered, else NONE
    before: np.ndarray  # (n,) int64: the cluster an example had before a person placed it, else NONE
    names: Mapping[int, str]  # of the clusters there are, by id
    refused: Mapping[int, np.ndarray] = field(default_factory=dict)  # rows that a person keeps out of a cluster
    ended: Mapping[str, int] = field(default_factory=dict)  # names of clusters that were merged, and into which
    joined: tuple[Merge | Split | Learned, ...] = ()  # what decides about other images, in order
    number: int = 0  # of the newest line, undone ones and those that undo included
    head: Callable[[], Head] | None = None  # gives the taught model, where there is one

    @property
    def clusters(self) -> np.ndarray:
        """(n,) the cluster of each row, -1 unreadable, -2 junk."""
        return np.where(self.junk, JUNK, self.home)

    @property
    def examples(self) -> np.ndarray:
        """(n,) the cluster of each example, -2 junk, -3 for rows that are none. No computation moves an example."""
        return np.where(self.shown, self.clusters, NONE)

    @property
    def is_taught(self) -> bool:
        """Whether accepted proposals are in force: a taught model decides about other images."""
        return any(isinstance(step, Learned) for step in self.joined)

    @property
    def clusters_before(self) -> np.ndarray:
        """(n,) the cluster of each row, of examples the one in which a person found them: it was right, or was not."""
        moved = self.shown & (self.before != NONE) & ~self.junk
        return np.where(moved, self.before, self.clusters)

    @property
    def is_split(self) -> bool:
        return any(isinstance(step, Split) and step.centres is not None for step in self.joined)

    @property
    def needs_features(self) -> bool:
        """Whether `route` looks at features."""
        return self.is_split or self.is_taught

    def chances(self, own: np.ndarray, kinds: Kinds | None = None) -> np.ndarray:
        """(m,C) probability of each cluster, by the taught model where there is one, else by the model's `own` (m,K).

        Merges add them up, and splits give all to the part with the nearest centre.
        """
        steps, found, classes = list(self.joined), own, np.arange(own.shape[1])
        last = max((at for at, step in enumerate(steps) if isinstance(step, Learned)), default=-1)
        if last >= 0 and self.head and kinds is not None:
            head = self.head()
            found, classes = head.predict(*kinds)[1], head.classes
        width = max([*self.names, *classes.tolist()]) + 1
        ids = [width - 1, *(part for step in steps if isinstance(step, Split) for part in step.parts.tolist())]
        ids += [part for step in steps if isinstance(step, Merge) for part in step.clusters.tolist()]
        chances, ordinary = np.zeros((len(found), max(ids) + 1), found.dtype), classes >= 0
        chances[:, classes[ordinary]] = found[:, ordinary]
        for step in steps[last + 1 :]:
            if isinstance(step, Merge):
                chances[:, step.into] += chances[:, step.clusters].sum(1)
                chances[:, step.clusters] = 0
            elif isinstance(step, Split):
                mass = chances[:, step.cluster].copy()
                chances[:, step.cluster] = 0
                parts = nearest_part(step, unit(kinds[-1]) if kinds is not None else None)
                chances[np.arange(len(mass)), parts] += mass
        return chances[:, :width]  # clusters that have ended since are empty

    def first(self, count: int) -> State:
        """Return the state of the first rows, those of the training."""
        refused = {cluster: rows[rows < count] for cluster, rows in self.refused.items()}
        names = ("home", "junk", "moved", "guessed", "shown", "sample", "before")
        return replace(self, refused=refused, **{name: getattr(self, name)[:count] for name in names})

    def merged(self, clusters: np.ndarray, since: int) -> np.ndarray:
        """Apply the merges after an `accept` to clusters (m,)."""
        found, steps = clusters.copy(), list(self.joined)
        last = next(at for at, step in enumerate(steps) if isinstance(step, Learned) and step.edit == since)
        for step in steps[last + 1 :]:
            if isinstance(step, Merge):
                found[np.isin(found, step.clusters)] = step.into
        return found

    def members(self, cluster: int) -> np.ndarray:
        """Rows that lie in a cluster, without junk."""
        return np.flatnonzero((self.home == cluster) & ~self.junk)

    def sizes(self) -> dict[int, int]:
        """Images in each cluster, empty ones included."""
        found, counts = np.unique(self.home[~self.junk], return_counts=True)
        held = dict(zip(found.tolist(), counts.tolist(), strict=True))
        return {cluster: held.get(cluster, 0) for cluster in self.names}

    def route(self, clusters: np.ndarray, kinds: np.ndarray | Kinds | None = None) -> np.ndarray:
        """Clusters of images that the edits do not name, (m,), from the model's (m,) and their features."""
        return self.decide(clusters, np.zeros(len(clusters)), kinds)[0]

    def decide(
        self, clusters: np.ndarray, confidence: np.ndarray, kinds: np.ndarray | Kinds | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Clusters and confidence of images that the edits do not name, from the model's, (m,).

        The taught model, where there is one, decides first. Later merges take images along, and a later split gives
        each to the part with the nearest centre. `kinds` are all features of the images, or the embedding alone.
        """
        found, sure, steps = np.array(clusters, dtype=np.int64), np.array(confidence), self.joined
        given = kinds if isinstance(kinds, tuple | None) else (kinds,)
        last = max((at for at, step in enumerate(steps) if isinstance(step, Learned)), default=-1)
        if last >= 0 and self.head and given is not None:
            rows, steps = np.flatnonzero(found >= 0), steps[last + 1 :]
            if len(rows):
                found[rows], chances = self.head().predict(*(kind[rows] for kind in given))
                sure[rows] = chances.max(1)
        for step in steps:
            if isinstance(step, Merge):
                found[np.isin(found, step.clusters)] = step.into
            elif isinstance(step, Split):
                rows = np.flatnonzero(found == step.cluster)
                found[rows] = nearest_part(step, unit(given[-1][rows]) if given is not None else None)
        return found, sure


def initial(clusters: np.ndarray, n_clusters: int) -> State:
    """The model's own clusters, which are called by their numbers."""
    none = np.zeros(len(clusters), dtype=bool)
    home = np.array(clusters, dtype=np.int64)
    names = {cluster: str(cluster) for cluster in range(n_clusters)}
    return State(home, none, none, none, none, np.full(len(home), NONE), np.full(len(home), NONE), names)


def in_force(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """The edits that count, and those that were undone and can be done again, the next one last."""
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


def lines_of_first(lines: Sequence[Line], count: int) -> list[Line]:
    """Return edits as they would be without the rows from `count` on, which came by `twincluster update`."""
    return [_of_first(line, count) for line in lines]


def _of_first(line: Line, count: int) -> Line:
    kept = dict(line)
    for name in ("rows", "to", "samples"):
        if isinstance(line.get(name), list) and not (name == "to" and line["kind"] == "refuse"):
            rows = line[name] if name == "samples" else line["rows"]
            kept[name] = [value for value, row in zip(line[name], rows, strict=True) if row < count]
    if line["kind"] == "split":
        kept["parts"] = [part | {"rows": [row for row in part["rows"] if row < count]} for part in line["parts"]]
    if line["kind"] == "accept":
        kept["inputs"] = min(line["inputs"], count)
    return kept


def applied(state: State, line: Line, later: Later | None = None) -> State:
    """A state after one more edit."""
    if line["kind"] not in KINDS:
        raise InputError(
            f"edit {line['edit']} in edits.jsonl is of a kind that this version does not know: {line['kind'][:40]!r}; "
            "a newer version of twincluster made it: install that one"
        )
    try:
        return KINDS[line["kind"]][1](state, line, later)
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(
            f"edit {line['edit']} in edits.jsonl cannot be applied ({type(error).__name__}: {str(error)[:80]}): the "
            "file is damaged; put back a copy, or delete it from there on"
        ) from error


def name_complaint(name: Any) -> str:
    """What is wrong with the name of a cluster, if anything: any text will do, markup and line breaks too."""
    if not isinstance(name, str) or not name.strip():
        return "a cluster needs a name of at least one letter"
    if len(name) > LONGEST_NAME:
        return f"a name has at most {LONGEST_NAME} characters, this one has {len(name):,}: shorten it"
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        return "the name holds half a character (a lone surrogate), which no file can keep: type it again"
    if "\0" in name:
        return "the name holds a zero character, which no table can keep: type it again"
    return ""


def nearest_part(step: Split, features: np.ndarray | None) -> np.ndarray | int:
    """Ids (m,) of the parts whose centres have the highest cosine with the features (m,D)."""
    if features is None or step.centres is None:
        return step.rest
    if features.shape[1] != step.centres.shape[1]:
        raise InputError(f"the centres of cluster {step.cluster}'s parts are of another network: fit and edit again")
    found: np.ndarray = step.parts[(features @ step.centres.T).argmax(1)]
    return found


def unit(features: np.ndarray) -> np.ndarray:
    """(m,D) rows of length one; all zeros stay so."""
    rows = np.asarray(features, dtype=np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(length, np.finfo(np.float32).tiny))


def _rename(state: State, line: Line, later: Later | None) -> State:
    return replace(state, names={**state.names, _living(state, line["cluster"]): _text(line["name"])})


def _merge(state: State, line: Line, later: Later | None) -> State:
    into, ended = _living(state, line["into"]), [_living(state, cluster) for cluster in line["clusters"]]
    if into in ended:
        raise ValueError("a cluster cannot end in itself")
    names = {cluster: name for cluster, name in state.names.items() if cluster not in ended}
    names[into] = _text(line.get("name") or names[into])
    everywhere = (state.home, state.sample, state.before)
    home, sample, before = (np.where(np.isin(where, ended), into, where) for where in everywhere)
    refused = {cluster: rows for cluster, rows in state.refused.items() if cluster not in ended}
    if apart := [state.refused[cluster] for cluster in (into, *ended) if cluster in state.refused]:
        refused[into] = np.unique(np.concatenate(apart))
    past = {name: into if cluster in ended else cluster for name, cluster in state.ended.items()}
    past |= {state.names[cluster]: into for cluster in ended}
    joined = (*state.joined, Merge(into, np.array(ended, np.int64)))
    return replace(
        state, home=home, sample=sample, before=before, names=names, refused=refused, ended=past, joined=joined
    )


def _split(state: State, line: Line, later: Later | None) -> State:
    step = _read_split(_living(state, line["cluster"]), line)
    names = {cluster: name for cluster, name in state.names.items() if cluster != step.cluster}
    home, guessed, left = state.home.copy(), state.guessed.copy(), state.home == step.cluster
    shown, inside = state.shown.copy(), left.copy()
    for part in line["parts"]:
        names[_new(names, part["id"])] = _text(part["name"])
        rows = _rows(state, part["rows"])
        rows = rows[inside[rows]]  # a file that was replaced since may lie elsewhere now
        home[rows], left[rows] = int(part["id"]), False
        if line.get("how") == "selection" and part["id"] != step.rest:
            shown[rows] = True
    if left.any():  # rows that came after the split
        rows = np.flatnonzero(left)
        seen = later.features(rows) if later and step.centres is not None else None
        home[rows] = nearest_part(step, seen)
        guessed[rows] = seen is None
    sample, before = (  # what was right is so still
        np.where(inside & (where == step.cluster), home, where) for where in (state.sample, state.before)
    )
    refused = dict(state.refused)
    if (apart := refused.pop(step.cluster, None)) is not None:
        refused |= dict.fromkeys(step.parts.tolist(), apart)
    names = dict(sorted(names.items()))
    return replace(
        state, home=home, guessed=guessed, shown=shown, sample=sample, before=before, names=names, refused=refused,
        joined=(*state.joined, step),
    )  # fmt: skip


def _read_split(cluster: int, line: Line) -> Split:
    parts = np.array([int(part["id"]) for part in line["parts"]], np.int64)
    rest = int(line["rest"])
    if rest not in parts or len(set(parts.tolist())) != len(parts):
        raise ValueError("the parts do not fit together")
    given = [part["centre"] for part in line["parts"]]
    if any(centre is None for centre in given):
        return Split(cluster, parts, rest, None)
    return Split(cluster, parts, rest, np.array(given, np.float32).reshape(len(given), -1))


def _move(state: State, line: Line, later: Later | None) -> State:
    names, to = dict(state.names), int(line["to"])
    if line.get("name") is not None:  # a new cluster
        names[_new(names, to)] = _text(line["name"])
    elif to not in names:
        raise ValueError(f"there is no cluster {to}")
    rows = _rows(state, line["rows"])
    return _put(replace(state, names=names), rows, np.full(len(rows), to), by_hand=True)


def _junk(state: State, line: Line, later: Later | None) -> State:
    rows = _rows(state, line["rows"])
    return _put(state, rows, np.full(len(rows), JUNK), by_hand=True)


def _unjunk(state: State, line: Line, later: Later | None) -> State:
    junk, shown, rows = state.junk.copy(), state.shown.copy(), _rows(state, line["rows"])
    shown[rows[junk[rows]]] = False
    junk[rows] = False
    return replace(state, junk=junk, shown=shown)


def _confirm(state: State, line: Line, later: Later | None) -> State:
    rows = _rows(state, line["rows"])
    return _put(state, rows, state.clusters[rows], by_hand=True)


def _answer(state: State, line: Line, later: Later | None) -> State:
    names = dict(state.names)
    for one in line.get("names") or []:
        cluster = one["cluster"]
        names[_new(names, cluster) if one["new"] else _living(state, cluster)] = _text(one["name"])
    rows, to = _pairs(state, line, names)
    if line.get("sample") or line.get("samples"):
        random = rows if line.get("sample") else rows[np.isin(rows, line["samples"])]
        asked, sample = random[~state.shown[random]], state.sample.copy()
        sample[asked] = state.clusters[asked]
        state = replace(state, sample=sample)
    return _put(replace(state, names=names), rows, to, by_hand=True)


def _accept(state: State, line: Line, later: Later | None) -> State:
    rows, to = _pairs(state, line, state.names)
    free = ~state.shown[rows]  # examples are locked
    state = _put(state, rows[free], to[free], by_hand=False)
    state = replace(state, joined=(*state.joined, Learned(line["edit"])))
    new = np.arange(len(state.home))[max(line["inputs"], 0) :]  # rows that came after the lesson
    new = new[(state.home[new] != UNREADABLE) & ~state.shown[new]]
    if not len(new):
        return state
    found = later.taught(line["edit"], new) if later else None
    clusters = np.full(len(new), UNREADABLE) if found is None else found
    unknown = ~np.isin(clusters, list(state.names))
    state = _put(state, new[~unknown], clusters[~unknown], by_hand=False)
    guessed = state.guessed.copy()
    guessed[new[unknown]] = True
    return replace(state, guessed=guessed)


def _refuse(state: State, line: Line, later: Later | None) -> State:
    rows, refused = _rows(state, line["rows"]), dict(state.refused)
    for cluster in line["to"]:
        known = refused.get(cluster if cluster == JUNK else _living(state, cluster), rows)
        refused[cluster] = np.union1d(known, rows)
    return replace(state, refused=refused)


def _put(state: State, rows: np.ndarray, to: np.ndarray, by_hand: bool) -> State:
    """Put rows (m,) into clusters (m,); junk stays in its cluster besides. What a person does makes examples."""
    home, junk, guessed = state.home.copy(), state.junk.copy(), state.guessed.copy()
    home[rows] = np.where(to == JUNK, home[rows], to)
    junk[rows], guessed[rows] = to == JUNK, guessed[rows] & (to == JUNK)
    if not by_hand:
        return replace(state, home=home, junk=junk, guessed=guessed)
    moved, shown, refused = state.moved.copy(), state.shown.copy(), dict(state.refused)
    before, new = state.before.copy(), rows[~shown[rows]]
    before[new] = state.clusters[new]
    moved[rows[to != JUNK]], shown[rows] = True, True
    for cluster in refused.keys() & set(to.tolist()):
        refused[cluster] = np.setdiff1d(refused[cluster], rows[to == cluster])
    return replace(
        state, home=home, junk=junk, guessed=guessed, moved=moved, shown=shown, before=before, refused=refused
    )


def _pairs(state: State, line: Line, names: Mapping[int, str]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that can be read, and the cluster of each."""
    given, to = np.array(line["rows"], dtype=np.int64), np.array(line["to"], dtype=np.int64)
    if len(given) != len(to):
        raise ValueError(f"it names {len(given)} images and {len(to)} clusters")
    if odd := set(to.tolist()) - {JUNK, *names}:
        raise ValueError(f"there is no cluster {min(odd)}")
    rows = _rows(state, given)
    return rows, to[state.home[given] != UNREADABLE]


def _living(state: State, cluster: Any) -> int:
    if type(cluster) is not int or cluster not in state.names:
        raise ValueError(f"there is no cluster {cluster}")
    return cluster


def _new(names: Mapping[int, str], cluster: Any) -> int:
    if type(cluster) is not int or cluster < 0 or cluster in names:
        raise ValueError(f"{cluster} cannot be a new cluster")
    return cluster


def _rows(state: State, given: Any) -> np.ndarray:
    """Those that can be read: a file may have become unreadable since."""
    rows = np.array(given, dtype=np.int64).reshape(-1)
    if len(rows) and (rows.min() < 0 or rows.max() >= len(state.home)):
        raise ValueError("it names images that the run does not have")
    return np.asarray(rows[state.home[rows] != UNREADABLE])


def _text(name: Any) -> str:
    if isinstance(name, str):
        name = name.replace("\0", "\ufffd")  # older versions accepted zero characters
    if complaint := name_complaint(name):
        raise ValueError(complaint)
    return str(name)


# what each kind of line holds, and what it does
KINDS: dict[str, tuple[type, Callable[[State, Line, Later | None], State]]] = {
    "rename": (_RenameLine, _rename),
    "merge": (_MergeLine, _merge),
    "split": (_SplitLine, _split),
    "move": (_MoveLine, _move),
    "junk": (_RowsLine, _junk),
    "unjunk": (_RowsLine, _unjunk),
    "confirm": (_RowsLine, _confirm),
    "answer": (_AnswerLine, _answer),
    "accept": (_AcceptLine, _accept),
    "refuse": (_RefuseLine, _refuse),
}
