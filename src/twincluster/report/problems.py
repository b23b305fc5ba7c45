"""What deserves a second look: unreadable files, near-duplicates, clusters that are tiny, empty or alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from twincluster.edits.corrected import JUNK_STATUS
from twincluster.report.material import Material, spread_evenly
from twincluster.report.thumbnails import tile

COSINE = 0.99  # of the features of near-duplicates, whose pictures ...
DIFFERENCE = 0.03  # ... differ by less than this share of full scale, when they are 16 pixels a side
COSINE_OF_ROWS = 0.999999  # where there are no pictures to compare
COMPARED = 20_000  # inputs among which duplicates are looked for: all pairs of more take longer than a report should
CHUNK = 1024  # rows compared with all others at once
NEIGHBOURS = 10
TINY = 0.1  # of the average size
CLOSE = 0.8  # cosine between centres, seen from the middle of all images
MIXED = 0.1  # share of nearest neighbours that lie in the other cluster of a pair
LISTED = 200  # entries of a list on the page; the whole is in assignments.csv
SMALL = 16  # pixels a side at which pictures are compared


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """What comparing all features with each other gives."""

    rows: np.ndarray  # (m,) inputs
    nearest: np.ndarray  # (m,k) positions among them
    pairs: np.ndarray  # (p,2) positions of near-duplicates


def neighbourhood_of(material: Material) -> Neighbourhood:
    positions = spread_evenly(np.arange(len(material.rows)), COMPARED)
    unit, rows = torch.from_numpy(material.features[positions]), material.rows[positions]
    count = max(0, min(NEIGHBOURS, len(rows) - 1))
    least = COSINE if material.pictures is not None else COSINE_OF_ROWS
    nearest, pairs = [np.empty((0, count), np.int64)], [np.empty((0, 2), np.int64)]
    for start in range(0, len(rows) if count else 0, CHUNK):
        cosine = unit[start : start + CHUNK] @ unit.T  # (chunk,m)
        own = np.arange(start, start + len(cosine))
        cosine[np.arange(len(own)), own] = -2
        values, best = (found.numpy() for found in cosine.topk(count, dim=1))
        nearest.append(best)
        # a row with more copies than neighbours still joins their group, through the neighbours of its neighbours
        close = values >= least
        pairs.append(np.stack([np.repeat(own, close.sum(1)), best[close]], axis=1))
    found = np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)
    return Neighbourhood(rows, np.concatenate(nearest), _confirmed(material, rows, found))


def duplicates(around: Neighbourhood) -> list[list[int]]:
    """Groups of inputs that are nearly the same, the largest first."""
    if not len(around.pairs):
        return []
    ones = np.ones(len(around.pairs))
    graph = coo_matrix((ones, (around.pairs[:, 0], around.pairs[:, 1])), shape=(len(around.rows),) * 2)
    _, group = connected_components(graph, directed=False)
    members: dict[int, list[int]] = {}
    for position in np.unique(around.pairs).tolist():
        members.setdefault(int(group[position]), []).append(int(around.rows[position]))
    return sorted(members.values(), key=lambda rows: (-len(rows), rows))


def lookalikes(material: Material, middle: np.ndarray, around: Neighbourhood) -> list[dict[str, Any]]:
    """Pairs of clusters whose centres (K,D) are close or whose images are neighbours, most mixed first."""
    clusters = material.clusters[around.rows]
    n_clusters = len(middle)
    met = np.zeros((n_clusters, n_clusters))
    if around.nearest.size:
        np.add.at(met, (np.repeat(clusters, around.nearest.shape[1]), clusters[around.nearest].ravel()), 1)
    held = met.sum(1)
    shared = (met + met.T) / np.maximum(held[:, None] + held[None], 1)
    seen = held > 0
    offset = middle - (middle[seen].mean(0) if seen.any() else 0)
    offset = offset / np.maximum(np.linalg.norm(offset, axis=1, keepdims=True), 1e-12)
    cosine = offset @ offset.T
    wanted = np.triu((shared >= MIXED) | (cosine >= CLOSE), 1) & seen[:, None] & seen[None]
    pairs = [
        {"clusters": [int(i), int(j)], "mixed": round(float(shared[i, j]), 3), "cosine": round(float(cosine[i, j]), 3)}
        for i, j in np.argwhere(wanted)
    ]
    return sorted(pairs, key=lambda pair: (-pair["mixed"], -pair["cosine"]))


def small_clusters(sizes: np.ndarray) -> tuple[list[int], list[int]]:
    """The tiny clusters and the empty ones."""
    bound = TINY * sizes.mean()
    return np.flatnonzero((sizes > 0) & (sizes < bound)).tolist(), np.flatnonzero(sizes == 0).tolist()


def unreadable(material: Material) -> list[tuple[str, str]]:
    """Path and reason of every input that could not be read."""
    said = zip(material.assignments.paths, material.assignments.status, strict=True)
    unread = [(path, status) for path, status in said if status not in ("ok", JUNK_STATUS)]
    return [(path, status.removeprefix("unreadable: ")) for path, status in unread]


def _confirmed(material: Material, rows: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Pairs whose pictures are nearly the same: features of one cluster may be alike where pictures are not."""
    if material.pictures is None or not len(pairs):
        return pairs
    used, places = np.unique(pairs, return_inverse=True)
    small = np.stack([tile(material.pictures[rows[position]], SMALL) for position in used]).astype(np.float32) / 255
    one, other = places.reshape(pairs.shape).T
    kept = [
        np.abs(small[one[start : start + CHUNK]] - small[other[start : start + CHUNK]]).mean((1, 2, 3)) < DIFFERENCE
        for start in range(0, len(pairs), CHUNK)
    ]
    return np.asarray(pairs[np.concatenate(kept)])
