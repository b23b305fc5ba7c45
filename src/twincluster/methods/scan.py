"""SCAN: features by contrast, then clusters that an image shares with its nearest neighbours, then self-labelling.

Van Gansbeke et al. 2020, "SCAN: Learning to Classify Images without Labels". Its three stages are parts of one run,
which change between epochs. Shapes: N batch, K clusters, D projection, F backbone features, n samples, k neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster import draws, losses
from twincluster.clusters import neighbours
from twincluster.config import Config, Count, Positive, Share, own_settings
from twincluster.methods import peer_losses
from twincluster.methods.base import Batch, DataShape, Method, Network, Outcome
from twincluster.methods.heads import Centres, mlp

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
        settings, n_features = own_settings(config, ScanSettings), self.backbone.n_features
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
        self.settings, self.seed = own_settings(config, ScanSettings), config.seed
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
