"""Turn an image file into a small square of pixels, or say in a few words why that cannot be done.

Files come from strangers: nothing here raises for what a file holds, and one that ends its process costs one row.
"""

import multiprocessing
import os
import signal
import stat
import sys
import threading
import types
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

IMAGE_SUFFIXES: frozenset[str] = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif", ".tga"}
)
# As decoded: a JPEG is reduced while it is read. Pillow itself refuses any file of more than 178 million.
MAX_PIXELS = 100_000_000

P = ParamSpec("P")
T = TypeVar("T")
Decoded = tuple[np.ndarray | None, str]  # (side, side, 3) uint8 and "ok", or None and the reason

# Formats that Pillow reads by itself: nothing that starts another program (EPS) may hide behind a .jpg.
_FORMATS = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
_PASSING = ("missing file", "no permission", "not enough memory", "input/output error")
_ORIENTATION = 0x0112  # EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_BATCH = 16  # files handed to a process at a time
_WORTH_A_POOL = 96  # starting processes takes longer than decoding fewer files than this


def typical_side(files: Sequence[Path], sample: int = 100) -> int:
    """Median of the shorter sides of some of the files, by their headers; 0 when none of them can be read."""
    sides = []
    for file in files[:: max(1, len(files) // sample)]:
        try:
            if not file.is_file():
                continue
            with (
                warnings.catch_warnings(action="ignore"),
                Image.open(file, formats=_formats(file.suffix.lower())) as image,
            ):
                sides.append(min(image.size))
        except Exception:  # whatever Pillow makes of a damaged file: decoding will say so
            continue
    return int(np.median(sides)) if sides else 0


def decode(path: Path, side: int) -> Decoded:
    """The centre square of an image at side x side pixels; the first frame of an animation. Never raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata; the status is what we say about a file
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                return None, "unreadable: not a regular file"  # opening a named pipe would wait for ever
            if found.st_size == 0:
                return None, "unreadable: empty file"
            with Image.open(path, formats=_formats(path.suffix.lower())) as image:
                image.draft(None, (2 * side, 2 * side))  # JPEG only: decode at 1/2, 1/4 or 1/8
                if image.width * image.height > MAX_PIXELS:
                    return None, "unreadable: too many pixels"
                return square(image, side), "ok"
        except Exception as error:
            return None, f"unreadable: {_reason(error)}"


def square(image: Image.Image, side: int) -> np.ndarray:
    """The centre square of an open image, upright, on white, in three channels of eight bits."""
    image = _eight_bits(_upright(image))
    edge = min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    image = image.crop((left, top, left + edge, top + edge))
    # Pillow resizes with alpha multiplied in, so that what is transparent lends its neighbours no colour.
    return _on_white(image.resize((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0))


def rgb(image: Image.Image) -> np.ndarray:
    """An open image as (h, w, 3) uint8 at its own size, upright, on white."""
    return _on_white(_eight_bits(_upright(image)))


def _on_white(image: Image.Image) -> np.ndarray:
    if image.mode == "RGBA":
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return np.array(image.convert("RGB"))


def decode_many(files: Sequence[Path], side: int, workers: int) -> Generator[Decoded, None, None]:
    """Decode in the order of files, in that many processes; never more than a few batches per process are held."""
    done, crashed = 0, False
    while workers > 1 and len(files) - done >= _WORTH_A_POOL and (pool := _pool(workers)):
        try:
            for batch in _in_order(pool, files[done:], side, 2 * workers):
                done += len(batch)
                yield from batch
        except BrokenProcessPool:  # a file in flight, or the system short of memory, ended a process
            crashed = True
            for result in _one_by_one(files[done : done + 2 * workers * _BATCH], side):
                done += 1
                yield result
        finally:
            pool.shutdown(cancel_futures=True)
    yield from _one_by_one(files[done:], side) if crashed else (decode(file, side) for file in files[done:])


def may_pass(status: str) -> bool:
    """Whether a status speaks of the moment (rights, a missing file), not of the content: worth another try."""
    return status.removeprefix("unreadable: ") in _PASSING


@lru_cache
def _formats(suffix: str) -> tuple[str, ...]:
    Image.init()
    asked = (*_FORMATS, "TGA") if suffix == ".tga" else _FORMATS  # TGA has no signature: noise would pass for it
    return tuple(name for name in asked if name in Image.OPEN)  # AVIF, WebP and JPEG 2000 depend on the build


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    try:
        turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata around sound pixels
        turn = None
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: Image.Image) -> Image.Image:
    """The same picture in mode L, RGB, RGBA or another of eight bits a channel that can be resized and converted."""
    if image.mode in ("F", "I") or image.mode.startswith("I;16"):
        return Image.fromarray(_scaled(np.asarray(image)))
    if image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert("RGB") if image.mode in ("1", "P") else image


def _scaled(values: np.ndarray) -> np.ndarray:
    """Grey values of 16 or 32 bits as uint8: by a nominal range (1, 255, 65535) they keep to, else by their own."""
    if values.dtype.kind == "f":
        values = np.nan_to_num(values, posinf=0, neginf=0)
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind != "f" and low >= 0 and (values.itemsize == 2 or 255 < high <= 65535):
        return (values >> 8).astype(np.uint8)
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    return np.rint((values.astype(np.float64) - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)


def _reason(error: Exception) -> str:
    said = str(error).lower()
    if isinstance(error, FileNotFoundError):
        return "missing file"
    if isinstance(error, PermissionError):
        return "no permission"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    if isinstance(error, UnidentifiedImageError):
        return "not a known image format"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return "truncated file" if "truncated" in said or isinstance(error, EOFError) else "damaged file"


def _pool(workers: int) -> ProcessPoolExecutor | None:
    """Processes to decode in, one of which has proved to work; None where none can be started."""
    if multiprocessing.current_process().daemon:
        return None  # it may have no children
    context = multiprocessing.get_context("spawn")  # a fork would copy locks held by the threads of torch or BLAS
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        _submit(pool, _ready).result()
    except (BrokenProcessPool, OSError, RuntimeError):
        pool.shutdown()
        return None
    return pool


def _submit(pool: ProcessPoolExecutor, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
    """Hand work to a pool, which may start a process for it.

    A spawned process runs the caller's script again when it knows of it. Ours need nothing from there, and a script
    without an `if __name__ == "__main__"` guard would start its whole run once more in each.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        return pool.submit(work, *args, **named)
    finally:
        sys.modules["__main__"] = main


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent(wait: Callable[[], None] = parent.join) -> None:
        wait()
        os._exit(1)  # a killed parent cannot tell its workers to stop

    threading.Thread(target=leave_with_parent, daemon=True).start()


def _ready() -> None:
    """Runs in a worker: it started, and found this module."""


def _in_order(pool: ProcessPoolExecutor, files: Sequence[Path], side: int, window: int) -> Iterator[list[Decoded]]:
    batches = (files[start : start + _BATCH] for start in range(0, len(files), _BATCH))
    pending = deque(_submit(pool, _decode_batch, batch, side) for batch in islice(batches, window))
    while pending:
        yield pending.popleft().result()
        pending.extend(_submit(pool, _decode_batch, batch, side) for batch in islice(batches, 1))


def _decode_batch(files: Sequence[Path], side: int) -> list[Decoded]:
    return [decode(file, side) for file in files]


def _one_by_one(files: Sequence[Path], side: int) -> Iterator[Decoded]:
    """After a crash: each file alone in a process, so that the one to blame is known."""
    pool: ProcessPoolExecutor | None = None
    try:
        for file in files:
            result: Decoded = None, "unreadable: decoder crashed"
            for _ in range(2):  # a process may also be ended from outside
                pool = pool or _pool(1)
                try:
                    result = _submit(pool, decode, file, side).result() if pool else decode(file, side)
                    break
                except BrokenProcessPool:
                    pool = None
            yield result
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
