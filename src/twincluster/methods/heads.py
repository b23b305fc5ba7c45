"""Parts that several methods share: perceptrons, keys, k-means, and base classes.

Methods derived from `KmeansAtEnd` learn features; k-means on the final features gives the clusters. During training,
k-means on the newest features only fills the record. Methods derived from `TwoStages` learn features first, and
clusters from a share of the run on. Shapes: n samples, N batch, K clusters, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import kmeans
from twincluster.config import Config, DataShape
from twincluster.methods.base import Batch, Method, Network
from twincluster.nn import Queue, draws, in_shuffled_halves, queue_size

KEY_ORDER = 12  # stream of random numbers
FINAL_STARTS, FINAL_STARTS_MANY = 10, 3  # of the last k-means; the second above kmeans.FEW_CLUSTERS


def mlp(n_inputs: int, hidden: int, n_outputs: int, *, batch_norm: bool) -> nn.Sequential:
    """Return a perceptron of two layers, with batch-norm between them if `batch_norm`."""
    layers = [nn.Linear(n_inputs, hidden, bias=not batch_norm), nn.ReLU(), nn.Linear(hidden, n_outputs)]
    if batch_norm:
        layers.insert(1, nn.BatchNorm1d(hidden))
    return nn.Sequential(*layers)


def key_features(momentum: Network, images: Tensor, keys: Tensor, *, shuffled: bool) -> Tensor:
    """Return the momentum network's features, (N,F).

    With `shuffled`, encode two random halves, so that batch-norm statistics do not reveal which key belongs to a query.
    """
    if not shuffled:
        return momentum.backbone_features(images)
    draw = draws.uniform(keys, KEY_ORDER, 1).squeeze(1)
    return in_shuffled_halves(momentum.backbone_features, images, draw)


def k_means(rows: Tensor, n_clusters: int, *, n_init: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return centroids (K,F) and labels (N,) of Euclidean k-means."""
    from sklearn.cluster import KMeans  # takes a second

    model = KMeans(n_clusters, n_init=n_init, random_state=seed % 2**32).fit(rows.cpu().numpy())
    centres, labels = torch.from_numpy(model.cluster_centers_), torch.from_numpy(model.labels_).long()
    return centres.to(rows.device), labels.to(rows.device)


class Centres(nn.Module):
    """Cluster centroids for methods that learn only features: k-means sets them, they are never trained."""

    directions: Tensor  # (K,F) of unit norm
    scale: Tensor  # (), 0 before the first k-means, so that all clusters are equally likely

    def __init__(self, n_clusters: int, n_features: int) -> None:
        super().__init__()
        self.register_buffer("directions", torch.zeros(n_clusters, n_features))
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, unit: Tensor) -> Tensor:
        """Return log q(k|x) of rows of unit norm, (N,K)."""
        return F.log_softmax(self.scale * (unit @ self.directions.T), 1)

    @torch.no_grad()
    def fit(self, features: Tensor, *, seed: int, n_init: int = 1) -> Tensor:
        """Run k-means, from scratch and from the current centroids. Return the label of each row.

        Clusters keep their numbers. Fewer rows than clusters, as after a short first epoch, change nothing.
        """
        n_clusters, is_fitted = len(self.directions), bool(self.scale > 0)
        unit = F.normalize(features, dim=1)
        old = kmeans.nearest(unit, self.directions)
        if len(features) < n_clusters:
            return old
        start = self.directions if is_fitted else None
        new = kmeans.spherical_kmeans(unit, n_clusters, seed=seed, init=start, n_init=n_init)
        order = kmeans.match_labels(old, new.labels, n_clusters) if is_fitted else torch.arange(n_clusters)
        self.place(new.centres[order.argsort()], unit)
        return order.to(new.labels.device)[new.labels]

    @torch.no_grad()
    def place(self, directions: Tensor, unit: Tensor) -> None:
        """Set the centroids (K,F), and scale the logits to the margins of rows of unit norm."""
        self.directions.copy_(directions)
        gap = kmeans.gaps(unit[: kmeans.CELLS // len(directions)] @ self.directions.T).mean()
        self.scale.copy_(kmeans.MARGIN / gap.clamp(min=1e-6))

    def settle(self, features: Tensor, *, seed: int) -> None:
        """Run the last k-means, whose clusters are the result."""
        many = len(self.directions) > kmeans.FEW_CLUSTERS
        self.fit(features, seed=seed, n_init=FINAL_STARTS_MANY if many else FINAL_STARTS)


RECENT = 4096  # newest features, clustered after each epoch for the record


class CentresNetwork(Network):
    """A network that assigns each image to the nearest of K centroids in its embedding."""

    centres: Centres

    def log_assign(self, images: Tensor) -> Tensor:
        log_assignment: Tensor = self.centres(self.embed(images))
        return log_assignment


class KmeansAtEnd(Method):
    """Base of these methods. The `memory` of a step holds unit-norm "features" (N,F) for k-means."""

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
        """Update the clusters that are recorded; the training does not use them."""
        self.online.centres.fit(self.recent.filled(), seed=self.seed + epoch)
        return {}

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        self.online.centres.settle(embed(self.online), seed=self.seed)


class TwoStages(Method):
    """Base of methods with a first stage that learns no clusters. `clustering` tells losses which stage it is."""

    clustering: Tensor  # () bool, whether clusters are learned
    progress: Tensor  # () finished share of the run

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.register_buffer("clustering", torch.zeros((), dtype=torch.bool))
        self.register_buffer("progress", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        self.progress.fill_(progress)

    def is_due(self, start: float) -> bool:
        """Return True from the share `start` of the run on."""
        return bool(self.progress >= start)

    @torch.no_grad()
    def embed_all(self, batches: Callable[[], Iterator[Batch]]) -> Tensor:
        """Return the embedding of all samples without augmentation, (n,F), in evaluation mode."""
        self.online.eval()
        embedding = torch.cat([self.online.embed(batch.plain()) for batch in batches()])
        self.online.train()
        return embedding
