"""The classic systems, through scikit-learn: k-means, Ward's agglomeration, spectral clustering, and NMF.

They cluster whatever comes as rows of numbers: pixels, or the features of a run. Those that do not scale see a random
sample of the rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from twincluster.core import InputError, closest

STARTS = 10  # of k-means
LARGEST = {"ward": 5000, "spectral": 5000, "nmf": 10_000}  # rows; time and memory of the first two grow as their square
TITLES = {"k-means": "k-means", "ward": "Ward", "spectral": "spectral", "nmf": "NMF"}


def cluster_by(name: str, rows: np.ndarray, n_clusters: int, seed: int = 0) -> np.ndarray:
    """Clusters (n,) int64 of rows (n,d) by one of CLASSICS; -1 for rows that are left out of its sample.

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
    clusters[chosen] = CLASSICS[name](rows[chosen], n_clusters, seed)
    return clusters


def pixel_rows(pixels: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The chosen images (N,H,W,3) as rows of numbers from 0 to 1; rows of numbers stay what they are."""
    if pixels.ndim == 2:
        return np.asarray(pixels[rows])
    if pixels.strides[-1] == 0:
        pixels = pixels[..., :1]  # a grey image shows one channel three times
    return np.asarray(pixels[rows], dtype=np.float32).reshape(len(rows), -1) / 255


def _k_means(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    return np.asarray(KMeans(n_clusters, n_init=STARTS, random_state=seed).fit_predict(rows))


def _ward(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    from sklearn.cluster import AgglomerativeClustering

    return np.asarray(AgglomerativeClustering(n_clusters, linkage="ward").fit_predict(rows))


def _spectral(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    from sklearn.cluster import SpectralClustering

    model = SpectralClustering(n_clusters, affinity="nearest_neighbors", random_state=seed)
    return np.asarray(model.fit_predict(rows))


def _nmf(rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """As many factors as clusters, and k-means on what each row has of them."""
    from sklearn.decomposition import NMF
    from sklearn.exceptions import ConvergenceWarning

    rows = rows - np.minimum(rows.min(0), 0)  # features may be negative, factors may not
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 200 rounds are what there is
        return _k_means(NMF(n_clusters, random_state=seed).fit_transform(rows), n_clusters, seed)


CLASSICS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "k-means": _k_means,
    "ward": _ward,
    "spectral": _spectral,
    "nmf": _nmf,
}
