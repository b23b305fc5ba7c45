"""One HTML file of a run: data, pictures, styles and scripts inside, nothing to fetch from anywhere.

The page's own policy allows its one script and its one style sheet by their digests and no request at all, so that
neither markup in a name nor a forgotten address can do anything.

Small pictures in a few large ones: a sheet of tiles is smaller and much quicker to decode than a file for each.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from twincluster.core import InputError, finite, write_atomically
from twincluster.data import Listing
from twincluster.pages.report.gather import Gathered, gather
from twincluster.pages.report.material import Material, open_material
from twincluster.pages.report.thumbnails import Sheets, make_sheets
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
