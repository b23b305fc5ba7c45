"""Pictures of rows as small files, made on request from the store of the run or from the row's own file.

Files are never sent as they are: every picture is decoded and encoded again. A file that has changed since the run read
it, or is a link to another image, is not shown.

`Visitors` looks at images dropped on the page: it decodes them in memory, assigns them to a cluster and compares them
with those of the run.
"""

from __future__ import annotations

import base64
import io
from functools import cached_property
from pathlib import Path
from threading import Lock, Semaphore
from typing import Any

import numpy as np
from PIL import Image

from twincluster.core import InputError
from twincluster.data import Content, Listing, Member, decode, decode_whole
from twincluster.model import Model
from twincluster.pages.explorer.library import Library
from twincluster.pages.report.material import tile
from twincluster.runs import apply_edits, stamps_of, unit

THUMBNAIL = 160  # pixels a side, at most
AS_PNG = 48  # pixels a side up to which pictures are sent as PNG: lossy codecs blur small ones
LARGEST = 2048  # pixels of the longer edge of a whole picture
Encoded = tuple[bytes, str]  # and its type

_whole_at_once = Semaphore(2)  # a photograph of 100 megapixels takes 300 MB while it is decoded


def thumbnail(library: Library, row: int) -> Encoded | None:
    """Return a small square picture; None without one."""
    if library.assignments.clusters[row] < 0:
        return None
    pictures = library.pictures
    if pictures is not None and row in pictures:
        picture = pictures[row]
        side = len(picture)
        return _png(picture) if side <= AS_PNG else as_jpeg(tile(picture, min(side, THUMBNAIL)), 80)
    file = _file(library, row)
    pixels = decode(file, THUMBNAIL, library.config.train.frame)[0] if file is not None else None
    return as_jpeg(pixels, 80) if pixels is not None else None


def whole(library: Library, row: int) -> Encoded | None:
    """Return the whole picture, at most LARGEST pixels along its longer edge."""
    if library.assignments.clusters[row] < 0:
        return None
    listing = library.images.listing if library.images else None
    if listing is not None and listing.array is not None and listing.array.ndim > 2 and row < len(listing.array):
        own = np.asarray(listing.array[row])
        return _png(own[..., 0] if own.ndim == 3 and own.shape[2] == 1 else own[..., :3] if own.ndim == 3 else own)
    file = _file(library, row)
    if file is None:
        return thumbnail(library, row)
    with _whole_at_once:
        pixels, _ = decode_whole(file, LARGEST)
    return as_jpeg(pixels, 92) if pixels is not None else thumbnail(library, row)


def as_jpeg(pixels: np.ndarray, quality: int) -> Encoded:
    written = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(written, "JPEG", quality=quality)
    return written.getvalue(), "image/jpeg"


def _file(library: Library, row: int) -> Path | Member | None:
    """Return the row's own file, unless it has changed since the run read it."""
    if library.files is None:
        return None
    file = library.files[row]
    path = library.assignments.paths[row]
    (stamp,) = stamps_of(Listing("", (path,), files=(file,)))
    return file if library.stamps.get(path, stamp) == stamp else None


def _png(pixels: np.ndarray) -> Encoded:
    written = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(written, "PNG", compress_level=3)
    return written.getvalue(), "image/png"


NEIGHBOURS = 12
MOST_BYTES = 40_000_000  # of one file


class Visitors:
    """Assigns one image at a time: the network gains nothing from several callers."""

    def __init__(self, library: Library) -> None:
        self.library, self._one_at_a_time = library, Lock()

    def look_at(self, content: bytes) -> dict[str, Any]:
        """Return its cluster with edits applied, the model's confidence, and its nearest rows. Nothing is stored."""
        library = self.library
        if library.is_rows:
            raise InputError("this run is about rows of numbers: an image has no place in it")
        with self._one_at_a_time:
            model = self._model
            pixels, said = model.decode(Content(content))
            if pixels is None:
                raise InputError(said)
            images = model.open_pixels(pixels[None])
            found, feature = model.assign(images), unit(model.embed(images).numpy())
        unknown = np.full(1, -1)  # it is none of the run's own
        state = library.edits.state
        cluster = int(apply_edits(found, state, unknown, lambda rows: model.kinds(images, rows)).clusters[0])
        larger, _ = decode(Content(content), THUMBNAIL, library.config.train.frame)
        small, kind = as_jpeg(pixels if larger is None else larger, 80)
        near = library.seen.nearest(feature[0], NEIGHBOURS) if library.seen else []
        return {
            "cluster": cluster,
            "confidence": round(float(found.confidence[0]), 4),
            "neighbours": [{"row": row, "cosine": round(cosine, 4)} for row, cosine in near],
            "picture": f"data:{kind};base64,{base64.b64encode(small).decode()}",
        }

    @cached_property
    def _model(self) -> Model:
        return Model.load(self.library.run)
