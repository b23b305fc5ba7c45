"""JULE: start from small groups of neighbours and merge them while the network learns to separate them.

Yang et al. 2016, "Joint Unsupervised Learning of Deep Representations and Image Clusters", after the authors' code.
Shapes: N batch, K clusters, D features, R images of other groups for one, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import kmeans, neighbours
from twincluster.config import Config, Count, DataShape, Positive, Share, method_settings
from twincluster.core import InputError
from twincluster.methods.base import Batch, Network, Outcome
from twincluster.methods.heads import Centres, CentresNetwork, KmeansAtEnd
from twincluster.methods.peers import peer_losses
from twincluster.nn import draws

OTHERS = 13  # stream of random numbers
LARGEST = 60_000  # images whose neighbours are computed at once; the time grows with their square


@dataclass(frozen=True)
class JuleSettings:
    """Defaults of the authors' code, except eta: the value they give for all data but faces."""

    n_features: Count = 160  # D
    merge_share: Share = 0.9  # eta: share of the groups merged at a time; .2 is their default, and for faces
    merge_epochs: Count = 20  # between two rounds of merging
    neighbours: Count = 20  # K_s, of an image in the graph
    near: Count = 5  # K_c, groups that the best partner of a group is compared with
    negatives: Count = 20  # R
    margin: Positive = 0.2  # by which the squared distance should be larger
    pair_weight: Positive = 1.0  # gamma, of distances within a group


class JuleNetwork(CentresNetwork):
    """Backbone, a linear layer to features of unit norm, and the means of the final clusters."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        n_features = method_settings(config, JuleSettings).n_features
        self.projector = nn.Linear(self.backbone.n_features, n_features)
        self.centres = Centres(config.n_clusters, n_features)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.projector(self.backbone_features(images)), dim=1)


class Jule(KmeansAtEnd):
    """JULE: agglomeration between epochs and at the end, and a triplet loss on the current groups."""

    # the record before the end shows clusters of k-means: there are too many groups

    network_type = JuleNetwork
    settings_type = JuleSettings
    online: JuleNetwork
    group: Tensor  # (n,) int64, the lowest sample of each sample's group

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings, self.n_clusters = method_settings(config, JuleSettings), config.n_clusters
        self.register_buffer("group", torch.arange(shape.n_samples))

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.plain(),)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        unit, group = self.online.embed(views[0]), self.group[samples]
        same = group[:, None] == group  # (N,N)
        # differs from the authors' code: an image has the same negatives in all its pairs, which count both ways
        drawn = torch.where(same, -1.0, draws.uniform(keys, OTHERS, len(keys)))
        value, other = drawn.topk(min(self.settings.negatives, len(keys)), dim=1)  # (N,R)
        margin, weight = self.settings.margin, self.settings.pair_weight
        loss = peer_losses.triplet_loss(unit, same, other, value > 0, margin, weight)
        q = self.online.centres(unit.detach()).exp()
        return Outcome(
            loss=loss,  # 0 in the first epoch, in which each image is a group; this replaces a pass before training
            assignment=q,
            key_assignment=q,  # a step has only one view
            memory={"features": unit.detach()},
            metrics={"triplet_loss": loss},
        )

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Find the first groups by pixels; later merge groups, every few epochs."""
        super().after_epoch(epoch, batches, optimiser)
        if epoch % self.settings.merge_epochs == 0:
            samples, unit = self.embed_some(batches, pixels=epoch == 0)
            old = np.unique(self.group[samples].cpu().numpy(), return_inverse=True)[1]
            new = neighbours.first_groups(unit) if epoch == 0 else self.merged(unit, old)
            self.regroup(samples, torch.as_tensor(new, device=samples.device))
        return {"groups": float(len(np.unique(self.group.cpu().numpy())))}

    def embed_some(self, batches: Callable[[], Iterator[Batch]], *, pixels: bool) -> tuple[Tensor, Tensor]:
        """Return samples (m,), all or at least LARGEST of them, and their pixels or features at unit norm, (m,F)."""
        samples, rows = [], []
        self.online.eval()
        for batch in batches():
            images = batch.plain()
            samples.append(batch.samples)
            rows.append(F.normalize(images.flatten(1), dim=1) if pixels else self.online.embed(images))
            if sum(map(len, samples)) >= LARGEST:
                break
        self.online.train()
        unit = torch.cat(rows)
        if not unit.isfinite().all():
            raise InputError("jule has diverged: lower the rate, --set optimiser.learning_rate=...")
        return torch.cat(samples), unit

    def merged(self, unit: Tensor, group: np.ndarray) -> np.ndarray:
        s = self.settings
        return neighbours.merged(
            unit, group, self.n_clusters, share=s.merge_share, neighbours=s.neighbours, near=s.near
        )

    def regroup(self, samples: Tensor, new: Tensor) -> None:
        """Give samples (m,) their new groups (m,), and all others the group that theirs has become part of."""
        old, everyone = self.group[samples], torch.arange(len(self.group), device=samples.device)
        lowest = torch.full_like(everyone, len(everyone)).scatter_reduce(0, new, old, "amin")  # by new group
        self.group.copy_(everyone.scatter(0, old, lowest[new])[self.group])

    @torch.no_grad()
    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        """Merge again from the first groups on, as the authors do. The means of the clusters predict."""
        # differs from the authors' code: an image belongs to the cluster with the nearest mean, so that new images can
        # be assigned, too
        unit = embed(self.online)
        unit, s = unit[:: -(-len(unit) // LARGEST)], self.settings
        if len(unit) < self.n_clusters:
            return
        found = neighbours.all_merged(unit, self.n_clusters, share=s.merge_share, neighbours=s.neighbours, near=s.near)
        cluster = torch.as_tensor(found, device=unit.device)
        self.online.centres.place(kmeans.directions(unit, cluster, self.n_clusters), unit)
