"""Learn from a person's answers about a few rows which cluster every row belongs to. Imports no torch.

`Space` prepares the features once. `teach` spreads the answers over a graph of nearest neighbours, with the clusters so
far as a prior, and fits a linear head to the result; `choose_questions` says which rows to ask about next.
Shapes: n rows, F features, D dimensions of the space, k neighbours, C classes, m rows of a subset.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from twincluster.core import InputError

NO_EXAMPLE = -3  # in `examples`: nobody has said where this row belongs
JUNK, UNREADABLE = -2, -1  # in `clusters`, as in runs/edit_state.py; JUNK in `examples`, too
DIRECTIONS = 256  # principal directions of each kind of features
NEIGHBOURS = 15
COMPARED, PART = 20_000, 500  # rows: each of so many is compared with each; more are divided into parts of this size
LIKENESS = 8  # power of the cosine: how much more a near neighbour counts
ROUNDS, REACH = 6, 0.8  # of spreading: F <- REACH S F + (1 - REACH) Y
TRUST = 0.5  # answers that a cluster is worth: so many against it, and its rows no longer follow it
PRIOR, DOUBT = 160.0, 6  # of the clusters so far, if answers agree by a share s, all but d: PRIOR s^DOUBT / (1 + d)
PASSES, AGAIN = 2, 20.0  # once more, with what was learned as the prior, of this weight
OTHERS = 200.0  # answers that all rows without one are worth together, in the head's fit
EVEN = 0.1  # share of all rows by which classes may come nearer to one size than the answers suggest
DECAY = 0.5  # of the head's weights; an answer counts 1
SHARPNESS = 8.0  # of probabilities: softmax of so many times the fitted values
FITTED = 20_000  # rows that the head is fitted to, besides answers
POOL = 2500  # rows among which questions are chosen
FIRST, BREADTH = 8.0, 4.0  # an answer tells exp(FIRST (cosine - 1)) of another row, BREADTH after ten answers
UNKNOWN = 0.5  # how probably a lesson is wrong about a row that it puts into a cluster without an example
RARE, OWN = 0.1, 60.0  # where a lesson expects fewer errors, putting one right counts as telling so many rows about it
FEWEST = 20  # answers before which a lesson knows neither which rows are hard nor whether more would change little
STILL = 0.02  # share of rows that twice the answers would move: below it, more of them change little


@dataclass(frozen=True, eq=False)
class View:
    """One kind of features: centred, turned into its principal directions, unit rows."""

    mean: np.ndarray  # (F,) float32
    directions: np.ndarray  # (F,D) float32

    @classmethod
    def of(cls, features: np.ndarray) -> View:
        features = _checked(features)
        mean = features.mean(0, dtype=np.float64).astype(np.float32)
        centred = features - mean
        _, directions = np.linalg.eigh((centred.T @ centred).astype(np.float64))  # smallest variance first
        return cls(mean, np.ascontiguousarray(directions[:, ::-1][:, :DIRECTIONS], dtype=np.float32))

    def place(self, features: np.ndarray) -> np.ndarray:
        """Return (m,D) unit rows."""
        return _unit((_checked(features) - self.mean) @ self.directions)


@dataclass(frozen=True, eq=False)
class Space:
    """Rows as unit vectors, and which rows are nearest to each."""

    views: tuple[View, ...]
    rows: np.ndarray  # (n,D) float32
    neighbours: np.ndarray  # (n,k) int32, nearest first
    cosine: np.ndarray  # (n,k) float32, of each row and its neighbours

    @classmethod
    def of(cls, features: np.ndarray, second: np.ndarray | None = None, seed: int = 0) -> Space:
        """Make the space of features (n,F); `second` (n,G) are other features of the same rows, which count as much."""
        kinds = [features] if second is None else [features, second]
        views = tuple(View.of(kind) for kind in kinds)
        rows = _joined(views, kinds)
        return cls(views, rows, *_nearest(rows, NEIGHBOURS, seed))

    def place(self, features: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
        """Return (m,D) other rows in this space."""
        return _joined(self.views, [features] if second is None else [features, second])

    def tensors(self) -> dict[str, np.ndarray]:
        """Everything as arrays by name, to be saved."""
        own = {"rows": self.rows, "neighbours": self.neighbours, "cosine": self.cosine}
        return own | _tensors_of(self.views)

    @classmethod
    def from_tensors(cls, arrays: Mapping[str, np.ndarray]) -> Space:
        return cls(_views_of(arrays), arrays["rows"], arrays["neighbours"], arrays["cosine"])

    @cached_property
    def affinity(self) -> Any:
        """S, sparse (n,n): powers of cosines, either way, with symmetric normalisation."""
        from scipy.sparse import csr_array

        n, k = self.neighbours.shape
        weight = np.maximum(self.cosine, 0).ravel() ** LIKENESS
        ways = csr_array((weight, (np.arange(n).repeat(k), self.neighbours.ravel())), shape=(n, n))
        both = (ways + ways.T).tocsr()
        scale = 1 / np.sqrt(np.maximum(both.sum(1), 1e-12))
        both.data *= scale[np.arange(n).repeat(np.diff(both.indptr))] * scale[both.indices]
        return both.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Head:
    """A linear classifier of features, which places them in the space first."""

    classes: np.ndarray  # (C,) int64
    weight: np.ndarray  # (D,C) float32
    bias: np.ndarray  # (C,) float32
    views: tuple[View, ...]

    def predict(
        self, features: np.ndarray, second: np.ndarray | None = None, *, junk: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the class of each row (m,) and all probabilities (m,C); junk is left out unless asked for."""
        rows = _joined(self.views, [features] if second is None else [features, second])
        chances = self.probabilities(rows, junk)
        return self.classes[chances.argmax(1)], chances

    def probabilities(self, rows: np.ndarray, junk: bool = True) -> np.ndarray:
        """(m,C) for rows of the space."""
        logits = rows @ self.weight + self.bias
        if not junk and (self.classes != JUNK).any():
            logits = np.where(self.classes == JUNK, -np.inf, logits)
        return _softmax(logits)

    def tensors(self) -> dict[str, np.ndarray]:
        """Everything as arrays by name, to be saved."""
        return {"classes": self.classes, "weight": self.weight, "bias": self.bias} | _tensors_of(self.views)

    @classmethod
    def from_tensors(cls, arrays: Mapping[str, np.ndarray]) -> Head:
        return cls(arrays["classes"], arrays["weight"], arrays["bias"], _views_of(arrays))


@dataclass(frozen=True, eq=False)
class Lesson:
    """What the answers so far say about every row."""

    classes: np.ndarray  # (C,) int64: cluster ids, rising; JUNK first if a person has marked junk
    probabilities: np.ndarray  # (n,C) float32; 1 where a person has said it, 0 where a person has refused it
    head: Head  # for rows that are not in the space
    examples: np.ndarray  # (n,) as given to `teach`

    @property
    def count(self) -> int:
        """How many rows a person has said something about."""
        return int((self.examples != NO_EXAMPLE).sum())

    @property
    def clusters(self) -> np.ndarray:
        """(n,) the likeliest class of each row."""
        return np.asarray(self.classes[self.probabilities.argmax(1)])

    def proposals(self, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows that would move (m,), to which cluster (m,) and how certainly (m,), most certain first.

        Examples and unreadable rows stay where they are. Without examples nothing would move.
        """
        to = self.clusters
        moves = (to != clusters) & (self.examples == NO_EXAMPLE) & (clusters != UNREADABLE)
        rows = np.flatnonzero(moves) if self.count else np.empty(0, np.int64)
        certainty = self.probabilities[rows].max(1) if len(rows) else np.empty(0, np.float32)
        order = np.argsort(-certainty, kind="stable")
        return rows[order], to[rows[order]], certainty[order]


def teach(
    space: Space,
    clusters: np.ndarray,
    examples: np.ndarray,
    refused: Mapping[int, np.ndarray] | None = None,
    seed: int = 0,
) -> Lesson:
    """Say of every row which cluster it belongs to.

    Parameters
    ----------
    clusters
        (n,) int64, of each row so far, of examples before they were answered. A prior: answers override it.
    examples
        (n,) int64, the cluster that a person gave a row, or JUNK; NO_EXAMPLE elsewhere.
    refused
        By cluster, rows of which a person said that they do not belong there.
    """
    given = examples != NO_EXAMPLE
    classes = np.unique(np.concatenate([clusters[clusters >= 0], examples[given]]))
    if not len(classes):
        raise InputError("no row has a cluster or an answer: there is nothing to learn from")
    banned, place = _banned(classes, refused or {}, len(clusters)), np.searchsorted(classes, examples)
    answers = _only(given, place, np.zeros((len(clusters), len(classes)), np.float32))
    prior, weight = _prior(classes, clusters, answers), _weight(clusters, examples)
    refused_rows = np.asarray(banned.any(1))
    for _ in range(1 + PASSES):
        share = np.where(refused_rows, 0, weight * len(classes) / len(clusters))  # they say nothing about other rows
        seeds = answers + share[:, None].astype(np.float32) * prior
        target = _only(given, place, _spread(space, seeds, prior, banned))
        head = _fit(space, classes, target, given, refused_rows, seed)
        chances = np.where(banned, 0, head.probabilities(space.rows))
        chances /= np.maximum(chances.sum(1, keepdims=True), 1e-12)
        prior, weight = _only(given, place, chances.astype(np.float32)), AGAIN
    return Lesson(classes, prior, head, examples.copy())


def choose_questions(
    space: Space, lesson: Lesson | None, clusters: np.ndarray, examples: np.ndarray, count: int, seed: int = 0
) -> np.ndarray:
    """Return rows to ask a person about next, at most `count` of them, the most useful first.

    Each is the row that tells most about rows like it which no answer tells about yet; after the first questions rows
    count by how probably the lesson is wrong about them. The more answers there are, the nearer are the rows that one
    more tells about. Where errors are rare, the most doubtful rows come first.
    """
    # Uncertainty herding (Bae et al. 2024): gain(s) = sum of u(x) max(0, k(x,s) - cover(x)) over all x
    free = np.flatnonzero((examples == NO_EXAMPLE) & (clusters >= 0))
    if len(free) <= count:
        return free
    if len(free) > max(POOL, count):
        free = np.sort(np.random.default_rng(seed).permutation(free)[: max(POOL, count)])
    answered = space.rows[np.flatnonzero(examples != NO_EXAMPLE)[-POOL:]]
    breadth = FIRST if len(answered) < 10 else BREADTH * math.sqrt(len(answered) / 10)
    if lesson is None or len(answered) < FEWEST:
        unsure = np.ones(len(free), np.float32)
    else:
        unsure = 1 - lesson.probabilities[free].max(1)
        unsure[~np.isin(lesson.clusters[free], examples)] = UNKNOWN  # nobody has shown what is in this cluster
    own = OWN * unsure if unsure.mean() < RARE else 0 * unsure
    likeness = np.exp(breadth * (space.rows[free] @ space.rows[free].T - 1))
    cover = np.exp(breadth * (_highest(space.rows[free], answered) - 1))
    chosen = np.empty(count, np.int64)
    for number in range(count):
        gain = unsure @ np.maximum(likeness - cover[:, None], 0) + own
        gain[chosen[:number]] = -1
        chosen[number] = gain.argmax()
        cover = np.maximum(cover, likeness[:, chosen[number]])
    return np.asarray(free[chosen])


def clusters_for_labels(
    labels: Mapping[int, str], names: Mapping[int, str], clusters: np.ndarray
) -> dict[str, int | None]:
    """Return which cluster each label means; None: a new one.

    A label that is the name of a cluster means this one. Another label names the unnamed cluster in which most of its
    rows lie, if they outnumber there the rows of each other label.

    Parameters
    ----------
    labels
        By row, what a person called it.
    names
        By cluster, its name; clusters without one are left out.
    clusters
        (n,) of each row before the answers.
    """
    found: dict[str, int | None] = {name: cluster for cluster, name in names.items()}
    taken = set(names)
    counts = Counter((label, int(clusters[row])) for row, label in labels.items() if clusters[row] >= 0)
    for (label, cluster), number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        rivals = [other for (name, place), other in counts.items() if place == cluster and name != label]
        if label not in found and cluster not in taken and number > max(rivals, default=0):
            found[label] = cluster
            taken.add(cluster)
    return {label: found.get(label) for label in dict.fromkeys(labels.values())}


def restlessness(before: Lesson, after: Lesson) -> float:
    """The share of rows that doubling the answers moves, by two lessons about the same rows, one with more answers."""
    moved = float((before.clusters != after.clusters).mean())
    return moved / max(math.log2(max(after.count, 1) / max(before.count, 1)), 1e-9)


def saturated(lessons: Sequence[Lesson]) -> bool:
    """Return whether more answers would change little: tell it lessons with rising numbers of answers, the newest last.

    Two lessons are enough, the earlier one with about half as many answers.
    """
    if len(lessons) < 2:
        return False
    half = min(lessons[:-1], key=lambda lesson: abs(lesson.count - lessons[-1].count / 2))
    return bool(half.count >= FEWEST and restlessness(half, lessons[-1]) < STILL)


def share_interval(right: int, asked: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the share of right ones among `total` rows, of which `asked` drawn at random were `right` times right.

    Clopper and Pearson's interval (1934) for a sample without replacement: all shares under which neither so few nor so
    many right answers were surprising. It is exact, and the narrower the larger the part that was asked.
    """
    from scipy.stats import hypergeom

    total, rare = max(total, asked), (1 - confidence) / 2
    low, high = right, total - (asked - right)  # what the answers leave possible
    fewest = _first(low, high, lambda count: bool(hypergeom.sf(right - 1, total, count, asked) > rare))
    beyond = _first(fewest, high + 1, lambda count: bool(hypergeom.cdf(right, total, count, asked) <= rare))
    return fewest / max(total, 1), (beyond - 1) / max(total, 1)


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first whole number from `low` on for which a condition holds, as it does at `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


# -- the space ---------------------------------------------------------------------------------------------------------


def _checked(features: np.ndarray) -> np.ndarray:
    features = np.asarray(features, dtype=np.float32)
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features).all(1))[0])
        raise InputError(f"the features of row {row} hold NaN or infinite values: leave this row out")
    return features


def _tensors_of(views: Sequence[View]) -> dict[str, np.ndarray]:
    numbered = list(enumerate(views))
    means = {f"mean.{number}": view.mean for number, view in numbered}
    return means | {f"directions.{number}": view.directions for number, view in numbered}


def _views_of(arrays: Mapping[str, np.ndarray]) -> tuple[View, ...]:
    count = sum(name.startswith("mean.") for name in arrays)
    return tuple(View(arrays[f"mean.{number}"], arrays[f"directions.{number}"]) for number in range(count))


def _unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), dtype=np.float32)


def _joined(views: Sequence[View], kinds: Sequence[np.ndarray]) -> np.ndarray:
    """Return (m,D) rows in which each kind of features counts as much."""
    if len(kinds) != len(views):
        raise ValueError(f"the space has {len(views)} kinds of features, not {len(kinds)}")
    placed = [view.place(kind) for view, kind in zip(views, kinds, strict=True)]
    return placed[0] if len(placed) == 1 else _unit(np.concatenate(placed, axis=1))


def _nearest(rows: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (n,k) the rows of highest cosine to each, itself left out, nearest first; and the cosines.

    Among many rows, only those in parts of the space near to a row's own are compared with it.
    """
    n = len(rows)
    count = max(0, min(count, n - 1))
    neighbours, cosine = np.empty((n, count), np.int32), np.empty((n, count), np.float32)
    for part, pool in _near_parts(rows, seed) if count else ():
        step = max(1, 2**24 // len(pool))
        for start in range(0, len(part), step):
            some = part[start : start + step]
            similar = rows[some] @ rows[pool].T
            similar[np.arange(len(some)), np.searchsorted(pool, some)] = -2
            places, cosine[some] = _largest(similar, count)
            neighbours[some] = pool[places]
    return neighbours, cosine


def _near_parts(rows: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return parts of the rows, each with the sorted rows among which its neighbours are sought."""
    everyone = np.arange(len(rows))
    if len(rows) <= COMPARED:
        yield everyone, everyone
        return
    rng, n_parts = np.random.default_rng(seed), len(rows) // PART
    sample = rows[rng.choice(len(rows), COMPARED, replace=False)]
    centres = sample[:n_parts]
    for _ in range(10):  # k-means by cosine
        nearest = (sample @ centres.T).argmax(1)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, sample)
        centres = np.where(np.bincount(nearest, minlength=n_parts)[:, None] > 0, _unit(sums), centres)
    part = (rows @ centres.T).argmax(1)
    members = np.split(np.argsort(part, kind="stable"), np.cumsum(np.bincount(part, minlength=n_parts))[:-1])
    near, _ = _largest(centres @ centres.T, COMPARED // PART)
    for number, own in enumerate(members):
        if len(own):
            yield own, np.sort(np.concatenate([members[other] for other in near[number]]))


def _largest(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns of the `count` largest values of each row, largest first, and the values."""
    places = np.argpartition(values, -count, axis=1)[:, -count:]
    order = np.argsort(-np.take_along_axis(values, places, 1), axis=1, kind="stable")
    places = np.take_along_axis(places, order, 1)
    return places, np.take_along_axis(values, places, 1)


# -- the lesson --------------------------------------------------------------------------------------------------------


def _banned(classes: np.ndarray, refused: Mapping[int, np.ndarray], n: int) -> np.ndarray:
    """Return (n,C) bool: what a person has refused. A row refused everywhere has nowhere else to go, so nothing is."""
    banned = np.zeros((n, len(classes)), bool)
    for cluster, rows in refused.items():
        banned[np.asarray(rows, np.int64), np.flatnonzero(classes == cluster)] = True
    banned[banned.all(1)] = False
    return banned


def _only(given: np.ndarray, place: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Return the chances with certainty for examples."""
    chances[given] = 0
    chances[given, place[given]] = 1
    return chances


def _weight(clusters: np.ndarray, examples: np.ndarray) -> float:
    """Return how many answers for each class the present clusters are worth in total."""
    placed = examples >= 0
    against = int((clusters != examples)[placed].sum())
    agreeing = (placed.sum() - against + 1) / (placed.sum() + 2)
    junk = min(2, (examples == JUNK).sum())  # a hundred junk images say no more against the clusters than two
    return float(PRIOR * agreeing**DOUBT / (1 + against + junk))


def _spread(space: Space, seeds: np.ndarray, prior: np.ndarray, banned: np.ndarray) -> np.ndarray:
    """Return (n,C) seeds spread over the graph; rows sum to 1. Rows that nothing reaches have the prior."""
    seeds = np.where(banned, 0, seeds)
    spread = seeds
    for _ in range(ROUNDS):
        spread = REACH * (space.affinity @ spread) + (1 - REACH) * seeds
    spread[banned] = 0
    total = spread.sum(1, keepdims=True)
    return np.where(total > 0, spread / np.maximum(total, 1e-30), prior)


def _prior(classes: np.ndarray, clusters: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return (n,C) what the cluster of a row says about its class, by the examples in this cluster."""
    inside = clusters >= 0
    member = np.searchsorted(classes, clusters[inside])
    counts = TRUST * np.eye(len(classes), dtype=np.float32)
    np.add.at(counts, member, answers[inside])
    prior = np.full(answers.shape, 1 / len(classes), np.float32)
    prior[inside] = (counts / counts.sum(1, keepdims=True))[member]
    return prior


def _gap(chances: np.ndarray) -> np.ndarray:
    """Return (n,) how far the best class is ahead of the next."""
    if chances.shape[1] < 2:
        return np.ones(len(chances), np.float32)
    best = np.partition(chances, -2, axis=1)
    return np.asarray(best[:, -1] - best[:, -2])


def _fit(
    space: Space, classes: np.ndarray, target: np.ndarray, given: np.ndarray, refused: np.ndarray, seed: int
) -> Head:
    """Fit a linear head by ridge regression. Answers weigh 1, other rows less, the surest most, refused ones 0."""
    others = np.flatnonzero(~given & ~refused)
    if len(others) > FITTED:
        others = np.random.default_rng(seed).choice(others, FITTED, replace=False)
    weights = np.concatenate([np.ones(given.sum()), OTHERS / max(len(others), 1) * _gap(target[others])])
    fitted = np.concatenate([np.flatnonzero(given), others])
    rows, rest = space.rows[fitted], weights * ~given[fitted] if len(others) else weights
    shares = rest @ target[fitted] / max(rest.sum(), 1e-12)
    middle = shares + np.clip(1 / len(classes) - shares, -EVEN, EVEN)  # what rows at the centre of the space get
    weighted = rows * weights[:, None].astype(np.float32)
    square = (weighted.T @ rows).astype(np.float64) + DECAY * np.eye(rows.shape[1])
    slopes = np.linalg.solve(square, (weighted.T @ (target[fitted] - middle)).astype(np.float64))
    return Head(classes, (SHARPNESS * slopes).astype(np.float32), (SHARPNESS * middle).astype(np.float32), space.views)


def _softmax(logits: np.ndarray) -> np.ndarray:
    chances = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(chances / chances.sum(1, keepdims=True))


# -- questions ---------------------------------------------------------------------------------------------------------


def _highest(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return (m,) the cosine of each row and the nearest of the others; without any, -inf."""
    return np.asarray((rows @ others.T).max(1, initial=-np.inf))
