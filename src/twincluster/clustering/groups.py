"""Moves of whole groups of rows between clusters, out of ends that k-means does not leave.

K-means moves rows one by one. A tight group in the wrong cluster has drawn that cluster's centre to itself: each of its
rows is nearest to it and stays, although the rest of its kind, in another cluster, would gain more by its coming than
is lost by its going. So rows are cut into small groups, and a group moves where the clusters together, their centres
moved along, are better after it. Shapes: N rows, K clusters, G groups, D feature.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clustering import kmeans, sizes
from twincluster.clustering.sizes import Sized

GROUPS = (5, 10, 20, 40)  # for each cluster: what moves must be neither a part of a kind nor more than one
ROWS_PER_GROUP = 8  # at least, on average: fewer move on their own, as k-means has it
POOL = 8_192  # rows that groups are found among; the others join the nearest
FEW_ROUNDS = 5  # of finding them: they need not be the best
ROUNDS = 5  # of moving groups, and rows after them
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
    groups = _Groups(*(sizes.sums(values, group, n_groups) / len(rows) for values in each))
    # the same for any prior: with a weight that falls with the balance, moves came out worse where it is soft
    weight, best = sizes.MARGIN if balance else 0.0, worth(rows, sized)
    for _ in range(ROUNDS):
        members = torch.bincount(group * n_clusters + sized.labels, minlength=n_groups * n_clusters)
        before = members.view(n_groups, n_clusters).argmax(1)  # (G,) where most of them are
        after = _move(groups, before, n_clusters, sizes.nats(rows, sized.centres), weight)
        if torch.equal(before, after):
            break
        moved = sizes.directions(unit, after[group], n_clusters)
        init = torch.where(moved.any(1, keepdim=True), moved, sized.centres)  # without a group: from where it was
        found = kmeans.spherical_kmeans(unit, n_clusters, seed=seed, init=init, n_init=0)
        new = sizes.weigh_sizes(rows, found, balance, unit)
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
        moved = sizes.directions(pool, kmeans.nearest(pool, centres), n_groups)
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
