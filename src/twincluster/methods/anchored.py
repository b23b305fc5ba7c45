"""The default method: the paper's two tracks, with an assignment model that is anchored to the features.

Representation first, commitment later. The instance track learns features from the start. After each epoch k-means on
the whitened momentum features sets the assignment head, and its clusters feed the cluster track (representations r_k
contrasted with their momentum counterparts). On request (`label_weight`, off by default) the head is let go late in
the run and learns, under augmentation, the assignments that its own momentum copy is surest of.
Shapes: N batch, K clusters, D projection, F backbone features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster import assign, losses
from twincluster.config import Config
from twincluster.memory import Queue, ema_update, momentum_copy
from twincluster.methods.base import Batch, DataShape, Method, Network, Outcome

MARGIN = 3.0  # mean gap, in nats, between a sample's two best clusters when k-means sets the head
FINAL_STARTS = 10  # of the k-means that decides the result
BELIEF_KEEP = 0.7  # how much of a sample's belief survives one look at it


class AnchoredNetwork(Network):
    """Backbone, projection z for the two tracks, and one linear head: the assignment model q(k|x)."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = config.anchored, self.backbone.n_features
        self.n_projected = settings.n_features if settings.hidden else n_features
        self.projector = mlp(n_features, settings.hidden, settings.n_features) if settings.hidden else nn.Identity()
        self.head = nn.Linear(n_features, config.n_clusters)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return self.assign_features(self.embed(images))

    def assign_features(self, features: Tensor) -> Tensor:
        """Eq. 3 on unit-norm features, (N,K)."""
        return F.log_softmax(self.head(features), 1)

    def project(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, torch.bfloat16, enabled=self.bf16):
            projection: Tensor = self.projector(features)
        return projection.float()


class Anchored(Method):
    """Instance and cluster contrast on clusters that k-means finds in the momentum features (the default)."""

    network_type = AnchoredNetwork
    online: AnchoredNetwork
    bank: Tensor  # (n_samples,F) momentum features, mean of the two newest views
    belief: Tensor  # (n_samples,K) q of the momentum network, averaged over views and epochs
    labels: Tensor  # (n_samples,)
    trusted: Tensor  # (n_samples,) 1 where self-labelling may use the label
    cluster_weight: Tensor  # now
    label_weight: Tensor
    keep: Tensor  # EMA, now

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters, self.seed = config.anchored, config.n_clusters, config.seed
        self.online = AnchoredNetwork(config, shape)
        self.momentum = momentum_copy(self.online)
        n_features = self.settings.n_features
        byol = self.settings.instance == "byol"
        self.predictor = mlp(n_features, self.settings.hidden, n_features) if byol else nn.Identity()
        self.queue = Queue(self.settings.instance_queue, self.online.n_projected)  # Q
        self.register_buffer("bank", torch.zeros(shape.n_samples, self.online.backbone.n_features))
        self.register_buffer("belief", torch.full((shape.n_samples, self.n_clusters), 1 / self.n_clusters))
        self.register_buffer("labels", torch.zeros(shape.n_samples, dtype=torch.int64))
        self.register_buffer("trusted", torch.zeros(shape.n_samples))
        for name in ("cluster_weight", "label_weight", "keep"):
            self.register_buffer(name, torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        s = self.settings
        # in the first epoch there are no labels yet
        self.cluster_weight.fill_(s.cluster_weight if epoch and progress >= s.cluster_start else 0.0)
        self.label_weight.fill_(s.label_weight if epoch and progress >= s.label_start else 0.0)
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
            key_features = F.normalize(key_features, dim=1)
            key_assignment = self.momentum.assign_features(key_features).exp()
        other = torch.cat(key.chunk(2)[::-1])  # the key of a query is the other view's
        labels, trusted = self.labels[samples].repeat(2), self.trusted[samples].repeat(2)

        instance = self.instance_loss(query, other)
        cluster = self.cluster_loss(query, other, labels)
        label = (F.nll_loss(log_assignment, labels, reduction="none") * trusted).sum() / trusted.sum().clamp(min=1)
        first, second = log_assignment.detach().exp().chunk(2)
        return Outcome(
            loss=instance + self.cluster_weight * cluster + self.label_weight * label,
            assignment=first,
            key_assignment=second,
            memory={"samples": samples, "key": key, "features": key_features, "assignment": key_assignment},
            metrics={"instance_loss": instance, "cluster_loss": cluster, "label_loss": label},
        )

    def predicted_key(self, projection: Tensor) -> Tensor:
        with torch.autocast(projection.device.type, torch.bfloat16, enabled=self.online.bf16):
            prediction: Tensor = self.predictor(projection)
        return prediction.float()

    def instance_loss(self, query: Tensor, key: Tensor) -> Tensor:
        if self.settings.instance == "byol":
            return 2 - 2 * (query * key).sum(1).mean()
        return -losses.info_nce(query, key, self.queue.rows, self.queue.valid(), self.settings.temperature).mean()

    def cluster_loss(self, query: Tensor, key: Tensor, labels: Tensor) -> Tensor:
        """Eq. 5 on hard assignments; negatives are the other clusters' momentum representations of the same batch."""
        members = F.one_hot(labels, self.n_clusters).to(query.dtype)  # (2N,K)
        present = members.sum(0) > 0
        clusters = losses.cluster_representations(query, members)
        key_clusters = losses.cluster_representations(key, members)
        return losses.cluster_loss(
            clusters, key_clusters, key_clusters, present, self.settings.cluster_temperature, present.to(query.dtype)
        )

    def remember(self, memory: dict[str, Tensor]) -> None:
        samples = memory["samples"]
        first, second = memory["features"].chunk(2)
        self.bank.index_copy_(0, samples, F.normalize(first + second, dim=1))
        first, second = memory["assignment"].chunk(2)
        self.belief.index_copy_(0, samples, self.belief[samples].lerp((first + second) / 2, 1 - BELIEF_KEEP))
        self.queue.push(memory["key"])
        ema_update(self.momentum, self.online, self.keep)

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """New labels: from k-means as long as it leads, from the head's own belief once the head has been let go."""
        old = self.labels.clone()
        if self.label_weight == 0:
            self.anchor(self.bank, seed=self.seed + epoch, warm=epoch > 0)
        self.labels.copy_(self.belief.argmax(1))
        top = self.belief.topk(2, dim=1).values
        self.trusted.copy_(assign.confident(top[:, 0] - top[:, 1], self.labels, self.settings.label_share))
        return {"relabelled": float((self.labels != old).float().mean()), "belief": float(top[:, 0].mean())}

    def anchor(self, features: Tensor, *, seed: int, warm: bool, n_init: int = 3) -> None:
        """Set the head to the centres of k-means on whitened features, with clusters in their old order.

        K-means starts from scratch and, if `warm`, from the clusters there are: the best end wins.
        """
        whitening = assign.whiten(features, self.settings.shrinkage)
        whitened = whitening(features)
        members = F.one_hot(self.labels, self.n_clusters).to(whitened.dtype)
        init = losses.cluster_representations(whitened, members) if warm else None
        found = assign.spherical_kmeans(whitened, self.n_clusters, seed=seed, init=init, n_init=n_init)
        order = assign.match_labels(self.labels, found.labels, self.n_clusters)
        centres = torch.empty_like(found.centres)
        centres[order] = found.centres
        weight = centres @ whitening.matrix.T  # (K,F): the centres seen from the features before whitening
        logits = (features - whitening.mean) @ weight.T
        best = logits.topk(2, dim=1).values
        scale = MARGIN / (best[:, 0] - best[:, 1]).mean().clamp(min=1e-6)
        for network in (self.online, self.momentum):
            network.head.weight.copy_(scale * weight)
            network.head.bias.copy_(-scale * (weight @ whitening.mean))
        self.belief.copy_((scale * logits).softmax(1))

    @torch.no_grad()
    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        """A head that was never let go is set once more, now from the features that prediction will see."""
        if self.label_weight == 0:
            self.anchor(embed(self.online), seed=self.seed, warm=True, n_init=FINAL_STARTS)


def mlp(n_inputs: int, hidden: int, n_outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, n_outputs)
    )
