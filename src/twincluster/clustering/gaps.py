"""Find the number of clusters that gaps set apart: no cluster runs into its neighbour, and none has a gap inside.

Ward's tree proposes partitions, in principal directions as they are and whitened. A gap is a valley in the density of
rows on the line that separates two groups best; the line is fitted on one half of the rows and the valley measured on
the other, so that it is not made by the fit. Half of a Gaussian and its other half have no valley between them in any
number of dimensions. Shapes: n rows, D dimensions, K clusters.
"""

from dataclasses import dataclass

import numpy as np

ROWS = 4_000  # sampled rows, unless there are many clusters ...
ROWS_PER_CLUSTER = 20  # ... up to
MOST_ROWS = 6_000  # whose distances take 150 MB
DIRECTIONS = 64  # most principal directions
FEW_DIRECTIONS = 12  # so many are kept even if they look like noise
KEPT = 8  # least directions, if there are more than that
SHRINKAGE = 0.3  # of the whitening, as in `kmeans.whiten`
ROUNDS = 5  # of k-means from each cut of the tree
SOME = 40  # numbers with the largest drops, and others between them, that get a silhouette
FROM_DROPS, FROM_SILHOUETTES = 5, 3  # partitions of each view that are examined
NEIGHBOURS = 2  # of each cluster
LEAST_ROWS = 6  # of a group for a line
LEAST_SPLIT = 20  # rows of a cluster that is searched for a gap
SMALLEST_PART, SMALLEST_SHARE = 8, 0.03  # of a cluster; fewer rows are outliers
WHOLE = 0.5  # a cluster whose best split has a valley at least this high counts as whole
APART, TOUCHING = (
    0.1,
    0.6,
)  # clusters with a valley up to the first between them are apart, from the second on not at all
SILHOUETTE = 0.9  # least share of the best silhouette of the view
GUESS = 0.5  # least score of a guess; below, halves of the data guess
# A number is clear if all of these hold:
SCORE = 0.8  # least score
DROP = 1.3  # least ratio of the costs of joining clusters at this number and one above
WORTH = 2.2  # least worth: a small drop needs a higher score
SURE_SILHOUETTE = 0.96  # least share of the best silhouette
LOWEST_INSIDE, HIGHEST_BETWEEN = 0.2, 0.5  # of all valleys
WIDE, SMALL = 2.5, 0.5  # no cluster so much wider and smaller than the median: these are outliers; or below LEAST_SPLIT


@dataclass(frozen=True, eq=False)
class Partition:
    """Clusters of a sample of rows, and the gaps between and inside them."""

    n_clusters: int
    drop: float  # cost of joining two of the clusters, by that of the join before
    silhouette: float  # by the best of all numbers, 0 to 1
    between: np.ndarray  # (K,) highest valley to a neighbour: 0 is a gap, 1 none
    inside: np.ndarray  # (K,) valley of the best split
    sizes: np.ndarray  # (K,) rows
    widths: np.ndarray  # (K,) root mean square distance of the rows from their mean

    @property
    def score(self) -> float:
        """Return 1 if gaps set all clusters apart and none is divided by one, down to -1."""
        whole = np.minimum(1, self.inside / WHOLE)
        touching = np.clip((self.between - APART) / (TOUCHING - APART), 0, 1)
        return float((whole - touching).mean())

    @property
    def worth(self) -> float:
        """Return how well the number fits, to compare partitions."""
        return self.score + self.silhouette + float(np.log2(self.drop)) / 2

    @property
    def clear(self) -> bool:
        return (
            self.score >= SCORE
            and self.drop >= DROP
            and self.worth >= WORTH
            and self.silhouette >= SURE_SILHOUETTE
            and float(self.inside.min()) >= LOWEST_INSIDE
            and float(self.between.max()) <= HIGHEST_BETWEEN
            and not self.unsure.any()
        )

    @property
    def unsure(self) -> np.ndarray:
        """Return which clusters (K,) are outliers, or too small to look inside."""
        wide = self.widths > WIDE * np.median(self.widths)
        outliers: np.ndarray = wide & (self.sizes < SMALL * np.median(self.sizes))
        return outliers | (self.sizes < LEAST_SPLIT)

    @property
    def plausible(self) -> bool:
        return self.score >= GUESS

    def doubt(self) -> str:
        """Return why the number is not clear."""
        touching = int((self.between > (APART + TOUCHING) / 2).sum())
        divided = int((self.inside < WHOLE / 2).sum())
        if touching:
            return f"{touching} of {self.n_clusters} clusters run into a neighbour without a gap"
        if divided:
            return f"{divided} of {self.n_clusters} clusters have a gap inside"
        if self.unsure.any():
            return f"{int(self.unsure.sum())} of {self.n_clusters} clusters are small, or outliers"
        return f"gaps set {self.n_clusters} clusters apart, but other numbers fit nearly as well"


def set_apart(features: np.ndarray, low: int, high: int, seed: int) -> Partition | None:
    """Return the partition of rows (n,D) from `low` to `high` clusters that gaps confirm best, or None."""
    rng = np.random.default_rng(seed)
    size = min(MOST_ROWS, max(ROWS, ROWS_PER_CLUSTER * high))
    rows = features if len(features) <= size else features[np.sort(rng.permutation(len(features))[:size])]
    rows = _main_directions(rows)
    high = min(high, len(rows) // 8)
    if low > high or not rows.any():
        return None
    variance = rows.var(0)
    views = rows, rows / np.sqrt(variance + SHRINKAGE * variance.mean())
    found = [partition for view in views for partition in _partitions(view.astype(np.float32), low, high, rng)]
    return max(found, key=lambda partition: partition.worth, default=None)


def _main_directions(rows: np.ndarray) -> np.ndarray:
    """Return centred rows in the principal directions that stand out from noise."""
    rows = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    n, d = rows.shape
    variance, directions = np.linalg.eigh(rows.T @ rows / n)
    variance, turned = np.maximum(variance[::-1], 0), np.asarray(rows @ directions[:, ::-1])
    if d <= FEW_DIRECTIONS:
        return turned
    noise = np.median(variance[variance > 1e-9 * variance[0]]) if variance[0] > 0 else 0.0
    count = int((variance > noise * (1 + np.sqrt(d / n)) ** 2).sum())  # Marchenko and Pastur
    most = DIRECTIONS if d <= n else min(DIRECTIONS, n // 4)
    return turned[:, : max(KEPT, min(count, most))]


def _partitions(rows: np.ndarray, low: int, high: int, rng: np.random.Generator) -> list[Partition]:
    """Return the promising partitions of one view."""
    from scipy.cluster.hierarchy import cut_tree, linkage  # takes a third of a second

    tree = linkage(rows.astype(np.float64), "ward")
    heights = tree[::-1, 2]
    drops = {k: float(heights[k - 2] / max(heights[k - 1], 1e-9 * heights[0])) for k in range(low, high + 1)}
    numbers = sorted({*_first(drops, SOME), *np.geomspace(low, high, SOME).round().astype(int).tolist()})
    cuts = cut_tree(tree, n_clusters=numbers)
    labels = {k: _refined(rows, cuts[:, place], k) for place, k in enumerate(numbers)}
    silhouettes = {k: _silhouette(rows, labels[k], k) for k in numbers}
    best = max(silhouettes.values())
    asked = {*_first(drops, FROM_DROPS), *_first(silhouettes, FROM_SILHOUETTES)}
    return [
        Partition(k, drops[k], silhouettes[k] / best, *_valleys(rows, labels[k], k, rng), *_extents(rows, labels[k], k))
        for k in sorted(asked)
        if silhouettes[k] >= SILHOUETTE * best > 0 and (np.bincount(labels[k], minlength=k) > 0).all()
    ]


def _extents(rows: np.ndarray, labels: np.ndarray, n_clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many rows each cluster has, and how wide it is, (K,) each."""
    sizes = np.bincount(labels, minlength=n_clusters)
    squares = ((rows - _means(rows, labels, n_clusters)[labels]) ** 2).sum(1)
    return sizes, np.sqrt(np.bincount(labels, squares, n_clusters) / np.maximum(sizes, 1))


def _first(values: dict[int, float], count: int) -> list[int]:
    return sorted(values, key=lambda k: -values[k])[:count]


def _refined(rows: np.ndarray, labels: np.ndarray, n_clusters: int, rounds: int = ROUNDS) -> np.ndarray:
    """Return labels after some rounds of k-means."""
    for _ in range(rounds):
        centres = _means(rows, labels, n_clusters)
        new = ((centres * centres).sum(1) - 2 * rows @ centres.T).argmin(1)
        if np.array_equal(new, labels):
            break
        labels = new
    return labels


def _means(rows: np.ndarray, labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Return the mean (K,D) of each cluster."""
    member = (labels == np.arange(n_clusters)[:, None]).astype(rows.dtype)  # (K,n)
    means: np.ndarray = member @ rows / np.maximum(member.sum(1, keepdims=True), 1)
    return means


def _silhouette(rows: np.ndarray, labels: np.ndarray, n_clusters: int) -> float:
    """Return the mean silhouette by squared distances, in n*K steps by way of sums."""
    counts = np.bincount(labels, minlength=n_clusters)
    squares = (rows * rows).sum(1)
    spread = np.bincount(labels, squares, n_clusters) / np.maximum(counts, 1)  # (K,) mean square of each cluster
    distance = squares[:, None] - 2 * rows @ _means(rows, labels, n_clusters).T + spread  # (n,K), means over members
    place = np.arange(len(rows))
    own = distance[place, labels] * counts[labels] / np.maximum(counts[labels] - 1, 1)
    distance[:, counts == 0] = np.inf
    distance[place, labels] = np.inf
    other = distance.min(1)
    value = (other - own) / np.maximum(np.maximum(other, own), 1e-12)
    return float(np.where(counts[labels] > 1, value, 0).mean())


def _valleys(
    rows: np.ndarray, labels: np.ndarray, n_clusters: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each cluster the highest valley to its nearest neighbours, and that of its best split, (K,) each."""
    groups = [rows[labels == cluster] for cluster in range(n_clusters)]
    centres = _means(rows, labels, n_clusters)
    distance = ((centres[:, None] - centres[None]) ** 2).sum(2) + np.diag(np.full(n_clusters, np.inf))
    nearest = distance.argsort(1)[:, : min(NEIGHBOURS, n_clusters - 1)]
    between = np.zeros(n_clusters)
    for one, two in sorted({(min(a, b), max(a, b)) for a in range(n_clusters) for b in nearest[a].tolist()}):
        value = valley(groups[one], groups[two], rng)
        between[[one, two]] = np.maximum(between[[one, two]], value)
    return between, np.array([_inside(group, rng) for group in groups])


def _inside(rows: np.ndarray, rng: np.random.Generator) -> float:
    """Return the valley between two halves of a cluster, as k-means divides it; 1 if it cannot be divided."""
    if len(rows) < LEAST_SPLIT:
        return 1.0
    centred = rows - rows.mean(0)
    axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :3]
    halves = []
    for place in (centred @ axes).T:
        half = _refined(rows, (place > np.median(place)).astype(np.int64), 2, rounds=12)
        if min(np.bincount(half, minlength=2)) >= max(SMALLEST_PART, SMALLEST_SHARE * len(rows)):
            error = sum(len(part) * part.var(0).sum() for part in (rows[half == 0], rows[half == 1]))
            halves.append((float(error), half))
    if not halves:
        return 1.0
    half = min(halves, key=lambda entry: entry[0])[1]
    return valley(rows[half == 0], rows[half == 1], rng)


def valley(one: np.ndarray, two: np.ndarray, rng: np.random.Generator) -> float:
    """Return the lowest density of rows between two groups, by the lower of the peaks beside it: 0 is a gap, 1 none."""
    if min(len(one), len(two)) < LEAST_ROWS:
        return 1.0
    orders = rng.permutation(len(one)), rng.permutation(len(two))
    places = np.empty(len(one)), np.empty(len(two))
    for fold in (0, 1):
        line, start = _discriminant(one[orders[0][fold::2]], two[orders[1][fold::2]])
        for rows, order, place in zip((one, two), orders, places, strict=True):
            place[order[1 - fold :: 2]] = (rows[order[1 - fold :: 2]] - start) @ line
    return _lowest_between(*places)


def _discriminant(one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Fisher's direction (D,), on which the means are 1 apart, and the mean of the first group (D,)."""
    start, step = one.mean(0), two.mean(0) - one.mean(0)
    inside = np.concatenate([one - start, two - two.mean(0)]).astype(np.float64)
    n, d = inside.shape
    covariance = inside.T @ inside / n
    shrinkage, mean = min(1.0, 0.1 + d / n), np.trace(covariance) / d
    covariance = (1 - shrinkage) * covariance + (shrinkage * mean + 1e-9) * np.eye(d)
    line = np.linalg.solve(covariance, step.astype(np.float64))
    return line / max(float(step @ line), 1e-12), start


SMOOTH = 4  # bins in a standard deviation of the kernel
REACH = 3 * SMOOTH
KERNEL = np.exp(-0.5 * (np.arange(-REACH, REACH + 1) / SMOOTH) ** 2)


def _lowest_between(one: np.ndarray, two: np.ndarray) -> float:
    """Return the valley between two groups of numbers, from a histogram smoothed by Silverman's rule."""
    middle = float(np.median(one)), float(np.median(two))
    if middle[1] <= middle[0]:
        return 1.0
    spread = [max(_spread(values), 1e-3 * (middle[1] - middle[0])) for values in (one, two)]
    step = 1.06 * min(spread) * min(len(one), len(two)) ** -0.2 / SMOOTH
    low, high = middle[0] - 2 * spread[0], middle[1] + 2 * spread[1]
    count = int(np.clip(np.ceil((high - low) / step), 8, 4096))
    edges = low - REACH * step, low + (count + REACH) * step
    counts, _ = np.histogram(np.concatenate([one, two]), count + 2 * REACH, edges)
    density = np.convolve(counts, KERNEL, "valid")  # (count,)
    first, last = (min(count - 1, int((value - low) / step)) for value in middle)
    lowest = first + int(density[first : last + 1].argmin())
    peak = min(density[: lowest + 1].max(), density[lowest:].max())
    return float(density[lowest] / max(peak, 1e-12))


def _spread(values: np.ndarray) -> float:
    """Return the standard deviation, or that of a Gaussian with the same quartiles if it is smaller."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(min(values.std(), (high - low) / 1.349))
