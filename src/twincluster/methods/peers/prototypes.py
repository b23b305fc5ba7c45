"""Methods with prototypes: SwAV and DeepCluster-v2.

SwAV predicts the code of one view from the other view; codes use all prototypes evenly. Caron et al. 2020,
"Unsupervised Learning of Visual Features by Contrasting Cluster Assignments". If there are as many prototypes as
clusters, they are the clusters; otherwise k-means finds these at the end. Shapes: N batch, K clusters, M prototypes, D
projection, J rows of a queue.

DeepCluster-v2 learns the prototypes that k-means assigns to each image between epochs. Caron et al. 2018, "Deep
Clustering for Unsupervised Learning of Visual Features", in the form of Caron et al. 2020, Sec. 4.1 and Appendix D:
spherical k-means, its centres as prototypes, and several clusterings at once. Shapes: N batch, K clusters, M
prototypes, H clusterings, D projection, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import kmeans
from twincluster.config import Config, Count, CountOrNone, DataShape, Positive, Share, method_settings
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import Centres, CentresNetwork, mlp
from twincluster.methods.peers import peer_losses
from twincluster.nn import Queue, queue_size


@dataclass(frozen=True)
class SwavSettings:
    """Values of the paper, with the sizes of solo-learn for CIFAR-10."""

    n_prototypes: CountOrNone = 0  # M; 0: as many as clusters (the paper: 3,000)
    temperature: Positive = 0.1  # tau
    epsilon: Positive = 0.05  # of the codes: smaller is sharper
    sinkhorn_rounds: Count = 3  # rounds of Sinkhorn, which make codes use prototypes evenly
    queue_size: CountOrNone = 3840  # J, earlier features that take part in the codes; 0: none
    queue_start: Share = 0.05  # share of the run after which the queue fills; it takes part once it is full
    frozen: Share = 0.01  # share of the run in which prototypes do not move
    n_features: Count = 128  # D
    hidden: Count = 2048  # width of the projector


class SwavNetwork(Network):
    """Backbone, projector to unit norm, and prototypes; k-means centres if prototypes are not the clusters."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = method_settings(config, SwavSettings), self.backbone.n_features
        self.temperature, n_prototypes = settings.temperature, settings.n_prototypes or config.n_clusters
        self.projector = mlp(n_features, settings.hidden, settings.n_features, batch_norm=True)
        self.prototypes = nn.Parameter(F.normalize(torch.randn(n_prototypes, settings.n_features), dim=1))
        direct = n_prototypes == config.n_clusters
        self.centres = None if direct else Centres(config.n_clusters, settings.n_features)

    def embed(self, images: Tensor) -> Tensor:  # z, (N,D)
        return F.normalize(self.projector(self.backbone_features(images)), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return self.assign_features(self.embed(images))

    def assign_features(self, unit: Tensor) -> Tensor:
        log_assignment: Tensor
        if self.centres is not None:
            log_assignment = self.centres(unit)
        else:
            log_assignment = F.log_softmax(unit @ self.prototypes.T / self.temperature, 1)
        return log_assignment


class Swav(Method):
    """SwAV: swapped prediction of balanced codes among prototypes."""

    # differs from the paper: two views, without the smaller crops, and SGD or Adam instead of LARS

    network_type = SwavNetwork
    settings_type = SwavSettings
    online: SwavNetwork
    queued: Tensor  # () bool, whether the queues fill; full ones take part in the codes
    moving: Tensor  # () 0 or 1, whether the prototypes learn

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.seed = method_settings(config, SwavSettings), config.seed
        self.online = SwavNetwork(config, shape)
        wanted, batch = self.settings.queue_size, config.train.batch_size
        size = queue_size(wanted, shape.n_samples, batch) if wanted else 0
        size -= size % batch  # as in the authors' code: batches fill it exactly
        self.queues = nn.ModuleList(Queue(size, self.settings.n_features) for _ in range(2))  # one for each view
        self.register_buffer("queued", torch.zeros((), dtype=torch.bool))
        self.register_buffer("moving", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        self.queued.fill_(progress >= self.settings.queue_start)
        self.moving.fill_(float(progress >= self.settings.frozen))

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        unit = self.online.embed(torch.cat(views))  # (2N,D)
        fixed = self.online.prototypes.detach()
        prototypes = fixed + self.moving * (self.online.prototypes - fixed)  # (M,D)
        scores = (unit @ prototypes.T).chunk(2)  # (N,M) each
        codes = [self.code(score.detach(), index) for index, score in enumerate(scores)]
        # Eq. 1: each view predicts the code of the other
        loss = sum(
            (peer_losses.code_loss(scores[1 - i], codes[i], self.settings.temperature) for i in range(2)),
            start=unit.new_zeros(()),
        )
        first, second = unit.detach().chunk(2)
        return Outcome(
            loss=loss / 2,
            assignment=self.online.assign_features(first).detach().exp(),
            key_assignment=self.online.assign_features(second).detach().exp(),
            memory={"first": first, "second": second},
            metrics={"code_confidence": torch.cat(codes).amax(1).mean()},
        )

    @torch.no_grad()
    def code(self, scores: Tensor, view: int) -> Tensor:
        """Return the codes (N,M) of a batch. A full queue takes part, so that a small batch need not use all
        prototypes."""
        queue = self.queues[view]
        assert isinstance(queue, Queue)
        everyone = torch.cat([scores, queue.rows @ self.online.prototypes.T])
        valid = torch.cat([torch.ones_like(scores[:, 0], dtype=torch.bool), queue.valid() & queue.is_full()])
        rounds = self.settings.sinkhorn_rounds
        return peer_losses.sinkhorn(everyone, self.settings.epsilon, rounds, valid)[: len(scores)].exp()

    def remember(self, memory: dict[str, Tensor]) -> None:
        prototypes = self.online.prototypes
        prototypes.copy_(F.normalize(prototypes, dim=1))
        for queue, rows in zip(self.queues, (memory["first"], memory["second"]), strict=True):
            assert isinstance(queue, Queue)
            if len(queue.rows):
                queue.push(rows)
                queue.written *= self.queued  # as in the authors' code: it starts to fill when it is due

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        if self.online.centres is not None:
            self.online.centres.settle(embed(self.online), seed=self.seed)


ROUNDS = 10  # of k-means between epochs


@dataclass(frozen=True)
class DeepClusterV2Settings:
    """Values of Appendix D of the paper, with the sizes of solo-learn for CIFAR-10."""

    n_prototypes: CountOrNone = 0  # M of each clustering; 0: as many as clusters (the paper: 3,000)
    n_clusterings: Count = 3  # H
    temperature: Positive = 0.1  # tau
    n_features: Count = 128  # D
    hidden: Count = 2048  # width of the projector


class DeepClusterV2Network(CentresNetwork):
    """Backbone, projector to unit norm, and the centres of k-means on it."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = method_settings(config, DeepClusterV2Settings), self.backbone.n_features
        self.projector = mlp(n_features, settings.hidden, settings.n_features, batch_norm=True)
        self.centres = Centres(config.n_clusters, settings.n_features)

    def embed(self, images: Tensor) -> Tensor:  # z, (N,D)
        return F.normalize(self.projector(self.backbone_features(images)), dim=1)


class DeepClusterV2(Method):
    """DeepCluster-v2: k-means between epochs; its clusters are the classes that the next epoch learns."""

    # differs from the paper: two views, without the smaller crops, and SGD or Adam instead of LARS

    network_type = DeepClusterV2Network
    settings_type = DeepClusterV2Settings
    online: DeepClusterV2Network
    bank: Tensor  # (n,D) mean of the two newest views
    prototypes: Tensor  # (H,M,D)
    labels: Tensor  # (H,n) the prototype of each sample
    started: Tensor  # () 0 or 1

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.seed = method_settings(config, DeepClusterV2Settings), config.seed
        self.online = DeepClusterV2Network(config, shape)
        heads, features, n_samples = self.settings.n_clusterings, self.settings.n_features, shape.n_samples
        wanted = min(self.settings.n_prototypes or config.n_clusters, n_samples)
        self.register_buffer("bank", F.normalize(torch.randn(n_samples, features), dim=1))
        self.register_buffer("prototypes", torch.zeros(heads, wanted, features))
        self.register_buffer("labels", torch.zeros(heads, n_samples, dtype=torch.int64))
        self.register_buffer("started", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        # differs from the paper: the first epoch only fills the bank, instead of a pass before training
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
        """Compute new prototypes and the prototype of every sample. The network's own centres are for the record."""
        n_clusterings, n_prototypes = self.prototypes.shape[:2]
        for head in range(n_clusterings):
            seed = self.seed + epoch * n_clusterings + head
            found = kmeans.spherical_kmeans(self.bank, n_prototypes, seed=seed, n_init=1, n_iter=ROUNDS)
            self.prototypes[head] = found.centres
            self.labels[head] = found.labels
        self.online.centres.fit(self.bank, seed=self.seed + epoch)
        return {}

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        self.online.centres.settle(embed(self.online), seed=self.seed)
