"""Folders of small pictures for the tests of the store, and ways to look at what became of them."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from twincluster.data import Images, open_images, open_source

SIDE = 8


def photos(folder: Path, count: int = 6) -> Path:
    """Pictures that differ from each other, one of them cut short."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = random.integers(0, 256, (12, 10, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    cut = folder / "001.png"
    cut.write_bytes(cut.read_bytes()[:60])
    return folder


def spoil(file: Path) -> None:
    """Replace what a file holds but not its size and time: only who decodes it again can tell."""
    found = file.stat()
    file.write_bytes(b"\0" * found.st_size)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def opened(folder: Path, **options: object) -> Images:
    return open_images(open_source(folder), side=SIDE, workers=1, **options)  # type: ignore[arg-type]


def same(one: Images, other: Images) -> bool:
    return bool(np.array_equal(one.pixels, other.pixels)) and (one.status, one.fingerprint) == (
        other.status,
        other.fingerprint,
    )
