"""Decode a source once into a memory-mapped file of small square images, and present any source to the trainer.

A folder's store is <tag>.npy, the pixels, beside <tag>.jsonl, a line for each row that has been written. It is complete
when no line is missing, so a killed build cannot claim to be; the next one goes on where that one stopped. The tag stands
for every name, size and time of change: after a change a new store copies the rows that stayed and replaces the old one.
"""

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from twincluster.errors import InputError
from twincluster.images.decode import decode_many, may_pass
from twincluster.images.sources import DEFAULT_SIDE, Listing

VERSION = 1  # of the files and of what decode.py makes of an image: another number, another store
HASHED_BYTES = 1 << 28  # of an array, for its fingerprint
_LINES_HELD = 64  # rows decoded again, at most, after a build was killed

Entry = tuple[str, int, int]  # path as written, size, time of change in ns; -1 where there is no file


@dataclass(frozen=True, eq=False)
class Images:
    """What the trainer reads: one row per input, in the order of the listing."""

    listing: Listing
    pixels: np.ndarray  # (n,s,s,3) uint8, memory-mapped or the caller's own; (n,d) float32 for rows
    status: tuple[str, ...]  # "ok", or why the row is black
    usable: np.ndarray  # int64, the rows that can be trained on
    fingerprint: str  # SHA-256 of the data, not of where it lies

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
    cache: Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Images:
    """Give a listing pixels.

    Arrays keep their size and stay where they are: grey and four-channel ones become three channels, and oblong ones
    their centre square, as views. Files are decoded at side x side pixels (0: 96) by `workers` processes (None: one
    per core; 1: in this process) under cache, else $TWINCLUSTER_CACHE, else ~/.cache/twincluster/store; progress is
    told (rows done, rows in all). A file that cannot be read keeps its row, black, with a status.
    """
    if listing.array is not None:
        pixels = listing.array if listing.array.ndim == 2 else _squares(listing.array)
        count = len(pixels)
        return Images(listing, pixels, ("ok",) * count, np.arange(count), _array_fingerprint(listing.array))
    side = side or DEFAULT_SIDE
    if not 1 <= side <= 4096:
        raise InputError(f"images cannot be decoded at {side} pixels a side: choose 1 to 4096")
    files = listing.files or ()
    entries = [_entry(path, file) for path, file in zip(listing.paths, files, strict=True)]
    store = _Store(_place(listing, side, cache), entries, side)
    rows = store.rows()
    if not store.is_complete(rows):
        with _explained(store):
            _build(store, files, workers or _cores(), progress or (lambda done, total: None))
            rows = store.rows()
    status = tuple(rows[row].status for row in range(len(rows)))
    usable = np.flatnonzero([said == "ok" for said in status])
    return Images(listing, np.load(store.pixels, mmap_mode="r"), status, usable, _fingerprint(side, rows))


def _squares(array: np.ndarray) -> np.ndarray:
    """uint8 (n,h,w) or (n,h,w,c) as (n,s,s,3), without a copy."""
    if array.ndim == 3:
        array = array[..., None]
    if array.shape[3] == 1:
        array = np.broadcast_to(array, (*array.shape[:3], 3))
    elif array.shape[3] == 4:
        array = array[..., :3]
    height, width = array.shape[1:3]
    if height == width:
        return array
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    return array[:, top : top + edge, left : left + edge]


def _array_fingerprint(array: np.ndarray) -> str:
    """Of shape, type and bytes; above 256 MiB of every second, third, ... row, so that a resume starts at once."""
    digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    sample = array[:: max(1, math.ceil(array.nbytes / HASHED_BYTES))]
    chunk = max(1, (1 << 24) * len(sample) // max(sample.nbytes, 1))
    for start in range(0, len(sample), chunk):
        digest.update(np.ascontiguousarray(sample[start : start + chunk]))
    return digest.hexdigest()


def _entry(path: str, file: Path) -> Entry:
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return path, -1, -1
    return path, found.st_size, found.st_mtime_ns


def _place(listing: Listing, side: int, cache: Path | None) -> Path:
    """A folder per source and side; lists of paths have no folder in common, so theirs is known by every name."""
    base = Path(cache or os.environ.get("TWINCLUSTER_CACHE") or "~/.cache/twincluster/store").expanduser()
    files = [os.path.realpath(listing.root)] if listing.root else [str(file) for file in listing.files or ()]
    return base / _short_hash([VERSION, side, bool(listing.root), *files])


def _short_hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def _cores() -> int:
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 61)


class _Row(NamedTuple):
    entry: Entry
    status: str
    digest: str  # of the pixels


class _Store:
    """Where the files of one state of a source are, and what is in them."""

    def __init__(self, folder: Path, entries: list[Entry], side: int) -> None:
        self.folder, self.entries, self.side = folder, entries, side
        self.tag = _short_hash(entries)
        self.pixels, self.journal = folder / f"{self.tag}.npy", folder / f"{self.tag}.jsonl"
        written = io.BytesIO()
        shape = (len(entries), side, side, 3)
        np.lib.format.write_array_header_1_0(written, {"descr": "|u1", "fortran_order": False, "shape": shape})
        self.header = written.getvalue()
        self.row_bytes = side * side * 3
        self.nbytes = len(self.header) + len(entries) * self.row_bytes

    def rows(self) -> dict[int, _Row]:
        """What the journal says is there; nothing when there are no pixels to go with it."""
        if not self.pixels.exists() or self.pixels.stat().st_size != self.nbytes:
            return {}
        expected = dict(enumerate(self.entries))
        return {row: kept for row, kept in _read_journal(self.journal).items() if kept.entry == expected.get(row)}

    def is_complete(self, rows: dict[int, _Row]) -> bool:
        return len(rows) == len(self.entries) and not any(may_pass(kept.status) for kept in rows.values())

    def allocate(self) -> None:
        """Take the whole room at once: a full disk is known before an hour of decoding, and never while reading."""
        self.journal.unlink(missing_ok=True)
        try:
            with open(self.pixels, "wb") as file:
                file.write(self.header)
                file.flush()
                with suppress(AttributeError):  # not on every system; there, a write may still find the disk full
                    os.posix_fallocate(file.fileno(), 0, self.nbytes)
                file.truncate(self.nbytes)
        except OSError:
            self.pixels.unlink(missing_ok=True)
            raise


def _read_journal(path: Path) -> dict[int, _Row]:
    rows: dict[int, _Row] = {}
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                row, name, size, changed, status, digest = json.loads(line)
            except ValueError:
                break  # cut off when the build was killed; nothing was written after it
            if line.endswith(b"\n"):
                rows[row] = _Row((name, size, changed), status, digest)
    return rows


def _build(store: _Store, files: Sequence[Path], workers: int, progress: Callable[[int, int], None]) -> None:
    store.folder.mkdir(parents=True, exist_ok=True)
    with _only_one(store.folder):
        rows = store.rows()  # once more: another process may have built it while this one waited
        if store.is_complete(rows):
            return
        if not rows:
            store.allocate()
        elif len(rows) < len(files):  # the machine may have stopped before the pixels were on its disk
            written = np.load(store.pixels, mmap_mode="r")
            rows = {row: kept for row, kept in rows.items() if kept.digest == _digest(written[row])}
        settled = {row for row, kept in rows.items() if not may_pass(kept.status)}
        earlier = _earlier(store)
        with _Writer(store, rows) as writer:
            todo = []
            for row in range(len(files)):
                if row not in settled and not writer.copy(row, earlier):
                    todo.append(row)
            done = len(files) - len(todo)
            progress(done, len(files))
            with closing(decode_many([files[row] for row in todo], store.side, workers)) as results:
                for row, (pixels, status) in zip(todo, results, strict=True):
                    writer.add(row, pixels, status)
                    done += 1
                    progress(done, len(files))
        for path in store.folder.iterdir():
            if path.suffix in (".npy", ".jsonl") and path.stem != store.tag:
                with suppress(OSError):  # still open elsewhere, on a system that minds
                    path.unlink()
