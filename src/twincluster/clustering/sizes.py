"""How even clusters are: a prior on their sizes, as one shift per cluster beside the centres that k-means finds.

A row belongs to the cluster with the largest `row @ centre + shift`, which is what a linear head computes.
`regroup` then moves whole groups of neighbouring rows between clusters where that raises the worth of the partition.
Shapes: N rows, K clusters, D feature, P parts that are joined to clusters.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clustering import kmeans
from twincluster.clustering.kmeans import Clusters
from twincluster.core import InputError

MARGIN = 3.0  # mean gap, in nats, between a sample's two best clusters; sizes are weighed on this scale
PARTS = 3  # for each cluster, when clusters may be uneven: k-means cuts large kinds up, and joining mends that
MOST_PARTS = 8_000  # that are joined: the distances of all pairs take 256 MB, and as much again while joining
ROWS_PER_PART = 4
SHARPNESS = 0.3  # temperature at which sizes are counted: near enough to counting each row once, and still smooth
ROUNDS = 20  # of moving centres after sizes, and sizes after centres
STEPS = 30  # towards the right shifts, in a round; the next one goes on from there
SETTLED = 1e-3  # share of rows that change their cluster in the last round; nats that a shift moves in the last step


@dataclass(frozen=True, eq=False)
class Sized:
    centres: Tensor  # (K,D) unit rows
    shift: Tensor  # (K,) added to the products of rows and centres
    labels: Tensor  # (N,) int64
    strain: float  # spread (standard deviation) of the shifts that the prior asked for at first, in nats


@torch.no_grad()
def weigh_sizes(rows: Tensor, found: Clusters, balance: float, unit: Tensor | None = None) -> Sized:
    """Clusters of rows (N,D, of any length), from those of k-means by cosine, under a prior on their sizes.

    unit: the same rows at length one, for who has them.

    balance: 1 makes sizes equal and 0 leaves them to k-means. Between, N times their entropy counts with the weight
    MARGIN * balance / (1 - balance) against the sum of the products in nats. Below 0 sizes follow the rows: a cluster
    gets -balance times the logarithm of its share, which at -1 is what a mixture with learned weights does.
    """
    centres, shift = found.centres, rows.new_zeros(len(found.centres))
    if not balance or len(centres) == 1:
        return Sized(centres, shift, found.labels, 0.0)
    sample, scale = some(rows, len(centres)), nats(rows, centres)
    unit, asked = F.normalize(rows, dim=1) if unit is None else unit, []
    best = Sized(centres, shift, kmeans.nearest(rows, centres, shift), 0.0)
    for _ in range(ROUNDS):
        shift = _shifts(scale * sample @ centres.T, shift, balance)
        labels = kmeans.nearest(rows, centres, shift / scale)
        if _count(labels) < _count(best.labels):  # too many small clusters to be told from one another
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
    """Before anything is trained: whether so many clusters can be joined from parts."""
    if balance < 0 and n_clusters > MOST_PARTS // 2:
        raise InputError(
            f"the balance is {balance:g}, which joins parts of clusters and compares all of them: there may be "
            f"{MOST_PARTS // 2:,} clusters then, not {n_clusters:,}; ask for fewer, or for a balance of 0"
        )


def some(rows: Tensor, n_clusters: int) -> Tensor:
    """As many as are compared with the centres at once: shares and gaps can be told from them."""
    return rows[:: math.ceil(len(rows) * n_clusters / kmeans.CELLS)]


def nats(rows: Tensor, centres: Tensor) -> Tensor:
    """What the products of rows and centres are multiplied by, to be on the scale of MARGIN."""
    return MARGIN / gaps(some(rows, len(centres)) @ centres.T).mean().clamp(min=1e-6)


def gaps(logits: Tensor) -> Tensor:
    """(N,) by how much the best cluster of a row is ahead of the next."""
    best = logits.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


@torch.no_grad()
def joined_parts(unit: Tensor, n_clusters: int, *, seed: int, n_init: int) -> Clusters:
    """Clusters of unit rows that may be of any size: more than are wanted, by k-means, and the closest ones joined."""
    from scipy.cluster.hierarchy import cut_tree, linkage  # which takes a third of a second

    n_parts = min(PARTS * n_clusters, MOST_PARTS, len(unit) // ROWS_PER_PART)
    if n_parts <= n_clusters:
        return kmeans.spherical_kmeans(unit, n_clusters, seed=seed, n_init=n_init)
    parts = kmeans.spherical_kmeans(unit, n_parts, seed=seed, n_init=n_init)
    tree = linkage(parts.centres.double().cpu().numpy(), method="average")  # (P-1,4)
    joined = torch.as_tensor(cut_tree(tree, n_clusters=n_clusters)[:, 0], dtype=torch.int64, device=unit.device)
    labels = joined[parts.labels]
    if _count(labels) < n_clusters:  # the same few rows again and again
        return kmeans.spherical_kmeans(unit, n_clusters, seed=seed, n_init=n_init)
    centres = directions(unit, labels, n_clusters)
    similarity = (unit * centres[labels]).sum(1)
    return Clusters(centres, labels, similarity, objective=float(similarity.mean()))


def directions(unit: Tensor, labels: Tensor, n_clusters: int) -> Tensor:
    """(K,D): the mean direction of the rows of each cluster, zero for one without any."""
    return F.normalize(sums(unit, labels, n_clusters), dim=1)


def sums(rows: Tensor, labels: Tensor, n_clusters: int) -> Tensor:
    """(K,D) of the rows of each cluster."""
    total, chunk = rows.new_zeros(n_clusters, rows.shape[1]), max(1, kmeans.CELLS // n_clusters)
    for part, label in zip(torch.split(rows, chunk), torch.split(labels, chunk), strict=True):
        kmeans.add_rows(total, label, part)
    return total


def _shifts(logits: Tensor, shift: Tensor, balance: float) -> Tensor:
    """The shifts (K,) under which the shares of the clusters, and what the prior makes of them, agree."""
    n_clusters = logits.shape[1]
    for _ in range(STEPS):
        share = ((logits + shift) / SHARPNESS).softmax(1).mean(0).clamp(min=1e-9)
        excess = (n_clusters * share).log()  # (K,) 0 where a cluster has its equal share
        if balance < 0:
            new = -balance * excess
        else:  # a step of Sinkhorn's; where the prior is soft, a shorter one
            weight = MARGIN * balance
            new = weight / (weight + SHARPNESS * (1 - balance)) * (shift - SHARPNESS * excess)
        new = new - new.mean()
        moved, shift = float((new - shift).abs().max()), new
        if moved < SETTLED:
            break
    return shift


def _count(labels: Tensor) -> int:
    """How many clusters have rows."""
    return int((torch.bincount(labels) > 0).sum())


GROUPS = (5, 10, 20, 40)  # for each cluster: what moves must be neither a part of a kind nor more than one
ROWS_PER_GROUP = 8  # at least, on average: fewer move on their own, as k-means has it
POOL = 8_192  # rows that groups are found among; the others join the nearest
FEW_ROUNDS = 5  # of finding them: they need not be the best
REGROUP_ROUNDS = 5  # of moving groups, and rows after them
LEAST = 1e-7  # nats, as a mean over all rows, that a move must bring
GAIN = 1e-5  # share of the score by which a round must be better, or it is the last


class _Groups(NamedTuple):
    """Sums over the members of each, divided by N."""

    unit: Tensor  # (G,D) of unit rows, which make centres
    rows: Tensor  # (G,D) of rows of any length, which are compared with them
    share: Tensor  # (G,1) of all rows

    def of(self, clusters: Tensor) -> "_Groups":
        """The same sums over the groups of each cluster, given (G,K) as ones and zeros."""
        return _Groups(*(clusters.T @ sums for sums in self))


@torch.no_grad()
def regroup(unit: Tensor, rows: Tensor, sized: Sized, balance: float, *, per_cluster: int, seed: int) -> Sized:
    """Clusters at least as good as `sized`, by their score; those themselves where there is nothing to move."""
    n_clusters = len(sized.centres)
    n_groups = min(per_cluster * n_clusters, len(unit) // ROWS_PER_GROUP)
    if balance < 0 or not 1 < n_clusters <= kmeans.FEW_CLUSTERS or n_groups < 2 * n_clusters:
        return sized
    group = _groups(unit, n_groups, seed)  # (N,)
    each = (unit, rows, torch.ones_like(rows[:, :1]))
    groups = _Groups(*(sums(values, group, n_groups) / len(rows) for values in each))
    # the same for any prior: with a weight that falls with the balance, moves came out worse where it is soft
    weight, best = MARGIN if balance else 0.0, worth(rows, sized)
    for _ in range(REGROUP_ROUNDS):
        members = torch.bincount(group * n_clusters + sized.labels, minlength=n_groups * n_clusters)
        before = members.view(n_groups, n_clusters).argmax(1)  # (G,) where most of them are
        after = _move(groups, before, n_clusters, nats(rows, sized.centres), weight)
        if torch.equal(before, after):
            break
        moved = directions(unit, after[group], n_clusters)
        init = torch.where(moved.any(1, keepdim=True), moved, sized.centres)  # without a group: from where it was
        found = kmeans.spherical_kmeans(unit, n_clusters, seed=seed, init=init, n_init=0)
        new = weigh_sizes(rows, found, balance, unit)
        reached = worth(rows, new)
        if not reached > best + GAIN * abs(best):
            break
        sized, best = new, reached
    return sized


def worth(rows: Tensor, sized: Sized) -> float:
    """Mean of what rows get from their clusters: product with the centre, and shift."""
    parts = torch.split(rows, max(1, kmeans.CELLS // len(sized.centres)))
    return sum(float((part @ sized.centres.T + sized.shift).amax(1).double().sum()) for part in parts) / len(rows)


def _groups(unit: Tensor, n_groups: int, seed: int) -> Tensor:
    """(N,) the group of each row. Where rows are alike, some groups have none."""
    drawn = torch.randperm(len(unit), generator=torch.Generator().manual_seed(seed))[:POOL]
    pool = unit[drawn.to(unit.device)]
    centres = pool[:n_groups]
    for _ in range(FEW_ROUNDS):
        moved = directions(pool, kmeans.nearest(pool, centres), n_groups)
        centres = torch.where(moved.any(1, keepdim=True), moved, centres)
    return kmeans.nearest(unit, centres)


def _move(groups: _Groups, clusters: Tensor, n_clusters: int, scale: Tensor, weight: float) -> Tensor:
    """The cluster of each group, (G,), after the best move, the best after that, and so on while there is one."""
    clusters, numbers = clusters.clone(), torch.arange(len(clusters), device=clusters.device)
    inhabited = (groups.share > 0).long()  # (G,1)
    for _ in range(len(clusters)):
        member = F.one_hot(clusters, n_clusters)  # (G,K)
        whole = groups.of(member.to(groups.unit.dtype))
        now = _worth(whole, groups, 0, scale, weight)[0]  # (K,)
        loss = (now - _worth(whole, groups, -1, scale, weight))[numbers, clusters]  # (G,)
        gain = _worth(whole, groups, 1, scale, weight) - now - loss[:, None]  # (G,K)
        gain[numbers, clusters] = 0.0
        gain[(member * inhabited).sum(0)[clusters] == 1] = 0.0  # the last one stays: no cluster becomes empty
        best = int(gain.argmax())
        if not gain.flatten()[best] > LEAST:
            break
        clusters[best // n_clusters] = best % n_clusters
    return clusters


def _worth(whole: _Groups, groups: _Groups, sign: int, scale: Tensor, weight: float) -> Tensor:
    """(G,K): what each cluster counts once each group has joined (1) or left (-1), or as it is (0)."""
    product = (whole.rows * whole.unit).sum(1) + sign**2 * (groups.rows * groups.unit).sum(1, keepdim=True)
    product = product + sign * (groups.rows @ whole.unit.T + groups.unit @ whole.rows.T)
    square = (whole.unit**2).sum(1) + sign**2 * (groups.unit**2).sum(1, keepdim=True)
    square = square + sign * 2 * groups.unit @ whole.unit.T
    share = (whole.share.T + sign * groups.share).clamp(min=1e-9)
    return scale * product / square.clamp(min=1e-12).sqrt() - weight * share * share.log()
