"""How many clusters there are, from features alone: the number that two halves of the data agree on.

K-means on whitened features sets all true clusters equally far apart, so that too few centres must merge some of them
and too many must split some, each time at random; only the right number comes out the same on two halves. A second
opinion, the silhouette on features that are not whitened, decides ties and may raise doubt.
Shapes: N rows, K clusters, D feature, M rows looked at.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clustering import kmeans
from twincluster.core import InputError

ROWS = 12_000  # rows looked at, unless there are many clusters ...
ROWS_PER_CLUSTER = 20  # ... of which each half should see ten rows
FEWEST_PER_CLUSTER = 4  # below, halves do not share enough rows of a cluster to agree on it
VARIANCE_KEPT = 0.9  # the directions that hold this share of the variance: the rest is noise, and costs time
FEWEST_DIRECTIONS = 32  # kept in any case: rows of unit length in one or two directions form clusters by themselves
SPLITS = 3  # into two halves, the same splits for every number of clusters
STARTS = 6  # of each k-means: a poor local optimum reads as disagreement, so few starts blur the peak
STARTS_MANY = 2  # above assign.FEW_CLUSTERS, where every start takes long and errs by a few clusters of many
ROUNDS = 30  # of each k-means
STEP = 1.2  # ratio of neighbouring candidates at first
REFINED = 6  # further candidates between the best one's neighbours
APART = 1.3  # numbers whose ratio is smaller are the same answer
SECOND_ROWS = 5_000  # rows that the second opinion looks at
SECOND_STARTS = 3  # of its k-means
TIE = 0.06  # difference of scores that another seed may turn round: about two standard errors of a mean of three splits
EVIDENCE = 0.15  # by which halves must agree better than halves of a cloud without clusters


@dataclass(frozen=True)
class Candidate:
    n_clusters: int
    score: float  # adjusted Rand index of the clusters found in two halves: 1 is agreement, 0 chance
    spread: float  # standard deviation of the score over the splits


@dataclass(frozen=True)
class Choice:
    n_clusters: int  # the best number; where the evidence is not clear, a guess
    candidates: tuple[Candidate, ...]  # all that were tried, by rising number
    runners_up: tuple[Candidate, ...]  # the best other answers, best first
    clear: bool
    reason: str  # why one cannot tell; empty when the evidence is clear

    def describe(self) -> str:
        """The decision in one line."""
        if not self.clear:
            return f"cannot tell how many clusters there are, took {self.n_clusters}: {self.reason}"
        others = " or ".join(str(other.n_clusters) for other in self.runners_up)
        return f"{self.n_clusters} clusters, chosen because two halves of the data agree on them best" + (
            f" (else {others})" if others else ""
        )


@torch.no_grad()
def choose_clusters(features: Tensor | np.ndarray, low: int, high: int, *, seed: int) -> Choice:
    """The number of clusters between `low` and `high` that is found most reproducibly in features (N,D)."""
    features = torch.as_tensor(features).float()
    _check(features, low, high)
    generator = torch.Generator().manual_seed(seed)
    with torch.autocast(features.device.type, enabled=False):
        rows, variance = _rows(features, high, generator)  # (M,D), (D,)
        found = {k: _candidate(rows, k, seed) for k in _grid(low, high)}
        for k in _between(_best(found).n_clusters, sorted(found)):
            found[k] = _candidate(rows, k, seed)
        candidates = tuple(found[k] for k in sorted(found))
        answers = _answers(candidates)
        plain = features[torch.randperm(len(features), generator=generator)[:SECOND_ROWS].to(features.device)]
        plain = F.normalize(plain - plain.mean(0), dim=1)
        second = {answer.n_clusters: _silhouette(plain, answer.n_clusters, seed) for answer in answers}
        best, *others = _settle(answers, second)
        cloud = torch.randn(rows.shape, generator=generator).to(rows.device) * variance.sqrt()
        by_chance = _candidate(cloud, best.n_clusters, seed)
    reason = _doubt(best, by_chance, others, candidates) or _second_doubt(best, second)
    return Choice(best.n_clusters, candidates, tuple(others), clear=not reason, reason=reason)


def plot(choice: Choice, path: str | Path) -> None:
    """Draw score against number of clusters, with the choice and its runners-up, as the file type that `path` names."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install 'twincluster[plots]'") from error
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    numbers = [candidate.n_clusters for candidate in choice.candidates]
    scores = [candidate.score for candidate in choice.candidates]
    spreads = [candidate.spread for candidate in choice.candidates]
    axes.errorbar(numbers, scores, yerr=spreads, color="tab:blue", marker="o", markersize=3, capsize=2, linewidth=1)
    axes.axvline(choice.n_clusters, color="tab:green" if choice.clear else "tab:orange", linestyle="--")
    for other in choice.runners_up:
        axes.annotate(str(other.n_clusters), (other.n_clusters, other.score), (0, 8), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xticks(_ticks(numbers, choice.n_clusters), minor=False)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()
    axes.set_xlabel("number of clusters")
    axes.set_ylabel("agreement of two halves (adjusted Rand index)")
    axes.set_title(f"{choice.n_clusters} clusters" if choice.clear else f"cannot tell; best guess {choice.n_clusters}")
    figure.savefig(path, dpi=150)


def _check(features: Tensor, low: int, high: int) -> None:
    if not 2 <= low <= high:
        raise InputError(f"{low} to {high} is no range of clusters: ask for 2 or more, the smaller number first")
    most = len(features) // FEWEST_PER_CLUSTER
    if high > most:
        raise InputError(
            f"{len(features)} rows are too few to tell whether they form {high} clusters: "
            + (f"ask for at most {most}" if most >= low else f"give at least {FEWEST_PER_CLUSTER * low} images")
        )


def _rows(features: Tensor, high: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Whitened rows (M,D) of some of the features in their main directions, and the variance of each direction (D,)."""
    whitening = kmeans.whiten(features)
    size = max(ROWS, ROWS_PER_CLUSTER * high)
    if len(features) > size:
        features = features[torch.randperm(len(features), generator=generator)[:size].to(features.device)]
    rows = whitening(features)
    variance = rows.var(0)  # (D,)
    # the whitening has divided each direction by a length: with it, the variance as the features have it
    order = (variance / whitening.matrix.square().sum(0)).sort(descending=True)
    share = order.values.cumsum(0) / order.values.sum()
    n_kept = max(FEWEST_DIRECTIONS, int((share < VARIANCE_KEPT).sum()) + 1)
    kept = order.indices[:n_kept]
    return rows[:, kept], variance[kept]


def _grid(low: int, high: int) -> list[int]:
    """Numbers from `low` to `high`, each about STEP times the last."""
    grid = [low]
    while grid[-1] < high:
        grid.append(min(high, max(grid[-1] + 1, round(grid[-1] * STEP))))
    return grid


def _between(best: int, tried: list[int]) -> list[int]:
    """At most REFINED numbers, evenly spread, between the neighbours of the best one so far."""
    place = tried.index(best)
    low, high = tried[max(0, place - 1)], tried[min(len(tried) - 1, place + 1)]
    untried = [k for k in range(low + 1, high) if k != best]
    if len(untried) <= REFINED:
        return untried
    return [untried[(2 * i + 1) * len(untried) // (2 * REFINED)] for i in range(REFINED)]


def _candidate(rows: Tensor, n_clusters: int, seed: int) -> Candidate:
    """K-means on two halves of the rows, several times; each result labels all rows, and the two are compared."""
    scores = []
    n_init = STARTS if n_clusters <= kmeans.FEW_CLUSTERS else STARTS_MANY
    for split in range(SPLITS):
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed + split))
        first, second = (
            _labels(rows, rows[half.to(rows.device)], n_clusters, n_init, seed + 2 * split + which)
            for which, half in enumerate(order.chunk(2))
        )
        scores.append(_adjusted_rand(first, second, n_clusters))
    mean = sum(scores) / SPLITS
    return Candidate(n_clusters, mean, math.sqrt(sum((score - mean) ** 2 for score in scores) / (SPLITS - 1)))


def _labels(rows: Tensor, half: Tensor, n_clusters: int, n_init: int, seed: int) -> Tensor:
    centres = kmeans.spherical_kmeans(half, n_clusters, seed=seed, n_init=n_init, n_iter=ROUNDS).centres
    return kmeans.nearest(rows, centres)


def _adjusted_rand(first: Tensor, second: Tensor, n_clusters: int) -> float:
    """Share of pairs of rows on which two labellings agree, from 0 for chance to 1; one single cluster is chance."""
    counts = torch.bincount(first * n_clusters + second, minlength=n_clusters**2).view(n_clusters, n_clusters)
    together, left, right = (_pairs(part) for part in (counts, counts.sum(1), counts.sum(0)))
    expected = left * right / _pairs(counts.sum())
    most = (left + right) / 2
    return 0.0 if most == expected else (together - expected) / (most - expected)


def _pairs(counts: Tensor) -> float:
    return float((counts * (counts - 1) // 2).sum())


def _best(found: dict[int, Candidate]) -> Candidate:
    return max(found.values(), key=lambda candidate: (candidate.score, -candidate.n_clusters))


def _answers(candidates: tuple[Candidate, ...], at_most: int = 4) -> list[Candidate]:
    """The best candidates that differ clearly in number, best first."""
    answers: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda candidate: (-candidate.score, candidate.n_clusters)):
        if len(answers) < at_most and all(_apart(candidate, other) for other in answers):
            answers.append(candidate)
    return answers


def _apart(one: Candidate, other: Candidate) -> bool:
    small, large = sorted((one.n_clusters, other.n_clusters))
    return large > APART * small


def _silhouette(rows: Tensor, n_clusters: int, seed: int) -> float:
    """Mean silhouette by cosine of k-means on unit rows (M,D), in M*K steps: a mean of distances is one to a mean."""
    n_clusters = min(n_clusters, len(rows))
    found = kmeans.spherical_kmeans(rows, n_clusters, seed=seed, n_init=SECOND_STARTS)
    sizes = torch.bincount(found.labels, minlength=n_clusters)  # (K,)
    sums = torch.zeros_like(found.centres)  # (K,D)
    kmeans.add_rows(sums, found.labels, rows)
    total = sizes - rows @ sums.T  # (M,K) sum of the distances to the members of each cluster
    own = found.labels[:, None]
    inside = total.gather(1, own)[:, 0] / (sizes[found.labels] - 1).clamp(min=1)
    others = (total / sizes).masked_fill(sizes == 0, math.inf).scatter(1, own, math.inf)
    outside = others.min(dim=1).values
    value = (outside - inside) / torch.maximum(outside, inside).clamp(min=kmeans.SAME)
    return float(torch.where((sizes[found.labels] > 1) & outside.isfinite(), value, 0.0).mean())


def _settle(answers: list[Candidate], second: dict[int, float]) -> list[Candidate]:
    """The same answers; of those that tie with the best, the one with the highest silhouette leads."""
    tied = [answer for answer in answers if answer.score > answers[0].score - TIE]
    leader = max(tied, key=lambda answer: second[answer.n_clusters])
    return [leader, *(answer for answer in answers if answer is not leader)]


def _doubt(best: Candidate, by_chance: Candidate, others: list[Candidate], tried: tuple[Candidate, ...]) -> str:
    """Why one cannot tell, or nothing. The edge at 2 is no doubt: there is no smaller number to ask for."""
    k, low = best.n_clusters, tried[0].n_clusters
    if len(tried) == 1:
        return f"only {k} was tried: ask for a range"
    if best.score < by_chance.score + EVIDENCE:
        return (
            f"two halves agree on their clusters hardly better ({best.score:.2f} at {k}) than in data without any "
            f"({by_chance.score:.2f}): they form no distinct groups, or none that the features show"
        )
    if edge := _upper_edge(best, tried):
        return edge
    if k == low > 2:
        return f"the best number is the smallest that was tried, {low}: ask for a range that begins lower"
    if others and others[0].score > best.score - TIE:
        other = others[0]
        return (
            f"two halves agree about as well on {other.n_clusters} clusters ({other.score:.2f}) as on {k} "
            f"({best.score:.2f}), which are set apart more clearly"
        )
    return ""


def _upper_edge(best: Candidate, tried: tuple[Candidate, ...]) -> str:
    """Doubt where nothing beyond the best number was tried that could show agreement fall again: the largest number is
    the same answer, or nearly, and halves agree on it about as well."""
    last, top = tried[-1], _best({candidate.n_clusters: candidate for candidate in tried})
    further = "ask for a range that goes further, or for the number that you want"
    if best is last and top is not last:  # it ties, and its silhouette made it the guess
        return (
            f"two halves agree about as well on {top.n_clusters} clusters ({top.score:.2f}) as on the largest number "
            f"that was tried, {last.n_clusters} ({last.score:.2f}): {further}"
        )
    if best is last:
        return f"the best number is the largest that was tried, {last.n_clusters}: {further}"
    if _apart(best, last) or last.score <= best.score - TIE:
        return ""
    return (
        f"two halves agree about as well on the largest number that was tried, {last.n_clusters} ({last.score:.2f}), "
        f"as on {best.n_clusters} ({best.score:.2f}): {further}"
    )


def _second_doubt(best: Candidate, second: dict[int, float]) -> str:
    other = max(second, key=lambda k: second[k])
    if second[other] <= second[best.n_clusters]:
        return ""
    return (
        f"two halves agree best on {best.n_clusters} clusters, but {other} are set apart more clearly "
        f"(silhouette {second[other]:.2f} against {second[best.n_clusters]:.2f})"
    )


def _ticks(numbers: list[int], chosen: int) -> list[int]:
    """The chosen number, the ends, and others at least a quarter apart from these, so that no two overlap."""
    ticks: list[int] = []
    for number in [chosen, numbers[0], numbers[-1], *numbers]:
        if all(max(number, tick) >= 1.25 * min(number, tick) for tick in ticks):
            ticks.append(number)
    return sorted(ticks)
