"""The kinds of edits: which fields the line of each kind has in edits.jsonl, and how it changes a `State`.

Nothing is drawn or trained here, so that the same lines always give the same state. A line names images by their rows
in assignments.csv; a split and a cut have the centres, and an `accept` the taught model, that decide about images added
later. A cut says what it does to the clusters, so that replaying it needs no tree.
Shapes: n rows of the run, m other images, P parts, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from twincluster.core import InputError, counted
from twincluster.runs.edit_state import JUNK, UNREADABLE, Learned, Merge, Split, State, nearest_part

Line = dict[str, Any]
LONGEST_NAME = 200  # characters
DAMAGE = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    OverflowError,
    AttributeError,
)  # errors that damaged lines can raise


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
    new: bool  # whether the edit creates the cluster


@dataclass(frozen=True)
class _AnswerLine:
    rows: list[int]
    to: list[int]  # of each row; JUNK too
    names: list[_Named] | None = None
    sample: bool = False  # answers to random questions, which count for the estimate
    samples: list[int] | None = None  # rows whose answers count, if not all do


@dataclass(frozen=True)
class _AcceptLine:
    rows: list[int]
    to: list[int]  # of each row; JUNK too
    inputs: int  # rows of the run at that time: the taught model decides about later ones


@dataclass(frozen=True)
class _RefuseLine:
    rows: list[int]
    to: list[int]  # clusters that none of the rows belongs to


@dataclass(frozen=True)
class _Group:
    id: int
    name: str
    node: int  # of the tree


@dataclass(frozen=True)
class _Share:
    id: int  # of the group
    rows: list[int]
    centres: list[list[float]]


@dataclass(frozen=True)
class _Ended:
    cluster: int
    rest: int
    parts: list[_Share]  # one of them takes all rows, which it need not name


@dataclass(frozen=True)
class _CutLine:
    tree: str  # its key
    count: int  # clusters after the cut
    groups: list[_Group]
    ended: list[_Ended]


@dataclass(frozen=True)
class Later:
    """Callbacks for rows added to a run after an edit. They return None if the images are gone."""

    features: Callable[[np.ndarray], np.ndarray | None]  # rows (m,) to their embedding
    taught: Callable[[int, np.ndarray], np.ndarray | None]  # number of an `accept` and rows (m,) to their clusters


def applied(state: State, line: Line, later: Later | None = None) -> State:
    """Return the state after one more edit."""
    if line["kind"] not in KINDS:
        raise InputError(
            f"edit {line['edit']} in edits.jsonl is of a kind that this version does not know: {line['kind'][:40]!r}; "
            "a newer version of twincluster made it: install that one"
        )
    try:
        return KINDS[line["kind"]].apply(state, line, later)
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(
            f"edit {line['edit']} in edits.jsonl cannot be applied ({type(error).__name__}: {str(error)[:80]}): the "
            "file is damaged; put back a copy, or delete it from there on"
        ) from error


def _rename(state: State, line: Line, later: Later | None) -> State:
    return replace(state, names={**state.names, _living(state, line["cluster"]): _text(line["name"])})


def _merge(state: State, line: Line, later: Later | None) -> State:
    into, ended = _living(state, line["into"]), [_living(state, cluster) for cluster in line["clusters"]]
    if into in ended:
        raise ValueError("a cluster cannot end in itself")
    names = {cluster: name for cluster, name in state.names.items() if cluster not in ended}
    names[into] = _text(line.get("name") or names[into])
    return replace(_ended_in(state, into, ended), names=names, by_hand=state.by_hand - {*ended} | {into})


def _ended_in(state: State, into: int, ended: Sequence[int]) -> State:
    """End clusters in another one. The names stay to be settled."""
    everywhere = (state.home, state.sample, state.before)
    home, sample, before = (np.where(np.isin(where, ended), into, where) for where in everywhere)
    refused = {cluster: rows for cluster, rows in state.refused.items() if cluster not in ended}
    if apart := [state.refused[cluster] for cluster in (into, *ended) if cluster in state.refused]:
        refused[into] = np.unique(np.concatenate(apart))
    past = {name: into if cluster in ended else cluster for name, cluster in state.ended.items()}
    past |= {state.names[cluster]: into for cluster in ended}
    joined = (*state.joined, Merge(into, np.array(ended, np.int64)))
    return replace(state, home=home, sample=sample, before=before, refused=refused, ended=past, joined=joined)


def _split(state: State, line: Line, later: Later | None) -> State:
    step, is_selection = _read_split(_living(state, line["cluster"]), line), line.get("how") == "selection"
    names = {cluster: name for cluster, name in state.names.items() if cluster != step.cluster}
    for part in line["parts"]:
        names[_new(names, part["id"])] = _text(part["name"])
    rows = [(int(part["id"]), part["rows"]) for part in line["parts"]]
    chosen = {part for part, _ in rows if is_selection and part != step.rest}
    made = chosen if is_selection and step.cluster not in state.by_hand else {part for part, _ in rows}
    return replace(
        _divided(state, step, rows, later, chosen), names=dict(sorted(names.items())),
        by_hand=state.by_hand - {step.cluster} | made,
    )  # fmt: skip


def _divided(
    state: State, step: Split, parts: Sequence[tuple[int, Any]], later: Later | None, examples: Collection[int] = ()
) -> State:
    """Divide a cluster into parts with their rows. The names stay to be settled."""
    home, guessed, left = state.home.copy(), state.guessed.copy(), state.home == step.cluster
    shown, inside = state.shown.copy(), left.copy()
    for part, given in parts:
        rows = _rows(state, given)
        rows = rows[inside[rows]]  # a file replaced since may be in another cluster
        home[rows], left[rows] = part, False
        if part in examples:
            shown[rows] = True
    if left.any():  # rows that came after the split
        rows = np.flatnonzero(left)
        seen = later.features(rows) if later and step.centres is not None else None
        home[rows] = nearest_part(step, seen)
        guessed[rows] = seen is None
    sample, before = (  # what was right before is still right
        np.where(inside & (where == step.cluster), home, where) for where in (state.sample, state.before)
    )
    refused = dict(state.refused)
    if (apart := refused.pop(step.cluster, None)) is not None:
        refused |= dict.fromkeys(step.parts.tolist(), apart)
    return replace(
        state, home=home, guessed=guessed, shown=shown, sample=sample, before=before, refused=refused,
        joined=(*state.joined, step),
    )  # fmt: skip


def _cut(state: State, line: Line, later: Later | None) -> State:
    ended = {_living(state, one["cluster"]): state.names[one["cluster"]] for one in line["ended"]}
    if odd := [cluster for cluster in ended if cluster in state.by_hand]:
        raise ValueError(f"cluster {odd[0]} was made by hand")
    names = {cluster: name for cluster, name in state.names.items() if cluster not in ended}
    for group in line["groups"]:
        names[_new(names, group["id"])] = _text(group["name"])
    for one in line["ended"]:
        cluster, parts = one["cluster"], [(part["id"], part["rows"]) for part in one["parts"]]
        if {part for part, _ in parts} - {group["id"] for group in line["groups"]}:
            raise ValueError("a part is in no group")
        if len(parts) == 1:
            state = _ended_in(state, parts[0][0], [cluster])
        else:
            state = _divided(state, _read_share(cluster, one), parts, later)
    closed = {cluster: name for cluster, name in {**state.closed, **ended}.items() if cluster not in names}
    return replace(state, names=dict(sorted(names.items())), closed=closed)


def _read_share(cluster: int, one: Line) -> Split:
    """Read how a cut divides a cluster. A part may have several centres."""
    ids = np.array([part["id"] for part in one["parts"] for _ in part["centres"]], np.int64)
    if one["rest"] not in ids or len({part["id"] for part in one["parts"]}) != len(one["parts"]):
        raise ValueError("the parts do not fit together")
    centres = [centre for part in one["parts"] for centre in part["centres"]]
    return Split(cluster, ids, one["rest"], np.array(centres, np.float32).reshape(len(ids), -1))


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
    rows, made = _rows(state, line["rows"]), state.by_hand | ({to} - state.names.keys())
    return _put(replace(state, names=names, by_hand=made), rows, np.full(len(rows), to), by_hand=True)


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
    made = state.by_hand | {one["cluster"] for one in line.get("names") or []}
    return _put(replace(state, names=names, by_hand=made), rows, to, by_hand=True)


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
    """Put rows (m,) into clusters (m,); junk stays in its cluster besides. Edits `by_hand` make examples."""
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
    """Return the readable rows of a line, and the cluster of each."""
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
    """Return the readable rows of a line: a file may have become unreadable since."""
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


def name_complaint(name: Any) -> str:
    """Return what is wrong with the name of a cluster, or "". Any text is valid, also markup and line breaks."""
    if not isinstance(name, str) or not name.strip():
        return "a cluster needs a name of at least one letter"
    if len(name) > LONGEST_NAME:
        return f"a name has at most {LONGEST_NAME} characters, this one has {len(name):,}: shorten it"
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        return "the name holds half a character (a lone surrogate), which no file can keep: type it again"
    if "\0" in name:
        return "the name holds a zero character, which no table can keep: type it again"
    return ""


def next_id(lines: Sequence[Line], n_clusters: int) -> int:
    """Return an id that no cluster has ever had, not even one of an edit that was undone."""
    used = [n_clusters - 1]
    for line in lines:
        used += _kind(line).new_ids(line)
    return max(used) + 1


def describe(line: Line, state: State) -> str:
    """Describe an edit in a few words."""

    def name(cluster: int) -> str:
        called = state.names.get(cluster, "")
        return called if called not in ("", str(cluster)) else f"cluster {cluster}"

    return _kind(line).text(line, name)


def without_rows(lines: Sequence[Line]) -> list[Line]:
    """Return lines that decide about other images as these do, and name no row of the run."""
    return [line | _kind(line).rowless(line) for line in lines if not _kind(line).of_rows]


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
        kept["parts"] = _parts_of_first(line["parts"], count)
    elif line["kind"] == "cut":
        kept["ended"] = [one | {"parts": _parts_of_first(one["parts"], count)} for one in line["ended"]]
    elif line["kind"] == "accept":
        kept["inputs"] = min(line["inputs"], count)
    return kept


def _parts_of_first(parts: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return [part | {"rows": [row for row in part["rows"] if row < count]} for part in parts]


def is_by_hand(line: Line) -> bool:
    """Return True for an edit in which a person says where rows belong."""
    return _kind(line).by_hand


def _kind(line: Line) -> Kind:
    return KINDS.get(line["kind"], OTHER)


def _images(line: Line) -> str:
    return counted(len(line["rows"]), "image")


def _empty_lists(line: Line) -> Line:
    return {name: [] for name in ("rows", "to") if isinstance(line.get(name), list)}


def _empty_parts(line: Line) -> Line:
    return {"parts": [part | {"rows": []} for part in line["parts"]]}


@dataclass(frozen=True)
class Kind:
    """A kind of edit."""

    line: type  # the fields of its line
    apply: Callable[[State, Line, Later | None], State]
    text: Callable[[Line, Callable[[int], str]], str]  # describes a line, given a function that names clusters
    new_ids: Callable[[Line], Iterable[int]] = lambda line: ()  # of clusters that a line creates
    rowless: Callable[[Line], Line] = _empty_lists  # the fields that name rows, without them
    of_rows: bool = False  # whether it decides about the rows in its line only
    by_hand: bool = False  # whether a person says with it where rows belong


KINDS = {
    "rename": Kind(_RenameLine, _rename, lambda line, name: f"rename cluster {line['cluster']} to {line['name']}"),
    "merge": Kind(
        _MergeLine, _merge, lambda line, name: f"merge {len(line['clusters']) + 1} clusters into {name(line['into'])}"
    ),
    "split": Kind(
        _SplitLine,
        _split,
        lambda line, name: f"split cluster {line['cluster']} into {len(line['parts'])}",
        new_ids=lambda line: (int(part["id"]) for part in line["parts"]),
        rowless=_empty_parts,
    ),
    "cut": Kind(
        _CutLine,
        _cut,
        lambda line, name: f"cut the tree to {line['count']:,} clusters",
        new_ids=lambda line: (group["id"] for group in line["groups"]),
        rowless=lambda line: {"ended": [one | _empty_parts(one) for one in line["ended"]]},
    ),
    "move": Kind(
        _MoveLine,
        _move,
        lambda line, name: f"move {_images(line)} to {name(line['to'])}",
        new_ids=lambda line: (int(line["to"]),),
        by_hand=True,
    ),
    "junk": Kind(_RowsLine, _junk, lambda line, name: f"mark {_images(line)} as junk", of_rows=True, by_hand=True),
    "unjunk": Kind(
        _RowsLine, _unjunk, lambda line, name: f"take {_images(line)} out of the junk", of_rows=True, by_hand=True
    ),
    "confirm": Kind(_RowsLine, _confirm, lambda line, name: f"confirm {_images(line)}", of_rows=True, by_hand=True),
    "answer": Kind(
        _AnswerLine,
        _answer,
        lambda line, name: f"answer about {_images(line)}",
        new_ids=lambda line: (one["cluster"] for one in line.get("names") or []),
        by_hand=True,
    ),
    "accept": Kind(_AcceptLine, _accept, lambda line, name: f"accept that {_images(line)} move"),
    "refuse": Kind(
        _RefuseLine,
        _refuse,
        lambda line, name: f"keep {_images(line)} out of {', '.join(map(name, line['to']))}",
        of_rows=True,
    ),
}
OTHER = Kind(dict, lambda state, line, later: state, lambda line, name: line["kind"])  # start, undo and redo
