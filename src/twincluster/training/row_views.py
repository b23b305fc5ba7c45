"""What a network sees of rows besides noise: their principal components, and neighbours as second views.

A neighbour is a second view of a row where little more than noise can be done to its numbers.
Shapes: n rows, N batch, k neighbours, d columns, C components.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from twincluster import draws
from twincluster.clusters.assign import principal_directions
from twincluster.clusters.neighbours import CHUNK, POOL, nearest_rows
from twincluster.config import Config
from twincluster.images.feed import Feed
from twincluster.images.store import Images
from twincluster.methods.base import Method, Network

WHICH = 40  # stream of the draws that choose a neighbour, beside those of the engine


@torch.no_grad()
def rotate(method: Method, images: Images) -> None:
    """Give the networks that see principal components the directions (d,C) of these rows.

    The components keep their proportions; together they have a mean variance of one, so that noise has a known size.
    """
    networks = [part for part in method.modules() if isinstance(part, Network) and part.rotation is not None]
    if not networks:
        return
    sample = images.usable[:: -(-len(images.usable) // POOL)]
    mean, std = networks[0].mean, networks[0].std
    rows = (torch.from_numpy(np.array(images.pixels[sample])).to(mean.device) - mean) / std
    variance, directions = principal_directions(rows)
    for network in networks:
        assert network.rotation is not None
        count = network.rotation.shape[1]
        scale = variance[-count:].clamp(min=0).mean().sqrt().clamp(min=1e-6)
        network.rotation.copy_(directions[:, -count:].flip(1) / scale)


def feed_and_neighbours(config: Config, images: Images, network: Network) -> tuple[Feed, Neighbours]:
    """What fills batches, and what their later views show. Of rows both hold what the network makes of them, so that
    they are made anew when its directions change."""
    images, device = as_seen(images, network), network.mean.device
    # rows are in memory now, where no thread need fetch them; whether a GPU has the room, the feed decides
    at_hand = True if device.type == "cpu" and not network.side else None
    feed = Feed(images, config.train.batch_size, config.seed, device, resident=at_hand)
    return feed, Neighbours(images, config.augment.neighbours, network)


@torch.no_grad()
def as_seen(images: Images, network: Network) -> Images:
    """Rows as the network sees them before augmentation: standardised and turned once, where each step would do it
    again, to more numbers than all the rest of it. Images stay as they are."""
    if network.side:
        return images
    width = images.pixels.shape[1] if network.rotation is None else network.rotation.shape[1]
    seen = torch.empty((len(images.pixels), width), dtype=network.mean.dtype)
    parts = max(1, -(-len(seen) // CHUNK))
    for place, part in zip(seen.tensor_split(parts), np.array_split(images.pixels, parts), strict=True):
        place.copy_(network.prepare(torch.from_numpy(np.array(part)).to(network.mean.device)))
    return replace(images, pixels=seen.numpy())


class Neighbours:
    """What the later views of a sample show: one of its `count` nearest rows, or, for 0 and for images, itself.

    Rows are those that `as_seen` gives.
    """

    def __init__(self, images: Images, count: int, network: Network) -> None:
        self.nearest: Tensor | None = None  # (n,k) int64
        if count and not network.side and len(images.usable) > 1:
            self.rows = torch.from_numpy(images.pixels[images.usable]).to(network.mean.device)  # (n,d)
            self.nearest = nearest_rows(self.rows, count)

    def shown(self, images: Tensor, samples: Tensor, keys: Tensor, view: int) -> Tensor:
        """What a view (0 is the first) of these samples starts from: `images`, their own, or rows of neighbours."""
        if self.nearest is None or view == 0:
            return images
        column = (draws.uniform(keys, WHICH + view, 1) * self.nearest.shape[1]).long()  # (N,1)
        return self.rows[self.nearest[samples].gather(1, column)[:, 0]]
