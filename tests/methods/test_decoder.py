"""The decoder: whatever the network sees comes out, at any size; and without what stands between, it is linear."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from small_peers import method_of
from twincluster.methods.peers.generative import Decoder, Enlarge, layer_sizes, map_shape


def network_of(side: int, n_channels: int = 3, components: int = 0) -> Any:
    rotation = torch.eye(n_channels, components) if components else None
    return SimpleNamespace(side=side, mean=torch.zeros(n_channels), rotation=rotation)


@pytest.mark.parametrize("side", [1, 2, 5, 8, 12, 28, 33])
def test_images_of_any_side(side: int) -> None:
    assert Decoder(6, network_of(side), width=2)(torch.zeros(4, 6)).shape == (4, 3, side, side)


def test_rows_and_their_principal_components() -> None:
    assert Decoder(6, network_of(0, 7), width=2)(torch.zeros(4, 6)).shape == (4, 7)
    assert Decoder(6, network_of(0, 7, components=5), width=2)(torch.zeros(4, 6)).shape == (4, 5)


def test_maps_double_and_their_number_halves() -> None:
    assert map_shape(32, 64) == (256, 4, 4)  # and 128 of 8, 64 of 16, 3 of 32
    assert layer_sizes(32, 64) == [256, 128, 64]
    assert map_shape(12, 64) == (128, 3, 3)
    assert map_shape(0, 64) == (64, 1, 1)
    assert layer_sizes(224, 64) == [512, 512, 512, 256, 128, 64]


@pytest.mark.parametrize("side", [0, 8, 10])
def test_a_linear_one_adds_up(side: int) -> None:
    enlarge = Enlarge(network_of(side, 5 if side == 0 else 3), 4, linear=True).double()
    one, two = torch.randn(2, 3, *map_shape(side, 4), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(enlarge(2 * one - two), 2 * enlarge(one) - enlarge(two))


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_it_fits_the_network_of_a_run(kind: str) -> None:
    method = method_of("ae", kind=kind)
    shape = (2, 3, 8, 8) if kind == "images" else (2, 5)
    assert method.decoder(method.online.code(torch.ones(shape, dtype=torch.float64))).shape == shape
