"""DeepCluster-v2: k-means on what the last epoch left behind gives every image the prototype that it learns next.

Caron et al. 2018, "Deep Clustering for Unsupervised Learning of Visual Features", in the form of Caron et al. 2020,
Sec. 4.1 and Appendix D: spherical k-means, prototypes that are its centres, several of them at once.
Shapes: N batch, K clusters, M prototypes, H clusterings, D projection, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clusters import assign
from twincluster.config import Config, Count, CountOrNone, Positive, own_settings
from twincluster.methods.base import Batch, DataShape, Method, Network, Outcome
from twincluster.methods.heads import Centres, mlp
from twincluster.methods.kmeans_at_end import CentresNetwork

ROUNDS = 10  # of k-means between epochs


@dataclass(frozen=True)
class DeepClusterV2Settings:
    """Appendix D of the paper, with the sizes that solo-learn has for CIFAR-10."""

    n_prototypes: CountOrNone = 0  # M of each clustering; 0: as many as clusters (the paper: 3,000)
    n_clusterings: Count = 3  # H
    temperature: Positive = 0.1  # tau
    n_features: Count = 128  # D
    hidden: Count = 2048  # width of the projector


class DeepClusterV2Network(CentresNetwork):
    """Backbone, projection of unit norm, and the centres of k-means on it."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = own_settings(config, DeepClusterV2Settings), self.backbone.n_features
        self.projector = mlp(n_features, settings.hidden, settings.n_features, batch_norm=True)
        self.centres = Centres(config.n_clusters, settings.n_features)

    def embed(self, images: Tensor) -> Tensor:  # z, (N,D)
        return F.normalize(self.projector(self.backbone_features(images)), dim=1)


class DeepClusterV2(Method):
    """DeepCluster-v2: k-means between epochs, and its clusters as classes within them."""

    # differs from the paper: two views, without its smaller crops, and SGD or Adam in place of LARS

    network_type = DeepClusterV2Network
    settings_type = DeepClusterV2Settings
    online: DeepClusterV2Network
    bank: Tensor  # (n,D) mean of the two newest views
    prototypes: Tensor  # (H,M,D)
    labels: Tensor  # (H,n) the prototype of each sample
    started: Tensor  # () 0 or 1

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.seed = own_settings(config, DeepClusterV2Settings), config.seed
        self.online = DeepClusterV2Network(config, shape)
        heads, features, n_samples = self.settings.n_clusterings, self.settings.n_features, shape.n_samples
        wanted = min(self.settings.n_prototypes or config.n_clusters, n_samples)
        self.register_buffer("bank", F.normalize(torch.randn(n_samples, features), dim=1))
        self.register_buffer("prototypes", torch.zeros(heads, wanted, features))
        self.register_buffer("labels", torch.zeros(heads, n_samples, dtype=torch.int64))
        self.register_buffer("started", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        # differs from the paper: the first epoch fills the bank and teaches nothing, in place of a pass before it
        self.started.fill_(float(epoch > 0))

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        unit = self.online.embed(torch.cat(views))  # (2N,D)
        logits = torch.einsum("nd,hmd->nmh", unit, self.prototypes) / self.settings.temperature
        loss = F.cross_entropy(logits, self.labels[:, samples].T.repeat(2, 1))
        q = self.online.centres(unit.detach()).exp()
        first, second = unit.detach().chunk(2)
        return Outcome(
            loss=self.started * loss,
            assignment=q[: len(samples)],
            key_assignment=q[len(samples) :],
            memory={"samples": samples, "features": F.normalize(first + second, dim=1)},
            metrics={},
        )

    def remember(self, memory: dict[str, Tensor]) -> None:
        self.bank.index_copy_(0, memory["samples"], memory["features"])

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """New prototypes, and the prototype of every sample; the network's own centres are for the record."""
        n_clusterings, n_prototypes = self.prototypes.shape[:2]
        for head in range(n_clusterings):
            seed = self.seed + epoch * n_clusterings + head
            found = assign.spherical_kmeans(self.bank, n_prototypes, seed=seed, n_init=1, n_iter=ROUNDS)
            self.prototypes[head] = found.centres
            self.labels[head] = found.labels
        self.online.centres.fit(self.bank, seed=self.seed + epoch)
        return {}

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        self.online.centres.settle(embed(self.online), seed=self.seed)
