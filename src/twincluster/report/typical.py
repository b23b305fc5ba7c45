"""Which images stand for a cluster: those nearest to its centre, and those it is least certain of."""

from __future__ import annotations

import numpy as np

from twincluster.report.material import Material

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
