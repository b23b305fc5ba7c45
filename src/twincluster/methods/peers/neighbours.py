"""SCAN: features by contrast, then clusters that an image shares with its nearest neighbours, then self-labelling.

Van Gansbeke et al. 2020, "SCAN: Learning to Classify Images without Labels". Its three stages are parts of one run,
which change between epochs. Shapes: N batch, K clusters, D projection, F backbone features, n samples, k neighbours.

CDC: features by momentum contrast, then two heads on them: one clusters, the other says how far it can be believed.

Jia et al. 2025, "Towards Calibrated Deep Clustering Network", after the authors' code. Both of its stages are parts of
one run.
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
    """Those of the paper and its code, but for the shares of a run: here one falling rate serves all stages."""

    temperature: Positive = 0.1  # of SimCLR, the first stage
    n_features: Count = 128  # D
    hidden: Count = 512  # width of the projector
    neighbours: Count = 20  # k
    entropy_weight: float = 5.0  # lambda, against one cluster for all
    threshold: Share = 0.99  # of an assignment that is learned as a label
    cluster_start: Share = 0.5  # share of the run after which neighbours are found and clusters learned
    self_label_start: Share = 0.8  # share of the run after which clusters learn from themselves


class ScanNetwork(Network):
    """Backbone, projection for the first stage, and one linear layer that assigns."""

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
        self.centres = Centres(config.n_clusters, n_features)  # for the record, while the head has learned nothing
        self.register_buffer("bank", torch.zeros(shape.n_samples, n_features))
        self.register_buffer("nearest", torch.zeros(shape.n_samples, count, dtype=torch.int64))
        for name in ("stage", "taught"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))
        self.register_buffer("progress", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        self.progress.fill_(progress)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.view(1), batch.plain()  # the last is what the paper calls weakly augmented

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        s, features = self.settings, self.online.backbone_features(torch.cat(views))  # (3N,F)
        first, second, _ = F.normalize(self.online.projector(features), dim=1).chunk(3)
        one, two, plain = F.log_softmax(self.online.head(features), 1).chunk(3)  # (N,K) each
        # differs from the paper: neighbours are seen as they were last, by features that no gradient reaches
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
        """One of the neighbours of each sample, (N,)."""
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
        """The next stage, once its share of the run has come."""
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
        """A run too short for the head to have learned a thing ends with clusters by k-means."""
        if self.taught == PRETEXT:
            self.centres.settle(embed(self.online), seed=self.seed)
            self.online.head.weight.copy_(self.centres.scale * self.centres.directions)
            self.online.head.bias.zero_()


START = 18  # stream of random numbers
ROUNDS = 10  # of k-means in a batch
SCALE, RATE, MOMENTUM, DECAY = 5.0, 0.1, 0.9, 1e-4  # of what drives the weights of a head apart


@dataclass(frozen=True)
class CdcSettings(MocoSettings):
    """Those of the authors' code for CIFAR-10, but for the share of a run: here one falling rate serves both stages."""

    queue_size: Count = 32_768
    n_features: Count = 256
    hidden: Count = 4096
    ema: Share = 0.99
    shuffle_keys: bool = False
    head_hidden: Count = 512  # H; at most one for each sample of an epoch
    mini_clusters: Share = 0.5  # M, as a share of the batch
    entropy_weight: float = 1.0  # against one cluster for all, in the calibration
    spread_steps: CountOrNone = 2000  # by which the first weights of the heads are driven apart
    cluster_start: Share = 0.9  # share of the run after which the heads learn, and contrast ends


class Head(nn.Module):
    """Two layers with batch-norm between them."""

    def __init__(self, n_features: int, hidden: int, n_clusters: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(n_features, hidden, bias=False), nn.Linear(hidden, n_clusters)
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, features: Tensor) -> Tensor:  # logits, (N,K)
        logits: Tensor = self.second(F.relu(self.norm(self.first(features))))
        return logits

    def begin(self, first: Tensor, second: Tensor, features: Tensor) -> None:
        """With these weights, and statistics between the layers that are those of the features (n,F)."""
        self.first.weight.copy_(first)
        self.second.weight.copy_(second)
        self.second.bias.zero_()
        self.norm.reset_parameters()
        made = self.first(features)  # (n,H)
        for statistic, value in ((self.norm.running_mean, made.mean(0)), (self.norm.running_var, made.var(0))):
            assert statistic is not None, "batch-norm keeps them"
            statistic.copy_(value)


class CdcNetwork(MocoNetwork):
    """MoCo's network and the two heads; until these have begun, its clusters are those of k-means."""

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
    """CDC: momentum contrast, then a clustering head that learns what a calibrated one is sure of."""

    # differs from the authors' code: its contrast is symmetric, and its EMA grows to .999

    network_type = CdcNetwork
    settings_type = CdcSettings
    settings: CdcSettings
    online: CdcNetwork
    progress: Tensor  # ()
    trained: Tensor  # () bool: whether a step was taken since the heads began

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
            # differs from the authors' code: confidence is of the image as it is, which they crop at random
            plain = self.online.backbone_features(views[2])
            believed = self.targets(plain, keys)
        log_q = F.log_softmax(self.online.cluster_head(features), 1)
        logits = self.online.calibration_head(plain)  # (N,K), from features that no gradient reaches
        log_calibrated = F.log_softmax(logits, 1)
        calibrated = log_calibrated.detach().exp()
        chosen = peer_losses.surest_of_clusters(calibrated)
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
        """What the clustering head says of each image and of those most like it, (N,K)."""
        # differs from the authors' code: k-means starts from random images of the batch, and stops after some rounds
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
        """The second stage, once its share of the run has come."""
        super().after_epoch(epoch, batches, optimiser)
        if not self.online.begun and self.progress >= self.settings.cluster_start:
            self.online.eval()
            features = torch.cat([self.online.backbone_features(batch.plain()) for batch in batches()])
            self.online.train()
            self.begin(features, self.seed + epoch)
        return {"stage": float(self.online.begun)}

    def begin(self, features: Tensor, seed: int) -> None:
        """Both heads begin with prototypes of all features (n,F): H of these, and K of what the first layer makes."""
        steps = self.settings.spread_steps
        first = prototypes(features, self.online.cluster_head.first.out_features, seed)  # (H,F)
        # differs from the authors' code: it leaves out here the batch-norm that a head has
        hidden = F.relu(F.batch_norm(features @ first.T, None, None, training=True))  # (n,H)
        second = spread(prototypes(hidden, len(self.online.centres.directions), seed), steps)  # (K,H)
        first = spread(first, steps)
        for head in (self.online.cluster_head, self.online.calibration_head):
            head.begin(first, second, features)
        self.online.begun.fill_(True)

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        """A run too short for the heads to learn ends with clusters by k-means."""
        if not self.trained:
            self.online.begun.fill_(False)
            super().finish(embed)


def prototypes(rows: Tensor, count: int, seed: int) -> Tensor:
    """Centres of k-means on rows, each of mean 0 and unit norm, (count,F)."""
    centred = rows - rows.mean(1, keepdim=True)
    return kmeans.spherical_kmeans(centred, count, seed=seed, n_init=1).centres.to(rows.dtype)


def spread(weights: Tensor, steps: int) -> Tensor:
    """Rows that are driven apart: each is learned as a class of its own, with itself for the only sample."""
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
