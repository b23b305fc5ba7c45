"""Applying a network to data: in chunks, without augmentation, without gradients. Shapes: n samples, K clusters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from twincluster.images.store import Images
from twincluster.methods.base import Network

CHUNK_PIXELS = {"cpu": 256 * 32 * 32, "cuda": 2048 * 32 * 32}  # go through a network at once; a CPU gains by less
CHUNK_ROWS = 8192


def predict(network: Network, pixels: np.ndarray, rows: np.ndarray) -> Tensor:
    """q(k|x) of the given rows of `pixels`, (n,K) float32 on the CPU."""
    return _apply(network, network.log_assign, pixels, rows).exp()


def embed(network: Network, pixels: np.ndarray, rows: np.ndarray) -> Tensor:
    """Features of the given rows of `pixels`, (n,D) float32 on the CPU."""
    return _apply(network, network.embed, pixels, rows)


def spread(result: Tensor, images: Images) -> np.ndarray:
    """One row per input of what was found for those that could be read; nan for the others."""
    rows = result.new_full((len(images.status), result.shape[1]), torch.nan)
    rows[images.usable] = result
    return rows.numpy()


@torch.no_grad()
def _apply(network: Network, function: Callable[[Tensor], Tensor], pixels: np.ndarray, rows: np.ndarray) -> Tensor:
    device = network.mean.device
    chunk = max(1, CHUNK_PIXELS[device.type] // max(network.side, pixels.shape[1]) ** 2) if network.side else CHUNK_ROWS
    was_training = network.training
    network.eval()
    results = []
    for start in range(0, max(1, len(rows)), chunk):  # no rows at all give a result of no rows
        raw = torch.from_numpy(np.ascontiguousarray(pixels[rows[start : start + chunk]])).to(device)
        results.append(function(network.prepare(raw)).cpu())
    network.train(was_training)
    return torch.cat(results)
