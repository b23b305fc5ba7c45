"""What a network sees of rows besides noise: their principal components, and neighbours as second views.

A neighbour is a second view of a row where little more than noise can be done to its numbers.
Shapes: n rows, N batch, M rows of the pool that neighbours come from, k neighbours, d columns, C components.
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

WHICH = 40  # stream of the draws that choose a neighbour, beside those of the engine
IN_MEMORY = 2**31  # bytes of rows up to which all are prepared before training: more may be all that memory holds


@torch.no_grad()
def rotate(method: Method, images: Images) -> None:
    """Give the networks that see principal components the directions (d,C) of these rows.

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
    """What fills batches, and what is shown of them. Of rows both hold what the network makes of them, so that they are
    made anew when its directions change (`Shown.outdated`)."""
    device, width = network.mean.device, len(network.mean) if network.rotation is None else network.rotation.shape[1]
    once = not network.side and len(images.pixels) * width * network.mean.element_size() <= IN_MEMORY
    if once:
        images = as_seen(images, network, width)
    # rows are in memory now, where no thread need fetch them; whether a GPU has the room, the feed decides
    at_hand = True if once and device.type == "cpu" else None
    feed = Feed(images, config.train.batch_size, config.seed, device, resident=at_hand)
    return feed, Shown(images, network, prepared=once, neighbours=config.augment.neighbours)


@torch.no_grad()
def as_seen(images: Images, network: Network, width: int) -> Images:
    """Rows as the network sees them before augmentation, (n,width): standardised and turned once, where each step would
    do it again, to more numbers than all the rest of it."""
    seen = torch.empty((len(images.pixels), width), dtype=network.mean.dtype)
    parts = max(1, -(-len(seen) // CHUNK))
    for place, part in zip(seen.tensor_split(parts), np.array_split(images.pixels, parts), strict=True):
        place.copy_(network.prepare(torch.from_numpy(np.array(part)).to(network.mean.device)))
    return replace(images, pixels=seen.numpy())


class Shown:
    """What the views of a batch start from: images as they are, rows as the network sees them. Later views of a row
    show one of so many nearest `neighbours` in its place, where there are any. `prepared`: rows come as they are seen.
    """

    nearest: Tensor | None = None  # (n,k) int64, places in the pool
    pool: Tensor  # (M,C) rows as they are seen

    def __init__(self, images: Images, network: Network, *, prepared: bool, neighbours: int) -> None:
        self.network, self.prepared = network, prepared
        self._made_by = [part.clone() for part in self._preparation()]
        if neighbours and not network.side and len(images.usable) > 1:
            step = pool_step(len(images.usable))
            self.pool = torch.cat(list(self._parts(images, images.usable[::step])))
            self.nearest = nearest_in_pool(self._parts(images, images.usable), self.pool, step, neighbours)

    def plain(self, images: Tensor) -> Tensor:
        """A batch without augmentation."""
        return images.clone() if self.prepared else self.network.prepare(images)

    def view(self, images: Tensor, samples: Tensor, keys: Tensor, view: int) -> Tensor:
        """What a view (0 is the first) of these samples starts from, of which the feed gave `images`."""
        if self.nearest is not None and view > 0:
            column = (draws.uniform(keys, WHICH + view, 1) * self.nearest.shape[1]).long()  # (N,1)
            return self.pool[self.nearest[samples].gather(1, column)[:, 0]]
        return images if self.prepared or self.network.side else self.network.prepare(images)

    def outdated(self) -> bool:
        """Whether the network makes something else of rows by now: a checkpoint, or another process, had the say."""
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
