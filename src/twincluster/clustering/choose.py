"""Choose the number of clusters from features alone.

If gaps set clusters apart and none has a gap inside, their number is clear (`gaps.py`). Else it is a guess: the number
that gaps confirm best, or that on which two halves of the data agree best. For the latter, whitening sets all true
clusters equally far apart. So k-means with too few centroids merges some of them and with too many splits some, at
random each time; only the right number gives the same clusters on two halves. The silhouette on features that are not
whitened decides ties. Shapes: N rows, K clusters, D features, M sampled rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clustering import gaps, kmeans
from twincluster.core import InputError

ROWS = 12_000  # sampled rows, unless there are many clusters ...
ROWS_PER_CLUSTER = 20  # ... because each half needs ten rows
FEWEST_PER_CLUSTER = 4  # rows per cluster; with fewer, two halves cannot agree
VARIANCE_KEPT = 0.9  # share of the variance in the directions used; the rest is noise
FEWEST_DIRECTIONS = 32  # least directions used, because unit rows in one or two directions always form clusters
SPLITS = 3  # into two halves, the same splits for every number of clusters
STARTS = 6  # of each k-means: with few starts, poor local optima look like disagreement
STARTS_MANY = 2  # above kmeans.FEW_CLUSTERS, where starts are slow and local optima matter less
ROUNDS = 30  # of each k-means
STEP = 1.2  # ratio of neighbouring candidates in the first pass
REFINED = 6  # more candidates between the neighbours of the best
APART = 1.3  # numbers with a smaller ratio count as the same answer
SECOND_ROWS = 5_000  # sampled rows for the silhouette
SECOND_STARTS = 3  # of k-means for the silhouette
TIE = 0.06  # difference of scores within noise: about two standard errors of a mean of three splits
DIRECTIONS = 128  # in which encoders are compared, as in the recipe `pretrained`
FOUND_AGAIN = 0.5  # least overlap of two clusters that count as the same
EVIDENCE = 0.15  # least difference from the agreement on a Gaussian cloud without clusters


@dataclass(frozen=True)
class Candidate:
    n_clusters: int
    score: float  # adjusted Rand index between the clusters of two halves: 1 is agreement, 0 chance
    spread: float  # standard deviation of the score over the splits


@dataclass(frozen=True)
class Choice:
    n_clusters: int  # the best number; a guess unless `clear`
    candidates: tuple[Candidate, ...]  # all that were tried, in ascending order
    runners_up: tuple[Candidate, ...]  # the best other answers, best first
    clear: bool
    reason: str  # why the number is a guess; "" if clear

    def describe(self) -> str:
        """Return the decision as one line."""
        if not self.clear:
            return f"cannot tell how many clusters there are, using {self.n_clusters}: {self.reason}"
        return f"{self.n_clusters} clusters, chosen because gaps set them apart and none has a gap inside"


@torch.no_grad()
def choose_clusters(features: Tensor | np.ndarray, low: int, high: int, *, seed: int) -> Choice:
    """Return the number of clusters from `low` to `high` that fits features (N,D) best."""
    features = torch.as_tensor(features).float()
    _check(features, low, high)
    generator = torch.Generator().manual_seed(seed)
    with torch.autocast(features.device.type, enabled=False):
        rows, variance = _rows(features, high, generator)  # (M,D), (D,)
        found = {k: _candidate(rows, k, seed) for k in _grid(low, high)}
        for k in _between(_best(found).n_clusters, sorted(found)):
            found[k] = _candidate(rows, k, seed)
        apart = gaps.set_apart(features.cpu().numpy(), low, high, seed)
        if apart and apart.plausible and apart.n_clusters not in found:
            found[apart.n_clusters] = _candidate(rows, apart.n_clusters, seed)
        candidates = tuple(found[k] for k in sorted(found))
        answers = _answers(candidates)
        plain = features[torch.randperm(len(features), generator=generator)[:SECOND_ROWS].to(features.device)]
        plain = F.normalize(plain - plain.mean(0), dim=1)
        second = {answer.n_clusters: _silhouette(plain, answer.n_clusters, seed) for answer in answers}
        best, *others = _settle(answers, second)
        if apart and apart.plausible:
            best, others = found[apart.n_clusters], [other for other in answers if other.n_clusters != apart.n_clusters]
        reason = _reason(apart, best, others, candidates, second)
        if not (apart and apart.clear):
            cloud = torch.randn(rows.shape, generator=generator).to(rows.device) * variance.sqrt()
            reason = _no_groups(best, _candidate(cloud, best.n_clusters, seed)) or reason
    return Choice(best.n_clusters, candidates, tuple(others), clear=not reason, reason=reason)


@dataclass(frozen=True)
class Standing:
    """How the clusters of one encoder stand up to a second look; no label is needed."""

    stability: float  # adjusted Rand index between the clusters of two halves
    sizes: tuple[int, ...]  # of the clusters, largest first
    overlap: tuple[float, ...]  # of each cluster with the most similar one of another encoder (Jaccard), mean over them

    @property
    def found_again(self) -> int:
        """The number of clusters that the other encoders find, too."""
        return sum(share >= FOUND_AGAIN for share in self.overlap)


@torch.no_grad()
def compare_spaces(spaces: Sequence[np.ndarray], n_clusters: int, *, seed: int) -> list[Standing]:
    """Compare the clusters that k-means finds in several encoders' features (N,D) of the same images."""
    rows = [_main_directions(torch.as_tensor(np.asarray(space)).float()) for space in spaces]
    for space in rows:
        _check(space, n_clusters, n_clusters)
    labels = [kmeans.spherical_kmeans(space, n_clusters, seed=seed, n_init=STARTS).labels for space in rows]
    members = [F.one_hot(label, n_clusters).double() for label in labels]  # (N,K)
    standings = []
    for place, own in enumerate(members):
        sizes, order = own.sum(0).sort(descending=True)
        overlaps = [_overlap(own, other) for number, other in enumerate(members) if number != place]
        mean = torch.stack(overlaps).mean(0)[order] if overlaps else torch.zeros(0)
        stability = _candidate(rows[place], n_clusters, seed).score
        standings.append(Standing(stability, tuple(map(int, sizes.tolist())), tuple(mean.tolist())))
    return standings


def _main_directions(features: Tensor) -> Tensor:
    """Return unit rows (N,d) in the directions of largest variance, which keep their proportions."""
    centred = features - features.mean(0)
    _, directions = kmeans.principal_directions(centred)
    return F.normalize(centred @ directions[:, -DIRECTIONS:], dim=1)


def _overlap(own: Tensor, other: Tensor) -> Tensor:
    """Return the Jaccard index (K,) of each cluster with the most similar cluster of another labelling."""
    common = own.T @ other  # (K,K)
    return (common / (own.sum(0)[:, None] + other.sum(0) - common).clamp(min=1)).amax(1)


def plot(choice: Choice, path: str | Path) -> None:
    """Plot score against number of clusters, with the choice and its runners-up, in the file format of `path`."""
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
        raise InputError(f"{low} to {high} is not a range of clusters: choose 2 or more, the smaller number first")
    most = len(features) // FEWEST_PER_CLUSTER
    if high > most:
        raise InputError(
            f"{len(features)} rows are too few to tell whether they form {high} clusters: "
            + (f"choose at most {most}" if most >= low else f"add images, to {FEWEST_PER_CLUSTER * low} or more")
        )


def _rows(features: Tensor, high: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return whitened rows (M,D) of a sample in their main directions, and the variance of each direction (D,)."""
    whitening = kmeans.whiten(features)
    size = max(ROWS, ROWS_PER_CLUSTER * high)
    if len(features) > size:
        features = features[torch.randperm(len(features), generator=generator)[:size].to(features.device)]
    rows = whitening(features)
    variance = rows.var(0)  # (D,)
    # undo the scaling of the whitening, to get the variance of the features
    order = (variance / whitening.matrix.square().sum(0)).sort(descending=True)
    share = order.values.cumsum(0) / order.values.sum()
    n_kept = max(FEWEST_DIRECTIONS, int((share < VARIANCE_KEPT).sum()) + 1)
    kept = order.indices[:n_kept]
    return rows[:, kept], variance[kept]


def _grid(low: int, high: int) -> list[int]:
    """Return numbers from `low` to `high`, each about STEP times the one before."""
    grid = [low]
    while grid[-1] < high:
        grid.append(min(high, max(grid[-1] + 1, round(grid[-1] * STEP))))
    return grid


def _between(best: int, tried: list[int]) -> list[int]:
    """Return at most REFINED evenly spread numbers between the neighbours of the best one."""
    place = tried.index(best)
    low, high = tried[max(0, place - 1)], tried[min(len(tried) - 1, place + 1)]
    untried = [k for k in range(low + 1, high) if k != best]
    if len(untried) <= REFINED:
        return untried
    return [untried[(2 * i + 1) * len(untried) // (2 * REFINED)] for i in range(REFINED)]


def _candidate(rows: Tensor, n_clusters: int, seed: int) -> Candidate:
    """Score a number: run k-means on two halves, label all rows with each result, and compare; repeat for several
    splits.
    """
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
    """Return the agreement of two labellings on pairs of rows: 0 for chance, 1 for equal.

    A single cluster counts as chance.
    """
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
    """Return the best candidates with clearly different numbers, best first."""
    answers: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda candidate: (-candidate.score, candidate.n_clusters)):
        if len(answers) < at_most and all(_apart(candidate, other) for other in answers):
            answers.append(candidate)
    return answers


def _apart(one: Candidate, other: Candidate) -> bool:
    small, large = sorted((one.n_clusters, other.n_clusters))
    return large > APART * small


def _silhouette(rows: Tensor, n_clusters: int, seed: int) -> float:
    """Return the mean cosine silhouette of k-means on unit rows (M,D), in M*K steps by way of sums."""
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
    """Reorder the answers: of those that tie with the best, the one with the highest silhouette comes first."""
    tied = [answer for answer in answers if answer.score > answers[0].score - TIE]
    leader = max(tied, key=lambda answer: second[answer.n_clusters])
    return [leader, *(answer for answer in answers if answer is not leader)]


def _reason(
    apart: gaps.Partition | None,
    best: Candidate,
    others: list[Candidate],
    tried: tuple[Candidate, ...],
    second: dict[int, float],
) -> str:
    """Return why the number is uncertain, or ""."""
    if len(tried) == 1:
        return f"only {best.n_clusters} was tried: set a range"
    if apart and apart.clear:
        return ""
    if apart and apart.plausible:
        return _edge(best, tried) or apart.doubt()
    return (
        _doubt(best, others, tried)
        or _second_doubt(best, second)
        or f"two halves of the data agree best on {best.n_clusters} clusters, but no gaps set them apart"
    )


def _no_groups(best: Candidate, by_chance: Candidate) -> str:
    """Return a doubt if halves of a Gaussian cloud agree about as well, or ""."""
    if best.score >= by_chance.score + EVIDENCE:
        return ""
    return (
        f"two halves of the data agree hardly better ({best.score:.2f} at {best.n_clusters}) than data without "
        f"clusters ({by_chance.score:.2f}): the images form no distinct groups, or none that the features show"
    )


def _doubt(best: Candidate, others: list[Candidate], tried: tuple[Candidate, ...]) -> str:
    """Return a doubt from the agreement of halves, or "". The edge at 2 raises none: nothing smaller is possible."""
    if edge := _upper_edge(best, tried) or _edge(best, tried):
        return edge
    if others and others[0].score > best.score - TIE:
        other = others[0]
        return (
            f"two halves agree about as well on {other.n_clusters} clusters ({other.score:.2f}) as on "
            f"{best.n_clusters} ({best.score:.2f}), which are better separated"
        )
    return ""


FURTHER = "set a range that goes further, or the number that you want"


def _edge(best: Candidate, tried: tuple[Candidate, ...]) -> str:
    """Return a doubt if the best number is the smallest or largest that was tried, or ""."""
    low = tried[0].n_clusters
    if best is tried[-1]:
        return f"the best number is the largest that was tried, {best.n_clusters}: {FURTHER}"
    if best.n_clusters == low > 2:
        return f"the best number is the smallest that was tried, {low}: set a range that begins lower"
    return ""


def _upper_edge(best: Candidate, tried: tuple[Candidate, ...]) -> str:
    """Return a doubt if the best number is close to the largest one that was tried, or ""."""
    last, top = tried[-1], _best({candidate.n_clusters: candidate for candidate in tried})
    if best is last and top is not last:  # it ties, and its silhouette made it the guess
        return (
            f"two halves agree about as well on {top.n_clusters} clusters ({top.score:.2f}) as on the largest number "
            f"that was tried, {last.n_clusters} ({last.score:.2f}): {FURTHER}"
        )
    if best is last:
        return _edge(best, tried)
    if _apart(best, last) or last.score <= best.score - TIE:
        return ""
    return (
        f"two halves agree about as well on the largest number that was tried, {last.n_clusters} ({last.score:.2f}), "
        f"as on {best.n_clusters} ({best.score:.2f}): {FURTHER}"
    )


def _second_doubt(best: Candidate, second: dict[int, float]) -> str:
    other = max(second, key=lambda k: second[k])
    if second[other] <= second[best.n_clusters]:
        return ""
    return (
        f"two halves agree best on {best.n_clusters} clusters, but {other} are better separated "
        f"(silhouette {second[other]:.2f} against {second[best.n_clusters]:.2f})"
    )


def _ticks(numbers: list[int], chosen: int) -> list[int]:
    """Return the chosen number, the ends, and others at least a quarter apart, so that labels do not overlap."""
    ticks: list[int] = []
    for number in [chosen, numbers[0], numbers[-1], *numbers]:
        if all(max(number, tick) >= 1.25 * min(number, tick) for tick in ticks):
            ticks.append(number)
    return sorted(ticks)
