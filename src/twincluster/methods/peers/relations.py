"""Methods that learn from pairs: DAC, DCCM and ADC.

DAC trains on pairs of images that are clearly similar or clearly different, until every pair is one or the other. Chang
et al. 2017, "Deep Adaptive Image Clustering". Assignments of unit norm are compared by their cosine; two thresholds on
it approach each other. Shapes: N batch, K clusters, F backbone features.

DCCM learns from the network's own confident pairs, labels and features. Wu et al. 2019, "Deep Comprehensive Correlation
Mining for Image Clustering": a pseudo-graph, pseudo-labels and mutual information, all found on the image and learned
on its augmentation. Shapes: N batch, K clusters, F backbone features.

ADC lets walks from learned centroids to images and back end where they began, and also walks from augmented images.
Haeusser et al. 2018, "Associative Deep Clustering: Training a Classification Network with no Labels", after the
authors' code. A layer that learns the cluster of each centroid also assigns images. Shapes: N batch, K clusters, C
centroids of a cluster, D embedding, R augmentations of an image, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Count, DataShape, Positive, Share, method_settings
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import TwoStages, k_means
from twincluster.methods.peers import peer_losses
from twincluster.nn import draws

RISE = 0.1  # rise of the lower threshold while the upper one falls by 1


@dataclass(frozen=True)
class DacSettings:
    """Thresholds u = .95 - lambda and l = .455 + .1 lambda, which move until they meet."""

    upper: Share = 0.95  # u, above which a pair is similar, at the start of training
    lower: Share = 0.455  # l, below which a pair is different, at the start


class DacNetwork(Network):
    """Backbone, and a layer whose batch-norm keeps assignments apart at the start."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.head = nn.Sequential(
            nn.Linear(self.backbone.n_features, config.n_clusters, bias=False), nn.BatchNorm1d(config.n_clusters)
        )

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.backbone_features(images)), 1)


class Dac(Method):
    """DAC: two thresholds, which meet at the end of the run, turn pairs into labels."""

    # differs from the paper: Adam or SGD instead of RMSprop
    # differs from the authors' code: other thresholds, and no second loss that holds assignments at their earlier
    # values

    network_type = DacNetwork
    settings_type = DacSettings
    online: DacNetwork
    shift: Tensor  # () lambda

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = method_settings(config, DacSettings)
        self.online = DacNetwork(config, shape)
        self.register_buffer("shift", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        # as in the paper, lambda grows by the same amount in each epoch, and training ends when the thresholds meet
        gap = max(0.0, self.settings.upper - self.settings.lower)
        self.shift.fill_(progress * gap / (1 + RISE))

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.plain()

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        # as in the authors' code: plain images label the pairs, augmented ones learn them
        features = self.online.backbone_features(torch.cat(views))
        augmented, plain = F.softmax(self.online.head(features), 1).chunk(2)  # (N,K) each
        similarity, known = (F.normalize(q, dim=1) @ F.normalize(q, dim=1).T for q in (augmented, plain.detach()))
        upper, lower = self.settings.upper - self.shift, self.settings.lower + RISE * self.shift
        chosen = (known >= upper) | (known < lower)
        alike = (known >= upper).to(similarity.dtype)
        return Outcome(
            loss=peer_losses.pair_loss(similarity, alike, chosen),
            assignment=augmented.detach(),
            key_assignment=plain.detach(),
            memory={},
            metrics={"alike": alike.mean(), "chosen": chosen.to(alike.dtype).mean()},
        )


PARTNER = 15  # stream of random numbers


@dataclass(frozen=True)
class DccmSettings:
    """Values of the authors' code for CIFAR-10."""

    graph_threshold: Share = 0.95  # cosine of two assignments that makes an edge of the graph
    label_threshold: Share = 0.9  # of an assignment that becomes a label
    label_weight: float = 5.0  # alpha
    information_weight: float = 0.05  # beta
    hidden: Count = 512  # width of the discriminator


class Dccm(Method):
    """DCCM: pseudo-graph, pseudo-labels and mutual information of features."""

    # differs from the paper: Adam or SGD instead of RMSprop

    network_type = DacNetwork
    settings_type = DccmSettings
    online: DacNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = method_settings(config, DccmSettings)
        self.online = DacNetwork(config, shape)
        n_features, hidden = self.online.backbone.n_features + config.n_clusters, self.settings.hidden
        self.discriminator = nn.Sequential(
            nn.Linear(n_features, hidden, bias=False), nn.ReLU(),
            nn.Linear(hidden, hidden, bias=False), nn.ReLU(),
            nn.Linear(hidden, 1, bias=False),
        )  # fmt: skip

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.plain()

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        s, both = self.settings, self.online.backbone_features(torch.cat(views))
        scores = self.online.head[0](both)  # (2N,K), before batch-norm
        log_q, log_plain = F.log_softmax(self.online.head[1](scores), 1).chunk(2)
        q, plain = log_q.exp(), log_plain.detach().exp()  # (N,K) each
        similarity, known = (F.normalize(p, dim=1) @ F.normalize(p, dim=1).T for p in (q, plain))
        edge = (known >= s.graph_threshold).fill_diagonal_(True)  # (N,N)
        graph = peer_losses.pair_loss(similarity, edge.to(q.dtype), torch.ones_like(edge))
        label = peer_losses.sure_label_loss(log_q, plain, s.label_threshold)
        information = self.information(both.chunk(2)[0], scores.chunk(2)[0], edge, keys)
        return Outcome(
            loss=graph + s.label_weight * label + s.information_weight * information,
            assignment=q.detach(),
            key_assignment=plain,
            memory={},
            metrics={"graph_loss": graph, "label_loss": label, "information_loss": information},
        )

    def information(self, features: Tensor, scores: Tensor, edge: Tensor, keys: Tensor) -> Tensor:
        """Return the loss of a discriminator between true pairs of assignments (N,K) and features and false ones.

        In true pairs the features belong to the same image or to one that the graph joins to it.
        """
        # differs from the paper: features of the whole image; the paper has one vector for each place in an earlier
        # layer, which a backbone does not expose
        # differs from the authors' code: partners are drawn at random; theirs takes the first and the next two
        draw = draws.uniform(keys, PARTNER, len(keys)).to(features.dtype)  # (N,N)
        own = torch.eye(len(keys), dtype=torch.bool, device=keys.device)
        joined = torch.where(edge & ~own, draw, -1.0)
        partner = torch.where(own, -0.5, joined).argmax(1)  # itself, if the graph joins it to no other
        others = torch.where(edge, -1.0, draw).topk(min(2, len(keys)), 1)  # (N,2)
        true = torch.cat([self.discriminate(features, scores), self.discriminate(features[partner], scores)])
        false = torch.cat([self.discriminate(features[place], scores) for place in others.indices.unbind(1)])
        return peer_losses.discrimination_loss(true, false, others.values.T.flatten() > 0)

    def discriminate(self, features: Tensor, scores: Tensor) -> Tensor:
        """Return the discriminator's scores of pairs, (N,)."""
        verdict: Tensor = self.discriminator(torch.cat([features, scores], 1)).squeeze(1)
        return verdict


APART = 19  # stream of random numbers
FIRST, NEAR, SET_NEAR = 0.3, 0.01, 0.0001  # spread of the first centroids; distance of those of a cluster
STARTS = 10  # of the k-means that sets the centroids


@dataclass(frozen=True)
class AdcSettings:
    """Defaults of the authors' code; the recipe has their values for CIFAR-10."""

    n_features: Count = 128  # D
    n_centroids: Count = 4  # C
    repeats: Count = 3  # R
    visit_weight: float = 0.5  # of the loss that makes walks visit all images; 1 for MNIST
    view_weight: float = 0.2  # of walks from augmented images, once clusters are learned; 1 before
    label_weight: float = 0.5  # of the layer that learns the cluster of each centroid
    length: Positive = 3.0  # of embeddings and centroids, for the authors' commands; 1 in their newest code
    length_weight: float = 0.0002  # of the loss that pulls all lengths to this value
    cluster_start: Share = 0.1  # share of the run after which clusters are learned, as in their command for MNIST


class AdcNetwork(Network):
    """Backbone, a linear layer to the embedding, and another one to the clusters."""

    # differs from the authors' code: no dropout before the embedding

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings = method_settings(config, AdcSettings)
        self.projector = nn.Linear(self.backbone.n_features, settings.n_features)
        self.head = nn.Linear(settings.n_features, config.n_clusters)

    def embed(self, images: Tensor) -> Tensor:  # z, (N,D)
        embedding: Tensor = self.projector(self.backbone_features(images))
        return embedding

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.embed(images)), 1)


class Adc(TwoStages):
    """ADC: walks between images and learned centroids."""

    # differs from the authors' code: no sum of absolute values in the loss, which most of their commands omit; no loss
    # of transformations, whose weight is 0 in all of them

    network_type = AdcNetwork
    settings_type = AdcSettings
    online: AdcNetwork
    label: Tensor  # (KC,) int64, the cluster of each centroid

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters, self.seed = method_settings(config, AdcSettings), config.n_clusters, config.seed
        self.online = AdcNetwork(config, shape)
        each, n_features = self.settings.n_centroids, self.settings.n_features
        middle = FIRST * torch.randn(self.n_clusters, n_features).repeat_interleave(each, 0)
        self.prototypes = nn.Parameter(middle + NEAR * (2 * torch.rand_like(middle) - 1))  # mu, (KC,D)
        self.register_buffer("label", torch.arange(self.n_clusters).repeat_interleave(each))

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.plain(), *(batch.view(i) for i in range(self.settings.repeats))

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        # differs from the authors' code: images and augmentations share batch-norm statistics
        s, embedding = self.settings, self.online.embed(torch.cat(views))  # ((1+R)N,D)
        plain, augmented = embedding[: len(samples)], embedding[len(samples) :]
        image = torch.arange(len(samples), device=samples.device).repeat(s.repeats)
        view = peer_losses.walk_loss(augmented, plain, image) + peer_losses.visit_loss(augmented, plain)
        walk, visit = self.walks(plain)
        label = F.cross_entropy(self.online.head(self.prototypes), self.label)
        cluster = walk + s.visit_weight * visit + s.label_weight * label + s.view_weight * view
        length = peer_losses.length_loss(torch.cat([embedding, self.prototypes]), s.length)
        q = F.softmax(self.online.head(embedding).detach(), 1)  # without gradient: the layer learns from centroids only
        return Outcome(
            loss=torch.where(self.clustering, cluster, view) + s.length_weight * length,
            assignment=q[: len(samples)],
            key_assignment=q[len(samples) : 2 * len(samples)],
            memory={},
            metrics={"walk_loss": walk, "visit_loss": visit, "view_loss": view, "label_loss": label},
        )

    def walks(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of walks from centroids to images and back, and how unevenly these visit images."""
        return (
            peer_losses.walk_loss(self.prototypes, embedding, self.label),
            peer_losses.visit_loss(self.prototypes, embedding),
        )

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Begin to learn clusters, from those of k-means, when they are due."""
        if not self.clustering and self.is_due(self.settings.cluster_start):
            embedding = self.embed_all(batches)  # (n,D)
            if len(embedding) >= self.n_clusters:  # else the centroids stay where they are
                self.begin(embedding, epoch)
            self.clustering.fill_(True)
        return {"stage": float(self.clustering)}

    def begin(self, embedding: Tensor, epoch: int) -> None:
        """Set the centroids close to the centres of k-means, and a layer that finds the nearest centre."""
        # differs from the authors' code, whose layer starts with random weights and whose optimiser starts without
        # moments
        seed, each = self.seed + epoch, self.settings.n_centroids
        centres, _ = k_means(embedding, self.n_clusters, n_init=STARTS, seed=seed)  # (K,D)
        keys = draws.sample_keys(seed, torch.zeros_like(self.label[0]), torch.arange(len(self.label)).to(self.label))
        apart = SET_NEAR * (2 * draws.uniform(keys, APART, centres.shape[1]) - 1)  # (KC,D)
        self.prototypes.copy_(centres.repeat_interleave(each, 0) + apart)
        self.online.head.weight.copy_(centres)
        self.online.head.bias.copy_(-centres.square().sum(1) / 2)
