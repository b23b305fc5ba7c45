"""The store: what the trainer sees of arrays and of folders, and that nothing is decoded twice."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from pictures import SIDE, opened, photos, same, spoil
from PIL import Image

from twincluster.core import InputError
from twincluster.data import FEW, decode, open_images, open_source

# Arrays


def test_colour_arrays_are_the_callers_own(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3), np.uint8)
    images = open_images(open_source(pixels))
    assert images.pixels is pixels
    assert images.status == ("ok",) * 4
    assert images.usable.tolist() == [0, 1, 2, 3]
    assert images.usable.dtype == np.int64
    assert (images.side, images.is_rows) == (6, False)
    np.save(tmp_path / "a.npy", pixels)
    assert isinstance(open_images(open_source(tmp_path / "a.npy")).pixels, np.memmap)


def test_grey_alpha_and_oblong_arrays_become_squares_of_three_channels() -> None:
    random = np.random.default_rng(0)
    grey = random.integers(0, 256, (4, 6, 6), np.uint8)
    for source in (grey, grey[..., None]):
        pixels = open_images(open_source(source)).pixels
        assert np.array_equal(pixels, np.repeat(grey[..., None], 3, -1))
        assert np.shares_memory(pixels, grey)
    four = random.integers(0, 256, (4, 5, 9, 4), np.uint8)
    images = open_images(open_source(four))
    assert np.array_equal(images.pixels, four[:, :, 2:7, :3])
    assert images.side == 5
    assert np.array_equal(images.pixels[np.array([2, 0])], four[[2, 0], :, 2:7, :3])


def test_rows() -> None:
    images = open_images(open_source(np.random.default_rng(0).normal(size=(7, 3))))
    assert (images.is_rows, images.side, images.pixels.dtype) == (True, 0, np.float32)


def test_fingerprint_of_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(array: np.ndarray) -> str:
        return open_images(open_source(array)).fingerprint

    pixels = np.random.default_rng(0).integers(0, 256, (40, 6, 6, 3), np.uint8)
    changed = pixels.copy()
    changed[39, 5, 5, 2] ^= 1
    assert len(of(pixels)) == 64
    assert of(pixels) == of(pixels.copy()) == of(np.asfortranarray(pixels))
    assert of(pixels) != of(changed)
    assert of(pixels) != of(pixels[:20])
    assert of(pixels) != of(pixels.reshape(40, 36, 3).repeat(1, 0)[:, :, :, None].reshape(40, 12, 3, 3))
    np.save(tmp_path / "a.npy", pixels)
    assert open_images(open_source(tmp_path / "a.npy")).fingerprint == of(pixels)
    monkeypatch.setattr("twincluster.data.images.HASHED_BYTES", pixels.nbytes // 2)  # a large array: every second row
    changed = pixels.copy()
    changed[1] ^= 1
    assert of(pixels) == of(changed)
    changed[2] ^= 1
    assert of(pixels) != of(changed)


# Folders


def test_a_folder_becomes_one_row_per_file(photo_folder: Path) -> None:
    told: list[tuple[int, int]] = []
    listing = open_source(photo_folder)
    images = open_images(listing, side=SIDE, workers=1, progress=lambda done, total: told.append((done, total)))
    assert images.pixels.shape == (62, SIDE, SIDE, 3)
    assert isinstance(images.pixels, np.memmap)
    assert told == [(done, 62) for done in range(63)]
    statuses = dict(zip(listing.paths, images.status, strict=True))
    assert statuses.pop("blue-rings/truncated.jpg") == "incomplete"
    assert statuses.pop("red-rows/empty.png") == "unreadable: empty file"
    assert set(statuses.values()) == {"ok"}
    for row, file in enumerate(listing.files or ()):
        expected, status = decode(file, SIDE)
        assert images.status[row] == status
        assert (row in images.usable) == (status == "ok")
        assert np.array_equal(images.pixels[row], np.zeros((SIDE, SIDE, 3)) if expected is None else expected)


def test_the_default_size_and_place(tmp_path: Path, own_cache: Path) -> None:
    images = open_images(open_source(photos(tmp_path / "a", 3)), workers=1)
    assert images.side == 96
    assert len(list(own_cache.glob("*/*.npy"))) == 1
    elsewhere = tmp_path / "elsewhere"
    open_images(open_source(tmp_path / "a"), cache=elsewhere, workers=1)
    assert len(list(elsewhere.glob("*/*.npy"))) == 1
    with pytest.raises(InputError, match="choose 1 to 4096"):
        open_images(open_source(tmp_path / "a"), side=-1)


def test_the_second_run_decodes_nothing(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a")
    first = opened(folder)
    for file in folder.iterdir():
        spoil(file)
    told: list[tuple[int, int]] = []
    second = opened(folder, progress=lambda done, total: told.append((done, total)))
    assert same(first, second)
    assert told == []


def test_a_changed_folder_decodes_what_changed(tmp_path: Path, own_cache: Path) -> None:
    folder = photos(tmp_path / "a")
    before = opened(folder)
    for file in folder.iterdir():
        spoil(file)
    Image.new("RGB", (9, 9), (1, 2, 3)).save(folder / "0000.png")  # new, and first in order
    Image.new("RGB", (9, 9), (4, 5, 6)).save(folder / "004.png")  # replaced
    (folder / "005.png").unlink()
    told: list[tuple[int, int]] = []
    after = opened(folder, progress=lambda done, total: told.append((done, total)))
    assert told == [(4, 6), (5, 6), (6, 6)]
    assert after.listing.paths == ("000.png", "0000.png", "001.png", "002.png", "003.png", "004.png")
    assert (after.pixels[1] == (1, 2, 3)).all()
    assert (after.pixels[5] == (4, 5, 6)).all()
    for now, then in ((0, 0), (2, 1), (3, 2), (4, 3)):
        assert np.array_equal(after.pixels[now], before.pixels[then])
        assert after.status[now] == before.status[then]
    assert after.fingerprint != before.fingerprint


def test_the_last_finished_stores_of_a_folder_stay_and_no_others(tmp_path: Path, own_cache: Path) -> None:
    folder = photos(tmp_path / "a")
    states = [opened(folder)]
    stores = [set(own_cache.glob("*/*.*"))]
    for number in range(3):
        Image.new("RGB", (9, 9), (number,) * 3).save(folder / "new.png")

        def stop(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            opened(folder, progress=stop)  # one that is never finished
        Image.new("RGB", (9, 9), (number,) * 3).save(folder / f"later-{number}.png")
        states.append(opened(folder))
        stores.append(set(own_cache.glob("*/*.*")))
    assert [len(found) for found in stores] == [3, 6, 9, 9]
    assert stores[0] < stores[1] < stores[2]
    assert stores[3].isdisjoint(stores[0])  # the oldest is gone
    assert np.array_equal(states[0].pixels[0], states[3].pixels[0])  # and who had it open still reads it


def test_the_fingerprint_is_of_the_data_not_of_its_place(tmp_path: Path) -> None:
    one, other = opened(photos(tmp_path / "a")), opened(photos(tmp_path / "b"))
    assert one.fingerprint == other.fingerprint
    os.utime(tmp_path / "b" / "000.png")
    assert opened(tmp_path / "b").fingerprint == one.fingerprint
    (tmp_path / "b" / "000.png").rename(tmp_path / "b" / "renamed.png")
    assert opened(tmp_path / "b").fingerprint != one.fingerprint
    assert open_images(open_source(tmp_path / "a"), side=9, workers=1).fingerprint != one.fingerprint


def test_a_file_that_comes_back_is_read_again(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a")
    (folder / "later.png").symlink_to(tmp_path / "not-yet.png")
    assert opened(folder).status[-1] == "unreadable: missing file"
    told: list[tuple[int, int]] = []
    opened(folder, progress=lambda done, total: told.append((done, total)))
    assert told == [(6, 7), (7, 7)]  # the one row only
    Image.new("RGB", (9, 9), (1, 2, 3)).save(tmp_path / "not-yet.png")
    images = opened(folder)
    assert images.status[-1] == "ok"
    assert (images.pixels[-1] == (1, 2, 3)).all()


def test_lists_of_paths(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a")
    files = [folder / "003.png", folder / "000.png", folder / "003.png", folder / "absent.png"]
    images = open_images(open_source(files), side=SIDE, workers=1)
    whole = opened(folder)
    assert np.array_equal(images.pixels[:3], whole.pixels[[3, 0, 3]])
    assert images.status[3] == "unreadable: missing file"
    assert images.usable.tolist() == [0, 1, 2]


def test_several_processes_build_the_same_store(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a", 120)
    alone = opened(folder, cache=tmp_path / "one")
    assert same(alone, open_images(open_source(folder), side=SIDE, workers=2, cache=tmp_path / "two"))


def test_a_few_files_that_are_named_leave_nothing_on_the_disk(tmp_path: Path, own_cache: Path) -> None:
    """Who asks about image after image would fill it; what is seen of them is the same."""
    folder = photos(tmp_path / "photos", FEW + 1)
    files = sorted(folder.iterdir())
    told: list[tuple[int, int]] = []
    few = open_images(open_source(files[:FEW]), side=SIDE, progress=lambda *done: told.append(done))
    assert not list(own_cache.iterdir())
    assert told[-1] == (FEW, FEW)
    whole = opened(folder)
    assert np.array_equal(few.pixels, whole.pixels[:FEW])
    assert few.status == whole.status[:FEW]
    (folder / files[FEW].name).unlink()
    listing = open_source(folder)
    named = open_images(dataclasses.replace(listing, root=None), side=SIDE)
    assert same(named, opened(folder))  # the fingerprint too
    stores = len(list(own_cache.iterdir()))
    open_images(open_source(files), side=SIDE)
    assert len(list(own_cache.iterdir())) == stores + 1
