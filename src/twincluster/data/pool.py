"""Decode many files into the rows of one, in several processes; a file that ends its process costs its own row only.

Each process writes what it has decoded by itself, and says only what came of it: pixels take long through a pipe.
"""

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from PIL import Image

from twincluster.data.decoding import Frame, decode
from twincluster.data.files import Input

P = ParamSpec("P")
T = TypeVar("T")
Task = tuple[int, Input]  # a row, and what is to be decoded into it
Said = tuple[str, str]  # "ok" or the reason why the row is black, and the digest of its pixels

_BATCH = 16  # files handed to a process at a time
_BLOCKS_KEPT = 16  # of one MiB, from one image to the next: Pillow asks the system for new ones each time by itself
_WORTH_A_POOL = 96  # starting processes takes longer than decoding fewer files than this


@dataclass(frozen=True)
class RowFile:
    """A file of as many rows of pixels as there are images, which is there already; any process may fill any row."""

    path: Path
    start: int  # of the first row, in bytes
    side: int
    frame: Frame = "crop"

    def decode(self, task: Task) -> Said:
        row, source = task
        return self.write(row, *decode(source, self.side, self.frame))

    def write(self, row: int, pixels: np.ndarray | None, status: str) -> Said:
        """Without pixels the row becomes black, whatever an earlier try has left there."""
        if pixels is None:
            pixels = np.zeros((self.side, self.side, 3), np.uint8)
        left = np.ascontiguousarray(pixels).data.cast("B")
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(self.start + row * len(left))
            while left:  # the system may write a part, and say only next time that the disk is full
                left = left[file.write(left) :]
        return status, digest_of(pixels)


def digest_of(pixels: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=8).hexdigest()


def decode_many(tasks: Sequence[Task], rows: RowFile, workers: int) -> Generator[Said, None, None]:
    """Fill rows in that many processes. What is said of one, in the order of tasks, is said after it was written; at
    most a few batches per process are ahead of that."""
    done, crashed = 0, False
    while workers > 1 and len(tasks) - done >= _WORTH_A_POOL and (pool := _pool(workers)):
        try:
            for batch in _in_order(pool, tasks[done:], rows, 2 * workers):
                done += len(batch)
                yield from batch
        except BrokenProcessPool:  # a file in flight, or the system short of memory, ended a process
            crashed = True
            for said in _one_by_one(tasks[done : done + 2 * workers * _BATCH], rows):
                done += 1
                yield said
        finally:
            pool.shutdown(cancel_futures=True)
    yield from _one_by_one(tasks[done:], rows) if crashed else map(rows.decode, tasks[done:])


def _pool(workers: int) -> ProcessPoolExecutor | None:
    """Processes to decode in, all starting, one of which has proved to work; None where none can be started."""
    if multiprocessing.current_process().daemon:
        return None  # it may have no children
    context = multiprocessing.get_context("spawn")  # a fork would copy locks held by the threads of torch or BLAS
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        wait([_submit(pool, _ready) for _ in range(workers)], return_when=FIRST_COMPLETED).done.pop().result()
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
    Image.core.set_blocks_max(_BLOCKS_KEPT)  # type: ignore[attr-defined]  # as its manual has it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent(wait: Callable[[], None] = parent.join) -> None:
        wait()
        os._exit(1)  # a killed parent cannot tell its workers to stop

    threading.Thread(target=leave_with_parent, daemon=True).start()


def _ready() -> None:
    """Runs in a worker: it started, and found this module."""


def _in_order(pool: ProcessPoolExecutor, tasks: Sequence[Task], rows: RowFile, window: int) -> Iterator[list[Said]]:
    batches = (tasks[start : start + _BATCH] for start in range(0, len(tasks), _BATCH))
    pending = deque(_submit(pool, _decode_batch, batch, rows) for batch in islice(batches, window))
    while pending:
        yield pending.popleft().result()
        pending.extend(_submit(pool, _decode_batch, batch, rows) for batch in islice(batches, 1))


def _decode_batch(tasks: Sequence[Task], rows: RowFile) -> list[Said]:
    return [rows.decode(task) for task in tasks]


def _one_by_one(tasks: Sequence[Task], rows: RowFile) -> Iterator[Said]:
    """After a crash: each file alone in a process, so that the one to blame is known."""
    pool: ProcessPoolExecutor | None = None
    try:
        for task in tasks:
            said: Said | None = None
            for _ in range(2):  # a process may also be ended from outside
                pool = pool or _pool(1)
                try:
                    said = _submit(pool, rows.decode, task).result() if pool else rows.decode(task)
                    break
                except BrokenProcessPool:
                    pool = None
            yield said or rows.write(task[0], None, "unreadable: decoder crashed")
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
