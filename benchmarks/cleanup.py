"""How many planted copies, dark and blurred images and screenshots are found, and how many of the findings are right.

The folder is that of examples/messy_folder.py, with every change noted. `hard` makes the changes stronger: JPEG quality
30 to 94, sizes of .3 to 1.6, frames turned by up to 2 degrees, cut by up to 16 % and .75 to 1.3 times as bright, weaker
blurs, screenshots with windows and photographs in them. Photographs are counted as unlike unless one was made from the
other, so copies among the originals count against the precision.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter

from twincluster.core import InputError
from twincluster.data import Looks, open_images, open_source
from twincluster.nn import encode, load_encoder
from twincluster.runs import Inspected, contents_of, find_problems

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
messy: Any = importlib.import_module("messy_folder")
COPIES = {"exact": 50, "recompressed": 50, "resized": 40, "burst": 60, "cropped": 20}
SPOILT = {"dark": 20, "blurred": 20}
SCREENSHOTS, PHOTOGRAPHS = 40, 1_300


def measure(photos: Path, seed: int, hard: bool, with_encoder: bool) -> dict[str, tuple[float, float]]:
    """Return the share found and the precision by kind; processor seconds as `seconds`."""
    with tempfile.TemporaryDirectory() as place:
        truth = make(photos, Path(place), np.random.default_rng(seed), hard)
        images = open_images(open_source(place, labels="none"), side=160)
        features = encode(images, load_encoder("pretrained")).pixels if with_encoder else None
        start, paths = time.process_time(), images.listing.paths
        looks = Looks.of(images.pixels, range(len(paths)), images.listing.files or ())
        contents = list(contents_of(images, "crop").values())
        problems = find_problems(Inspected(paths, contents, looks, features))
        seconds = time.process_time() - start
    root = {path: of or path for path, (_, of) in truth.items()}
    copies = [problem for problem in problems if problem.copy_of]
    right = [problem for problem in copies if root[problem.path] == root[problem.copy_of]]
    touched = {path for problem in right for path in (problem.path, problem.copy_of)}
    precision = len(right) / max(1, len(copies))
    found = {}
    for kind in (*COPIES, "blurred"):
        planted = [path for path, (made, _) in truth.items() if made == kind]
        name = "blurred copy" if kind == "blurred" else kind
        found[name] = float(np.mean([path in touched for path in planted])), precision
    for kind in (*SPOILT, "screenshot"):
        named = {problem.path for problem in problems if problem.kind == kind}
        right_ones = {path for path in named if truth[path][0] == kind}
        many = sum(made == kind for made, _ in truth.values())
        found[kind] = len(right_ones) / many, len(right_ones) / max(1, len(named))
    return found | {"seconds": (seconds, len(paths))}


def make(photos: Path, out: Path, random: np.random.Generator, hard: bool) -> dict[str, tuple[str, str]]:
    """Write a messy folder. Return the kind of each image and the path that it was made from, by its path."""
    files = [file for _, file in messy.choose(photos, messy.Amounts(images=PHOTOGRAPHS + 240), random)]
    if len(files) < max(COPIES.values()):
        raise InputError(f"{photos} has too few photographs")
    truth: dict[str, tuple[str, str]] = {}

    def write(content: bytes, kind: str, of: str = "") -> str:
        name = f"{random.choice(['a', 'b', 'c'])}/IMG_{random.integers(10**9)}.jpg"
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(content)
        truth[name] = kind, of
        return name

    names = [write(_jpeg(_open(file)), "photo") for file in files]
    for kind, many in (COPIES | SPOILT).items():
        for at in random.choice(len(files), many, replace=False).tolist():
            content = CHANGES[kind](_open(files[at]), random, hard)
            write((out / names[at]).read_bytes() if kind == "exact" else content, kind, names[at])
    for _ in range(SCREENSHOTS):
        write(_screenshot(_open(files[int(random.integers(len(files)))]), random, hard), "screenshot")
    return truth


def _open(file: Path) -> Image.Image:
    return Image.open(file).convert("RGB")


def _jpeg(picture: Image.Image, quality: int = 90) -> bytes:
    return bytes(messy.as_jpeg(picture, quality))


def _recompressed(picture: Image.Image, random: np.random.Generator, hard: bool) -> bytes:
    return _jpeg(picture, int(random.integers(30, 95)) if hard else 60)


def _resized(picture: Image.Image, random: np.random.Generator, hard: bool) -> bytes:
    scale = random.uniform(0.3, 1.6) if hard else random.uniform(0.5, 0.9)
    return _jpeg(
        picture.resize((int(picture.width * scale), int(picture.height * scale))), int(random.integers(50, 95))
    )


def _burst(picture: Image.Image, random: np.random.Generator, hard: bool) -> bytes:
    if not hard:
        return _jpeg(messy.moment_later(picture, random))
    width, height = picture.size
    turned = picture.rotate(random.uniform(-2, 2), Image.Resampling.BICUBIC)
    left, top, right, bottom = random.uniform(0.02, 0.08, 4)
    box = int(left * width), int(top * height), int(width - right * width), int(height - bottom * height)
    part = turned.crop(box).resize((width, height), Image.Resampling.BICUBIC)
    return _jpeg(ImageEnhance.Brightness(part).enhance(random.uniform(0.75, 1.3)), int(random.integers(30, 95)))


def _cropped(picture: Image.Image, random: np.random.Generator, hard: bool) -> bytes:
    (width, height), most = picture.size, random.uniform(0.05, 0.12) if hard else random.uniform(0.02, 0.06)
    left, top, right, bottom = most * random.random(4)
    return _jpeg(
        picture.crop((int(left * width), int(top * height), int(width - right * width), int(height - bottom * height)))
    )


def _dark(picture: Image.Image, random: np.random.Generator, hard: bool) -> bytes:
    if not hard or random.random() < 0.5:
        return _jpeg(messy.black(picture.size, random))
    return _jpeg(ImageEnhance.Brightness(picture).enhance(random.uniform(0.01, 0.07)))


def _blurred(picture: Image.Image, random: np.random.Generator, hard: bool) -> bytes:
    width = random.uniform(14, 45) if hard else 14
    return _jpeg(picture.filter(ImageFilter.GaussianBlur(max(picture.size) / width)))


def _screenshot(picture: Image.Image, random: np.random.Generator, hard: bool) -> bytes:
    screen = messy.screenshot(random)
    if hard:
        width, height = [(1280, 720), (800, 1280), (1440, 900)][int(random.integers(3))]
        window, draw = Image.new("RGB", (width, height), screen.getpixel((5, 70))), ImageDraw.Draw(screen)
        draw.rectangle((0, 0, 360, int(random.integers(10, 50))), fill=tuple(random.integers(40, 220, 3).tolist()))
        for left in range(0, width, 380):
            window.paste(screen.crop((0, 0, 360, 640)), (left, int(random.integers(0, max(1, height - 640)))))
        picture.thumbnail((width // 4, height // 4))
        window.paste(
            picture, (int(random.integers(0, width - picture.width)), int(random.integers(0, height - picture.height)))
        )
        screen = window
    return _jpeg(screen)


CHANGES: dict[str, Callable[[Image.Image, np.random.Generator, bool], bytes]] = {
    "exact": lambda picture, random, hard: b"",
    "recompressed": _recompressed,
    "resized": _resized,
    "burst": _burst,
    "cropped": _cropped,
    "dark": _dark,
    "blurred": _blurred,
}


def table(rows: dict[str, dict[str, tuple[float, float]]]) -> str:
    """Return a table with a row per kind and a column per measurement."""
    kinds = [kind for kind in next(iter(rows.values())) if kind != "seconds"]
    lines = ["| kind | " + " | ".join(rows) + " |", "|---|" + "---|" * len(rows)]
    for kind in kinds:
        cells = [f"{found[kind][0]:.3f} / {found[kind][1]:.3f}" for found in rows.values()]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    cells = [f"{found['seconds'][0]:.1f} s for {found['seconds'][1]:,.0f}" for found in rows.values()]
    return "\n".join([*lines, "| processor time | " + " | ".join(cells) + " |"])
