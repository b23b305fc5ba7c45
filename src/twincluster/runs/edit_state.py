"""The state of a run after its edits, and the clusters of images that the edits do not name.

`State` says where each row is and what the clusters are called. `State.decide` and `apply_edits` follow the edits for
other images: merges, splits and the taught model. Shapes: n rows of the run, m other images, P parts, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from twincluster.core import InputError

if TYPE_CHECKING:
    from twincluster.clustering import Head
    from twincluster.runs.folder import Assignments

UNREADABLE, JUNK = -1, -2  # instead of a cluster
NONE = -3  # instead of a cluster: no example, or not in the sample
JUNK_STATUS = "junk"
Kinds = tuple[np.ndarray, ...]  # features of m images, each (m,D): what `Model.kinds` returns, the embedding last
Features = Callable[[np.ndarray], np.ndarray]  # rows (m,) to the network's embedding of them, (m,D)


@dataclass(frozen=True, eq=False)
class Merge:
    into: int
    clusters: np.ndarray  # that end in it


@dataclass(frozen=True, eq=False)
class Split:
    cluster: int
    parts: np.ndarray  # (P,) ids; several of a part with several centres
    rest: int  # the part for images without features
    centres: np.ndarray | None  # (P,D) unit rows


@dataclass(frozen=True, eq=False)
class Learned:
    edit: int  # the `accept` from which on the taught model decides about other images


@dataclass(frozen=True, eq=False)
class State:
    """The cluster of every row, and the names of the clusters."""

    home: np.ndarray  # (n,) int64: the cluster of each row, of junk too; -1 unreadable
    junk: np.ndarray  # (n,) bool
    moved: np.ndarray  # (n,) bool: placed by hand
    guessed: np.ndarray  # (n,) bool: added after a split or a lesson, without the features to tell its cluster
    shown: np.ndarray  # (n,) bool: an example, which a person has placed or confirmed
    sample: np.ndarray  # (n,) int64: the cluster a row had before a random question about it was answered, else NONE
    before: np.ndarray  # (n,) int64: the cluster an example had before a person placed it, else NONE
    names: Mapping[int, str]  # of the current clusters, by id
    refused: Mapping[int, np.ndarray] = field(default_factory=dict)  # rows that a person keeps out of a cluster
    ended: Mapping[str, int] = field(
        default_factory=dict
    )  # names of merged clusters, and the cluster that each became part of
    by_hand: frozenset[int] = frozenset()  # clusters that a person made, which a cut leaves alone
    closed: Mapping[int, str] = field(default_factory=dict)  # names of clusters that a cut has ended, by id
    joined: tuple[Merge | Split | Learned, ...] = ()  # what decides about other images, in order
    number: int = 0  # of the newest line, undone ones and those that undo included
    head: Callable[[], Head] | None = None  # returns the taught model, if there is one

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
        """True if accepted proposals are in force: a taught model decides about other images."""
        return any(isinstance(step, Learned) for step in self.joined)

    @property
    def clusters_before(self) -> np.ndarray:
        """(n,) the cluster of each row, for examples the one before a person placed them."""
        moved = self.shown & (self.before != NONE) & ~self.junk
        return np.where(moved, self.before, self.clusters)

    @property
    def is_split(self) -> bool:
        return any(isinstance(step, Split) and step.centres is not None for step in self.joined)

    @property
    def needs_features(self) -> bool:
        """True if `route` needs features."""
        return self.is_split or self.is_taught

    def chances(self, own: np.ndarray, kinds: Kinds | None = None) -> np.ndarray:
        """Return probabilities of clusters, (m,C), by the taught model if there is one, else the model's `own` (m,K).

        Merges add them up, and splits give all to the part with the nearest centre.
        """
        steps, found, classes = list(self.joined), own, np.arange(own.shape[1])
        last = max((at for at, step in enumerate(steps) if isinstance(step, Learned)), default=-1)
        if last >= 0 and self.head and kinds is not None:
            head = self.head()
            found, classes = head.predict(*kinds)[1], head.classes
        width = max([*self.names, *classes.tolist()]) + 1
        ids = [width - 1, *(part for step in steps if isinstance(step, Split) for part in step.parts.tolist())]
        ids += [part for step in steps if isinstance(step, Merge) for part in (step.into, *step.clusters.tolist())]
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
        """Return rows that lie in a cluster, without junk."""
        return np.flatnonzero((self.home == cluster) & ~self.junk)

    def sizes(self) -> dict[int, int]:
        """Return the number of images in each cluster, including empty ones."""
        found, counts = np.unique(self.home[~self.junk], return_counts=True)
        held = dict(zip(found.tolist(), counts.tolist(), strict=True))
        return {cluster: held.get(cluster, 0) for cluster in self.names}

    def route(self, clusters: np.ndarray, kinds: np.ndarray | Kinds | None = None) -> np.ndarray:
        """Return clusters of images that the edits do not name, (m,), from the model's (m,) and their features."""
        return self.decide(clusters, np.zeros(len(clusters)), kinds)[0]

    def decide(
        self, clusters: np.ndarray, confidence: np.ndarray, kinds: np.ndarray | Kinds | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return clusters and confidence of images that the edits do not name, from the model's, (m,).

        The taught model, if there is one, decides first. Later merges take images along, and a later split gives
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
    """Return the state without edits: the model's clusters, named by their numbers."""
    none = np.zeros(len(clusters), dtype=bool)
    home = np.array(clusters, dtype=np.int64)
    names = {cluster: str(cluster) for cluster in range(n_clusters)}
    return State(home, none, none, none, none, np.full(len(home), NONE), np.full(len(home), NONE), names)


def apply_edits(
    found: Assignments,
    state: State,
    rows: np.ndarray | None = None,
    kinds: Callable[[np.ndarray], np.ndarray | Kinds] | None = None,
) -> Assignments:
    """Apply the edits of a run to the model's assignments of some inputs.

    `rows` (m,) are the inputs' rows in the run, -1 for images that it does not know; None: all rows of the run. Known
    images stay where a person put them, or let the taught model put them; others go where that model says, and follow
    merges and splits. `kinds` gives features of inputs, (m,D) each. cluster is the final id; confidence is the taught
    model's where that decided, else the model's, of the cluster that this had chosen. Junk has no cluster.
    """
    confidence = found.confidence
    if rows is None:
        clusters = state.clusters
    else:
        known = np.array([row >= 0 and state.home[row] >= 0 and not state.guessed[row] for row in rows], dtype=bool)
        known &= found.clusters >= 0
        clusters, others = found.clusters.copy(), np.flatnonzero((found.clusters >= 0) & ~known)
        if len(others):
            features = kinds(others) if kinds and state.needs_features else None
            confidence = confidence.copy()
            clusters[others], confidence[others] = state.decide(clusters[others], confidence[others], features)
        clusters[known] = state.clusters[rows[known]]
    junk = clusters == JUNK
    return replace(
        found,
        clusters=np.where(junk, -1, clusters),
        confidence=np.where(junk, np.nan, confidence),
        status=tuple(JUNK_STATUS if out else said for out, said in zip(junk, found.status, strict=True)),
        names=tuple(state.names.get(int(cluster), "") for cluster in clusters),
    )


def nearest_part(step: Split, features: np.ndarray | None) -> np.ndarray | int:
    """Return ids (m,) of the parts whose centres have the highest cosine with the features (m,D)."""
    if features is None or step.centres is None:
        return step.rest
    if features.shape[1] != step.centres.shape[1]:
        raise InputError(f"the centres of cluster {step.cluster}'s parts are of another network: fit and edit again")
    found: np.ndarray = step.parts[(features @ step.centres.T).argmax(1)]
    return found


def unit(features: np.ndarray) -> np.ndarray:
    """Return (m,D) rows of length one; all zeros stay so."""
    rows = np.asarray(features, dtype=np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(length, np.finfo(np.float32).tiny))
