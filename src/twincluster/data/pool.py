"""Decode many files in several processes. A file that crashes its process loses only its own row.

Each process writes its pixels directly and returns only the status: sending pixels through a pipe is slow.

A process uses at most 600 MB: headers.LARGEST per image, enforced by the system where possible. All processes together
use at most 2 GB: large images wait for free memory. This process leaves large images to a separate one.
"""

import math
import multiprocessing
import multiprocessing.synchronize
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
from PIL import Image

from twincluster.core import return_freed
from twincluster.data.decoding import NO_MEMORY, TOO_LARGE, Admit, Decoded, Frame, LargeError, admit_all, decode
from twincluster.data.headers import LARGEST
from twincluster.data.listing import Input, digest_of

P = ParamSpec("P")
T = TypeVar("T")
Task = tuple[int, Input]  # a row, and what is to be decoded into it
Said = tuple[str, str]  # "ok" or the reason why the row is black, and the digest of its pixels

CRASHED = "unreadable: decoder crashed"
_BATCH = 16  # files handed to a process at a time
_BLOCKS_KEPT = 16  # of one MiB, from one image to the next: Pillow asks the system for new ones each time by itself
_WORTH_A_POOL = 96  # starting processes takes longer than decoding fewer files than this
_TOGETHER = 2_000_000_000  # bytes of all processes that decode
_RESTING = 64_000_000  # bytes of one that decodes small images
_SMALL = 8_000_000  # bytes of an image that waits for nobody
_UNIT = 20_000_000  # bytes that are handed out at a time
_MOST_WORKERS = (_TOGETHER - LARGEST) // _RESTING  # so that there is room for one image of the largest kind
_BESIDE = 40_000_000  # bytes that the system allows a process beyond those of an image
_HERE = 128_000_000  # bytes of an image that is decoded in the process of the caller
_TRIES = 2  # a process may also be ended from outside


@dataclass(frozen=True)
class RowFile:
    """An existing file of pixel rows, one per image; any process may write any row."""

    path: Path
    start: int  # of the first row, in bytes
    side: int
    frame: Frame = "crop"

    def decode(self, task: Task, admit: Admit = admit_all) -> Said:
        row, source = task
        return self.write(row, *_bounded(decode(source, self.side, self.frame, admit)))

    def write(self, row: int, pixels: np.ndarray | None, status: str) -> Said:
        """Write a row. Without pixels the row becomes black, whatever an earlier attempt wrote."""
        if pixels is None:
            pixels = np.zeros((self.side, self.side, 3), np.uint8)
        left = np.ascontiguousarray(pixels).data.cast("B")
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(self.start + row * len(left))
            while left:  # a full disk may first cause a partial write
                left = left[file.write(left) :]
        return status, digest_of(pixels)


def decode_many(tasks: Sequence[Task], rows: RowFile, workers: int) -> Generator[Said, None, None]:
    """Fill rows in several processes, 23 at most.

    Yield statuses in the order of the tasks, each after its row was written.
    """
    workers = min(workers, _MOST_WORKERS)
    done, crashed = 0, False
    while workers > 1 and len(tasks) - done >= _WORTH_A_POOL and (pool := _pool(workers)):
        try:
            for batch in _in_order(pool, tasks[done:], rows, 2 * workers):
                done += len(batch)
                yield from batch
        except BrokenProcessPool:  # a file in flight, or the system short of memory, ended a process
            crashed = True
            for said in _carefully(tasks[done : done + 2 * workers * _BATCH], rows, apart=True):
                done += 1
                yield said
        finally:
            pool.shutdown(cancel_futures=True)
    yield from _carefully(tasks[done:], rows, apart=crashed)


def decode_few(files: Sequence[Input], side: int, frame: Frame) -> Iterator[Decoded]:
    """Decode files in this process, and large ones in a separate process."""
    with _one_apart() as apart:
        for file in files:
            yield apart(partial(decode, file, side, frame)) or (None, CRASHED)


def _carefully(tasks: Sequence[Task], rows: RowFile, apart: bool) -> Iterator[Said]:
    """Decode one file after another; with `apart`, after a crash, each alone in a process, to find the file that
    crashes.
    """
    with _one_apart() as run:
        for task in tasks:
            yield run(partial(rows.decode, task), apart) or rows.write(task[0], None, CRASHED)


def _pool(workers: int) -> ProcessPoolExecutor | None:
    """Start a pool of processes to decode in; None if processes cannot be started."""
    if multiprocessing.current_process().daemon:
        return None  # it may have no children
    context = multiprocessing.get_context("spawn")  # a fork would copy locks held by the threads of torch or BLAS
    units = (_TOGETHER - workers * _RESTING) // _UNIT
    room = _Room(units, context.Semaphore(units), context.Lock())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(room,))
    try:
        wait([_submit(pool, _ready) for _ in range(workers)], return_when=FIRST_COMPLETED).done.pop().result()
    except (BrokenProcessPool, OSError, RuntimeError, ImportError):
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


class _Room(NamedTuple):
    """The memory that all processes of a pool share, in units."""

    units: int
    free: multiprocessing.synchronize.Semaphore
    turn: multiprocessing.synchronize.Lock  # one process at a time collects units: else each might hold half

    @contextmanager
    def admit(self, nbytes: int) -> Iterator[None]:
        """Wait until that many bytes are free."""
        units = min(math.ceil(nbytes / _UNIT), self.units) if nbytes > _SMALL else 0
        with self.turn if units else nullcontext():
            for _ in range(units):
                self.free.acquire()
        try:
            yield
        finally:
            if nbytes > _RESTING:
                Image.core.clear_cache()  # type: ignore[attr-defined]
                return_freed()
            for _ in range(units):
                self.free.release()


_room: _Room | None = None  # of a process that was started to decode


def _start_worker(room: _Room) -> None:
    global _room
    _room = room
    _limit_memory()
    Image.core.set_blocks_max(_BLOCKS_KEPT)  # type: ignore[attr-defined]  # as its manual has it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent(wait: Callable[[], None] = parent.join) -> None:
        wait()
        os._exit(1)  # a killed parent cannot tell its workers to stop

    threading.Thread(target=leave_with_parent, daemon=True).start()


def _ready() -> None:
    """Do nothing in a worker, to prove that it has started."""


def _in_order(pool: ProcessPoolExecutor, tasks: Sequence[Task], rows: RowFile, window: int) -> Iterator[list[Said]]:
    batches = (tasks[start : start + _BATCH] for start in range(0, len(tasks), _BATCH))
    pending = deque(_submit(pool, _decode_batch, batch, rows) for batch in islice(batches, window))
    while pending:
        yield pending.popleft().result()
        pending.extend(_submit(pool, _decode_batch, batch, rows) for batch in islice(batches, 1))


def _decode_batch(tasks: Sequence[Task], rows: RowFile) -> list[Said]:
    return [_inside(partial(rows.decode, task)) for task in tasks]


def _inside(work: Callable[..., T]) -> T:
    """Run work in a decoding process."""
    assert _room is not None
    return work(admit=_room.admit)


def _here(nbytes: int) -> AbstractContextManager[None]:
    if nbytes > _HERE:
        raise LargeError
    return nullcontext()


@contextmanager
def _one_apart() -> Iterator[Callable[..., T | None]]:
    """Yield a function that runs work in this process, or in a separate one if it is large or `apart`.

    It returns None if the separate process crashes each time.
    """
    pool: ProcessPoolExecutor | None = None

    def run(work: Callable[..., T], apart: bool = False) -> T | None:
        nonlocal pool
        if not apart:
            with suppress(LargeError):
                return work(admit=_here)
        for _ in range(_TRIES):
            pool = pool or _pool(1)
            try:
                return _submit(pool, _inside, work).result() if pool else work()
            except BrokenProcessPool:
                pool = None
        return None

    try:
        yield run
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)


def _limit_memory() -> None:
    """Limit the memory of this process to what an image may use, whatever its decoder requests."""
    with suppress(ImportError, OSError, ValueError, IndexError):  # where there are no such limits
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (taken + LARGEST + _BESIDE, most))


def _bounded(decoded: Decoded) -> Decoded:
    """Report images that exceed the memory limit as too large."""
    return (None, TOO_LARGE) if _room is not None and decoded[1] == f"unreadable: {NO_MEMORY}" else decoded
