"""MoCo v2 and k-means, the two-stage baseline: features by momentum contrast, clusters from them at the end.

He et al. 2020, "Momentum Contrast for Unsupervised Visual Representation Learning"; Chen et al. 2020, "Improved
Baselines with Momentum Contrastive Learning". Shapes: N batch, K clusters, D projection, F backbone features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster import losses
from twincluster.config import Config, Count, Positive, Share, own_settings
from twincluster.memory import Queue, ema_update, momentum_copy, queue_size
from twincluster.methods.base import Batch, DataShape, Method, Network, Outcome
from twincluster.methods.heads import Centres, key_features, mlp

RECENT = 4096  # features from which clusters are recorded while training


@dataclass(frozen=True)
class MocoSettings:
    """MoCo v2, with the sizes it has on CIFAR-10."""

    temperature: Positive = 0.2  # tau
    queue_size: Count = 16_384  # negatives; at most one per sample
    n_features: Count = 128  # D
    hidden: Count = 512  # width of the head: that of the backbone's features in the paper
    ema: Share = 0.999  # weight of the old momentum parameters at each step
    shuffle_keys: bool = True  # keys cross batch-norm in two random halves, as they do on several GPUs in the paper


class MocoNetwork(Network):
    """Backbone, projection for the contrast, and the centres of k-means on the backbone's features."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = own_settings(config, MocoSettings), self.backbone.n_features
        self.projector = mlp(n_features, settings.hidden, settings.n_features, batch_norm=False)
        self.centres = Centres(config.n_clusters, n_features)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        log_assignment: Tensor = self.centres(self.embed(images))
        return log_assignment

    def project(self, features: Tensor) -> Tensor:
        return F.normalize(self.projector(features), dim=1)


class Moco(Method):
    """MoCo v2, and k-means on its features at the end (the paper's baseline)."""

    network_type = MocoNetwork
    settings_type = MocoSettings
    online: MocoNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.seed, batch = own_settings(config, MocoSettings), config.seed, config.train.batch_size
        self.online = MocoNetwork(config, shape)
        self.momentum = momentum_copy(self.online)
        self.queue = Queue(queue_size(self.settings.queue_size, shape.n_samples, batch), self.settings.n_features)
        self.recent = Queue(queue_size(RECENT, shape.n_samples, batch), self.online.backbone.n_features)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features = self.online.backbone_features(views[0])
        with torch.no_grad():
            seen = key_features(self.momentum, views[1], keys, shuffled=self.settings.shuffle_keys)
            key = self.momentum.project(seen)  # (N,D)
        rows, valid = self.queue.rows, self.queue.valid()
        likelihood = losses.info_nce(self.online.project(features), key, rows, valid, self.settings.temperature)
        unit, key_unit = F.normalize(features.detach(), dim=1), F.normalize(seen, dim=1)
        return Outcome(
            loss=-likelihood.mean(),
            assignment=self.online.centres(unit).exp(),
            key_assignment=self.online.centres(key_unit).exp(),
            memory={"key": key, "features": key_unit},
            metrics={},
        )

    def remember(self, memory: dict[str, Tensor]) -> None:
        self.queue.push(memory["key"])
        self.recent.push(memory["features"])
        ema_update(self.momentum, self.online, self.settings.ema)

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Clusters for the record alone: nothing is learned from them."""
        self.online.centres.fit(self.recent.filled(), seed=self.seed + epoch)
        return {}

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        self.online.centres.settle(embed(self.online), seed=self.seed)
