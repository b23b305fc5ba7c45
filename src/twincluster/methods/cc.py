"""Contrastive Clustering: pairs of rows and pairs of columns of one matrix are contrasted.

Li et al. 2021, "Contrastive Clustering". A sample's features are a row, a cluster's assignments are a column.
Shapes: N batch, K clusters, D projection.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster import losses
from twincluster.config import Config, Count, Positive, own_settings
from twincluster.methods import peer_losses
from twincluster.methods.base import DataShape, Method, Network, Outcome
from twincluster.methods.heads import mlp


@dataclass(frozen=True)
class CcSettings:
    """Those of the paper."""

    temperature: Positive = 0.5  # tau_I, of samples
    cluster_temperature: Positive = 1.0  # tau_C, of clusters
    n_features: Count = 128  # D
    hidden: Count = 512  # width of both heads: that of the backbone's features in the paper
    entropy_weight: float = 1.0  # of H(Y), against one cluster for all


class CcNetwork(Network):
    """Backbone with two heads: features of a sample, and its assignment to clusters."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = own_settings(config, CcSettings), self.backbone.n_features
        self.projector = mlp(n_features, settings.hidden, settings.n_features, batch_norm=False)  # g_I
        self.head = mlp(n_features, settings.hidden, config.n_clusters, batch_norm=False)  # g_C

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.backbone_features(images)), 1)


class Cc(Method):
    """Contrastive Clustering: instances and clusters contrasted in one batch, without a momentum network."""

    network_type = CcNetwork
    settings_type = CcSettings
    online: CcNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = own_settings(config, CcSettings)
        self.online = CcNetwork(config, shape)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        # differs from the paper: both views pass batch-norm together, in one batch of 2N
        features = self.online.backbone_features(torch.cat(views))
        one, two = F.normalize(self.online.projector(features), dim=1).chunk(2)  # (N,D) each
        log_one, log_two = F.log_softmax(self.online.head(features), 1).chunk(2)  # (N,K) each
        instance = peer_losses.nt_xent(one, two, self.settings.temperature)
        cluster = peer_losses.cluster_contrast(log_one.exp(), log_two.exp(), self.settings.cluster_temperature)
        entropy = losses.batch_entropy(log_one) + losses.batch_entropy(log_two)  # H(Y)
        return Outcome(
            loss=instance + cluster - self.settings.entropy_weight * entropy,
            assignment=log_one.detach().exp(),
            key_assignment=log_two.detach().exp(),
            memory={},
            metrics={"instance_loss": instance, "cluster_loss": cluster, "batch_entropy": entropy / 2},
        )
