"""Classic clustering methods from scikit-learn, on pixels or on the features of a run.

Methods that do not scale cluster a random sample of the rows. Methods without a number of clusters get it in another
form if there is one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from twincluster.core import InputError, closest

STARTS = 10  # of k-means
LARGEST = {  # most rows; time and memory of most methods grow quadratically
    "ward": 5000, "average": 5000, "spectral": 5000, "nmf": 10_000, "gmm": 20_000, "birch": 20_000, "mean-shift": 1000,
    "affinity": 1000, "dbscan": 5000, "hdbscan": 5000, "optics": 5000,
}  # fmt: skip
TITLES = {
    "k-means": "k-means", "ward": "Ward", "average": "average linkage", "spectral": "spectral", "nmf": "NMF",
    "gmm": "GMM", "birch": "BIRCH", "mean-shift": "mean shift", "affinity": "affinity propagation", "dbscan": "DBSCAN",
    "hdbscan": "HDBSCAN", "optics": "OPTICS",
}  # fmt: skip
NEAR = 5  # neighbours of a dense row


def cluster_by(name: str, rows: np.ndarray, n_clusters: int, seed: int = 0) -> np.ndarray:
    """Return clusters (n,) int64 of rows (n,d) by one of CLASSICS; -1 for rows outside its sample.

    Rows that a method calls noise form the last cluster.

    >>> from sklearn.datasets import load_iris
    >>> int(cluster_by("ward", load_iris().data, 3).max())
    2
    """
    if name not in CLASSICS:
        raise InputError(
            f"there is no classic system {name!r}{closest(name, CLASSICS) or ': choose one of ' + ', '.join(CLASSICS)}"
        )
    chosen = np.arange(len(rows))
    if len(rows) > (most := LARGEST.get(name, len(rows))):
        chosen = np.sort(np.random.default_rng(seed).choice(len(rows), most, replace=False))
    clusters = np.full(len(rows), -1, dtype=np.int64)
    found = CLASSICS[name](rows[chosen], n_clusters, seed)
    clusters[chosen] = np.where(found < 0, found.max() + 1, found)
    return clusters


def pixel_rows(pixels: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the chosen images (N,H,W,3) as rows of numbers from 0 to 1; rows of numbers are returned unchanged."""
    if pixels.ndim == 2:
        return np.asarray(pixels[rows])
    if pixels.strides[-1] == 0:
        pixels = pixels[..., :1]  # a grey image shows one channel three times
    return np.asarray(pixels[rows], dtype=np.float32).reshape(len(rows), -1) / 255


def _k_means(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    return np.asarray(KMeans(n_clusters, n_init=STARTS, random_state=seed).fit_predict(rows))


def _ward(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    return _agglomerated(rows, n_clusters, "ward")


def _average(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    return _agglomerated(rows, n_clusters, "average")


def _agglomerated(rows: np.ndarray, n_clusters: int, linkage: Literal["ward", "average"]) -> np.ndarray:
    from sklearn.cluster import AgglomerativeClustering

    return np.asarray(AgglomerativeClustering(n_clusters, linkage=linkage).fit_predict(rows))


def _spectral(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    from sklearn.cluster import SpectralClustering

    model = SpectralClustering(n_clusters, affinity="nearest_neighbors", random_state=seed)
    return np.asarray(model.fit_predict(rows))


def _nmf(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """Factorise into as many parts as clusters, and cluster the rows by k-means on their shares."""
    from sklearn.decomposition import NMF
    from sklearn.exceptions import ConvergenceWarning

    rows = rows - np.minimum(rows.min(0), 0)  # features may be negative, factors may not
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 200 rounds are what there is
        return _k_means(NMF(n_clusters, random_state=seed).fit_transform(rows), n_clusters, seed)


def _gmm(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """With a variance for each column: whole covariances of thousands of pixels have more numbers than the rows."""
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(n_clusters, covariance_type="diag", reg_covar=1e-4, random_state=seed)
    return np.asarray(model.fit_predict(np.asarray(rows, np.float64)))


def _birch(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """With leaves as wide as the middle distance between close rows, so that it does not depend on their scale."""
    from sklearn.cluster import Birch

    width = max(float(np.median(_near(rows))) / 2, 1e-9)
    return np.asarray(Birch(n_clusters=n_clusters, threshold=width).fit_predict(rows))


def _mean_shift(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """With windows that hold one row in K; how many clusters there are it finds itself."""
    from sklearn.cluster import MeanShift, estimate_bandwidth

    width = estimate_bandwidth(rows, quantile=1 / n_clusters, random_state=seed)
    return np.asarray(MeanShift(bandwidth=max(width, 1e-9), bin_seeding=False).fit_predict(rows))


def _affinity(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """With the preference by which it finds K clusters, or nearly so many, of the six that are tried."""
    from sklearn.cluster import AffinityPropagation
    from sklearn.exceptions import ConvergenceWarning

    least = -float(np.square(rows - rows.mean(0)).sum(1).max())  # of a pair it would be four times that

    def found(times: float) -> np.ndarray:
        model = AffinityPropagation(damping=0.8, preference=times * least, random_state=seed)
        return np.asarray(model.fit_predict(rows))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return _nearest_in_number((found(times) for times in np.geomspace(1, 100, 6)), n_clusters)


def _dbscan(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """With the radius by which it finds K clusters, or nearly so many, of ten that close rows suggest."""
    from sklearn.cluster import DBSCAN

    radii = np.quantile(_near(rows), np.linspace(0.05, 0.95, 10)).clip(1e-9)
    return _nearest_in_number((DBSCAN(eps=radius, min_samples=NEAR).fit_predict(rows) for radius in radii), n_clusters)


def _hdbscan(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """Of clusters that have at least a tenth of an even share of the rows; how many there are it finds itself."""
    from sklearn.cluster import HDBSCAN

    size = max(NEAR, len(rows) // (10 * n_clusters))
    return np.asarray(HDBSCAN(min_cluster_size=size, min_samples=NEAR, copy=True).fit_predict(rows))


def _optics(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """Cut at the distance that gives K clusters, or nearly so many, of ten; its other cut, xi, splits every cloud."""
    from sklearn.cluster import OPTICS, cluster_optics_dbscan

    model = OPTICS(min_samples=NEAR).fit(rows)
    reached = model.reachability_[np.isfinite(model.reachability_)]
    parts = (
        cluster_optics_dbscan(
            reachability=model.reachability_, core_distances=model.core_distances_, ordering=model.ordering_, eps=cut
        )
        for cut in np.quantile(reached, np.linspace(0.05, 0.95, 10))
    )
    return _nearest_in_number((np.asarray(part) for part in parts), n_clusters)


def _near(rows: np.ndarray) -> np.ndarray:
    """Return how far the NEAR-th neighbour of each row is, (n,)."""
    from sklearn.neighbors import NearestNeighbors

    count = min(NEAR + 1, len(rows))
    return np.asarray(NearestNeighbors(n_neighbors=count).fit(rows).kneighbors(rows)[0][:, -1])


def _nearest_in_number(candidates: Iterable[np.ndarray], wanted: int) -> np.ndarray:
    """Return the clusters whose number is closest to the wanted one; of several those with the fewest rows in none."""
    return min(candidates, key=lambda found: (abs(int(found.max()) + 1 - wanted), int((found < 0).sum())))


CLASSICS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "k-means": _k_means,
    "ward": _ward,
    "average": _average,
    "spectral": _spectral,
    "nmf": _nmf,
    "gmm": _gmm,
    "birch": _birch,
    "mean-shift": _mean_shift,
    "affinity": _affinity,
    "dbscan": _dbscan,
    "hdbscan": _hdbscan,
    "optics": _optics,
}
