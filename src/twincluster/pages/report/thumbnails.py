"""Small pictures in a few large ones: a sheet of tiles is smaller and much quicker to decode than a file for each."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image, features

SIDES = (160, 128, 96, 64, 48, 32)  # of a tile; multiples of 16, so that no block of the codec lies across two of them
QUALITIES = (78, 60, 40)
SHEET = 2048  # pixels a side of a whole sheet, which phones still decode at full size
SMALLEST = 32  # sides below are enlarged by whole numbers: codecs smear what is smaller than a block
PROBED = 96  # tiles that tell how large all of them will be


@dataclass(frozen=True)
class Sheets:
    """Tile t lies in sheet t // per_sheet, row by row."""

    count: int  # of tiles
    side: int  # of a tile in pixels
    columns: int
    per_sheet: int
    kind: str  # "image/webp" or "image/jpeg"
    images: tuple[bytes, ...]

    def to_dict(self) -> dict[str, int]:
        return {"count": self.count, "side": self.side, "columns": self.columns, "perSheet": self.per_sheet}


class Squares(Protocol):
    """Pictures by their row: an array (n,s,s,3), or what is made of several."""

    def __getitem__(self, row: int, /) -> np.ndarray: ...


def make_sheets(pictures: Squares, rows: np.ndarray, *, budget: int, largest: int) -> Sheets:
    """Tiles of the given rows of `pictures`, as large and as good as `budget` bytes allow."""
    own = len(pictures[int(rows[0])]) if len(rows) else SMALLEST
    sides = [side for side in SIDES if side <= min(largest, own)] or [own * -(-SMALLEST // own)]
    probe = rows[np.linspace(0, len(rows) - 1, min(PROBED, len(rows))).astype(np.int64)] if len(rows) else rows
    for side, quality in ((side, quality) for side in sides for quality in QUALITIES):
        expected = sum(map(len, _encoded(pictures, probe, side, quality))) * len(rows) / max(1, len(probe))
        if expected <= budget or (side, quality) == (sides[-1], QUALITIES[-1]):
            break
    images = _encoded(pictures, rows, side, quality)
    columns = SHEET // side
    return Sheets(len(rows), side, columns, columns * columns, _codec()[1], tuple(images))


def tile(picture: np.ndarray, side: int) -> np.ndarray:
    """(side,side,3) uint8 of a square picture; small ones keep their pixels as squares."""
    if len(picture) == side:
        return picture
    how = Image.Resampling.NEAREST if side > len(picture) else Image.Resampling.BOX
    if side < len(picture) < 2 * side:
        how = Image.Resampling.LANCZOS
    return np.asarray(Image.fromarray(np.ascontiguousarray(picture)).resize((side, side), how))


def _encoded(pictures: Squares, rows: np.ndarray, side: int, quality: int) -> list[bytes]:
    columns, found = SHEET // side, []
    for start in range(0, len(rows), columns * columns):
        part = rows[start : start + columns * columns]
        high = -(-len(part) // columns)
        sheet = np.zeros((high * side, columns * side, 3), np.uint8)
        for position, row in enumerate(part):
            top, left = position // columns * side, position % columns * side
            sheet[top : top + side, left : left + side] = tile(pictures[int(row)], side)
        found.append(_encode(sheet, quality))
    return found


def _encode(sheet: np.ndarray, quality: int) -> bytes:
    name, _ = _codec()
    options = {"method": 4} if name == "WEBP" else {"optimize": True}
    written = io.BytesIO()
    Image.fromarray(sheet).save(written, name, quality=quality, **options)
    return written.getvalue()


def _codec() -> tuple[str, str]:
    return ("WEBP", "image/webp") if features.check("webp") else ("JPEG", "image/jpeg")
