"""Folders of images by cluster: links, copies and moves, odd names, and nothing lost whatever happens on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from photo_runs import ODD, row_of
from PIL import Image

import twincluster
from command_line import TINY, colours, command, worked
from twincluster.edits import Edits
from twincluster.errors import InputError
from twincluster.export import moves
from twincluster.export.folder_names import folder_names, numbered, safe_name
from twincluster.results import Run

SOURCE = str(Path(twincluster.__file__).parents[1])
CATS = "cats%2F..%2Fdogs"


def files_in(folder: Path) -> dict[bytes, bytes]:
    """Content by relative name."""
    root = os.fsencode(folder)
    found = {}
    for place, _, names in os.walk(root):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found


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


def row_of_odd(run: Run) -> int:
    return row_of(run, r"a/line\nbreak \xff.png")


def test_a_dry_run_does_nothing(run: Run, own_photos: Path, tmp_path: Path) -> None:
    for mode in ("symlink", "copy", "move"):
        done = worked("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", mode, "--dry-run")
        assert "nothing was done" in done.out
        assert "  odd ones\n" in done.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mode", ["symlink", "copy"])
def test_doing_it_twice_changes_nothing(run: Run, own_photos: Path, tmp_path: Path, mode: str) -> None:
    worked("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", mode)
    once = files_in(tmp_path / "out")
    done = worked("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", mode)
    assert "there already: 14\n" in done.out
    assert files_in(tmp_path / "out") == once


def test_copies_overwrite_nothing(run: Run, own_photos: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "odd ones" / "0.png"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    done = worked("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", "copy")
    assert "with a number, because a file of that name is there: 2\n" in done.out
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
        f"1 of 14 images are not where they were (the first is {own_photos}/b/0.png): put them back; nothing was done"
    )
    assert not (tmp_path / "out").exists()
    shutil.rmtree(own_photos)
    assert "13 of 14" in command("export", run.folder, tmp_path / "out", "--to", "folders").complaint


def test_links_among_the_images_themselves_are_refused(run: Run, own_photos: Path) -> None:
    assert "found twice" in command("export", run.folder, own_photos / "sorted", "--to", "folders").complaint


def test_images_of_an_array_become_png_files(tmp_path: Path) -> None:
    pixels = colours(9)[0]
    np.save(tmp_path / "images.npy", pixels)
    worked("fit", tmp_path / "images.npy", "-k", 3, "--out", tmp_path / "run", *TINY)
    export = ("export", tmp_path / "run", tmp_path / "out", "--to", "folders")
    assert "--mode copy writes PNG files" in command(*export).complaint
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
    assert "there already: 14\n" in worked(*export, "--mode", "move").out
    assert files_in(tmp_path / "out") == moved
    assert worked(*export, "--undo").out == "moved 14 images back\n"
    assert files_in(own_photos) == before
    assert list((tmp_path / "out").iterdir()) == []
    assert "nothing was moved there" in command(*export, "--undo").complaint


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
    assert said.endswith("(no space left on device): everything is back where it was")
    assert files_in(own_photos) == before
    assert files_in(tmp_path / "out") == {}


MOVER = """if True:
    import sys, time
    from pathlib import Path
    from twincluster.export import moves
    real = moves.rename_new
    def slow(source, target):
        real(source, target)
        print(target, flush=True)
        time.sleep(0.05)
    moves.rename_new = slow
    photos, out = map(Path, sys.argv[1:])
    moves.move_all([(file, out / "all" / file.name) for file in sorted(photos.iterdir())], out)
"""


@pytest.mark.parametrize("then", ["finish", "undo"])
def test_a_killed_move_can_be_finished_or_undone(tmp_path: Path, then: str) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    for number in range(30):
        (photos / f"{number:02}.png").write_text(f"picture {number}")
    before = files_in(photos)
    mover = subprocess.Popen(
        [sys.executable, "-c", MOVER, str(photos), str(out)], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip
    assert mover.stdout
    for _ in range(7):
        mover.stdout.readline()
    os.kill(mover.pid, signal.SIGKILL)
    mover.wait()
    assert 0 < len(files_in(photos)) < 30
    if then == "finish":
        assert moves.finish(out)
        assert files_in(out / "all") == before
        assert not moves.finish(out)
    else:
        moves.undo(out)
        assert files_in(photos) == before


def test_the_two_halves_of_a_move(tmp_path: Path) -> None:
    """A kill between the new name and the end of the old one leaves both: the old one goes when the move goes on."""
    (tmp_path / "from.png").write_text("picture")
    out = tmp_path / "out"
    (out / "all").mkdir(parents=True)
    moves._write(out, [(tmp_path / "from.png", out / "all" / "to.png")], moving=True)
    os.link(tmp_path / "from.png", out / "all" / "to.png")
    moves.finish(out)
    assert not (tmp_path / "from.png").exists()
    assert (out / "all" / "to.png").read_text() == "picture"
    (tmp_path / "from.png").write_text("another that came since")
    with pytest.raises(ValueError, match="exists again"):
        moves.undo(out)
    assert (out / "all" / "to.png").read_text() == "picture"


def test_a_move_to_another_disk_copies_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = moves.rename_new

    def elsewhere(source: Path, target: Path) -> None:
        if source.parent != target.parent:
            raise OSError(18, "Invalid cross-device link")
        real(source, target)

    monkeypatch.setattr(moves, "rename_new", elsewhere)
    (tmp_path / "out").mkdir()
    (tmp_path / "a.png").write_text("picture")
    moves.move_one(tmp_path / "a.png", tmp_path / "out" / "b.png")
    assert files_in(tmp_path) == {b"out/b.png": b"picture"}


def test_two_images_that_came_from_one_place_are_moved_back_one_after_the_other(tmp_path: Path) -> None:
    place, out = tmp_path / "a.png", tmp_path / "out"
    for content, target in (("first", out / "x" / "a.png"), ("second", out / "x" / "a-2.png")):
        place.write_text(content)
        moves.move_all([(place, target)], out)
    assert moves.undo(out) == (
        f"moved 1 image back; 1 from a place that is taken again: move {place} away, and repeat it"
    )
    assert place.read_text() == "second"
    place.rename(tmp_path / "b.png")
    assert moves.undo(out) == "moved 1 image back"
    assert (place.read_text(), (out / moves.JOURNAL).exists()) == ("first", False)


def test_links_are_not_moved(run: Run, own_photos: Path, tmp_path: Path) -> None:
    picture = own_photos / "b" / "0.png"
    picture.rename(tmp_path / "elsewhere.png")
    picture.symlink_to("../../elsewhere.png")
    said = command("export", run.folder, tmp_path / "out", "--to", "folders", "--mode", "move").complaint
    assert "is a link, which may break when it is moved" in said


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


@pytest.mark.parametrize("target", ["../precious.jpg", "a/../../precious.jpg", "{place}/precious.jpg"])
def test_a_strangers_journal_moves_nothing_from_elsewhere(tmp_path: Path, target: str) -> None:
    (tmp_path / "precious.jpg").write_bytes(b"mine")
    out = tmp_path / "out"
    out.mkdir()
    pair = [str(tmp_path / "taken"), target.format(place=tmp_path)]
    (out / moves.JOURNAL).write_text(json.dumps({"moving": False, "pairs": [pair]}))
    with pytest.raises(InputError, match="is damaged"):
        moves.undo(out)
    assert (tmp_path / "precious.jpg").read_bytes() == b"mine"
    assert not (tmp_path / "taken").exists()
