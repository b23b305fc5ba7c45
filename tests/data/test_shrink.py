"""Arrays far larger than the training size: they get the pixels that files of the same images get, and no crop of them
flickers with pixels that happen to be hit."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from small_runs import SMALL, pictures
from twincluster.config import Augment, Config, make_config
from twincluster.core import InputError
from twincluster.data import N_DRAWS, Frame, augment_images, open_images, open_source
from twincluster.data import images as shrink
from twincluster.estimator import TwinContrastClustering
from twincluster.fit import fit
from twincluster.model import Model, open_for, predict
from twincluster.resolve import resolve
from twincluster.run_images import RunImages


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def at(size: int, **train: Any) -> Config:
    return make_config({"train": {"image_size": size, "device": "cpu", **train}}, SMALL)


def test_crops_of_a_fine_pattern_are_grey_as_from_a_distance() -> None:
    """A chequerboard of single pixels: whoever skips pixels sees black and white."""
    board = np.indices((64, 64)).sum(0) % 2 * 255
    array = np.repeat(board[None, ..., None], 3, -1).astype(np.uint8).repeat(8, 0)
    images = open_for(at(8), open_source(array))
    settings = Augment(jitter=0, grey=0, flip=0)
    draws = torch.rand(8, N_DRAWS, generator=torch.Generator().manual_seed(0))
    zero, one = torch.zeros(3), torch.ones(3)
    seen = augment_images(torch.from_numpy(np.array(images.pixels)), draws, settings, 8, zero, one)
    assert (seen - 0.5).abs().max() < 0.05
    raw = augment_images(torch.from_numpy(array), draws, settings, 8, zero, one)
    assert (raw - 0.5).abs().max() > 0.3  # else this pattern shows nothing


@pytest.mark.parametrize("shape", [(64, 64, 3), (50, 64, 3), (64, 50), (64, 40, 1), (64, 64, 4)], ids=str)
@pytest.mark.parametrize("frame", ["crop", "letterbox"])
def test_an_array_becomes_what_lossless_files_of_it_become(
    tmp_path: Path, shape: tuple[int, ...], frame: Frame
) -> None:
    array = noise(3, *shape)
    for row, image in enumerate(array):
        opaque = image[..., :3].squeeze() if image.ndim == 3 else image
        Image.fromarray(opaque).save(tmp_path / f"{row}.png")
    config = at(16, frame=frame)
    files, rows = open_for(config, open_source(tmp_path)), open_for(config, open_source(array))
    assert rows.side == files.side == 24
    assert np.array_equal(rows.pixels, files.pixels)


@pytest.mark.parametrize(
    ("edge", "size", "side"), [(48, 24, 48), (49, 24, 36), (192, 0, 192), (193, 0, 144), (9, 0, 9)]
)
def test_only_what_is_more_than_twice_as_large_is_made_smaller(edge: int, size: int, side: int) -> None:
    array = noise(3, edge, edge, 3)
    images = open_for(at(size), open_source(array))
    assert images.side == side
    assert (images.pixels is array) == (side == edge)
    assert resolve(at(size), images).train.image_size == (size or min(edge, 96))
    assert images.fingerprint == open_images(open_source(array)).fingerprint  # of the data, whatever is made of it


def test_many_are_kept_on_disk_and_made_once(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = noise(40, 32, 32, 3)
    np.save(tmp_path / "a.npy", array)
    held = open_images(open_source(array), array_side=8)
    assert not list(own_cache.iterdir())
    monkeypatch.setattr(shrink, "HELD_BYTES", held.pixels.nbytes - 1)
    monkeypatch.setattr(shrink, "BYTES_AT_ONCE", 7 * held.pixels[0].nbytes)  # parts that do not come out even
    told: list[tuple[int, int]] = []

    def opened(source: Any) -> np.ndarray:
        return open_images(
            open_source(source), array_side=8, progress=lambda done, total: told.append((done, total))
        ).pixels

    kept = opened(tmp_path / "a.npy")
    assert isinstance(kept, np.memmap)
    assert np.array_equal(kept, held.pixels)
    assert told == [(done, 40) for done in (7, 14, 21, 28, 35, 40)]
    assert np.array_equal(opened(array), held.pixels)  # the same bytes from elsewhere
    assert len(told) == 6
    changed = array.copy()
    changed[39, 31, 31, 2] ^= 255
    assert not np.array_equal(opened(changed)[39], kept[39])
    (store,) = [file for file in own_cache.rglob("*.npy") if np.array_equal(np.load(file), kept)]
    store.write_bytes(store.read_bytes()[:-1])
    assert np.array_equal(opened(array), held.pixels)  # cut short since, it is made again
    assert {file.suffix for file in own_cache.rglob("*.*")} == {".npy", ".sums"}


def test_a_copy_that_is_there_waits_for_no_other_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it write anything: a cache may be read-only."""
    monkeypatch.setattr(shrink, "HELD_BYTES", 0)
    listing = open_source(noise(3, 32, 32, 3))
    made = open_images(listing, array_side=8).pixels
    monkeypatch.setattr(shrink, "only_one", lambda folder: pytest.fail(f"{folder} was locked"))
    assert np.array_equal(open_images(listing, array_side=8).pixels, made)


def test_the_copies_last_used_stay(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "HELD_BYTES", 0)
    monkeypatch.setattr(shrink, "KEPT", 2)
    arrays = [noise(3, 32, 32 + number, 3) for number in range(4)]

    def opened(number: int) -> np.ndarray:
        return open_images(open_source(arrays[number]), array_side=8).pixels

    def aged() -> None:
        for path in own_cache.glob("arrays/*.npy"):
            os.utime(path, ns=(0, path.stat().st_mtime_ns // 2))

    first, expected = opened(0), opened(0).copy()
    (oldest,) = own_cache.glob("arrays/*.npy")
    for number in (1, 2):
        aged()
        opened(number)
    aged()
    opened(0)  # now 1 is the one that nobody has used for longest
    aged()
    for name, changed in (("killed", 0), ("other", time.time())):  # the latter is being written elsewhere
        (own_cache / "arrays" / f"{name}.npy.partial").touch()
        os.utime(own_cache / "arrays" / f"{name}.npy.partial", (changed, changed))
    opened(3)
    kept = set(own_cache.glob("arrays/*.npy"))
    assert len(kept) == 3
    assert oldest in kept
    assert [path.name for path in own_cache.glob("arrays/*.partial")] == ["other.npy.partial"]
    for number in (1, 2):
        aged()
        opened(number)
    assert oldest not in set(own_cache.glob("arrays/*.npy"))
    assert np.array_equal(first, expected)  # who has it open goes on


def test_a_build_that_was_broken_off_is_not_taken_for_whole(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "HELD_BYTES", 0)
    monkeypatch.setattr(shrink, "BYTES_AT_ONCE", 1)
    listing = open_source(noise(5, 32, 32, 3))

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_images(listing, array_side=8, progress=stop)
    assert not list(own_cache.rglob("*.*"))
    assert open_images(listing, array_side=8).pixels[4].any()


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "HELD_BYTES", 0)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="or set TWINCLUSTER_CACHE to another folder"):
        open_images(open_source(noise(3, 32, 32, 3)), array_side=8, cache=tmp_path / "file")


def test_the_same_rows_are_predicted_as_they_were_assigned(tmp_path: Path) -> None:
    array = pictures(side=32)[0]
    np.save(tmp_path / "a.npy", array)
    source = str(tmp_path / "a.npy")
    fitted = fit(open_source(source), at(8, epochs=1), tmp_path / "run", location=source)
    assert fitted.run.data.side == 12
    again = predict(fitted.run, open_source(array), "cpu")
    assert np.array_equal(again.clusters, fitted.assignments.clusters)
    assert np.array_equal(again.confidence, fitted.assignments.confidence)
    some = predict(fitted.run, open_source(array[5:7]), "cpu")
    assert some.confidence == pytest.approx(fitted.assignments.confidence[5:7], abs=1e-5)
    reopened = RunImages(fitted.run)
    assert reopened.training is not None, reopened.absent
    assert reopened.training.side == 12
    settings = {"train.image_size": 8, "anchored.hidden": 16}
    model = TwinContrastClustering(3, epochs=1, settings=settings, random_state=0, device="cpu").fit(array)
    assert np.array_equal(model.predict(array), model.labels_)


def test_a_run_on_small_images_does_not_begin_to_make_later_ones_smaller(tmp_path: Path) -> None:
    """What it has learned from was resized in one step, and so are these."""
    fitted = fit(open_source(pictures(side=9)[0]), at(8, epochs=1), tmp_path / "run")
    assert Model.load(fitted.run, "cpu").open(open_source(noise(3, 64, 64, 3))).side == 64
