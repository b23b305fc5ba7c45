"""SPICE: prototypes, the means of the most confident images of each cluster, label the images closest to them.

Niu et al. 2022, "SPICE: Semantic Pseudo-Labeling for Image Clustering", after the authors' code; its first two stages,
which they call SPICE-Self. Shapes: N batch, K clusters, D projection, F backbone features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.config import Config, DataShape, Share, method_settings
from twincluster.methods import losses
from twincluster.methods.base import Batch, Outcome
from twincluster.methods.heads import TwoStages, mlp
from twincluster.methods.peers import peer_losses
from twincluster.methods.peers.contrastive import Moco, MocoNetwork, MocoSettings


@dataclass(frozen=True)
class SpiceSettings(MocoSettings):
    """Values of the authors' code for CIFAR-10."""

    centre_ratio: Share = 0.5  # share of N / K: the most confident images of a cluster, whose mean is its prototype
    cluster_start: Share = 0.7  # share of the run after which the features are fixed and the clusters are learned


class SpiceNetwork(MocoNetwork):
    """Backbone, projector for the contrast, and a perceptron that assigns."""

    settings_type = SpiceSettings
    taught: Tensor  # () bool, whether the perceptron is trained; until then k-means assigns

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        width = self.backbone.n_features
        self.head = mlp(width, width, config.n_clusters, batch_norm=False)
        self.register_buffer("taught", torch.zeros((), dtype=torch.bool))

    def log_assign(self, images: Tensor) -> Tensor:
        features = self.backbone_features(images)
        by_head = F.log_softmax(self.head(features), 1)
        return torch.where(self.taught, by_head, self.centres(F.normalize(features, dim=1)))


class Spice(TwoStages, Moco):
    """SPICE-Self: momentum contrast, then labels from prototypes of the most confident images of a batch."""

    # differs from the authors' code: one head, theirs keeps the best of ten; batches of the contrast's size, not 5,000
    # images; one kind of augmentation for the run; fixed features get no gradient, but weight decay
    # differs from the authors' code: the cross-entropy of the logits; theirs takes the softmax of a softmax
    # differs from the paper: without its third stage, which trains all layers with reliable labels

    network_type = SpiceNetwork
    settings_type = SpiceSettings
    online: SpiceNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.own = method_settings(config, SpiceSettings)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.view(1), batch.plain()

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features, plain = self.online.backbone_features(torch.cat([views[0], views[2]])).chunk(2)  # (N,F) each
        contrast, memory = self.contrast(features, views[1], keys)
        strong, weak = (F.log_softmax(self.online.head(rows.detach()), 1) for rows in (features, plain))
        unit = F.normalize(plain.detach(), dim=1)
        target = peer_losses.prototype_labels(unit, weak.detach().exp(), self.own.centre_ratio)  # (N,K)
        label = peer_losses.multiple_label_loss(strong, target)
        q = torch.where(self.clustering, strong, self.online.centres(F.normalize(features.detach(), dim=1))).exp()
        other = torch.where(self.clustering, weak, self.online.centres(unit)).exp()
        return Outcome(
            loss=torch.where(self.clustering, label, contrast),
            assignment=q.detach(),
            key_assignment=other.detach(),
            memory=memory,
            metrics={"contrast_loss": contrast, "label_loss": label, "evenness": losses.batch_entropy(weak).detach()},
        )

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        numbers = super().after_epoch(epoch, batches, optimiser)
        self.online.taught.copy_(self.clustering)
        self.clustering.fill_(self.is_due(self.own.cluster_start))
        return {**numbers, "stage": float(self.clustering)}
