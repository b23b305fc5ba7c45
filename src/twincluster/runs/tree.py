"""tree.safetensors, the tree of a run's clusters, and how a cut of it becomes an edit.

The file is derived from the features of the run and can be made again. `Living` is the part of the tree that edits have
left to it: clusters that a person made stand outside, and a cut neither splits nor joins them. Shapes: n rows of the
run, L leaves, D features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from twincluster.core import SEAL, InputError, check_seal, seal, unfinished
from twincluster.runs.edit_history import digest_of_model
from twincluster.runs.edit_kinds import Line, next_id
from twincluster.runs.edit_state import UNREADABLE, State, unit

if TYPE_CHECKING:
    from twincluster.clustering import Tree
    from twincluster.runs.folder import Run

TREE_FILE = "tree.safetensors"
DECIMALS = 5  # of a centre's numbers
CENTRES = 4  # most of a part: they decide about other images


def write_tree(run: Run, tree: Tree) -> None:
    from safetensors.numpy import save

    with unfinished(run.folder / TREE_FILE) as partial:
        partial.write_bytes(save(tree.tensors(), {**SEAL, "model": digest_of_model(run)}))
        seal(partial)


def read_tree(run: Run) -> tuple[Tree | None, str]:
    """Return the tree of a run; None, and why, if the file is missing, damaged or of another model."""
    from safetensors import SafetensorError, safe_open

    from twincluster.clustering import Tree

    path = run.folder / TREE_FILE
    if not path.is_file():
        return None, "there was none"
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError, SafetensorError):
        check_seal(path)
        with safe_open(path, framework="numpy") as file:
            if (file.metadata() or {}).get("model") != digest_of_model(run):
                return None, "the old one was of another model"
            return Tree.from_tensors({name: file.get_tensor(name) for name in file.keys()}), ""  # noqa: SIM118
    return None, "the old one was damaged"


def key_of_tree(tree: Tree) -> str:
    """Return a digest: numbers of nodes mean the same in trees with the same key."""
    return hashlib.sha256(tree.leaf.tobytes() + tree.joins.tobytes()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Living:
    """The tree as edits have left it."""

    tree: Tree
    leaf: np.ndarray  # (n,) the leaf that a row counts with; -1 outside the tree
    clusters: tuple[int, ...]  # in the tree
    leaves: tuple[np.ndarray, ...]  # (L,) bool: of each of them
    kept: tuple[int, ...]  # clusters outside the tree: made by a person, or empty

    @classmethod
    def of(cls, tree: Tree, state: State) -> Living:
        """Find the leaves of each cluster: those with more of their rows in it than in any other."""
        leaf = np.full(len(state.home), -1)
        count = min(len(leaf), len(tree.leaf))
        leaf[:count] = tree.leaf[:count]
        clusters = np.array([cluster for cluster in state.names if cluster not in state.by_hand], np.int64)
        place = np.full(max([*state.names, 0]) + 1, -1)
        place[clusters] = np.arange(len(clusters))
        at = np.where(state.home >= 0, place[np.maximum(state.home, 0)], -1)
        inside = (at >= 0) & (leaf >= 0)
        table = np.zeros((len(clusters), tree.n_leaves), np.int64)
        np.add.at(table, (at[inside], leaf[inside]), 1)
        owner = np.where(table.any(0), table.argmax(0), -1) if len(clusters) else np.full(tree.n_leaves, -1)
        owned = owner == np.arange(len(clusters))[:, None]
        there = owned.any(1)
        inside[inside] = there[at[inside]]
        leaf[~inside] = -1
        near = unit(tree.centres) @ unit(tree.centres).T
        for row in np.flatnonzero((leaf >= 0) & (owner[leaf] != at)):  # came by hand, or by a lesson
            leaf[row] = np.where(owned[at[row]], near[leaf[row]], -np.inf).argmax()
        kept = sorted({*state.names} - {*clusters[there].tolist()})
        return cls(tree, leaf, tuple(clusters[there].tolist()), tuple(owned[there]), tuple(kept))

    @property
    def alive(self) -> np.ndarray:
        """(L,) bool: leaves of clusters in the tree."""
        return np.any(self.leaves, axis=0) if self.leaves else np.zeros(self.tree.n_leaves, dtype=bool)

    @property
    def most(self) -> int:
        """The number of clusters with all branches open."""
        return len(self.kept) + int(self.alive.sum())

    @property
    def fewest(self) -> int:
        return len(self.kept) + bool(self.leaves)

    def node(self, leaves: np.ndarray) -> int:
        """Return the node of a group of leaves."""
        return self.tree.lowest(self.tree.above(leaves), leaves)

    def level(self, count: int) -> list[np.ndarray]:
        """Return the leaves of each group, so that there are `count` clusters."""
        if not self.leaves:
            raise InputError("all clusters were made by hand, and a cut keeps them: undo some of these edits first")
        if not self.fewest <= count <= self.most:
            kept = f" (with the {len(self.kept)} that were made by hand or are empty)" if self.kept else ""
            raise InputError(f"the tree has {self.fewest} to {self.most:,} clusters{kept}, not {count:,}")
        alive = self.alive
        return [self.tree.members[node] & alive for node in self.tree.cut(count - len(self.kept), alive)]

    def chosen(self, groups: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the leaves of groups given by their numbers, which must be branches and leave out none."""
        numbers = [leaf for group in groups for leaf in group]
        if sorted(numbers) != np.flatnonzero(self.alive).tolist() or not all(groups):
            raise InputError("the groups do not fit the tree any more: look again")
        found = [np.isin(np.arange(self.tree.n_leaves), group) for group in groups]
        for leaves in found:
            is_branch = np.array_equal(self.tree.members[self.node(leaves)] & self.alive, leaves)
            if not is_branch and not any(np.array_equal(leaves, mine) for mine in self.leaves):
                raise InputError("a group is no branch of the tree: merge clusters instead")
        return found

    def opened(self, groups: Sequence[np.ndarray], cluster: int) -> list[np.ndarray]:
        """Return the groups with the branch of a cluster divided in two."""
        at = self._group(groups, cluster)
        inside = self.tree.children(self.node(groups[at]), groups[at])
        if len(inside) < 2:
            raise InputError(f"cluster {cluster} is a single fine cluster: it cannot be opened; split it instead")
        parts = [self.tree.members[node] & groups[at] for node in inside]
        return [*groups[:at], *parts, *groups[at + 1 :]]

    def shut(self, groups: Sequence[np.ndarray], cluster: int) -> list[np.ndarray]:
        """Return the groups with those of one branch joined: the smallest branch that holds more than a cluster."""
        at, alive = self._group(groups, cluster), self.alive
        above = self.tree.parent(self.node(groups[at]), alive)
        if above < 0:
            raise InputError(f"cluster {cluster} is the whole tree: it cannot be closed")
        inside = [bool((group & self.tree.members[above]).any()) for group in groups]
        joined = np.any([group for group, is_in in zip(groups, inside, strict=True) if is_in], axis=0)
        return [joined, *(group for group, is_in in zip(groups, inside, strict=True) if not is_in)]

    def _group(self, groups: Sequence[np.ndarray], cluster: int) -> int:
        if cluster not in self.clusters:
            why = "is empty or was made by hand, and a cut keeps it" if cluster in self.kept else "does not exist"
            raise InputError(f"cluster {cluster} {why}")
        mine = self.leaves[self.clusters.index(cluster)]
        return max(range(len(groups)), key=lambda at: int((groups[at] & mine).sum()))


@dataclass(frozen=True, eq=False)
class Level:
    """A level of the tree, as every row sees it."""

    count: int  # clusters
    keys: np.ndarray  # (n,) int64: a cluster that the level shows as it is, BRANCH - node for others, -1 for no cluster
    names: dict[int, str]  # by key


BRANCH = -10


def levels_of(tree: Tree, state: State, counts: Iterable[int]) -> list[Level]:
    """Return levels of the tree, the coarsest first. Clusters outside the tree are on each level as they are."""
    living, levels = Living.of(tree, state), []
    for count in sorted(set(counts)):
        keys, names = np.where(state.clusters >= 0, state.clusters, -1), dict(state.names)
        for leaves in living.level(count):
            same = [
                one for one, mine in zip(living.clusters, living.leaves, strict=True) if np.array_equal(mine, leaves)
            ]
            whole = [
                one for one, mine in zip(living.clusters, living.leaves, strict=True) if not (mine & ~leaves).any()
            ]
            key = same[0] if same else BRANCH - living.node(leaves)
            names.setdefault(key, f"branch {BRANCH - key}")
            inside = ((living.leaf >= 0) & leaves[living.leaf]) | np.isin(state.home, whole)
            keys[inside & (state.clusters >= 0)] = key
        levels.append(Level(count, keys, names))
    return levels


def groups_of(living: Living, count: int | None, opened: Iterable[int], closed: Iterable[int]) -> list[np.ndarray]:
    """Return the leaves of each group of a cut: a level, or the clusters there are, with some branches changed."""
    groups = list(living.leaves) if count is None else living.level(count)
    for cluster in opened:
        groups = living.opened(groups, cluster)
    for cluster in closed:
        groups = living.shut(groups, cluster)
    return groups


def cut_line(
    living: Living,
    groups: Sequence[np.ndarray],
    state: State,
    lines: Sequence[Line],
    model_clusters: np.ndarray,
    n_clusters: int,
    embed: Callable[[np.ndarray], np.ndarray | None],
) -> Line:
    """Return the edit that puts the rows of the tree into groups of leaves (L,) bool.

    Clusters that equal a group stay. A group that was a cluster before gets its id and name again. `embed` gives
    features of rows that have no leaf, if they can be read.
    """
    same = {
        at: cluster
        for at, group in enumerate(groups)
        for cluster, leaves in zip(living.clusters, living.leaves, strict=True)
        if np.array_equal(group, leaves)
    }
    ends = [at for at, cluster in enumerate(living.clusters) if cluster not in same.values()]
    if not ends:
        raise InputError("the run has these clusters already: nothing would change")
    named = _identities(living, groups, same, state, lines, model_clusters, n_clusters)
    ended = []
    for at in ends:
        cluster, mine = living.clusters[at], living.leaves[at]
        inside = [number for number in named if (groups[number] & mine).any()]
        parts = [_share(living, groups[number] & mine, named[number]["id"]) for number in inside]
        if len(inside) == 1:
            ended.append({"cluster": cluster, "rest": parts[0]["id"], "parts": parts})
            continue
        rows = np.flatnonzero(state.home == cluster)
        leaf = _with_later(living, living.leaf[rows], rows, mine, embed)
        for part, number in zip(parts, inside, strict=True):
            part["rows"] = rows[(leaf >= 0) & groups[number][leaf]].tolist()
        rest = max(parts, key=lambda part: len(part["rows"]))["id"]
        ended.append({"cluster": cluster, "rest": rest, "parts": parts})
    count = len(living.kept) + len(groups)
    return {
        "kind": "cut", "tree": key_of_tree(living.tree), "count": count, "groups": [*named.values()], "ended": ended,
    }  # fmt: skip


def _identities(
    living: Living, groups: Sequence[np.ndarray], same: dict[int, int], state: State, lines: Sequence[Line],
    model_clusters: np.ndarray, n_clusters: int,
) -> dict[int, dict[str, Any]]:  # fmt: skip
    """Return id, name and node of each group that is no cluster yet."""
    known = _past_ids(living.tree, lines, model_clusters)
    free, taken = next_id(lines, n_clusters), {*state.names}
    names = {*(state.names[cluster] for cluster in (*living.kept, *same.values()))}
    named: dict[int, dict[str, Any]] = {}
    for at, group in enumerate(groups):
        if at in same:
            continue
        node = living.node(group)
        number = known.get(node, -1)
        if number < 0 or number in taken:
            number, free = free, free + 1
        taken.add(number)
        past = state.closed.get(number, str(number))
        name = _unused(past if past != str(number) else _name_of(living, group, number, state), names)
        names.add(name)
        named[at] = {"id": number, "name": name, "node": node}
    return named


def _name_of(living: Living, group: np.ndarray, number: int, state: State) -> str:
    """A new part of a cluster with a name is called after it; other groups by their number."""
    for cluster, leaves in zip(living.clusters, living.leaves, strict=True):
        if (group & leaves).any() and not (group & ~leaves).any() and state.names[cluster] != str(cluster):
            return f"{state.names[cluster][:180]} {number}"
    return str(number)


def _unused(name: str, names: set[str]) -> str:
    return next(text for text in _numbered(name) if text not in names)


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name[:190]} ({number})"
        number += 1


def _past_ids(tree: Tree, lines: Sequence[Line], model_clusters: np.ndarray) -> dict[int, int]:
    """Return the id that each node has had: as a cluster of the model, or in an earlier cut, even an undone one."""
    leaf, known = tree.leaf[: len(model_clusters)], {}
    for cluster in np.unique(model_clusters[model_clusters != UNREADABLE]).tolist():
        inside = np.isin(np.arange(tree.n_leaves), leaf[(model_clusters[: len(leaf)] == cluster) & (leaf >= 0)])
        if inside.any():
            known[tree.lowest(tree.above(inside), np.ones(tree.n_leaves, dtype=bool))] = cluster
    key = key_of_tree(tree)
    for line in lines:
        if line["kind"] == "cut" and line["tree"] == key:
            known |= {group["node"]: group["id"] for group in line["groups"]}
    return known


def _share(living: Living, leaves: np.ndarray, number: int) -> dict[str, Any]:
    """Return a part of a cluster, with the centres of its largest branches."""
    tree, centres = living.tree, []
    for node in tree.cut(CENTRES, leaves):
        inside = np.flatnonzero(tree.members[node] & leaves)
        middle = unit((tree.centres[inside] * tree.sizes[inside, None]).sum(0, keepdims=True))[0]
        centres.append([round(float(value), DECIMALS) for value in middle])
    return {"id": number, "rows": [], "centres": centres}


def _with_later(
    living: Living, leaf: np.ndarray, rows: np.ndarray, mine: np.ndarray, embed: Callable[[np.ndarray], Any]
) -> np.ndarray:
    """Return the leaf of each row; rows without one get the nearest by their features, where these can be had."""
    unknown = leaf < 0
    if not unknown.any() or (features := embed(rows[unknown])) is None:
        return leaf
    found, inside = leaf.copy(), np.flatnonzero(mine)
    found[unknown] = inside[(unit(features) @ unit(living.tree.centres[inside]).T).argmax(1)]
    return found
