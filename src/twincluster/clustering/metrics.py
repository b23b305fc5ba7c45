"""Score a clustering against labels (ACC, NMI, ARI, kNN) or without labels (silhouette, health).

Labels are only compared; nothing here is optimised or selects a checkpoint. Shapes: N rows, K clusters, C classes, D
features.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.core import InputError

CELLS = 2**24  # similarities in memory at once in knn_accuracy: 64 MiB in float32
LARGEST_TABLE = 10**8  # most cells of a confusion matrix; beyond, labels are identifiers, not classes

# Thresholds of Health.warning. Assignments are uniform if mean max q is below 1/K + min(.5/K, .05 (1 - 1/K)):
# K=2 .525, K=10 .145, K=100 .015. The first bound is for large K, the second for small K.
UNIFORM_EXCESS = 0.5
UNIFORM_SHARE = 0.05
DOMINANT_SHARE = 0.9  # one cluster with more than this share of the images
AGREEMENT_SHARE = 0.25  # least agreement of views, as a share of the way from chance to 1
STRAIN = 0.35  # nats by which a prior on sizes (kmeans.py) moves clusters; images prefer theirs by 3 on average


@dataclass(frozen=True)
class Advice:
    """What to try with a method, as the ends of sentences. The defaults fit any method."""

    surer: str = "use milder augmentation or the default method"  # for more certain assignments
    evener: str = "the default method"  # for more even clusters
    looser: str = ""  # for less even clusters


@dataclass(frozen=True, eq=False)
class Scores:
    """Accuracy under the best one-to-one matching, mutual information and Rand index of the same partition."""

    acc: float
    nmi: float
    ari: float
    confusion: np.ndarray  # (K,C) counts
    matching: np.ndarray  # (K,) class of each cluster, -1 for clusters without a class of their own

    def as_dict(self) -> dict[str, Any]:
        return {
            "acc": self.acc,
            "nmi": self.nmi,
            "ari": self.ari,
            "confusion": self.confusion.tolist(),
            "matching": self.matching.tolist(),
        }


def score(labels: np.ndarray, clusters: np.ndarray) -> Scores:
    """Score clusters (N,) against labels (N,), both numbered from 0; rows with -1 in either are ignored.

    The numbers of clusters and classes may differ: extra clusters match no class, and their rows count as errors.
    """
    from scipy.optimize import linear_sum_assignment  # both take a second to import: training starts without them
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    labels, clusters = _numbers(labels, "labels"), _numbers(clusters, "clusters")
    if labels.shape != clusters.shape:
        raise InputError(
            f"there are {len(labels)} labels for {len(clusters)} clustered rows: expected one label per row"
        )
    known = (labels >= 0) & (clusters >= 0)
    labels, clusters = labels[known], clusters[known]
    if len(labels) == 0:
        raise InputError("no row has both a label and a cluster: check that the labels belong to these images")
    shape = (int(clusters.max()) + 1, int(labels.max()) + 1)
    if shape[0] * shape[1] > LARGEST_TABLE:
        raise InputError(f"labels run up to {shape[1] - 1}: number the classes 0, 1, 2 and so on, without gaps")
    confusion = np.zeros(shape, dtype=np.int64)
    np.add.at(confusion, (clusters, labels), 1)
    rows, columns = linear_sum_assignment(confusion, maximize=True)
    overlap = confusion[rows, columns]
    matching = np.full(len(confusion), -1, dtype=np.int64)
    matching[rows] = np.where(overlap > 0, columns, -1)  # pairs without common rows do not match
    return Scores(
        acc=float(overlap.sum() / len(labels)),
        nmi=float(normalized_mutual_info_score(labels, clusters, average_method="arithmetic")),
        ari=float(adjusted_rand_score(labels, clusters)),
        confusion=confusion,
        matching=matching,
    )


def _numbers(values: np.ndarray, name: str) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"{name} are {values.dtype} of shape {values.shape}: expected whole numbers, one per row")
    values = values.astype(np.int64)
    if len(values) and values.min() < -1:
        raise InputError(f"{name} contain {values.min()}: number them from 0, with -1 for unknown")
    return values


@torch.no_grad()
def knn_accuracy(
    features: Tensor,
    labels: np.ndarray,
    is_test: np.ndarray | None,
    neighbours: int = 20,
    temperature: float = 0.1,
) -> float:
    """Return the share of test rows whose label wins the vote of their nearest training rows, weighted by exp(cosine /
    T).

    Without a split, every fifth row of a fixed random order is a test row. Rows labelled -1 are ignored; the result is
    nan if there are no training or no test rows.
    """
    labels = _numbers(labels, "labels")
    if is_test is None:
        is_test = np.zeros(len(labels), dtype=bool)
        is_test[np.random.default_rng(0).permutation(len(labels))[::5]] = True
    is_test, known = np.asarray(is_test, dtype=bool), labels >= 0
    train, test = np.flatnonzero(known & ~is_test), np.flatnonzero(known & is_test)
    if len(train) == 0 or len(test) == 0:
        return math.nan
    target = torch.as_tensor(labels, device=features.device)
    with torch.autocast(features.device.type, enabled=False):
        bank, bank_target = F.normalize(features[train].float(), dim=1), target[train]
        right = 0
        for part in np.array_split(test, math.ceil(len(test) * len(train) / CELLS)):
            rows = F.normalize(features[part].float(), dim=1)
            similarity, index = (rows @ bank.T).topk(min(neighbours, len(train)), dim=1)  # (chunk, neighbours)
            weight = (
                (similarity - similarity[:, :1]) / temperature
            ).exp()  # the nearest has weight 1, so that nothing overflows
            votes = torch.zeros(len(part), int(labels.max()) + 1, device=features.device)
            votes.scatter_add_(1, bank_target[index], weight)
            right += int((votes.argmax(dim=1) == target[part]).sum())
    return right / len(test)


def silhouette(features: np.ndarray, clusters: np.ndarray, sample: int = 2000, seed: int = 0) -> float:
    """Return the mean Euclidean silhouette of a random sample of rows; nan for fewer than two clusters.

    Rows without a cluster (-1) and rows that are not finite are ignored. Pass unit rows to use cosine.
    """
    from sklearn.metrics import silhouette_score  # as in score

    rows = np.flatnonzero(np.asarray(clusters) >= 0)
    if len(rows) > sample:
        rows = np.sort(np.random.default_rng(seed).choice(rows, sample, replace=False))
    values = np.asarray(features[rows], dtype=np.float64)
    finite = np.isfinite(values).all(axis=1)
    values, kept = values[finite], np.asarray(clusters)[rows][finite]
    if not 2 <= len(np.unique(kept)) < len(kept):
        return math.nan
    return float(silhouette_score(values, kept))


@dataclass(frozen=True)
class Health:
    """Label-free statistics of assignments."""

    sizes: list[int]  # rows per cluster by argmax
    confidence: float  # mean max q
    marginal_entropy: float  # of the mean q, divided by log K: 1 is balanced, 0 is one cluster
    agreement: float | None  # share of rows with the same argmax in two views
    strain: float = 0.0  # of the prior on sizes, in nats
    empty: int | None = None  # clusters without rows, if known more precisely than from the sizes
    final: bool = False  # the sizes are those of the result, not of an epoch

    @classmethod
    def of_result(cls, sizes: list[int]) -> Self:
        """Return the health of a finished run from its sizes, which show only collapse."""
        return cls(sizes, confidence=1.0, marginal_entropy=1.0, agreement=None, final=True)

    def warning(self, method: str, advice: Advice, precision: str = "float32") -> str | None:
        """Return one sentence on what is wrong and what to try with this method, or None."""
        n_clusters = len(self.sizes)
        if not math.isfinite(self.confidence):
            return f"the assignments are NaN: training diverged; {divergence_advice(method, precision)}"
        if self.confidence < _uniform_below(n_clusters):
            return (
                f"the assignments stay uniform (mean largest probability {self.confidence:.3f}, chance is"
                f" {1 / n_clusters:.3f}), so the clusters are not meaningful; train longer, or {advice.surer}"
            )
        return self._collapse(advice.evener) or self._disagreement() or self._strained(advice.looser)

    def _collapse(self, evener: str) -> str | None:
        n_clusters, n_rows = len(self.sizes), sum(self.sizes)
        largest = max(self.sizes) / n_rows
        if n_clusters > 1 and largest > DOMINANT_SHARE:
            why = " (the images are equal, or the network cannot distinguish them)" if largest == 1 else ""
            return (
                f"the clusters collapsed: one of {n_clusters} contains {largest:.0%} of the images{why}; lower"
                f" optimiser.learning_rate, make clusters more even with {evener}, or choose fewer"
            )
        empty = self.sizes.count(0) if self.empty is None else self.empty
        expected = n_clusters * (1 - 1 / n_clusters) ** n_rows  # empty by chance: few rows cannot fill many clusters
        if empty > (0 if self.final else expected + 3 * math.sqrt(expected)):
            return (
                f"the clusters collapsed: {empty} of {n_clusters} {'is' if empty == 1 else 'are'} empty; choose fewer"
                f" clusters, or make them more even with {evener}"
            )
        return None

    def _disagreement(self) -> str | None:
        if self.agreement is None:
            return None
        chance = sum((size / sum(self.sizes)) ** 2 for size in self.sizes)
        if self.agreement >= chance + AGREEMENT_SHARE * (1 - chance):
            return None
        return (
            f"two views of an image do not agree on its cluster (the same in {self.agreement:.0%}, by chance"
            f" {chance:.0%}); train longer or use milder augmentation"
        )

    def _strained(self, looser: str) -> str | None:
        if self.strain <= STRAIN:
            return None
        return (
            f"the clusters are more even than the images suggest (the prior on sizes shifts them by {self.strain:.2f}"
            " nats, see docs/uneven.md), which splits large groups and joins small ones; lower the prior, for example"
            f" {looser}"
        )


def divergence_advice(method: str, precision: str) -> str:
    """Return what to try after training diverged."""
    ways = ["lower the learning rate (optimiser.learning_rate)"]
    if precision == "bf16":
        ways.append("train in float32 (--precision float32)")
    if ":" in method:
        ways.append(f"look at the loss of {method}")
    return " or ".join(ways)


@torch.no_grad()
def health(probabilities: Tensor, other_view: Tensor | None = None) -> Health:
    """Return sizes, confidence, balance and, with a second view of the same rows, agreement of assignments q (N,K)."""
    if len(probabilities) == 0:
        raise ValueError("health needs at least one row of probabilities")
    n_clusters = probabilities.shape[1]
    top, label = probabilities.max(dim=1)
    mean = probabilities.mean(dim=0, dtype=torch.float32)  # (K,)
    entropy = 0.0 - torch.xlogy(mean, mean).sum().item()  # subtracted from 0.0 to avoid -0.0
    return Health(
        sizes=torch.bincount(label, minlength=n_clusters).tolist(),
        confidence=top.mean(dtype=torch.float32).item(),
        marginal_entropy=entropy / math.log(n_clusters) if n_clusters > 1 else 1.0,
        agreement=None if other_view is None else (other_view.argmax(dim=1) == label).float().mean().item(),
    )


def _uniform_below(n_clusters: int) -> float:
    chance = 1 / n_clusters
    return chance + min(UNIFORM_EXCESS * chance, UNIFORM_SHARE * (1 - chance))
