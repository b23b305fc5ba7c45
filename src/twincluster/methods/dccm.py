"""DCCM: what a network already believes of pairs, of single images and of its own features teaches it the rest.

Wu et al. 2019, "Deep Comprehensive Correlation Mining for Image Clustering": a pseudo-graph, pseudo-labels and mutual
information, all of them found on the image and learned on its augmentation.
Shapes: N batch, K clusters, F backbone features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster import draws
from twincluster.config import Config, Count, Share, own_settings
from twincluster.methods import peer_losses
from twincluster.methods.base import Batch, DataShape, Method, Outcome
from twincluster.methods.dac import DacNetwork
from twincluster.methods.heads import mlp

PARTNER = 15  # stream of random numbers


@dataclass(frozen=True)
class DccmSettings:
    """For CIFAR-10, those of the authors' code but for beta."""

    graph_threshold: Share = 0.95  # cosine of two assignments that are one edge of the graph
    label_threshold: Share = 0.9  # of an assignment that is learned as a label
    label_weight: float = 5.0  # alpha
    information_weight: float = 0.1  # beta, .05 in the authors' code
    hidden: Count = 512  # width of the discriminator


class Dccm(Method):
    """DCCM: pseudo-graph, pseudo-labels and mutual information of features."""

    # differs from the paper: Adam or SGD in place of RMSprop
    # differs from the authors' code: labels are learned by the cross-entropy of those that are sure, not by a binary
    # one over all clusters; similarities are not divided by the largest of the batch

    network_type = DacNetwork
    settings_type = DccmSettings
    online: DacNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = own_settings(config, DccmSettings)
        self.online = DacNetwork(config, shape)
        self.discriminator = mlp(
            self.online.backbone.n_features + config.n_clusters, self.settings.hidden, 1, batch_norm=False
        )

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.plain()

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        s, both = self.settings, self.online.backbone_features(torch.cat(views))
        features, (log_q, log_plain) = both.chunk(2)[0], F.log_softmax(self.online.head(both), 1).chunk(2)
        q, plain = log_q.exp(), log_plain.detach().exp()  # (N,K) each
        similarity, known = (F.normalize(p, dim=1) @ F.normalize(p, dim=1).T for p in (q, plain))
        edge = known >= s.graph_threshold  # (N,N)
        graph = peer_losses.pair_loss(similarity, edge.to(q.dtype), torch.ones_like(edge))
        label = peer_losses.sure_label_loss(log_q, plain, s.label_threshold)
        information = self.information(features, q, edge, keys)
        return Outcome(
            loss=graph + s.label_weight * label + s.information_weight * information,
            assignment=q.detach(),
            key_assignment=plain,
            memory={},
            metrics={"graph_loss": graph, "label_loss": label, "information_loss": information},
        )

    def information(self, features: Tensor, assignment: Tensor, edge: Tensor, keys: Tensor) -> Tensor:
        """Assignments tell features of an image that the graph joins to theirs from those of one that it does not."""
        # differs from the paper: features are those of the whole image, where it has one vector for each place in a
        # layer further down; a backbone shows no others
        draw = draws.uniform(keys, PARTNER, len(keys)).to(features.dtype)  # (N,N)
        same, other = (torch.where(among, draw, -1.0).argmax(1) for among in (edge, ~edge))
        true, false = (
            self.discriminator(torch.cat([features[partner], assignment], 1)).squeeze(1) for partner in (same, other)
        )
        return peer_losses.discrimination_loss(true, false, (~edge).any(1))
