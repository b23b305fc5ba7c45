"""GATCluster: learn even, confident and separate assignments from the network's own predictions, with attention.

Niu et al. 2020, "GATCluster: Self-Supervised Gaussian-Attention Network for Image Clustering". The assignments of plain
images become targets for their augmentations in four ways: directly, by pairs, evenly, and from the part of the image
under a Gaussian. Shapes: N batch, K clusters, A features of a place, H side of the maps, n samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Count, DataShape, Positive, Share, method_settings
from twincluster.core import InputError
from twincluster.methods import losses
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import k_means, mlp
from twincluster.methods.peers import peer_losses
from twincluster.nn import Backbone, BatchNorm2d, conv

STARTS = 5  # of k-means


@dataclass(frozen=True)
class GatClusterSettings:
    """Values of the authors' code, which are the same for STL-10 and ImageNet-10."""

    n_features: Count = 10  # A
    spread: Positive = 0.05  # lambda: variance of the widest Gaussian, for maps of side 1
    least: Share = 0.1  # of an even share: if a k-means cluster is smaller, pairs are not used
    invariance_weight: float = 5.0  # of agreement with the earlier assignment of the image
    entropy_weight: float = 3.0  # of the mean assignment, with attention and without
    relation_weight: float = 1.0  # of pairs, which k-means calls similar or not
    attention_weight: float = 5.0  # of the assignment by the part under the Gaussian


class Attention(Backbone):
    """A backbone that returns the mean of its maps over all places, and their sum under a Gaussian that it chooses."""

    def __init__(self, trunk: Backbone, image: Tensor, settings: GatClusterSettings, n_clusters: int) -> None:
        super().__init__()
        with torch.no_grad():
            self.side = trunk.eval().maps(image).shape[3]  # H
        self.trunk, self.spread, self.n_features = trunk.train(), settings.spread, 2 * settings.n_features
        width = settings.n_features
        self.narrow = nn.Sequential(conv(trunk.n_features, width, 1), BatchNorm2d(width), nn.ReLU(inplace=True))
        self.label = nn.Sequential(conv(width, width, 1), BatchNorm2d(width))
        self.look = nn.Sequential(conv(width, n_clusters, 1), BatchNorm2d(n_clusters), nn.ReLU(inplace=True))
        self.place = nn.Linear(n_clusters * self.side**2, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.narrow(self.trunk.maps(x))  # (N,A,H,H)
        # differs from the authors' code: three numbers; theirs uses one number for the second coordinate and the width
        place = torch.sigmoid(self.place(self.look(maps).flatten(1)))  # (N,3)
        features = self.label(maps)
        attended = features * peer_losses.gaussian_attention(place, self.side, self.spread)
        return torch.cat([features.mean((2, 3)), attended.sum((2, 3))], 1)  # (N,2A)


class GatClusterNetwork(Network):
    """Backbone with attention, and two layers on its features without attention."""

    # differs from the authors' code: the backbone sees colours, not grey images
    # rows and fine-tuned encoders have no places: their attention only scales the features

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_clusters = method_settings(config, GatClusterSettings), config.n_clusters
        raw = torch.zeros(1, shape.side, shape.side, 3, dtype=torch.uint8) if shape.side else self.mean[None]
        self.backbone = Attention(self.backbone, self.prepare(raw), settings, n_clusters)
        self.head = mlp(settings.n_features, n_clusters, n_clusters, batch_norm=False)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images).chunk(2, 1)[0], dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.backbone_features(images).chunk(2, 1)[0]), 1)


class GatCluster(Method):
    """GATCluster: assignments that are invariant, separate and even, and that agree with those by attention."""

    # differs from the authors' code: targets of all images are computed between epochs and learned once; theirs
    # computes targets of 1,000 images and learns them eight times before the next

    network_type = GatClusterNetwork
    settings_type = GatClusterSettings
    online: GatClusterNetwork
    log_assignment: Tensor  # (n,K) of plain images, after the last epoch
    log_share: Tensor  # (K,) logarithm of their sum
    group: Tensor  # (n,) int64, clusters of k-means: two of the same one are alike
    known: Tensor  # () bool, whether there are targets

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.seed = method_settings(config, GatClusterSettings), config.seed
        self.online = GatClusterNetwork(config, shape)
        self.attended_head = mlp(self.settings.n_features, config.n_clusters, config.n_clusters, batch_norm=False)
        even = torch.full((shape.n_samples, config.n_clusters), -math.log(config.n_clusters))
        self.register_buffer("log_assignment", even)
        self.register_buffer("log_share", torch.logsumexp(even, 0))
        self.register_buffer("group", torch.arange(shape.n_samples))
        self.register_buffer("known", torch.zeros((), dtype=torch.bool))

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.view(0),)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        s, old, group = self.settings, self.log_assignment[samples], self.group[samples]
        seen, attended = self.online.backbone_features(views[0]).chunk(2, 1)  # (N,A) each
        log_q = F.log_softmax(self.online.head(seen), 1)  # (N,K)
        log_attended = F.log_softmax(self.attended_head(attended), 1)
        balanced, sharpened = (peer_losses.even_target(old, self.log_share, power) for power in (1, 2))
        alike = (group[:, None] == group).to(log_q.dtype)  # (N,N)
        invariance = peer_losses.invariance_loss(log_q.exp(), balanced)
        relation = peer_losses.relation_loss(log_q.exp(), alike)
        attention = peer_losses.attention_loss(log_attended, sharpened)
        entropy = losses.batch_entropy(log_q) + losses.batch_entropy(log_attended)
        learned = s.invariance_weight * invariance + s.relation_weight * relation + s.attention_weight * attention
        return Outcome(
            # the first epoch has no targets yet; this replaces a pass before training
            loss=torch.where(self.known, learned, 0.0) - s.entropy_weight * entropy,
            assignment=log_q.detach().exp(),
            key_assignment=old.exp(),  # of the epoch before: a step has only one view
            memory={},
            metrics={"invariance": invariance, "relation": relation, "attention": attention, "entropy": entropy},
        )

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Compute the targets of the next epoch."""
        self.online.eval()
        for batch in batches():
            self.log_assignment[batch.samples] = self.online.log_assign(batch.plain()).to(self.log_assignment.dtype)
        self.online.train()
        if not self.log_assignment.isfinite().all():
            raise InputError("gatcluster has diverged: lower the rate, --set optimiser.learning_rate=...")
        self.log_share.copy_(torch.logsumexp(self.log_assignment, 0))
        sharpened = peer_losses.even_target(self.log_assignment, self.log_share, 2)
        # differs from the authors' code: the best of five starts, not of 20
        _, group = k_means(sharpened, len(self.log_share), n_init=STARTS, seed=self.seed + epoch)
        sizes = torch.bincount(group, minlength=len(self.log_share))
        paired = sizes.min() >= self.settings.least * sizes.double().mean()
        self.group.copy_(group if paired else torch.arange(len(group)))  # else each has a group of its own
        self.known.fill_(True)
        return {"paired": float(paired)}
