"""Moves as one act: killed, finished and undone, across disks, and by the journals of strangers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from photo_runs import files_in

import twincluster
from twincluster.core import InputError
from twincluster.export import moves

SOURCE = str(Path(twincluster.__file__).parents[1])
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


ACROSS_DISKS = """if True:
    import os, shutil, sys, time
    from pathlib import Path
    from twincluster.export import moves
    real = moves.rename_new
    def elsewhere(source, target):
        if source.parent != target.parent:
            raise OSError(18, "Invalid cross-device link")
        real(source, target)
    def stop(file, to):
        to.write(file.read(4))
        to.flush()
        print("copying", flush=True)
        time.sleep(60)
    act, photos, out = sys.argv[1], *map(Path, sys.argv[2:])
    pairs = [(photos / "a.png", out / "x" / "a.png")]
    if act == "undo":
        moves.move_all(pairs, out)
    moves.rename_new, shutil.copyfileobj = elsewhere, stop
    moves.undo(out) if act == "undo" else moves.move_all(pairs, out)
"""


def partials(place: Path) -> list[Path]:
    return list(place.rglob("*.partial"))


@pytest.mark.parametrize("killed", ["move", "undo"])
@pytest.mark.parametrize("then", ["finish", "undo", "move", "export"])
def test_a_killed_move_across_disks_leaves_no_partial_file_for_good(tmp_path: Path, killed: str, then: str) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    (photos / "a.png").write_text("a picture")
    (photos / "b.png").write_text("another")
    mover = subprocess.Popen(
        [sys.executable, "-c", ACROSS_DISKS, killed, str(photos), str(out)], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip
    assert mover.stdout
    mover.stdout.readline()
    moves.sweep(out, [(photos / "a.png", out / "x" / "a.png")])
    assert len(partials(tmp_path)) == 1  # its writer lives
    mover.kill()
    mover.wait()
    if then == "finish":
        assert moves.finish(out) == (killed == "move")
        moves.undo(out)
    elif then == "undo":
        moves.undo(out)
    elif then == "move":
        moves.move_all([(photos / "b.png", out / "x" / "b.png")], out)
    elif killed == "move":  # an export sweeps the folders that it writes to
        moves.sweep(out)
    else:
        return
    assert partials(tmp_path) == []
    files = [content for name, content in files_in(tmp_path).items() if name.endswith(b".png")]
    assert sorted(files) == [b"a picture", b"another"]


@pytest.mark.parametrize(
    "content",
    [b"[" * 200_000, b"7", b'{"pairs": 7}', b'{"pairs": [["a\\u0000", "b"]]}', b'{"pairs": [[1, 2]]}', b"\xff"],
)
def test_a_journal_of_another_type_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / moves.JOURNAL).write_bytes(content)
    for act in (moves.undo, moves.read_journal):
        with pytest.raises(InputError, match=f"{moves.JOURNAL} is damaged: move it away"):
            act(tmp_path)


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
        f"moved 1 image back; 1 not, because their place is taken: move {place} away and repeat --undo"
    )
    assert place.read_text() == "second"
    place.rename(tmp_path / "b.png")
    assert moves.undo(out) == "moved 1 image back"
    assert (place.read_text(), (out / moves.JOURNAL).exists()) == ("first", False)


def test_only_what_was_interrupted_is_finished(tmp_path: Path) -> None:
    """Where an image of an earlier move was there may be another since, whether or not that is to be moved too."""
    out, places = tmp_path / "out", [tmp_path / "a.png", tmp_path / "b.png"]
    for place in places:
        place.write_text("first")
    moves.move_all([(place, out / "x" / place.name) for place in places], out)
    for place in places:
        place.write_text("second")
    moves._write(out, [*moves.read_journal(out), (places[0], out / "x" / "a-2.png")], moving=1)  # and then a kill
    assert moves.finish(out)
    assert {name: content for name, content in files_in(tmp_path).items() if name.endswith(b".png")} == {
        b"out/x/a.png": b"first", b"out/x/b.png": b"first", b"out/x/a-2.png": b"second", b"b.png": b"second",
    }  # fmt: skip


def test_an_image_is_counted_once_as_moved_back(tmp_path: Path) -> None:
    place, out = tmp_path / "a.png", tmp_path / "out"
    for name in ("a.png", "a-2.png"):
        place.write_text(name)
        moves.move_all([(place, out / "x" / name)], out)
    (out / "x" / "a.png").unlink()
    assert moves.undo(out) == f"moved 1 image back; no longer in {out}: 1"


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
