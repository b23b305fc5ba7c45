"""How fast files become a store, beside what Pillow alone decodes, and how soon the next run starts on that store.

Pillow opens, drafts, converts, crops and resizes as decode.py does, in as many processes, which are there already and
keep nothing. The build is timed as `fit` meets it: from a listing to a finished store, its processes included.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from benchmarks.common import cpu_seconds, make_pictures, python_path
from twincluster.core import torch_for_good
from twincluster.data import Listing, open_images, open_source

GOAL, START_GOAL = 0.8, 2.0  # of Pillow's speed; seconds
BATCH = 16  # files that a process takes at a time
PHOTO = (500, 375)  # pixels of a made-up photograph
THUMBNAIL = (32, 32)
MOMENTS = ("imports", "files listed", "store opened", "first batch")
CHILD = "import sys; from benchmarks.store import first_batch; first_batch(sys.argv[1])"
BARE = "import torch"


@dataclass(frozen=True)
class BuildSpeed:
    """One figure for each round."""

    count: int
    side: int
    workers: int
    pillow: list[float]  # seconds
    pillow_cpu: list[float]  # seconds of all processes together
    build: list[float]
    build_cpu: list[float]

    def to_text(self) -> str:
        rounds = f"median of {len(self.build)} rounds"
        lines = [
            f"{self.count:,} JPEG files decoded at {self.side} px, {self.workers} processes, {rounds}",
            f"{'':26}{'images/s':>10}{'share':>8}{'per CPU s':>12}{'share':>8}",
            f"{'Pillow alone':26}{self._rate(self.pillow)}{'':8}{self._rate(self.pillow_cpu, 12)}",
        ]
        shares = f"{self.share:>8.0%}{self._rate(self.build_cpu, 12)}{self.cpu_share:>8.0%}"
        return "\n".join([*lines, f"{'store built':26}{self._rate(self.build)}{shares}", f"goal: {GOAL:.0%} of Pillow"])

    @property
    def share(self) -> float:
        return _share(self.pillow, self.build)

    @property
    def cpu_share(self) -> float:
        return _share(self.pillow_cpu, self.build_cpu)

    def _rate(self, seconds: list[float], width: int = 10) -> str:
        return f"{self.count / statistics.median(seconds):>{width},.0f}"


@dataclass(frozen=True)
class SecondStart:
    """Seconds after the start of a process, by moment; one figure for each run."""

    count: int
    bare: list[float]  # of a process that imports torch, from start to end
    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]  # of processor time

    def to_text(self) -> str:
        lines = [
            f"second start on {self.count:,} files, seconds since the process began, median of {len(self.bare)} runs",
            f"{'':26}{'median':>9}{'fastest':>9}{'CPU':>9}",
            f"{'a process with torch':26}{statistics.median(self.bare):9.2f}{min(self.bare):9.2f}",
        ]
        for name, wall in self.wall.items():
            lines.append(
                f"{name:26}{statistics.median(wall):9.2f}{min(wall):9.2f}{statistics.median(self.cpu[name]):9.2f}"
            )
        return "\n".join([*lines, f"goal: first batch within {START_GOAL:.0f} s"])


def measure_build(source: str | None, images: int, side: int, rounds: int) -> BuildSpeed:
    """Pillow and the build take turns on the same files, after one turn of each that warms up the file cache."""
    with tempfile.TemporaryDirectory() as folder:
        if source is None:
            make_pictures(Path(folder) / "photos", images, PHOTO)
        listing = open_source(source or Path(folder) / "photos")
        listing = listing.part(range(min(images, len(listing.paths))))
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        pillow, build = [], []
        with pillow_alone(listing, side, workers) as decode:
            for turn in range(rounds + 1):
                theirs, ours = _cost(decode), _cost(lambda: _build(listing, side, workers))
                if turn:
                    pillow.append(theirs)
                    build.append(ours)
    return BuildSpeed(len(listing.paths), side, workers, *_columns(pillow), *_columns(build))


def _cost(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the wall, and of processor time."""
    start, spent = time.perf_counter(), cpu_seconds()
    work()
    return time.perf_counter() - start, cpu_seconds() - spent


def _columns(costs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [wall for wall, _ in costs], [cpu for _, cpu in costs]


@contextmanager
def pillow_alone(listing: Listing, side: int, workers: int) -> Iterator[Callable[[], int]]:
    """What decodes all files of a listing once, and says how many they were."""
    files = [str(file) for file in listing.files or ()]
    parts = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda: sum(pool.map(_decode, parts, [side] * len(parts)))


def _decode(files: Sequence[str], side: int) -> int:
    for file in files:
        with Image.open(file) as image:
            image.draft(None, (2 * side, 2 * side))
            plain = image.convert("RGB")
            edge = min(plain.size)
            left, top = (plain.width - edge) // 2, (plain.height - edge) // 2
            square = plain.crop((left, top, left + edge, top + edge))
            square.resize((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return len(files)


def _build(listing: Listing, side: int, workers: int) -> None:
    with tempfile.TemporaryDirectory() as cache:
        open_images(listing, side=side, cache=Path(cache), workers=workers)


def measure_start(images: int, runs: int) -> SecondStart:
    """Build a store of small pictures, then start on it again and again, each time in a process of its own."""
    bare: list[float] = []
    wall: dict[str, list[float]] = {name: [] for name in MOMENTS}
    cpu: dict[str, list[float]] = {name: [] for name in MOMENTS}
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        make_pictures(photos, images, THUMBNAIL)
        environment = os.environ | {"TWINCLUSTER_CACHE": str(Path(folder) / "cache"), "PYTHONPATH": python_path()}
        for turn in range(runs + 1):
            began = time.monotonic()
            subprocess.run([sys.executable, "-c", BARE], check=True)
            ended = time.monotonic()
            told = subprocess.run(
                [sys.executable, "-c", CHILD, str(photos)], env=environment, stdout=subprocess.PIPE, check=True
            )
            if turn:  # the first one builds
                bare.append(ended - began)
                for name, (moment, spent) in json.loads(told.stdout).items():
                    wall[name].append(moment - ended)
                    cpu[name].append(spent)
    return SecondStart(images, bare, wall, cpu)


def first_batch(folder: str) -> None:
    """What `fit` does with a folder until the first batch is there; prints when each part of it was done."""
    with torch_for_good():  # as the command line does
        import torch

        from twincluster.config import Config
        from twincluster.data import Feed
        from twincluster.fit import fit  # noqa: F401  what it imports, `fit` imports
        from twincluster.model import open_for
        from twincluster.resolve import with_image_size
        from twincluster.runs import stamps_of

    done = [_moment()]
    listing = open_source(folder)
    stamps_of(listing)
    config = with_image_size(Config(), listing)
    done.append(_moment())
    images = open_for(config, listing)
    done.append(_moment())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    next(Feed(images, min(512, len(images.usable)), 0, device).epoch(0))
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(json.dumps(dict(zip(MOMENTS, [*done, _moment()], strict=True))))


def _moment() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def _share(theirs: list[float], ours: list[float]) -> float:
    """Of their speed that ours has: the median over rounds, each compared within itself."""
    return statistics.median(one / other for one, other in zip(theirs, ours, strict=True))
