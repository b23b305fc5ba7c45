"""What every test stands on: one thread per process, a cache of its own, digits, and a folder of small pictures.

The settings go into the environment before anything imports torch, so that processes a test starts inherit them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from browsing import Browser

# Sums depend on how they are split over threads: with one, equal means equal, and two test processes share two cores.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"
os.environ["MPLBACKEND"] = "Agg"

KINDS = ("blue-rings", "green-columns", "red-rows")
PER_KIND = 20


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and configuration for each test: none touches the home folder or finds what another left."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    return cache


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A Chromium for all tests of a file: while one runs, nothing else in this thread can run an event loop."""
    from browsing import chromium

    with chromium() as running:
        yield running


@pytest.fixture
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """scikit-learn's digits as pixels of 0 to 255, (1797, 8, 8), and their labels, (1797,)."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    return np.round(loaded.images * (255 / 16)).astype(np.uint8), loaded.target.astype(np.int64)


@pytest.fixture
def photo_folder(tmp_path: Path) -> Path:
    """60 readable pictures of three kinds, a sub-folder each, in mixed sizes, formats and modes, and three other files.

    `blue-rings/truncated.jpg` breaks off half-way, `red-rows/empty.png` has no byte, `notes.txt` is no picture at all.
    """
    folder = tmp_path / "photos"
    random = np.random.default_rng(0)
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
        for number in range(PER_KIND):
            suffix = ("jpg", "png", "JPG", "jpeg")[number % 4]
            picture = _picture(kind, random)
            if suffix == "png" and number % 8 == 5:
                picture.putalpha(255)
            picture.save(folder / kind / f"{number:02d}.{suffix}")
    whole = (folder / "blue-rings" / "00.jpg").read_bytes()
    (folder / "blue-rings" / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "red-rows" / "empty.png").touch()
    (folder / "notes.txt").write_text("taken on a rainy day\n")
    return folder


def _picture(kind: str, random: np.random.Generator) -> Image.Image:
    """A noisy wave in the kind's colour and direction; height, width, phase and wavelength are drawn."""
    height, width = random.integers(40, 72, size=2)
    rows, columns = np.mgrid[:height, :width].astype(float)
    distance = {
        "blue-rings": np.hypot(rows - height / 2, columns - width / 2),
        "green-columns": columns,
        "red-rows": rows,
    }[kind]
    wave = 0.5 + 0.5 * np.sin(2 * np.pi * (distance / random.uniform(8, 14) + random.uniform()))
    pixels = random.uniform(20, 70, size=(height, width, 3))
    pixels[..., ("red", "green", "blue").index(kind.split("-")[0])] += 170 * wave
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
