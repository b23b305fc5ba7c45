"""Decode an image file to a small square of pixels, or return a short reason why that is impossible.

Files are untrusted: nothing here raises for a file's content, and none uses more memory than headers.LARGEST. A JPEG or
JPEG 2000 that is larger is reduced during decoding, other formats strip by strip afterwards.
"""

import ctypes
import io
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError, features
from PIL.JpegImagePlugin import JpegImageFile

from twincluster.data.headers import (
    LARGEST,
    ORDINARY,
    SHRUNK,
    STRIP,
    TooLargeError,
    as_rgba,
    bytes_for_jpeg,
    bytes_to_decode,
    bytes_to_open,
    check_size,
    ends_early,
    family,
    has_end,
    levels_of,
    scan_of,
)
from twincluster.data.listing import Input, RefusedError, open_input, suffix_of

INCOMPLETE = "incomplete"  # status of a truncated file
TOO_LARGE = "too_large"  # status of an image that needs more memory than LARGEST
DEFAULT_SIDE = 96  # largest default side in pixels

Decoded = tuple[np.ndarray | None, str]  # (side, side, 3) uint8 and "ok", or None and the reason
Size = tuple[int, int]  # width and height
Admit = Callable[[int], AbstractContextManager[None]]  # waits until so many bytes may be taken
Frame = Literal["crop", "letterbox"]  # how an oblong image becomes a square: its middle, or all of it between bars

# Formats that Pillow reads by itself: nothing that starts another program (EPS) may hide behind a .jpg.
_FORMATS = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
NEEDED = {  # what to do where a format is not there
    "HEIF": "HEIC needs pillow-heif: pip install 'twincluster[heic]'",
    "AVIF": "AVIF needs Pillow 11.3 or later: pip install --upgrade pillow",
}
NO_MEMORY = "not enough memory"
_TRUNCATED, _DAMAGED = "truncated file", "damaged file"
_MID_GREY = {127, 128}
_CHECKED, _CHECKED_PIXELS = 1 << 23, 1 << 26  # bytes and pixels of a JPEG that is decoded again to find its end
_MORE = bytes((37 * place + place // 7) % 251 for place in range(1024))  # noise, as long as some blocks
# Formats whose decoders write line by line into the memory of Pillow.
_LINE_BY_LINE = ("PNG", "GIF", "BMP", "DIB", "TIFF", "PPM", "TGA", "JPEG2000")
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
_LITTLE = 1 << 23  # bytes of metadata that need no admission
_INKS = (0x5A, 0xA5)  # values that memory is filled with before decoding


def header_sizes(files: Sequence[Input], sample: int = 100) -> list[Size]:
    """Return width and height of a sample of files from their headers; unreadable files are skipped."""
    sizes = []
    for source in files[:: max(1, len(files) // sample)]:
        try:
            with warnings.catch_warnings(action="ignore"), open_input(source) as file, opened(file, source) as image:
                sizes.append(image.size)
        except Exception:  # whatever Pillow makes of a damaged file: decoding will say so
            continue
    return sizes


def typical_side(sizes: Sequence[Size], frame: Frame = "crop") -> int:
    """Return the median side of the squares that images of such sizes fill; 0 without images."""
    return int(np.median([filled_side(size, frame) for size in sizes] or [0]))


def largest_side(sizes: Sequence[Size], frame: Frame = "crop") -> int:
    """Return the largest of those sides; 0 without images."""
    return max((filled_side(size, frame) for size in sizes), default=0)


def filled_side(size: Size, frame: Frame) -> int:
    """Return the side of the square that an image fills with its own pixels."""
    return min(size) if frame == "crop" else max(size)


class LargeError(Exception):
    """An image that needs more memory than this process should take; an `Admit` raises it."""


def admit_all(nbytes: int) -> AbstractContextManager[None]:
    """Admit every image."""
    return nullcontext()


def decode(source: Input, side: int, frame: Frame = "crop", admit: Admit = admit_all) -> Decoded:
    """Decode an image to side x side pixels; the first frame of an animation. Raises only what `admit` raises."""
    return _decoded(source, side, frame, lambda image: square(image, side, frame), admit)


def decode_whole(source: Input, longest: int) -> Decoded:
    """Decode an image in its own proportions, its longer edge at most `longest` pixels, (h,w,3). Never raises."""
    return _decoded(source, longest, "letterbox", lambda image: _within(image, longest), admit_all)


def _decoded(
    source: Input, side: int, frame: Frame, shape: Callable[[Image.Image], np.ndarray], admit: Admit
) -> Decoded:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata; the status is what we say about a file
        try:
            for ink in _INKS:
                if (pixels := _read(source, ink, side, frame, shape, admit)) is not None:
                    return pixels, "ok"
            return None, INCOMPLETE
        except LargeError:
            raise
        except Exception as error:
            return None, _status(error, source)


def _read(
    source: Input, ink: int, side: int, frame: Frame, shape: Callable[[Image.Image], np.ndarray], admit: Admit
) -> np.ndarray | None:
    """Decode a file. Return None if lines still have the ink that memory was filled with: missing, or really that
    colour.

    The image is closed before other images are admitted.
    """
    with open_input(source) as file:
        opening = bytes_to_open(file, _head(file))
        if opening > LARGEST:
            raise TooLargeError
        with admit(LARGEST) if opening > _LITTLE else nullcontext(), closing(opened(file, source)) as image:
            needed = opening + _fit(image, file, side)
            if needed > LARGEST:
                raise TooLargeError
            with nullcontext() if opening > _LITTLE else admit(needed), closing(image):
                return shape(_shrunk(image, side, frame)) if _is_whole(image, file, ink) else None


def _within(image: Image.Image, longest: int) -> np.ndarray:
    image = _plain(image)
    image.thumbnail((longest, longest), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return _on_white(image)


def square(image: Image.Image, side: int, frame: Frame = "crop") -> np.ndarray:
    """Return an open image as a square: upright, on white (`_on_white`), in three 8-bit channels."""
    image = _plain(image)
    width, height = image.size
    size = (side, side)
    if frame == "letterbox":
        size = (max(1, round(side * width / max(image.size))), max(1, round(side * height / max(image.size))))
    elif width != height:
        image = image.crop(_centre(image.size))
    # Pillow resizes with alpha multiplied in, so that what is transparent lends its neighbours no colour.
    return letterboxed(_on_white(image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)))


def letterboxed(pixels: np.ndarray) -> np.ndarray:
    """Return (...,h,w,3) uint8 in the centre of a square as large as its longer edge; squares unchanged.

    The bars have the mean colour of the image's border. A fixed colour would mark all images of one shape, and clusters
    would follow the shapes.
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


@lru_cache(maxsize=1)
def _silence_libtiff() -> None:
    """Keep libtiff from printing on the terminal; the status is what we say about a file."""
    features.check("libtiff")  # which loads it
    place = Path(Image.__file__).parent
    names = {str(file) for file in place.glob(".dylibs/libtiff*")}
    with suppress(OSError):  # Linux alone lists what is loaded
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        names |= {line.split(maxsplit=5)[-1] for line in lines if "/libtiff" in line}
    for name in names:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            library.TIFFSetErrorHandler(None)
            library.TIFFSetWarningHandler(None)


def opened(file: BinaryIO, source: Input) -> Image.Image:
    """Open an image; reads only its header."""
    head = _head(file)
    if head.startswith(_JPEG):
        try:
            return JpegImageFile(file)  # Image.open refuses 200 megapixels, which telephones take and draft() reduces
        except (SyntaxError, LookupError, TypeError):
            raise UnidentifiedImageError from None
    kind = family(head)
    formats = _formats(suffix_of(source), kind)
    try:
        if "TIFF" in formats:
            _silence_libtiff()
        return Image.open(file, formats=formats)
    except UnidentifiedImageError:
        if not kind:
            raise
        raise RefusedError(_DAMAGED) from None


def _head(file: BinaryIO) -> bytes:
    file.seek(0)
    head = file.read(64)
    file.seek(0)
    return head


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
        raise RefusedError(NEEDED[kind])
    if kind:
        return (kind,)
    asked = (*_FORMATS, "TGA") if suffix == ".tga" else _FORMATS  # TGA has no signature: noise would pass for it
    return tuple(name for name in asked if name in Image.OPEN)  # WebP and JPEG 2000 depend on the build


def _fit(image: Image.Image, file: BinaryIO, side: int) -> int:
    """Have an image decoded at 1/2, 1/4, ... where that is enough or must be, and estimate the bytes it then takes."""
    check_size(image.size)
    if isinstance(image, JpegImageFile):
        return _fit_jpeg(image, file, side)
    halvings = 0
    while (needed := bytes_to_decode(image, file, halvings)) > LARGEST and halvings < levels_of(image, file):
        halvings += 1
        image.reduce = halvings  # type: ignore[method-assign, assignment]  # of JPEG 2000: decode so many levels less
    return needed


def _fit_jpeg(image: JpegImageFile, file: BinaryIO, side: int) -> int:
    width, height = image.size
    streamed = _is_streamed(image, file)
    usual = min(width, height) // (2 * side)
    scale = next(scale for scale in (8, 4, 2, 1) if usual >= scale or scale == 1)
    size = (2 * side, 2 * side)
    while (needed := bytes_for_jpeg(image, scale, streamed)) > LARGEST and scale < 8:
        scale *= 2
        size = (width // scale or 1, height // scale or 1)
    image.draft(None, size)
    return needed


def _is_streamed(image: JpegImageFile, file: BinaryIO) -> bool:
    """Return whether all channels are in the first scan, so that no line waits for what comes later."""
    here = file.tell()  # Pillow stops behind the header of that scan
    header = bytes([0, 6 + 2 * image.layers, image.layers])  # its length, and the number of channels
    file.seek(max(0, here - header[1]))
    streamed = file.read(3) == header and not image.info.get("progressive")
    file.seek(here)
    return streamed


def _is_whole(image: Image.Image, file: BinaryIO, ink: int) -> bool:
    """Decode an image; return False where lines at an edge were never written, and so keep the ink in memory.

    A compressed stream may end before all lines, and Pillow leaves the others as they are without an error.
    """
    _refuse_garbled(image)
    if isinstance(image, JpegImageFile):
        image.load()
        return has_end(file) and not _goes_on(image, file)
    if image.format not in _LINE_BY_LINE:
        image.load()
        return True
    found: list[bool] = []
    lines: list[tuple[int, int, int, int]] = []
    prepare, end = image.load_prepare, image.load_end  # type: ignore[attr-defined]

    def prepared() -> None:
        prepare()
        lines.extend(_edges(image))
        bands = Image.getmodebands(image.im.mode)
        for line in lines:
            image.im.paste((ink,) * bands if bands > 1 else ink, line)

    def ended() -> None:
        found.append(not any(_has_ink(image.im.crop(line), ink) for line in lines))
        end()

    image.load_prepare, image.load_end = prepared, ended  # type: ignore[attr-defined]
    try:
        image.load()
    finally:
        del image.load_prepare, image.load_end  # type: ignore[attr-defined]  # else it is freed only by a collection
    return all(found)


def _goes_on(image: Image.Image, file: BinaryIO) -> bool:
    """Return True if the end marker of a JPEG comes too early: libjpeg fills the missing part with mid-grey.

    If the last corner is mid-grey, more data before the marker must not change the picture.
    """
    corner = image.getpixel((image.width - 1, image.height - 1))
    if not set(corner if isinstance(corner, tuple) else (corner,)) <= _MID_GREY:
        return False
    start = scan_of(file)
    file.seek(0)
    content = file.read(_CHECKED + 1)
    end = content.find(b"\xff\xd9", start)
    if len(content) > _CHECKED or end < 0:
        return False
    small, longer = (JpegImageFile(io.BytesIO(each)) for each in (content, content[:end] + _MORE + content[end:]))
    if small.width * small.height > _CHECKED_PIXELS:
        return False
    for each in (small, longer):
        each.draft(None, (1, 1))
    return small.tobytes() != longer.tobytes()


def _edges(image: Image.Image) -> list[tuple[int, int, int, int]]:
    """Return the first and the last two lines that are decoded: what is interlaced ends in every second line."""
    extents = [tile[1] for tile in image.tile]  # type: ignore[attr-defined]
    left, top = min(each[0] for each in extents), min(each[1] for each in extents)
    right, bottom = max(each[2] for each in extents), max(each[3] for each in extents)
    rows = sorted({row for row in (top, top + 1, bottom - 2, bottom - 1) if top <= row < bottom})
    return [(left, row, right, row + 1) for row in rows]


def _has_ink(line: Any, ink: int) -> bool:
    bands = [line.getband(band) for band in range(line.bands)] if line.bands > 1 else [line]
    return all(band.getextrema() == (ink, ink) for band in bands)


def _refuse_garbled(image: Image.Image) -> None:
    tags = getattr(image, "tag_v2", {})
    if tags.get(_PLANAR) == 2 and 16 in tags.get(_BITS, ())[1:]:
        raise RefusedError("16-bit channels in separate planes: save it with interleaved ones")  # Pillow garbles it


def _shrunk(image: Image.Image, side: int, frame: Frame) -> Image.Image:
    """Reduce a large decoded image strip by strip, to twice the side where that is possible, and close it.

    Whole blocks of pixels become one each; what is left over at the edges is less than that.
    """
    if as_rgba(image.size) <= ORDINARY:
        return image
    left, top, right, bottom = _centre(image.size) if frame == "crop" else (0, 0, *image.size)
    width, height = right - left, bottom - top
    least = math.ceil(math.sqrt(as_rgba((width, height)) / SHRUNK))
    edge = (min if frame == "crop" else max)(width, height)
    factor = max(least, min(edge // (2 * side), STRIP // width))
    (left, right), (top, bottom) = _in_blocks(left, right, factor), _in_blocks(top, bottom, factor)
    rows = max(1, STRIP // width // factor) * factor
    tone, turn, parts = _tone(image), _turn(image), []
    for start in range(top, bottom, rows):
        strip = image.crop((left, start, right, min(start + rows, bottom)))
        parts.append(_eight_bits(strip, tone).reduce(factor))
    image.close()
    small = Image.new(parts[0].mode, (parts[0].width, sum(part.height for part in parts)))
    at = 0
    for part in parts:
        small.paste(part, (0, at))
        at += part.height
    return small if turn is None else small.transpose(turn)


def _in_blocks(start: int, end: int, block: int) -> tuple[int, int]:
    """Return the centre part of a range that consists of whole blocks; all of it if there is no whole block."""
    rest = (end - start) % block if end - start > block else 0
    return start + rest // 2, end - rest + rest // 2


def _centre(size: Size) -> tuple[int, int, int, int]:
    """Return the centre square as a box."""
    width, height = size
    edge = min(size)
    left, top = (width - edge) // 2, (height - edge) // 2
    return left, top, left + edge, top + edge


def _plain(image: Image.Image) -> Image.Image:
    """Return the image upright, in mode L, RGB, RGBA or another 8-bit mode that can be resized and converted."""
    _refuse_garbled(image)
    image.load()
    tone, turn = _tone(image), _turn(image)
    image = _eight_bits(image, tone)
    return image if turn is None else image.transpose(turn)


def _turn(image: Image.Image) -> Image.Transpose | None:
    try:
        return _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata around sound pixels
        return None


class _Tone(NamedTuple):
    """How grey values of 16 or 32 bits become eight bits."""

    low: float
    scale: float
    white_is_zero: bool


def _tone(image: Image.Image) -> _Tone | None:
    """By the least nominal range that all values keep to, else by their own range. None where there are eight bits."""
    if image.mode not in ("F", "I") and not image.mode.startswith("I;16"):
        return None
    low, high = math.inf, -math.inf
    for values in _strips(image):
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    whites = [white for white in (_WHITES[:2] if image.mode == "F" else _WHITES) if high <= white]
    if low >= 0 and whites:
        low, high = 0.0, float(whites[0])
    white_is_zero = getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0  # Pillow sees to it with eight bits only
    return _Tone(low, 255 / max(high - low, 1e-12), white_is_zero)


def _strips(image: Image.Image) -> Iterator[np.ndarray]:
    """Yield the values of an image, some lines at a time."""
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        yield np.nan_to_num(np.asarray(strip), posinf=0, neginf=0)


def _eight_bits(image: Image.Image, tone: _Tone | None) -> Image.Image:
    if tone is not None:
        parts = [np.rint((part.astype(np.float64) - tone.low) * tone.scale).astype(np.uint8) for part in _strips(image)]
        grey = np.concatenate(parts)
        return Image.fromarray(255 - grey if tone.white_is_zero else grey)
    if image.has_transparency_data:
        return image if image.mode == "RGBA" else image.convert("RGBA")
    return image.convert("RGB") if image.mode in ("1", "P") else image


def _on_white(image: Image.Image) -> np.ndarray:
    """Compose on white, or on black if the image is invisible on white: white icons are made for dark pages."""
    if image.mode == "RGBA":
        white, black = (Image.new("RGBA", image.size, (level, level, level, 255)) for level in (255, 0))
        page = _laid(white, image)
        if page.size and page.min() >= 255 - _FAINT and np.ptp(dark := _laid(black, image)) > _FAINT:
            return dark
        return page
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _laid(page: Image.Image, image: Image.Image) -> np.ndarray:
    return np.array(Image.alpha_composite(page, image).convert("RGB"))


def _status(error: Exception, source: Input) -> str:
    if isinstance(error, TooLargeError | Image.DecompressionBombError):
        return TOO_LARGE
    reason = _reason(error)
    if reason == _TRUNCATED:
        return INCOMPLETE
    if reason == _DAMAGED or isinstance(error, UnidentifiedImageError):
        with suppress(Exception), open_input(source) as file:  # whatever a damaged header leads to
            if ends_early(file, _head(file)):
                return INCOMPLETE
    return f"unreadable: {reason}"


def _reason(error: Exception) -> str:
    said = str(error).lower()
    if isinstance(error, RefusedError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "missing file"
    if isinstance(error, PermissionError):
        return "no permission"
    if isinstance(error, MemoryError) or "out of memory" in said:
        return NO_MEMORY
    if isinstance(error, UnidentifiedImageError):
        return "not a known image format"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    early = "truncated" in said or "not enough image data" in said or isinstance(error, EOFError)
    return _TRUNCATED if early else _DAMAGED
