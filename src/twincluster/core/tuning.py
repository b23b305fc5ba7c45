"""Tuning of this process: the garbage collector, freed memory, and how many threads compute."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection while many small objects are made that all stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def torch_for_good() -> Iterator[None]:
    """Wrap the first import of torch: it takes a seventh less time without garbage collection.

    What exists at the end is never collected. Process-wide; call only from the CLI.
    """
    if "torch" in sys.modules:
        yield
        return
    with uncollected():
        yield
        gc.freeze()


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h has them
_LARGEST = 1 << 25  # bytes, the most that glibc allows; blocks that are larger go back as before


def keep_freed() -> None:
    """Keep the memory that one training step frees for the next one, instead of handing it back to the system.

    glibc returns large blocks at once, and the kernel clears every page before it hands them out again: a seventh of
    the processor time where images are small. Process-wide; call only from the CLI. Does nothing without glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, -1)


def return_freed() -> None:
    """Hand the memory that is free back to the system. Does nothing without glibc."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


FEW = 2**16  # values in a batch of rows up to which one thread is taken; tried with half as many, on two cores


@contextmanager
def one_thread(enough: bool) -> Iterator[None]:
    """Compute with one thread where `enough` is true, then restore the number.

    A step on rows is some hundred small operations; joining threads after each costs more than they save.
    """
    import torch

    before = torch.get_num_threads()
    if enough:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
