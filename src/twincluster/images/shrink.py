"""Arrays of images much larger than training needs, made smaller once, as files are when they are decoded.

A crop is sampled bilinearly, which skips pixels of an image that is several times as large as the view. Few images are
held in memory; of more a copy is kept in the cache, and the next run opens it once it has read the array through: a
copy is known by all bytes of what it was made of. The copies last used stay, older ones make room for new ones.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from twincluster.disk import write_atomically
from twincluster.images.build import explained, npy_header, only_one
from twincluster.images.decode import Frame, square
from twincluster.images.kept import cache_folder

VERSION = 1  # of what `square` makes of an image: another number, another copy
HELD_BYTES = 1 << 28  # of small images that stay in memory
KEPT = 4  # copies on the disk beside a new one; each can be made again as long as its array is there
A_DAY = 24 * 3600  # seconds
BYTES_AT_ONCE = 1 << 25  # of small images made, or of large ones read, before they are put away


def is_much_larger(filled: int, side: int) -> bool:
    """Whether images that fill so many pixels a side are better made smaller: above 4/3 of the side, which is twice the
    size that training needs where the side is 1.5 times that. In between one resize more would blur them for little."""
    return 3 * filled > 4 * side > 0


def shrunk(
    array: np.ndarray,
    side: int,
    frame: Frame,
    *,
    workers: int,
    cache: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:  # uint8 (n,h,w,3) -> (n,side,side,3)
    """The same images as squares, with the pixels that lossless files of them are decoded to."""
    shape = (len(array), side, side, 3)
    if (nbytes := int(np.prod(shape))) <= HELD_BYTES:
        small = np.empty(shape, np.uint8)
        for start, some in _in_parts(array, side, frame, workers, progress):
            small[start : start + len(some)] = some
        return small
    header = npy_header(shape)
    path = cache_folder(cache) / "arrays" / f"{_digest(array, side, frame)}.npy"
    with explained(path.parent, nbytes):
        if not _is_whole(path, len(header) + nbytes):  # else it is taken even where nothing can be written
            path.parent.mkdir(parents=True, exist_ok=True)
            with only_one(path.parent):
                if not _is_whole(path, len(header) + nbytes):  # another process may have made it meanwhile
                    small_ones = _in_parts(array, side, frame, workers, progress)
                    write_atomically(path, chain([header], (some.data.cast("B") for _, some in small_ones)))
                    _prune(path)
        with suppress(OSError):  # where nothing can be written, nothing is pruned either
            os.utime(path)  # used now
        kept: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return kept


def _is_whole(path: Path, nbytes: int) -> bool:
    return path.exists() and path.stat().st_size == nbytes


def _prune(new: Path) -> None:
    """Who is training on a copy that goes keeps it open, and a system that minds keeps the copy: on a disk that is
    shared by several machines neither is sure, so what was used or written within a day stays."""
    others = sorted(set(new.parent.glob("*.npy")) - {new}, key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in (*others[:-KEPT], *new.parent.glob("*.partial")):  # the latter by somebody who was killed
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > A_DAY:
                path.unlink()


def _in_parts(
    array: np.ndarray, side: int, frame: Frame, workers: int, progress: Callable[[int, int], None]
) -> Iterator[tuple[int, np.ndarray]]:
    """Where a part begins, and its small images, one part after another."""

    def small(row: int) -> np.ndarray:
        return square(Image.fromarray(np.ascontiguousarray(array[row])), side, frame)

    together = max(1, BYTES_AT_ONCE // (3 * side * side))
    with ThreadPoolExecutor(workers) as threads:  # Pillow lets others go on while it resizes
        for start in range(0, len(array), together):
            rows = range(start, min(start + together, len(array)))
            yield start, np.stack(list(threads.map(small, rows)))
            progress(rows.stop, len(array))


def _digest(array: np.ndarray, side: int, frame: Frame) -> str:
    digest = hashlib.sha256(repr([VERSION, side, frame, array.shape]).encode())
    together = max(1, BYTES_AT_ONCE // array[0].nbytes)
    for start in range(0, len(array), together):
        digest.update(np.ascontiguousarray(array[start : start + together]).data)
    return digest.hexdigest()[:32]
