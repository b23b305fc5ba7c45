"""A folder of pictures and a run on it, with edits, for the tests of what is exported."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from command_line import TINY, colours, worked
from twincluster.runs import Edits, Run

ODD = b"line\nbreak \xff.png"  # a name that holds a line break and is no UTF-8


def make_photos(folder: Path, n: int = 12) -> Path:
    """Pictures in three colours in two sub-folders, whose names repeat, an empty file, and one with an odd name."""
    pixels, _ = colours(n)
    for number, picture in enumerate(pixels):
        place = folder / ("a" if number % 2 else "b")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{number // 2}.png")
    (folder / "a" / "empty.png").touch()
    with open(os.fsencode(folder / "a") + b"/" + ODD, "wb") as file:
        Image.fromarray(pixels[0]).save(file, "PNG")
    return folder


def make_run(folder: Path, source: Path, *more: object) -> Run:
    worked("fit", source, "--clusters", 3, "--out", folder, *TINY, *more)
    return Run.open(folder)


def row_of(run: Run, path: str) -> int:
    return run.read_assignments().paths.index(path)


def edit(run: Run) -> Edits:
    """Cluster 0 becomes "cats/../dogs", two images go to a new cluster "odd ones", one is junk."""
    edits = Edits(run)
    edits.rename(0, "cats/../dogs")
    edits.move([row_of(run, "a/0.png"), row_of(run, "b/0.png")], name="odd ones")
    edits.mark_junk([row_of(run, "a/1.png")])
    return edits


def features(rows: np.ndarray) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(rows), 5)).astype(np.float32)


def files_in(folder: Path) -> dict[bytes, bytes]:
    """Content by relative name."""
    root = os.fsencode(folder)
    found = {}
    for place, _, names in os.walk(root):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found
