"""Twin-contrast clustering with the least change that was found to make it cluster digits: prototypes are set once.

Part of the way through the run k-means on the features says where the prototypes are; before and after, all is as
printed. docs/results.md has the comparison that led here. Shapes: n samples, K clusters, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clusters import assign
from twincluster.config import Config, Share, own_settings
from twincluster.methods.base import Batch, DataShape
from twincluster.methods.heads import FINAL_STARTS, FINAL_STARTS_MANY
from twincluster.methods.tcc import Tcc


@dataclass(frozen=True)
class RepairedSettings:
    """What is not in the paper."""

    kmeans_at: Share = 0.5  # of the run: after it, at the end of an epoch, k-means sets mu; 1: never


class Repaired(Tcc):
    """Twin-contrast clustering whose prototypes are set once, half-way, by k-means on its features."""

    settings_type = RepairedSettings
    placed: Tensor  # (), bool: whether that has happened
    progress: float = 0.0  # share of the run that is done

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.kmeans_at, self.seed = own_settings(config, RepairedSettings).kmeans_at, config.seed
        self.register_buffer("placed", torch.zeros((), dtype=torch.bool))

    def schedule(self, epoch: int, progress: float) -> None:
        self.progress = progress

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        if self.progress >= self.kmeans_at and not self.placed:
            features = torch.cat([self.online.embed(batch.view(0)) for batch in batches()])
            self.online.prototypes.copy_(towards_clusters(features, self.n_clusters, self.seed))
            self.momentum.prototypes.copy_(self.online.prototypes)
            self.placed.fill_(True)
        return {}


def towards_clusters(features: Tensor, n_clusters: int, seed: int) -> Tensor:
    """Unit vectors from the middle of all features (n,D) towards the clusters that k-means finds in them, (K,D)."""
    n_init = FINAL_STARTS if n_clusters <= assign.FEW_CLUSTERS else FINAL_STARTS_MANY
    middle = features.mean(0)
    centres = assign.spherical_kmeans(features - middle, n_clusters, seed=seed, n_init=n_init).centres
    # Eq. 3 has no bias: at right angles to the middle, what all features share speaks for no cluster
    shared = F.normalize(middle, dim=0)
    return F.normalize(centres - torch.outer(centres @ shared, shared), dim=1)
