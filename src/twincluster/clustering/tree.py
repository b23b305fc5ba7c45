"""A tree of clusters: fine clusters, joined step by step until one is left.

The clusters of a run are one level of its tree: fine clusters lie within them, and Ward's criterion joins the fine ones
of each cluster first, then the clusters. So every other number of clusters refines or joins what a person has seen, and
costs a lookup. Two halves of the rows, clustered without each other, tell how far a level or a branch can be trusted.

Nodes are numbered: the fine clusters ("leaves") first, then the joins in their order; the last node is the root.
Shapes: n rows, L leaves, K clusters, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

MOST_LEAVES = 256  # unless there are more clusters
ROWS_PER_LEAF = 5  # least mean, so that little data gets few leaves
DIRECTIONS = 128  # principal components that leaves and joins look at
SAMPLE = 5_000  # rows whose halves are compared, and of a cluster that is divided
MOST_OF_LEAF = 200  # rows of a leaf on average, of which k-means takes the centres
SPLITS = 3  # into halves
MOST_COMPARED = 50  # levels at which halves are compared
ROUNDS = 8  # of k-means, from the level of a half's own tree
NEAR = 2  # levels on either side that a natural cut is compared with
STANDS_OUT = 0.03  # least difference of a natural cut's agreement from the lowest of these
CHUNK = 65_536  # rows of a large source that are put on leaves at once
MOST_NATURAL = 6  # that agree best
EQUAL = 0.06  # difference of agreements within noise


@dataclass(frozen=True, eq=False)
class Tree:
    """Fine clusters and their joins."""

    leaf: np.ndarray  # (n,) int32, -1 for rows without features
    joins: np.ndarray  # (L-1,2) int32: the nodes that each step joins
    height: np.ndarray  # (L-1,) float32: what a join adds to the squared distances to centres
    stability: np.ndarray  # (2L-1,) float32: Jaccard index of a node with the best node of a half's tree
    centres: np.ndarray  # (L,D) float32: means of the unit features
    agreement: np.ndarray  # float32: adjusted Rand index of two halves at level 2, 3, ...

    @property
    def n_leaves(self) -> int:
        return len(self.joins) + 1

    @cached_property
    def members(self) -> np.ndarray:
        """(2L-1,L) bool: the leaves under each node."""
        members = np.zeros((2 * self.n_leaves - 1, self.n_leaves), dtype=bool)
        members[np.arange(self.n_leaves), np.arange(self.n_leaves)] = True
        for place, (one, two) in enumerate(self.joins, start=self.n_leaves):
            members[place] = members[one] | members[two]
        return members

    @cached_property
    def parents(self) -> np.ndarray:
        """(2L-1,) the node that each node is joined into; -1 for the root."""
        parents = np.full(2 * self.n_leaves - 1, -1)
        for place, pair in enumerate(self.joins, start=self.n_leaves):
            parents[pair] = place
        return parents

    @cached_property
    def sizes(self) -> np.ndarray:
        """(L,) rows of each leaf."""
        return np.bincount(self.leaf[self.leaf >= 0], minlength=self.n_leaves)

    def cut(self, count: int, alive: np.ndarray | None = None) -> list[int]:
        """Return the nodes of a level with `count` clusters. Leaves that are not `alive` (L,) do not count."""
        alive = np.ones(self.n_leaves, dtype=bool) if alive is None else alive
        level = [self.lowest(2 * self.n_leaves - 2, alive)] if alive.any() else []
        for place in range(2 * self.n_leaves - 2, self.n_leaves - 1, -1):
            if len(level) >= count:
                break
            if place in level:
                level.remove(place)
                level += self.children(place, alive)
        return level

    def children(self, node: int, alive: np.ndarray) -> list[int]:
        """Return the nodes that an open node shows; none for a leaf."""
        if node < self.n_leaves:
            return []
        return [self.lowest(int(child), alive) for child in self.joins[node - self.n_leaves] if self.has(child, alive)]

    def lowest(self, node: int, alive: np.ndarray) -> int:
        """Return the lowest node that has the same living leaves."""
        while node >= self.n_leaves:
            inside = [int(child) for child in self.joins[node - self.n_leaves] if self.has(child, alive)]
            if len(inside) != 1:
                break
            node = inside[0]
        return node

    def has(self, node: int, alive: np.ndarray) -> bool:
        return bool((self.members[node] & alive).any())

    def above(self, leaves: np.ndarray) -> int:
        """Return the lowest node with all of some leaves (L,) bool."""
        inside = (self.members | ~leaves).all(1)
        return int(np.flatnonzero(inside)[0])  # a node comes before those that it is joined into

    def parent(self, node: int, alive: np.ndarray) -> int:
        """Return the lowest node with more living leaves; -1 for the root."""
        mine, found = self.members[node] & alive, int(self.parents[node])
        while found >= 0 and np.array_equal(self.members[found] & alive, mine):
            found = int(self.parents[found])
        return found

    def leaves_in(self, nodes: Sequence[int]) -> np.ndarray:
        """Return the position among `nodes` of each leaf, (L,); -1 in none of them."""
        found = np.full(self.n_leaves, -1)
        for place, node in enumerate(nodes):
            found[self.members[node]] = place
        return found

    def natural(self) -> dict[int, float]:
        """Return the levels at which two halves agree better than around them, with their agreement."""
        values, found = self.agreement, {}
        for at, value in enumerate(values[:-1]):
            around = values[max(0, at - NEAR) : at + NEAR + 1]
            if value >= around.max() and value - around.min() >= STANDS_OUT:
                found[at + 2] = float(value)
        highest = sorted(found, key=lambda level: -found[level])[:MOST_NATURAL]
        return {level: value for level, value in found.items() if level in highest}

    def best(self) -> list[int]:
        """Return the natural levels that agree best, up to noise."""
        levels = self.natural()
        return [level for level, value in levels.items() if value >= max(levels.values()) - EQUAL]

    def tensors(self) -> dict[str, np.ndarray]:
        """Return everything as arrays by name, to be saved."""
        return {name: np.ascontiguousarray(getattr(self, name)) for name in FIELDS}

    @classmethod
    def from_tensors(cls, arrays: Mapping[str, np.ndarray]) -> Tree:
        """Check and return a tree. Raise ValueError if the arrays are none."""
        tree = cls(**{name: arrays[name] for name in FIELDS})
        n_leaves = len(tree.joins) + 1
        steps = n_leaves + np.arange(len(tree.joins))
        sound = tree.joins.shape == (n_leaves - 1, 2) and (tree.joins.max(1, initial=-1) < steps).all()
        sound = sound and len(np.unique(tree.joins)) == 2 * (n_leaves - 1) and tree.joins.min(initial=0) >= 0
        sound = sound and len(tree.centres) == n_leaves and len(tree.stability) == 2 * n_leaves - 1
        sound = sound and tree.leaf.min(initial=-1) >= -1 and tree.leaf.max(initial=-1) < n_leaves
        if not sound or not all(np.isfinite(arrays[name]).all() for name in ("height", "stability", "centres")):
            raise ValueError("its arrays do not fit together")
        return tree


FIELDS = ("leaf", "joins", "height", "stability", "centres", "agreement")


def grow_tree(features: np.ndarray, clusters: np.ndarray, seed: int = 0) -> Tree:
    """Return the tree of features (n,D) that has the clusters (n,) as one of its levels."""
    import torch

    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    rows = _main_directions(unit)
    own = np.unique(clusters, return_inverse=True)[1]  # empty clusters have no node
    with torch.no_grad():
        leaf, owner = _fine(rows, own, MOST_LEAVES, seed)
        joins, height = _join_within(rows, leaf, own, owner)
        sizes = np.bincount(leaf)
        centres = _sums(unit, leaf, len(sizes)) / sizes[:, None]
        plain = Tree(leaf, joins, height, np.ones(2 * len(sizes) - 1), centres, np.empty(0))
        agreement, stability = _compare_halves(rows, plain, seed)
    return Tree(
        leaf.astype(np.int32), joins.astype(np.int32), height.astype(np.float32), stability.astype(np.float32),
        centres.astype(np.float32), agreement.astype(np.float32),
    )  # fmt: skip


def grow_tree_of_sample(
    embed: Callable[[np.ndarray], np.ndarray], clusters: np.ndarray, seed: int = 0, count: int = 100_000
) -> Tree:
    """Grow a tree from about `count` rows, and put each other row on the nearest leaf of its own cluster.

    `embed` returns the features (m,D) of some rows, `clusters` (n,) are those of all.
    """
    order = np.argsort(clusters, kind="stable")
    sizes = np.unique(clusters, return_counts=True)[1]
    step = np.maximum(1, np.minimum(len(clusters) // count, sizes // MOST_OF_LEAF))  # small clusters give all rows
    rank = np.arange(len(clusters)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    sample = np.sort(order[rank % np.repeat(step, sizes) == 0])
    tree = grow_tree(embed(sample), clusters[sample], seed)
    owner = np.empty(tree.n_leaves, clusters.dtype)
    owner[tree.leaf] = clusters[sample]
    leaf = np.empty(len(clusters), np.int32)
    for start in range(0, len(clusters), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(clusters)))
        cosine = embed(rows) @ (tree.centres / np.maximum(np.linalg.norm(tree.centres, axis=1, keepdims=True), 1e-12)).T
        cosine[clusters[rows][:, None] != owner] = -np.inf
        leaf[rows] = cosine.argmax(1)
    leaf[sample] = tree.leaf
    return replace(tree, leaf=leaf)


def _main_directions(unit: np.ndarray) -> np.ndarray:
    """Return centred unit rows in their principal directions, (n,d) float32. Large directions stay large."""
    import torch

    from twincluster.clustering.kmeans import principal_directions

    centred = torch.from_numpy(np.asarray(unit - unit.mean(0), np.float32))
    _, directions = principal_directions(centred)
    rows = (centred @ directions[:, -DIRECTIONS:]).numpy()
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def _fine(rows: np.ndarray, own: np.ndarray, most: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide each cluster into leaves by its size. Return the leaf of each row (n,), the cluster of each leaf (L,)."""
    import torch

    from twincluster.clustering.kmeans import spherical_kmeans

    leaf, wanted = np.empty(len(rows), np.int64), min(most, len(rows) // ROWS_PER_LEAF)
    owner: list[int] = []
    for cluster, size in enumerate(np.bincount(own).tolist()):
        members = np.flatnonzero(own == cluster)
        parts = max(1, min(size, round(wanted * size / len(rows))))
        labels = np.zeros(size, np.int64)
        if parts > 1:
            step = -(-size // max(SAMPLE, MOST_OF_LEAF * parts))
            found = spherical_kmeans(torch.from_numpy(rows[members[::step]]), parts, seed=seed, n_init=2)
            labels = np.unique(_nearest(rows[members], found.centres.numpy()), return_inverse=True)[1]
        leaf[members] = len(owner) + labels
        owner += [cluster] * (int(labels.max()) + 1)
    return leaf, np.array(owner)


def _join_within(
    rows: np.ndarray, leaf: np.ndarray, own: np.ndarray, owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Join the leaves of each cluster, the cheapest join of all clusters first, and then the clusters."""
    sums, sizes = _sums(rows, leaf, len(owner)), np.bincount(leaf).astype(float)
    steps: list[tuple[float, int, int, int, list[int]]] = []
    node: dict[tuple[int, int], int] = {}
    for cluster in range(int(owner.max()) + 1):
        inside = np.flatnonzero(owner == cluster)
        node |= {(cluster, place): int(each) for place, each in enumerate(inside)}
        joins, height = ward(sums[inside], sizes[inside])
        steps += [(height[step], step, cluster, len(inside), joins[step].tolist()) for step in range(len(joins))]
    pairs: list[tuple[int, int]] = []
    heights: list[float] = []
    for cost, step, cluster, count, (one, two) in sorted(steps):
        node[cluster, count + step] = len(owner) + len(pairs)
        pairs.append((node[cluster, one], node[cluster, two]))
        heights.append(cost)
    top = [max(number for (which, _), number in node.items() if which == cluster) for cluster in range(owner.max() + 1)]
    joins, height = ward(_sums(rows, own, len(top)), np.bincount(own).astype(float))
    for one, two in joins.tolist():
        pairs.append((top[one], top[two]))
        top.append(len(owner) + len(pairs) - 1)
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found, np.maximum.accumulate(np.array([*heights, *height], float))


def ward(sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join groups, given by the sums (L,D) and numbers (L,) of their rows, by Ward's criterion.

    Return the joined nodes (L-1,2) and the cost of each join (L-1,), which never falls.
    """
    means, weight, count = sums / sizes[:, None], sizes.astype(float), len(sizes)
    squares = (means**2).sum(1)
    cost = (squares[:, None] + squares - 2 * means @ means.T) * (weight[:, None] * weight / (weight[:, None] + weight))
    np.fill_diagonal(cost, np.inf)
    alive, number, joins, height = np.ones(count, dtype=bool), np.arange(count), [], []
    nearest = cost.argmin(1)
    for step in range(count - 1):
        lowest = np.where(alive, cost[np.arange(count), nearest], np.inf)
        one = int(lowest.argmin())
        two = int(nearest[one])
        joins.append((number[one], number[two]))
        height.append(max(float(lowest[one]), 0.0))
        means[one] = (weight[one] * means[one] + weight[two] * means[two]) / (weight[one] + weight[two])
        weight[one] += weight[two]
        number[one], alive[two] = count + step, False
        cost[two], cost[:, two] = np.inf, np.inf
        away = ((means - means[one]) ** 2).sum(1) * weight * weight[one] / (weight + weight[one])
        cost[one] = cost[:, one] = np.where(alive & (np.arange(count) != one), away, np.inf)
        stale = alive & (np.isin(nearest, (one, two)) | (cost[:, one] < cost[np.arange(count), nearest]))
        stale[one] = True
        nearest[stale] = cost[stale].argmin(1)
    return np.array(joins, np.int64).reshape(-1, 2), np.maximum.accumulate(np.array(height, float))


def _compare_halves(rows: np.ndarray, tree: Tree, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the agreement of two halves at each level, and the stability of each node."""
    random, values, overlaps = np.random.default_rng(seed), [], []
    sample = random.permutation(len(rows))[:SAMPLE]
    some, leaf = rows[sample], tree.leaf[sample]
    most = min(MOST_COMPARED, len(some) // (4 * ROWS_PER_LEAF))
    levels = range(2, most + 1)
    for split in range(SPLITS if most >= 2 else 0):
        order, found = random.permutation(len(some)), []
        for half in (order[::2], order[1::2]):
            own, _ = _fine(some[half], np.zeros(len(half), np.int64), MOST_LEAVES // 2, seed + split)
            sums, sizes = _sums(some[half], own, int(own.max()) + 1), np.bincount(own)
            other = Tree(own, *ward(sums, sizes), np.empty(0), sums, np.empty(0))
            found.append([_level(some, half, other, level) for level in levels])
            overlaps.append(_best_overlap(tree, leaf, other, _nearest(some, sums)))
        values.append([_rand(one, two, level) for level, one, two in zip(levels, *found, strict=True)])
    stability = np.mean(overlaps, 0) if overlaps else np.ones(2 * tree.n_leaves - 1)
    return np.array(values).mean(0) if values else np.empty(0), stability


def _level(rows: np.ndarray, half: np.ndarray, tree: Tree, count: int) -> np.ndarray:
    """Return clusters (n,) of all rows by k-means on half of them, which starts from a level of their tree."""
    labels = tree.leaves_in(tree.cut(count))[tree.leaf]
    for _ in range(ROUNDS):
        sums = _sums(rows[half], labels, count)
        labels = _nearest(rows[half], sums)
    return _nearest(rows, _sums(rows[half], labels, count))


def _best_overlap(tree: Tree, leaf: np.ndarray, other: Tree, theirs: np.ndarray) -> np.ndarray:
    """Return the Jaccard index of each node with the best node of another tree, (2L-1,)."""
    table = np.zeros((tree.n_leaves, other.n_leaves))
    np.add.at(table, (leaf, theirs), 1)
    both = tree.members @ table @ other.members.T.astype(float)
    whole = (tree.members @ table.sum(1))[:, None] + other.members @ table.sum(0) - both
    return np.asarray((both / np.maximum(whole, 1)).max(1))


def _rand(one: np.ndarray, two: np.ndarray, count: int) -> float:
    """Return the adjusted Rand index of two partitions into `count` clusters."""
    table = np.bincount(one * count + two, minlength=count**2).reshape(count, count).astype(float)

    def pairs(numbers: np.ndarray) -> float:
        return float((numbers * (numbers - 1) / 2).sum())

    both, first, second = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
    chance = first * second / max(pairs(table.sum(keepdims=True)), 1)
    return (both - chance) / max((first + second) / 2 - chance, 1e-12)


def _nearest(rows: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return the group (n,) whose direction is nearest to each unit row."""
    centres = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return np.asarray((rows @ centres.T.astype(rows.dtype)).argmax(1))


def _sums(rows: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """Return the sum of the rows of each group, (count,D)."""
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(count))
    sums = np.zeros((count, rows.shape[1]))
    there = np.flatnonzero(np.diff([*starts, len(groups)]))
    if len(there):
        sums[there] = np.add.reduceat(rows[order].astype(np.float64), starts[there], axis=0)
    return sums
