"""IDFD: every image is a class of its own, features are kept from repeating one another, and k-means does the rest.

Tao et al. 2021, "Clustering-friendly Representation Learning via Instance Discrimination and Feature Decorrelation".
Shapes: N batch, K clusters, D features, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Count, Positive, Share, own_settings
from twincluster.methods import peer_losses
from twincluster.methods.base import Batch, DataShape, Method, Network, Outcome
from twincluster.methods.heads import Centres
from twincluster.methods.kmeans_at_end import CentresNetwork


@dataclass(frozen=True)
class IdfdSettings:
    """Those of the paper and its code."""

    temperature: Positive = 1.0  # tau, of instances
    feature_temperature: Positive = 2.0  # tau_2, of features
    weight: float = 1.0  # alpha, of the decorrelation
    n_features: Count = 128  # D
    keep: Share = 0.5  # weight of a sample's old row in the bank


class IdfdNetwork(CentresNetwork):
    """Backbone, one linear layer to features of unit norm, and the centres of k-means on them."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings = own_settings(config, IdfdSettings)
        self.head = nn.Linear(self.backbone.n_features, settings.n_features)
        self.centres = Centres(config.n_clusters, settings.n_features)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.head(self.backbone_features(images)), dim=1)


class Idfd(Method):
    """IDFD: instance discrimination in a memory bank, feature decorrelation, and k-means at the end."""

    network_type = IdfdNetwork
    settings_type = IdfdSettings
    online: IdfdNetwork
    bank: Tensor  # (n,D) of unit norm

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.seed = own_settings(config, IdfdSettings), config.seed
        self.online = IdfdNetwork(config, shape)
        self.register_buffer("bank", F.normalize(torch.randn(shape.n_samples, self.settings.n_features), dim=1))

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.view(0),)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        s, unit = self.settings, self.online.embed(views[0])  # (N,D)
        instance = peer_losses.instance_discrimination(unit, self.bank, samples, s.temperature)
        features = peer_losses.decorrelation(unit, s.feature_temperature)
        stored = self.bank[samples]
        return Outcome(
            loss=instance + s.weight * features,
            assignment=self.online.centres(unit.detach()).exp(),
            key_assignment=self.online.centres(stored).exp(),  # earlier views: there is only one in a step
            memory={"samples": samples, "features": unit.detach()},
            metrics={"instance_loss": instance, "feature_loss": features},
        )

    def remember(self, memory: dict[str, Tensor]) -> None:
        samples, keep = memory["samples"], self.settings.keep
        rows = keep * self.bank[samples] + (1 - keep) * memory["features"]
        self.bank.index_copy_(0, samples, F.normalize(rows, dim=1))

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Clusters for the record alone: nothing is learned from them."""
        self.online.centres.fit(self.bank, seed=self.seed + epoch)
        return {}

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        # differs from the paper: k-means on features of the images as they are, which new images have too, not on the
        # bank
        self.online.centres.settle(embed(self.online), seed=self.seed)
