"""Learn from a person's answers about a few rows which cluster every row belongs to. Imports no torch.

`Space` prepares the features once. `teach` spreads the answers over a graph of nearest neighbours, with the clusters so
far as a prior, and fits a linear head to the result; `choose_questions` says which rows to ask about next.
Shapes: n rows, F features, D dimensions of the space, k neighbours, C classes, m rows of a subset.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from twincluster.core import InputError

NO_EXAMPLE = -3  # in `examples`: nobody has said where this row belongs
JUNK, UNREADABLE = -2, -1  # in `clusters`, as in runs/edit_log.py; JUNK in `examples`, too
DIRECTIONS = 128  # principal directions of each kind of features
NEIGHBOURS = 15
ROUNDS, REACH = 40, 0.95  # of spreading: F <- REACH S F + (1 - REACH) Y
TRUST = 2.0  # answers that a cluster is worth: so many against it, and its rows no longer follow it
PRIOR = 0.3  # weight of a class's rows so far, beside 1 for all of its examples
EXAMPLE_WEIGHT = 5.0  # of an example in the head's fit; other rows weigh at most 1
DECAY = 1e-4  # of the head's weights
SCALE = 16.0  # of the head's inputs, unit rows whose single values are small
TYPICAL = 20  # questions about typical rows before the hard ones
CANDIDATES = 10  # hard rows considered for each question
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
        """(m,D) unit rows."""
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
        """(m,D) other rows in this space."""
        return _joined(self.views, [features] if second is None else [features, second])

    def tensors(self) -> dict[str, np.ndarray]:
        """Everything as arrays by name, to be saved."""
        own = {"rows": self.rows, "neighbours": self.neighbours, "cosine": self.cosine}
        return own | _tensors_of(self.views)

    @classmethod
    def from_tensors(cls, arrays: Mapping[str, np.ndarray]) -> Space:
        return cls(_views_of(arrays), arrays["rows"], arrays["neighbours"], arrays["cosine"])

    @cached_property
    def density(self) -> np.ndarray:
        """(n,) the mean cosine of each row and its neighbours."""
        return self.cosine.mean(1) if self.cosine.shape[1] else np.ones(len(self.rows), np.float32)

    @cached_property
    def affinity(self) -> Any:
        """S, sparse (n,n): cosines cubed, either way, with symmetric normalisation."""
        from scipy.sparse import csr_array

        n, k = self.neighbours.shape
        weight = np.maximum(self.cosine, 0).ravel() ** 3
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
        """The class of each row (m,) and the probability of every class (m,C); junk is left out unless asked for."""
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
        """Rows that would move (m,), to which cluster (m,) and how certainly (m,), most certain first.

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
        (n,) int64, of each row so far. A prior: answers override it.
    examples
        (n,) int64, the cluster that a person gave a row, or JUNK; NO_EXAMPLE elsewhere.
    refused
        By cluster, rows of which a person said that they do not belong there.
    """
    given = examples != NO_EXAMPLE
    classes = np.unique(np.concatenate([clusters[clusters >= 0], examples[given]]))
    if not len(classes):
        raise InputError("no row has a cluster or an answer: there is nothing to learn from")
    banned = _banned(classes, refused or {}, len(clusters))
    target = _only(given, np.searchsorted(classes, examples), _spread(space, classes, clusters, examples, banned))
    head = _fit(space, classes, target, np.where(given, EXAMPLE_WEIGHT, _gap(target)))
    chances = np.where(banned, 0, head.probabilities(space.rows))
    chances /= np.maximum(chances.sum(1, keepdims=True), 1e-12)
    chances = _only(given, np.searchsorted(classes, examples), chances)
    return Lesson(classes, chances.astype(np.float32), head, examples.copy())


def choose_questions(
    space: Space, lesson: Lesson | None, clusters: np.ndarray, examples: np.ndarray, count: int, seed: int = 0
) -> np.ndarray:
    """Rows to ask a person about next, at most `count` of them, the most useful first.

    The first answers are about typical rows of different parts of the space; later ones about rows that the lesson
    cannot decide, in dense places, far from each other.
    """
    free = np.flatnonzero((examples == NO_EXAMPLE) & (clusters >= 0))
    answered = np.flatnonzero(examples != NO_EXAMPLE)
    if len(free) <= count:
        return free
    if lesson is None or len(answered) < TYPICAL:
        return _typical(space, free, answered, count, seed)
    return _hard(space, lesson, free, count, seed)


def clusters_for_labels(
    labels: Mapping[int, str], names: Mapping[int, str], clusters: np.ndarray
) -> dict[str, int | None]:
    """Which cluster each label means; None: a new one.

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
    """Whether more answers would change little: tell it lessons with rising numbers of answers, the newest last.

    Two lessons are enough, the earlier one with about half as many answers.
    """
    if len(lessons) < 2:
        return False
    half = min(lessons[:-1], key=lambda lesson: abs(lesson.count - lessons[-1].count / 2))
    return bool(half.count >= TYPICAL and restlessness(half, lessons[-1]) < STILL)


def share_interval(right: int, asked: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The share of right ones among `total` rows, of which `asked` drawn at random were `right` times right.

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
    """The first whole number from `low` on for which a condition holds; it holds from there on, and at `high`."""
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
    """(m,D) rows in which each kind of features counts as much."""
    if len(kinds) != len(views):
        raise ValueError(f"the space has {len(views)} kinds of features, not {len(kinds)}")
    placed = [view.place(kind) for view, kind in zip(views, kinds, strict=True)]
    return placed[0] if len(placed) == 1 else _unit(np.concatenate(placed, axis=1))


def _nearest(rows: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,k) the rows of highest cosine to each, itself left out, nearest first; and the cosines."""
    n = len(rows)
    count = max(0, min(count, n - 1))
    neighbours, cosine = np.empty((n, count), np.int32), np.empty((n, count), np.float32)
    step = max(1, 2**24 // max(n, 1))
    for start in range(0, n if count else 0, step):
        part = np.arange(start, min(start + step, n))
        similar = rows[part] @ rows.T
        similar[np.arange(len(part)), part] = -2
        neighbours[part], cosine[part] = _largest(similar, count)
    return neighbours, cosine


def _largest(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns of the `count` largest values of each row, largest first, and the values."""
    places = np.argpartition(values, -count, axis=1)[:, -count:]
    order = np.argsort(-np.take_along_axis(values, places, 1), axis=1, kind="stable")
    places = np.take_along_axis(places, order, 1)
    return places, np.take_along_axis(values, places, 1)


# -- the lesson --------------------------------------------------------------------------------------------------------


def _banned(classes: np.ndarray, refused: Mapping[int, np.ndarray], n: int) -> np.ndarray:
    """(n,C) bool: what a person has refused. A row refused everywhere has nowhere else to go, so nothing is."""
    banned = np.zeros((n, len(classes)), bool)
    for cluster, rows in refused.items():
        banned[np.asarray(rows, np.int64), np.flatnonzero(classes == cluster)] = True
    banned[banned.all(1)] = False
    return banned


def _only(given: np.ndarray, place: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """The chances with certainty for examples."""
    chances[given] = 0
    chances[given, place[given]] = 1
    return chances


def _spread(
    space: Space, classes: np.ndarray, clusters: np.ndarray, examples: np.ndarray, banned: np.ndarray
) -> np.ndarray:
    """(n,C) examples and prior, spread over the graph; rows sum to 1."""
    given = examples != NO_EXAMPLE
    answers = np.zeros((len(clusters), len(classes)), np.float32)
    answers[given, np.searchsorted(classes, examples[given])] = 1
    prior = _prior(classes, clusters, answers)
    seeds = answers / np.maximum(answers.sum(0), 1) + PRIOR * prior / np.maximum(prior.sum(0), 1e-6)
    seeds[banned] = 0
    spread = seeds
    for _ in range(ROUNDS):
        spread = REACH * (space.affinity @ spread) + (1 - REACH) * seeds
    spread[banned] = 0
    total = spread.sum(1, keepdims=True)
    return np.where(total > 0, spread / np.maximum(total, 1e-30), prior)


def _prior(classes: np.ndarray, clusters: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """(n,C) what the cluster of a row says about its class, by the examples in this cluster."""
    inside = clusters >= 0
    member = np.searchsorted(classes, clusters[inside])
    counts = TRUST * np.eye(len(classes), dtype=np.float32)
    np.add.at(counts, member, answers[inside])
    prior = np.full(answers.shape, 1 / len(classes), np.float32)
    prior[inside] = (counts / counts.sum(1, keepdims=True))[member]
    return prior


def _gap(chances: np.ndarray) -> np.ndarray:
    """(n,) how far the best class is ahead of the next."""
    if chances.shape[1] < 2:
        return np.ones(len(chances), np.float32)
    best = np.partition(chances, -2, axis=1)
    return np.asarray(best[:, -1] - best[:, -2])


def _fit(space: Space, classes: np.ndarray, target: np.ndarray, weights: np.ndarray) -> Head:
    """A multinomial head of the likeliest classes."""
    from scipy.optimize import minimize

    rows, n_classes = SCALE * space.rows, len(classes)
    best = target.argmax(1)
    wanted = np.eye(n_classes, dtype=np.float32)[best]
    share = (weights / max(weights.sum(), 1e-12)).astype(np.float32)[:, None]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        both = flat.astype(np.float32).reshape(-1, n_classes)
        weight, bias = both[:-1], both[-1]
        chances = _softmax(rows @ weight + bias)
        value = -(share[:, 0] * np.log(np.maximum(chances[np.arange(len(best)), best], 1e-12))).sum()
        error = share * (chances - wanted)
        slope = np.concatenate([rows.T @ error + DECAY * weight, error.sum(0, keepdims=True)])
        return float(value) + DECAY / 2 * float((weight**2).sum()), slope.ravel().astype(np.float64)

    start = np.zeros((rows.shape[1] + 1) * n_classes)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 100})
    both = found.x.astype(np.float32).reshape(-1, n_classes)
    return Head(classes, SCALE * both[:-1], both[-1], space.views)


def _softmax(logits: np.ndarray) -> np.ndarray:
    chances = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(chances / chances.sum(1, keepdims=True))


# -- questions ---------------------------------------------------------------------------------------------------------


def _typical(space: Space, free: np.ndarray, answered: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The most typical row of each of the largest parts in which nobody has answered yet."""
    part = _parts(space.rows, min(len(answered) + count, len(space.rows)), seed)
    sizes = np.bincount(part)
    sizes[part[answered]] = 0
    order = free[np.lexsort((-space.density[free], -sizes[part[free]]))]  # by part, most typical first
    _, first = np.unique(part[order], return_index=True)
    rest = np.setdiff1d(np.arange(len(order)), first)
    return np.asarray(order[np.concatenate([np.sort(first), rest])][:count])


def _hard(space: Space, lesson: Lesson, free: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Rows with a small gap in dense places, one of each part of them."""
    worth = (1 - _gap(lesson.probabilities[free])) * np.maximum(space.density[free], 0)
    order = np.argsort(-worth, kind="stable")[: CANDIDATES * count]
    part = _parts(space.rows[free[order]], count, seed)
    _, first = np.unique(part, return_index=True)
    rest = np.setdiff1d(np.arange(len(order)), first)
    return np.asarray(free[order[np.concatenate([np.sort(first), rest])]][:count])


def _parts(rows: np.ndarray, count: int, seed: int, rounds: int = 20) -> np.ndarray:
    """(n,) the k-means part of each row, by cosine."""
    rng = np.random.default_rng(seed)
    centres = rows[_far_apart(rows, count, rng)]
    for _ in range(rounds):
        part = (rows @ centres.T).argmax(1)
        sums = np.zeros_like(centres)
        np.add.at(sums, part, rows)
        centres = np.where(np.bincount(part, minlength=count)[:, None] > 0, _unit(sums), centres)
    return np.asarray((rows @ centres.T).argmax(1))


def _far_apart(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Rows drawn as k-means++ draws its first centres."""
    chosen = [int(rng.integers(len(rows)))]
    away = np.full(len(rows), np.inf)
    for _ in range(count - 1):
        away = np.minimum(away, np.maximum(1 - rows @ rows[chosen[-1]], 0))
        total = away.sum()
        chosen.append(int(rng.choice(len(rows), p=away / total if total > 0 else None)))
    return np.array(chosen)
