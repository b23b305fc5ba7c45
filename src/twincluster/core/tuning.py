"""Python's garbage collector, kept away from many things that are made at once and all stay.

Memory that one step of training frees and the next one takes again: it stays with the process in between.

glibc hands it back to the system, which clears every page before it gives it away again. On a CPU that took a seventh
of all processor time where images are small.

How many threads compute. A step on rows is some hundred small operations, after each of which threads meet: that
costs more than it brings, and far more where cores are busy and whoever waits spins.
"""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch


@contextmanager
def uncollected() -> Iterator[None]:
    """While many small things are made that all stay, Python need not look through them for rubbish again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def torch_for_good() -> Iterator[None]:
    """Around the first import of torch in a process of our own: a seventh of its time is spent on looking through a
    quarter of a million objects that all stay. They are not looked through later either; nor is what else there is by
    now, so that this is not for a program that somebody else has written."""
    if "torch" in sys.modules:
        yield
        return
    with uncollected():
        yield
        gc.freeze()


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h has them
_LARGEST = 1 << 25  # bytes, the most that glibc allows; blocks that are larger go back as before


def keep_freed() -> None:
    """From now on in this process, which had better be one of our own. Without glibc nothing changes."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, -1)


FEW = 2**16  # values in a batch of rows up to which one thread is taken; tried with half as many, on two cores


@contextmanager
def one_thread(enough: bool) -> Iterator[None]:
    """Where one is enough; afterwards there are as many as before."""
    before = torch.get_num_threads()
    if enough:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
