"""More than eight bits a channel: scaled to what the eye would see, never clipped, and refused rather than garbled."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from twincluster.data import decode

SIDE = 16
RAMP = np.linspace(0, 65535, SIDE * SIDE * 3).reshape(SIDE, SIDE, 3).round()


def write_png(path: Path, values: np.ndarray) -> None:
    """16 bits a channel, (h,w,c), which Pillow reads but does not write."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, channels = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def write_tiff(
    path: Path, values: np.ndarray, order: str, photometric: int, planes: bool = False, bits: int = 16
) -> None:
    """(h,w,c) in either byte order, channels interleaved or one after the other."""
    height, width, channels = values.shape
    parts = np.moveaxis(values, 2, 0) if planes else values[None]
    written = [part.astype(f"{order}u{bits // 8}").tobytes() for part in parts]
    size, end = len(written[0]), 8 + sum(map(len, written))
    arrays = {258: ("H", [bits] * channels), 273: ("I", [8 + n * size for n in range(len(written))])}
    arrays[279] = ("I", [size] * len(written))
    single = {256: width, 257: height, 259: 1, 262: photometric, 277: channels, 278: height, 284: 2 if planes else 1}
    blob, entries = b"", b""
    for tag in sorted({*arrays, *single}):
        kind, numbers = arrays.get(tag, ("I", [single.get(tag, 0)]))
        value = struct.pack(f"{order}{len(numbers)}{kind}", *numbers).ljust(4, b"\0")
        if len(value) > 4:
            blob, value = blob + value, struct.pack(order + "I", end + len(blob))
        entries += struct.pack(order + "HHI", tag, 3 if kind == "H" else 4, len(numbers)) + value
    start = struct.pack(order + "I", end + len(blob))
    head = (b"II*\0" if order == "<" else b"MM\0*") + start
    count = struct.pack(order + "H", len(arrays) + len(single))
    path.write_bytes(head + b"".join(written) + blob + count + entries + b"\0" * 4)


def decoded(path: Path) -> np.ndarray:
    pixels, status = decode(path, SIDE)
    assert status == "ok"
    assert pixels is not None
    return pixels.astype(float)


def test_colour_png(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png", RAMP)
    assert np.abs(decoded(tmp_path / "a.png") - RAMP / 257).max() <= 1


@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_png(tmp_path: Path, channels: int) -> None:
    half = np.full((SIDE, SIDE, 1), 32768.0)
    grey_or_colour = RAMP[..., : channels - 1]
    write_png(tmp_path / "a.png", np.concatenate([grey_or_colour, half], axis=2))
    on_white = np.broadcast_to(grey_or_colour / 257 / 2 + 127.5, RAMP.shape)
    assert np.abs(decoded(tmp_path / "a.png") - on_white).max() <= 2


@pytest.mark.parametrize("order", ["<", ">"])
def test_colour_tiff(tmp_path: Path, order: str) -> None:
    write_tiff(tmp_path / "a.tif", RAMP, order, photometric=2)
    assert np.abs(decoded(tmp_path / "a.tif") - RAMP / 257).max() <= 1


@pytest.mark.parametrize("order", ["<", ">"])
def test_planes_are_refused_with_a_way_out(tmp_path: Path, order: str) -> None:
    write_tiff(tmp_path / "a.tif", RAMP, order, photometric=2, planes=True)
    pixels, status = decode(tmp_path / "a.tif", SIDE)
    assert pixels is None
    assert status == "unreadable: 16-bit channels in separate planes: save it with interleaved ones"


def test_planes_of_eight_bits_are_read(tmp_path: Path) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    write_tiff(tmp_path / "a.tif", colour, "<", photometric=2, planes=True, bits=8)
    assert np.array_equal(decoded(tmp_path / "a.tif"), colour)


@pytest.mark.parametrize("white,expected", [(1, 255), (200, 200), (4095, 255), (4096, 16), (65535, 255)])
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_grey_is_scaled_by_the_range_it_keeps_to(tmp_path: Path, suffix: str, white: int, expected: int) -> None:
    values = np.zeros((SIDE, SIDE), np.uint16)
    values[8:] = white
    Image.fromarray(values).save(tmp_path / f"a.{suffix}")
    pixels = decoded(tmp_path / f"a.{suffix}")
    assert (pixels[4] == 0).all()
    assert (pixels[12] == expected).all()


def test_white_is_zero(tmp_path: Path) -> None:
    write_tiff(tmp_path / "a.tif", RAMP[..., :1], "<", photometric=0)
    assert np.abs(decoded(tmp_path / "a.tif") - (255 - RAMP[..., :1] / 257)).max() <= 1


def test_many_lines_are_scaled_as_a_few_are(tmp_path: Path) -> None:
    tall = np.random.default_rng(0).integers(0, 65536, (1500, 4), np.uint16)
    Image.fromarray(tall).save(tmp_path / "a.png")
    pixels, _ = decode(tmp_path / "a.png", 1500, "letterbox")
    assert pixels is not None
    assert np.abs(pixels[:, 748:752, 0] - tall / 257).max() <= 1
