"""Checksums of cached arrays: a page that a disk lost, or that another program wrote, must not change results.

Comparing all of a large array takes as long as reading it, so that happens only where its size or its time of change is
not what it was when it was last compared, and at each opening for a sample of blocks: of small arrays for all of them.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from twincluster.core import write_atomically

SAMPLE_BYTES = 1 << 25  # of an array that is compared at each opening, ...
FEWEST = 256  # ... but no fewer blocks than these, and of a larger array no more
_VERSION = 1  # of the files with checksums


def digest_of(values: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=8).hexdigest()


def state_of(path: Path) -> list[int]:
    """Size and time of change of a file: as long as they stay, so does most likely what is in it."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def sample_of(count: int, block_bytes: int) -> Sequence[int]:
    """Which blocks to compare at an opening, other ones each time."""
    if count * block_bytes <= SAMPLE_BYTES or count <= FEWEST:
        return range(count)
    return random.SystemRandom().sample(range(count), FEWEST)  # leaves the seeded generators alone


class Sums(NamedTuple):
    """The checksums of an array's blocks, in a file beside it."""

    block: int  # rows in each, but for the last
    digests: list[str]
    state: list[int]  # of the array's file when all of it was compared, or written

    def write(self, array: Path) -> None:
        written = {"version": _VERSION, "block": self.block, "state": self.state, "digests": self.digests}
        write_atomically(sums_of(array), json.dumps(written))

    def damaged(self, values: np.ndarray, array: Path) -> list[int]:
        """The blocks of an array that are not what they were; of a file that has not changed among a sample."""
        blocks: Sequence[int] = range(len(self.digests))
        if self.state == state_of(array):
            blocks = sample_of(len(blocks), self.block * values[:1].nbytes)
            if not self._other(values, blocks):
                return []
        return self._other(values, range(len(self.digests)))

    def _other(self, values: np.ndarray, blocks: Sequence[int]) -> list[int]:
        return [
            number
            for number in blocks
            if digest_of(values[number * self.block : (number + 1) * self.block]) != self.digests[number]
        ]


def read_sums(array: Path, rows: int) -> Sums | None:
    """None where there are none that could be of an array of so many rows."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        written = json.loads(sums_of(array).read_bytes())
        sums = Sums(int(written["block"]), list(map(str, written["digests"])), list(written["state"]))
        if written["version"] == _VERSION and sums.block > 0 and len(sums.digests) == -(-rows // sums.block):
            return sums
    return None


def sums_of(array: Path) -> Path:
    return array.with_suffix(".sums")
