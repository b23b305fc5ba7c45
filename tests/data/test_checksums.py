"""Pages of a cached array that a disk lost, or that another program wrote, are noticed and mended, whether the file's
time of change says so or not."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import twincluster.fit as pipeline
from command_line import colours
from small_encoders import colour_encoder, some_images
from test_pipeline import tiny
from twincluster.data import Images, open_images, open_source
from twincluster.data import store as checksums
from twincluster.nn import encode
from twincluster.nn.feature_cache import CHUNK
from twincluster.run_images import RunImages
from twincluster.runs import Run

SIDE, COUNT = 16, 150


def photos(folder: Path, count: int = COUNT) -> Path:
    random = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        Image.fromarray(random.integers(1, 256, (SIDE, SIDE, 3), np.uint8)).save(folder / f"{number:03d}.png")
    return folder


def opened(folder: Path, told: list[int] | None = None) -> Images:
    def progress(done: int, total: int) -> None:
        if told is not None:
            told.append(done)

    return open_images(open_source(folder), side=SIDE, workers=1, progress=progress)


def only(cache: Path, pattern: str) -> Path:
    (found,) = cache.glob(pattern)
    return found


def zero(path: Path, start: int, length: int, *, silently: bool) -> None:
    """Zero some bytes; `silently`, as a disk does it, leaves the time of change as it was."""
    found = path.stat()
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(length))
    if silently:
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize(
    ("start", "length", "again"), [(0, 4096, 6), (8192, 4096, 6), (50_000, 1, 1), (0, 10**9, COUNT)]
)
def test_zeroed_pages_of_pixels_are_decoded_again(
    tmp_path: Path, own_cache: Path, silently: bool, start: int, length: int, again: int
) -> None:
    folder = photos(tmp_path / "photos")
    before = opened(folder)
    expected, pixels = np.array(before.pixels), only(own_cache, "*/*.npy")
    zero(pixels, start, min(length, pixels.stat().st_size - start), silently=silently)
    told: list[int] = []
    after = opened(folder, told)
    assert np.array_equal(after.pixels, expected)
    assert (after.status, after.fingerprint) == (before.status, before.fingerprint)
    assert told[0] == COUNT - again
    assert np.array_equal(np.load(pixels), expected)  # its header too
    told.clear()
    opened(folder, told)
    assert told == []


def test_of_a_large_store_other_rows_are_compared_each_time(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "SAMPLE_BYTES", 0)
    monkeypatch.setattr(checksums, "FEWEST", 10)
    monkeypatch.setattr("twincluster.data.store._SHORT_JOURNAL", 0)
    folder = photos(tmp_path / "photos")
    expected, pixels = np.array(opened(folder).pixels), only(own_cache, "*/*.npy")
    zero(pixels, 60_000, 768 * 10, silently=True)
    for _ in range(200):  # each finds it in one of two cases
        if np.array_equal(opened(folder).pixels, expected):
            return
    pytest.fail("damage in ten of 150 rows was never found")


def test_a_store_that_was_copied_is_compared_once(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(tmp_path / "photos")
    first = opened(folder)
    os.utime(only(own_cache, "*/*.npy"), ns=(1, 1))
    second = opened(folder)
    assert np.array_equal(first.pixels, second.pixels)
    monkeypatch.setattr("twincluster.data.store.Store.sound", None)  # of all rows
    opened(folder)


def test_a_process_that_reads_goes_on_while_another_mends(tmp_path: Path, own_cache: Path) -> None:
    folder = photos(tmp_path / "photos")
    reading = opened(folder).pixels
    expected, pixels = np.array(reading), only(own_cache, "*/*.npy")
    zero(pixels, 0, pixels.stat().st_size, silently=False)
    opened(folder)
    assert np.array_equal(reading, expected)


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize(("start", "length", "chunks"), [(0, 4096, 2), (4096, 1, 1), (0, 10**9, 3), (5000, 2000, 2)])
def test_zeroed_pages_of_features_are_encoded_again(
    own_cache: Path, silently: bool, start: int, length: int, chunks: int
) -> None:
    images, encoder = some_images(COUNT), colour_encoder()
    expected = np.array(encode(images, colour_encoder()).pixels)
    path = only(own_cache, "features/*.npy")
    zero(path, start, min(length, path.stat().st_size - start), silently=silently)
    assert np.array_equal(encode(images, encoder).pixels, expected)
    assert encoder.network.calls == chunks
    assert np.array_equal(np.load(path), expected)
    encoder.network.calls = 0
    encode(images, encoder)
    assert encoder.network.calls == 0


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{"), lambda path: path.write_text("[]")])
def test_features_without_their_checksums_are_encoded_again(own_cache: Path, damage: Callable[[Path], Any]) -> None:
    images, encoder = some_images(COUNT), colour_encoder()
    expected = np.array(encode(images, colour_encoder()).pixels)
    zero(only(own_cache, "features/*.npy"), 4096, 8, silently=True)
    damage(only(own_cache, "features/*.sums"))
    assert np.array_equal(encode(images, encoder).pixels, expected)


def test_what_a_stopped_run_left_of_features_is_compared(own_cache: Path) -> None:
    def stop_after_two_chunks(done: int, total: int) -> None:
        if done >= 2 * CHUNK:
            raise KeyboardInterrupt

    images, encoder = some_images(COUNT), colour_encoder()
    with pytest.raises(KeyboardInterrupt):
        encode(images, colour_encoder(), progress=stop_after_two_chunks)
    zero(only(own_cache, "features/*.partial"), 5000, 100, silently=True)  # in the second chunk
    told: list[int] = []
    rows = encode(images, encoder, progress=lambda done, total: told.append(done))
    assert told[0] == CHUNK
    shutil.rmtree(own_cache / "features")
    assert np.array_equal(rows.pixels, encode(images, colour_encoder()).pixels)


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize(("start", "length"), [(0, 100), (5000, 1), (0, 10**9)])
def test_zeroed_pages_of_a_smaller_copy_of_an_array_are_made_again(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, silently: bool, start: int, length: int
) -> None:
    monkeypatch.setattr("twincluster.data.images.HELD_BYTES", 0)
    array = np.random.default_rng(0).integers(0, 256, (60, 40, 40, 3), np.uint8)
    expected = np.array(open_images(open_source(array), array_side=SIDE).pixels)
    path = only(own_cache, "arrays/*.npy")
    zero(path, start, min(length, path.stat().st_size - start), silently=silently)
    assert np.array_equal(open_images(open_source(array), array_side=SIDE).pixels, expected)
    told: list[int] = []
    open_images(open_source(array), array_side=SIDE, progress=lambda done, total: told.append(done))
    assert told == []


def test_rows_that_cannot_be_mended_are_left_out(tmp_path: Path, own_cache: Path) -> None:
    """The images have moved away, and the cache has the only copy."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, pixels in enumerate(colours(40)[0]):
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    pipeline.fit(open_source(folder), tiny(), tmp_path / "run", location=str(folder))
    folder.rename(tmp_path / "elsewhere")
    whole = RunImages(Run.open(tmp_path / "run")).own
    assert whole is not None
    assert whole.rows.tolist() == list(range(40))
    pixels = only(own_cache, "*/*.npy")
    each = whole.images.pixels[0].nbytes
    zero(pixels, pixels.stat().st_size - 3 * each, 2 * each, silently=True)
    rest = RunImages(Run.open(tmp_path / "run")).own
    assert rest is not None
    assert rest.rows.tolist() == [*range(37), 39]


def test_damage_in_the_cache_does_not_change_clusters(tmp_path: Path, own_cache: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, pixels in enumerate(colours(40)[0]):
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    pipeline.fit(open_source(folder), tiny(), tmp_path / "one")
    pixels = only(own_cache, "*/*.npy")
    zero(pixels, 0, pixels.stat().st_size // 2, silently=True)
    pipeline.fit(open_source(folder), tiny(), tmp_path / "two")
    assert (tmp_path / "one/assignments.csv").read_bytes() == (tmp_path / "two/assignments.csv").read_bytes()


@pytest.mark.parametrize("length", [0, 5, 200])
def test_pixels_of_an_earlier_state_that_were_cut_are_decoded_again(
    tmp_path: Path, own_cache: Path, length: int
) -> None:
    folder = photos(tmp_path / "photos")
    opened(folder)
    with only(own_cache, "*/*.npy").open("r+b") as file:
        file.truncate(length)
    Image.new("RGB", (SIDE, SIDE), "red").save(folder / "one more.png")
    assert opened(folder).status == ("ok",) * (COUNT + 1)
