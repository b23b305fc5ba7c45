"""Turn an image file into a small square of pixels, or say in a few words why that cannot be done.

Files come from strangers: nothing here raises for what a file holds, and none is read into more memory than a
photograph takes.
"""

import os
import re
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from twincluster.data.files import CHANGED, Input, RefusedError, open_input, suffix_of

# As held in memory: a JPEG is reduced while it is read. Pillow itself refuses most files of more than 178 million.
MAX_PIXELS = 100_000_000
DEFAULT_SIDE = 96  # pixels a side, at most, where nothing says how large images are to be

Decoded = tuple[np.ndarray | None, str]  # (side, side, 3) uint8 and "ok", or None and the reason
Size = tuple[int, int]  # width and height
Frame = Literal["crop", "letterbox"]  # how an oblong image becomes a square: its middle, or all of it between bars

# Formats that Pillow reads by itself: nothing that starts another program (EPS) may hide behind a .jpg.
_FORMATS = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
_NEEDED = {  # what to do where a format is not there
    "HEIF": "HEIC needs pillow-heif: pip install 'twincluster[heic]'",
    "AVIF": "AVIF needs Pillow 11.3 or later: pip install --upgrade pillow",
}
_PASSING = ("missing file", "no permission", "not enough memory", "input/output error", CHANGED, *_NEEDED.values())
_HEIF_BRANDS = re.compile(rb"hei[cxms]|hev[cxms]|m[is]f1")
_JPEG = b"\xff\xd8\xff"
_ORIENTATION = 0x0112  # EXIF tag
_BITS, _PHOTOMETRIC, _PLANAR = 258, 262, 284  # TIFF tags
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_WHITES = (1, 255, 4095, 65535)  # of masks and of 8, 12 (cameras, microscopes, X-rays) and 16 bits
_FAINT = 32  # levels of 255 by which a picture has to differ from the page it lies on to be seen
_ROWS_AT_ONCE = 512  # brought to eight bits, for the memory's sake


def header_sizes(files: Sequence[Input], sample: int = 100) -> list[Size]:
    """Width and height of some of the files, by their headers; those that cannot be read are left out."""
    sizes = []
    for source in files[:: max(1, len(files) // sample)]:
        try:
            with warnings.catch_warnings(action="ignore"), open_input(source) as file, _opened(file, source) as image:
                sizes.append(image.size)
        except Exception:  # whatever Pillow makes of a damaged file: decoding will say so
            continue
    return sizes


def typical_side(sizes: Sequence[Size], frame: Frame = "crop") -> int:
    """Median side of the squares that images of such sizes fill; 0 when there is none."""
    return int(np.median([filled_side(size, frame) for size in sizes] or [0]))


def largest_side(sizes: Sequence[Size], frame: Frame = "crop") -> int:
    """The largest of those sides; 0 when there is none."""
    return max((filled_side(size, frame) for size in sizes), default=0)


def filled_side(size: Size, frame: Frame) -> int:
    """Side of the square that an image fills with pixels of its own."""
    return min(size) if frame == "crop" else max(size)


def decode(source: Input, side: int, frame: Frame = "crop") -> Decoded:
    """An image as a square of side x side pixels; the first frame of an animation. Never raises."""
    return _decoded(source, side, lambda image: square(image, side, frame))


def decode_whole(source: Input, longest: int) -> Decoded:
    """An image in its own proportions, its longer edge at most `longest` pixels, (h,w,3). Never raises."""
    return _decoded(source, longest, lambda image: _within(image, longest))


def _decoded(source: Input, side: int, shape: Callable[[Image.Image], np.ndarray]) -> Decoded:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata; the status is what we say about a file
        try:
            with open_input(source) as file, _opened(file, source) as image:
                _check_memory(image, file, side)
                return shape(image), "ok"
        except Exception as error:
            return None, f"unreadable: {_reason(error)}"


def _within(image: Image.Image, longest: int) -> np.ndarray:
    image = _plain(image)
    image.thumbnail((longest, longest), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return _on_white(image)


def square(image: Image.Image, side: int, frame: Frame = "crop") -> np.ndarray:
    """An open image as a square: upright, on white (`_on_white`), in three channels of eight bits."""
    image = _plain(image)
    width, height = image.size
    size = (side, side)
    if frame == "letterbox":
        size = (max(1, round(side * width / max(image.size))), max(1, round(side * height / max(image.size))))
    elif width != height:
        edge = min(image.size)
        left, top = (width - edge) // 2, (height - edge) // 2
        image = image.crop((left, top, left + edge, top + edge))
    # Pillow resizes with alpha multiplied in, so that what is transparent lends its neighbours no colour.
    return letterboxed(_on_white(image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)))


def letterboxed(pixels: np.ndarray) -> np.ndarray:
    """(...,h,w,3) uint8 in the middle of a square as large as its longer edge; squares as they are.

    The bars have the mean colour of the image's border. One fixed colour would be the same strong mark in every image
    of a shape, and clusters would follow the shapes; this one lies close to what it adjoins.
    """
    height, width = pixels.shape[-3:-1]
    if height == width:
        return pixels
    edge = max(height, width)
    top, left = (edge - height) // 2, (edge - width) // 2
    sides = (pixels[..., 0, :, :], pixels[..., -1, :, :], pixels[..., :, 0, :], pixels[..., :, -1, :])
    canvas = np.empty((*pixels.shape[:-3], edge, edge, 3), np.uint8)
    canvas[...] = np.rint(np.concatenate(sides, axis=-2).mean(-2))[..., None, None, :]
    canvas[..., top : top + height, left : left + width, :] = pixels
    return canvas


def may_pass(status: str) -> bool:
    """Whether a status speaks of the moment (rights, a missing file), not of the content: worth another try."""
    return status.removeprefix("unreadable: ") in _PASSING


def _opened(file: BinaryIO, source: Input) -> Image.Image:
    """The image in a file as far as its header says; its pixels are not read yet."""
    head = file.read(64)
    file.seek(0)
    if head.startswith(_JPEG):
        try:
            return JpegImageFile(file)  # Image.open refuses 200 megapixels, which telephones take and draft() reduces
        except (SyntaxError, LookupError, TypeError):
            raise UnidentifiedImageError from None
    kind = _family(head)
    formats = _formats(suffix_of(source), kind)
    try:
        return Image.open(file, formats=formats)
    except UnidentifiedImageError:
        if not kind:
            raise
        raise RefusedError("damaged file") from None


def _family(head: bytes) -> str:
    """HEIF or AVIF, by the brands that such a file begins with; nothing for other files."""
    brands = head[8 : int.from_bytes(head[:4])] if head[4:8] == b"ftyp" else b""
    return "AVIF" if b"avif" in brands or b"avis" in brands else "HEIF" if _HEIF_BRANDS.search(brands) else ""


@lru_cache
def _formats(suffix: str, kind: str) -> tuple[str, ...]:
    Image.init()
    if kind == "HEIF" and kind not in Image.OPEN:
        try:
            from pillow_heif import register_heif_opener

            register_heif_opener(decode_threads=1)  # the processes share the cores among them
        except ImportError:
            pass
    if kind and kind not in Image.OPEN:
        raise RefusedError(_NEEDED[kind])
    if kind:
        return (kind,)
    asked = (*_FORMATS, "TGA") if suffix == ".tga" else _FORMATS  # TGA has no signature: noise would pass for it
    return tuple(name for name in asked if name in Image.OPEN)  # WebP and JPEG 2000 depend on the build


def _check_memory(image: Image.Image, file: BinaryIO, side: int) -> None:
    """Have a JPEG decoded at 1/2, 1/4 or 1/8 where that is enough, and refuse what would still be too large."""
    pixels = image.width * image.height
    image.draft(None, (2 * side, 2 * side))
    if isinstance(image, JpegImageFile) and _is_streamed(image, file):
        pixels = image.width * image.height
    if pixels > MAX_PIXELS:
        raise RefusedError("too many pixels")


def _is_streamed(image: JpegImageFile, file: BinaryIO) -> bool:
    """Whether all channels are in the first scan, so that no line has to wait for what comes later in the file."""
    here = file.tell()  # Pillow stops behind the header of that scan
    header = bytes([0, 6 + 2 * image.layers, image.layers])  # its length, and the number of channels
    file.seek(max(0, here - header[1]))
    streamed = file.read(3) == header and not image.info.get("progressive")
    file.seek(here)
    return streamed


def _plain(image: Image.Image) -> Image.Image:
    """The same picture, upright, in mode L, RGB, RGBA or another of eight bits that can be resized and converted."""
    tags = getattr(image, "tag_v2", {})
    if tags.get(_PLANAR) == 2 and 16 in tags.get(_BITS, ())[1:]:
        raise RefusedError("16-bit channels in separate planes: save it with interleaved ones")  # Pillow garbles it
    image.load()
    try:
        turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata around sound pixels
        turn = None
    image = _eight_bits(image, white_is_zero=tags.get(_PHOTOMETRIC) == 0)
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: Image.Image, white_is_zero: bool) -> Image.Image:
    if image.mode in ("F", "I") or image.mode.startswith("I;16"):
        grey = _scaled(np.asarray(image))
        return Image.fromarray(255 - grey if white_is_zero else grey)  # Pillow sees to it with eight bits only
    if image.has_transparency_data:
        return image if image.mode == "RGBA" else image.convert("RGBA")
    return image.convert("RGB") if image.mode in ("1", "P") else image


def _scaled(values: np.ndarray) -> np.ndarray:
    """Grey values of 16 or 32 bits as uint8: by the least nominal range they keep to, else by their own."""
    parts = np.array_split(values, -(-len(values) // _ROWS_AT_ONCE))  # views
    finite = partial(np.nan_to_num, posinf=0, neginf=0)
    low, high = min(float(finite(part).min()) for part in parts), max(float(finite(part).max()) for part in parts)
    whites = [white for white in (_WHITES[:2] if values.dtype.kind == "f" else _WHITES) if high <= white]
    if low >= 0 and whites:
        low, high = 0.0, float(whites[0])
    scale = 255 / max(high - low, 1e-12)
    return np.concatenate([np.rint((finite(part).astype(np.float64) - low) * scale).astype(np.uint8) for part in parts])


def _on_white(image: Image.Image) -> np.ndarray:
    """On black where nothing could be seen on white and something can there: white icons are made for dark pages."""
    if image.mode == "RGBA":
        white, black = (Image.new("RGBA", image.size, (level, level, level, 255)) for level in (255, 0))
        page = _laid(white, image)
        if page.size and page.min() >= 255 - _FAINT and np.ptp(dark := _laid(black, image)) > _FAINT:
            return dark
        return page
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _laid(page: Image.Image, image: Image.Image) -> np.ndarray:
    return np.array(Image.alpha_composite(page, image).convert("RGB"))


def _reason(error: Exception) -> str:
    said = str(error).lower()
    if isinstance(error, RefusedError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "missing file"
    if isinstance(error, PermissionError):
        return "no permission"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    if isinstance(error, UnidentifiedImageError):
        return "not a known image format"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return "truncated file" if "truncated" in said or isinstance(error, EOFError) else "damaged file"
