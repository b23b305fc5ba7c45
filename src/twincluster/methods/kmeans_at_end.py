"""What methods share that learn features now and find clusters in them at the end, by k-means.

While they train, k-means on the newest features tells for the record where the clusters would be; nothing is learned
from it. Shapes: N batch, K clusters, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from twincluster.config import Config
from twincluster.memory import Queue, queue_size
from twincluster.methods.base import Batch, DataShape, Method, Network
from twincluster.methods.heads import Centres

RECENT = 4096  # features from which clusters are recorded while training


class CentresNetwork(Network):
    """A network whose clusters are the nearest of K centres in what it embeds."""

    centres: Centres

    def log_assign(self, images: Tensor) -> Tensor:
        log_assignment: Tensor = self.centres(self.embed(images))
        return log_assignment


class KmeansAtEnd(Method):
    """Base of these methods. The `memory` of a step holds the "features" (N,F), of unit norm, that k-means sees."""

    network_type: type[CentresNetwork]
    online: CentresNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.seed = config.seed
        self.online = self.network_type(config, shape)
        rows = queue_size(RECENT, shape.n_samples, config.train.batch_size)
        self.recent = Queue(rows, self.online.centres.directions.shape[1])

    def remember(self, memory: dict[str, Tensor]) -> None:
        self.recent.push(memory["features"])

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Clusters for the record alone."""
        self.online.centres.fit(self.recent.filled(), seed=self.seed + epoch)
        return {}

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        self.online.centres.settle(embed(self.online), seed=self.seed)
