"""Nearest neighbours of rows, agglomerative clustering on their graph, and a two-dimensional layout.

Agglomeration repeatedly merges the two clusters with the highest affinity, that of Zhang et al. 2012 ("Graph degree
linkage") as used in JULE (Yang et al. 2016). Neighbours are found among all pairs on the device of the rows; merging
runs on the host and uses only the neighbours. The layout is t-SNE if openTSNE is installed, otherwise the first two
principal components.

Shapes: n rows, M of them in the pool of neighbours, k neighbours, F features, C clusters.
"""

from __future__ import annotations

import heapq
import importlib.util
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

POOL = 20_000  # rows to search for neighbours and directions; all pairs of more take longer than training
CHUNK = 2048  # rows compared with the pool at once


def nearest_rows(rows: Tensor, count: int, pool: int = POOL) -> Tensor:
    """Return the positions (n,k) of the `count` nearest rows by cosine, or of all if there are fewer, without the row
    itself.
    """
    step = pool_step(len(rows), pool)
    return step * nearest_in_pool(torch.split(rows, CHUNK), rows[::step], step, count)


def pool_step(n_rows: int, pool: int = POOL) -> int:
    """Return the distance between rows of the pool."""
    return -(-n_rows // pool)


@torch.no_grad()
def nearest_in_pool(parts: Iterable[Tensor], pool: Tensor, step: int, count: int) -> Tensor:
    """Return the nearest rows as indices into the pool (M,d), which is every `step`-th of the rows in `parts`."""
    unit, members, found, start = F.normalize(pool, dim=1), step * torch.arange(len(pool)).to(pool.device), [], 0
    for part in parts:
        similarity = F.normalize(part, dim=1) @ unit.T  # (chunk,M)
        own = torch.arange(start, start + len(part), device=pool.device)
        similarity.masked_fill_(own[:, None] == members, -torch.inf)
        found.append(similarity.topk(min(count, len(pool) - 1), dim=1).indices)
        start += len(part)
    return torch.cat(found)


CELLS = 2**26  # similarities in memory at once: 256 MiB in float32
FEW = 100  # clusters, up to which the next best affinities of a cluster do not count
Links = list[dict[int, float]]  # of each cluster, to those near to it


def first_groups(unit: Tensor) -> np.ndarray:
    """Return the connected components (n,) of the graph that links each row to its nearest neighbour."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n, (found, _) = len(unit), nearest(unit, 1)
    edges = np.arange(found.size), found.ravel()  # none for a single row
    return np.asarray(connected_components(coo_array((np.ones(found.size), edges), (n, n)), directed=False)[1])


def all_merged(unit: Tensor, n_clusters: int, *, share: float, neighbours: int, near: int) -> np.ndarray:
    """Return clusters (n,) of unit rows (n,F): start from the first groups, and recompute affinities after each `share`
    of merges.
    """
    group = first_groups(unit)
    if group.max() + 1 < n_clusters:
        group = np.arange(len(unit))
    while group.max() + 1 > n_clusters:
        group = merged(unit, group, n_clusters, share=share, neighbours=neighbours, near=near)
    return group


def merged(unit: Tensor, group: np.ndarray, n_clusters: int, *, share: float, neighbours: int, near: int) -> np.ndarray:
    """Return (n,) the groups (n,), from 0, of unit rows (n,F), once so large a share of them is merged with others.

    No fewer are left than `n_clusters`. `near`: how many of the affinities of a cluster say how much it stands out.
    """
    count = int(group.max()) + 1
    wanted = max(n_clusters, count - math.ceil(share * count))
    if wanted >= count:
        return group
    sizes = np.bincount(group).astype(float)
    sums = np.zeros((count, unit.shape[1]))
    np.add.at(sums, group, unit.double().cpu().numpy())
    into = Agglomeration(linked(graph(unit, neighbours), group), sizes, sums, near).run(wanted)
    return np.unique(into[group], return_inverse=True)[1]


def graph(unit: Tensor, neighbours: int) -> Any:
    """Return W, sparse (n,n): exp(-d^2 / sigma^2) to the nearest neighbours of each row, where sigma^2 is the mean of
    d^2.
    """
    from scipy.sparse import csr_array

    found, distance = nearest(unit, neighbours)  # (n,k) each
    weight = np.exp(-distance / max(distance.mean(), 1e-12))
    start = np.arange(len(unit)).repeat(found.shape[1])
    return csr_array((weight.ravel(), (start, found.ravel())), shape=(len(unit), len(unit)))


def nearest(unit: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest other rows of each unit row and their squared distances, (n,k) each."""
    count, everyone, parts = min(count, len(unit) - 1), torch.arange(len(unit), device=unit.device), []
    for part in torch.split(everyone, max(1, CELLS // len(unit))):
        similarity = unit[part] @ unit.T
        parts.append(similarity.masked_fill_(part[:, None] == everyone, -torch.inf).topk(count, dim=1))
    found, cosine = torch.cat([part.indices for part in parts]), torch.cat([part.values for part in parts])
    return found.cpu().numpy(), (2 - 2 * cosine.double()).clamp(min=0).cpu().numpy()


def linked(weights: Any, group: np.ndarray) -> Links:
    """What each cluster a has with each other cluster i: the sum of W[a,i] W[i,a], in both of which a is summed over.

    For a row of i it is the product of all that leads from it to a, and of all that leads from a to it.
    """
    from scipy.sparse import csr_array

    n, count = len(group), int(group.max()) + 1
    member = csr_array((np.ones(n), (np.arange(n), group)), shape=(n, count))
    both_ways = (weights @ member) * (weights.T @ member)  # (n,C)
    total = (both_ways.T @ member).tocoo()  # (C,C), a and i
    links: Links = [{} for _ in range(count)]
    for a, i, value in zip(*(array.tolist() for array in (total.row, total.col, total.data)), strict=True):
        if a != i and value > 0:
            links[a][i] = value
            links[i].setdefault(a, 0.0)
    return links


class Agglomeration:
    """Clusters that are being merged. When two become one, what each has with others is added up."""

    def __init__(self, links: Links, sizes: np.ndarray, sums: np.ndarray, near: int) -> None:
        self.links, self.sizes, self.sums, self.near = links, sizes, sums, near
        self.alive, self.left = np.ones(len(links), dtype=bool), len(links)
        self.into = np.arange(len(links))  # which cluster each has become part of
        self.version = [0] * len(links)  # of a cluster's entry in the queue: older ones no longer hold
        self.queue: list[tuple[float, int, int, int]] = []

    def run(self, wanted: int) -> np.ndarray:
        """Return (C,) the cluster that each is part of when as many as wanted are left."""
        self.enter_all()
        while self.left > wanted:
            one, two = self.next_pair()
            self.merge(one, two)
            if self.left == FEW:
                self.enter_all()  # from here on another order holds
        return self.into

    def affinity(self, one: int, two: int) -> float:
        sizes, links = self.sizes, self.links
        return float(links[one][two] / sizes[one] ** 2 + links[two][one] / sizes[two] ** 2)

    def enter_all(self) -> None:
        self.queue = []
        for cluster in np.flatnonzero(self.alive).tolist():
            self.enter(cluster)

    def enter(self, cluster: int) -> None:
        """Queue a cluster with its best partner; first comes whose best is high and stands out from the next ones."""
        self.version[cluster] += 1
        if not self.links[cluster]:
            return
        best = heapq.nlargest(self.near, ((self.affinity(cluster, other), other) for other in self.links[cluster]))
        score = best[0][0]
        if self.left > FEW and self.near > 1:
            rest = [value for value, _ in best[1:]] + [0.0] * (self.near - len(best))
            score += sum(best[0][0] - value for value in rest) / (self.near - 1)
        heapq.heappush(self.queue, (-score, cluster, best[0][1], self.version[cluster]))

    def next_pair(self) -> tuple[int, int]:
        while self.queue:
            _, one, two, version = heapq.heappop(self.queue)
            if version == self.version[one]:
                return one, two
        # nobody has an affinity any more: the smallest cluster goes to the one whose mean is nearest by direction
        living = np.flatnonzero(self.alive)
        one = int(living[self.sizes[living].argmin()])
        means = self.sums / np.linalg.norm(self.sums, axis=1, keepdims=True).clip(min=1e-12)
        others = living[living != one]
        return one, int(others[(means[others] @ means[one]).argmax()])

    def merge(self, one: int, two: int) -> None:
        """Two becomes part of one."""
        links = self.links
        for other, value in links[two].items():
            if other != one:
                links[one][other] = links[one].get(other, 0.0) + value
                links[other][one] = links[other].get(one, 0.0) + links[other].pop(two)
        links[one].pop(two, None)
        links[two] = {}
        self.sizes[one] += self.sizes[two]
        self.sums[one] += self.sums[two]
        self.into[self.into == two] = one
        self.alive[two], self.left = False, self.left - 1
        self.version[two] += 1
        for cluster in (one, *links[one]):
            self.enter(cluster)


POINTS = 3_000  # on a map; t-SNE takes seconds for so many
FEWEST = 12  # points that t-SNE can make something of
DIRECTIONS = 50  # principal components that t-SNE looks at
PERPLEXITY = 30.0
LARGEST = 9_999  # coordinates are whole numbers from 0 to this one


@dataclass(frozen=True, eq=False)
class Layout:
    """A place for each row."""

    places: np.ndarray  # (m,2) int64, 0 to 9999, the longer side of the map filled
    method: str
    meaning: str  # what distances on this map say


TSNE = ("t-SNE", "neighbours on the map are alike; distances between far groups mean little")
PCA = ("PCA", "the two directions in which the features differ most; groups that differ in others may overlap here")


def lay_out(features: np.ndarray, *, seed: int = 0, method: str | None = None) -> Layout:
    """`method` is "t-SNE" or "PCA"; None takes t-SNE where it can be had. features: (m,D). Fewer than
    three rows, and rows that differ in one direction at most, have no neighbourhoods to keep: they get PCA."""
    if method is None:
        able = importlib.util.find_spec("openTSNE") is not None and len(features) >= FEWEST
        method = "t-SNE" if able else "PCA"
    components = principal(features, DIRECTIONS)
    varied = components[:, components.std(0) > 0]
    if method == "t-SNE" and len(varied) > 2 and varied.shape[1] > 1:
        return Layout(_to_grid(_tsne(varied, seed)), *TSNE)
    return Layout(_to_grid(components[:, :2]), *PCA)


def how_many(shown: int, visible: int, all_: int, what: str = "images") -> str:
    """Return which part of all inputs a map shows, where `visible` of them can still be seen."""
    if shown == all_:
        return f"all {all_:,} {what}"
    if visible == all_:
        return f"{shown:,} of {all_:,} {what}, evenly chosen"
    if shown == visible:
        return f"{shown:,} of {all_:,} {what} (the others are gone)"
    return f"{shown:,} of {all_:,} {what}, evenly chosen from the {visible:,} that are still there"


def principal(features: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` first principal components (m,count), padded with zeros where there are fewer."""
    centred = np.asarray(features, dtype=np.float64) - features.mean(0, dtype=np.float64) if len(features) else features
    _, directions = np.linalg.eigh(centred.T @ centred)  # smallest first
    directions = directions[:, ::-1][:, :count]
    signs = np.sign(directions[np.abs(directions).argmax(0), np.arange(directions.shape[1])])
    components: np.ndarray = centred @ (directions * signs)  # the same way round on every machine
    missing = max(0, count - components.shape[1])
    return np.pad(components, ((0, 0), (0, missing)))


def _tsne(components: np.ndarray, seed: int) -> np.ndarray:
    import openTSNE

    model = openTSNE.TSNE(
        perplexity=min(PERPLEXITY, (len(components) - 1) / 4), metric="euclidean", initialization="pca",
        random_state=seed, n_jobs=2,
    )  # fmt: skip
    return np.asarray(model.fit(components))


def _to_grid(places: np.ndarray) -> np.ndarray:
    if not len(places):
        return np.empty((0, 2), np.int64)
    low, high = places.min(0), places.max(0)
    scale = LARGEST / max(float((high - low).max()), 1e-12)
    offset = (LARGEST - (high - low) * scale) / 2
    grid = (places - low) * scale + offset
    grid[:, 1] = LARGEST - grid[:, 1]  # pages count downwards
    return np.asarray(grid.round().clip(0, LARGEST), dtype=np.int64)
