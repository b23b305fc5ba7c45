"""Read-outs: from features to clusters, by cosine.

Everything runs where the features are, in chunks of bounded memory; random draws come from a generator on the CPU,
so a seed means the same on every device. Shapes: N rows, K clusters, D feature, R starts, T trials, M seeding pool.
"""

import math
from dataclasses import dataclass

import scipy.linalg
import torch
from torch import Tensor

from twincluster.core import InputError

CELLS = 2**24  # similarities held at once: 64 MiB in float32
SEEDING_POOL = 16_384  # rows that starting centres are drawn from, at least; more rows do not make better starts
STARTS_DRAWN = 4  # starts drawn for each one that is followed: a blob missed at the start stays missed ...
FEW_CLUSTERS = 50  # ... up to this many clusters; above, drawing costs more than it brings
ROWS_PER_DIRECTION = 10  # as many rows, and the variances of a whitening begin to be known
SAME = 1e-6  # rows closer than this (1 - cosine) count as one: float32 cannot tell them apart


@dataclass(frozen=True, eq=False)
class Clusters:
    centres: Tensor  # (K,D) unit rows
    labels: Tensor  # (N,) int64, the nearest centre of each row
    similarity: Tensor  # (N,) cosine of each row to its centre
    objective: float  # mean of the similarities: higher is better


@dataclass(frozen=True, eq=False)
class Whitening:
    """Removes what all rows have in common and evens out the directions in which they differ."""

    mean: Tensor  # (D,)
    matrix: Tensor  # (D,D)

    def __call__(self, features: Tensor) -> Tensor:
        """(N,D) unit rows."""
        return unit_rows(self.rows(features))

    def rows(self, features: Tensor) -> Tensor:
        """(N,D) the same, each as long as it comes out."""
        return (features.to(self.mean.dtype) - self.mean) @ self.matrix


@torch.no_grad()
def whiten(features: Tensor, shrinkage: float = 0.3) -> Whitening:
    """The whitening of some rows. Directions with less than `shrinkage` times the mean variance are not blown up,
    nor larger ones where there are few rows per direction: then small variances are an accident of the rows.

    Without it a few directions of large variance, which contrastive features always have, decide every cluster.
    """
    features = _finite(features.float())
    mean = features.mean(0)
    centred = features - mean
    variance, directions = principal_directions(centred)
    caution = 1 + ROWS_PER_DIRECTION * features.shape[1] / len(features)
    floor = (shrinkage * caution * variance.mean()).clamp(min=torch.finfo(variance.dtype).tiny)
    return Whitening(mean, directions / (variance.clamp(min=0) + floor).sqrt())


def principal_directions(centred: Tensor) -> tuple[Tensor, Tensor]:
    """Variances (d,), smallest first, and the directions (d,d) they lie in, as columns."""
    with torch.autocast(centred.device.type, enabled=False):
        covariance = centred.T @ centred / len(centred)
    variance, directions = _eigen(covariance.double())
    return variance.to(centred.dtype), directions.to(centred.dtype)


def _eigen(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (d,), smallest first, and eigenvectors (d,d) of a symmetric matrix in double precision."""
    try:
        variance, directions = torch.linalg.eigh(covariance)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # divide and conquer may not converge where rows are few or alike and most variances zero; QR iteration does
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
    """K-means by cosine: the best of `n_init` k-means++ starts and, where given, of the warm start `init` (K,D).

    A start stops after `n_iter` rounds, or when a round lowers the mean of (1 - cosine) by less than the share `tol`.
    """
    if not 1 <= n_clusters <= len(features):
        raise InputError(
            f"{len(features)} rows cannot form {n_clusters} clusters: ask for 1 to {len(features)} clusters"
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
    """(N,) the centre with the largest product with each row, after `shift` (K,) is added."""
    return torch.cat([(part @ centres.T + shift).argmax(dim=1) for part in torch.split(rows, _rows(len(centres)))])


def match_labels(old: Tensor, new: Tensor, n_clusters: int) -> Tensor:
    """The permutation p (K,) for which p[new] agrees with `old` on most rows; rows labelled -1 do not vote."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and not needed before training

    both = (old >= 0) & (new >= 0)
    pairs = new[both].long() * n_clusters + old[both].long()
    counts = torch.bincount(pairs, minlength=n_clusters**2).view(n_clusters, n_clusters)  # (new, old)
    _, columns = linear_sum_assignment(counts.cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, dtype=torch.int64, device=new.device)


def surest(gap: Tensor, labels: Tensor, share: float) -> Tensor:
    """(n,) bool: the `share` of each cluster whose members prefer it by the largest gap, rounded up."""
    order = gap.argsort(descending=True, stable=True)
    order = order[labels[order].argsort(stable=True)]  # by cluster, and within it the surest first
    sizes = torch.bincount(labels)
    first = sizes.cumsum(0) - sizes  # of each cluster in that order
    rank = torch.arange(len(labels), device=labels.device) - first[labels[order]]
    chosen = torch.empty_like(labels, dtype=torch.bool)
    chosen[order] = rank < (share * sizes.double()).ceil()[labels[order]]
    return chosen


def unit_rows(rows: Tensor) -> Tensor:
    """Rows of length one in float32. A zero row has no direction: it gets the diagonal, so that it can be placed."""
    rows = rows.float()
    largest = _finite(torch.linalg.vector_norm(rows, ord=math.inf, dim=1, keepdim=True))
    rows = rows / largest.clamp(min=torch.finfo(torch.float32).tiny)  # so that squares neither overflow nor vanish
    rows[largest[:, 0] == 0] = 1.0
    return rows.div_(torch.linalg.vector_norm(rows, dim=1, keepdim=True))


def _finite(values: Tensor) -> Tensor:
    if not values.isfinite().all():
        raise InputError("the features hold NaN or infinite values: training diverged, lower the learning rate")
    return values


def _rows(n_columns: int) -> int:
    """How many rows of similarities to `n_columns` others are held at once."""
    return max(1, CELLS // n_columns)


def _starting_centres(features: Tensor, n_clusters: int, n_starts: int, generator: torch.Generator) -> Tensor:
    """The best (n_starts,K,D) of R starts by greedy k-means++, drawn side by side.

    Each next centre is, of T rows drawn in proportion to their squared distance, the one that serves the pool best.
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
    """Indices (R,T) into M, in proportion to the weights (R,M); where all weights are zero, every index alike."""
    weights = weights + (weights.sum(dim=1, keepdim=True) == 0)
    steps = _wide(weights).cumsum(dim=1)  # (R,M)
    return torch.searchsorted(steps, _wide(uniform) * steps[:, -1:], right=True).clamp(max=weights.shape[1] - 1)


def _wide(values: Tensor) -> Tensor:
    """For long sums: float64 wherever the device has it."""
    return values if values.device.type == "mps" else values.double()


@dataclass(frozen=True, eq=False)
class _Round:
    clusters: Clusters
    sums: Tensor  # (K,D) of the members of each cluster
    lost: Tensor  # (K,) bool, clusters that have no direction: no member, or members that cancel out


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
    """Add each row to the sum of its cluster, in an order that is the same every time."""
    if not sums.is_cuda:
        sums.index_add_(0, labels, rows)
        return
    # index_add_ on CUDA adds in whichever order threads arrive; a product does not
    member = rows.new_zeros(len(rows), len(sums)).scatter_(1, labels[:, None], 1.0)
    sums += member.T @ rows


def _move(features: Tensor, now: _Round) -> Tensor:
    """New centres: the direction of each sum; a lost cluster goes to the row that is served worst."""
    centres: Tensor = now.sums / torch.linalg.vector_norm(now.sums, dim=1, keepdim=True).clamp(min=SAME)
    similarity = now.clusters.similarity
    for cluster in now.lost.nonzero()[:, 0].tolist():
        worst = features[similarity.argmin()]
        centres[cluster] = worst
        similarity = torch.maximum(similarity, features @ worst)  # rows near it are served now: the next goes elsewhere
    return centres
