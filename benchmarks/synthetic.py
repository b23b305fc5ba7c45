"""Made-up images for benchmarks: noise, which costs what photographs cost once they are decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from twincluster.data import Images, Listing

SEED = 0
CHUNK = 10_000  # images written at once, so that making them needs little memory


def noise_images(count: int, side: int) -> Images:
    """`count` images of noise in memory."""
    return _images(_noise(np.random.default_rng(SEED), count, side))


def blank_images(count: int, side: int) -> Images:
    """`count` black images that take no memory, for whoever asks only about number and size."""
    return _images(np.broadcast_to(np.zeros((), dtype=np.uint8), (count, side, side, 3)))


def write_noise(path: Path, count: int, side: int) -> None:
    """`count` images of noise as a .npy file."""
    random = np.random.default_rng(SEED)
    pixels = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(count, side, side, 3))
    for start in range(0, count, CHUNK):
        pixels[start : start + CHUNK] = _noise(random, min(CHUNK, count - start), side)
    pixels.flush()


def _noise(random: np.random.Generator, count: int, side: int) -> np.ndarray:
    return random.integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def _images(pixels: np.ndarray) -> Images:
    count = len(pixels)
    listing = Listing("noise", tuple(map(str, range(count))), array=pixels)
    return Images(listing, pixels, ("ok",) * count, np.arange(count, dtype=np.int64), fingerprint="")
