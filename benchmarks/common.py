"""What several benchmarks share: made-up images, processor time, peak memory, and the environment of child processes.

Imports no torch, because `store` and `memory` measure processes that start without it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from twincluster.data import Images, Listing

SEED = 0
CHUNK = 10_000  # images written at once, to keep memory small
DIFFERENT = 64  # JPEG files that are really encoded; the others are hard links to them
PER_FOLDER = 1000
TICK = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01  # seconds, the grain of the times in /proc


# -- made-up images: noise costs what photographs cost once they are decoded -------------------------------------------


def noise_images(count: int, side: int) -> Images:
    """Return images of noise in memory."""
    return _images(_noise(np.random.default_rng(SEED), count, side))


def blank_images(count: int, side: int) -> Images:
    """Return black images that take no memory, for code that needs only their number and size."""
    return _images(np.broadcast_to(np.zeros((), dtype=np.uint8), (count, side, side, 3)))


def write_noise(path: Path, count: int, side: int) -> None:
    """Write images of noise as a .npy file."""
    random = np.random.default_rng(SEED)
    pixels = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(count, side, side, 3))
    for start in range(0, count, CHUNK):
        pixels[start : start + CHUNK] = _noise(random, min(CHUNK, count - start), side)
    pixels.flush()


def make_pictures(folder: Path, count: int, size: tuple[int, int]) -> None:
    """Write JPEG files of smooth waves with some grain, PER_FOLDER to a folder; most of them are hard links."""
    random = np.random.default_rng(0)
    originals = folder.with_name(folder.name + "-originals")
    originals.mkdir(parents=True)
    for number in range(min(count, DIFFERENT)):
        _picture(random, size).save(originals / f"{number}.jpg", quality=90)
    for number in range(count):
        file = folder / f"{number // PER_FOLDER:04}" / f"{number:07}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        os.link(originals / f"{number % DIFFERENT}.jpg", file)


def _noise(random: np.random.Generator, count: int, side: int) -> np.ndarray:
    return random.integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def _images(pixels: np.ndarray) -> Images:
    count = len(pixels)
    listing = Listing("noise", tuple(map(str, range(count))), array=pixels)
    return Images(listing, pixels, ("ok",) * count, np.arange(count, dtype=np.int64), fingerprint="")


def _picture(random: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    width, height = size
    rows, columns = np.mgrid[:height, :width] / max(size)
    pixels = random.normal(0, 8, (height, width, 3))
    for _ in range(6):
        down, across, phase = (*random.uniform(-25, 25, 2), random.uniform(0, 2 * np.pi))
        wave = np.sin(down * rows + across * columns + phase)
        pixels += random.uniform(5, 30, 3) * wave[..., None]
    return Image.fromarray((128 + pixels).clip(0, 255).astype(np.uint8))


# -- processes ---------------------------------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """Return the processor time of this process and its children, ended or running; nan where /proc is missing.

    A busy machine changes it less than wall time.
    """
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    for child in multiprocessing.active_children():
        try:
            user, system = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:
            return math.nan
        total += (int(user) + int(system)) * TICK
    return total


def peak_memory(process: int | str = "self") -> int | None:
    """Return the most resident memory a process ever held, in bytes; None where /proc does not tell."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def python_path() -> str:
    """Return a PYTHONPATH with which a child process finds `benchmarks` from any working directory."""
    places = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    return os.pathsep.join(filter(None, places))


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables, and put back what was there before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
