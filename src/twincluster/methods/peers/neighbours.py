"""Methods that learn from nearest neighbours: SCAN and CDC.

SCAN learns features by contrast, then clusters that neighbours share, then from its own confident labels. Van Gansbeke
et al. 2020, "SCAN: Learning to Classify Images without Labels". Its three stages are parts of one run and change
between epochs. Shapes: N batch, K clusters, D projection, F backbone features, n samples, k neighbours.

CDC learns features by momentum contrast, then two heads on them: one clusters, the other calibrates its confidence. Jia
et al. 2025, "Towards Calibrated Deep Clustering Network", after the authors' code. Both stages are parts of one run.
Shapes: N batch, K clusters, F backbone features, H width of a head, M mini-clusters, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import kmeans, neighbours
from twincluster.config import Config, Count, CountOrNone, DataShape, Positive, Share, method_settings
from twincluster.methods import losses
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import Centres, mlp
from twincluster.methods.peers import peer_losses
from twincluster.methods.peers.contrastive import Moco, MocoNetwork, MocoSettings
from twincluster.nn import draws

WHICH = 14  # stream of random numbers
PRETEXT, NEIGHBOURS, SELF_LABELS = range(3)  # stages


@dataclass(frozen=True)
class ScanSettings:
    """Values of the paper and its code, except the shares of the run: one falling learning rate serves all stages."""

    temperature: Positive = 0.1  # of SimCLR, the first stage
    n_features: Count = 128  # D
    hidden: Count = 512  # width of the projector
    neighbours: Count = 20  # k
    entropy_weight: float = 5.0  # lambda, of the entropy that prevents a single cluster
    threshold: Share = 0.99  # of an assignment that becomes a label
    cluster_start: Share = 0.5  # share of the run after which neighbours are found and clusters learned
    self_label_start: Share = 0.8  # share of the run after which clusters learn from their own labels


class ScanNetwork(Network):
    """Backbone, projector for the first stage, and a linear layer that assigns."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = method_settings(config, ScanSettings), self.backbone.n_features
        self.projector = mlp(n_features, settings.hidden, settings.n_features, batch_norm=False)
        self.head = nn.Linear(n_features, config.n_clusters)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.backbone_features(images)), 1)


class Scan(Method):
    """SCAN: contrast, then agreement with nearest neighbours, then self-labelling."""

    network_type = ScanNetwork
    settings_type = ScanSettings
    online: ScanNetwork
    bank: Tensor  # (n,F) features of the newest first view
    nearest: Tensor  # (n,k) positions of neighbours
    stage: Tensor  # () int64
    taught: Tensor  # () int64, the stage of the last epoch that was trained
    progress: Tensor  # ()

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.seed = method_settings(config, ScanSettings), config.seed
        self.online = ScanNetwork(config, shape)
        n_features, count = self.online.backbone.n_features, min(self.settings.neighbours, shape.n_samples - 1)
        self.centres = Centres(config.n_clusters, n_features)  # for the record, while the head is untrained
        self.register_buffer("bank", torch.zeros(shape.n_samples, n_features))
        self.register_buffer("nearest", torch.zeros(shape.n_samples, count, dtype=torch.int64))
        for name in ("stage", "taught"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))
        self.register_buffer("progress", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        self.progress.fill_(progress)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.view(1), batch.plain()  # the last is weakly augmented in the paper

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        s, features = self.settings, self.online.backbone_features(torch.cat(views))  # (3N,F)
        first, second, _ = F.normalize(self.online.projector(features), dim=1).chunk(3)
        one, two, plain = F.log_softmax(self.online.head(features), 1).chunk(3)  # (N,K) each
        # differs from the paper: neighbours are compared by their latest stored features, without gradient
        neighbour = F.log_softmax(self.online.head(self.bank[self.neighbour(samples, keys)]), 1)
        stages = torch.stack(
            [
                peer_losses.nt_xent(first, second, s.temperature),
                peer_losses.neighbour_loss(one, neighbour) - s.entropy_weight * losses.batch_entropy(one),
                peer_losses.self_label_loss(one, plain.detach().exp(), s.threshold),
            ]
        )
        record = [self.recorded(features.chunk(3)[view], log_q) for view, log_q in ((0, one), (1, two))]
        return Outcome(
            loss=stages.gather(0, self.stage.view(1)).squeeze(0),
            assignment=record[0],
            key_assignment=record[1],
            memory={"samples": samples, "features": features[: len(samples)].detach()},
            metrics={"sure": (plain.detach().exp().amax(1) > s.threshold).to(plain.dtype).mean()},
        )

    def neighbour(self, samples: Tensor, keys: Tensor) -> Tensor:
        """Draw one neighbour of each sample, (N,)."""
        column = (draws.uniform(keys, WHICH, 1) * self.nearest.shape[1]).long()
        return self.nearest[samples].gather(1, column).squeeze(1)

    @torch.no_grad()
    def recorded(self, features: Tensor, log_assignment: Tensor) -> Tensor:
        by_centres = self.centres(F.normalize(features, dim=1))
        return torch.where(self.stage == PRETEXT, by_centres, log_assignment).exp()

    def remember(self, memory: dict[str, Tensor]) -> None:
        self.bank.index_copy_(0, memory["samples"], memory["features"])

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Begin the next stage when it is due."""
        self.centres.fit(self.bank, seed=self.seed + epoch)
        self.taught.copy_(self.stage)
        if self.stage == PRETEXT and self.progress >= self.settings.cluster_start:
            self.nearest.copy_(neighbours.nearest_rows(self.bank, self.nearest.shape[1]))
            self.stage.fill_(NEIGHBOURS)
        elif self.stage == NEIGHBOURS and self.progress >= self.settings.self_label_start:
            self.stage.fill_(SELF_LABELS)
        return {"stage": float(self.stage)}

    @torch.no_grad()
    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        """Cluster by k-means if the run was too short to train the head."""
        if self.taught == PRETEXT:
            self.centres.settle(embed(self.online), seed=self.seed)
            self.online.head.weight.copy_(self.centres.scale * self.centres.directions)
            self.online.head.bias.zero_()


START = 18  # stream of random numbers
ROUNDS = 10  # of k-means in a batch
SCALE, RATE, MOMENTUM, DECAY = 5.0, 0.1, 0.9, 1e-4  # of the training that separates the first weights of a head


@dataclass(frozen=True)
class CdcSettings(MocoSettings):
    """Values of the authors' code for CIFAR-10, except the share of the run: here one falling learning rate serves both
    stages."""

    queue_size: Count = 32_768
    n_features: Count = 256
    hidden: Count = 4096
    ema: Share = 0.99
    shuffle_keys: bool = False
    head_hidden: Count = 512  # H; at most one per sample of an epoch
    mini_clusters: Share = 0.5  # M, as a share of the batch
    entropy_weight: float = 1.0  # in the calibration, of the entropy that prevents a single cluster
    spread_steps: CountOrNone = 2000  # steps that separate the first weights of the heads
    cluster_start: Share = 0.9  # share of the run after which the heads learn, and contrast ends


class Head(nn.Module):
    """Two layers with batch-norm in between."""

    def __init__(self, n_features: int, hidden: int, n_clusters: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(n_features, hidden, bias=False), nn.Linear(hidden, n_clusters)
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, features: Tensor) -> Tensor:  # logits, (N,K)
        logits: Tensor = self.second(F.relu(self.norm(self.first(features))))
        return logits

    def begin(self, first: Tensor, second: Tensor, features: Tensor) -> None:
        """Set the weights, and batch-norm statistics that fit the features (n,F)."""
        self.first.weight.copy_(first)
        self.second.weight.copy_(second)
        self.second.bias.zero_()
        self.norm.reset_parameters()
        made = self.first(features)  # (n,H)
        for statistic, value in ((self.norm.running_mean, made.mean(0)), (self.norm.running_var, made.var(0))):
            assert statistic is not None, "batch-norm keeps them"
            statistic.copy_(value)


class CdcNetwork(MocoNetwork):
    """MoCo's network and the two heads; until these begin, k-means assigns."""

    settings_type = CdcSettings
    begun: Tensor  # () bool

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        batch = config.train.batch_size
        width = min(method_settings(config, CdcSettings).head_hidden, shape.n_samples // batch * batch)
        sizes = (self.backbone.n_features, width, config.n_clusters)
        self.cluster_head, self.calibration_head = Head(*sizes), Head(*sizes)
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))

    def log_assign(self, images: Tensor) -> Tensor:
        features = self.backbone_features(images)
        calibrated = F.log_softmax(self.calibration_head(features), 1)
        return torch.where(self.begun, calibrated, self.centres(F.normalize(features, dim=1)))


class Cdc(Moco):
    """CDC: momentum contrast, then a clustering head that learns the confident labels of a calibrated head."""

    # differs from the authors' code: its contrast is symmetric, and its EMA grows to .999

    network_type = CdcNetwork
    settings_type = CdcSettings
    settings: CdcSettings
    online: CdcNetwork
    progress: Tensor  # ()
    trained: Tensor  # () bool, whether a step has been taken since the heads began

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.register_buffer("progress", torch.zeros(()))
        self.register_buffer("trained", torch.zeros((), dtype=torch.bool))

    def schedule(self, epoch: int, progress: float) -> None:
        self.progress.fill_(progress)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.view(1), batch.plain()

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features = self.online.backbone_features(views[0])
        contrast, memory = self.contrast(features, views[1], keys)
        with torch.no_grad():
            # differs from the authors' code: confidence of the whole image; theirs crops it at random
            plain = self.online.backbone_features(views[2])
            believed = self.targets(plain, keys)
        log_q = F.log_softmax(self.online.cluster_head(features), 1)
        logits = self.online.calibration_head(plain)  # (N,K); no gradient reaches the features
        log_calibrated = F.log_softmax(logits, 1)
        calibrated = log_calibrated.detach().exp()
        chosen = peer_losses.most_confident_of_clusters(calibrated)
        cluster = peer_losses.label_loss(log_q, calibrated.argmax(1), chosen)
        entropy = self.settings.entropy_weight * losses.batch_entropy(log_calibrated)
        calibration = peer_losses.code_loss(logits, believed, 1.0) - entropy
        centres, begun = self.online.centres, self.online.begun
        unit = F.normalize(features.detach(), dim=1)
        return Outcome(
            loss=torch.where(begun, cluster + calibration, contrast),
            assignment=torch.where(begun, log_q.detach(), centres(unit)).exp(),
            key_assignment=torch.where(begun, calibrated, centres(memory["features"]).exp()),
            memory=memory,
            metrics={"chosen": chosen.to(log_q.dtype).mean(), "calibration_loss": calibration},
        )

    def targets(self, features: Tensor, keys: Tensor) -> Tensor:
        """Return the clustering head's mean prediction over each image and those most similar to it, (N,K)."""
        # differs from the authors' code: k-means starts from random images of the batch and stops after a few rounds
        starts = draws.uniform(keys, START, 1).squeeze(1).argsort()
        starts = starts[: max(1, round(self.settings.mini_clusters * len(keys)))]
        q = F.softmax(self.online.cluster_head(features), 1)
        return peer_losses.mini_cluster_means(F.normalize(features, p=1, dim=1), q, starts, ROUNDS)

    def remember(self, memory: dict[str, Tensor]) -> None:
        super().remember(memory)
        self.trained.copy_(self.online.begun)

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Begin the second stage when it is due."""
        super().after_epoch(epoch, batches, optimiser)
        if not self.online.begun and self.progress >= self.settings.cluster_start:
            self.online.eval()
            features = torch.cat([self.online.backbone_features(batch.plain()) for batch in batches()])
            self.online.train()
            self.begin(features, self.seed + epoch)
        return {"stage": float(self.online.begun)}

    def begin(self, features: Tensor, seed: int) -> None:
        """Initialise both heads with prototypes of all features (n,F): H for the first layer, and K of its outputs for
        the second."""
        steps = self.settings.spread_steps
        first = prototypes(features, self.online.cluster_head.first.out_features, seed)  # (H,F)
        # differs from the authors' code, which omits the batch-norm of a head here
        hidden = F.relu(F.batch_norm(features @ first.T, None, None, training=True))  # (n,H)
        second = spread(prototypes(hidden, len(self.online.centres.directions), seed), steps)  # (K,H)
        first = spread(first, steps)
        for head in (self.online.cluster_head, self.online.calibration_head):
            head.begin(first, second, features)
        self.online.begun.fill_(True)

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        """Cluster by k-means if the run was too short to train the heads."""
        if not self.trained:
            self.online.begun.fill_(False)
            super().finish(embed)


def prototypes(rows: Tensor, count: int, seed: int) -> Tensor:
    """Return centres of k-means on rows of mean 0 and unit norm, (count,F)."""
    centred = rows - rows.mean(1, keepdim=True)
    return kmeans.spherical_kmeans(centred, count, seed=seed, n_init=1).centres.to(rows.dtype)


def spread(weights: Tensor, steps: int) -> Tensor:
    """Push rows apart: train them as classifiers for themselves, each row the only sample of its class."""
    own = torch.arange(len(weights), device=weights.device)
    with torch.enable_grad(), torch.autocast(weights.device.type, enabled=False):
        sample, rows = (weights.clone().requires_grad_() for _ in range(2))
        optimiser = torch.optim.SGD([sample, rows], RATE, MOMENTUM, weight_decay=DECAY)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
        for _ in range(steps):
            optimiser.zero_grad()
            cosine = F.normalize(sample.relu(), dim=1) @ F.normalize(rows, dim=1).T
            F.cross_entropy(SCALE * cosine, own).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            falling.step()
    return rows.detach()
