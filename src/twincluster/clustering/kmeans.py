"""Spherical k-means on whitened features, with a prior on cluster sizes.

The prior adds one shift per cluster to the centroids: a row belongs to the cluster with the largest `row @ centre +
shift`, which a linear head can compute. `regroup` then moves whole groups of neighbouring rows between clusters if that
raises the score of the partition.

Everything runs on the device of the features, in chunks of bounded memory; random draws come from a generator on the
CPU, so a seed has the same effect on every device. Shapes: N rows, K clusters, D features, R starts, T trials, M
seeding pool, P parts that are joined to clusters.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import scipy.linalg
import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.core import InputError

CELLS = 2**24  # similarities in memory at once: 64 MiB in float32
SEEDING_POOL = 16_384  # least rows to draw starting centroids from; more do not improve the starts
STARTS_DRAWN = 4  # starts drawn per start that is run, because k-means never finds a blob missed by its start ...
FEW_CLUSTERS = 50  # ... up to this many clusters; above, drawing costs too much
ROWS_PER_DIRECTION = 10  # with fewer rows, the variances of a whitening are not reliable
SAME = 1e-6  # rows closer than this (1 - cosine) are equal in float32


@dataclass(frozen=True, eq=False)
class Clusters:
    centres: Tensor  # (K,D) unit rows
    labels: Tensor  # (N,) int64, the nearest centre of each row
    similarity: Tensor  # (N,) cosine of each row to its centre
    objective: float  # mean of the similarities: higher is better


@dataclass(frozen=True, eq=False)
class Whitening:
    """Removes the mean of all rows and equalises the variance of their directions."""

    mean: Tensor  # (D,)
    matrix: Tensor  # (D,D)

    def __call__(self, features: Tensor) -> Tensor:
        """Return whitened unit rows (N,D)."""
        return unit_rows(self.rows(features))

    def rows(self, features: Tensor) -> Tensor:
        """Return whitened rows (N,D), not normalised."""
        return (features.to(self.mean.dtype) - self.mean) @ self.matrix


@torch.no_grad()
def whiten(features: Tensor, shrinkage: float = 0.3) -> Whitening:
    """Return the whitening of some rows.

    Directions with less than `shrinkage` times the mean variance are not amplified; with few rows per direction the
    limit is higher, because small variances are then accidental. Without whitening, the few directions of large
    variance that contrastive features always have decide every cluster.
    """
    features = _finite(features.float())
    mean = features.mean(0)
    centred = features - mean
    variance, directions = principal_directions(centred)
    caution = 1 + ROWS_PER_DIRECTION * features.shape[1] / len(features)
    floor = (shrinkage * caution * variance.mean()).clamp(min=torch.finfo(variance.dtype).tiny)
    return Whitening(mean, directions / (variance.clamp(min=0) + floor).sqrt())


def principal_directions(centred: Tensor) -> tuple[Tensor, Tensor]:
    """Return variances (d,), smallest first, and their directions (d,d) as columns."""
    with torch.autocast(centred.device.type, enabled=False):
        covariance = centred.T @ centred / len(centred)
    variance, directions = _eigen(covariance.double())
    return variance.to(centred.dtype), directions.to(centred.dtype)


def _eigen(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (d,), smallest first, and eigenvectors (d,d) of a symmetric matrix in double precision."""
    try:
        variance, directions = torch.linalg.eigh(covariance)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # divide and conquer may not converge if most variances are zero; QR iteration does
        values, vectors = scipy.linalg.eigh(covariance.cpu().numpy(), driver="ev")
        variance = torch.from_numpy(values).to(covariance)
        directions = torch.from_numpy(vectors).to(covariance)
    return variance, directions


@torch.no_grad()
def spherical_kmeans(
    features: Tensor,
    n_clusters: int,
    *,
    seed: int,
    init: Tensor | None = None,
    n_init: int = 3,
    n_iter: int = 50,
    tol: float = 1e-4,
) -> Clusters:
    """Run k-means by cosine. Return the best of `n_init` k-means++ starts and, if given, the warm start `init` (K,D).

    A start stops after `n_iter` rounds, or when a round lowers the mean of (1 - cosine) by less than the share `tol`.
    """
    if not 1 <= n_clusters <= len(features):
        raise InputError(
            f"{len(features)} rows cannot form {n_clusters} clusters: choose 1 to {len(features)} clusters"
        )
    if n_init < 0 or (n_init == 0 and init is None):
        raise ValueError("n_init must be at least 1, or 0 together with init")
    if init is not None and init.shape != (n_clusters, features.shape[1]):
        raise ValueError(f"init has shape {tuple(init.shape)}, not {(n_clusters, features.shape[1])}")
    with torch.autocast(features.device.type, enabled=False):
        features = unit_rows(features)
        starts = [] if init is None else [unit_rows(init.to(features.device))]
        if n_init > 0:
            generator = torch.Generator().manual_seed(seed)
            starts += list(_starting_centres(features, n_clusters, n_init, generator))
        results = [_lloyd(features, start, n_iter, tol) for start in starts]
    return max(results, key=lambda clusters: clusters.objective)  # the warm start wins a tie


def nearest(rows: Tensor, centres: Tensor, shift: Tensor | float = 0.0) -> Tensor:
    """Return the centroid (N,) with the largest product with each row, plus `shift` (K,)."""
    return torch.cat([(part @ centres.T + shift).argmax(dim=1) for part in torch.split(rows, _rows(len(centres)))])


def match_labels(old: Tensor, new: Tensor, n_clusters: int) -> Tensor:
    """Return the permutation p (K,) for which p[new] agrees with `old` on most rows; rows labelled -1 do not count."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    both = (old >= 0) & (new >= 0)
    pairs = new[both].long() * n_clusters + old[both].long()
    counts = torch.bincount(pairs, minlength=n_clusters**2).view(n_clusters, n_clusters)  # (new, old)
    _, columns = linear_sum_assignment(counts.cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, dtype=torch.int64, device=new.device)


def widest_gaps(gap: Tensor, labels: Tensor, share: float) -> Tensor:
    """Return a mask (n,) of the `share` of each cluster's members with the largest gap, rounded up."""
    order = gap.argsort(descending=True, stable=True)
    order = order[labels[order].argsort(stable=True)]  # by cluster, largest gap first
    sizes = torch.bincount(labels)
    first = sizes.cumsum(0) - sizes  # of each cluster in that order
    rank = torch.arange(len(labels), device=labels.device) - first[labels[order]]
    chosen = torch.empty_like(labels, dtype=torch.bool)
    chosen[order] = rank < (share * sizes.double()).ceil()[labels[order]]
    return chosen


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows of length one in float32. A zero row, which has no direction, becomes the diagonal."""
    rows = rows.float()
    largest = _finite(torch.linalg.vector_norm(rows, ord=math.inf, dim=1, keepdim=True))
    rows = rows / largest.clamp(min=torch.finfo(torch.float32).tiny)  # so that squares neither overflow nor underflow
    rows[largest[:, 0] == 0] = 1.0
    return rows.div_(torch.linalg.vector_norm(rows, dim=1, keepdim=True))


def _finite(values: Tensor) -> Tensor:
    if not values.isfinite().all():
        raise InputError("the features contain NaN or infinite values: training diverged, lower the learning rate")
    return values


def _rows(n_columns: int) -> int:
    """Return how many rows of similarities to `n_columns` others fit in memory at once."""
    return max(1, CELLS // n_columns)


def _starting_centres(features: Tensor, n_clusters: int, n_starts: int, generator: torch.Generator) -> Tensor:
    """Return the best (n_starts,K,D) of R starts by greedy k-means++, drawn in parallel.

    Each next centroid is the best for the pool of T rows drawn in proportion to their squared distance.
    """
    pool = features
    size = max(SEEDING_POOL, 32 * n_clusters)
    if len(features) > size:
        pool = features[torch.randperm(len(features), generator=generator)[:size].to(features.device)]
    n_drawn = n_starts * (STARTS_DRAWN if n_clusters <= FEW_CLUSTERS else 1)
    trials = 2 + int(math.log(n_clusters))
    start = torch.arange(n_drawn, device=pool.device)
    gaps = torch.full((n_drawn, len(pool)), 2.0, device=pool.device)  # 1 - cosine to the nearest centre so far
    chosen = []
    for draw in torch.rand(n_clusters, n_drawn, trials, generator=generator).to(pool.device):
        candidates = _draw(gaps, draw)  # (R,T)
        closer = 1 - pool[candidates.flatten()] @ pool.T  # (R*T,M)
        closer = torch.minimum(closer.view(n_drawn, trials, -1), gaps[:, None])
        best = closer.sum(dim=2).argmin(dim=1)  # (R,)
        gaps = closer[start, best]
        gaps = gaps.masked_fill(gaps < SAME, 0.0)
        chosen.append(candidates[start, best])
    followed = gaps.sum(dim=1).topk(n_starts, largest=False).indices
    return pool[torch.stack(chosen, dim=1)[followed]]


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw indices (R,T) into M in proportion to the weights (R,M); uniformly if all weights are zero."""
    weights = weights + (weights.sum(dim=1, keepdim=True) == 0)
    steps = _wide(weights).cumsum(dim=1)  # (R,M)
    return torch.searchsorted(steps, _wide(uniform) * steps[:, -1:], right=True).clamp(max=weights.shape[1] - 1)


def _wide(values: Tensor) -> Tensor:
    """Convert to float64 for long sums, if the device supports it."""
    return values if values.device.type == "mps" else values.double()


@dataclass(frozen=True, eq=False)
class _Round:
    clusters: Clusters
    sums: Tensor  # (K,D) of the members of each cluster
    lost: Tensor  # (K,) bool, clusters without direction: no members, or members that cancel out


def _lloyd(features: Tensor, centres: Tensor, n_iter: int, tol: float) -> Clusters:
    now = _assign(features, centres)
    for _ in range(n_iter):
        after = _assign(features, _move(features, now))
        gain = after.clusters.objective - now.clusters.objective
        if gain <= 0 and not now.lost.any():
            break
        settled = gain <= tol * (1 - now.clusters.objective) and not after.lost.any()
        now = after
        if settled:
            break
    return now.clusters


def _assign(features: Tensor, centres: Tensor) -> _Round:
    sums = torch.zeros_like(centres)
    labels, similarity = [], []
    for part in torch.split(features, _rows(len(centres))):
        value, label = (part @ centres.T).max(dim=1)
        add_rows(sums, label, part)
        labels.append(label)
        similarity.append(value)
    label, value = torch.cat(labels), torch.cat(similarity)
    clusters = Clusters(centres, label, value, objective=_wide(value).mean().item())
    return _Round(clusters, sums, lost=torch.linalg.vector_norm(sums, dim=1) < SAME)


def add_rows(sums: Tensor, labels: Tensor, rows: Tensor) -> None:
    """Add each row to the sum of its cluster, in a deterministic order."""
    if not sums.is_cuda:
        sums.index_add_(0, labels, rows)
        return
    # index_add_ on CUDA adds in random order; a product does not
    member = rows.new_zeros(len(rows), len(sums)).scatter_(1, labels[:, None], 1.0)
    sums += member.T @ rows


def _move(features: Tensor, now: _Round) -> Tensor:
    """Return new centroids: the direction of each sum. A lost cluster moves to the row that fits worst."""
    centres: Tensor = now.sums / torch.linalg.vector_norm(now.sums, dim=1, keepdim=True).clamp(min=SAME)
    similarity = now.clusters.similarity
    for cluster in now.lost.nonzero()[:, 0].tolist():
        worst = features[similarity.argmin()]
        centres[cluster] = worst
        similarity = torch.maximum(similarity, features @ worst)  # rows near it are covered now
    return centres


MARGIN = 3.0  # mean gap between a sample's two best clusters, in nats; the scale of the prior on sizes
PARTS = 3  # per cluster, if sizes may be uneven: k-means splits large clusters, and joining the parts repairs that
MOST_PARTS = 8_000  # parts to join: the distances of all pairs take 256 MB, and the same again while joining
ROWS_PER_PART = 4
SHARPNESS = 0.3  # temperature of soft counts of sizes: almost hard, but smooth
ROUNDS = 20  # of alternating updates of centroids and sizes
STEPS = 30  # updates of the shifts per round; the next round continues
SETTLED = 1e-3  # converged: share of rows that change cluster in a round, or nats that a shift moves in a step


@dataclass(frozen=True, eq=False)
class Sized:
    centres: Tensor  # (K,D) unit rows
    shift: Tensor  # (K,) added to the products of rows and centres
    labels: Tensor  # (N,) int64
    strain: float  # standard deviation of the shifts that the prior needs, in nats


@torch.no_grad()
def weigh_sizes(rows: Tensor, found: Clusters, balance: float, unit: Tensor | None = None) -> Sized:
    """Return clusters of rows (N,D, of any length) under a prior on their sizes, starting from those of k-means.

    `unit` are the same rows at length one, if the caller has them.

    With `balance` 1 sizes are equal, with 0 they are left to k-means. In between, N times their entropy counts with
    weight MARGIN * balance / (1 - balance) against the sum of the products in nats. Below 0 sizes follow the rows: a
    cluster gets -balance times the logarithm of its share; at -1 this is a mixture with learned weights.
    """
    centres, shift = found.centres, rows.new_zeros(len(found.centres))
    if not balance or len(centres) == 1:
        return Sized(centres, shift, found.labels, 0.0)
    sample, scale = some(rows, len(centres)), nats(rows, centres)
    unit, asked = F.normalize(rows, dim=1) if unit is None else unit, []
    best = Sized(centres, shift, nearest(rows, centres, shift), 0.0)
    for _ in range(ROUNDS):
        shift = _shifts(scale * sample @ centres.T, shift, balance)
        labels = nearest(rows, centres, shift / scale)
        if _count(labels) < _count(best.labels):  # too many small clusters to distinguish
            break
        asked.append(float(shift.std()))
        changed = float((labels != best.labels).float().mean())
        best = Sized(centres, shift / scale, labels, min(asked[0], asked[-1]) if balance > 0 else 0.0)
        if changed < SETTLED:
            break
        moved = directions(unit, labels, len(centres))
        centres = torch.where(moved.any(1, keepdim=True), moved, centres)  # an empty cluster stays where it was
    return best


def check_parts(n_clusters: int, balance: float) -> None:
    """Raise InputError before training if too many clusters would have to be joined from parts."""
    if balance < 0 and n_clusters > MOST_PARTS // 2:
        raise InputError(
            f"a balance of {balance:g} allows at most {MOST_PARTS // 2:,} clusters, not {n_clusters:,}: choose fewer, "
            "or a balance of 0"
        )


def some(rows: Tensor, n_clusters: int) -> Tensor:
    """Return a subset of rows for estimates, as many as fit in memory with all centroids."""
    return rows[:: math.ceil(len(rows) * n_clusters / CELLS)]


def nats(rows: Tensor, centres: Tensor) -> Tensor:
    """Return the factor that brings products of rows and centroids to the scale of MARGIN."""
    return MARGIN / gaps(some(rows, len(centres)) @ centres.T).mean().clamp(min=1e-6)


def gaps(logits: Tensor) -> Tensor:
    """Return the difference (N,) between the best and second-best cluster of each row."""
    best = logits.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


@torch.no_grad()
def joined_parts(unit: Tensor, n_clusters: int, *, seed: int, n_init: int) -> Clusters:
    """Cluster unit rows into clusters of any size: run k-means with more clusters than wanted, and join the closest."""
    from scipy.cluster.hierarchy import cut_tree, linkage  # takes a third of a second

    n_parts = min(PARTS * n_clusters, MOST_PARTS, len(unit) // ROWS_PER_PART)
    if n_parts <= n_clusters:
        return spherical_kmeans(unit, n_clusters, seed=seed, n_init=n_init)
    parts = spherical_kmeans(unit, n_parts, seed=seed, n_init=n_init)
    tree = linkage(parts.centres.double().cpu().numpy(), method="average")  # (P-1,4)
    joined = torch.as_tensor(cut_tree(tree, n_clusters=n_clusters)[:, 0], dtype=torch.int64, device=unit.device)
    labels = joined[parts.labels]
    if _count(labels) < n_clusters:  # few distinct rows
        return spherical_kmeans(unit, n_clusters, seed=seed, n_init=n_init)
    centres = directions(unit, labels, n_clusters)
    similarity = (unit * centres[labels]).sum(1)
    return Clusters(centres, labels, similarity, objective=float(similarity.mean()))


def directions(unit: Tensor, labels: Tensor, n_clusters: int) -> Tensor:
    """Return the mean direction of the rows of each cluster, (K,D); zero for empty clusters."""
    return F.normalize(sums(unit, labels, n_clusters), dim=1)


def sums(rows: Tensor, labels: Tensor, n_clusters: int) -> Tensor:
    """Return the sum of the rows of each cluster, (K,D)."""
    total, chunk = rows.new_zeros(n_clusters, rows.shape[1]), max(1, CELLS // n_clusters)
    for part, label in zip(torch.split(rows, chunk), torch.split(labels, chunk), strict=True):
        add_rows(total, label, part)
    return total


def _shifts(logits: Tensor, shift: Tensor, balance: float) -> Tensor:
    """Return the shifts (K,) at which cluster shares agree with the prior."""
    n_clusters = logits.shape[1]
    for _ in range(STEPS):
        share = ((logits + shift) / SHARPNESS).softmax(1).mean(0).clamp(min=1e-9)
        excess = (n_clusters * share).log()  # (K,) 0 for equal shares
        if balance < 0:
            new = -balance * excess
        else:  # a Sinkhorn step, shorter for a soft prior
            weight = MARGIN * balance
            new = weight / (weight + SHARPNESS * (1 - balance)) * (shift - SHARPNESS * excess)
        new = new - new.mean()
        moved, shift = float((new - shift).abs().max()), new
        if moved < SETTLED:
            break
    return shift


def _count(labels: Tensor) -> int:
    """Return the number of clusters that have rows."""
    return int((torch.bincount(labels) > 0).sum())


GROUPS = (5, 10, 20, 40)  # per cluster: neither fragments nor several true clusters
ROWS_PER_GROUP = 8  # least average; k-means moves fewer rows by itself
POOL = 8_192  # rows to find groups among; the others join the nearest group
FEW_ROUNDS = 5  # of k-means for groups, which need not be optimal
REGROUP_ROUNDS = 5  # of moving groups, then rows
LEAST = 1e-7  # least gain of a move, in nats, as a mean over all rows
GAIN = 1e-5  # least relative gain of a round; otherwise it is the last


class _Groups(NamedTuple):
    """Sums over the members of each group, divided by N."""

    unit: Tensor  # (G,D) of unit rows, for centroids
    rows: Tensor  # (G,D) of rows of any length, to compare with centroids
    share: Tensor  # (G,1) of all rows

    def of(self, clusters: Tensor) -> "_Groups":
        """Return the sums over the groups of each cluster, given as (G,K) ones and zeros."""
        return _Groups(*(clusters.T @ sums for sums in self))


@torch.no_grad()
def regroup(unit: Tensor, rows: Tensor, sized: Sized, balance: float, *, per_cluster: int, seed: int) -> Sized:
    """Move groups between clusters while that raises the score. Return `sized` itself if nothing moves."""
    n_clusters = len(sized.centres)
    n_groups = min(per_cluster * n_clusters, len(unit) // ROWS_PER_GROUP)
    if balance < 0 or not 1 < n_clusters <= FEW_CLUSTERS or n_groups < 2 * n_clusters:
        return sized
    group = _groups(unit, n_groups, seed)  # (N,)
    each = (unit, rows, torch.ones_like(rows[:, :1]))
    groups = _Groups(*(sums(values, group, n_groups) / len(rows) for values in each))
    # the same weight for any prior: a weight that falls with the balance gave worse moves for soft priors
    weight, best = MARGIN if balance else 0.0, objective(rows, sized)
    for _ in range(REGROUP_ROUNDS):
        members = torch.bincount(group * n_clusters + sized.labels, minlength=n_groups * n_clusters)
        before = members.view(n_groups, n_clusters).argmax(1)  # (G,) majority cluster
        after = _move_groups(groups, before, n_clusters, nats(rows, sized.centres), weight)
        if torch.equal(before, after):
            break
        moved = directions(unit, after[group], n_clusters)
        init = torch.where(
            moved.any(1, keepdim=True), moved, sized.centres
        )  # a cluster without groups keeps its centroid
        found = spherical_kmeans(unit, n_clusters, seed=seed, init=init, n_init=0)
        new = weigh_sizes(rows, found, balance, unit)
        reached = objective(rows, new)
        if not reached > best + GAIN * abs(best):
            break
        sized, best = new, reached
    return sized


def objective(rows: Tensor, sized: Sized) -> float:
    """Return the mean over rows of the product with their centroid plus its shift."""
    parts = torch.split(rows, max(1, CELLS // len(sized.centres)))
    return sum(float((part @ sized.centres.T + sized.shift).amax(1).double().sum()) for part in parts) / len(rows)


def _groups(unit: Tensor, n_groups: int, seed: int) -> Tensor:
    """Return the group (N,) of each row. If rows are equal, some groups are empty."""
    drawn = torch.randperm(len(unit), generator=torch.Generator().manual_seed(seed))[:POOL]
    pool = unit[drawn.to(unit.device)]
    centres = pool[:n_groups]
    for _ in range(FEW_ROUNDS):
        moved = directions(pool, nearest(pool, centres), n_groups)
        centres = torch.where(moved.any(1, keepdim=True), moved, centres)
    return nearest(unit, centres)


def _move_groups(groups: _Groups, clusters: Tensor, n_clusters: int, scale: Tensor, weight: float) -> Tensor:
    """Return the cluster (G,) of each group after greedy moves, the best first, until no move helps."""
    clusters, numbers = clusters.clone(), torch.arange(len(clusters), device=clusters.device)
    inhabited = (groups.share > 0).long()  # (G,1)
    for _ in range(len(clusters)):
        member = F.one_hot(clusters, n_clusters)  # (G,K)
        whole = groups.of(member.to(groups.unit.dtype))
        now = _worth(whole, groups, 0, scale, weight)[0]  # (K,)
        loss = (now - _worth(whole, groups, -1, scale, weight))[numbers, clusters]  # (G,)
        gain = _worth(whole, groups, 1, scale, weight) - now - loss[:, None]  # (G,K)
        gain[numbers, clusters] = 0.0
        gain[(member * inhabited).sum(0)[clusters] == 1] = 0.0  # the last group stays, so that no cluster becomes empty
        best = int(gain.argmax())
        if not gain.flatten()[best] > LEAST:
            break
        clusters[best // n_clusters] = best % n_clusters
    return clusters


def _worth(whole: _Groups, groups: _Groups, sign: int, scale: Tensor, weight: float) -> Tensor:
    """Return (G,K): the score of each cluster after each group has joined (1) or left (-1), or unchanged (0)."""
    product = (whole.rows * whole.unit).sum(1) + sign**2 * (groups.rows * groups.unit).sum(1, keepdim=True)
    product = product + sign * (groups.rows @ whole.unit.T + groups.unit @ whole.rows.T)
    square = (whole.unit**2).sum(1) + sign**2 * (groups.unit**2).sum(1, keepdim=True)
    square = square + sign * 2 * groups.unit @ whole.unit.T
    share = (whole.share.T + sign * groups.share).clamp(min=1e-9)
    return scale * product / square.clamp(min=1e-12).sqrt() - weight * share * share.log()
