"""A disk that fills up, while images are decoded or a run is written, on a real file system of one megabyte: one line,
nothing corrupt."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from pictures import photos, same
from PIL import Image

from command_line import TINY, command, worked
from twincluster.core import InputError
from twincluster.data import Images, open_images, open_source
from twincluster.runs import Edits, Run

SIDE = 64
ROW = SIDE * SIDE * 3
TOO_MANY = 120  # rows; 80 of them fit


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if not shutil.which("mount") or not mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", place):
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def mounted(*arguments: object) -> bool:
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False).returncode == 0


def fill(place: Path) -> None:
    with suppress(OSError), (place / "other").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def enlarge(place: Path) -> None:
    assert mounted("-o", "remount,size=8m", place)


def opened(folder: Path, cache: Path, told: list[int] | None = None, workers: int = 1) -> Images:
    told = [] if told is None else told
    progress = lambda done, total: told.append(done)  # noqa: E731
    return open_images(open_source(folder), side=SIDE, workers=workers, cache=cache, progress=progress)


def complaint(folder: Path, cache: Path, workers: int = 1) -> str:
    with pytest.raises(InputError) as caught:
        opened(folder, cache, workers=workers)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith("no room for ")
    assert said.endswith(": free some, or set TWINCLUSTER_CACHE to another folder")
    return said


def no_reservations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems that cannot set room aside, where the disk fills up half-way."""

    def refuse(file: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)


def test_it_is_said_before_anything_is_decoded(tmp_path: Path, small_disk: Path) -> None:
    folder = photos(tmp_path / "a", TOO_MANY)
    assert complaint(folder, small_disk).startswith("no room for 2 MB of decoded images")
    assert [path.name for path in small_disk.rglob("*") if path.is_file()] == ["lock"]
    enlarge(small_disk)
    assert same(opened(folder, small_disk), opened(folder, tmp_path / "whole"))


@pytest.mark.parametrize("workers, least", [(1, 30), (2, 0)])  # two may fill so small a disk before its list is begun
def test_what_was_written_is_kept(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, workers: int, least: int
) -> None:
    no_reservations(monkeypatch)
    folder = photos(tmp_path / "a", TOO_MANY)
    complaint(folder, small_disk, workers)
    complaint(folder, small_disk, workers)  # once more changes nothing
    enlarge(small_disk)
    told: list[int] = []
    assert same(opened(folder, small_disk, told), opened(folder, tmp_path / "whole"))
    assert least <= told[0] < TOO_MANY  # it went on where the room had ended
    told.clear()
    opened(folder, small_disk, told)
    assert told == []  # and is complete


@pytest.mark.parametrize("pages", [0, 1, 2])
def test_room_for_the_pixels_but_not_for_the_list_of_them(tmp_path: Path, small_disk: Path, pages: int) -> None:
    folder = photos(tmp_path / ("n" * 200) / ("long" * 50), 60).parent
    state = os.statvfs(small_disk)
    free = state.f_bavail * state.f_frsize
    needed = (-(-(128 + 60 * ROW) // state.f_frsize) + pages) * state.f_frsize
    (small_disk / "other").write_bytes(b"\0" * (free - needed))
    complaint(folder, small_disk)
    (small_disk / "other").unlink()
    assert same(opened(folder, small_disk), opened(folder, tmp_path / "whole"))


@pytest.mark.parametrize("reserved", [True, False])
def test_a_store_that_outgrows_the_disk_leaves_the_old_one_alone(
    tmp_path: Path, small_disk: Path, reserved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not reserved:
        no_reservations(monkeypatch)
    folder = photos(tmp_path / "a", 30)
    before = opened(folder, small_disk)
    copied = np.array(before.pixels)
    for number in range(TOO_MANY):
        Image.new("RGB", (12, 10), (number, 0, 0)).save(folder / f"new{number:03d}.png")
    complaint(folder, small_disk)
    assert np.array_equal(before.pixels, copied)  # a run that reads it goes on
    for file in folder.glob("new*.png"):
        file.unlink()
    told: list[int] = []
    assert same(opened(folder, small_disk, told), before)
    assert told == []


def test_the_command_line(tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(small_disk))
    (folder := tmp_path / "photos").mkdir()
    for number in range(8):
        Image.new("RGB", (300, 300), (30 * number, 7, 7)).save(folder / f"{number}.png")
    large = ("--set", "train.image_size=160")  # 172,800 bytes a row
    fit = ("fit", folder, "--clusters", 3, "--out", tmp_path / "run", *TINY, *large)
    said = command(*fit).complaint
    assert said.startswith("no room for ")
    assert not (tmp_path / "run").exists()
    enlarge(small_disk)
    worked(*fit)


def test_a_run_folder_on_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    folder = photos(tmp_path / "a", 20)
    fit = ("fit", folder, "--clusters", 2, "--out", small_disk / "run", *TINY)
    done = command(*fit)
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith(f"twincluster: the disk at {small_disk} is full ({small_disk}/run/")
    assert "Traceback" not in done.err
    enlarge(small_disk)
    worked(*fit, "--resume")
    assert len((small_disk / "run" / "assignments.csv").read_text().splitlines()) == 21


def test_a_copy_onto_a_full_disk_names_that_disk(tmp_path: Path, small_disk: Path) -> None:
    """And not the one that it comes from."""
    folder = photos(tmp_path / "a", 20)
    worked("fit", folder, "--clusters", 2, "--out", tmp_path / "run", *TINY)
    for kind in ("huggingface", "folders"):
        fill(small_disk)
        copy = ("--mode", "copy") if kind == "folders" else ()
        said = command("export", tmp_path / "run", small_disk / kind, "--to", kind, *copy).complaint
        assert said.startswith(f"the disk at {small_disk} is full ({small_disk}/{kind}")
        assert not list(small_disk.rglob("*.partial"))


def test_an_edit_on_a_full_disk_is_not_made(tmp_path: Path, small_disk: Path) -> None:
    folder = photos(tmp_path / "a", 20)
    worked("fit", folder, "--clusters", 2, "--out", tmp_path / "run", *TINY)
    enlarge(small_disk)
    shutil.copytree(tmp_path / "run", small_disk / "run")
    edits = Edits(Run(small_disk / "run"))
    edits.rename(0, "first")
    fill(small_disk)

    def rename_often() -> None:
        for number in range(100):  # the last page of the file may have room for a few
            edits.rename(0, f"{number} {'long ' * 30}")

    with pytest.raises(InputError) as refused:
        rename_often()
    path = small_disk / "run" / "edits.jsonl"
    assert str(refused.value) == (
        f"the disk at {small_disk} is full ({path} cannot be written): free some space; the edit was not made"
    )
    names = edits.state.names
    (small_disk / "other").unlink()
    assert edits.rename(1, "second").names == {0: names[0], 1: "second"}
    assert Edits(Run(small_disk / "run")).state.names == {0: names[0], 1: "second"}
