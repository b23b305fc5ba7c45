"""Methods that maximise information or confidence: IIC and PICA.

IIC maximises the mutual information between the assignments of an image and of its augmentation. Ji et al. 2019,
"Invariant Information Clustering for Unsupervised Image Classification and Segmentation". Epochs with the wanted number
of clusters alternate with epochs of many more clusters, on the same backbone. Shapes: N batch, K clusters, H sub-heads,
F backbone features, R augmentations of an image.

PICA searches for the most confident partition, whose clusters share no image. Huang et al. 2020, "Deep Semantic
Clustering by Partition Confidence Maximisation". The columns of an assignment are clusters; columns of two views should
be similar for the same cluster and orthogonal otherwise. Shapes: N batch, K clusters, F backbone features, R
augmentations of an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Count, CountOrNone, DataShape, Share, method_settings
from twincluster.methods import losses
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.peers import peer_losses
from twincluster.nn import draws


@dataclass(frozen=True)
class IicSettings:
    """Values of section 4.1 of the paper, and of the authors' command for CIFAR-10."""

    over_clusters: CountOrNone = 0  # of the auxiliary head; 0: seven per cluster, as in the authors' commands
    n_heads: Count = 5  # H, sub-heads with different first weights; the one with the smallest loss predicts
    repeats: Count = 3  # R, pairs of each image in a step
    entropy_weight: float = 1.0  # lambda, of the entropies in the information
    over_epochs: Count = 1  # epochs of the auxiliary head, first in each turn ...
    cluster_epochs: Count = 2  # ... and epochs of the clusters after it


class IicNetwork(Network):
    """Backbone, and for each kind of clusters one linear layer, which holds all sub-heads."""

    # differs from the paper: the backbone sees colours, not the edges that a Sobel filter finds in a grey image

    best: Tensor  # (1,) int64, the sub-head that predicts

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = method_settings(config, IicSettings), self.backbone.n_features
        self.n_heads = settings.n_heads
        self.heads = nn.Linear(n_features, self.n_heads * config.n_clusters)
        self.over_heads = nn.Linear(n_features, self.n_heads * (settings.over_clusters or 7 * config.n_clusters))
        self.register_buffer("best", torch.zeros(1, dtype=torch.int64))

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return self.chosen(self.log_assignments(self.heads, self.backbone_features(images)))

    def log_assignments(self, heads: nn.Linear, features: Tensor) -> Tensor:
        """Return the log assignments of all sub-heads, (H,N,K)."""
        return F.log_softmax(heads(features).view(len(features), self.n_heads, -1), 2).transpose(0, 1)

    def chosen(self, by_head: Tensor) -> Tensor:
        """Return the log assignments of the best sub-head, (N,K)."""
        return by_head.index_select(0, self.best).squeeze(0)


class Iic(Method):
    """IIC: mutual information of paired assignments, alternating with an over-clustering head."""

    network_type = IicNetwork
    settings_type = IicSettings
    online: IicNetwork
    over: Tensor  # () bool, whether the auxiliary head has its turn
    totals: Tensor  # (H,) the loss of each sub-head in this epoch

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = method_settings(config, IicSettings)
        self.online = IicNetwork(config, shape)
        self.register_buffer("over", torch.zeros((), dtype=torch.bool))
        self.register_buffer("totals", torch.zeros(self.settings.n_heads))

    def schedule(self, epoch: int, progress: float) -> None:
        over, cluster = self.settings.over_epochs, self.settings.cluster_epochs
        self.over.fill_(epoch % (over + cluster) < over)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        # differs from the paper: the first image of a pair is the whole image, not a crop
        return batch.plain(), *(batch.view(i) for i in range(self.settings.repeats))

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features = self.online.backbone_features(torch.cat(views))  # ((1+R)N,F)
        assignments = self.online.log_assignments(self.online.heads, features).exp()  # (H,(1+R)N,K)
        over = self.online.log_assignments(self.online.over_heads, features).exp()
        by_head, over_loss = self.loss_by_head(assignments, len(samples)), self.loss_by_head(over, len(samples)).mean()
        recorded = self.online.chosen(assignments.detach())
        return Outcome(
            loss=torch.where(self.over, over_loss, by_head.mean()),
            assignment=recorded[: len(samples)],
            key_assignment=recorded[len(samples) : 2 * len(samples)],
            memory={"losses": by_head.detach()},
            metrics={"cluster_loss": by_head.mean(), "over_loss": over_loss},
        )

    def loss_by_head(self, assignments: Tensor, n_images: int) -> Tensor:
        """Return the loss of each sub-head, (H,), over all pairs of an image and one of its augmentations."""
        plain, augmented = assignments[:, :n_images], assignments[:, n_images:]
        pairs = plain.repeat(1, self.settings.repeats, 1), augmented
        return -peer_losses.paired_information(*pairs, self.settings.entropy_weight)

    def remember(self, memory: dict[str, Tensor]) -> None:
        self.totals += memory["losses"]

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Choose the sub-head that predicts."""
        self.online.best.copy_(self.totals.argmin())
        self.totals.zero_()
        return {"best_head": float(self.online.best)}


PLACE = 13  # stream of random numbers
SidePart = Annotated[Share, "above 0"]


@dataclass(frozen=True)
class PicaSettings:
    """Values of section 4 of the paper, and of its code."""

    over_clusters: CountOrNone = 70  # of the auxiliary head, which has every other epoch, also the first; 0: none
    repeats: Count = 3  # R, augmentations of each image in a step
    balance_weight: float = 2.0  # lambda, of the entropy that prevents a single cluster
    crop: SidePart = 0.8  # side of the square part that is shown beside the augmentations, at a random place


class PicaNetwork(Network):
    """Backbone, and a linear layer for each kind of clusters."""

    # differs from the paper: the backbone sees colours, not the edges that a Sobel filter finds in a grey image

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = method_settings(config, PicaSettings), self.backbone.n_features
        self.head = nn.Linear(n_features, config.n_clusters)
        self.over_head = nn.Linear(n_features, settings.over_clusters) if settings.over_clusters else None

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.backbone_features(images)), 1)


class Pica(Method):
    """PICA: partition confidence maximisation, alternating with an over-clustering head."""

    network_type = PicaNetwork
    settings_type = PicaSettings
    online: PicaNetwork
    over: Tensor  # () bool, whether the auxiliary head has its turn

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = method_settings(config, PicaSettings)
        self.online = PicaNetwork(config, shape)
        self.register_buffer("over", torch.zeros((), dtype=torch.bool))

    def schedule(self, epoch: int, progress: float) -> None:
        self.over.fill_(self.online.over_head is not None and epoch % 2 == 0)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        # differs from the authors' code: prediction uses the whole image, theirs the middle
        plain = batch.plain()
        if self.online.side:
            plain = random_part(plain, draws.uniform(batch.keys, PLACE, 2), self.settings.crop)
        return plain, *(batch.view(i) for i in range(self.settings.repeats))

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        # differs from the paper: images and augmentations share batch-norm statistics
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
        """Return the uncertainty of the partition and its weighted unevenness, which are also recorded."""
        plain, augmented = log_assignment[:n_images], log_assignment[n_images:]
        pairs = plain.exp().repeat(self.settings.repeats, 1), augmented.exp()
        uncertainty = peer_losses.partition_uncertainty(*pairs)
        unevenness = math.log(plain.shape[1]) - losses.batch_entropy(plain)
        metrics = {"uncertainty": uncertainty, "unevenness": unevenness}
        return uncertainty + self.settings.balance_weight * unevenness, metrics


def random_part(images: Tensor, draw: Tensor, share: float) -> Tensor:
    """Return a random square part of each image (N,C,S,S), enlarged to the full size.

    The side of the part is a `share` of the image's; uniform draws (N,2) choose its place.
    """
    shift = (1 - share) * (2 * draw.to(images.dtype) - 1)  # (N,2), of the middle
    scale = share * torch.eye(2, dtype=images.dtype, device=images.device).expand(len(images), 2, 2)
    grid = F.affine_grid(torch.cat([scale, shift[:, :, None]], 2), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
