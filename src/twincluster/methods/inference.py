"""Applying a network to data: in chunks, without augmentation, without gradients. Shapes: n samples, K clusters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from twincluster.data import Images, read_ahead
from twincluster.methods.base import Network

CHUNK_PIXELS = {"cpu": 256 * 32 * 32, "cuda": 2048 * 32 * 32}  # go through a network at once; a CPU gains by less
CHUNK_ROWS = 8192
BEHIND = 3  # results that may be on their way from a GPU before the host waits for one


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
    was_training = network.training
    network.eval()
    size = chunk_size(network, pixels)
    parts = [rows[start : start + size] for start in range(0, max(1, len(rows)), size)]  # no rows give a result of none
    with closing(read_ahead(pixels, parts, network.mean.device)) as chunks:
        results = list(_on_host(function(network.prepare(raw)) for raw in chunks))
    network.train(was_training)
    return torch.cat(results)


def chunk_size(network: Network, pixels: np.ndarray) -> int:
    """Samples that go through a network at once."""
    if not network.side:
        return CHUNK_ROWS
    side: int = max(network.side, pixels.shape[1])
    return max(1, CHUNK_PIXELS[network.mean.device.type] // side**2)


def _on_host(found: Iterable[Tensor]) -> Iterator[Tensor]:
    """Results, moved to the CPU; the host waits for a GPU only when that is BEHIND chunks ahead of it."""
    waiting: deque[tuple[Tensor, torch.cuda.Event]] = deque()
    for result in found:
        if not result.is_cuda:
            yield result
            continue
        pinned = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        pinned.copy_(result, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        waiting.append((pinned, copied))
        if len(waiting) > BEHIND:
            yield _copied(*waiting.popleft())
    for pinned, copied in waiting:
        yield _copied(pinned, copied)


def _copied(pinned: Tensor, copied: torch.cuda.Event) -> Tensor:
    copied.synchronize()
    return pinned.clone()  # in ordinary memory, of which there is more
