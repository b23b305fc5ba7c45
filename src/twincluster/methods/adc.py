"""ADC: walks from learned centroids to images and back end where they began, and so do walks from augmented images.

Haeusser et al. 2018, "Associative Deep Clustering: Training a Classification Network with no Labels", after the
authors' code. A layer that learns which centroids belong to which cluster says the same of images.
Shapes: N batch, K clusters, C centroids of a cluster, D embedding, R augmentations of an image, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster import draws
from twincluster.config import Config, Count, Positive, Share, own_settings
from twincluster.methods import peer_losses
from twincluster.methods.base import Batch, DataShape, Method, Network, Outcome
from twincluster.methods.heads import k_means

APART = 19  # stream of random numbers
FIRST, NEAR, SET_NEAR = 0.3, 0.01, 0.0001  # deviation of the first centroids; how far those of a cluster lie apart
STARTS = 10  # of the k-means that sets the centroids


@dataclass(frozen=True)
class AdcSettings:
    """What the authors' code has unless told otherwise; the recipe has what they give for CIFAR-10."""

    n_features: Count = 128  # D
    n_centroids: Count = 4  # C
    repeats: Count = 3  # R
    visit_weight: float = 0.5  # that walks from centroids pass all images; 1 for MNIST
    view_weight: float = 0.2  # of walks from augmented images once clusters are learned; 1 before
    label_weight: float = 0.5  # of the layer that tells centroids apart
    length: Positive = 3.0  # of embeddings and centroids, as where their commands stand; 1 in the newest code
    length_weight: float = 0.0002  # of each that is longer or shorter
    cluster_start: Share = 0.1  # share of the run after which clusters are learned, as in their command for MNIST


class AdcNetwork(Network):
    """Backbone, one linear layer to the embedding and another one to the clusters."""

    # differs from the authors' code: no dropout before the embedding

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings = own_settings(config, AdcSettings)
        self.projector = nn.Linear(self.backbone.n_features, settings.n_features)
        self.head = nn.Linear(settings.n_features, config.n_clusters)

    def embed(self, images: Tensor) -> Tensor:  # z, (N,D)
        embedding: Tensor = self.projector(self.backbone_features(images))
        return embedding

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.embed(images)), 1)


class Adc(Method):
    """ADC: walks between images and centroids, which are learned as well."""

    # differs from the authors' code: no sum of absolute values in the loss, which most of their commands leave out; no
    # loss of transformations, whose weight is 0 in all of them

    network_type = AdcNetwork
    settings_type = AdcSettings
    online: AdcNetwork
    label: Tensor  # (KC,) int64, the cluster of each centroid
    clustering: Tensor  # () bool, whether clusters are learned
    progress: Tensor  # ()

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters, self.seed = own_settings(config, AdcSettings), config.n_clusters, config.seed
        self.online = AdcNetwork(config, shape)
        each, n_features = self.settings.n_centroids, self.settings.n_features
        middle = FIRST * torch.randn(self.n_clusters, n_features).repeat_interleave(each, 0)
        self.prototypes = nn.Parameter(middle + NEAR * (2 * torch.rand_like(middle) - 1))  # mu, (KC,D)
        self.register_buffer("label", torch.arange(self.n_clusters).repeat_interleave(each))
        self.register_buffer("clustering", torch.zeros((), dtype=torch.bool))
        self.register_buffer("progress", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        self.progress.fill_(progress)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.plain(), *(batch.view(i) for i in range(self.settings.repeats))

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        # differs from the authors' code: the images and their augmentations pass batch-norm together
        s, embedding = self.settings, self.online.embed(torch.cat(views))  # ((1+R)N,D)
        plain, augmented = embedding[: len(samples)], embedding[len(samples) :]
        image = torch.arange(len(samples), device=samples.device).repeat(s.repeats)
        view = peer_losses.walk_loss(augmented, plain, image) + peer_losses.visit_loss(augmented, plain)
        walk, visit = self.walks(plain)
        label = F.cross_entropy(self.online.head(self.prototypes), self.label)
        cluster = walk + s.visit_weight * visit + s.label_weight * label + s.view_weight * view
        length = peer_losses.length_loss(torch.cat([embedding, self.prototypes]), s.length)
        q = F.softmax(self.online.head(embedding).detach(), 1)  # which no loss sees: the layer learns from centroids
        return Outcome(
            loss=torch.where(self.clustering, cluster, view) + s.length_weight * length,
            assignment=q[: len(samples)],
            key_assignment=q[len(samples) : 2 * len(samples)],
            memory={},
            metrics={"walk_loss": walk, "visit_loss": visit, "view_loss": view, "label_loss": label},
        )

    def walks(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """From centroids to images and back, and how evenly these are passed."""
        return (
            peer_losses.walk_loss(self.prototypes, embedding, self.label),
            peer_losses.visit_loss(self.prototypes, embedding),
        )

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Clusters begin, once their share of the run has come, with those of k-means."""
        if not self.clustering and self.progress >= self.settings.cluster_start:
            self.online.eval()
            embedding = torch.cat([self.online.embed(batch.plain()) for batch in batches()])  # (n,D)
            self.online.train()
            if len(embedding) >= self.n_clusters:  # otherwise from where they are
                self.begin(embedding, epoch)
            self.clustering.fill_(True)
        return {"stage": float(self.clustering)}

    def begin(self, embedding: Tensor, epoch: int) -> None:
        """Centroids a little apart from the centres of k-means, and a layer that says which centre is the nearest."""
        # differs from the authors' code: its layer begins with random weights, and moments of the optimiser with 0
        seed, each = self.seed + epoch, self.settings.n_centroids
        centres, _ = k_means(embedding, self.n_clusters, n_init=STARTS, seed=seed)  # (K,D)
        keys = draws.sample_keys(seed, torch.zeros_like(self.label[0]), torch.arange(len(self.label)).to(self.label))
        apart = SET_NEAR * (2 * draws.uniform(keys, APART, centres.shape[1]) - 1)  # (KC,D)
        self.prototypes.copy_(centres.repeat_interleave(each, 0) + apart)
        self.online.head.weight.copy_(centres)
        self.online.head.bias.copy_(-centres.square().sum(1) / 2)
