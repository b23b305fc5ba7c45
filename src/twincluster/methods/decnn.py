"""A deconvolutional network, and k-means on its maps: an image is a sum of filters, of which only few are in use.

Zeiler et al. 2010, "Deconvolutional Networks". Shapes: N batch, K clusters, M maps, B their side, D = M B B.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.config import Config, Count, Positive, own_settings
from twincluster.methods import generative_losses
from twincluster.methods.base import Batch, DataShape, Outcome
from twincluster.methods.decoder import Enlarge, map_shape
from twincluster.methods.heads import Centres
from twincluster.methods.kmeans_at_end import CentresNetwork, KmeansAtEnd


@dataclass(frozen=True)
class DecnnSettings:
    """Sizes and weight are ours."""

    width: Count = 16  # maps before the last layer; twice as many before the one before it, and so on
    sparsity: Positive = 0.2  # weight of the magnitude of maps, the inverse of the paper's lambda


class DecnnNetwork(CentresNetwork):
    """Backbone, a linear layer to sparse maps, and the centres of k-means on them."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings = own_settings(config, DecnnSettings)
        self.sparsity, self.map_shape = settings.sparsity, map_shape(self.side, settings.width)
        n_values = self.map_shape[0] * self.map_shape[1] * self.map_shape[2]  # D
        self.head = nn.Linear(self.backbone.n_features, n_values)
        self.centres = Centres(config.n_clusters, n_values)

    def maps(self, images: Tensor) -> Tensor:
        """(N,D), many of them 0."""
        # differs from the paper: the backbone says at once what the maps are, where the paper searches those of least
        # cost image by image. Shrinking is the last thing that each step of that search does.
        return F.softshrink(self.head(self.backbone_features(images)), self.sparsity)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.maps(images), dim=1)


class Decnn(KmeansAtEnd):
    """A deconvolutional network with sparse maps, and k-means on them at the end."""

    network_type = DecnnNetwork
    settings_type = DecnnSettings
    online: DecnnNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = own_settings(config, DecnnSettings)
        # differs from the paper: all layers learn together, and only the topmost maps are sparse
        self.filters = Enlarge(self.online, self.settings.width, linear=True)
        self.unit_filters()

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.plain(),)  # what is to be rebuilt is the image itself

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        maps = self.online.maps(views[0])
        rebuilt = self.filters(maps.view(-1, *self.online.map_shape))
        unit = F.normalize(maps.detach(), dim=1)
        q = self.online.centres(unit).exp()
        return Outcome(
            loss=generative_losses.sparse_cost(rebuilt, views[0], maps, self.settings.sparsity),
            assignment=q,
            key_assignment=q,  # there is no other view that could disagree
            memory={"features": unit},
            metrics={"in_use": (maps != 0).float().mean()},
        )

    def remember(self, memory: dict[str, Tensor]) -> None:
        super().remember(memory)
        self.unit_filters()

    @torch.no_grad()
    def unit_filters(self) -> None:
        """Each map's filters have unit norm: long filters would make small maps of any image."""
        for filters in self.filters.parameters():  # (maps in, maps out, height, width)
            filters.div_(filters.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1))
