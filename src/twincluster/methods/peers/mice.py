"""MiCE: a mixture of K contrastive experts and a gate that chooses among them, trained by expectation and maximisation.

Tsai et al. 2021, "MiCE: Mixture of Contrastive Experts for Unsupervised Image Clustering". Every image passes all
experts, so that a step costs K contrasts. Shapes: N batch, K clusters and experts, D embedding, J rows of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Count, DataShape, Positive, Share, method_settings
from twincluster.core import InputError
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import key_features
from twincluster.methods.peers import peer_losses
from twincluster.methods.tcc import simplex
from twincluster.nn import Queue, ema_update, momentum_copy, queue_size

KEPT = 256  # rows of the queue that the model stores for prediction


@dataclass(frozen=True)
class MiceSettings:
    """Values of the paper and its code."""

    temperature: Positive = 1.0  # tau of the experts
    gate_temperature: Positive = 1.0  # kappa
    queue_size: Count = 16_384  # J, each with K embeddings; at most one per sample
    n_features: Count = 128  # D; at least K - 1
    ema: Share = 0.999  # weight of the teacher's old parameters at each step
    shuffle_keys: bool = True  # encode keys in two random halves


class MiceNetwork(Network):
    """Backbone, K experts, a gate with fixed prototypes omega, and the centres mu of the experts."""

    gates: Tensor  # omega, (K,D)
    negatives: Tensor  # (KEPT,K,D) for the posterior of new images
    known: Tensor  # (KEPT,) bool, which of them have been written

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = method_settings(config, MiceSettings)
        self.n_clusters, n_features = config.n_clusters, self.settings.n_features
        self.experts = nn.Linear(self.backbone.n_features, self.n_clusters * n_features)
        self.gate = nn.Linear(self.backbone.n_features, n_features)
        if n_features < self.n_clusters - 1:
            raise InputError(f"own.n_features is {n_features}: {self.n_clusters} experts need {self.n_clusters - 1}")
        # mu; the paper does not say how they begin: as random directions. Gradients move them, and `after_epoch` does.
        self.prototypes = nn.Parameter(F.normalize(torch.randn(self.n_clusters, n_features), dim=1))
        self.register_buffer("gates", simplex(self.n_clusters, n_features))
        self.register_buffer("negatives", torch.zeros(KEPT, self.n_clusters, n_features))
        self.register_buffer("known", torch.zeros(KEPT, dtype=torch.bool))

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        """Return the posterior p(z|x,y) of an image that is its own key."""
        # the paper does not cover images without a teacher; at the end student and teacher are close
        features = self.backbone_features(images)
        experts = self.by_experts(features)
        return F.log_softmax(self.log_prior(features) + self.likelihood(experts, experts), 1)

    def by_experts(self, features: Tensor) -> Tensor:  # f, (N,K,D)
        return F.normalize(self.experts(features).view(len(features), self.n_clusters, -1), dim=2)

    def log_prior(self, features: Tensor) -> Tensor:
        """Return log p(z|x), (N,K)."""
        gate = F.normalize(self.gate(features), dim=1)
        return F.log_softmax(gate @ self.gates.T / self.settings.gate_temperature, 1)

    def likelihood(self, experts: Tensor, keys: Tensor, queue: Queue | None = None) -> Tensor:
        """Return log p(y|x,z), (N,K), against the queue or, for prediction, against its stored rows."""
        rows, valid = self.negatives, self.known
        if queue is not None:
            rows, valid = queue.rows.view(-1, *self.negatives.shape[1:]), queue.valid()
        mu = F.normalize(self.prototypes, dim=1)
        return peer_losses.expert_likelihood(experts, keys, mu, rows, valid, self.settings.temperature)


class Mice(Method):
    """MiCE: K contrastive experts and a gate, by the evidence lower bound; centres move once an epoch."""

    network_type = MiceNetwork
    settings_type = MiceSettings
    spared = ()  # the authors decay mu, too
    online: MiceNetwork
    sums: Tensor  # (K,D) of the teacher's embeddings, by the expert with the largest posterior

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters = method_settings(config, MiceSettings), config.n_clusters
        self.online = MiceNetwork(config, shape)
        self.momentum = momentum_copy(self.online)
        n_features, batch = self.settings.n_features, config.train.batch_size
        size = queue_size(self.settings.queue_size, shape.n_samples, batch)
        self.queue = Queue(size, self.n_clusters * n_features)
        self.register_buffer("sums", torch.zeros(self.n_clusters, n_features))

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.view(1), batch.view(2)  # of student, teacher and gate

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features = self.online.backbone_features(views[0])
        with torch.no_grad():
            seen = key_features(self.momentum, views[1], keys, shuffled=self.settings.shuffle_keys)
            key = self.momentum.by_experts(seen)  # v, (N,K,D)
        log_prior = self.online.log_prior(self.online.backbone_features(views[2]))
        likelihood = self.online.likelihood(self.online.by_experts(features), key, self.queue)
        posterior = F.softmax((log_prior + likelihood).detach(), 1)  # p(z|x,y)
        return Outcome(
            loss=peer_losses.mixture_loss(log_prior, likelihood),
            assignment=posterior,
            key_assignment=log_prior.detach().exp(),
            memory={"key": key, "posterior": posterior},
            metrics={"expert_loss": -(posterior * likelihood.detach()).sum(1).mean()},
        )

    def remember(self, memory: dict[str, Tensor]) -> None:
        key = memory["key"]
        self.queue.push(key.flatten(1))
        members = F.one_hot(memory["posterior"].argmax(1), self.n_clusters).to(key.dtype)  # (N,K)
        self.sums += torch.einsum("nk,nkd->kd", members, key)
        ema_update(self.momentum, self.online, self.settings.ema)

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Move each centre to the mean direction of the teacher's embeddings that its expert has taken."""
        empty = ~self.sums.any(1, keepdim=True)  # not in the paper: an expert without images keeps its centre
        new = torch.where(empty, self.online.prototypes, F.normalize(self.sums, dim=1))
        self.online.prototypes.copy_(new)
        self.sums.zero_()
        return {"idle_experts": float(empty.sum())}

    @torch.no_grad()
    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        rows = self.queue.filled()[:KEPT].view(-1, *self.online.negatives.shape[1:])
        self.online.negatives[: len(rows)] = rows
        self.online.known[: len(rows)] = True
