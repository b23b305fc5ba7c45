"""SCCL: contrast instances while assignments to centres learn from their own sharpened targets, on one network.

Zhang et al. 2021, "Supporting Clustering with Contrastive Learning", after the authors' code. The paper uses texts and
a pretrained network; the two losses need neither. Shapes: N batch, K clusters, D projection, F backbone features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Count, DataShape, Positive, Share, method_settings
from twincluster.methods.base import Batch, Network, Outcome
from twincluster.methods.heads import TwoStages, k_means, mlp
from twincluster.methods.peers import peer_losses

STARTS = 10  # of the k-means that sets the centres; before that, a single one for the record


@dataclass(frozen=True)
class ScclSettings:
    """Values of the authors' code, with augmented texts."""

    temperature: Positive = 0.5  # tau
    contrast_weight: Positive = 1.0  # eta, of the contrast; the clusters' loss has weight 1
    n_features: Count = 128  # D
    cluster_start: Share = 0.5  # share of the run after which clusters are learned; theirs are pretrained


class ScclNetwork(Network):
    """Backbone, projector for the contrast, and centres of clusters in the features."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, width = method_settings(config, ScclSettings), self.backbone.n_features
        self.projector = mlp(width, width, settings.n_features, batch_norm=False)
        self.prototypes = nn.Parameter(torch.zeros(config.n_clusters, width))  # mu

    def embed(self, images: Tensor) -> Tensor:  # e, (N,F)
        return self.backbone_features(images)

    def log_assign(self, images: Tensor) -> Tensor:
        return peer_losses.student_assignment(self.embed(images), self.prototypes)


class Sccl(TwoStages):
    """SCCL: contrast of instances, and assignments that sharpen themselves like those of DEC."""

    # differs from the paper: images and a network without pretraining, so that contrast comes first; one learning rate
    # for all weights, where the paper's heads learn a hundred times as fast as its network

    network_type = ScclNetwork
    settings_type = ScclSettings
    online: ScclNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters = method_settings(config, ScclSettings), config.n_clusters
        self.seed = config.seed
        self.online = ScclNetwork(config, shape)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.plain(), batch.view(0), batch.view(1)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features = self.online.backbone_features(torch.cat(views))  # (3N,F)
        plain, *augmented = features.chunk(3)
        one, two = F.normalize(self.online.projector(torch.cat(augmented)), dim=1).chunk(2)
        contrast = peer_losses.nt_xent(one, two, self.settings.temperature)
        log_q = peer_losses.student_assignment(plain, self.online.prototypes)
        divergence = peer_losses.target_divergence(log_q, peer_losses.sharpened_target(log_q.detach()))
        other = peer_losses.student_assignment(augmented[0], self.online.prototypes)
        return Outcome(
            loss=self.settings.contrast_weight * contrast + torch.where(self.clustering, divergence, 0.0),
            assignment=log_q.detach().exp(),
            key_assignment=other.detach().exp(),
            memory={},
            metrics={"contrast_loss": contrast, "divergence": divergence},
        )

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Set the centres by k-means until clusters are learned."""
        if not self.clustering:
            features, begins = self.embed_all(batches), self.is_due(self.settings.cluster_start)
            if len(features) >= self.n_clusters:
                centres, _ = k_means(features, self.n_clusters, n_init=STARTS if begins else 1, seed=self.seed + epoch)
                self.online.prototypes.copy_(centres)
            self.clustering.fill_(begins)
        return {"stage": float(self.clustering)}
