"""A folder that changes while it is read: the rows are those that were listed, and the next run sees what is there."""

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from pictures import SIDE, opened, photos, same
from PIL import Image

from command_line import TINY
from twincluster import fit as pipeline
from twincluster.config import make_config, parse_overrides
from twincluster.data import listing as folders
from twincluster.data import open_images, open_source


def once(change: Callable[[], None]) -> Callable[[int, int], None]:
    """Progress that changes the folder when decoding begins."""
    left = [change]

    def told(done: int, total: int) -> None:
        if left:
            left.pop()()

    return told


def shuffle(folder: Path) -> None:
    """One file goes, one is cut short, one becomes another picture, one another kind of thing, and one is new."""
    (folder / "002.png").unlink()
    (folder / "003.png").write_bytes((folder / "003.png").read_bytes()[:60])
    Image.new("RGB", (9, 9), (1, 2, 3)).save(folder / "004.png")
    (folder / "005.png").unlink()
    (folder / "005.png").mkdir()
    Image.new("RGB", (9, 9), (4, 5, 6)).save(folder / "zzz.png")


@pytest.mark.parametrize("workers", [1, 2])
def test_files_that_change_between_listing_and_decoding(tmp_path: Path, workers: int) -> None:
    folder = photos(tmp_path / "a", 110)  # enough for processes
    listing = open_source(folder)
    during = open_images(listing, side=SIDE, workers=workers, progress=once(lambda: shuffle(folder)))
    assert during.listing.paths == tuple(f"{number:03d}.png" for number in range(110))
    statuses = {path: status for path, status in zip(listing.paths, during.status, strict=True) if status != "ok"}
    assert statuses == {
        "001.png": "incomplete",  # as it was from the start
        "002.png": "unreadable: missing file",
        "003.png": "incomplete",
        "005.png": "unreadable: not a regular file",
    }
    assert (during.pixels[4] == (1, 2, 3)).all()
    after = opened(folder)  # what was decoded under another size and time is not taken for what is there now
    assert len(after.listing.paths) == 109
    assert same(after, opened(folder, cache=tmp_path / "whole"))


def test_a_picture_that_is_still_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a")
    whole = (folder / "003.png").read_bytes()
    (folder / "003.png").write_bytes(whole[: len(whole) // 2])
    assert opened(folder).status[3] == "incomplete"
    (folder / "003.png").write_bytes(whole)
    images = opened(folder)
    assert images.status[3] == "ok"
    assert same(images, opened(folder, cache=tmp_path / "whole"))


def test_a_folder_that_goes_away_while_it_is_decoded(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a")
    images = opened(folder, progress=once(lambda: shutil.rmtree(folder)))
    assert set(images.status) == {"unreadable: missing file"}
    assert len(images.usable) == 0
    photos(folder)
    assert same(opened(folder), opened(folder, cache=tmp_path / "whole"))


def test_a_subfolder_that_goes_away_while_it_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path / "a" / "stays", 2)
    photos(tmp_path / "a" / "goes", 2)
    look = os.scandir

    def scandir(path: Path) -> AbstractContextManager[list[os.DirEntry[str]]]:
        with look(path) as entries:
            found = list(entries)
        shutil.rmtree(tmp_path / "a" / "goes", ignore_errors=True)
        return nullcontext(found)

    monkeypatch.setattr(folders.os, "scandir", scandir)
    with pytest.warns(UserWarning, match="a/goes cannot be read .* left out"):
        listing = open_source(tmp_path / "a")
    assert listing.paths == ("stays/000.png", "stays/001.png")


def test_a_run_on_a_folder_that_changes_meanwhile(tmp_path: Path) -> None:
    """Training reads what was decoded, so later changes do not reach it."""
    folder = photos(tmp_path / "a", 16)
    pairs = [argument for argument in TINY if "=" in argument]
    config = make_config(parse_overrides([*pairs, "n_clusters=3", "train.epochs=1", "train.device=cpu"]))
    listing = open_source(folder)

    def change() -> None:
        shuffle(folder)
        (folder / "000.png").write_bytes(b"")

    fitted = pipeline.fit(listing, config, tmp_path / "run", decoding=once(change))
    assert fitted.assignments.paths == listing.paths
    unread = np.array([status != "ok" for status in fitted.assignments.status])
    assert np.flatnonzero(unread).tolist() == [0, 1, 2, 3, 5]
    assert (fitted.assignments.clusters[unread] == -1).all()
    assert (fitted.assignments.clusters[~unread] >= 0).all()
