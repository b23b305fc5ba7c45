"""A file that was cut is `incomplete`, wherever it was cut; it is `ok` only if nothing of its picture is missing."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from colours import SIDE
from PIL import Image, features

from bombs import gif, png, zeros
from twincluster.data import Content, decode, may_pass

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8))
FRAMES = {"save_all": True, "append_images": [NOISE.rotate(180)]}
FIRST = 64  # bytes; what is cut before may be too short to be known at all


def saved(kind: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    (NOISE.quantize(32) if mode == "P" else NOISE.convert(mode)).save(file, kind, **options)
    return file.getvalue()


def heic() -> bytes:
    file = io.BytesIO()
    pytest.importorskip("pillow_heif").from_pillow(NOISE).save(file)
    return file.getvalue()


def plain_ppm() -> bytes:
    values = "\n".join(" ".join(map(str, line.ravel())) for line in np.asarray(NOISE))
    return f"P3\n80 60\n255\n{values}\n".encode()


def grey16() -> bytes:
    return b"P5\n80 60\n65535\n" + np.asarray(NOISE.convert("L")).astype(">u2").tobytes()


def scaled_ppm() -> bytes:
    return b"P6\n80 60\n100\n" + (np.asarray(NOISE) // 3).tobytes()


FORMATS: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: saved("JPEG"),
    "progressive jpeg": lambda: saved("JPEG", progressive=True),
    "cmyk jpeg": lambda: saved("JPEG", "CMYK"),
    "mpo": lambda: saved("MPO", **FRAMES),
    "png": lambda: saved("PNG"),
    "grey png": lambda: saved("PNG", "L"),
    "bilevel png": lambda: saved("PNG", "1"),
    "palette png": lambda: saved("PNG", "P"),
    "rgba png": lambda: saved("PNG", "RGBA"),
    "apng": lambda: saved("PNG", **FRAMES),
    "gif": lambda: saved("GIF", "P"),
    "gif in order": lambda: saved("GIF", "P", interlace=0),
    "transparent gif": lambda: saved("GIF", "P", transparency=3),
    "animated gif": lambda: saved("GIF", **FRAMES),
    "webp": lambda: saved("WEBP"),
    "lossless webp": lambda: saved("WEBP", lossless=True),
    "animated webp": lambda: saved("WEBP", **FRAMES),
    "bmp": lambda: saved("BMP"),
    "palette bmp": lambda: saved("BMP", "P"),
    "tiff": lambda: saved("TIFF"),
    "float tiff": lambda: saved("TIFF", "F"),
    "lzw tiff": lambda: saved("TIFF", compression="tiff_lzw"),
    "deflated tiff": lambda: saved("TIFF", compression="tiff_adobe_deflate"),
    "jpeg tiff": lambda: saved("TIFF", compression="jpeg"),
    "packbits tiff": lambda: saved("TIFF", compression="packbits"),
    "fax tiff": lambda: saved("TIFF", "1", compression="group4"),
    "ppm": lambda: saved("PPM"),
    "pbm": lambda: saved("PPM", "1"),
    "16-bit pgm": grey16,
    "plain ppm": plain_ppm,
    "scaled ppm": scaled_ppm,
    "tga": lambda: saved("TGA"),
    "run-length tga": lambda: saved("TGA", compression="tga_rle"),
    "jp2": lambda: saved("JPEG2000"),
    "j2k": lambda: saved("JPEG2000", no_jp2=True),
    "jp2 in layers": lambda: saved("JPEG2000", quality_layers=[50, 20, 5], irreversible=True),
    "jp2 in tiles": lambda: saved("JPEG2000", tile_size=(32, 32)),
    "avif": lambda: saved("AVIF", speed=10),
    "heic": heic,
}
NEEDED = {"jp2": "jpg_2000", "j2k": "jpg_2000", "webp": "webp", "avif": "avif"}


@pytest.mark.parametrize("kind", FORMATS)
def test_what_was_cut_is_incomplete(kind: str) -> None:
    if lacking := [word for word in kind.split() if word in NEEDED and not features.check(NEEDED[word])]:
        pytest.skip(f"this Pillow was built without {lacking[0]}")
    whole, suffix = FORMATS[kind](), ".tga" if "tga" in kind else ""
    expected, status = decode(Content(whole, suffix), SIDE)
    assert status == "ok"
    cuts = {len(whole) * step // 24 for step in range(1, 24)} | set(range(len(whole) - 20, len(whole)))
    found = {cut: decode(Content(whole[:cut], suffix), SIDE) for cut in cuts if cut >= FIRST}
    assert {status for _, status in found.values()} <= {"incomplete", "ok"}
    assert found[min(found)][1] == "incomplete"
    assert all(np.array_equal(pixels, expected) for pixels, status in found.values() if status == "ok")
    assert all(pixels is None for pixels, status in found.values() if status == "incomplete")


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("colour", [0, 2, 3, 4, 6])
@pytest.mark.parametrize("height", [1, 2, 59, 60])
def test_a_png_whose_compressed_lines_end_early(tmp_path: Path, colour: int, interlaced: bool, height: int) -> None:
    """Its chunks are all there, with the right checksums, and so is the end of the stream."""
    line = 1 + 80 * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    lines = 0 if interlaced else height - 1
    png(tmp_path / "a.png", 80, height, colour=colour, interlaced=interlaced, data=zeros(lines * line))
    assert decode(tmp_path / "a.png", SIDE) == (None, "incomplete")
    if not interlaced:
        png(tmp_path / "a.png", 80, height, colour=colour)
        assert decode(tmp_path / "a.png", SIDE)[1] == "ok"


@pytest.mark.parametrize("transparent", [False, True])
def test_a_gif_whose_codes_end_early(tmp_path: Path, transparent: bool) -> None:
    gif(tmp_path / "a.gif", 80, 60, transparent=transparent)
    assert decode(tmp_path / "a.gif", SIDE) == (None, "incomplete")
    gif(tmp_path / "b.gif", 1, 1, transparent=transparent)
    assert decode(tmp_path / "b.gif", SIDE)[1] == "ok"


@pytest.mark.parametrize("value", [0x5A, 0xA5])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "1"])
@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "jp2"])
def test_no_colour_is_taken_for_a_missing_line(tmp_path: Path, suffix: str, mode: str, value: int) -> None:
    if (suffix, mode) == ("jp2", "1"):
        pytest.skip("no such image")
    image = Image.new("L", (80, 60), value)
    (Image.merge(mode, [image] * len(mode)) if len(mode) > 1 else image.convert(mode)).save(tmp_path / f"a.{suffix}")
    assert decode(tmp_path / f"a.{suffix}", SIDE)[1] == "ok"


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_jpeg_that_was_cut_and_then_closed(mode: str, share: float) -> None:
    whole = saved("JPEG", mode)
    assert decode(Content(whole[: int(share * len(whole))] + b"\xff\xd9"), SIDE) == (None, "incomplete")


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
def test_a_jpeg_whose_rest_was_never_written(progressive: bool, share: float) -> None:
    """As a download leaves it that takes the room beforehand."""
    whole = saved("JPEG", progressive=progressive)
    start = int(share * len(whole))
    assert decode(Content(whole[:start] + bytes(len(whole) - start)), SIDE) == (None, "incomplete")


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_a_jpeg_that_ends_in_mid_grey_is_whole(mode: str) -> None:
    image = NOISE.convert(mode)
    image.paste((127 if mode == "CMYK" else 128,) * len(image.getbands()), (0, 20, 80, 60))
    for options in ({}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1}):
        file = io.BytesIO()
        image.save(file, "JPEG", **options)
        assert decode(Content(file.getvalue()), SIDE)[1] == "ok"


def test_bytes_after_the_end_do_no_harm() -> None:
    for kind in ("jpeg", "png", "gif", "webp", "bmp", "tiff", "ppm", "jp2"):
        assert decode(Content(FORMATS[kind]() + bytes(1000)), SIDE)[1] == "ok", kind


def test_a_film_is_no_incomplete_image() -> None:
    film = b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + b"\0\0\1\0moov" + bytes(100)
    assert decode(Content(film), SIDE) == (None, "unreadable: not a known image format")


def test_what_is_incomplete_stays_so_until_the_file_changes() -> None:
    assert not may_pass("incomplete")
    assert not may_pass("too_large")
