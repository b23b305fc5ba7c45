"""Folders of images by cluster: links, copies and moves, odd names, and nothing lost whatever happens on the way."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from photo_runs import ODD, files_in, row_of
from PIL import Image

from command_line import TINY, colours, command, worked
from twincluster.export import moves
from twincluster.export.folders import folder_names, numbered, safe_name
from twincluster.runs import Edits, Run

CATS = "cats%2F..%2Fdogs"


def expected_folders(run: Run) -> dict[int, str]:
    state = Edits(run).state
    names = {**state.names, 0: CATS}
    return {
        row: "_junk" if cluster == -2 else "_unreadable" if cluster == -1 else names[int(cluster)]
        for row, cluster in enumerate(state.clusters)
    }


# -- links and copies ------------------------------------------------------------------------------------------------


def test_links_lie_in_a_folder_per_cluster(run: Run, own_photos: Path, tmp_path: Path) -> None:
    before = files_in(own_photos)
    done = worked("export", run.folder, tmp_path / "out", "--to", "folders")
    assert done.out.startswith(f"linked 14 images into {len(set(expected_folders(run).values()))} folders of ")
    links = [Path(os.fsdecode(place)) / name for place, _, names in os.walk(tmp_path / "out") for name in names]
    assert len(links) == 14
    assert all(link.is_symlink() for link in links)
    placed = {os.readlink(link): link.parent.name for link in links}
    folders, paths = expected_folders(run), run.read_assignments().paths
    for row, path in enumerate(paths):
        if "\\" not in path:
            assert placed[str(own_photos / path)] == folders[row]
    assert placed[os.fsdecode(os.fsencode(own_photos / "a") + b"/" + ODD)] == folders[row_of_odd(run)]
    assert {"odd ones", "_junk", "_unreadable"} <= set(placed.values())
    assert files_in(own_photos) == before
    assert (tmp_path / "dogs").exists() is False  # the name of a cluster is no path


def test_where_there_can_be_no_links_copies_are_advised(
    run: Run, own_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", source, None, str(target))  # as FAT does

    monkeypatch.setattr("os.symlink", refuse)
    said = command("export", run.folder, tmp_path / "out", "--to", "folders").complaint
    assert said.endswith(" does not support links (Operation not permitted): choose --mode copy")


def row_of_odd(run: Run) -> int:
    return row_of(run, r"a/line\nbreak \xff.png")


def test_a_dry_run_does_nothing(run: Run, own_photos: Path, tmp_path: Path) -> None:
    for mode in ("symlink", "copy", "move"):
        done = worked("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", mode, "--dry-run")
        assert "this was a dry run" in done.out
        assert "  odd ones\n" in done.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mode", ["symlink", "copy"])
def test_doing_it_twice_changes_nothing(run: Run, own_photos: Path, tmp_path: Path, mode: str) -> None:
    worked("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", mode)
    once = files_in(tmp_path / "out")
    done = worked("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", mode)
    assert "already in place: 14\n" in done.out
    assert files_in(tmp_path / "out") == once


def test_copies_overwrite_nothing(run: Run, own_photos: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "odd ones" / "0.png"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    done = worked("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", "copy")
    assert "renamed, because a file of that name exists: 2\n" in done.out
    assert mine.read_text() == "mine"
    originals = {(own_photos / place / "0.png").read_bytes() for place in "ab"}
    copies = {(mine.parent / name).read_bytes() for name in ("0-2.png", "0-3.png")}
    assert copies == originals
    assert len(files_in(tmp_path / "out")) == 15
    assert not list((tmp_path / "out").rglob("*.partial"))


def test_images_that_are_gone_are_told(run: Run, own_photos: Path, tmp_path: Path) -> None:
    (own_photos / "b" / "0.png").unlink()
    said = command("export", run.folder, tmp_path / "out", "--to", "folders").complaint
    assert said == (
        f"1 of 14 images are missing (the first is {own_photos}/b/0.png): put them back; nothing was changed"
    )
    assert not (tmp_path / "out").exists()
    shutil.rmtree(own_photos)
    assert "13 of 14" in command("export", run.folder, tmp_path / "out", "--to", "folders").complaint


def test_links_among_the_images_themselves_are_refused(run: Run, own_photos: Path) -> None:
    assert "find them twice" in command("export", run.folder, own_photos / "sorted", "--to", "folders").complaint


def test_images_of_an_array_become_png_files(tmp_path: Path) -> None:
    pixels = colours(9)[0]
    np.save(tmp_path / "images.npy", pixels)
    worked("fit", tmp_path / "images.npy", "-k", 3, "--out", tmp_path / "run", *TINY)
    export = ("export", tmp_path / "run", tmp_path / "out", "--to", "folders")
    assert "choose --mode copy to write PNG files" in command(*export).complaint
    for _ in range(2):
        worked(*export, "--mode", "copy")
        written = {path.name: np.array(Image.open(path)) for path in (tmp_path / "out").rglob("*.png")}
        assert len(written) == 9
        assert all((written[f"{row}.png"] == pixels[row]).all() for row in range(9))


# -- moves -----------------------------------------------------------------------------------------------------------


def test_a_move_can_be_taken_back(run: Run, own_photos: Path, tmp_path: Path) -> None:
    before = files_in(own_photos)
    export = ("export", run.folder, tmp_path / "out", "--to", "folders")
    assert "moved 14 images" in worked(*export, "--mode", "move").out
    assert files_in(own_photos) == {}
    moved = files_in(tmp_path / "out")
    assert sorted(moved.values()) == sorted([*before.values(), (tmp_path / "out" / moves.JOURNAL).read_bytes()])
    assert "already in place: 14\n" in worked(*export, "--mode", "move").out
    assert files_in(tmp_path / "out") == moved
    assert worked(*export, "--undo").out == "moved 14 images back\n"
    assert files_in(own_photos) == before
    assert list((tmp_path / "out").iterdir()) == []
    assert "no files were moved there" in command(*export, "--undo").complaint


def test_a_move_that_fails_half_way_puts_everything_back(
    run: Run, own_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real, count = files_in(own_photos), moves.move_one, 0

    def fails(source: Path, target: Path) -> None:
        nonlocal count
        count += 1
        if count == 8:
            raise OSError(28, "No space left on device", str(target))
        real(source, target)

    monkeypatch.setattr(moves, "move_one", fails)
    said = command("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", "move").complaint
    assert said.endswith("(no space left on device): all files were moved back")
    assert files_in(own_photos) == before
    assert files_in(tmp_path / "out") == {}


def test_links_are_not_moved(run: Run, own_photos: Path, tmp_path: Path) -> None:
    picture = own_photos / "b" / "0.png"
    picture.rename(tmp_path / "elsewhere.png")
    picture.symlink_to("../../elsewhere.png")
    said = command("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", "move").complaint
    assert "is a link, and moving could break it" in said


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["a/b", "..", ".", ".hidden", "CON", "nul.txt", "x" * 500, "猫" * 200, "a\x00b\nc", "-rf", "trailing.", "end ", "~",
     "a\\b", 'q"<>|?*:', "\u202egnp.exe", "_junk", "%2F"],
)  # fmt: skip
def test_any_name_becomes_one_that_a_folder_can_have(tmp_path: Path, name: str) -> None:
    (safe,) = folder_names({7: name}).values()
    (tmp_path / "out" / safe).mkdir(parents=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [safe]
    assert not set(safe) & set('/\\:*?"<>|\x00\n')
    assert safe[0] not in ".-~ "
    assert safe[-1] not in ". "
    assert len(safe.encode()) <= 130
    assert safe.casefold() not in ("_junk", "con", "nul.txt")


def test_clusters_of_one_name_have_folders_of_their_own() -> None:
    names = folder_names({0: "cats", 1: "Cats", 2: "cats (0)", 3: "dogs", 4: "x" * 300, 5: "x" * 301})
    assert len({name.casefold() for name in names.values()}) == 6
    assert names[3] == "dogs"
    assert names[1] == "Cats (1)"


def test_different_names_stay_different() -> None:
    assert safe_name("a/b") != safe_name("a%2Fb")
    assert numbered("a.tar.png", 2) == "a.tar-2.png"
    assert len(numbered("x" * 251 + ".png", 12)) == 255
    assert os.fsencode(numbered(os.fsdecode(b"\xff.png"), 2)) == b"\xff-2.png"
