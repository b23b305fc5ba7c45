"""Decoding, on files made by Pillow in every form a folder of photographs may hold, and on files made to break it."""

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from colours import PLAIN, SIDE, close, corners, is_problem, quarters
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, features

from twincluster.data import decode, decode_whole, decoding
from twincluster.data.listing import IMAGE_SUFFIXES


@pytest.mark.parametrize(
    "suffix", ["jpg", "png", "gif", "webp", "bmp", "tif", "ppm", "tga", "jp2", "avif", "jpeg", "dib", "jfif"]
)
def test_formats(tmp_path: Path, suffix: str) -> None:
    needed = {"webp": "webp", "jp2": "jpg_2000", "avif": "avif"}.get(suffix)
    if needed and not features.check(needed):
        pytest.skip(f"this Pillow was built without {needed}")
    path = tmp_path / f"a.{suffix}"
    corners().save(path)
    pixels, status = decode(path, SIDE)
    assert status == "ok"
    assert close(quarters(pixels), PLAIN, within=12)
    assert path.suffix in IMAGE_SUFFIXES


def test_content_decides_not_the_suffix(tmp_path: Path) -> None:
    corners().save(tmp_path / "really.png")
    (tmp_path / "really.png").rename(tmp_path / "called.jpg")
    assert close(quarters(decode(tmp_path / "called.jpg", SIDE)[0]), PLAIN)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_exif_orientation(tmp_path: Path, orientation: int, suffix: str) -> None:
    stored = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),  # shown after a quarter turn clockwise
        7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }[orientation](np.asarray(corners()))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{suffix}"
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif, **({"quality": 95} if suffix == "jpg" else {}))
    assert close(quarters(decode(path, SIDE)[0]), PLAIN)


def test_damaged_metadata_does_not_cost_the_picture(tmp_path: Path) -> None:
    corners().save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage", quality=95)
    pixels, status = decode(tmp_path / "a.jpg", SIDE)
    assert status == "ok"
    assert close(quarters(pixels), PLAIN)


def test_grey_and_bilevel(tmp_path: Path) -> None:
    corners().convert("L").save(tmp_path / "grey.jpg", quality=95)
    grey = quarters(decode(tmp_path / "grey.jpg", SIDE)[0])
    assert all(len(set(colour)) == 1 for colour in grey)
    assert close(grey, [(76,) * 3, (117,) * 3, (29,) * 3, (90,) * 3])
    corners().convert("1", dither=Image.Dither.NONE).save(tmp_path / "one.png")
    assert set(itertools.chain(*quarters(decode(tmp_path / "one.png", SIDE)[0]))) <= {0, 255}


def test_palette_with_and_without_transparency(tmp_path: Path) -> None:
    paletted = corners().quantize(8)
    paletted.save(tmp_path / "p.png")
    assert close(quarters(decode(tmp_path / "p.png", SIDE)[0]), PLAIN)
    green = paletted.getpixel((48, 16))
    paletted.save(tmp_path / "pt.png", transparency=green)
    assert close(quarters(decode(tmp_path / "pt.png", SIDE)[0]), [PLAIN[0], (255, 255, 255), PLAIN[2], PLAIN[3]])
    alphas = bytes(128 if entry == green else 255 for entry in range(8))
    paletted.save(tmp_path / "pa.png", transparency=alphas)
    assert close(quarters(decode(tmp_path / "pa.png", SIDE)[0]), [PLAIN[0], (127, 227, 127), PLAIN[2], PLAIN[3]])


def test_alpha_is_laid_on_white(tmp_path: Path) -> None:
    image = corners()
    alpha = Image.new("L", image.size, 255)
    alpha.paste(0, (0, 0, 32, 32))
    alpha.paste(128, (32, 32, 64, 64))
    image.putalpha(alpha)
    expected = [(255, 255, 255), PLAIN[1], PLAIN[2], (172, 172, 172)]
    for suffix in ("png", "webp", "tif"):
        image.save(tmp_path / f"a.{suffix}", **({"lossless": True} if suffix == "webp" else {}))
        assert close(quarters(decode(tmp_path / f"a.{suffix}", SIDE)[0]), expected), suffix
    image.convert("LA").save(tmp_path / "la.png")
    assert close(quarters(decode(tmp_path / "la.png", SIDE)[0]), [(255,) * 3, (117,) * 3, (29,) * 3, (172,) * 3])


def icon(ink: int, background: int = 0) -> Image.Image:
    """A disc of one grey level; `background` is the alpha round it."""
    alpha = Image.new("L", (64, 64), background)
    ImageDraw.Draw(alpha).ellipse((16, 16, 48, 48), fill=255)
    return Image.merge("LA", [Image.new("L", (64, 64), ink), alpha])


@pytest.mark.parametrize(("ink", "paper"), [(255, 0), (230, 0), (200, 255), (0, 255)])
@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
def test_an_icon_that_white_would_swallow_lies_on_black(tmp_path: Path, mode: str, ink: int, paper: int) -> None:
    drawn = icon(ink)
    (drawn.convert("RGBA").quantize(4) if mode == "P" else drawn.convert(mode)).save(tmp_path / "a.png")
    for pixels, status in (decode(tmp_path / "a.png", SIDE), decode_whole(tmp_path / "a.png", SIDE)):
        assert (status, pixels is not None) == ("ok", True)
        assert np.abs(pixels[SIDE // 2, SIDE // 2].astype(int) - ink).max() <= 2
        assert np.abs(pixels[0, 0].astype(int) - paper).max() <= 2


@pytest.mark.parametrize(
    "image", [icon(255, background=255), Image.new("LA", (64, 64), (255, 0))], ids=["full", "none"]
)
def test_what_is_blank_on_any_page_stays_white(tmp_path: Path, image: Image.Image) -> None:
    image.save(tmp_path / "a.png")
    assert (decode(tmp_path / "a.png", SIDE)[0] == 255).all()


def test_what_is_transparent_lends_no_colour(tmp_path: Path) -> None:
    hidden = np.zeros((64, 64, 4), np.uint8)
    hidden[::2] = (0, 0, 0, 255)
    hidden[1::2] = (255, 0, 0, 0)  # red, but not to be seen
    Image.fromarray(hidden).save(tmp_path / "a.png")
    pixels, _ = decode(tmp_path / "a.png", SIDE)
    assert pixels is not None
    assert np.ptp(pixels.astype(int), axis=2).max() <= 2  # grey throughout
    assert np.abs(pixels[2:-2].astype(int) - 127).max() <= 4  # and every row has had its share


def test_colour_key_transparency(tmp_path: Path) -> None:
    corners().save(tmp_path / "rgb.png", transparency=(255, 0, 0))
    assert close(quarters(decode(tmp_path / "rgb.png", SIDE)[0]), [(255, 255, 255), *PLAIN[1:]])


def test_cmyk_jpeg(tmp_path: Path) -> None:
    corners().convert("CMYK").save(tmp_path / "cmyk.jpg", quality=95)
    with Image.open(tmp_path / "cmyk.jpg") as opened:
        assert opened.mode == "CMYK"
    assert close(quarters(decode(tmp_path / "cmyk.jpg", SIDE)[0]), PLAIN, within=12)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    ramp = np.repeat(np.linspace(0, 65535, SIDE), SIDE).reshape(SIDE, SIDE).astype(np.uint16)
    if suffix == "pgm":  # which Pillow has not always written in 16 bits
        (tmp_path / "a.pgm").write_bytes(f"P5 {SIDE} {SIDE} 65535\n".encode() + ramp.astype(">u2").tobytes())
    else:
        Image.fromarray(ramp).save(tmp_path / f"a.{suffix}")
    pixels, status = decode(tmp_path / f"a.{suffix}", SIDE)
    assert status == "ok"
    assert pixels is not None
    assert np.abs(pixels[:, :, 0].astype(float) - ramp / 257).max() <= 1


@pytest.mark.parametrize(
    ("low", "high", "dark", "bright"),
    [(0.0, 1.0, 0, 255), (0.0, 200.0, 0, 200), (-3.0, 5.0, 0, 255), (0.0, 1e6, 0, 255)],
)
def test_float_tiff(tmp_path: Path, low: float, high: float, dark: int, bright: int) -> None:
    values = np.full((SIDE, SIDE), low, np.float32)
    values[8:] = high
    values[0, 0] = np.nan
    Image.fromarray(values).save(tmp_path / "a.tif")
    pixels, status = decode(tmp_path / "a.tif", SIDE)
    assert status == "ok"
    assert pixels is not None
    assert (int(pixels[4, 4, 0]), int(pixels[12, 4, 0])) == (dark, bright)


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tif"])
def test_first_frame_of_an_animation(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in ((200, 10, 10), (10, 200, 10))]
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
    pixels, _ = decode(tmp_path / f"a.{suffix}", SIDE)
    assert close(quarters(pixels), [(200, 10, 10)] * 4)


@pytest.mark.parametrize("size", [(96, 32), (32, 96), (33, 32), (1, 50), (640, 1), (1, 1)])
def test_the_centre_square_is_kept(tmp_path: Path, size: tuple[int, int]) -> None:
    width, height = size
    edge = min(size)
    image = Image.new("RGB", size, (255, 0, 255))
    left, top = (width - edge) // 2, (height - edge) // 2
    image.paste((10, 120, 60), (left, top, left + edge, top + edge))
    image.save(tmp_path / "a.png")
    pixels, _ = decode(tmp_path / "a.png", SIDE)
    assert pixels is not None
    assert (pixels == (10, 120, 60)).all()


def test_an_image_of_the_right_size_is_not_touched(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found, _ = decode(tmp_path / "a.png", SIDE)
    assert np.array_equal(found, pixels)


def test_reduced_reading_of_a_large_jpeg_stays_close_to_the_full_one(tmp_path: Path) -> None:
    rows, columns = np.mgrid[:1000, :1500] / 60
    smooth = np.stack([np.sin(rows), np.cos(columns), np.sin(rows + columns)], -1)
    image = Image.fromarray((127 + 100 * smooth).astype(np.uint8))
    image.save(tmp_path / "a.jpg", quality=95)
    pixels, _ = decode(tmp_path / "a.jpg", 64)
    slow = image.crop((250, 0, 1250, 1000)).resize((64, 64), Image.Resampling.LANCZOS)
    assert pixels is not None
    assert np.abs(pixels.astype(int) - np.asarray(slow).astype(int)).mean() < 2


def test_files_that_are_no_images(tmp_path: Path) -> None:
    corners(200, 200).save(tmp_path / "whole.jpg")
    corners(200, 200).save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.jpg").read_bytes()
    png = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.jpg").write_text("not a picture at all\n" * 50)
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cut.png").write_bytes(png[: len(png) // 2])
    (tmp_path / "head.jpg").write_bytes(whole[:3])
    (tmp_path / "noise.tga").write_bytes(np.random.default_rng(0).bytes(3000))
    (tmp_path / "script.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "dangling.png").symlink_to("nowhere")
    (tmp_path / "circle.png").symlink_to("circle.png")
    os.mkfifo(tmp_path / "pipe.png")
    expected = {
        "empty.png": "unreadable: empty file",
        "text.jpg": "unreadable: not a known image format",
        "cut.jpg": "incomplete",
        "cut.png": "incomplete",
        "head.jpg": "incomplete",
        "script.jpg": "unreadable: not a known image format",
        "folder.png": "unreadable: not a regular file",
        "pipe.png": "unreadable: not a regular file",
        "dangling.png": "unreadable: missing file",
        "absent.png": "unreadable: missing file",
    }
    assert {name: decode(tmp_path / name, SIDE) for name in expected} == {k: (None, v) for k, v in expected.items()}
    for name in ("noise.tga", "circle.png"):
        pixels, status = decode(tmp_path / name, SIDE)
        assert pixels is None
        assert status.startswith("unreadable: ")
        assert status == status.lower()
        assert str(tmp_path) not in status


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    suffix = data.draw(st.sampled_from(["jpg", "png", "gif", "webp", "tif", "bmp", "ppm", "tga"]))
    whole = tmp_path / f"whole.{suffix}"
    if not whole.exists():
        corners(40, 30).save(whole)
    content = bytearray(whole.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=20)):
        content[place] = data.draw(st.integers(0, 255))
    damaged = tmp_path / f"damaged.{suffix}"
    damaged.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    pixels, status = decode(damaged, SIDE)
    if pixels is None:
        assert is_problem(status)
        assert "\n" not in status
        assert str(tmp_path) not in status
    else:
        assert status == "ok"
        assert pixels.shape == (SIDE, SIDE, 3)


def test_no_permission() -> None:
    """As another user, because root may read everything; in a folder that user may enter."""
    code = (
        "import os, sys, pathlib; from twincluster.data import decode; path = pathlib.Path(sys.argv[1]); "
        "path.chmod(0); os.geteuid() or os.setuid(65534); print(decode(path, 8))"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        corners().save(Path(folder, "locked.png"))
        command = [sys.executable, "-c", code, str(Path(folder, "locked.png"))]
        said = subprocess.run(command, check=True, capture_output=True, text=True, env=_with_source()).stdout
    assert said.strip() == "(None, 'unreadable: no permission')"


def _with_source() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(decoding.__file__).parents[2])}
