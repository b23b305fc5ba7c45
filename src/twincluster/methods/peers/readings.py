"""Our readings of systems whose formulas are not available: SCL, DHOG and DDC, from their abstracts.

Everything beyond the abstracts is our choice, and each choice is marked. Scores of these methods say nothing about the
published systems, so comparisons leave them out. Shapes: N batch, K clusters, H heads, D projection, F backbone
features, J rows of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Count, DataShape, Share, method_settings
from twincluster.methods import losses
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import TwoStages, key_features
from twincluster.methods.peers import peer_losses
from twincluster.methods.peers.contrastive import Moco, MocoNetwork, MocoSettings
from twincluster.methods.peers.relations import DacNetwork
from twincluster.nn import Queue


@dataclass(frozen=True)
class SclSettings(MocoSettings):
    """Our values: the published ones are unknown."""

    evenness: float = 2.0  # weight of the entropy of the batch's mean assignment
    cluster_start: Share = 0.3  # share of the run after which clusters are learned


class SclNetwork(MocoNetwork):
    """Backbone, projector for the contrast, and a linear layer that assigns."""

    settings_type = SclSettings

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.head = nn.Linear(self.backbone.n_features, config.n_clusters)

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.backbone_features(images)), 1)


class Scl(TwoStages, Moco):
    """SCL, our reading: contrast instances with each other, and instances with the images of each cluster."""

    # Huang and Gong 2022, "Deep Clustering by Semantic Contrastive Learning". The abstract describes a contrast that
    # uses clusters by distance, and a consensus between similarities of instances and boundaries of clusters.
    # our reading: the set of a cluster is the queue, each key with its own assignment as its weight; consensus is the
    # product of both assignments; the entropy against one cluster for all, and all settings

    network_type = SclNetwork
    settings_type = SclSettings
    online: SclNetwork
    momentum: SclNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.own = method_settings(config, SclSettings)
        self.members = Queue(len(self.queue.rows), config.n_clusters)  # log of the assignments of the keys

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features, s = self.online.backbone_features(views[0]), self.own
        with torch.no_grad():
            seen = key_features(self.momentum, views[1], keys, shuffled=s.shuffle_keys)
            key, log_key = self.momentum.project(seen), F.log_softmax(self.momentum.head(seen), 1)
        query, log_q = self.online.project(features), F.log_softmax(self.online.head(features), 1)
        rows, valid = self.queue.rows, self.queue.valid()
        instance = -losses.info_nce(query, key, rows, valid, s.temperature).mean()
        log_set = peer_losses.set_similarity(query, rows, self.members.rows, valid, s.temperature)
        consensus = peer_losses.neighbour_loss(log_q, log_set)
        semantic = consensus - s.evenness * losses.batch_entropy(log_q)
        return Outcome(
            loss=instance + torch.where(self.clustering, semantic, 0.0),
            assignment=log_q.detach().exp(),
            key_assignment=log_key.exp(),
            memory={"key": key, "features": F.normalize(seen, dim=1), "members": log_key},
            metrics={"instance_loss": instance, "consensus_loss": consensus},
        )

    def remember(self, memory: dict[str, Tensor]) -> None:
        super().remember(memory)
        self.members.push(memory["members"])

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        numbers = super().after_epoch(epoch, batches, optimiser)
        self.clustering.fill_(self.is_due(self.own.cluster_start))
        return {**numbers, "stage": float(self.clustering)}


@dataclass(frozen=True)
class DhogSettings:
    """Our values, from memory of a later version of the paper; none of them is verified."""

    n_heads: Count = 8  # H
    hidden: Count = 200  # width of each head
    push: float = 0.05  # weight of the information that a head shares with earlier heads
    entropy_weight: float = 1.0  # lambda of IIC, of the entropies in the information between views


class DhogNetwork(Network):
    """Backbone and ordered heads; the one whose views share most information predicts."""

    best: Tensor  # (1,) int64

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        s, width = method_settings(config, DhogSettings), self.backbone.n_features
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, s.hidden), nn.ReLU(), nn.Linear(s.hidden, config.n_clusters))
            for _ in range(s.n_heads)
        )
        self.register_buffer("best", torch.zeros(1, dtype=torch.int64))

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return self.chosen(self.by_head(self.backbone_features(images)))

    def by_head(self, features: Tensor) -> Tensor:
        """Return the log assignments of all heads, (H,N,K)."""
        return torch.stack([F.log_softmax(head(features), 1) for head in self.heads])

    def chosen(self, by_head: Tensor) -> Tensor:
        return by_head.index_select(0, self.best).squeeze(0)


class Dhog(Method):
    """DHOG, our reading: ordered heads maximise the information between views, and minimise that with earlier heads."""

    # Darlow and Storkey 2020, "DHOG: Deep Hierarchical Object Grouping".
    # our reading: information as in IIC, the mean over two augmentations; a head avoids the mean of earlier heads,
    # which get no gradient; all heads see the last layer, where the paper's first ones see earlier layers

    network_type = DhogNetwork
    settings_type = DhogSettings
    online: DhogNetwork
    totals: Tensor  # (H,) information between views in this epoch

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = method_settings(config, DhogSettings)
        self.online = DhogNetwork(config, shape)
        self.register_buffer("totals", torch.zeros(self.settings.n_heads))

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        log_q = self.online.by_head(self.online.backbone_features(torch.cat(views)))  # (H,2N,K)
        one, two = log_q.exp().chunk(2, dim=1)
        shared = peer_losses.paired_information(one, two, self.settings.entropy_weight)  # (H,)
        push = peer_losses.hierarchical_information(one)
        recorded = self.online.chosen(log_q.detach().exp())
        return Outcome(
            loss=self.settings.push * push - shared.mean(),
            assignment=recorded[: len(samples)],
            key_assignment=recorded[len(samples) :],
            memory={"information": shared.detach()},
            metrics={"information": shared.detach().mean(), "push": push.detach()},
        )

    def remember(self, memory: dict[str, Tensor]) -> None:
        self.totals += memory["information"]

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Choose the head that predicts."""
        self.online.best.copy_(self.totals.argmax())
        self.totals.zero_()
        return {"best_head": float(self.online.best)}


@dataclass(frozen=True)
class DdcSettings:
    """Our values: the published ones are unknown."""

    threshold: Share = 0.95  # cosine of two assignments from which on they count as related
    apart: Share = 0.5  # cosine below which two assignments count as unrelated; those in between are ignored
    global_weight: float = 1.0  # of evenness
    local_weight: float = 0.1  # of assignments that are one-hot


class Ddc(Method):
    """DDC, our reading: relations between images are estimated and learned in turns, under two constraints."""

    # Chang et al. 2019, "Deep Discriminative Clustering Analysis": relations are reflexive, symmetric and transitive.
    # our reading: two images are related if the cosine of their assignments is above a threshold, or if a third image
    # is related to both, and unrelated below another threshold, as in DAC; the global constraint is the entropy of the
    # batch's mean assignment, the local one the entropy of each assignment; estimation and learning alternate at each
    # step

    network_type = DacNetwork
    settings_type = DdcSettings
    online: DacNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = method_settings(config, DdcSettings)
        self.online = DacNetwork(config, shape)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.plain()

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        s = self.settings
        log_q, log_plain = F.log_softmax(self.online.head(self.online.backbone_features(torch.cat(views))), 1).chunk(2)
        alike = peer_losses.transitive_relation(log_plain.detach().exp(), s.threshold)  # (N,N) bool
        unit, known = F.normalize(log_q.exp(), dim=1), F.normalize(log_plain.detach().exp(), dim=1)
        chosen = alike | (known @ known.T < s.apart)
        relation = peer_losses.pair_loss(unit @ unit.T, alike.to(unit.dtype), chosen)
        evenness, sharpness = losses.batch_entropy(log_q), losses.entropy(log_q).mean()
        return Outcome(
            loss=relation - s.global_weight * evenness + s.local_weight * sharpness,
            assignment=log_q.detach().exp(),
            key_assignment=log_plain.detach().exp(),
            memory={},
            metrics={"relation_loss": relation.detach(), "alike": alike.to(unit.dtype).mean()},
        )
