"""What several methods share: perceptrons on a backbone, k-means, and clusters by the nearest of K directions.

Shapes: N batch, K clusters, F features.

What methods share that learn features now and find clusters in them at the end, by k-means.

While they train, k-means on the newest features tells for the record where the clusters would be; nothing is learned
from it. Shapes: N batch, K clusters, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import kmeans
from twincluster.config import Config, DataShape
from twincluster.methods.base import Batch, Method, Network
from twincluster.nn import Queue, draws, in_shuffled_halves, queue_size

KEY_ORDER = 12  # stream of random numbers
FINAL_STARTS, FINAL_STARTS_MANY = 10, 3  # of the k-means that decides the result; above assign.FEW_CLUSTERS


def mlp(n_inputs: int, hidden: int, n_outputs: int, *, batch_norm: bool) -> nn.Sequential:
    """Two layers; batch-norm, where asked for, between them."""
    layers = [nn.Linear(n_inputs, hidden, bias=not batch_norm), nn.ReLU(), nn.Linear(hidden, n_outputs)]
    if batch_norm:
        layers.insert(1, nn.BatchNorm1d(hidden))
    return nn.Sequential(*layers)


def key_features(momentum: Network, images: Tensor, keys: Tensor, *, shuffled: bool) -> Tensor:
    """(N,F) of the momentum network; `shuffled`: by halves of a random order, so that batch-norm tells no query."""
    if not shuffled:
        return momentum.backbone_features(images)
    draw = draws.uniform(keys, KEY_ORDER, 1).squeeze(1)
    return in_shuffled_halves(momentum.backbone_features, images, draw)


def k_means(rows: Tensor, n_clusters: int, *, n_init: int, seed: int) -> tuple[Tensor, Tensor]:
    """Centres (K,F) and clusters (N,) of rows by their distances, in which cosine has no say."""
    from sklearn.cluster import KMeans  # which takes a second

    found = KMeans(n_clusters, n_init=n_init, random_state=seed % 2**32).fit(rows.cpu().numpy())
    centres, clusters = torch.from_numpy(found.cluster_centers_), torch.from_numpy(found.labels_).long()
    return centres.to(rows.device), clusters.to(rows.device)


class Centres(nn.Module):
    """The read-out of methods that learn features and no clusters: centres of k-means, set and never trained."""

    directions: Tensor  # (K,F) of unit norm
    scale: Tensor  # (), 0 until k-means has been run: then all clusters are equally likely

    def __init__(self, n_clusters: int, n_features: int) -> None:
        super().__init__()
        self.register_buffer("directions", torch.zeros(n_clusters, n_features))
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, unit: Tensor) -> Tensor:
        """log q(k|x) of rows of unit norm, (N,K)."""
        return F.log_softmax(self.scale * (unit @ self.directions.T), 1)

    @torch.no_grad()
    def fit(self, features: Tensor, *, seed: int, n_init: int = 1) -> Tensor:
        """K-means on some rows, from scratch and from the centres there are; returns the cluster of each row.

        Clusters keep their numbers. Fewer rows than clusters, as after a first short epoch, change nothing.
        """
        n_clusters, known = len(self.directions), bool(self.scale > 0)
        unit = F.normalize(features, dim=1)
        old = kmeans.nearest(unit, self.directions)
        if len(features) < n_clusters:
            return old
        start = self.directions if known else None
        found = kmeans.spherical_kmeans(unit, n_clusters, seed=seed, init=start, n_init=n_init)
        order = kmeans.match_labels(old, found.labels, n_clusters) if known else torch.arange(n_clusters)
        self.place(found.centres[order.argsort()], unit)
        return order.to(found.labels.device)[found.labels]

    @torch.no_grad()
    def place(self, directions: Tensor, unit: Tensor) -> None:
        """Centres (K,F) from elsewhere, and how sharply rows of unit norm are told apart by them."""
        self.directions.copy_(directions)
        gap = kmeans.gaps(unit[: kmeans.CELLS // len(directions)] @ self.directions.T).mean()
        self.scale.copy_(kmeans.MARGIN / gap.clamp(min=1e-6))

    def settle(self, features: Tensor, *, seed: int) -> None:
        """The last k-means, whose clusters are the result."""
        many = len(self.directions) > kmeans.FEW_CLUSTERS
        self.fit(features, seed=seed, n_init=FINAL_STARTS_MANY if many else FINAL_STARTS)


RECENT = 4096  # features from which clusters are recorded while training


class CentresNetwork(Network):
    """A network whose clusters are the nearest of K centres in what it embeds."""

    centres: Centres

    def log_assign(self, images: Tensor) -> Tensor:
        log_assignment: Tensor = self.centres(self.embed(images))
        return log_assignment


class KmeansAtEnd(Method):
    """Base of these methods. The `memory` of a step holds the "features" (N,F), of unit norm, that k-means sees."""

    network_type: type[CentresNetwork]
    online: CentresNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.seed = config.seed
        self.online = self.network_type(config, shape)
        rows = queue_size(RECENT, shape.n_samples, config.train.batch_size)
        self.recent = Queue(rows, self.online.centres.directions.shape[1])

    def remember(self, memory: dict[str, Tensor]) -> None:
        self.recent.push(memory["features"])

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Clusters for the record alone."""
        self.online.centres.fit(self.recent.filled(), seed=self.seed + epoch)
        return {}

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        self.online.centres.settle(embed(self.online), seed=self.seed)
