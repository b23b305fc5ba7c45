"""DAC: pairs of images that are clearly alike, or clearly not, teach the network until every pair is one or the other.

Chang et al. 2017, "Deep Adaptive Image Clustering". Assignments of unit norm are compared by their cosine, and two
thresholds on it move towards each other. Shapes: N batch, K clusters, F backbone features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Share, own_settings
from twincluster.methods import peer_losses
from twincluster.methods.base import Batch, DataShape, Method, Network, Outcome

RISE = 0.1  # how much the lower threshold rises while the upper one falls by 1


@dataclass(frozen=True)
class DacSettings:
    """Thresholds u = .95 - lambda and l = .455 + .1 lambda, until they meet."""

    upper: Share = 0.95  # u, above which a pair is alike, when training begins
    lower: Share = 0.455  # l, below which it is not


class DacNetwork(Network):
    """Backbone, and a layer whose batch-norm keeps assignments from being all alike at the start."""

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
    """DAC: pairs become labels by two thresholds that meet when the run ends."""

    # differs from the paper: Adam or SGD in place of RMSprop
    # differs from the authors' code: other thresholds, and no second loss that holds assignments to what they were

    network_type = DacNetwork
    settings_type = DacSettings
    online: DacNetwork
    shift: Tensor  # () lambda

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings = own_settings(config, DacSettings)
        self.online = DacNetwork(config, shape)
        self.register_buffer("shift", torch.zeros(()))

    def schedule(self, epoch: int, progress: float) -> None:
        # lambda grows by the same amount in each epoch, as in the paper, which ends where the thresholds meet
        gap = max(0.0, self.settings.upper - self.settings.lower)
        self.shift.fill_(progress * gap / (1 + RISE))

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.plain()

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        # as in the authors' code: pairs are labelled by the images as they are, and learned by augmented ones
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
