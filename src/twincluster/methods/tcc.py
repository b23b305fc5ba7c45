"""Twin-contrast clustering as printed in "You Never Cluster Alone": one training step, top to bottom.

The equations are in losses.py; this file feeds the networks into them. Where the paper is silent or contradicts itself,
a field of `TccSettings` decides. Shapes: N batch, K clusters, D features, J and L rows of the queues Q and P.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import Advice
from twincluster.config import Config, Count, CountOrNone, DataShape, Positive, Share, make_config, method_settings
from twincluster.core import InputError
from twincluster.methods import losses
from twincluster.methods.base import Method, Network, Outcome
from twincluster.nn import Queue, draws, ema_update, in_shuffled_halves, momentum_copy, queue_size

ONLINE_GUMBEL, KEY_GUMBEL, KEY_ORDER = 10, 11, 12  # streams of random numbers; 0 and 1 are the views'
LARGEST_BATCH = 6400  # of the default batch size: the paper's, for 200 clusters
CLUSTER_CELLS = 2**24  # most similarities of clusters to rows of P in a step: 100 rows for each of 400 clusters, 64 MiB
Track = tuple[Tensor, Tensor]  # a loss, and the momentum rows to push to its queue


@dataclass(frozen=True)
class TccSettings:
    """Twin-contrast clustering as printed, Eqs. 1 to 9; the last settings decide what the text leaves open."""

    alpha: Share = 0.5  # weight of the cluster track, Eq. 9
    temperature: Positive = 1.0  # tau of both contrastive losses
    gumbel_temperature: Positive = 0.8  # lambda
    instance_queue: Count = 12_800  # J, rows of Q
    cluster_queue: CountOrNone = 0  # L, rows of P; 0: 100 per cluster, fewer for more than 400 clusters
    n_features: Count = 128  # D
    ema: Share = 0.999  # weight of the old momentum parameters at each step
    # the paper is silent or contradicts itself on:
    unit_norm: bool = False  # normalise f and mu in Eq. 3; as printed, neither is normalised
    assignment_temperature: Positive = 1.0  # divides the logits of Eq. 3
    entropy: Literal["sample", "batch"] = "sample"  # Eq. 8 maximises H(q) of each sample; batch: of the batch mean
    prototypes: Literal["trained", "simplex"] = "trained"  # simplex: fixed, equally far apart
    centred: bool = False  # batch-norm without scale and shift on f
    shuffle_keys: bool = False  # encode keys in two random halves, so that batch-norm statistics reveal no pair
    # ablations of Table 3, and reductions of Sec. 3.4, are methods of their own: tcc_variants.py


class Reading(NamedTuple):
    """The outputs of one network for one view of the batch."""

    features: Tensor  # f, (N,D)
    log_assignment: Tensor  # log pi, (N,K)
    sample: Tensor  # c, (N,K)


class TccNetwork(Network):
    """All parameters subscripted theta: the encoder f, the prototypes mu and NN."""

    prototypes: Tensor

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = method_settings(config, TccSettings, "tcc")
        n_features = self.settings.n_features
        self.head = nn.Linear(self.backbone.n_features, n_features)  # the last layer of f
        self.centre = nn.BatchNorm1d(n_features, affine=False) if self.settings.centred else nn.Identity()
        self.assignment_shift = nn.Linear(config.n_clusters, n_features)  # NN, "a single fully connected network"
        if self.settings.prototypes == "trained":  # the paper is silent: initialised with random unit vectors
            self.prototypes = nn.Parameter(F.normalize(torch.randn(config.n_clusters, n_features), dim=1))
        else:
            self.register_buffer("prototypes", simplex(config.n_clusters, n_features))

    def embed(self, images: Tensor) -> Tensor:
        features: Tensor = self.centre(self.head(self.backbone_features(images)))
        return features

    def log_assign(self, images: Tensor) -> Tensor:
        return self.assign_features(self.embed(images))

    def assign_features(self, features: Tensor) -> Tensor:
        f, mu = [F.normalize(rows, dim=1) if self.settings.unit_norm else rows for rows in (features, self.prototypes)]
        return losses.assignment(f, mu, self.settings.assignment_temperature)  # Eq. 3


class Tcc(Method):
    """Twin-contrast clustering as printed: L = alpha L1 + (1 - alpha) L2, the queues P and Q filled by momentum."""

    network_type = TccNetwork
    groups: ClassVar = {"tcc": TccSettings}
    large_backbone = "resnet34"
    advice = Advice(
        surer="try --method tcc-repaired --set tcc.entropy=batch, or the default method",
        evener="--set tcc.entropy=batch",
    )
    online: TccNetwork

    @classmethod
    def batch_size(cls, config: Config, n_samples: int, device: str) -> int:
        """Return a batch with enough samples of every cluster (Sec. 4.2)."""
        return min(32 * config.n_clusters, LARGEST_BATCH)

    @classmethod
    def resolve(cls, config: Config, n_samples: int) -> Config:
        settings, n_clusters = method_settings(config, TccSettings, "tcc"), config.n_clusters
        blocks = max(1, min(100, CLUSTER_CELLS // n_clusters**2))  # Sec. 4.2: 100 for each cluster
        settings = replace(
            settings,
            cluster_queue=settings.cluster_queue or blocks * n_clusters,
            instance_queue=queue_size(settings.instance_queue, n_samples, config.train.batch_size),
        )
        if settings.cluster_queue % n_clusters:
            raise InputError(
                f"tcc.cluster_queue is {settings.cluster_queue}: expected a multiple of the {n_clusters} clusters"
            )
        if settings.prototypes == "simplex" and settings.n_features < n_clusters - 1:
            raise InputError(
                f"tcc.prototypes=simplex with {n_clusters} clusters needs tcc.n_features of at least {n_clusters - 1}, "
                f"got {settings.n_features}"
            )
        return make_config({"tcc": asdict(settings)}, config)

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters = method_settings(config, TccSettings, "tcc"), config.n_clusters
        self.online = TccNetwork(config, shape)
        self.momentum = momentum_copy(self.online)
        self.instance_queue = Queue(self.settings.instance_queue, self.settings.n_features)  # Q
        self.cluster_queue = Queue(self.settings.cluster_queue, self.settings.n_features)  # P

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        online, key = self.read(views[0], views[1], keys)
        return self.outcome(online, key, self.cluster_track(online, key), self.instance_track(online, key))

    def read(self, images: Tensor, key_images: Tensor, keys: Tensor) -> tuple[Reading, Reading]:
        """Apply the online network to one view and the momentum network to the other, each with its own Gumbel
        noise.
        """
        features = self.online.embed(images)
        log_assignment = self.online.assign_features(features)
        online = Reading(features, log_assignment, self.sample(log_assignment, keys, ONLINE_GUMBEL))
        with torch.no_grad():
            features = self.key_features(key_images, keys)
            log_assignment = self.momentum.assign_features(features)
            return online, Reading(features, log_assignment, self.sample(log_assignment, keys, KEY_GUMBEL))

    def key_features(self, images: Tensor, keys: Tensor) -> Tensor:
        """Return the momentum features; with `shuffle_keys`, encode two random halves."""
        if not self.settings.shuffle_keys:
            return self.momentum.embed(images)
        return in_shuffled_halves(self.momentum.embed, images, draws.uniform(keys, KEY_ORDER, 1).squeeze(1))

    def sample(self, log_assignment: Tensor, keys: Tensor, stream: int) -> Tensor:  # c, (N,K)
        gumbel = draws.gumbel(keys, stream, self.n_clusters)
        return losses.gumbel_softmax(log_assignment, gumbel, self.settings.gumbel_temperature)

    def cluster_track(self, online: Reading, key: Reading) -> Track:
        """Return L1 (Eq. 5) and the momentum representations (K,D)."""
        clusters = losses.cluster_representations(online.features, self.membership(online))  # Eq. 4
        key_clusters = losses.cluster_representations(key.features, self.membership(key))
        rows, valid = self.cluster_queue.rows, self.cluster_queue.valid()
        return losses.cluster_loss(clusters, key_clusters, rows, valid, self.settings.temperature), key_clusters

    def membership(self, reading: Reading) -> Tensor:  # (N,K), the weight of each sample in each r_k
        return reading.log_assignment.exp()

    def instance_track(self, online: Reading, key: Reading) -> Track:
        """Return L2 (Eq. 8) and the momentum embeddings (N,D)."""
        embedding, key_embedding = self.embedding(self.online, online), self.embedding(self.momentum, key)
        rows, valid = self.instance_queue.rows, self.instance_queue.valid()
        log_likelihood = losses.info_nce(embedding, key_embedding, rows, valid, self.settings.temperature)
        return self.instance_loss(log_likelihood, online), key_embedding

    def instance_loss(self, log_likelihood: Tensor, online: Reading) -> Tensor:
        entropy = losses.entropy if self.settings.entropy == "sample" else losses.batch_entropy
        return losses.instance_loss(log_likelihood, entropy(online.log_assignment), self.n_clusters)  # Eq. 8

    def embedding(self, network: TccNetwork, reading: Reading) -> Tensor:
        return losses.embedding(reading.features, network.assignment_shift(reading.sample))  # Eq. 7

    def outcome(self, online: Reading, key: Reading, clusters: Track, instances: Track) -> Outcome:
        (cluster, key_clusters), (instance, key_embedding) = clusters, instances
        return Outcome(
            loss=losses.total_loss(cluster, instance, self.settings.alpha),  # Eq. 9
            assignment=online.log_assignment.detach().exp(),
            key_assignment=key.log_assignment.exp(),
            memory={"clusters": key_clusters, "embedding": key_embedding},
            metrics={"cluster_loss": cluster.detach(), "instance_loss": instance.detach(), **self.observe(online)},
        )

    @torch.no_grad()
    def observe(self, online: Reading) -> dict[str, Tensor]:
        """Return metrics that are recorded but not optimised.

        The ratio of norms shows whether f or NN(c) dominates e.
        """
        shift = self.online.assignment_shift(online.sample)
        return {
            "entropy": losses.entropy(online.log_assignment).mean(),
            "dec_loss": losses.dec_loss(online.features, self.online.prototypes),
            "norm_ratio": online.features.norm(dim=1).mean() / shift.norm(dim=1).mean(),
        }

    def remember(self, memory: dict[str, Tensor]) -> None:
        self.cluster_queue.push(memory["clusters"])
        self.instance_queue.push(memory["embedding"])
        ema_update(self.momentum, self.online, self.settings.ema)


def simplex(n_clusters: int, n_features: int) -> Tensor:
    """Return K unit vectors with equal angles between them (max-Mahalanobis centres), (K,D); needs D >= K - 1."""
    corners = torch.eye(n_clusters) - 1 / n_clusters
    basis = torch.linalg.svd(corners)[0][:, : n_clusters - 1]  # the K - 1 dimensions that the corners span
    return F.normalize(F.pad(corners @ basis, (0, n_features - n_clusters + 1)), dim=1)
