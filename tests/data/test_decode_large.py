"""Pictures too large for memory: a JPEG is reduced while it is read, anything else is refused before it is."""

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from twincluster.data import Frame, decode, decoding, typical_side
from twincluster.data.decoding import header_sizes

EDGE = 30_000
SIDE = 16
REFUSED = (None, "too_large")

MEASURED = """
import resource, sys
from pathlib import Path
from twincluster.data import decode
decode(Path(sys.argv[1]), 144)  # what loading the decoders takes
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(decode(Path(sys.argv[2]), 144)[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def write_png(path: Path, edge: int, bits: int, colour: int, lines: bool) -> None:
    """A black square, with its pixels or with its header alone."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", edge, edge, bits, colour, 0, 0, 0)
    line = b"\0" * (1 + (edge * bits * (3 if colour == 2 else 1) + 7) // 8)
    pixels = zlib.compress(line * edge if lines else line, 1)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


def grey_jpeg(edge: int) -> bytes:
    """A real JPEG of any size, mid-grey: six bits say of a block of 8 x 8 that it is like the one before."""
    small = jpeg(Image.new("L", (8, 8), 128))
    scan = small.index(b"\xff\xda") + 10
    blocks = (-(-edge // 8)) ** 2
    return resized(small[:scan], edge) + b"\x28\xa2\x8a" * (blocks // 4 + 1) + b"\xff\xd9"  # 001010 four times


def jpeg(image: Image.Image, **options: bool) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def resized(content: bytes, edge: int) -> bytes:
    """The same file with another size in its header."""
    frame = next(content.index(marker) for marker in (b"\xff\xc0", b"\xff\xc2") if marker in content) + 5
    return content[:frame] + struct.pack(">HH", edge, edge) + content[frame + 4 :]


def measured(small: Path, large: Path) -> tuple[str, int]:
    """The status of a file, and by how many MiB decoding it raised the peak of a process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(decoding.__file__).parents[2])}
    command = [sys.executable, "-c", MEASURED, str(small), str(large)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.splitlines()
    return said[0], int(said[1]) // 1024


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count in other units")
def test_memory_stays_small(tmp_path: Path) -> None:
    Image.new("L", (600, 600)).save(tmp_path / "small.jpg")
    (tmp_path / "large.jpg").write_bytes(grey_jpeg(EDGE))
    write_png(tmp_path / "large.png", EDGE, bits=1, colour=0, lines=True)
    status, taken = measured(tmp_path / "small.jpg", tmp_path / "large.jpg")
    assert status == "ok"
    assert taken < 150  # 900 in full
    status, taken = measured(tmp_path / "small.jpg", tmp_path / "large.png")
    assert status == "too_large"
    assert taken < 20


def test_a_large_jpeg_is_read_reduced(tmp_path: Path) -> None:
    (tmp_path / "grey.jpg").write_bytes(grey_jpeg(EDGE))
    pixels, status = decode(tmp_path / "grey.jpg", SIDE)
    assert status == "ok"
    assert pixels is not None
    assert (pixels == 128).all()
    assert typical_side(header_sizes([tmp_path / "grey.jpg"])) == EDGE


def test_a_large_jpeg_is_the_picture_it_shows(tmp_path: Path) -> None:
    image = Image.new("RGB", (11_000, 11_000), (200, 30, 30))
    image.paste((30, 30, 200), (0, 5500, 11_000, 11_000))
    image.save(tmp_path / "a.jpg")
    pixels, _ = decode(tmp_path / "a.jpg", SIDE)
    assert pixels is not None
    assert np.abs(pixels[:7].astype(int) - (200, 30, 30)).max() <= 6
    assert np.abs(pixels[9:].astype(int) - (30, 30, 200)).max() <= 6


def test_a_jpeg_that_has_to_be_held_in_full_is_refused(tmp_path: Path) -> None:
    """One that sharpens by and by, and one that holds a channel after the other."""
    colours = Image.new("RGB", (16, 16), (200, 100, 50))
    (tmp_path / "progressive.jpg").write_bytes(resized(jpeg(colours, progressive=True), EDGE))
    assert decode(tmp_path / "progressive.jpg", SIDE) == REFUSED
    content = jpeg(colours)
    scan = content.index(b"\xff\xda")
    first_channel = b"\xff\xda" + bytes([0, 8, 1, 1, 0, 0, 63, 0])
    (tmp_path / "apart.jpg").write_bytes(resized(content[:scan] + first_channel + content[scan + 14 :], EDGE))
    assert decode(tmp_path / "apart.jpg", SIDE) == REFUSED


@pytest.mark.parametrize("edge", [60_000, EDGE, 11_000])  # beyond Pillow's limit, and beyond ours only
def test_a_large_png_is_a_status(tmp_path: Path, edge: int) -> None:
    write_png(tmp_path / "a.png", edge, bits=8, colour=2, lines=False)
    assert decode(tmp_path / "a.png", SIDE) == REFUSED


@pytest.mark.parametrize("suffix", ["gif", "tif", "bmp", "webp", "ppm", "tga", "jp2"])
def test_other_formats_are_measured_too(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / f"a.{suffix}")
    assert decode(tmp_path / f"a.{suffix}", SIDE)[1] == "ok"
    monkeypatch.setattr(decoding, "LARGEST", 0)
    assert decode(tmp_path / f"a.{suffix}", SIDE) == REFUSED


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "F", "I", "I;16", "CMYK"])
@pytest.mark.parametrize("frame", ["crop", "letterbox"])
@pytest.mark.parametrize("size", [(500, 300), (300, 500), (400, 400), (1000, 3), (3, 1000)])
def test_strip_by_strip_is_close_to_all_at_once(
    mode: str, frame: Frame, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = np.mgrid[: size[1], : size[0]] / 40
    waves = np.stack([np.sin(rows), np.cos(columns), np.sin(rows + columns)], -1)
    image = Image.fromarray((127 + 100 * waves).astype(np.uint8))
    if mode in ("F", "I", "I;16"):
        grey = np.asarray(image.convert("L")).astype(np.float32) * 200
        image = Image.fromarray(grey.astype({"F": np.float32, "I": np.int32, "I;16": np.uint16}[mode]))
    else:
        image = image.convert(mode)
    image.save(tmp_path / "a.tif")
    whole, _ = decode(tmp_path / "a.tif", SIDE, frame)
    monkeypatch.setattr(decoding, "ORDINARY", 1000)
    monkeypatch.setattr(decoding, "STRIP", 20_000)
    strips, status = decode(tmp_path / "a.tif", SIDE, frame)
    assert status == "ok"
    assert whole is not None
    assert strips is not None
    assert np.abs(strips.astype(int) - whole.astype(int)).mean() < (10 if mode == "1" else 3)


def test_a_large_image_is_upright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.new("RGB", (300, 200), (200, 30, 30))
    image.paste((30, 30, 200), (0, 0, 300, 100))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.png", exif=exif)
    whole, _ = decode(tmp_path / "a.png", SIDE)
    monkeypatch.setattr(decoding, "ORDINARY", 1000)
    strips, _ = decode(tmp_path / "a.png", SIDE)
    assert whole is not None
    assert strips is not None
    assert np.abs(strips.astype(int) - whole.astype(int)).max() <= 4


def test_an_image_is_not_closed_that_a_caller_has_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ORDINARY", 1000)
    image = Image.new("RGB", (300, 200), (200, 30, 30))
    decoding.square(image, SIDE)
    assert image.getpixel((0, 0)) == (200, 30, 30)
