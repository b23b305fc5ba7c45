"""How images look: figures that tell dark, blurred or blank ones and screenshots, and small copies to compare.

Everything is computed from the decoded squares that training reads, so no file is decoded again; only the size of the
originals comes from their headers. Shapes: n images of s pixels a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image

from twincluster.core import available_cores
from twincluster.data.decoding import opened
from twincluster.data.listing import Input, open_input

SMALL = 32  # pixels a side of the grey copies
COLOURED = 16  # pixels a side of the coloured copies
JUDGED = 64  # pixels a side below which edges say nothing about blur and screenshots
TOGETHER = 256  # images handed to a thread at a time

# Thresholds, chosen on photographs of Imagenette's training set with spoilt ones among them; docs/results.md has the
# rates on others. Brightness is in shares of white, and of the image reduced to 32 x 32, so that noise does not count.
DARK = 0.12  # of the 99th percentile of brightness
BRIGHT = 0.82  # of the first percentile
BLANK = 0.03, 0.98  # most contrast in any channel, least share of pixels like their neighbours
BLURRED = 0.09  # of the 99th percentile of differences between neighbours, relative to the contrast of the image
TINY = 64  # pixels of the shorter edge, and ...
TINY_SHARE = 0.5  # ... of the median of the source, so that a source of small images is not tiny
SCREEN = 0.815  # of straight edges and strong ones, in a screenshot with ...
SHARP, FLAT, FEW_COLOURS = 0.42, 0.2, 0.65  # ... flat areas, and most pixels in six of 512 colours
DRAWN = 0.5  # share of flat pixels in the median image above which a source consists of drawings, not photographs
COMMON = 0.25  # share of the source above which a kind is what the source is about, not a problem
FEW = 20  # images below which that share means nothing
_STRONG, _SLANT = 24, 7  # levels between neighbours at a strong edge; one direction so much stronger: straight


@dataclass(frozen=True, eq=False)
class Looks:
    """Figures of n images, each (n,) float32, and copies of them."""

    low: np.ndarray  # first percentile of brightness
    high: np.ndarray  # 99th percentile
    span: np.ndarray  # largest contrast of a channel
    flat: np.ndarray  # share of pixels like their neighbours
    straight: np.ndarray  # share of strong edges that are horizontal or vertical
    sharp: np.ndarray  # 95th percentile of differences between neighbours
    edge: np.ndarray  # 99th percentile, relative to the contrast
    colours: np.ndarray  # share of pixels in the six most frequent of 512 colours
    side: np.ndarray  # pixels a side of the decoded square
    width: np.ndarray  # of the original, 0 where unknown
    height: np.ndarray
    grey: np.ndarray  # uint8 (n,32,32)
    coloured: np.ndarray  # uint8 (n,16,16,3)

    @classmethod
    def of(cls, pixels: np.ndarray, rows: Sequence[int], files: Sequence[Input] = ()) -> Looks:
        """Look at some rows of pixels (N,s,s,3), and at the headers of as many files, if there are any."""
        parts = [range(start, min(start + TOGETHER, len(rows))) for start in range(0, len(rows), TOGETHER)]
        with ThreadPoolExecutor(available_cores()) as threads:  # Pillow and most of NumPy release the GIL
            looked = list(threads.map(lambda part: [_look(pixels[rows[at]]) for at in part], parts))
            sizes = list(threads.map(lambda part: [_size_of(files[at]) if files else (0, 0) for at in part], parts))
        found = [each for part in looked for each in part]
        figures = np.array([each[0] for each in found], np.float32).reshape(len(rows), 8)
        side, size = np.full((len(rows), 1), pixels.shape[1]), np.array([each for part in sizes for each in part])
        columns = np.hstack([figures, side, size.reshape(-1, 2)]).astype(np.float32)
        grey = np.array([each[1] for each in found], np.uint8).reshape(-1, SMALL, SMALL)
        coloured = np.array([each[2] for each in found], np.uint8).reshape(-1, COLOURED, COLOURED, 3)
        return cls(*(*columns.T, grey, coloured))

    @classmethod
    def joined(cls, parts: Sequence[Looks]) -> Looks:
        return cls(*(np.concatenate(arrays) for arrays in zip(*(vars(part).values() for part in parts), strict=True)))

    def part(self, rows: np.ndarray) -> Looks:
        return Looks(*(array[rows] for array in vars(self).values()))

    @property
    def has_texture(self) -> np.ndarray:
        """(n,) whether there is anything to compare: noise in the dark and single colours are alike everywhere."""
        return np.asarray(self.grey.reshape(len(self.grey), -1).std(1) >= 3)

    @property
    def are_drawings(self) -> bool:
        """Whether the source consists of drawings: most of a usual image is flat."""
        return bool(len(self.flat) and np.median(self.flat) >= DRAWN)

    def detailed(self, screenshots: np.ndarray) -> np.ndarray:
        """Return (n,) whether images show enough to tell a copy from an image of the same kind."""
        return np.asarray((self.side >= JUDGED) & ~screenshots & (not self.are_drawings))

    def flaws(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return, by kind, which images (n,) have a flaw, and the figure (n,) that says so."""
        shorter = np.minimum(self.width, self.height)
        enlarged = (shorter > 0) & (shorter < 0.75 * self.side)  # which blurs
        judged = (self.side >= JUDGED) & ~enlarged
        usual = np.median(shorter[shorter > 0]) if (shorter > 0).any() else 0
        screen = (self.straight + 2 * np.minimum(self.sharp, SHARP)) / (1 + 2 * SHARP)
        plain = (self.flat >= FLAT) & (self.colours >= FEW_COLOURS) & (not self.are_drawings)
        found = {
            "dark": (self.high <= DARK, self.high),
            "bright": (self.low >= BRIGHT, self.low),
            "blank": ((self.span <= BLANK[0]) & (self.flat >= BLANK[1]), self.span),
            "blurred": (judged & (self.edge <= BLURRED) & (self.span > 2 * BLANK[0]), self.edge),
            "tiny": ((shorter > 0) & (shorter < TINY) & (shorter < TINY_SHARE * usual), shorter),
            "screenshot": (judged & plain & (screen >= SCREEN), screen),
        }
        return {kind: (_unless_common(mask), value) for kind, (mask, value) in found.items()}


def _size_of(file: Input) -> tuple[int, int]:
    try:
        with open_input(file) as content, opened(content, file) as image:
            return image.size
    except Exception:  # gone since it was decoded, or whatever Pillow makes of a damaged file
        return 0, 0


def _unless_common(mask: np.ndarray) -> np.ndarray:
    return np.asarray(mask & (mask.sum() <= max(FEW, COMMON * len(mask))))


def _look(pixels: np.ndarray) -> tuple[tuple[float, ...], np.ndarray, np.ndarray]:
    """Return the eight figures of an image, and its two copies."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    whole, box = image.convert("L"), Image.Resampling.BOX
    grey, small = np.asarray(whole.resize((SMALL, SMALL), box)), np.asarray(image.resize((SMALL, SMALL), box))
    brightness, channels = np.sort(grey, axis=None) / 255, np.sort(small.reshape(-1, 3), axis=0) / 255
    first, last = len(brightness) // 100, len(brightness) - 1 - len(brightness) // 100
    low, high = brightness[first], brightness[last]
    levels = np.asarray(whole).astype(np.int16)
    across, down = np.abs(np.diff(levels, axis=1)[:-1]), np.abs(np.diff(levels, axis=0)[:, :-1])
    change = np.maximum(across, down)
    up_to = np.cumsum(np.bincount(change.ravel(), minlength=256)) / change.size  # share of differences up to each
    strong = change > _STRONG
    straight = (strong & (_SLANT * np.minimum(across, down) <= change)).sum() / max(1, strong.sum())
    figures = (
        low,
        high,
        (channels[last] - channels[first]).max(),
        up_to[2],
        straight,
        np.searchsorted(up_to, 0.95) / 255,
        np.searchsorted(up_to, 0.99) / 255 / max(high - low, 0.05),
        _in_six_colours(image),
    )
    return tuple(map(float, figures)), grey, np.asarray(image.resize((COLOURED, COLOURED), box))


def _in_six_colours(image: Image.Image) -> float:
    sampled = np.asarray(image.resize((80, 80), Image.Resampling.NEAREST)).astype(np.int64) >> 5
    counts = np.bincount((sampled @ np.array([64, 8, 1])).ravel(), minlength=512)
    return float(np.sort(counts)[-6:].sum() / counts.sum())
