"""Batches for the trainer: from memory on the device when the data fits there, otherwise read ahead by threads.

Both fill the same two buffers with the same samples in the same order, so a run does not depend on which is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from twincluster.data.images import Images

DEVICE_SHARE = 0.5  # of the free memory of a GPU that the data may take
READ_AHEAD = 4  # batches


class Feed:
    """Fills `samples` (N,) and `images` (N,...) with one batch after another.

    `resident` says whether the images lie on the device; left out, they do where a GPU has the room.
    """

    def __init__(
        self, images: Images, batch_size: int, seed: int, device: torch.device, *, resident: bool | None = None
    ) -> None:
        self.n_samples, self.batch_size, self.seed, self.device = len(images.usable), batch_size, seed, device
        self.steps_per_epoch = self.n_samples // batch_size  # the rest of an epoch's order waits for another epoch
        self._pixels, self._rows = images.pixels, images.usable
        self.samples = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.images = torch.zeros((batch_size, *images.pixels.shape[1:]), dtype=_dtype(images.pixels), device=device)
        resident = _fits(images, device) if resident is None else resident
        self._resident = self._to_device() if resident else None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[None]:
        """Fill the buffers with batch after batch of an epoch, from step `start` on."""
        order = self.order(epoch)
        batches = torch.split(order.to(self.device), self.batch_size)[start : self.steps_per_epoch]
        if self._resident is not None:
            for batch in batches:
                self.samples.copy_(batch)
                torch.index_select(self._resident, 0, batch, out=self.images)
                yield
            return
        rows = [self._rows[batch.numpy()] for batch in torch.split(order, self.batch_size)]
        with closing(read_ahead(self._pixels, rows[start : self.steps_per_epoch], self.device)) as stream:
            for batch, images in zip(batches, stream, strict=True):
                self.samples.copy_(batch)
                self.images.copy_(images)
                yield

    def whole(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield samples and images of all of the data once, in the order of an epoch.

        Samples that fill no batch share two batches of equal size with those of the last full one.
        """
        batches = list(torch.split(self.order(epoch), self.batch_size))
        if len(batches) > self.steps_per_epoch:
            batches[-2:] = torch.cat(batches[-2:]).chunk(2)
        if self._resident is not None:
            resident = self._resident
            yield from ((batch, resident[batch]) for batch in (batch.to(self.device) for batch in batches))
            return
        with closing(read_ahead(self._pixels, [self._rows[batch.numpy()] for batch in batches], self.device)) as stream:
            for batch, images in zip(batches, stream, strict=True):
                yield batch.to(self.device), images.clone()

    def order(self, epoch: int) -> Tensor:
        """The permutation of an epoch: a function of seed and epoch alone, on every device."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        return torch.randperm(self.n_samples, generator=generator)

    def _to_device(self) -> Tensor:
        everything = np.array_equal(self._rows, np.arange(len(self._pixels)))
        pixels = np.ascontiguousarray(self._pixels if everything else self._pixels[self._rows])
        if self.device.type == "cpu" and pixels.flags.writeable:
            return torch.from_numpy(pixels)  # where it lies already
        return torch.tensor(pixels, device=self.device)


def read_ahead(pixels: np.ndarray, parts: Sequence[np.ndarray], device: torch.device) -> Generator[Tensor, None, None]:
    """The rows of `pixels` that each part names, on the device; what is yielded holds until the next is asked for.

    Threads gather a few parts ahead into buffers that are used again and again. For a GPU these are pinned, and copied
    on a stream of their own while the device still computes on the part before. The host waits only for a buffer to
    be filled, which is to say when it is READ_AHEAD parts ahead of the device, or the disk is slower than that.
    """
    pixels, most = np.asarray(pixels), max(map(len, parts), default=0)
    buffers = [_Buffer(pixels, most, device) for _ in parts[:READ_AHEAD]]
    if not buffers:
        return
    landing = _Landing(buffers[0].content, device) if device.type == "cuda" else None
    gpu = torch.cuda.current_device() if landing else None
    with ThreadPoolExecutor(len(buffers), initializer=_begin_reading, initargs=(gpu,)) as readers:
        first = zip(buffers, parts[:READ_AHEAD], strict=True)
        waiting = deque((buffer, readers.submit(buffer.fill, pixels, part)) for buffer, part in first)
        for _, later in zip_longest(parts, parts[READ_AHEAD:]):
            buffer, filled = waiting.popleft()
            content = filled.result()
            yield landing.take(content, buffer) if landing else content
            if later is not None:
                waiting.append((buffer, readers.submit(buffer.fill, pixels, later)))


def _begin_reading(gpu: int | None) -> None:
    if gpu is not None:
        torch.cuda.set_device(gpu)  # a thread that waits for another one would wake up the first, and take memory there


class _Buffer:
    """Room for one part in the memory of the host."""

    def __init__(self, pixels: np.ndarray, rows: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.content = torch.empty((rows, *pixels.shape[1:]), dtype=_dtype(pixels), pin_memory=on_gpu)
        self.copied = _event() if on_gpu else None  # when the GPU has what was in here

    def fill(self, pixels: np.ndarray, rows: np.ndarray) -> Tensor:
        """Runs in a thread; both ways of copying let the others go on meanwhile."""
        if self.copied is not None:
            self.copied.synchronize()
        content = self.content[: len(rows)]
        if pixels.flags.c_contiguous and len(rows):
            if rows.max() >= len(pixels):  # as after a file was cut short: taking would repeat the last row
                raise IndexError(f"row {rows.max()} of {len(pixels)}")
            np.take(pixels, rows, axis=0, out=content.numpy(), mode="clip")  # other modes copy twice
        else:
            content.numpy()[...] = pixels[rows]  # taking would make a copy of all of them first
        return content


class _Landing:
    """Two buffers on a GPU in turn: while the device computes on one, the other is filled by a stream beside it."""

    def __init__(self, like: Tensor, device: torch.device) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())  # which may still use what this memory held before
        self.places = deque((torch.empty_like(like, device=device), _event()) for _ in range(2))
        self.used: torch.cuda.Event | None = None  # of the place that was given away last

    def take(self, content: Tensor, buffer: _Buffer) -> Tensor:
        """The content on the device, for the current stream until the next call."""
        current = torch.cuda.current_stream()
        if self.used is not None:
            self.used.record(current)
        place, self.used = self.places[0]
        self.places.rotate(1)
        self.stream.wait_event(self.used)  # no wait for a place that was never used
        with torch.cuda.stream(self.stream):
            landed = place[: len(content)].copy_(content, non_blocking=True)
            assert buffer.copied is not None, "buffers for a GPU know when it has their content"
            buffer.copied.record(self.stream)
        current.wait_event(buffer.copied)
        return landed


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # whoever waits leaves the core to others


def _fits(images: Images, device: torch.device) -> bool:
    if device.type != "cuda":
        return False  # a CPU reads the memory map itself
    free, _ = torch.cuda.mem_get_info(device)
    return bool(images.pixels.nbytes < DEVICE_SHARE * free)


def _dtype(pixels: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.empty(0, pixels.dtype)).dtype
