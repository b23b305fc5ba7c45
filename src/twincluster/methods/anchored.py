"""The default method: the paper's two tracks, with an assignment model that is anchored to the features.

Representation first, commitment later. The instance track learns features from the start. After each epoch, k-means on
the whitened momentum features sets the assignment head, and its clusters feed the cluster track (representations r_k
contrasted with their momentum counterparts). Later in the run the most confident images of each cluster commit to it:
their views are pulled to the mean projection of that cluster and pushed away from the others. K-means continues to set
the head. Shapes: N batch, K clusters, D projection, F backbone features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import (
    FEWEST_DIRECTIONS,
    GROUPS,
    Advice,
    check_parts,
    choose_clusters,
    kmeans,
    objective,
    regroup,
)
from twincluster.config import (
    Amount,
    Config,
    Count,
    CountOrNone,
    DataShape,
    Positive,
    Share,
    Shares,
    Signed,
    make_config,
    method_settings,
)
from twincluster.core import InputError
from twincluster.methods import losses
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import FINAL_STARTS, FINAL_STARTS_MANY, mlp
from twincluster.nn import Queue, ema_update, momentum_copy, queue_size

STARTS, STARTS_MANY = 3, 1  # of k-means after an epoch; the second above kmeans.FEW_CLUSTERS, where each takes long
ROWS_PER_DIRECTION = 32  # to choose the number of clusters; each of two halves has half of the rows


@dataclass(frozen=True)
class AnchoredSettings:
    """The default method: TCC's two tracks on clusters that k-means finds in the momentum features."""

    instance: Literal["infonce", "byol"] = "byol"  # how the instance track learns features
    temperature: Positive = 0.2  # of InfoNCE
    instance_queue: CountOrNone = 16_384  # rows of Q, for InfoNCE; at most the number of samples
    n_features: Count = 256  # D, of the projection
    hidden: CountOrNone = 2048  # width of projector and predictor; 0: neither, both tracks see the backbone's features
    ema: Shares = (0.99, 0.9995)  # momentum at the start and at the end of the run, by cosine between
    shrinkage: Positive = 0.3  # of the whitening before k-means; a large number leaves the features as they are
    balance: Signed = 0.0  # of sizes: 1 all equal, 0 as k-means has them, -1 as uneven as the data (kmeans.py)
    cluster_weight: Amount = 0.1  # of the cluster track: contrast of batch representations r_k
    cluster_temperature: Positive = 0.5  # of the contrast in the cluster track
    cluster_start: Share = 0.3  # share of the run after which the cluster track begins
    commit_weight: Amount = 0.1  # of the commitment: how strongly a cluster pulls its most confident images; 0: off
    commit_start: Share = 0.3  # share of the run after which the commitment begins
    commit_share: Share = 0.7  # share of each cluster, its most confident images, that commits to it
    commit_temperature: Positive = 0.1  # of the softmax over clusters in the commitment


class AnchoredNetwork(Network):
    """Backbone, projection z for the two tracks, and a linear head: the assignment model q(k|x)."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = method_settings(config, AnchoredSettings, "anchored"), self.backbone.n_features
        self.n_projected = settings.n_features if settings.hidden else n_features
        self.projector = (
            mlp(n_features, settings.hidden, settings.n_features, batch_norm=True) if settings.hidden else nn.Identity()
        )
        self.head = nn.Linear(n_features, config.n_clusters).requires_grad_(False)  # k-means sets it

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return self.assign_features(self.embed(images))

    def assign_features(self, features: Tensor) -> Tensor:
        """Return log q(k|x) by Eq. 3 from unit-norm features, (N,K)."""
        return F.log_softmax(self.head(features), 1)

    def project(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, torch.bfloat16, enabled=self.bf16):
            projection: Tensor = self.projector(features)
        return projection.float()


class _AsSeen(Network):
    """The input rows themselves, before any trained layer, projected on as many principal directions as the samples
    support.
    """

    def __init__(self, network: Network, n_samples: int) -> None:
        nn.Module.__init__(self)
        self.side, self.mean, self.std, self.rotation = network.side, network.mean, network.std, network.rotation
        self.widths = network.widths
        if self.rotation is not None:  # sorted by variance
            self.rotation = self.rotation[:, : max(FEWEST_DIRECTIONS, n_samples // ROWS_PER_DIRECTION)]

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(images, dim=1)


class Anchored(Method):
    """Instance and cluster contrast on clusters that k-means finds in the momentum features (the default)."""

    network_type = AnchoredNetwork
    groups: ClassVar = {"anchored": AnchoredSettings}
    chooses_clusters = True
    steady_confidence = True  # the head is scaled to a fixed mean margin
    advice = Advice(
        surer="use milder augmentation", evener="--set anchored.balance=0.5", looser="--set anchored.balance=0"
    )
    online: AnchoredNetwork
    bank: Tensor  # (n_samples,F) momentum features, mean of the two newest views
    labels: Tensor  # (n_samples,) the cluster of each sample
    sure: Tensor  # (n_samples,) bool: which samples commit to their cluster
    prototypes: Tensor  # (K,D) mean momentum projections of the sure members, over the previous epoch
    sums: Tensor  # (K,D) the same, so far in this epoch
    cluster_weight: Tensor  # (), current
    commit_weight: Tensor  # (), current
    keep: Tensor  # (), current EMA momentum

    @classmethod
    def resolve(cls, config: Config, n_samples: int) -> Config:
        settings = method_settings(config, AnchoredSettings, "anchored")
        if settings.instance == "byol" and not settings.hidden:
            raise InputError(
                "anchored.hidden is 0, but byol needs a predictor: set a width, or anchored.instance=infonce"
            )
        check_parts(config.n_clusters or config.clusters_between[1], settings.balance)
        rows = queue_size(settings.instance_queue, n_samples, 2 * config.train.batch_size)
        return make_config({"anchored": asdict(replace(settings, instance_queue=rows))}, config)

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.between = None if config.n_clusters else config.clusters_between
        if self.between:  # train with the geometric mean of the range; `finish` chooses the number
            config = replace(config, n_clusters=round(math.sqrt(math.prod(self.between))))
        self.settings = method_settings(config, AnchoredSettings, "anchored")
        self.n_clusters, self.seed = config.n_clusters, config.seed
        self.drawn_to_neighbours = bool(config.augment.neighbours) and not shape.side
        self.online = AnchoredNetwork(config, shape)
        self.momentum = momentum_copy(self.online)
        n_features = self.settings.n_features
        byol = self.settings.instance == "byol"
        self.predictor = mlp(n_features, self.settings.hidden, n_features, batch_norm=True) if byol else nn.Identity()
        self.queue = None if byol else Queue(self.settings.instance_queue, self.online.n_projected)  # Q
        self.register_buffer("bank", torch.zeros(shape.n_samples, self.online.backbone.n_features))
        self.register_buffer("labels", torch.zeros(shape.n_samples, dtype=torch.int64))
        self.register_buffer("sure", torch.zeros(shape.n_samples, dtype=torch.bool))
        for name in ("prototypes", "sums"):
            self.register_buffer(name, torch.zeros(self.n_clusters, self.online.n_projected))
        for name in ("cluster_weight", "commit_weight", "keep"):
            self.register_buffer(name, torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        s = self.settings
        # in the first epoch there are no labels yet
        self.cluster_weight.fill_(s.cluster_weight if epoch and progress >= s.cluster_start else 0.0)
        commit = epoch and progress >= s.commit_start and not self.between  # only if the number of clusters is given
        self.commit_weight.fill_(s.commit_weight if commit else 0.0)
        first, last = s.ema
        self.keep.fill_(last - (last - first) * (1 + math.cos(math.pi * progress)) / 2)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        images = torch.cat(views)  # (2N,...): both views pass both networks
        features = self.online.backbone_features(images)
        query = F.normalize(self.predicted_key(self.online.project(features)), dim=1)  # (2N,D)
        log_assignment = self.online.assign_features(F.normalize(features, dim=1))  # (2N,K)
        with torch.no_grad():
            key_features = self.momentum.backbone_features(images)
            key = F.normalize(self.momentum.project(key_features), dim=1)
        other = torch.cat(key.chunk(2)[::-1])  # the key of a query is the other view's

        instance = self.instance_loss(query, other)
        cluster = self.cluster_loss(query, other, self.labels[samples].repeat(2))
        loss, metrics = instance + self.cluster_weight * cluster, {"instance_loss": instance, "cluster_loss": cluster}
        if self.settings.commit_weight:
            metrics["commit_loss"] = self.commit_loss(query, samples)
            loss = loss + self.commit_weight * metrics["commit_loss"]
        first, second = log_assignment.detach().exp().chunk(2)
        return Outcome(
            loss=loss,
            assignment=first,
            key_assignment=second,
            memory={"samples": samples, "key": key, "features": F.normalize(key_features, dim=1)},
            metrics=metrics,
        )

    def predicted_key(self, projection: Tensor) -> Tensor:
        with torch.autocast(projection.device.type, torch.bfloat16, enabled=self.online.bf16):
            prediction: Tensor = self.predictor(projection)
        return prediction.float()

    def instance_loss(self, query: Tensor, key: Tensor) -> Tensor:
        if self.queue is None:  # byol has no negatives
            return 2 - 2 * (query * key).sum(1).mean()
        return -losses.info_nce(query, key, self.queue.rows, self.queue.valid(), self.settings.temperature).mean()

    def cluster_loss(self, query: Tensor, key: Tensor, labels: Tensor) -> Tensor:
        """Return Eq. 5 on hard assignments.

        Negatives are the other clusters' momentum representations of the same batch.
        """
        members = F.one_hot(labels, self.n_clusters).to(query.dtype)  # (2N,K)
        present = members.sum(0) > 0
        clusters = losses.cluster_representations(query, members)
        key_clusters = losses.cluster_representations(key, members)
        return losses.cluster_loss(
            clusters, key_clusters, key_clusters, present, self.settings.cluster_temperature, present.to(query.dtype)
        )

    def commit_loss(self, query: Tensor, samples: Tensor) -> Tensor:
        """Return the cross-entropy of the most confident images to the prototypes.

        It acts on the queries, like the instance track. Through the head, which undoes the whitening, it would amplify
        directions that carry little variance.
        """
        sure = self.sure[samples].repeat(2)
        logits = query @ self.prototypes.T / self.settings.commit_temperature  # (2N,K)
        surprise = F.cross_entropy(logits, self.labels[samples].repeat(2), reduction="none")
        return (surprise * sure).sum() / sure.sum().clamp(min=1)

    def remember(self, memory: dict[str, Tensor]) -> None:
        samples = memory["samples"]
        first, second = memory["features"].chunk(2)
        self.bank.index_copy_(0, samples, F.normalize(first + second, dim=1))
        if self.queue is not None:
            self.queue.push(memory["key"])
        members = F.one_hot(self.labels[samples], self.n_clusters) * self.sure[samples, None]
        self.sums += members.repeat(2, 1).to(self.sums.dtype).T @ memory["key"]
        ema_update(self.momentum, self.online, self.keep)

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Recluster the features. Once images commit to clusters, k-means only continues from the current ones."""
        old = self.labels.clone()
        self.prototypes.copy_(F.normalize(self.sums, dim=1))  # clusters keep their numbers when they are reclustered
        self.sums.zero_()
        n_init = 0 if self.commit_weight > 0 else STARTS if self.n_clusters <= kmeans.FEW_CLUSTERS else STARTS_MANY
        groups = (GROUPS[epoch % len(GROUPS)],)  # one group size per epoch, in turn
        strain = self.anchor(self.bank, seed=self.seed + epoch, warm=epoch > 0, n_init=n_init, groups=groups)
        empty = float((torch.bincount(self.labels, minlength=self.n_clusters) == 0).sum())
        return {"relabelled": float((self.labels != old).float().mean()), "strain": strain, "empty": empty}

    def anchor(self, features: Tensor, *, seed: int, warm: bool, n_init: int, groups: tuple[int, ...]) -> float:
        """Set the head to the centroids of k-means on whitened features, and keep the order of the clusters.

        K-means starts from scratch and, if `warm`, also from the current clusters. The solution that scores best under
        the prior on sizes wins; then groups of rows move between its clusters, one pass for each number of `groups` per
        cluster. Return the strain of the prior on sizes.
        """
        whitening, balance = kmeans.whiten(features, self.settings.shrinkage), self.settings.balance
        rows = whitening.rows(features)
        unit = kmeans.unit_rows(rows)
        ends = [kmeans.weigh_sizes(rows, found, balance, unit) for found in self.cluster(unit, seed, warm, n_init)]
        best = partial(objective, rows)  # the first wins a tie
        sized = max(ends, key=best) if len(ends) > 1 else ends[0]
        for per_cluster in groups:
            sized = regroup(unit, rows, sized, balance, per_cluster=per_cluster, seed=seed)
        order = kmeans.match_labels(self.labels, sized.labels, self.n_clusters)
        centres, shift = torch.empty_like(sized.centres), torch.empty_like(sized.shift)
        centres[order], shift[order] = sized.centres, sized.shift
        weight = centres @ whitening.matrix.T  # (K,F): takes features that are not whitened
        gap, label = self.look(features, whitening.mean, weight, shift)
        scale = kmeans.MARGIN / gap.mean().clamp(min=1e-6)
        self.online.head.weight.copy_(scale * weight)
        self.online.head.bias.copy_(scale * (shift - weight @ whitening.mean))
        self.labels.copy_(label)
        self.sure.copy_(kmeans.widest_gaps(gap, label, self.settings.commit_share))
        return sized.strain

    def look(self, features: Tensor, mean: Tensor, weight: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Return the margin of each sample's best cluster and that cluster, (n_samples,) each; in chunks to limit
        memory.
        """
        gap, label = [], []
        for part in torch.split(features, max(1, kmeans.CELLS // self.n_clusters)):
            logits = (part - mean) @ weight.T + shift
            gap.append(kmeans.gaps(logits))
            label.append(logits.argmax(1))
        return torch.cat(gap), torch.cat(label)

    def cluster(self, whitened: Tensor, seed: int, warm: bool, n_init: int) -> list[kmeans.Clusters]:
        """Return the solutions of k-means: from the current clusters and from scratch.

        If sizes may be uneven and k-means starts from scratch, it finds many parts, which are joined.
        """
        if self.settings.balance < 0 and n_init:
            return [kmeans.joined_parts(whitened, self.n_clusters, seed=seed, n_init=n_init)]
        search = partial(kmeans.spherical_kmeans, whitened, self.n_clusters, seed=seed)
        init = kmeans.directions(whitened, self.labels, self.n_clusters) if warm else None
        if init is None or not n_init or self.n_clusters > kmeans.FEW_CLUSTERS:  # one is enough if K is large
            return [search(init=init, n_init=n_init)]
        return [search(init=init, n_init=0), search(n_init=n_init)]

    @torch.no_grad()
    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        """Set the head once more, from the features that prediction uses, and choose the number of clusters if it is
        open.
        """
        features = embed(self.online)
        if self.between:
            # Rows pulled to their neighbours form many small clumps, and two halves agree on these the better, the
            # more clusters they look for. So the number of clusters is chosen from the input rows instead.
            rows = embed(_AsSeen(self.online, len(self.labels))) if self.drawn_to_neighbours else features
            self.choice = choose_clusters(rows, *self.between, seed=self.seed)
            self.n_clusters = self.choice.n_clusters
            self.online.head = nn.Linear(features.shape[1], self.n_clusters, device=features.device)
            self.online.head.requires_grad_(False)
            self.labels.zero_()
        n_init = FINAL_STARTS if self.n_clusters <= kmeans.FEW_CLUSTERS else FINAL_STARTS_MANY
        self.anchor(features, seed=self.seed, warm=not self.between, n_init=n_init, groups=GROUPS)
