"""One HTML file of a run: data, pictures, styles and scripts inside, nothing to fetch from anywhere.

The page's own policy allows its one script and its one style sheet by their digests and no request at all, so that
neither markup in a name nor a forgotten address can do anything.

Small pictures in a few large ones: a sheet of tiles is smaller and much quicker to decode than a file for each.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image, features

from twincluster.core import InputError, finite, write_atomically
from twincluster.data import Listing
from twincluster.pages.report.gather import Gathered, gather
from twincluster.pages.report.material import Material, open_material
from twincluster.pages.web import read_asset
from twincluster.runs import REPORT_FILE, Run

LARGE_BYTES, SMALL_BYTES = 4_500_000, 3_500_000  # of pictures; as text they take a third more
LARGEST, SMALLER = 160, 64  # pixels a side of a tile on a card and on the map


def write_report(
    run: Run,
    labels: str | None = None,
    root: Path | None = None,
    *,
    source: Listing | None = None,
    decoding: Callable[[int, int], None] | None = None,
) -> tuple[Path, Material, Gathered]:
    """Writes RUN/report.html; `labels`, `root` and `source` as `open_material` takes them."""
    material = open_material(run, labels, root, source=source, decoding=decoding)
    path = run.folder / REPORT_FILE
    if material.pictures is None and _has_pictures(path):
        raise InputError(
            f"{material.no_pictures}: {path}, which has their pictures, is left as it is. Put the images back, or "
            "delete that page to have one without pictures"
        )
    gathered = gather(material)
    write_atomically(path, page_of(material, gathered))
    return path, material, gathered


def page_of(material: Material, gathered: Gathered) -> str:
    """The whole page as text."""
    sheets = sheets_of(material, gathered)
    data = gathered.data | {
        "thumbnails": gathered.data["thumbnails"] | {name: s.to_dict() for name, s in sheets.items()}
    }
    script, style = read_asset("built/report.js"), read_asset("page.css")
    title = gathered.data["head"]["title"]
    pieces = {
        "policy": f"default-src 'none'; img-src data: blob:; script-src {_digest(script)}; style-src {_digest(style)}",
        "title": html.escape(title),
        "style": style,
        "sentences": html.escape(" ".join(gathered.data["head"]["sentences"])),
        "data": as_json(data),
        "sheets": as_json({name: [_address(s.kind, image) for image in s.images] for name, s in sheets.items()}),
        "script": script,
    }
    text = read_asset("report/report.html")
    before, *rest = text.split("{{")
    return before + "".join(pieces[name] + after for name, _, after in (piece.partition("}}") for piece in rest))


def sheets_of(material: Material, gathered: Gathered) -> dict[str, Sheets]:
    """Tiles for cards and for the map, within their budgets."""
    if material.pictures is None:
        return {}
    wanted = (("large", gathered.large, LARGE_BYTES, LARGEST), ("small", gathered.small, SMALL_BYTES, SMALLER))
    return {
        name: make_sheets(material.pictures, np.asarray(rows, dtype=np.int64), budget=budget, largest=side)
        for name, rows, budget, side in wanted
    }


def _has_pictures(path: Path) -> bool:
    return path.is_file() and b'id="sheets">{"large"' in path.read_bytes()


def as_json(value: Any) -> str:
    """JSON that may stand inside a script element: no < can end it, whatever a file is called."""
    compact = json.dumps(finite(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    compact = compact.encode("utf-8", "backslashreplace").decode("utf-8")
    return compact.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _address(kind: str, image: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


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
