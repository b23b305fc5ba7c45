"""What deserves a second look: unreadable files, near-duplicates, clusters that are tiny, empty or alike.

Which images stand for a cluster: those nearest to its centre, and those it is least certain of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from twincluster.pages.report.material import Material, spread_evenly
from twincluster.pages.report.thumbnails import tile
from twincluster.runs import JUNK_STATUS

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


SHOWN = 700  # images on all cards together, as far as each card has its share
MOST, FEWEST = 18, 4  # on one card
DOUBTFUL_SHARE = 3  # one in three is a doubtful one
ALIKE = 0.995  # cosine above which a second image shows nothing new


def per_card(n_clusters: int) -> tuple[int, int]:
    """How many typical and how many doubtful images a card has room for."""
    together = max(FEWEST, min(MOST, SHOWN // max(1, n_clusters)))
    doubtful = together // DOUBTFUL_SHARE
    return together - doubtful, doubtful


def centres(material: Material) -> np.ndarray:
    """(K,D) mean features, of length 1; zeros where no image of a cluster has features."""
    sums = np.zeros((len(material.groups), material.features.shape[1]), np.float32)
    np.add.at(sums, material.clusters[material.rows], material.features)
    length = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.asarray(sums / np.maximum(length, 1e-12))


def representatives(material: Material, middle: np.ndarray) -> list[tuple[list[int], list[int]]]:
    """For each cluster its typical inputs, best first, and its doubtful ones, most doubtful first.

    `middle` are the centres (K,D). Without features the most certain inputs stand for the typical ones. A card shows
    no input without a picture beside those that have one.
    """
    n_typical, n_doubtful = per_card(len(material.groups))
    near = (material.features * middle[material.clusters[material.rows]]).sum(1)  # (m,)
    with_features = _members(material.clusters[material.rows], len(material.groups))
    everyone = _members(material.clusters, len(material.groups))
    found = []
    for chosen, members in zip(with_features, everyone, strict=True):
        members = _pictured(material, members)
        members = members[np.argsort(material.confidence[members], kind="stable")]  # most doubtful first
        room = min(n_typical, len(members) - len(members) // DOUBTFUL_SHARE)  # a small cluster is shared out, too
        typical = [int(row) for row in members[::-1][:room]]
        if len(chosen):
            order = chosen[np.argsort(-near[chosen], kind="stable")]
            typical = [int(material.rows[row]) for row in _various(material.features, order, room)]
        shown = set(typical)
        doubtful = [int(row) for row in members[: n_doubtful + n_typical] if int(row) not in shown]
        found.append((typical, doubtful[:n_doubtful]))
    return found


def _pictured(material: Material, members: np.ndarray) -> np.ndarray:
    """Those that have a picture, if any has."""
    if material.pictures is None or not material.unseen:
        return members
    seen = np.array([row in material.pictures for row in members.tolist()], dtype=bool)
    return members[seen] if seen.any() else members


def _members(clusters: np.ndarray, n_clusters: int) -> list[np.ndarray]:
    """Positions of the members of each cluster."""
    order = np.argsort(clusters, kind="stable")
    bounds = np.searchsorted(clusters[order], np.arange(n_clusters + 1))
    return [order[bounds[k] : bounds[k + 1]] for k in range(n_clusters)]


def _various(features: np.ndarray, order: np.ndarray, count: int) -> list[int]:
    """The first of `order`, without copies of images that were taken already, unless nothing else is there."""
    taken: list[int] = []
    copies: list[int] = []
    for row in order[: 8 * count].tolist():
        if len(taken) == count:
            break
        same = taken and float((features[taken] @ features[row]).max()) > ALIKE
        (copies if same else taken).append(row)
    return (taken + copies)[:count]
