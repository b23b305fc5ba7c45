"""Read from the header of an image file how much memory decoding takes, and whether the file ends too early.

The figures per pixel are peaks of Pillow 13.0 and pillow-heif 1.8, rounded up: tests/data/test_bombs.py measures that
they suffice. Sizes are in bytes, offsets count from the start of the file.
"""

import re
import struct
from collections.abc import Iterator
from math import ceil
from typing import BinaryIO, NamedTuple

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

LARGEST = 500_000_000  # bytes that one image may take; a process that decodes takes 50 MB without any
LONGEST_EDGE = 1_000_000  # pixels; Pillow keeps a pointer for every line
ORDINARY = 100_000_000  # bytes as RGBA up to which an image is handled in one piece, larger ones in strips
SHRUNK = 40_000_000  # bytes as RGBA, at most, of a larger image after it was reduced strip by strip
STRIP = 1_000_000  # pixels in one strip
_STRIPS = 40_000_000  # bytes for working on one strip

_READ_WHOLE = (b"WEBP", b"ftyp")  # formats that Pillow reads into memory as a whole
_PER_PIXEL = {"WEBP": 20, "AVIF": 16, "HEIF": 16}
_SMALL = 1 << 22  # of a file so small its metadata cannot fill the memory
_BLOCK_OVERHEAD = 1000  # bytes that OpenJPEG keeps for one code block


class TooLargeError(Exception):
    """Decoding would take more memory than an image may take."""


class _Entry(NamedTuple):
    """An entry of the directory of a TIFF."""

    values: int  # how many
    size: int  # of all of them
    content: bytes  # the values, or where they are


def check_size(size: tuple[int, int]) -> None:
    """Refuse an image with too many lines or columns, whatever it holds."""
    if max(size) > LONGEST_EDGE:
        raise TooLargeError


def bytes_to_open(file: BinaryIO, head: bytes) -> int:
    """Estimate the memory that metadata takes while Pillow opens a file."""
    size = _size(file)
    if head[8:12] in _READ_WHOLE or head[4:8] in _READ_WHOLE:
        return 2 * size
    if size <= _SMALL:
        return 0
    if head.startswith(_PNG):
        return sum(length for kind, length, _ in _png_chunks(file) if kind != b"IDAT")
    if head.startswith(_JPEG):
        return 2 * sum(length for kind, length, _ in _jpeg_segments(file) if kind != _SCAN)
    if head[:4] in _TIFF:
        entries = _tiff_entries(file, head)
        return sum(2 * entry.size + _TILE * entry.values * (tag in _OFFSETS) for tag, entry in entries.items())
    if head[4:8] == b"jP  ":
        return 2 * max((length for kind, length, _ in _boxes(file) if kind == b"jp2h"), default=0)
    return 0


def bytes_to_decode(image: Image.Image, file: BinaryIO, halvings: int = 0) -> int:
    """Estimate the peak while an open image other than a JPEG is decoded, halved so many times, and made small."""
    size = (ceil(image.width / 2**halvings), ceil(image.height / 2**halvings))
    pixels, stored = size[0] * size[1], _stored(image.mode, size)
    kind = image.format or ""
    if kind in _PER_PIXEL:
        plain = kind == "HEIF" and image.info.get("bit_depth") == 8
        loading = pixels * (10 if plain else _PER_PIXEL[kind])
    elif kind == "JPEG2000":
        loading = stored + _jpeg2000(file, halvings)
    elif kind == "TIFF":
        loading = _tiff(image, stored)
    elif kind in ("GIF", "TGA"):  # the background below the first frame; a copy that is turned
        loading = 2 * stored
    elif kind == "PNG":
        loading = stored + 16 * image.width
    else:
        tiles = getattr(image, "tile", None)
        loading = stored + (0 if tiles and tiles[0][0] == "raw" else 12 * pixels)
    return int(max(loading, stored + _bytes_to_shrink(image, size)))


def bytes_for_jpeg(image: JpegImageFile, scale: int, streamed: bool) -> int:
    """Estimate the same for a JPEG that is read at 1/scale. One that is not streamed keeps all its coefficients."""
    size = (ceil(image.width / scale), ceil(image.height / scale))
    stored = _stored(image.mode, size)
    loading = stored + 64 * image.width
    if not streamed:
        layers = [layer[1] * layer[2] for layer in image.layer]
        densest = max(layer[1] for layer in image.layer) * max(layer[2] for layer in image.layer)
        loading += 2 * image.width * image.height * sum(layers) // max(densest, 1)
    return int(max(loading, stored + _bytes_to_shrink(image, size)))


def levels_of(image: Image.Image, file: BinaryIO) -> int:
    """Return how many times an image may be halved while it is decoded: JPEG 2000 is stored in such levels."""
    codestream = _codestream(file) if image.format == "JPEG2000" else None
    return codestream.levels if codestream else 0


def as_rgba(size: tuple[int, int]) -> int:
    """Return bytes of such an image in four channels."""
    return _stored("RGBA", size)


def _bytes_to_shrink(image: Image.Image, size: tuple[int, int]) -> int:
    """Beside the decoded image: copies of all of it, or of a strip and of what becomes of it."""
    if as_rgba(size) > ORDINARY:
        return SHRUNK + _STRIPS
    stays = image.mode in ("L", "RGB", "CMYK", "YCbCr") and "transparency" not in image.info
    return 2 * _stored(image.mode, size) if stays else 3 * as_rgba(size)


def _stored(mode: str, size: tuple[int, int]) -> int:
    width, height = size
    bytes_each = 2 if mode.startswith("I;16") else 1 if mode in ("1", "L", "P") else 4
    return int(height * (8 + ceil(width * bytes_each / 8) * 8))


def _tiff(image: Image.Image, stored: int) -> int:
    """libtiff decodes strips or tiles, each of them whole."""
    tags = getattr(image, "tag_v2", {})
    turned = stored if tags.get(_ORIENTATION, 1) != 1 else 0
    if not getattr(image, "use_load_libtiff", False):
        return stored + turned
    rows, width = min(_number(tags, _ROWS_PER_STRIP, image.height), image.height), image.width
    if _TILE_WIDTH in tags:
        rows, width = _number(tags, _TILE_LENGTH, image.height), _number(tags, _TILE_WIDTH, image.width)
    bits = tags.get(_BITS, (8,))
    each = max(4, max(bits) * max(len(bits), _number(tags, _SAMPLES, 1)) / 8)
    return stored + max(turned, int(2 * rows * width * each))


def _number(tags: dict[int, object], tag: int, default: int) -> int:
    value = tags.get(tag, default)
    return value if isinstance(value, int) else default


def _jpeg2000(file: BinaryIO, halvings: int) -> int:
    """OpenJPEG decodes a tile at a time, in whole numbers of 32 bits, and plans for all its code blocks."""
    codestream = _codestream(file)
    if codestream is None:
        return 0
    check_size(codestream.size)
    samples = codestream.tile[0] * codestream.tile[1] * codestream.components
    return int(6 * samples / 4**halvings) + samples // codestream.block * _BLOCK_OVERHEAD


def ends_early(file: BinaryIO, head: bytes) -> bool:
    """Return True where a file lacks bytes of its first image that its own header announces."""
    size = _size(file)
    if head.startswith(_PNG):
        chunks = list(_png_chunks(file))
        return all(kind != b"IEND" for kind, _, _ in chunks) or chunks[-1][2] > size
    if head.startswith(_JPEG):
        return not has_end(file)
    if head.startswith(b"GIF8"):
        return _gif_ends_early(file)
    if head[8:12] == b"WEBP":
        return int.from_bytes(head[4:8], "little") + 8 > size
    if head[:4] == b"\xff\x4f\xff\x51":
        return not _ends_with(file, size, _END)
    if family(head) or head[4:8] == b"jP  ":
        boxes = list(_boxes(file))
        open_end = bool(boxes) and boxes[-1][0] == b"jp2c" and boxes[-1][2] == size
        absent = all(kind not in (b"jp2c", b"mdat") for kind, _, _ in boxes)
        return absent or boxes[-1][2] > size or (open_end and not _ends_with(file, size, _END))
    if head[:4] in _TIFF:
        return _tiff_ends_early(file, head, size)
    if head[:2] == b"BM" and len(head) >= 34:
        offset, width, height, bits, compression = struct.unpack_from("<I4xii2xHI", head, 10)
        if compression in (0, 3):
            return bool(offset + (abs(width) * bits + 31) // 32 * 4 * abs(height) > size)
        return int.from_bytes(head[2:6], "little") > size
    return False


def has_end(file: BinaryIO) -> bool:
    """Return True where the end marker comes after the first scan of a JPEG."""
    size = _size(file)
    if _ends_with(file, size, _END):
        return True
    scan = scan_of(file)
    file.seek(scan or size)
    last = b""
    while block := file.read(1 << 20):
        if _END in last + block:
            return True
        last = block[-1:]
    return False


def scan_of(file: BinaryIO) -> int:
    """Return where the coded data of a JPEG begin, 0 if nowhere. No end marker is among them: a 0 follows each 255."""
    return next((end for kind, _, end in _jpeg_segments(file) if kind == _SCAN), 0)


def _gif_ends_early(file: BinaryIO) -> bool:
    """Follow a GIF to the end of its first image."""
    file.seek(0)
    screen = file.read(13)
    if len(screen) < 13:
        return True
    file.seek(_table(screen[10]), 1)
    while kind := file.read(1):
        if kind == b";":
            return False
        if kind == b",":
            image = file.read(9)
            file.seek(_table(image[8]) + 1 if len(image) == 9 else 0, 1)
            return not _skip_blocks(file)
        if kind == b"!" and not (file.read(1) and _skip_blocks(file)):
            return True
    return True


def _table(flags: int) -> int:
    """Return bytes of a colour table of a GIF."""
    return 3 << (flags & 7) + 1 if flags & 128 else 0


def _skip_blocks(file: BinaryIO) -> bool:
    """Skip the data blocks of a GIF; return False where the file ends before them."""
    while length := file.read(1):
        if not length[0]:
            return True
        file.seek(length[0], 1)
    return False


def _tiff_ends_early(file: BinaryIO, head: bytes, size: int) -> bool:
    entries = _tiff_entries(file, head)
    inline = 8 if head[2:4] in (b"+\0", b"\0+") else 4
    if any(_place(head, entry) + entry.size > size for entry in entries.values() if entry.size > inline):
        return True
    for offsets, counts in zip(_OFFSETS, (279, 325), strict=True):
        if offsets in entries and counts in entries:
            starts, lengths = _values(file, head, entries[offsets]), _values(file, head, entries[counts])
            return len(starts) < entries[offsets].values or any(
                start + length > size for start, length in zip(starts, lengths, strict=False)
            )
    return not entries


def _place(head: bytes, entry: _Entry) -> int:
    """Return where the values of an entry are that do not fit into it."""
    return int.from_bytes(entry.content, "little" if head[:1] == b"I" else "big")


def _values(file: BinaryIO, head: bytes, entry: _Entry) -> list[int]:
    """Whole numbers of a TIFF, as many as are there; they stand in the entry itself where they fit."""
    order = "<" if head[:1] == b"I" else ">"
    kind = {2: "H", 4: "I", 8: "Q"}.get(entry.size // max(entry.values, 1), "B")
    content = entry.content
    if entry.size > len(entry.content):
        file.seek(_place(head, entry))
        content = file.read(min(entry.size, _SMALL))
    count = min(entry.values, len(content) // struct.calcsize(kind))
    return list(struct.unpack_from(f"{order}{count}{kind}", content))


def _ends_with(file: BinaryIO, size: int, ending: bytes) -> bool:
    file.seek(max(0, size - len(ending)))
    return file.read() == ending


def family(head: bytes) -> str:
    """HEIF or AVIF, by the brands that such a file begins with; nothing for other files."""
    brands = head[8 : int.from_bytes(head[:4])] if head[4:8] == b"ftyp" else b""
    return "AVIF" if b"avif" in brands or b"avis" in brands else "HEIF" if _HEIF_BRANDS.search(brands) else ""


# What the formats look like

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_HEIF_BRANDS = re.compile(rb"hei[cxms]|hev[cxms]|m[is]f1")
_SCAN, _END = 0xDA, b"\xff\xd9"  # markers of JPEG; JPEG 2000 has the same end
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_ORIENTATION, _BITS, _SAMPLES, _ROWS_PER_STRIP = 274, 258, 277, 278  # TIFF tags
_TILE_WIDTH, _TILE_LENGTH, _OFFSETS = 322, 323, (273, 324)
_TILE = 600  # bytes that Pillow keeps for a strip or a tile
_TIFF_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_MOST_PARTS = 1_000_000  # chunks of a PNG


def _size(file: BinaryIO) -> int:
    here = file.tell()
    size = file.seek(0, 2)
    file.seek(here)
    return size


def _png_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Kind, length and end of each chunk as far as there is a header of one."""
    at = len(_PNG)
    for _ in range(_MOST_PARTS):
        file.seek(at)
        header = file.read(8)
        if len(header) < 8:
            return
        length = int.from_bytes(header[:4])
        at += 12 + length
        yield header[4:], length, at
    raise TooLargeError


def _jpeg_segments(file: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Marker, length and end of each segment up to the first scan."""
    at = 2
    while True:
        file.seek(at)
        header = file.read(4)
        if len(header) < 4 or header[0] != 0xFF:
            return
        if header[1] == 0xFF or header[1] == 0 or 0xD0 <= header[1] <= 0xD8:  # fill bytes, markers without a body
            at += 1 if header[1] == 0xFF else 2
            continue
        length = int.from_bytes(header[2:])
        at += 2 + length
        yield header[1], length, at
        if header[1] == _SCAN:
            return


def _tiff_entries(file: BinaryIO, head: bytes) -> dict[int, _Entry]:
    """Return the first directory of a TIFF; nothing where it reaches beyond the end."""
    order, big = "<" if head[:1] == b"I" else ">", head[2:4] in (b"+\0", b"\0+")
    at = struct.unpack_from(order + ("Q" if big else "I"), head.ljust(16, b"\0"), 8 if big else 4)[0]
    entry, counter = (order + "HHQ8s", order + "Q") if big else (order + "HHI4s", order + "H")
    if at >= _size(file):
        return {}
    file.seek(at)
    count = file.read(struct.calcsize(counter))
    if len(count) < struct.calcsize(counter):
        return {}
    length = min(struct.unpack(counter, count)[0], 65535) * struct.calcsize(entry)
    table = file.read(length)
    if len(table) < length:
        return {}
    return {
        tag: _Entry(count, count * _TIFF_BYTES.get(kind, 1), value)
        for tag, kind, count, value in struct.iter_unpack(entry, table)
    }


def _boxes(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Kind, length and end of the boxes of an ISO file (JPEG 2000, HEIF, AVIF); a length of 0 reaches to the end."""
    at, size = 0, _size(file)
    while at < size:
        file.seek(at)
        header = file.read(16)
        if len(header) < 8:
            yield b"", 0, size + 1
            return
        length = int.from_bytes(header[:4])
        if length == 1:
            length = int.from_bytes(header[8:])
        length = length or size - at
        if length < 8:
            return
        at += length
        yield header[4:8], length, at


class _Codestream(NamedTuple):
    """What the main header of a JPEG 2000 codestream says."""

    size: tuple[int, int]
    tile: tuple[int, int]  # no larger than the image
    components: int
    levels: int
    block: int  # samples in a code block, or in a precinct where these are smaller


def _codestream(file: BinaryIO) -> _Codestream | None:
    """None where there is none, or where it is damaged: OpenJPEG refuses it."""
    file.seek(0)
    start = 0
    if file.read(4) != b"\xff\x4f\xff\x51":
        places = [end - length for kind, length, end in _boxes(file) if kind == b"jp2c"]
        if not places:
            return None
        file.seek(places[0])
        start = places[0] + (16 if int.from_bytes(file.read(4)) == 1 else 8)
    try:
        return _main_header(file, start + 2)
    except (struct.error, IndexError):
        return None


def _main_header(file: BinaryIO, at: int) -> _Codestream | None:
    size = tile = (0, 0)
    components = levels = 0
    for _ in range(1000):
        file.seek(at)
        marker, length = struct.unpack(">HH", file.read(4))
        body = file.read(min(length - 2, 64)) if length > 2 else b""
        if marker == 0xFF51:  # SIZ
            right, bottom, left, top, wide, high, _, _, components = struct.unpack_from(">8IH", body, 2)
            size = (right - left, bottom - top)
            tile = (min(wide, size[0]), min(high, size[1]))
        if marker == 0xFF52:  # COD
            style, levels, across, down = body[0], body[5], body[6] & 15, body[7] & 15
            precincts = body[10 : 11 + levels] if style & 1 else b""
            smallest = min(((size & 15) + (size >> 4) for size in precincts), default=30)
            block = 1 << min(across + down + 4, smallest)
            return _Codestream(size, tile, components, levels, block) if min(size) > 0 and min(tile) > 0 else None
        if marker < 0xFF00 or marker in (0xFF90, 0xFFD9):
            return None
        at += 2 + length
    return None
