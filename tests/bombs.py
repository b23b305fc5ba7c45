"""Image files that are small on disk and large in memory, each written by hand in milliseconds.

No encoder is used: streams of zeros repeat one compressed block, raw pixels are holes in a sparse file, and headers
announce more than there is.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from PIL import Image

MEGA = 1_000_000


class Bomb(NamedTuple):
    """A file to write, and the statuses that decoding it may end with."""

    write: Callable[[Path], object]
    statuses: tuple[str, ...]
    is_slow: bool = False  # decoding takes seconds


def zeros(count: int) -> bytes:
    """So many zeros, compressed by zlib: the same block again and again, and the checksum computed."""
    block = 1 << 20
    blocks, rest = divmod(count, block)
    parts = [b"\x78\x01"]
    for size, times in ((block, blocks), (rest, 1)):
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        parts.append((packer.compress(bytes(size)) + packer.flush(zlib.Z_FULL_FLUSH)) * times)
    return b"".join([*parts, b"\x03\x00", struct.pack(">I", count % 65521 << 16 | 1)])


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    path: Path,
    width: int,
    height: int,
    bits: int = 8,
    colour: int = 2,
    *,
    data: bytes | None = None,
    before: bytes = b"",
    interlaced: bool = False,
) -> None:
    """Black, in any depth and colour type; `data` replaces the compressed lines, `before` are chunks before them."""
    line = 1 + (width * bits * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] + 7) // 8
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced))
    table = png_chunk(b"PLTE", bytes(range(256)) * 3) if colour == 3 else b""
    lines = zeros(line * height) if data is None else data
    end = png_chunk(b"IDAT", lines) + png_chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + table + before + end)


def png_with_hole(path: Path, kind: bytes, length: int) -> None:
    """A chunk of zeros that takes no room on the disk, in a picture of one pixel."""
    png(path, 1, 1)
    whole = path.read_bytes()
    place = whole.index(b"IDAT") - 4
    with path.open("wb") as file:
        file.write(whole[:place] + struct.pack(">I", length) + kind)
        file.seek(length, 1)
        file.write(bytes(4) + whole[place:])


def jpeg(path: Path, edge: int, channels: int = 1, *, progressive: bool = False) -> None:
    """Mid-grey or one colour: a few bits say of a block that it is like the one before. Progressive: a header alone."""
    small = BytesIO()
    mode, colour = {1: ("L", 128), 3: ("RGB", (128, 128, 128)), 4: ("CMYK", (127, 127, 127, 127))}[channels]
    Image.new(mode, (8, 8), colour).save(small, "JPEG", progressive=progressive, subsampling=0)
    content = small.getvalue()
    frame = content.index(b"\xff\xc2" if progressive else b"\xff\xc0") + 5
    content = content[:frame] + struct.pack(">HH", edge, edge) + content[frame + 4 :]
    if progressive:
        path.write_bytes(content)
        return
    scan = content.index(b"\xff\xda")
    start = scan + 2 + int.from_bytes(content[scan + 2 : scan + 4])
    bits = {1: "001010", 3: "001010" + "0000" * 2, 4: "001010" * 4}[channels]
    group = int(bits * 8, 2).to_bytes(len(bits), "big").replace(b"\xff", b"\xff\x00")
    blocks = (-(-edge // 8)) ** 2
    path.write_bytes(content[:start] + group * (blocks // 8 + 1) + b"\xff\xd9")


def jpeg_of_segments(path: Path, count: int) -> None:
    """Metadata in full segments of 64 KB that take no room on the disk."""
    small = BytesIO()
    Image.new("L", (8, 8)).save(small, "JPEG")
    content = small.getvalue()
    with path.open("wb") as file:
        file.write(content[:2])
        for _ in range(count):
            file.write(b"\xff\xe5\xff\xff")
            file.seek(65533, 1)
        file.write(content[2:])


def gif(path: Path, width: int, height: int, *, transparent: bool = False) -> None:
    """A screen with a first image of that size, but the data of one pixel."""
    control = b"!\xf9\x04\x01\0\0\0\0" if transparent else b""
    table = bytes([0, 0, 0, 255, 255, 255])
    size = struct.pack("<HH", width, height)
    image = b"," + bytes(4) + size + b"\0" + b"\x02\x02\x44\x01\x00"
    path.write_bytes(b"GIF89a" + size + b"\x80\0\0" + table + control + image + b";")


def bmp(path: Path, width: int, height: int, bits: int, *, run_length: bool = False) -> None:
    """Raw pixels as a hole in the file, or the run-length form that ends at once."""
    colours = 256 if bits <= 8 else 0
    offset = 54 + 4 * colours
    head = b"BM" + struct.pack("<IHHI", offset, 0, 0, offset)
    head += struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 1 if run_length else 0, 0, 0, 0, colours, 0)
    with path.open("wb") as file:
        file.write(head + bytes(4 * colours))
        if run_length:
            file.write(b"\0\1")
        else:
            file.truncate(offset + (width * bits + 31) // 32 * 4 * height)


def tiff(
    path: Path,
    width: int,
    height: int,
    bits: Sequence[int] = (8, 8, 8),
    *,
    sample_format: int = 1,
    rows: int | None = None,
    tile: int = 0,
    deflated: bool = False,
    parts: int = 1,
    hole: int = 0,
) -> None:
    """One directory; its pixels are a hole in the file, or deflated zeros in strips of `rows` lines.

    `tile` gives the edge of a tile instead of strips, `parts` the number of strips that are listed, `hole` the length
    of a private tag.
    """
    rows = rows or height
    each = rows * width * sum(bits) // 8
    content = zeros(each) if deflated else b""
    extra = {3: [], 4: [2]}.get(len(bits), [])
    arrays: dict[int, tuple[str, list[int]]] = {258: ("H", list(bits)), 339: ("H", [sample_format] * len(bits))}
    if extra:
        arrays[338] = ("H", extra)
    places, sizes = (324, 325) if tile else (273, 279)
    single = {256: width, 257: height, 259: 8 if deflated else 1, 262: 2 if len(bits) > 2 else 1, 277: len(bits)}
    single |= {322: tile, 323: tile} if tile else {278: rows}
    count = len(arrays) + len(single) + 2 + bool(hole)
    at = 8 + 2 + 12 * count + 4
    table, blob = b"", b""
    for tag in sorted({*arrays, *single, places, sizes, *([60000] if hole else [])}):
        if tag == 60000:
            table += struct.pack("<HHII", tag, 7, hole, at + len(blob) + 8 * parts + len(content))
            continue
        if tag in (places, sizes):
            kind, length = 4, parts
            value = b"" if parts > 1 else struct.pack("<I", 0 if tag == places else (len(content) or each) % 2**32)
        elif tag in arrays:
            kind, length = 3, len(arrays[tag][1])
            value = struct.pack(f"<{length}H", *arrays[tag][1])
        else:
            kind, length, value = 4, 1, struct.pack("<I", single[tag])
        if len(value) > 4:
            value, blob = struct.pack("<I", at + len(blob)), blob + value
        elif parts > 1 and tag in (places, sizes):
            value = struct.pack("<I", at)
        table += struct.pack("<HHI", tag, kind, length) + value.ljust(4, b"\0")
    start = at + len(blob)
    if parts == 1:
        entry = table.index(struct.pack("<HHI", places, 4, 1)) + 8
        table = table[:entry] + struct.pack("<I", start) + table[entry + 4 :]
    with path.open("wb") as file:
        file.write(b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", count) + table + bytes(4) + blob + content)
        file.truncate(start + (len(content) or min(each, 4 * 10**9)) + hole + 4 * parts)


def webp(path: Path, width: int, height: int) -> None:
    """Lossless, one colour: each of its five codes has a single symbol, so that a pixel takes no bit at all."""
    bits = f"{width - 1:014b}"[::-1] + f"{height - 1:014b}"[::-1] + "0" + "000"  # least bit first; no alpha, version 0
    bits += "0" + "0" + "0"  # no transform, no colour cache, one group of codes
    bits += ("1" + "0" + "0" + "0") * 5  # a simple code, one symbol, of one bit: 0
    bits = bits.ljust(-(-len(bits) // 8) * 8 + 64, "0")
    body = b"\x2f" + bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    body += b"\0" * (len(body) % 2)
    riff = b"WEBPVP8L" + struct.pack("<I", len(body)) + body
    path.write_bytes(b"RIFF" + struct.pack("<I", len(riff)) + riff)


def jpeg2000(
    path: Path,
    width: int,
    height: int,
    components: int = 3,
    bits: int = 8,
    *,
    tile: int = 0,
    block: int = 64,
    levels: int = 5,
    shown: tuple[int, int] | None = None,
) -> None:
    """A codestream whose packets are all empty; in a box that says the image is of size `shown` where that is given."""
    wide, high = (tile, tile) if tile else (width, height)
    size = struct.pack(">H8IH", 0, width, height, 0, 0, wide, high, 0, 0, components)
    size += bytes([bits - 1, 1, 1]) * components
    exponent = block.bit_length() - 3
    style = struct.pack(">BBHBBBBBB", 0, 0, 1, 0, levels, exponent, exponent, 0, 1)
    steps = bytes([2 << 5, *[9 << 3] * (3 * levels + 1)])

    def segment(marker: int, body: bytes) -> bytes:
        return struct.pack(">HH", marker, len(body) + 2) + body

    stream = b"\xff\x4f" + segment(0xFF51, size) + segment(0xFF52, style) + segment(0xFF5C, steps)
    packets = bytes(components * (levels + 1) * 4)
    for number in range(-(-width // wide) * -(-height // high)):
        stream += segment(0xFF90, struct.pack(">HIBB", number, 14 + len(packets), 0, 1)) + b"\xff\x93" + packets
    stream += b"\xff\xd9"
    if shown is None:
        path.write_bytes(stream)
        return

    def box(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body) + 8) + kind + body

    header = box(b"ihdr", struct.pack(">IIHBBBB", shown[1], shown[0], components, bits - 1, 7, 0, 0))
    colour = box(b"colr", struct.pack(">BBBI", 1, 0, 0, 16 if components > 2 else 17))
    start = box(b"jP  ", b"\r\n\x87\n") + box(b"ftyp", b"jp2 \0\0\0\0jp2 ")
    path.write_bytes(start + box(b"jp2h", header + colour) + box(b"jp2c", stream))


def iso(path: Path, kind: str, width: int, height: int) -> None:
    """A small AVIF or HEIF image whose header announces a large one."""
    small, image = BytesIO(), Image.new("RGB", (64, 64))
    if kind == "HEIF":
        from pillow_heif import from_pillow

        from_pillow(image).save(small)
    else:
        image.save(small, kind)
    content = bytearray(small.getvalue())
    at = content.index(b"ispe") + 8
    content[at : at + 8] = struct.pack(">II", width, height)
    path.write_bytes(content)


def netpbm(path: Path, header: str, nbytes: int) -> None:
    """A header, and pixels as a hole in the file."""
    with path.open("wb") as file:
        file.write(header.encode() + b"\n")
        file.truncate(len(header) + 1 + nbytes)


def tga(path: Path, width: int, height: int, bits: int) -> None:
    """Runs of 128 black pixels; a line holds whole runs."""
    header = struct.pack("<BBBHHBHHHHBB", 0, 0, 10, 0, 0, 0, 0, 0, width, height, bits, 8 if bits == 32 else 0)
    run = b"\xff" + bytes(bits // 8)
    path.write_bytes(header + run * (width * height // 128 + 1))


def ico(path: Path) -> None:
    """An icon that holds a PNG of one column."""
    png(path, 1, 100 * MEGA, colour=0, data=zeros(8))
    inside = path.read_bytes()
    path.write_bytes(struct.pack("<HHHBBBBHHII", 0, 1, 1, 0, 0, 0, 0, 1, 32, len(inside), 22) + inside)


_OK, _LARGE, _EARLY = ("ok",), ("too_large",), ("incomplete",)
_ANY_BUT_OK = ("too_large", "incomplete", "unreadable: damaged file")

BOMBS: dict[str, Bomb] = {
    # PNG
    "column.png": Bomb(partial(png, width=1, height=100 * MEGA, colour=0, data=zeros(8)), _LARGE),
    "line.png": Bomb(partial(png, width=100 * MEGA, height=1, colour=0, data=zeros(8)), _LARGE),
    "rgb-30000.png": Bomb(partial(png, width=30_000, height=30_000, data=zeros(8)), _LARGE),
    "rgb-100mp.png": Bomb(partial(png, width=10_000, height=10_000), _OK, is_slow=True),
    "rgba-100mp.png": Bomb(partial(png, width=10_000, height=10_000, colour=6), _OK, is_slow=True),
    "rgba-132mp.png": Bomb(partial(png, width=12_000, height=11_000, colour=6), _LARGE),
    "rgb16-100mp.png": Bomb(partial(png, width=10_000, height=10_000, bits=16), _OK, is_slow=True),
    "rgba16-100mp.png": Bomb(partial(png, width=10_000, height=10_000, bits=16, colour=6), _OK, is_slow=True),
    "grey16-169mp.png": Bomb(partial(png, width=13_000, height=13_000, bits=16, colour=0), _OK, is_slow=True),
    "grey-alpha-100mp.png": Bomb(partial(png, width=10_000, height=10_000, colour=4), _OK, is_slow=True),
    "palette-169mp.png": Bomb(
        partial(png, width=13_000, height=13_000, colour=3, before=png_chunk(b"tRNS", bytes(256))), _OK, is_slow=True
    ),
    "bits-169mp.png": Bomb(partial(png, width=13_000, height=13_000, bits=1, colour=0), _OK, is_slow=True),
    "interlaced-100mp.png": Bomb(
        partial(png, width=10_000, height=10_000, data=zeros(8), interlaced=True), _EARLY, is_slow=True
    ),
    "one-line-25mp.png": Bomb(partial(png, width=5000, height=5000, data=zeros(15_001)), _EARLY),
    "wide-100mp.png": Bomb(partial(png, width=1 * MEGA, height=100), _OK, is_slow=True),
    "tall-100mp.png": Bomb(partial(png, width=100, height=1 * MEGA), _OK, is_slow=True),
    "tall-8mp.png": Bomb(partial(png, width=1, height=8 * MEGA, colour=0), _LARGE),
    "profile.png": Bomb(
        partial(png, width=8, height=8, before=png_chunk(b"iCCP", b"icc\0\0" + zeros(1000 * MEGA))), _ANY_BUT_OK + _OK
    ),
    "texts.png": Bomb(
        partial(png, width=8, height=8, before=png_chunk(b"zTXt", b"key\0\0" + zeros(900 * MEGA)) * 8),
        _ANY_BUT_OK + _OK,
    ),
    "private-chunk.png": Bomb(partial(png_with_hole, kind=b"prVt", length=2000 * MEGA), _LARGE),
    "exif-chunk.png": Bomb(partial(png_with_hole, kind=b"eXIf", length=2000 * MEGA), _LARGE),
    # JPEG
    "200mp.jpg": Bomb(partial(jpeg, edge=14_143), _OK, is_slow=True),
    "200mp-rgb.jpg": Bomb(partial(jpeg, edge=14_143, channels=3), _OK, is_slow=True),
    "200mp-cmyk.jpg": Bomb(partial(jpeg, edge=14_143, channels=4), _OK, is_slow=True),
    "progressive-900mp.jpg": Bomb(partial(jpeg, edge=30_000, channels=3, progressive=True), _LARGE),
    "progressive-100mp.jpg": Bomb(partial(jpeg, edge=10_000, channels=3, progressive=True), _LARGE),
    "segments.jpg": Bomb(partial(jpeg_of_segments, count=16_000), _LARGE),
    # GIF
    "65535.gif": Bomb(partial(gif, width=65_535, height=65_535), _LARGE),
    "169mp.gif": Bomb(partial(gif, width=13_000, height=13_000), _EARLY),
    "transparent-169mp.gif": Bomb(partial(gif, width=13_000, height=13_000, transparent=True), _EARLY),
    # BMP
    "rgb-900mp.bmp": Bomb(partial(bmp, width=30_000, height=30_000, bits=24), _LARGE),
    "rgb-100mp.bmp": Bomb(partial(bmp, width=10_000, height=10_000, bits=32), _OK, is_slow=True),
    "palette-169mp.bmp": Bomb(partial(bmp, width=13_000, height=13_000, bits=8), _OK, is_slow=True),
    "runs-100mp.bmp": Bomb(partial(bmp, width=10_000, height=10_000, bits=8, run_length=True), _LARGE),
    "column.bmp": Bomb(partial(bmp, width=1, height=100 * MEGA, bits=8), _LARGE),
    # TIFF
    "float-100mp.tif": Bomb(partial(tiff, width=10_000, height=10_000, bits=[32], sample_format=3), _OK, is_slow=True),
    "float-132mp.tif": Bomb(partial(tiff, width=12_000, height=11_000, bits=[32], sample_format=3), _LARGE),
    "rgb16-100mp.tif": Bomb(partial(tiff, width=10_000, height=10_000, bits=[16] * 3), _OK, is_slow=True),
    "rgba-100mp.tif": Bomb(partial(tiff, width=10_000, height=10_000, bits=[8] * 4), _OK, is_slow=True),
    "grey16-169mp.tif": Bomb(partial(tiff, width=13_000, height=13_000, bits=[16]), _OK, is_slow=True),
    "one-strip-81mp.tif": Bomb(partial(tiff, width=9000, height=9000, deflated=True), _LARGE),
    "one-strip-16mp.tif": Bomb(partial(tiff, width=4000, height=4000, deflated=True), _OK),
    "tile-100000.tif": Bomb(partial(tiff, width=64, height=64, tile=100_000, bits=[8], deflated=False), _ANY_BUT_OK),
    "strips.tif": Bomb(partial(tiff, width=100, height=10 * MEGA, bits=[8], rows=1, parts=10 * MEGA), _LARGE),
    "tag.tif": Bomb(partial(tiff, width=8, height=8, hole=2000 * MEGA), _LARGE),
    # WebP, JPEG 2000, AVIF, HEIF
    "98mp.webp": Bomb(partial(webp, width=16_383, height=6000), _LARGE),
    "268mp.webp": Bomb(partial(webp, width=16_383, height=16_383), _LARGE),
    "24mp.webp": Bomb(partial(webp, width=6000, height=4000), _OK, is_slow=True),
    "100mp.j2k": Bomb(partial(jpeg2000, width=10_000, height=10_000), _OK, is_slow=True),
    "grey16-100mp.j2k": Bomb(partial(jpeg2000, width=10_000, height=10_000, components=1, bits=16), _OK, is_slow=True),
    "rgba-100mp.jp2": Bomb(
        partial(jpeg2000, width=10_000, height=10_000, components=4, shown=(10_000, 10_000)), _OK, is_slow=True
    ),
    "tiles-100mp.j2k": Bomb(partial(jpeg2000, width=10_000, height=10_000, tile=1000), _OK, is_slow=True),
    "no-levels-100mp.j2k": Bomb(partial(jpeg2000, width=10_000, height=10_000, levels=0), _LARGE),
    "blocks-25mp.j2k": Bomb(partial(jpeg2000, width=5000, height=5000, block=4), _LARGE),
    "hidden.jp2": Bomb(partial(jpeg2000, width=30_000, height=30_000, levels=0, shown=(64, 64)), _LARGE),
    "100mp.avif": Bomb(partial(iso, kind="AVIF", width=10_000, height=10_000), _LARGE),
    "100mp.heic": Bomb(partial(iso, kind="HEIF", width=10_000, height=10_000), _LARGE),
    # PPM, TGA, ICO
    "100mp.ppm": Bomb(partial(netpbm, header="P6 10000 10000 255", nbytes=300 * MEGA), _OK, is_slow=True),
    "grey16-100mp.pgm": Bomb(partial(netpbm, header="P5 10000 10000 65535", nbytes=200 * MEGA), _OK, is_slow=True),
    "scaled-100mp.ppm": Bomb(partial(netpbm, header="P6 10000 10000 100", nbytes=300 * MEGA), _LARGE),
    "float-100mp.pfm": Bomb(
        partial(netpbm, header="Pf\n10000 10000\n-1.0", nbytes=400 * MEGA), (*_OK, "unreadable: damaged file"), True
    ),
    "plain.pbm": Bomb(partial(netpbm, header="P1 1 100000000", nbytes=MEGA), _LARGE),
    "65535.tga": Bomb(partial(netpbm, header="\0\0\x02" + "\0" * 9 + "\x7f\x7f\x7f\x7f\x20\0", nbytes=8), _LARGE),
    "rgba-100mp.tga": Bomb(partial(tga, width=10_000, height=10_000, bits=32), _LARGE),
    "rgb-60mp.tga": Bomb(partial(tga, width=7680, height=7680, bits=24), _OK, is_slow=True),
    "icon.png": Bomb(ico, ("unreadable: not a known image format",)),
}
