"""PICA: of all partitions the most confident, whose clusters share no image.

Huang et al. 2020, "Deep Semantic Clustering by Partition Confidence Maximisation". The columns of an assignment are
clusters; those of two views of a batch should be alike where they are the same cluster, and orthogonal elsewhere.
Shapes: N batch, K clusters, F backbone features, R augmentations of an image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster import losses
from twincluster.config import Config, Count, CountOrNone, own_settings
from twincluster.methods import peer_losses
from twincluster.methods.base import Batch, DataShape, Method, Network, Outcome


@dataclass(frozen=True)
class PicaSettings:
    """Section 4 of the paper, and its code."""

    over_clusters: CountOrNone = 70  # of the auxiliary head, which has every other epoch, the first among them; 0: none
    repeats: Count = 3  # R, augmentations of each image in a step
    balance_weight: float = 2.0  # lambda, against one cluster for all


class PicaNetwork(Network):
    """Backbone, and a linear layer for each kind of clusters."""

    # differs from the paper: the backbone sees the colours, not the edges that a Sobel filter leaves of a grey image

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = own_settings(config, PicaSettings), self.backbone.n_features
        self.head = nn.Linear(n_features, config.n_clusters)
        self.over_head = nn.Linear(n_features, settings.over_clusters) if settings.over_clusters else None

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.backbone_features(images)), 1)


class Pica(Method):
    """PICA: partition confidence maximisation, in turns with an over-clustering head."""

    network_type = PicaNetwork
    settings_type = PicaSettings
    online: PicaNetwork
    over: Tensor  # () bool, whether the auxiliary head has its turn

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = own_settings(config, PicaSettings)
        self.online = PicaNetwork(config, shape)
        self.register_buffer("over", torch.zeros((), dtype=torch.bool))

    def schedule(self, epoch: int, progress: float) -> None:
        self.over.fill_(self.online.over_head is not None and epoch % 2 == 0)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.plain(), *(batch.view(i) for i in range(self.settings.repeats))

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        # differs from the paper: the images and their augmentations pass batch-norm together
        features = self.online.backbone_features(torch.cat(views))  # ((1+R)N,F)
        log_assignment = F.log_softmax(self.online.head(features), 1)
        loss, metrics = self.partition(log_assignment, len(samples))
        if self.online.over_head is not None:
            over_loss, _ = self.partition(F.log_softmax(self.online.over_head(features), 1), len(samples))
            loss, metrics = torch.where(self.over, over_loss, loss), metrics | {"over_loss": over_loss}
        q = log_assignment.detach().exp()
        return Outcome(
            loss=loss,
            assignment=q[: len(samples)],
            key_assignment=q[len(samples) : 2 * len(samples)],
            memory={},
            metrics=metrics,
        )

    def partition(self, log_assignment: Tensor, n_images: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Uncertainty of the partition and, weighed, how uneven it is; both for the record too."""
        plain, augmented = log_assignment[:n_images], log_assignment[n_images:]
        pairs = plain.exp().repeat(self.settings.repeats, 1), augmented.exp()
        uncertainty = peer_losses.partition_uncertainty(*pairs)
        unevenness = math.log(plain.shape[1]) - losses.batch_entropy(plain)
        metrics = {"uncertainty": uncertainty, "unevenness": unevenness}
        return uncertainty + self.settings.balance_weight * unevenness, metrics
