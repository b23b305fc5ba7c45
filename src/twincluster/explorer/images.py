"""Pictures of rows as small files, made when they are asked for: from the store of the run, or from the row's own file.

Nothing is ever sent as it lies on the disk: what leaves here was decoded by us and encoded again. A file that is not
the one the run has seen, be it a link to another image, is left alone.
"""

from __future__ import annotations

import io
from pathlib import Path
from threading import Semaphore

import numpy as np
from PIL import Image

from twincluster.explorer.library import Library
from twincluster.images.decode import decode, decode_whole
from twincluster.images.inputs import Member
from twincluster.images.listing import Listing
from twincluster.known import stamps_of
from twincluster.report.thumbnails import tile

THUMBNAIL = 160  # pixels a side, at most
AS_PNG = 48  # pixels a side up to which pictures are sent as they are: codecs smear what is so small
LARGEST = 2048  # pixels of the longer edge of a whole picture
Encoded = tuple[bytes, str]  # and its type

_whole_at_once = Semaphore(2)  # a photograph of 100 megapixels takes 300 MB while it is decoded


def thumbnail(library: Library, row: int) -> Encoded | None:
    """A small square; None where there is no picture."""
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
    """The picture in its own proportions, at most LARGEST pixels long."""
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
    """The row's own file, unless another one has taken its place since the run has seen it."""
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
