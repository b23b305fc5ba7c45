"""MoCo v2 and k-means, the two-stage baseline: features by momentum contrast, clusters from them at the end.

He et al. 2020, "Momentum Contrast for Unsupervised Visual Representation Learning"; Chen et al. 2020, "Improved
Baselines with Momentum Contrastive Learning". Shapes: N batch, K clusters, D projection, F backbone features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster import losses
from twincluster.config import Config, Count, Positive, Share, own_settings
from twincluster.memory import Queue, ema_update, momentum_copy, queue_size
from twincluster.methods.base import DataShape, Outcome
from twincluster.methods.heads import Centres, key_features, mlp
from twincluster.methods.kmeans_at_end import CentresNetwork, KmeansAtEnd


@dataclass(frozen=True)
class MocoSettings:
    """MoCo v2, with the sizes it has on CIFAR-10."""

    temperature: Positive = 0.2  # tau
    queue_size: Count = 16_384  # negatives; at most one per sample
    n_features: Count = 128  # D
    hidden: Count = 512  # width of the head: that of the backbone's features in the paper
    ema: Share = 0.999  # weight of the old momentum parameters at each step
    shuffle_keys: bool = True  # keys cross batch-norm in two random halves, as they do on several GPUs in the paper


class MocoNetwork(CentresNetwork):
    """Backbone, projection for the contrast, and the centres of k-means on the backbone's features."""

    settings_type: type[MocoSettings] = MocoSettings

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = own_settings(config, self.settings_type), self.backbone.n_features
        self.projector = mlp(n_features, settings.hidden, settings.n_features, batch_norm=False)
        self.centres = Centres(config.n_clusters, n_features)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def project(self, features: Tensor) -> Tensor:
        return F.normalize(self.projector(features), dim=1)


class Moco(KmeansAtEnd):
    """MoCo v2, and k-means on its features at the end (the paper's baseline)."""

    network_type: type[MocoNetwork] = MocoNetwork
    settings_type: type[MocoSettings] = MocoSettings
    online: MocoNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = own_settings(config, self.settings_type)
        self.momentum = momentum_copy(self.online)
        size = queue_size(self.settings.queue_size, shape.n_samples, config.train.batch_size)
        self.queue = Queue(size, self.settings.n_features)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features = self.online.backbone_features(views[0])
        loss, memory = self.contrast(features, views[1], keys)
        unit = F.normalize(features.detach(), dim=1)
        return Outcome(
            loss=loss,
            assignment=self.online.centres(unit).exp(),
            key_assignment=self.online.centres(memory["features"]).exp(),
            memory=memory,
            metrics={},
        )

    def contrast(self, features: Tensor, images: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of features (N,F) of one view, given the images of the other, and what to remember of these."""
        with torch.no_grad():
            seen = key_features(self.momentum, images, keys, shuffled=self.settings.shuffle_keys)
            key = self.momentum.project(seen)  # (N,D)
        rows, valid = self.queue.rows, self.queue.valid()
        likelihood = losses.info_nce(self.online.project(features), key, rows, valid, self.settings.temperature)
        return -likelihood.mean(), {"key": key, "features": F.normalize(seen, dim=1)}

    def remember(self, memory: dict[str, Tensor]) -> None:
        super().remember(memory)
        self.queue.push(memory["key"])
        ema_update(self.momentum, self.online, self.settings.ema)
