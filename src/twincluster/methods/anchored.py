"""The default method: the paper's two tracks, with prototypes anchored to the momentum features instead of trained.

Representation first, commitment later. The instance track learns features from the start; after each epoch k-means on
the momentum features moves the prototypes, and these one after another begin to shape the features: first through the
cluster track (representations r_k contrasted with their momentum counterparts), then sample by sample, and at last
through a head that learns the assignments it may trust. Shapes: N batch, K clusters, D features, J rows of the queue.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster import assign, losses
from twincluster.config import Config
from twincluster.memory import Queue, ema_update, momentum_copy
from twincluster.methods.base import Batch, DataShape, Method, Network, Outcome


class AnchoredNetwork(Network):
    """Backbone, projection z, and a head on the backbone that predicts once self-labelling has trained it."""

    prototypes: Tensor  # (K,D) unit rows: centres of the momentum features

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = config.anchored
        hidden, n_features = self.settings.hidden, self.settings.n_features
        self.projector = mlp(self.backbone.n_features, hidden, n_features)
        self.head = nn.Linear(self.backbone.n_features, config.n_clusters)
        self.register_buffer("prototypes", F.normalize(torch.randn(config.n_clusters, n_features), dim=1))

    def project(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, torch.bfloat16, enabled=self.bf16):
            projection: Tensor = self.projector(features)
        return projection.float()

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        features = self.backbone_features(images)
        if self.settings.label_weight:
            return F.log_softmax(self.head(features), 1)
        return self.assign_projection(F.normalize(self.project(features), dim=1))

    def assign_projection(self, projection: Tensor) -> Tensor:
        return losses.assignment(projection, self.prototypes, self.settings.anchor_temperature)  # Eq. 3, unit norms


class Anchored(Method):
    network_type = AnchoredNetwork
    online: AnchoredNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters, self.seed = config.anchored, config.n_clusters, config.seed
        n_features = self.settings.n_features
        self.online = AnchoredNetwork(config, shape)
        self.momentum = momentum_copy(self.online)
        byol = self.settings.instance == "byol"
        self.predictor = mlp(n_features, self.settings.hidden, n_features) if byol else nn.Identity()
        self.queue = Queue(self.settings.instance_queue, n_features)  # Q
        self.register_buffer("bank", torch.zeros(shape.n_samples, n_features))  # momentum projection of each sample
        self.register_buffer("labels", torch.zeros(shape.n_samples, dtype=torch.int64))
        self.register_buffer("trusted", torch.zeros(shape.n_samples))  # 1 where self-labelling may use the label
        self.register_buffer("weights", torch.zeros(3))  # of the cluster track, the anchors and the labels, now
        self.register_buffer("keep", torch.tensor(self.settings.ema[0]))  # EMA, now

    bank: Tensor
    labels: Tensor
    trusted: Tensor
    weights: Tensor
    keep: Tensor

    def schedule(self, epoch: int, progress: float) -> None:
        s = self.settings
        starts = ((s.cluster_start, s.cluster_weight), (s.anchor_start, s.anchor_weight), (s.label_start, s.label_weight))
        for slot, (start, weight) in enumerate(starts):
            self.weights[slot] = weight if epoch > 0 and progress >= start else 0.0  # no labels before epoch 1
        first, last = s.ema
        self.keep.fill_(last - (last - first) * (1 + math.cos(math.pi * progress)) / 2)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        images = torch.cat(views)  # (2N,...): both views pass both networks
        features = self.online.backbone_features(images)
        projection = self.online.project(features)
        query = F.normalize(self.predict(projection), dim=1)
        with torch.no_grad():
            key = F.normalize(self.momentum.project(self.momentum.backbone_features(images)), dim=1)
        other = torch.cat(key.chunk(2)[::-1])  # the key of a query is the other view's
        labels, trusted = self.labels[samples].repeat(2), self.trusted[samples].repeat(2)

        instance = self.instance_loss(query, other)
        cluster = self.cluster_loss(query, other, labels)
        log_assignment = self.online.assign_projection(F.normalize(projection, dim=1))
        anchor = F.nll_loss(log_assignment, labels)
        each = F.cross_entropy(self.online.head(features), labels, reduction="none")
        label = (each * trusted).sum() / trusted.sum().clamp(min=1)
        loss = instance + (self.weights * torch.stack([cluster, anchor, label])).sum()
        view, other_view = log_assignment.detach().exp().chunk(2)
        return Outcome(
            loss=loss,
            assignment=view,
            key_assignment=other_view,
            memory={"samples": samples, "key": key},
            metrics={"instance_loss": instance, "cluster_loss": cluster, "anchor_loss": anchor, "label_loss": label},
        )

    def predict(self, projection: Tensor) -> Tensor:
        with torch.autocast(projection.device.type, torch.bfloat16, enabled=self.online.bf16):
            prediction: Tensor = self.predictor(projection)
        return prediction.float()

    def instance_loss(self, query: Tensor, key: Tensor) -> Tensor:
        if self.settings.instance == "byol":
            return 2 - 2 * (query * key).sum(1).mean()
        return -losses.info_nce(query, key, self.queue.rows, self.queue.valid(), self.settings.temperature).mean()

    def cluster_loss(self, query: Tensor, key: Tensor, labels: Tensor) -> Tensor:
        """Eq. 5 on hard assignments; negatives are the other clusters' momentum representations of the same batch."""
        members = F.one_hot(labels, self.n_clusters).to(query.dtype)  # (2N,K)
        present = members.sum(0) > 0
        clusters = losses.cluster_representations(query, members)
        key_clusters = losses.cluster_representations(key, members)
        return losses.cluster_loss(
            clusters, key_clusters, key_clusters, present, self.settings.cluster_temperature, present.to(query.dtype)
        )

    def remember(self, memory: dict[str, Tensor]) -> None:
        first, second = memory["key"].chunk(2)
        self.bank.index_copy_(0, memory["samples"], F.normalize(first + second, dim=1))
        self.queue.push(memory["key"])
        ema_update(self.momentum, self.online, self.keep)

    @torch.no_grad()
    def after_epoch(self, epoch: int, batches: Iterator[Batch], optimiser: torch.optim.Optimizer) -> dict[str, float]:
        """Move the prototypes: k-means on the bank, from the old prototypes and from fresh starts; keep cluster order."""
        warm = None if epoch == 0 else self.online.prototypes
        found = assign.spherical_kmeans(
            self.bank, self.n_clusters, seed=self.seed + epoch, init=warm, n_init=2, n_iter=20
        )
        order = assign.match_labels(self.labels, found.labels, self.n_clusters)
        labels = order[found.labels]
        changed = (labels != self.labels).float().mean()
        prototypes = torch.empty_like(found.centres)
        prototypes[order] = found.centres
        for network in (self.online, self.momentum):
            network.prototypes.copy_(prototypes)
        self.labels.copy_(labels)
        margin = assign.margins(self.bank, prototypes)
        self.trusted.copy_(assign.confident(margin, labels, self.settings.label_share).to(self.trusted.dtype))
        return {"relabelled": float(changed), "centre_similarity": float(found.similarity.mean())}


def mlp(n_inputs: int, hidden: int, n_outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, n_outputs)
    )
