"""How many threads compute. A step on rows is some hundred small operations, after each of which threads meet: that
costs more than it brings, and far more where cores are busy and whoever waits spins."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
