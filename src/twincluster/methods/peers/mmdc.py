"""MMDC: give each image a corner of a simplex as its target, and exchange corners until all images are close to theirs.

Shiran and Weinshall 2020, "Multi-Modal Deep Clustering: Unsupervised Partitioning of Images". The network also learns
to predict rotations. Shapes: N batch, K clusters, F backbone features, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import kmeans
from twincluster.config import Config, DataShape, Positive, Share, method_settings
from twincluster.core import InputError
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import k_means
from twincluster.methods.peers import peer_losses
from twincluster.nn import draws

CORNER = 19  # stream of random numbers
STARTS = 10  # of k-means
TURNS = 4  # by right angles


@dataclass(frozen=True)
class MmdcSettings:
    """The authors' command for CIFAR-10; the last two are ours."""

    refine_start: Share = 0.875  # share of the run after which k-means chooses the corners
    rotation_weight: float = 1.0  # of predicting rotations, in the same step as the rest
    temperature: Positive = 0.1  # of probabilities, which training does not use


class MmdcNetwork(Network):
    """Backbone, and a linear layer to points of unit norm; the nearest corner is the cluster."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.temperature = method_settings(config, MmdcSettings).temperature
        self.head = nn.Linear(self.backbone.n_features, config.n_clusters)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.point(self.backbone_features(images)) / self.temperature, 1)

    def point(self, features: Tensor) -> Tensor:
        return F.normalize(self.head(features), dim=1)


class Mmdc(Method):
    """MMDC: corners of a simplex, exchanged among images and later chosen by k-means; and prediction of rotations."""

    network_type = MmdcNetwork
    settings_type = MmdcSettings
    online: MmdcNetwork
    corner: Tensor  # (n,) int64, the target of each image
    known: Tensor  # () bool, whether corners have been exchanged
    progress: Tensor  # ()

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters = method_settings(config, MmdcSettings), config.n_clusters
        self.seed = config.seed
        self.online = MmdcNetwork(config, shape)
        # rows cannot be rotated
        self.turn_head = nn.Linear(self.online.backbone.n_features, TURNS) if shape.side else None
        keys = draws.sample_keys(config.seed, torch.zeros((), dtype=torch.int64), torch.arange(shape.n_samples))
        corner = (draws.uniform(keys, CORNER, 1).squeeze(1) * config.n_clusters).long()
        self.register_buffer("corner", corner.clamp(max=config.n_clusters - 1))
        self.register_buffer("known", torch.zeros((), dtype=torch.bool))
        self.register_buffer("progress", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        self.progress.fill_(progress)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        if self.turn_head is None:
            return (batch.view(0),)
        # differs from the authors' code: rotated images are augmented like all others, not only cropped
        turned = batch.view(1)
        return batch.view(0), *(torch.rot90(turned, turn, (2, 3)) for turn in range(TURNS))

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        # differs from the authors' code: both tasks are learned in one step and share batch-norm statistics; theirs
        # alternates between epochs
        n_images, features = len(samples), self.online.backbone_features(torch.cat(views))  # ((1+4)N,F)
        point, target = self.online.point(features[:n_images]), self.corner[samples]
        distance = peer_losses.corner_distance(point, target)
        # corners do not suit the network yet in the first epoch; this replaces a pass before training
        loss, metrics = torch.where(self.known, distance, 0.0), {"distance": distance}
        if self.turn_head is not None:
            turn = torch.arange(TURNS, device=samples.device).repeat_interleave(n_images)
            rotation = F.cross_entropy(self.turn_head(features[n_images:]), turn)
            loss, metrics = loss + self.settings.rotation_weight * rotation, metrics | {"rotation": rotation}
        return Outcome(
            loss=loss,
            assignment=F.softmax(point.detach() / self.settings.temperature, 1),
            key_assignment=F.one_hot(target, self.n_clusters).to(point.dtype),
            memory={},
            metrics=metrics,
        )

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Choose new corners: by exchange within each batch or, near the end of the run, by k-means on all images."""
        # differs from the authors' code: corners are exchanged after each epoch, with the weights at its end; theirs
        # exchanges them before each step, but steps here never wait for the device
        old, found = self.corner.clone(), []
        self.online.eval()
        for batch in batches():
            found.append((batch.samples, self.online.point(self.online.backbone_features(batch.plain()))))
        self.online.train()
        if not all(points.isfinite().all() for _, points in found):
            raise InputError("mmdc has diverged: lower the rate, --set optimiser.learning_rate=...")
        if self.progress >= self.settings.refine_start:
            samples, points = torch.cat([pair[0] for pair in found]), torch.cat([pair[1] for pair in found])
            self.corner[samples] = self.refined(points, old[samples], self.seed + epoch)
        else:
            for samples, points in found:
                self.corner[samples] = exchanged(points, old[samples])
        self.known.fill_(True)
        return {"relabelled": float((self.corner != old).float().mean())}

    def refined(self, points: Tensor, old: Tensor, seed: int) -> Tensor:
        """Return clusters of k-means on points (n,K), numbered so that most images keep their corner."""
        if len(points) < self.n_clusters:
            return old
        _, new = k_means(points, self.n_clusters, n_init=STARTS, seed=seed)
        return kmeans.match_labels(old, new, self.n_clusters)[new]


def exchanged(points: Tensor, corner: Tensor) -> Tensor:
    """Return the corners (N,) reassigned to points (N,K) so that the sum of distances is smallest."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and not needed before training

    corners = F.one_hot(corner, points.shape[1]).to(points.dtype)
    _, taken = linear_sum_assignment(torch.cdist(points, corners).cpu().numpy())
    return corner[torch.as_tensor(taken, device=corner.device)]
