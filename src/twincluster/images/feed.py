"""Batches for the trainer: from memory on the device when the data fits there, otherwise read ahead by a thread.

Both fill the same two buffers with the same samples in the same order, so a run does not depend on which is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from twincluster.images.store import Images

DEVICE_SHARE = 0.5  # of the free memory of a GPU that the data may take
READ_AHEAD = 4  # batches


class Feed:
    """Fills `samples` (N,) and `images` (N,...) with one batch after another."""

    def __init__(self, images: Images, batch_size: int, seed: int, device: torch.device) -> None:
        self.n_samples, self.batch_size, self.seed, self.device = len(images.usable), batch_size, seed, device
        self.steps_per_epoch = self.n_samples // batch_size  # the rest of an epoch's order waits for another epoch
        self._pixels, self._rows = images.pixels, images.usable
        self.samples = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.images = torch.zeros(
            (batch_size, *images.pixels.shape[1:]), dtype=_torch_dtype(images.pixels), device=device
        )
        self._resident = self._to_device() if _fits(images, device) else None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[None]:
        """Fill the buffers with batch after batch of an epoch, from step `start` on."""
        order = self.order(epoch)
        if self._resident is not None:
            for batch in torch.split(order.to(self.device), self.batch_size)[start : self.steps_per_epoch]:
                self.samples.copy_(batch)
                torch.index_select(self._resident, 0, batch, out=self.images)
                yield
            return
        batches = torch.split(order, self.batch_size)[start : self.steps_per_epoch]
        with ThreadPoolExecutor(READ_AHEAD) as readers:
            waiting = deque(readers.submit(self._read, batch) for batch in batches[:READ_AHEAD])
            for batch, later in zip_longest(batches, batches[READ_AHEAD:]):
                self.images.copy_(waiting.popleft().result(), non_blocking=True)
                self.samples.copy_(batch, non_blocking=True)
                if later is not None:
                    waiting.append(readers.submit(self._read, later))
                yield

    def order(self, epoch: int) -> Tensor:
        """The permutation of an epoch: a function of seed and epoch alone, on every device."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        return torch.randperm(self.n_samples, generator=generator)

    def _read(self, batch: Tensor) -> Tensor:
        images = torch.from_numpy(self._pixels[self._rows[batch.numpy()]])
        return images.pin_memory() if self.device.type == "cuda" else images

    def _to_device(self) -> Tensor:
        everything = np.array_equal(self._rows, np.arange(len(self._pixels)))
        pixels = np.ascontiguousarray(self._pixels if everything else self._pixels[self._rows])
        return torch.tensor(pixels, device=self.device)


def _fits(images: Images, device: torch.device) -> bool:
    if device.type != "cuda":
        return False  # a CPU reads the memory map itself
    free, _ = torch.cuda.mem_get_info(device)
    return bool(images.pixels.nbytes < DEVICE_SHARE * free)


def _torch_dtype(pixels: np.ndarray) -> torch.dtype:
    return torch.uint8 if pixels.dtype == np.uint8 else torch.float32
