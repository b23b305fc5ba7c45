"""Make a messy folder from labelled photographs, with copies, burst frames, screenshots, black and blurred images.

    python examples/messy_folder.py PHOTOS OUT

PHOTOS has a folder of photographs for each kind, such as Imagenette's. OUT/images gets 1,600 files in folders that say
nothing about kinds, and OUT/truth.csv the kind of each, "junk" for screenshots and for black or blurred images. Then

    twincluster fit OUT/images --backbone pretrained --clusters 10 --out runs/messy
    python examples/messy_browser.py runs/messy OUT/truth.csv
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
JUNK = "junk"
FOLDERS = ("2019 phone", "backup/DCIM", "backup/DCIM (1)", "from Anna", "sorted later")


@dataclass(frozen=True)
class Amounts:
    kinds: int = 10
    images: int = 1_600  # of these:
    copies: int = 100  # the same photograph once more, half of them encoded anew
    frames: int = 60  # of bursts: a photograph a moment later
    screenshots: int = 40
    spoilt: int = 40  # black or blurred

    @property
    def photographs(self) -> int:
        return self.images - self.copies - self.frames - self.screenshots - self.spoilt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    truth = make(given.photos, given.out, seed=given.seed)
    print(f"{len(truth):,} images in {given.out / 'images'}, their kinds in {given.out / 'truth.csv'}")


def make(photos: Path, out: Path, amounts: Amounts | None = None, seed: int = 0) -> dict[str, str]:
    """Write the folder; return the kind of each image by its path below OUT/images."""
    amounts, rng = amounts or Amounts(), np.random.default_rng(seed)
    truth: dict[str, str] = {}
    numbers = iter(rng.permutation(amounts.images) + 1_000)
    for kind, content in messy(photos, amounts, rng):
        path = Path(str(rng.choice(FOLDERS))) / f"IMG_{next(numbers)}.jpg"
        file = out / "images" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        truth[path.as_posix()] = kind
    with (out / "truth.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        rows.writerows(sorted(truth.items()))
    return truth


def messy(photos: Path, amounts: Amounts, rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """Yield the kind and the content of each image."""
    chosen = choose(photos, amounts, rng)
    for kind, file in chosen:
        yield kind, as_jpeg(Image.open(file).convert("RGB"))
    for at in rng.choice(len(chosen), amounts.copies, replace=False):
        kind, file = chosen[at]
        yield kind, as_jpeg(Image.open(file).convert("RGB"), 90 if at % 2 else 60)
    for at in rng.choice(len(chosen), amounts.frames, replace=False):
        kind, file = chosen[at]
        yield kind, as_jpeg(moment_later(Image.open(file).convert("RGB"), rng))
    for _ in range(amounts.screenshots):
        yield JUNK, as_jpeg(screenshot(rng))
    for number, at in enumerate(rng.choice(len(chosen), amounts.spoilt, replace=False)):
        picture = Image.open(chosen[at][1]).convert("RGB")
        yield JUNK, as_jpeg(black(picture.size, rng) if number % 2 else blurred(picture))


def choose(photos: Path, amounts: Amounts, rng: np.random.Generator) -> list[tuple[str, Path]]:
    """As many photographs of each kind, give or take one."""
    kinds = sorted(folder for folder in photos.iterdir() if folder.is_dir())[: amounts.kinds]
    if len(kinds) < amounts.kinds:
        raise SystemExit(f"{photos} has {len(kinds)} folders of photographs, {amounts.kinds} are needed")
    chosen = []
    for number, folder in enumerate(kinds):
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
        many = amounts.photographs // len(kinds) + (number < amounts.photographs % len(kinds))
        if len(files) < many:
            raise SystemExit(f"{folder} has {len(files):,} photographs, {many:,} are needed")
        chosen += [(folder.name, files[at]) for at in rng.choice(len(files), many, replace=False)]
    return chosen


def moment_later(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The camera has moved a little, and the light too."""
    width, height = picture.size
    left, top = (int(side * rng.uniform(0, 0.04)) for side in (width, height))
    part = picture.crop((left, top, width - int(0.03 * width), height - int(0.03 * height))).resize((width, height))
    return ImageEnhance.Brightness(part).enhance(rng.uniform(0.9, 1.1))


def screenshot(rng: np.random.Generator) -> Image.Image:
    """A window with a bar, lines of text and some buttons."""
    dark = rng.random() < 0.4
    paper, ink = ((30, 32, 36), (200, 200, 205)) if dark else ((250, 250, 250), (60, 60, 65))
    picture = Image.new("RGB", (360, 640), paper)
    draw = ImageDraw.Draw(picture)
    colour = tuple(int(part) for part in rng.integers(40, 220, 3))
    draw.rectangle((0, 0, 360, 56), fill=colour)
    for line in range(76, 600, 18):
        if rng.random() < 0.85:
            draw.rectangle((20, line, 20 + int(rng.integers(60, 320)), line + 7), fill=ink)
    for _ in range(int(rng.integers(1, 4))):
        left, top = int(rng.integers(20, 240)), int(rng.integers(80, 580))
        draw.rounded_rectangle((left, top, left + 100, top + 34), 8, fill=colour)
    return picture


def black(size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """A photograph of the inside of a pocket."""
    noise = rng.integers(0, 14, (size[1], size[0], 3)).astype(np.uint8)
    return Image.fromarray(noise)


def blurred(picture: Image.Image) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(max(picture.size) / 14))


def as_jpeg(picture: Image.Image, quality: int = 90) -> bytes:
    written = io.BytesIO()
    picture.save(written, "JPEG", quality=quality)
    return written.getvalue()


if __name__ == "__main__":
    main()
