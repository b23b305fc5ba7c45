"""Contrastive methods: MoCo v2 with k-means, Contrastive Clustering, and IDFD.

MoCo v2 learns features by momentum contrast; k-means on them gives the clusters at the end. He et al. 2020, "Momentum
Contrast for Unsupervised Visual Representation Learning"; Chen et al. 2020, "Improved Baselines with Momentum
Contrastive Learning".

Contrastive Clustering (CC) contrasts the rows (samples) and the columns (clusters) of one matrix. Li et al. 2021,
"Contrastive Clustering".

IDFD treats every image as a class of its own and decorrelates the features; k-means gives the clusters. Tao et al.
2021, "Clustering-friendly Representation Learning via Instance Discrimination and Feature Decorrelation".

Shapes: N batch, K clusters, D projection or features, F backbone features, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Count, DataShape, Positive, Share, method_settings
from twincluster.methods import losses
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import Centres, CentresNetwork, KmeansAtEnd, key_features, mlp
from twincluster.methods.peers import peer_losses
from twincluster.nn import Queue, ema_update, momentum_copy, queue_size


@dataclass(frozen=True)
class MocoSettings:
    """MoCo v2, with the sizes it has on CIFAR-10."""

    temperature: Positive = 0.2  # tau
    queue_size: Count = 16_384  # negatives; at most one per sample
    n_features: Count = 128  # D
    hidden: Count = 512  # width of the projector; the paper uses the width of the backbone's features
    ema: Share = 0.999  # weight of the old momentum parameters at each step
    shuffle_keys: bool = True  # encode keys in two random halves, as several GPUs do in the paper


class MocoNetwork(CentresNetwork):
    """Backbone, projector, and the centres of k-means on the backbone's features."""

    settings_type: type[MocoSettings] = MocoSettings

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = method_settings(config, self.settings_type), self.backbone.n_features
        self.projector = mlp(n_features, settings.hidden, settings.n_features, batch_norm=False)
        self.centres = Centres(config.n_clusters, n_features)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def project(self, features: Tensor) -> Tensor:
        return F.normalize(self.projector(features), dim=1)


class Moco(KmeansAtEnd):
    """MoCo v2 with k-means on its features at the end, the paper's baseline."""

    network_type: type[MocoNetwork] = MocoNetwork
    settings_type: type[MocoSettings] = MocoSettings
    online: MocoNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = method_settings(config, self.settings_type)
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
        """Return the loss of features (N,F) of one view against images of the other, and the tensors to remember."""
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


@dataclass(frozen=True)
class CcSettings:
    """Values of the paper."""

    temperature: Positive = 0.5  # tau_I, of samples
    cluster_temperature: Positive = 1.0  # tau_C, of clusters
    n_features: Count = 128  # D
    hidden: Count = 512  # width of both heads; the paper uses the width of the backbone's features
    entropy_weight: float = 1.0  # of H(Y), which prevents a single cluster


class CcNetwork(Network):
    """Backbone with two heads, which give the features and the cluster assignment of a sample."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = method_settings(config, CcSettings), self.backbone.n_features
        self.projector = mlp(n_features, settings.hidden, settings.n_features, batch_norm=False)  # g_I
        self.head = mlp(n_features, settings.hidden, config.n_clusters, batch_norm=False)  # g_C

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.backbone_features(images)), 1)


class Cc(Method):
    """Contrastive Clustering: contrast instances and clusters in one batch, without a momentum network."""

    network_type = CcNetwork
    settings_type = CcSettings
    online: CcNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = method_settings(config, CcSettings)
        self.online = CcNetwork(config, shape)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        # differs from the paper: both views share batch-norm statistics, as one batch of 2N
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


@dataclass(frozen=True)
class IdfdSettings:
    """Values of the paper and its code."""

    temperature: Positive = 1.0  # tau, of instances
    feature_temperature: Positive = 2.0  # tau_2, of features
    weight: float = 1.0  # alpha, of the decorrelation
    n_features: Count = 128  # D
    keep: Share = 0.5  # weight of a sample's old row in the bank


class IdfdNetwork(CentresNetwork):
    """Backbone, a linear layer to features of unit norm, and the centres of k-means on them."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings = method_settings(config, IdfdSettings)
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
        self.settings, self.seed = method_settings(config, IdfdSettings), config.seed
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
            key_assignment=self.online.centres(stored).exp(),  # of earlier views: a step has only one
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
        """Update the clusters that are recorded; the training does not use them."""
        self.online.centres.fit(self.bank, seed=self.seed + epoch)
        return {}

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        # differs from the paper: k-means clusters features of plain images, as for new images, not the bank
        self.online.centres.settle(embed(self.online), seed=self.seed)
