"""Decode many files in several processes, in order; a file that ends its process costs its own row only."""

import multiprocessing
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice
from typing import ParamSpec, TypeVar

from twincluster.images.decode import Decoded, Frame, decode
from twincluster.images.inputs import Input

P = ParamSpec("P")
T = TypeVar("T")
Decoder = Callable[[Input], Decoded]

_BATCH = 16  # files handed to a process at a time
_WORTH_A_POOL = 96  # starting processes takes longer than decoding fewer files than this


def decode_many(
    files: Sequence[Input], side: int, workers: int, frame: Frame = "crop"
) -> Generator[Decoded, None, None]:
    """Decode in the order of files, in that many processes; never more than a few batches per process are held."""
    one = partial(decode, side=side, frame=frame)
    done, crashed = 0, False
    while workers > 1 and len(files) - done >= _WORTH_A_POOL and (pool := _pool(workers)):
        try:
            for batch in _in_order(pool, files[done:], one, 2 * workers):
                done += len(batch)
                yield from batch
        except BrokenProcessPool:  # a file in flight, or the system short of memory, ended a process
            crashed = True
            for result in _one_by_one(files[done : done + 2 * workers * _BATCH], one):
                done += 1
                yield result
        finally:
            pool.shutdown(cancel_futures=True)
    yield from _one_by_one(files[done:], one) if crashed else map(one, files[done:])


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


def _in_order(pool: ProcessPoolExecutor, files: Sequence[Input], one: Decoder, window: int) -> Iterator[list[Decoded]]:
    batches = (files[start : start + _BATCH] for start in range(0, len(files), _BATCH))
    pending = deque(_submit(pool, _decode_batch, batch, one) for batch in islice(batches, window))
    while pending:
        yield pending.popleft().result()
        pending.extend(_submit(pool, _decode_batch, batch, one) for batch in islice(batches, 1))


def _decode_batch(files: Sequence[Input], one: Decoder) -> list[Decoded]:
    return [one(file) for file in files]


def _one_by_one(files: Sequence[Input], one: Decoder) -> Iterator[Decoded]:
    """After a crash: each file alone in a process, so that the one to blame is known."""
    pool: ProcessPoolExecutor | None = None
    try:
        for file in files:
            result: Decoded = None, "unreadable: decoder crashed"
            for _ in range(2):  # a process may also be ended from outside
                pool = pool or _pool(1)
                try:
                    result = _submit(pool, one, file).result() if pool else one(file)
                    break
                except BrokenProcessPool:
                    pool = None
            yield result
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
