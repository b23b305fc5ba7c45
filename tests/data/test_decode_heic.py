"""HEIC, which telephones write: read where pillow-heif is installed, and answered with what to install elsewhere."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from colours import PLAIN, SIDE, close, corners, is_problem, quarters
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import opened, photos
from PIL import Image

from twincluster.data import decode, decoding, may_pass, typical_side
from twincluster.data.decoding import header_sizes
from twincluster.data.listing import IMAGE_SUFFIXES

MISSING = "unreadable: HEIC needs pillow-heif: pip install 'twincluster[heic]'"
BEGINNING = b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf" + b"\0" * 100  # of a HEIC file, as a telephone writes it


def heic(path: Path, image: Image.Image, **options: object) -> Path:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(image).save(path, **({"quality": 95} | options))
    return path


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine without pillow-heif, though an earlier test may have used it."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(Image, "OPEN", {name: opener for name, opener in Image.OPEN.items() if name != "HEIF"})
    decoding._formats.cache_clear()
    yield
    decoding._formats.cache_clear()


@pytest.mark.parametrize("suffix", ["heic", "heif", "hif", "jpg"])
def test_it_is_read_by_content(tmp_path: Path, suffix: str) -> None:
    path = heic(tmp_path / "a.heic", corners()).rename(tmp_path / f"b.{suffix}")
    pixels, status = decode(path, SIDE)
    assert status == "ok"
    assert close(quarters(pixels), PLAIN, within=12)
    assert path.suffix in IMAGE_SUFFIXES
    assert typical_side(header_sizes([path])) == 64


@pytest.mark.parametrize("orientation", range(1, 9))
def test_it_is_turned_once(tmp_path: Path, orientation: int) -> None:
    """The container turns the picture, and the metadata may say so too."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    corners().save(tmp_path / "a.png", exif=exif)
    heic(tmp_path / "a.heic", corners())  # pillow-heif is there
    decode(tmp_path / "a.heic", SIDE)  # and known to Pillow
    corners().save(tmp_path / "b.heic", exif=exif.tobytes(), quality=95)
    shown = quarters(decode(tmp_path / "a.png", SIDE)[0])
    assert close(quarters(decode(tmp_path / "b.heic", SIDE)[0]), shown, within=12)


def test_alpha_is_laid_on_white(tmp_path: Path) -> None:
    image = corners()
    alpha = Image.new("L", image.size, 255)
    alpha.paste(0, (0, 0, 32, 32))
    image.putalpha(alpha)
    pixels, _ = decode(heic(tmp_path / "a.heic", image), SIDE)
    assert close(quarters(pixels), [(255, 255, 255), *PLAIN[1:]], within=12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    whole = tmp_path / "whole.heic"
    content = bytearray((whole if whole.exists() else heic(whole, corners(40, 30))).read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=20)):
        content[place] = data.draw(st.integers(0, 255))
    (tmp_path / "a.heic").write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    pixels, status = decode(tmp_path / "a.heic", SIDE)
    assert (pixels is None and is_problem(status)) or (pixels is not None and status == "ok")


def test_files_that_are_none(tmp_path: Path) -> None:
    whole = heic(tmp_path / "a.heic", corners()).read_bytes()
    (tmp_path / "cut.heic").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.heic").write_text("not a picture at all\n" * 50)
    (tmp_path / "film.heic").write_bytes(b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + b"\0" * 100)
    assert decode(tmp_path / "cut.heic", SIDE) == (None, "incomplete")
    assert decode(tmp_path / "text.heic", SIDE) == (None, "unreadable: not a known image format")
    assert decode(tmp_path / "film.heic", SIDE) == (None, "unreadable: not a known image format")


@pytest.mark.usefixtures("nothing_installed")
def test_without_the_extra_the_status_says_what_to_install(tmp_path: Path) -> None:
    for name in ("a.heic", "b.jpg"):
        (tmp_path / name).write_bytes(BEGINNING)
        assert decode(tmp_path / name, SIDE) == (None, MISSING)
    assert may_pass(MISSING)
    assert typical_side(header_sizes([tmp_path / "a.heic"])) == 0


@pytest.mark.usefixtures("nothing_installed")
def test_without_avif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "OPEN", {name: opener for name, opener in Image.OPEN.items() if name != "AVIF"})
    (tmp_path / "a.avif").write_bytes(b"\0\0\0 ftypavif\0\0\0\0avifmif1miafMA1B" + b"\0" * 100)
    status = "unreadable: AVIF needs Pillow 11.3 or later: pip install --upgrade pillow"
    assert decode(tmp_path / "a.avif", SIDE) == (None, status)


def test_after_an_install_the_next_run_reads_it(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a")
    heic(folder / "z.heic", Image.new("RGB", (20, 20), (200, 100, 50)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pillow_heif", None)
        patch.setattr(Image, "OPEN", {name: opener for name, opener in Image.OPEN.items() if name != "HEIF"})
        decoding._formats.cache_clear()
        before = opened(folder)
    decoding._formats.cache_clear()
    assert before.listing.paths[-1] == "z.heic"
    assert before.status[-1] == MISSING
    told: list[tuple[int, int]] = []
    after = opened(folder, progress=lambda done, total: told.append((done, total)))
    assert told == [(6, 7), (7, 7)]  # the one row only
    assert after.status[-1] == "ok"
    assert np.abs(after.pixels[-1].astype(int) - (200, 100, 50)).max() <= 6
