"""PCL: contrast an image with its own key and, in k-means clusterings of several sizes, with its prototype.

Li et al. 2021, "Prototypical Contrastive Learning of Unsupervised Representations", after the authors' code. Shapes: N
batch, K clusters, M prototypes, H clusterings, D projection, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clustering import kmeans
from twincluster.config import Config, Count, DataShape, Positive, Share, method_settings
from twincluster.methods.base import Batch, Outcome
from twincluster.methods.peers import peer_losses
from twincluster.methods.peers.contrastive import Moco, MocoNetwork, MocoSettings

ROUNDS = 20  # of k-means


@dataclass(frozen=True)
class PclSettings(MocoSettings):
    """Values of PCL v2. The clusterings have 1, 2 and 4 times as many prototypes, relative to the clusters, as theirs
    have relative to the classes of ImageNet."""

    n_clusterings: Count = 3  # H, each with twice as many prototypes as the one before
    finest: Positive = 25.0  # prototypes per cluster in the coarsest clustering; fewer for small data
    start: Share = 0.1  # share of the run before which only keys are contrasted: 20 of 200 epochs


class PclNetwork(MocoNetwork):
    """Backbone, projector and centres, with the settings of PCL."""

    settings_type = PclSettings


class Pcl(Moco):
    """PCL: momentum contrast with keys and with k-means prototypes; k-means finds the clusters at the end."""

    # differs from the authors' code: all other prototypes are negatives; theirs uses as many as the queue has rows

    network_type = PclNetwork
    settings_type = PclSettings
    prototypes: Tensor  # (H,M,D) of unit norm; clusterings with fewer use the first ones
    concentration: Tensor  # (H,M) phi, 0 where there is no prototype
    labels: Tensor  # (H,n) the prototype of each sample
    known: Tensor  # () 0 or 1, whether there are prototypes
    progress: Tensor  # ()

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        s, n_samples = method_settings(config, PclSettings), shape.n_samples
        self.own, most = s, max(1, n_samples // 2)
        coarsest = max(config.n_clusters, round(s.finest * config.n_clusters))
        self.sizes = [min(most, coarsest * 2**step) for step in range(s.n_clusterings)]
        self.register_buffer("prototypes", torch.zeros(s.n_clusterings, max(self.sizes), s.n_features))
        self.register_buffer("concentration", torch.zeros(s.n_clusterings, max(self.sizes)))
        self.register_buffer("labels", torch.zeros(s.n_clusterings, n_samples, dtype=torch.int64))
        self.register_buffer("known", torch.zeros(()))
        self.register_buffer("progress", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        self.progress.fill_(progress)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features = self.online.backbone_features(views[0])
        instance, memory = self.contrast(features, views[1], keys)
        query = self.online.project(features)
        by_clustering = [
            peer_losses.prototype_contrast(query, rows, phi, label)
            for rows, phi, label in zip(self.prototypes, self.concentration, self.labels[:, samples], strict=True)
        ]
        prototype = torch.stack(by_clustering).mean()
        return Outcome(
            loss=instance + torch.where(self.known > 0, prototype, 0.0),
            assignment=self.online.centres(F.normalize(features.detach(), dim=1)).exp(),
            key_assignment=self.online.centres(memory["features"]).exp(),
            memory=memory,
            metrics={"instance_loss": instance, "prototype_loss": torch.where(self.known > 0, prototype, 0.0)},
        )

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Compute new prototypes from the momentum features of plain images, when they are due."""
        numbers = super().after_epoch(epoch, batches, optimiser)
        if self.progress >= self.own.start:
            self.momentum.eval()
            found = [
                (batch.samples, self.momentum.project(self.momentum.backbone_features(batch.plain())))
                for batch in batches()
            ]
            self.momentum.train()
            samples, rows = (torch.cat(parts) for parts in zip(*found, strict=True))
            self.concentration.zero_()
            for place, size in enumerate(self.sizes):
                seed = self.seed + epoch * len(self.sizes) + place
                clusters = kmeans.spherical_kmeans(rows, size, seed=seed, n_init=1, n_iter=ROUNDS)
                self.prototypes[place, :size] = clusters.centres.to(self.prototypes)
                self.labels[place, samples] = clusters.labels
                on_host = (rows.cpu(), clusters.centres.cpu(), clusters.labels.cpu())
                phi = peer_losses.concentrations(*on_host, self.own.temperature)
                self.concentration[place, :size] = phi.to(self.concentration)
            self.known.fill_(1)
        return numbers
