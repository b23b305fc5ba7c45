"""Rows of pixels or numbers for every input of a source, ready for training.

Arrays are used in place. Files are decoded once into a memory-mapped store, which the next run opens at once.

Arrays of images much larger than training needs are shrunk once, as files are when they are decoded: a bilinear crop of
an image several times larger than the view would skip pixels. Small results stay in memory. Large ones are cached under
a hash of all bytes of the array, so the next run only has to read the array through; the most recently used copies are
kept.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from twincluster.core import InputError, OnProgress, available_cores, write_atomically
from twincluster.data.decoding import DEFAULT_SIDE, Frame, filled_side, letterboxed, square
from twincluster.data.encoded import Encoded, Originals
from twincluster.data.listing import Input, Listing, cache_folder, digest_of
from twincluster.data.pool import decode_few
from twincluster.data.store import (
    Outcome,
    Row,
    Store,
    Sums,
    build,
    explained,
    may_pass,
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
    pictures: np.ndarray | Originals | None = None  # (n,s,s,3), if `pixels` are an encoder's features of them
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
    if listing.encoded is not None:
        return _of_encoded(listing, listing.encoded)
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


def _of_encoded(listing: Listing, encoded: Encoded) -> Images:
    """Return the features of an encoded folder; rows of unreadable images are zeros."""
    assert listing.array is not None
    usable = np.flatnonzero([status == "ok" for status in encoded.status]).astype(np.int64)
    pictures = Originals(listing, encoded)
    return Images(
        listing, listing.array, encoded.status, usable, encoded.fingerprint,
        pictures=pictures if pictures.any() else None, widths=encoded.data.widths,
    )  # fmt: skip


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
