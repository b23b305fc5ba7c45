"""DEC: learn an embedding that reconstructs the images, then sharpen the assignments to centres in it.

Xie et al. 2016, "Unsupervised Deep Embedding for Clustering Analysis". Both stages are parts of one run. Shapes: N
batch, K clusters, D embedding, n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Count, DataShape, Share, method_settings
from twincluster.core import InputError
from twincluster.methods.base import Batch, Network, Outcome
from twincluster.methods.heads import TwoStages, k_means, mlp
from twincluster.methods.peers import peer_losses

STARTS = 20  # of the k-means that sets the centres; before that, a single one for the record


@dataclass(frozen=True)
class DecSettings:
    """Values of section 4.3 of the paper, which are the same for all data."""

    n_features: Count = 10  # D
    hidden: Count = 2000  # width of the decoder
    cluster_start: Share = 0.5  # share of the run after which clusters are learned, and reconstruction ends


class DecNetwork(Network):
    """Backbone, a linear layer to the embedding, and the centres in it."""

    # differs from the paper: the backbone that all methods use, instead of a perceptron of four layers

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings = method_settings(config, DecSettings)
        self.head = nn.Linear(self.backbone.n_features, settings.n_features)
        self.prototypes = nn.Parameter(torch.zeros(config.n_clusters, settings.n_features))  # mu

    def embed(self, images: Tensor) -> Tensor:  # z, (N,D)
        embedding: Tensor = self.head(self.backbone_features(images))
        return embedding

    def log_assign(self, images: Tensor) -> Tensor:
        return peer_losses.student_assignment(self.embed(images), self.prototypes)


class Dec(TwoStages):
    """DEC: reconstruction, then k-means, then assignments that learn from their own sharpened targets."""

    # differs from the paper: the autoencoder learns all layers at once, not one after another

    network_type = DecNetwork
    settings_type = DecSettings
    online: DecNetwork
    target: Tensor  # (n,K) p, Eq. 3, after the last epoch

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters, self.seed = method_settings(config, DecSettings), config.n_clusters, config.seed
        self.online = DecNetwork(config, shape)
        rows = min(config.train.components, shape.n_inputs) or shape.n_inputs
        n_values = shape.n_inputs * shape.side**2 if shape.side else rows
        self.decoder = mlp(self.settings.n_features, self.settings.hidden, n_values, batch_norm=False)
        self.register_buffer("target", torch.full((shape.n_samples, config.n_clusters), 1 / config.n_clusters))

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.plain(),)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        embedding = self.online.embed(views[0])
        reconstruction = F.mse_loss(self.decoder(embedding), views[0].flatten(1))
        log_assignment, target = peer_losses.student_assignment(embedding, self.online.prototypes), self.target[samples]
        divergence = peer_losses.target_divergence(log_assignment, target)
        return Outcome(
            loss=torch.where(self.clustering, divergence, reconstruction),
            assignment=log_assignment.detach().exp(),
            key_assignment=target,  # of the epoch before: a step has only one view
            memory={},
            metrics={"reconstruction": reconstruction, "divergence": divergence},
        )

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Set the centres by k-means until the second stage begins; then compute the targets once an epoch."""
        self.online.eval()
        found = [(batch.samples, self.online.embed(batch.plain())) for batch in batches()]
        self.online.train()
        samples, embedding = torch.cat([pair[0] for pair in found]), torch.cat([pair[1] for pair in found])
        if not embedding.isfinite().all():
            raise InputError(
                "the reconstruction of dec has diverged: lower the rate, --set optimiser.learning_rate=..."
            )
        if not self.clustering:
            begins = self.is_due(self.settings.cluster_start)
            n_init = STARTS if begins else 1
            centres, _ = k_means(embedding, self.n_clusters, n_init=n_init, seed=self.seed + epoch)
            self.online.prototypes.copy_(centres)
            self.clustering.fill_(begins)
        # differs from the paper: targets change with each epoch, not after a number of steps that depends on the data
        log_assignment = [peer_losses.student_assignment(part, self.online.prototypes) for _, part in found]
        target = peer_losses.sharpened_target(torch.cat(log_assignment))
        changed = (target.argmax(1) != self.target[samples].argmax(1)).float().mean()
        self.target[samples] = target.to(self.target.dtype)
        return {"relabelled": float(changed)}
