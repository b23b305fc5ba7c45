"""Views of rows: principal components, and nearest neighbours as second views.

A neighbour is a second view because adding noise is almost the only augmentation for rows. Shapes: n rows, N batch, M
rows of the pool of neighbours, k neighbours, d columns, C components.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from twincluster.clustering import CHUNK, nearest_in_pool, pool_step, principal_directions
from twincluster.config import Config
from twincluster.data import Feed, Images
from twincluster.methods import Method, Network
from twincluster.nn import draws

WHICH = 40  # stream of the draws that choose a neighbour
IN_MEMORY = 2**31  # most bytes of rows to prepare before training; more may not fit in memory


@torch.no_grad()
def rotate(method: Method, images: Images) -> None:
    """Set the principal directions (d,C) of networks that take components of the rows.

    The components keep their proportions; together they have a mean variance of one, so that noise has a known size.
    """
    networks = [part for part in method.modules() if isinstance(part, Network) and part.rotation is not None]
    if not networks:
        return
    sample = images.usable[:: pool_step(len(images.usable))]
    raw = torch.from_numpy(np.array(images.pixels[sample])).to(networks[0].mean.device)
    rows = networks[0].standardise(raw)
    variance, directions = principal_directions(rows)
    for network in networks:
        assert network.rotation is not None
        count = network.rotation.shape[1]
        scale = variance[-count:].clamp(min=0).mean().sqrt().clamp(min=1e-6)
        network.rotation.copy_(directions[:, -count:].flip(1) / scale)


def feed_and_shown(config: Config, images: Images, network: Network) -> tuple[Feed, Shown]:
    """Return the feed of batches, and the views of them.

    Both hold rows as the network prepares them, so they are rebuilt when its directions change (`Shown.outdated`).
    """
    device, width = network.mean.device, len(network.mean) if network.rotation is None else network.rotation.shape[1]
    once = not network.side and len(images.pixels) * width * network.mean.element_size() <= IN_MEMORY
    if once:
        images = prepare_rows(images, network, width)
    # prepared rows are in memory and need no reader threads; for a GPU the feed decides
    at_hand = True if once and device.type == "cpu" else None
    feed = Feed(images, config.train.batch_size, config.seed, device, resident=at_hand)
    return feed, Shown(images, network, prepared=once, neighbours=config.augment.neighbours)


@torch.no_grad()
def prepare_rows(images: Images, network: Network, width: int) -> Images:
    """Prepare all rows once instead of in each step: standardised and rotated, (n,width)."""
    seen = torch.empty((len(images.pixels), width), dtype=network.mean.dtype)
    parts = max(1, -(-len(seen) // CHUNK))
    for place, part in zip(seen.tensor_split(parts), np.array_split(images.pixels, parts), strict=True):
        place.copy_(network.prepare(torch.from_numpy(np.array(part)).to(network.mean.device)))
    return replace(images, pixels=seen.numpy())


class Shown:
    """The starting point of views: images as they are, rows as the network prepares them.

    With `neighbours`, later views of a row start from one of that many nearest rows. `prepared`: rows are prepared
    already.
    """

    nearest: Tensor | None = None  # (n,k) int64, indices into the pool
    pool: Tensor  # (M,C) prepared rows

    def __init__(self, images: Images, network: Network, *, prepared: bool, neighbours: int) -> None:
        self.network, self.prepared = network, prepared
        self._made_by = [part.clone() for part in self._preparation()]
        if neighbours and not network.side and len(images.usable) > 1:
            step = pool_step(len(images.usable))
            self.pool = torch.cat(list(self._parts(images, images.usable[::step])))
            self.nearest = nearest_in_pool(self._parts(images, images.usable), self.pool, step, neighbours)

    def plain(self, images: Tensor) -> Tensor:
        """Return a batch without augmentation."""
        return images.clone() if self.prepared else self.network.prepare(images)

    def view(self, images: Tensor, samples: Tensor, keys: Tensor, view: int) -> Tensor:
        """Return the input of view number `view` (0 is the first) of these samples; the feed gave their `images`."""
        if self.nearest is not None and view > 0:
            column = (draws.uniform(keys, WHICH + view, 1) * self.nearest.shape[1]).long()  # (N,1)
            return self.pool[self.nearest[samples].gather(1, column)[:, 0]]
        return images if self.prepared or self.network.side else self.network.prepare(images)

    def outdated(self) -> bool:
        """Return True if the network now prepares rows differently: a checkpoint or another process changed its
        directions.
        """
        return not all(torch.equal(*pair) for pair in zip(self._made_by, self._preparation(), strict=True))

    def _preparation(self) -> list[Tensor]:
        network = self.network
        held = () if network.side else (network.mean, network.std, network.rotation)
        return [part for part in held if part is not None]

    @torch.no_grad()
    def _parts(self, images: Images, rows: np.ndarray) -> Iterator[Tensor]:
        for start in range(0, len(rows), CHUNK):
            part = torch.from_numpy(images.pixels[rows[start : start + CHUNK]]).to(self.network.mean.device)
            yield part if self.prepared else self.network.prepare(part)
