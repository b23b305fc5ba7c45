"""Twin-contrast clustering as printed in "You Never Cluster Alone": one training step, top to bottom.

The equations are in losses.py; this file says which network feeds which. Where the paper is silent or contradicts
itself, a field of `config.Tcc` decides. Shapes: N batch, K clusters, D features, J and L rows of the queues Q and P.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster import draws, losses
from twincluster.config import Config
from twincluster.memory import Queue, ema_update, momentum_copy
from twincluster.methods.base import DataShape, Method, Network, Outcome

ONLINE_GUMBEL, KEY_GUMBEL, KEY_ORDER = 10, 11, 12  # streams of random numbers; 0 and 1 are the views'


class Reading(NamedTuple):
    """What one network makes of one view of the batch."""

    features: Tensor  # f, (N,D)
    log_assignment: Tensor  # log pi, (N,K)
    sample: Tensor  # c, (N,K)


class TccNetwork(Network):
    """Everything subscripted theta: the encoder f, the prototypes mu and NN."""

    prototypes: Tensor

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = config.tcc
        n_features = self.settings.n_features
        self.head = nn.Linear(self.backbone.n_features, n_features)  # the last layer of f
        self.centre = nn.BatchNorm1d(n_features, affine=False) if self.settings.centred else nn.Identity()
        self.assignment_shift = nn.Linear(config.n_clusters, n_features)  # NN, "a single fully connected network"
        if self.settings.prototypes == "trained":
            # the paper is silent: the prototypes start as random directions of unit norm
            self.prototypes = nn.Parameter(F.normalize(torch.randn(config.n_clusters, n_features), dim=1))
        else:
            self.register_buffer("prototypes", simplex(config.n_clusters, n_features))

    def embed(self, images: Tensor) -> Tensor:
        features: Tensor = self.centre(self.head(self.backbone_features(images)))
        return features

    def log_assign(self, images: Tensor) -> Tensor:
        return self.assign_features(self.embed(images))

    def assign_features(self, features: Tensor) -> Tensor:
        prototypes = self.prototypes
        if self.settings.unit_norm:
            features, prototypes = F.normalize(features, dim=1), F.normalize(prototypes, dim=1)
        return losses.assignment(features, prototypes, self.settings.assignment_temperature)  # Eq. 3

    def read(self, features: Tensor, gumbel: Tensor) -> Reading:
        log_assignment = self.assign_features(features)
        sample = losses.gumbel_softmax(log_assignment, gumbel, self.settings.gumbel_temperature)
        return Reading(features, log_assignment, sample)


class Tcc(Method):
    """L = alpha L1 + (1 - alpha) L2, with the queues P and Q filled by the momentum network."""

    network_type = TccNetwork
    online: TccNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters = config.tcc, config.n_clusters
        self.online = TccNetwork(config, shape)
        self.momentum = momentum_copy(self.online)
        self.instance_queue = Queue(self.settings.instance_queue, self.settings.n_features)  # Q
        self.cluster_queue = Queue(self.settings.cluster_queue, self.settings.n_features)  # P

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        online = self.online.read(self.online.embed(views[0]), draws.gumbel(keys, ONLINE_GUMBEL, self.n_clusters))
        with torch.no_grad():
            key = self.momentum.read(self.key_features(views[1], keys), draws.gumbel(keys, KEY_GUMBEL, self.n_clusters))
        cluster, key_clusters = self.cluster_track(online, key)
        instance, key_embedding = self.instance_track(online, key)
        return Outcome(
            loss=losses.total_loss(cluster, instance, self.settings.alpha),  # Eq. 9
            assignment=online.log_assignment.exp(),
            key_assignment=key.log_assignment.exp(),
            memory={"clusters": key_clusters, "embedding": key_embedding},
            metrics={"cluster_loss": cluster, "instance_loss": instance, **self.observe(online)},
        )

    def cluster_track(self, online: Reading, key: Reading) -> tuple[Tensor, Tensor]:
        """L1 and the momentum representations (K,D)."""
        clusters = losses.cluster_representations(online.features, self.membership(online))  # Eq. 4
        key_clusters = losses.cluster_representations(key.features, self.membership(key))
        queue = self.cluster_queue
        loss = losses.cluster_loss(clusters, key_clusters, queue.rows, queue.valid(), self.settings.temperature)  # Eq. 5
        return loss, key_clusters

    def membership(self, reading: Reading) -> Tensor:
        """How much each sample weighs in each cluster's representation, (N,K)."""
        return reading.log_assignment.exp()

    def instance_track(self, online: Reading, key: Reading) -> tuple[Tensor, Tensor]:
        """L2 and the momentum embeddings (N,D)."""
        embedding = self.embedding(self.online, online)
        key_embedding = self.embedding(self.momentum, key).detach()
        queue = self.instance_queue
        log_likelihood = losses.info_nce(
            embedding, key_embedding, queue.rows, queue.valid(), self.settings.temperature
        )
        return losses.instance_loss(log_likelihood, self.entropy(online), self.n_clusters), key_embedding  # Eq. 8

    def embedding(self, network: TccNetwork, reading: Reading) -> Tensor:
        return losses.embedding(reading.features, network.assignment_shift(reading.sample))  # Eq. 7

    def entropy(self, online: Reading) -> Tensor:
        if self.settings.entropy == "sample":
            return losses.entropy(online.log_assignment)
        return losses.batch_entropy(online.log_assignment)

    def key_features(self, images: Tensor, keys: Tensor) -> Tensor:
        """Momentum features; on request in two random halves, so that batch-norm statistics give no pair away."""
        if not self.settings.shuffle_keys:
            return self.momentum.embed(images)
        order = draws.uniform(keys, KEY_ORDER, 1).squeeze(1).argsort()
        return torch.cat([self.momentum.embed(half) for half in images[order].chunk(2)])[order.argsort()]

    @torch.no_grad()
    def observe(self, online: Reading) -> dict[str, Tensor]:
        """Recorded, never optimised. The ratio of norms tells whether f or NN(c) makes up e."""
        shift = self.online.assignment_shift(online.sample)
        return {
            "entropy": losses.entropy(online.log_assignment).mean(),
            "dec_loss": losses.dec_loss(online.features, self.online.prototypes),
            "norm_ratio": online.features.norm(dim=1).mean() / shift.norm(dim=1).mean(),
        }

    def remember(self, memory: dict[str, Tensor]) -> None:
        self.cluster_queue.push(memory["clusters"])
        self.instance_queue.push(memory["embedding"])
        ema_update(self.momentum, self.online, self.settings.ema)


def simplex(n_clusters: int, n_features: int) -> Tensor:
    """K unit vectors with equal angles between them (max-Mahalanobis centres), (K,D); needs D >= K - 1."""
    corners = torch.eye(n_clusters) - 1 / n_clusters
    basis = torch.linalg.svd(corners)[0][:, : n_clusters - 1]  # the K - 1 dimensions that the corners span
    return F.normalize(F.pad(corners @ basis, (0, n_features - n_clusters + 1)), dim=1)
