"""What the trainer reads: one row of pixels, or of numbers, for every input of a source, and batches of these rows.

Arrays are used where they are, unless they are far larger than asked for; files are decoded once into a memory-mapped
store, which the next run opens at once.

Images of an array that are much larger than training needs are made smaller once, as files are when they are decoded:
a crop is sampled bilinearly, which skips pixels of an image that is several times as large as the view. Few images are
held in memory; of more a copy is kept in the cache, and the next run opens it once it has read the array through: a
copy is known by all bytes of what it was made of. The copies last used stay, older ones make room for new ones.

Batches come from memory on the device when the data fits there, otherwise they are read ahead by threads. Both fill the
same two buffers with the same samples in the same order, so a run does not depend on which is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from twincluster.core import InputError, OnProgress, available_cores, write_atomically
from twincluster.data.decoding import DEFAULT_SIDE, Frame, filled_side, letterboxed, may_pass, square
from twincluster.data.listing import Input, Listing, cache_folder, digest_of
from twincluster.data.pool import decode_few
from twincluster.data.store import (
    Outcome,
    Row,
    Store,
    Sums,
    build,
    explained,
    npy_header,
    only_one,
    read_sums,
    record,
    recorded,
    short_hash,
    state_of,
    sums_of,
)

VERSION = 4  # of the files and of what decoding.py makes of an image: another number, another store
HASHED_BYTES = 1 << 28  # most bytes of an array to hash for its fingerprint
HASHED_ROWS = 4096  # at once
_BOOLEAN = {True: "true", False: "false"}  # as JSON writes them
_FRAMED: dict[Frame, str] = {"crop": "", "letterbox": " letterbox"}  # in a fingerprint


@dataclass(frozen=True, eq=False)
class Images:
    """The input of the trainer: one row per input, in the order of the listing."""

    listing: Listing
    pixels: np.ndarray  # (n,s,s,3) uint8, memory-mapped or the caller's own; (n,d) float32 for rows
    status: tuple[str, ...]  # "ok", or the reason why the row is black
    usable: np.ndarray  # int64, rows to train on
    fingerprint: str  # SHA-256 of the data, independent of its location
    pictures: np.ndarray | None = None  # (n,s,s,3), if `pixels` are an encoder's features of them
    widths: tuple[int, ...] = ()  # columns of each, where several encoders made them

    @property
    def is_rows(self) -> bool:
        return self.pixels.ndim == 2

    @property
    def side(self) -> int:
        """Pixels a side; 0 for rows."""
        return 0 if self.is_rows else int(self.pixels.shape[1])


def open_images(
    listing: Listing,
    *,
    side: int = 0,
    array_side: int = 0,
    frame: Frame = "crop",
    cache: Path | None = None,
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> Images:
    """Read the pixels of a listing.

    Arrays keep their size and are used in place, as views: grey and four-channel images become three channels, oblong
    ones their centre square. A letterbox makes a copy, and so do images much larger than `array_side`, which are
    resized to it (0: never).

    Files are decoded at side x side pixels (0: 96) by `workers` processes (None: one per core; 1: in this process),
    into `cache`, else $TWINCLUSTER_CACHE, else ~/.cache/twincluster/store. A few files named from Python are not cached
    (Listing.is_passing). A file that cannot be read keeps its row, black, with a status. `progress` receives (rows
    done, rows in all).
    """
    workers, progress = workers or min(available_cores(), MOST_WORKERS), progress or (lambda done, total: None)
    if listing.array is not None:
        small = partial(shrunk, side=array_side, frame=frame, workers=workers, cache=cache, progress=progress)
        return _of_array(listing, listing.array, array_side, frame, small)
    side = side or DEFAULT_SIDE
    if not 1 <= side <= 4096:
        raise InputError(f"images cannot be decoded at {side} pixels a side: choose 1 to 4096")
    files = listing.files or ()
    if listing.is_passing:
        return _images(listing, *_decoded(listing, side, frame, progress))
    store = Store(place_of(listing, side, frame, cache), listing.entries, side, frame)
    with explained(store.folder, store.nbytes):
        outcome = recorded(store)
        if outcome is None or any(may_pass(status) for status in set(outcome.status)):
            outcome = _read(store, files, workers, progress, checked=outcome is not None)
        pixels = np.load(store.pixels, mmap_mode="r", allow_pickle=False)
    return _images(listing, pixels, outcome)


def _decoded(listing: Listing, side: int, frame: Frame, progress: OnProgress) -> tuple[np.ndarray, Outcome]:
    """Decode a few files into memory. Return what a store would hold."""
    pixels, rows = np.zeros((len(listing.paths), side, side, 3), np.uint8), {}
    decoded = decode_few(listing.files or (), side, frame)
    for row, (entry, (image, status)) in enumerate(zip(listing.entries, decoded, strict=True)):
        if image is not None:
            pixels[row] = image
        rows[row] = Row(entry, status, digest_of(pixels[row]))
        progress(row + 1, len(pixels))
    return pixels, _outcome(side, frame, rows)


def _read(store: Store, files: Sequence[Input], workers: int, progress: OnProgress, checked: bool) -> Outcome:
    """Return the outcome from the journal. Build the store first if it is incomplete or damaged."""
    rows = store.rows()
    if not checked and store.is_complete(rows):
        rows = store.sound(rows)
    if not store.is_complete(rows) or not store.has_header():
        rows = build(store, files, workers, progress, checked)
    outcome = _outcome(store.side, store.frame, rows)
    record(store, outcome)
    return outcome


def _outcome(side: int, frame: Frame, rows: dict[int, Row]) -> Outcome:
    return Outcome(tuple(rows[row].status for row in range(len(rows))), fingerprint_of(side, frame, rows))


def _images(listing: Listing, pixels: np.ndarray, outcome: Outcome) -> Images:
    usable = np.flatnonzero([status == "ok" for status in outcome.status]).astype(np.int64)
    return Images(listing, pixels, outcome.status, usable, outcome.fingerprint)


def _of_array(
    listing: Listing, array: np.ndarray, side: int, frame: Frame, small: Callable[[np.ndarray], np.ndarray]
) -> Images:
    pixels = array
    if not listing.is_rows:
        pixels = _three_channels(array)
        filled = filled_side((pixels.shape[2], pixels.shape[1]), frame)
        pixels = small(pixels) if is_much_larger(filled, side) else _squares(pixels, frame)
    fingerprint = _array_fingerprint(array, "crop" if listing.is_rows else frame)
    return Images(listing, pixels, ("ok",) * len(array), np.arange(len(array), dtype=np.int64), fingerprint)


def _three_channels(array: np.ndarray) -> np.ndarray:
    """Return uint8 (n,h,w) or (n,h,w,c) as (n,h,w,3), without a copy."""
    if array.ndim == 3:
        array = array[..., None]
    if array.shape[3] == 1:
        return np.broadcast_to(array, (*array.shape[:3], 3))
    return array[..., :3] if array.shape[3] == 4 else array


def _squares(array: np.ndarray, frame: Frame) -> np.ndarray:
    """Return uint8 (n,h,w,3) as (n,s,s,3), without a copy unless bars are added."""
    height, width = array.shape[1:3]
    if height == width:
        return array
    if frame == "letterbox":
        return letterboxed(array)
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    return array[:, top : top + edge, left : left + edge]


def _array_fingerprint(array: np.ndarray, frame: Frame) -> str:
    """Hash shape, type and bytes. Above 256 MiB, hash every second, third, ... row, so that a resume starts at once."""
    digest = hashlib.sha256(f"{array.dtype} {array.shape}{_FRAMED[frame]}".encode())
    sample = array[:: max(1, math.ceil(array.nbytes / HASHED_BYTES))]
    chunk = max(1, (1 << 24) * len(sample) // max(sample.nbytes, 1))
    for start in range(0, len(sample), chunk):
        digest.update(np.ascontiguousarray(sample[start : start + chunk]).data)
    return digest.hexdigest()


def place_of(listing: Listing, side: int, frame: Frame, cache: Path | None) -> Path:
    """Return the store's folder for a source, side and frame.

    Lists of paths have no folder, so all names are hashed.
    """
    files = [os.path.realpath(listing.root)] if listing.root else [str(file) for file in listing.files or ()]
    return cache_folder(cache) / short_hash([VERSION, side, frame, bool(listing.root), *files])


def fingerprint_of(side: int, frame: Frame, rows: dict[int, Row]) -> str:
    """Hash names and decoded pixels. A moved or copied folder has the same fingerprint.

    Increase VERSION when you change it.
    """
    digest = hashlib.sha256(f"files {len(rows)} {side}{_FRAMED[frame]}\n".encode())
    written = json.encoder.encode_basestring_ascii  # faster than json.dumps
    for start in range(0, len(rows), HASHED_ROWS):
        some = [rows[row] for row in range(start, min(start + HASHED_ROWS, len(rows)))]
        lines = [f"[{written(row.entry[0])}, {_BOOLEAN[row.status == 'ok']}, {written(row.digest)}]" for row in some]
        digest.update("".join(lines).encode())
    return digest.hexdigest()


SHRUNK_VERSION = 1  # of the pixels that `square` returns; a new number makes a new copy
HELD_BYTES = 1 << 28  # of shrunk images that stay in memory
KEPT = 4  # cached copies to keep beside a new one
MOST_WORKERS = 61  # that a pool of processes may have on Windows
A_DAY = 24 * 3600  # seconds
BYTES_AT_ONCE = 1 << 25  # of shrunk images, or of large ones read, per part


def is_much_larger(filled: int, side: int) -> bool:
    """Return True if images of `filled` pixels a side should be shrunk: above 4/3 of the side.

    If the side is 1.5 times the training size, that is twice the training size. Below it, one more resize would only
    blur.
    """
    return 3 * filled > 4 * side > 0


def shrunk(
    array: np.ndarray,
    side: int,
    frame: Frame,
    *,
    workers: int,
    cache: Path | None = None,
    progress: OnProgress = lambda done, total: None,
) -> np.ndarray:  # uint8 (n,h,w,3) -> (n,side,side,3)
    """Return the images as squares, with the pixels that lossless files of them would be decoded to."""
    shape = (len(array), side, side, 3)
    if (nbytes := int(np.prod(shape))) <= HELD_BYTES:
        small = np.empty(shape, np.uint8)
        for start, some in _in_parts(array, side, frame, workers, progress):
            small[start : start + len(some)] = some
        return small
    header = npy_header(shape)
    path = cache_folder(cache) / "arrays" / f"{_digest(array, side, frame)}.npy"
    with explained(path.parent, nbytes):
        sums = _sums_if_whole(path, header, shape)
        if sums is None:  # an existing copy is used even on a read-only disk
            path.parent.mkdir(parents=True, exist_ok=True)
            with only_one(path.parent):
                sums = _sums_if_whole(path, header, shape)  # another process may have written it meanwhile
                if sums is None:
                    sums = Sums(_together(side), [], [])
                    small_ones = _in_parts(array, side, frame, workers, progress)
                    write_atomically(path, chain([header], _noted(sums, (some for _, some in small_ones))))
                    _prune(path)
        with suppress(OSError):  # read-only disk
            os.utime(path)  # mark as used
            sums._replace(state=state_of(path)).write(path)
        cached: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return cached


def _sums_if_whole(path: Path, header: bytes, shape: tuple[int, ...]) -> Sums | None:
    """Return the checksums of an existing, undamaged copy; None otherwise."""
    if not path.exists() or path.stat().st_size != len(header) + math.prod(shape):
        return None
    with open(path, "rb") as file:
        is_header = file.read(len(header)) == header
    sums = read_sums(path, shape[0])
    if not is_header or sums is None or sums.damaged(np.memmap(path, np.uint8, "r", len(header), shape), path):
        return None
    return sums


def _noted(sums: Sums, parts: Iterable[np.ndarray]) -> Iterator[memoryview]:
    """Yield parts of an array as bytes, and append their checksums to `sums`."""
    for part in parts:
        sums.digests.append(digest_of(part))
        yield part.data.cast("B")


def _prune(new: Path) -> None:
    """Delete old copies, but none used within a day.

    Deleting an open file is safe on POSIX and refused on Windows, but neither holds for a disk shared by several
    machines.
    """
    others = sorted(set(new.parent.glob("*.npy")) - {new}, key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in (*others[:-KEPT], *new.parent.glob("*.partial")):  # the latter are left by killed processes
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > A_DAY:
                path.unlink()
                sums_of(path).unlink(missing_ok=True)


def _in_parts(
    array: np.ndarray, side: int, frame: Frame, workers: int, progress: OnProgress
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first row and the shrunk images of each part."""

    def small(row: int) -> np.ndarray:
        return square(Image.fromarray(np.ascontiguousarray(array[row])), side, frame)

    together = _together(side)
    with ThreadPoolExecutor(workers) as threads:  # Pillow releases the GIL while it resizes
        for start in range(0, len(array), together):
            rows = range(start, min(start + together, len(array)))
            yield start, np.stack(list(threads.map(small, rows)))
            progress(rows.stop, len(array))


def _together(side: int) -> int:
    """Return the number of images in a part."""
    return max(1, BYTES_AT_ONCE // (3 * side * side))


def _digest(array: np.ndarray, side: int, frame: Frame) -> str:
    digest = hashlib.sha256(repr([SHRUNK_VERSION, side, frame, array.shape]).encode())
    together = max(1, BYTES_AT_ONCE // array[0].nbytes)
    for start in range(0, len(array), together):
        digest.update(np.ascontiguousarray(array[start : start + together]).data)
    return digest.hexdigest()[:32]


DEVICE_SHARE = 0.5  # most of a GPU's free memory that the data may take
READ_AHEAD = 4  # batches


class Feed:
    """Fills `samples` (N,) and `images` (N,...) with one batch after another.

    `resident` keeps the images on the device; by default, a GPU does if they fit.
    """

    def __init__(
        self, images: Images, batch_size: int, seed: int, device: torch.device, *, resident: bool | None = None
    ) -> None:
        self.n_samples, self.batch_size, self.seed, self.device = len(images.usable), batch_size, seed, device
        self.steps_per_epoch = self.n_samples // batch_size  # the incomplete last batch is left out
        self._pixels, self._rows = images.pixels, images.usable
        self.samples = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.images = torch.zeros((batch_size, *images.pixels.shape[1:]), dtype=_dtype(images.pixels), device=device)
        resident = _fits(images, device) if resident is None else resident
        self._resident = self._to_device() if resident else None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[None]:
        """Fill the buffers with each batch of an epoch, from step `start` on."""
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
        """Yield samples and images of all data once, in the order of an epoch.

        If the last batch is incomplete, the last two are divided equally.
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
        """Return the permutation of an epoch. It depends only on seed and epoch, not on the device."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        return torch.randperm(self.n_samples, generator=generator)

    def _to_device(self) -> Tensor:
        everything = np.array_equal(self._rows, np.arange(len(self._pixels)))
        pixels = np.ascontiguousarray(self._pixels if everything else self._pixels[self._rows])
        if self.device.type == "cpu" and pixels.flags.writeable:
            return torch.from_numpy(pixels)  # shares memory
        return torch.tensor(pixels, device=self.device)


def read_ahead(pixels: np.ndarray, parts: Sequence[np.ndarray], device: torch.device) -> Generator[Tensor, None, None]:
    """Yield the rows of `pixels` of each part, on the device. A result is valid until the next one is requested.

    Threads gather a few parts ahead into reused buffers. For a GPU these are pinned, and copied on a separate stream
    while the device computes on the previous part. The host waits only until a buffer is filled: when it is READ_AHEAD
    parts ahead of the device, or when the disk is slower than the device.
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
        torch.cuda.set_device(gpu)  # otherwise the thread would initialise GPU 0 and take memory there


class _Buffer:
    """Host memory for one part."""

    def __init__(self, pixels: np.ndarray, rows: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.content = torch.empty((rows, *pixels.shape[1:]), dtype=_dtype(pixels), pin_memory=on_gpu)
        self.copied = _event() if on_gpu else None  # recorded when the GPU has copied the content

    def fill(self, pixels: np.ndarray, rows: np.ndarray) -> Tensor:
        """Gather rows into the buffer. Runs in a thread; both ways of copying release the GIL."""
        if self.copied is not None:
            self.copied.synchronize()
        content = self.content[: len(rows)]
        if pixels.flags.c_contiguous and len(rows):
            if rows.max() >= len(pixels):  # a truncated file; mode="clip" would repeat the last row
                raise IndexError(f"row {rows.max()} of {len(pixels)}")
            np.take(pixels, rows, axis=0, out=content.numpy(), mode="clip")  # other modes copy twice
        else:
            content.numpy()[...] = pixels[rows]  # np.take would copy the whole array first
        return content


class _Landing:
    """Two alternating buffers on a GPU: the device computes on one while a separate stream fills the other."""

    def __init__(self, like: Tensor, device: torch.device) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())  # it may still use the previous content of this memory
        self.places = deque((torch.empty_like(like, device=device), _event()) for _ in range(2))
        self.used: torch.cuda.Event | None = None  # of the buffer returned last

    def take(self, content: Tensor, buffer: _Buffer) -> Tensor:
        """Return the content on the device, valid on the current stream until the next call."""
        current = torch.cuda.current_stream()
        if self.used is not None:
            self.used.record(current)
        place, self.used = self.places[0]
        self.places.rotate(1)
        self.stream.wait_event(self.used)  # returns at once for an unused buffer
        with torch.cuda.stream(self.stream):
            landed = place[: len(content)].copy_(content, non_blocking=True)
            assert buffer.copied is not None, "buffers for a GPU have an event"
            buffer.copied.record(self.stream)
        current.wait_event(buffer.copied)
        return landed


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # blocking: waiting does not use the core


def _fits(images: Images, device: torch.device) -> bool:
    if device.type != "cuda":
        return False  # a CPU reads the memory map directly
    free, _ = torch.cuda.mem_get_info(device)
    return bool(images.pixels.nbytes < DEVICE_SHARE * free)


def _dtype(pixels: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.empty(0, pixels.dtype)).dtype
