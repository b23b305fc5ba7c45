"""Python's garbage collector, kept away from many things that are made at once and all stay."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
