"""ProPos: BYOL's alignment of views, with noise between neighbours, and prototypes that repel one another.

Huang et al. 2022, "Learning Representation for Clustering via Prototype Scattering and Positive Sampling". K-means on
the momentum projections gives pseudo-labels after each epoch, and the clusters at the end. Shapes: N batch, K clusters,
D projection, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.config import Config, Count, DataShape, Positive, Share, method_settings
from twincluster.methods import losses
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import Centres, CentresNetwork, mlp
from twincluster.methods.peers import peer_losses
from twincluster.nn import draws, ema_update, momentum_copy

NOISE = 13  # stream of random numbers, and the next one


@dataclass(frozen=True)
class ProposSettings:
    """Values of the paper and its code."""

    cluster_weight: float = 0.1  # lambda_psl
    temperature: Positive = 0.5  # tau, between prototypes
    noise: float = 0.001  # sigma, of the neighbours that are sampled around an embedding
    start: Share = 0.05  # share of the run after which prototypes and noise begin
    n_features: Count = 256  # D
    hidden: Count = 4096  # width of projector and predictor
    ema: Share = 0.996  # weight of the old momentum parameters at each step


class ProposNetwork(CentresNetwork):
    """Backbone, projection, and the centres of k-means on it."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings, n_features = method_settings(config, ProposSettings), self.backbone.n_features
        self.projector = mlp(n_features, settings.hidden, settings.n_features, batch_norm=True)
        self.centres = Centres(config.n_clusters, settings.n_features)

    def project(self, images: Tensor) -> Tensor:  # (N,D)
        projection: Tensor = self.projector(self.backbone_features(images))
        return projection

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.project(images), dim=1)


class Propos(Method):
    """ProPos: BYOL with noise around each positive, and scattered prototypes of k-means clusters."""

    # differs from the authors' code: the predictor learns at the same rate as all else, not ten times as fast, and
    # starts like any other layer, not with small weights; both views share batch-norm statistics, and keys are not
    # shuffled

    network_type = ProposNetwork
    settings_type = ProposSettings
    online: ProposNetwork
    bank: Tensor  # (n,D) momentum projections of plain images
    labels: Tensor  # (n,) the cluster of each sample
    begun: Tensor  # () 0 or 1

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters = method_settings(config, ProposSettings), config.n_clusters
        self.seed = config.seed
        self.online = ProposNetwork(config, shape)
        self.momentum = momentum_copy(self.online)
        n_features = self.settings.n_features
        self.predictor = mlp(n_features, self.settings.hidden, n_features, batch_norm=True)
        self.register_buffer("bank", F.normalize(torch.randn(shape.n_samples, n_features), dim=1))
        self.register_buffer("labels", torch.zeros(shape.n_samples, dtype=torch.int64))
        self.register_buffer("begun", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        self.begun.fill_(float(epoch > 0 and progress >= self.settings.start))  # there are no labels in the first epoch

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        images = torch.cat(views)
        query = self.online.project(images)  # (2N,D)
        with torch.no_grad():
            key = self.momentum.embed(images)
        other = torch.cat(key.chunk(2)[::-1])  # the key of the other view
        prediction = F.normalize(self.predictor(query + self.noise(keys, query)), dim=1)
        instance = 2 - 2 * (prediction * other).sum(1).mean()  # positive sampling alignment
        members = F.one_hot(self.labels[samples], self.n_clusters).to(query.dtype)  # (N,K)
        # as in the authors' code: both views, each against the keys of the other
        pairs = zip(query.chunk(2), other.chunk(2), strict=True)
        cluster = torch.stack([self.scatter(*pair, members) for pair in pairs]).mean()
        q = self.online.centres(F.normalize(query.detach(), dim=1)).exp()
        return Outcome(
            loss=instance + self.begun * self.settings.cluster_weight * cluster,
            assignment=q[: len(samples)],
            key_assignment=q[len(samples) :],
            memory={},
            metrics={"instance_loss": instance, "cluster_loss": cluster},
        )

    def noise(self, keys: Tensor, like: Tensor) -> Tensor:
        """Add the noise of positive sampling, which turns an embedding into that of a neighbour."""
        both = torch.cat([draws.normal(keys, NOISE + view, like.shape[1]) for view in range(2)])
        return self.begun * self.settings.noise * both.to(like.dtype)

    def scatter(self, query: Tensor, key: Tensor, members: Tensor) -> Tensor:
        """Return the prototype scattering loss of the clusters in the batch."""
        clusters, keys = (losses.cluster_representations(F.normalize(rows, dim=1), members) for rows in (query, key))
        return peer_losses.scatter_loss(clusters, keys, members.any(0), self.settings.temperature)

    def remember(self, memory: dict[str, Tensor]) -> None:
        ema_update(self.momentum, self.online, self.settings.ema)

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Compute pseudo-labels from the momentum projections of plain images."""
        self.momentum.eval()
        for batch in batches():
            self.bank[batch.samples] = self.momentum.embed(batch.plain())
        self.momentum.train()
        old = self.labels.clone()
        self.labels.copy_(self.online.centres.fit(self.bank, seed=self.seed + epoch))
        return {"relabelled": float((self.labels != old).float().mean())}

    @torch.no_grad()
    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        """Predict with the momentum network."""
        weights = self.momentum.state_dict() | self.online.centres.state_dict(prefix="centres.")
        self.online.load_state_dict(weights)
        self.online.centres.settle(embed(self.online), seed=self.seed)
