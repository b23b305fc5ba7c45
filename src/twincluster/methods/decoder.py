"""The way back from a code to an image, or a row: few pixels of many maps, made twice as large until they fit.

It is the generator of Radford et al. 2016, at any size. Shapes: N batch, D code, M maps, B side of the first maps,
C channels, S side of an image.
"""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from twincluster.methods.base import Network

FIRST_SIDE = 4  # of maps, at most
MOST_MAPS = 512


class Decoder(nn.Module):
    """Codes (N,D) in; what `network` sees out: standardised images (N,C,S,S) or rows (N,C)."""

    def __init__(self, n_code: int, network: Network, width: int) -> None:
        super().__init__()
        self.shape = map_shape(network.side, width)
        n_values = self.shape[0] * self.shape[1] * self.shape[2]
        self.start = nn.Sequential(nn.Linear(n_code, n_values, bias=False), nn.BatchNorm1d(n_values), nn.ReLU())
        self.enlarge = Enlarge(network, width)

    def forward(self, code: Tensor) -> Tensor:
        decoded: Tensor = self.enlarge(self.start(code).view(-1, *self.shape))
        return decoded


class Enlarge(nn.Module):
    """From maps (N,M,B,B) to images, or to rows, which are images of one pixel with a channel for each feature.

    `linear` leaves out what stands between the layers: an image is then a sum of filters, and maps are their weights.
    """

    def __init__(self, network: Network, width: int, linear: bool = False) -> None:
        super().__init__()
        self.side = network.side
        n_outputs = len(network.mean) if network.rotation is None else network.rotation.shape[1]
        sizes, layers = layer_sizes(self.side, width), []
        for n_inputs, n_maps in itertools.pairwise(sizes):
            layers.append(self._double(n_inputs, n_maps, bias=False))
            layers += [] if linear else [nn.BatchNorm2d(n_maps), nn.ReLU()]
        self.layers = nn.Sequential(*layers, self._double(sizes[-1], n_outputs, bias=not linear))

    def forward(self, maps: Tensor) -> Tensor:
        decoded: Tensor = self.layers(maps)
        if not self.side:
            return decoded.flatten(1)
        start = (decoded.shape[2] - self.side) // 2  # there are pixels to spare where the side cannot be halved
        return decoded[:, :, start : start + self.side, start : start + self.side]

    def _double(self, n_inputs: int, n_outputs: int, bias: bool) -> nn.Module:
        size, stride, padding = (4, 2, 1) if self.side else (1, 1, 0)
        return nn.ConvTranspose2d(n_inputs, n_outputs, size, stride, padding, bias=bias)


def map_shape(side: int, width: int) -> tuple[int, int, int]:
    """(M,B,B), where a decoder of images of this side (0: rows) begins."""
    first_maps, *others = layer_sizes(side, width)
    first_side = -(-side // 2 ** (1 + len(others))) if side else 1
    return first_maps, first_side, first_side


def layer_sizes(side: int, width: int) -> list[int]:
    """How many maps there are before each doubling: `width` before the last one, and each time half as many."""
    doublings = 1
    while side > FIRST_SIDE * 2**doublings:
        doublings += 1
    return [min(MOST_MAPS, width * 2**step) for step in reversed(range(doublings))]
