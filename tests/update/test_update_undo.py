"""Taking an update back: the run is what it was, byte for byte, and what cannot be taken back is refused."""

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image
from update_runs import counts, pictures, rows_of, updated

from by_hand import json_rows
from command_line import TINY, command, worked
from twincluster.runs import Edits, Run, read_stamps, write_stamps

FILES = ("assignments.csv", "stamps.csv", "updates.jsonl")


def state(run: Path) -> dict[str, bytes | None]:
    return {name: (run / name).read_bytes() if (run / name).exists() else None for name in FILES}


def change(file: Path) -> None:
    Image.new("RGB", (12, 12), "white").save(file)
    os.utime(file, ns=(0, 0))


def broken_off(run: Path) -> None:
    """As a kill right after the new table leaves a run."""
    (run / "updates.jsonl").write_text("")
    write_stamps(run, {path: stamp for path, stamp in read_stamps(run).items() if "/more/" not in path})


def killed(patch: pytest.MonkeyPatch, run: Path, source: Path, step: str, nth: int = 1) -> None:
    """An update that ends when it comes to a step of `Run` for the nth time."""
    real, calls = getattr(Run, step), []

    def stop(self: Run, *arguments: object) -> None:
        calls.append(step)
        if len(calls) == nth:
            raise KeyboardInterrupt
        real(self, *arguments)

    with patch.context() as here:
        here.setattr(Run, step, stop)
        assert command("update", run, source).status == 130


def test_two_updates_are_taken_back_one_after_the_other(place: Path) -> None:
    run, first = place / "run", state(place / "run")
    more = pictures(place / "more", n=12, seed=1)
    change(place / "photos" / "red" / "00.png")
    assert counts(updated(run, more)) == (12, 0, 0, 0)
    second = state(run)
    assert counts(updated(run, place / "photos")) == (0, 1, 44, 0)
    assert state(run) != second
    done = worked("update", run, "--undo").out.splitlines()
    assert done == [
        "the update with photos/ is undone: 0 rows removed, 1 restored",
        f"57 rows in {run}/assignments.csv",
    ]
    assert state(run) == second
    assert "12 rows removed, 0 restored" in worked("update", run, "--undo").out
    assert state(run) == first
    assert command("update", run, "--undo").complaint == f"{run} has no update to undo"
    assert counts(updated(run, more)) == (12, 0, 0, 0)  # as if it had never been


def test_every_row_of_a_file_that_a_list_names_twice_is_put_back(tmp_path: Path) -> None:
    names = [str(file.relative_to(tmp_path)) for file in sorted(pictures(tmp_path / "photos", n=12).rglob("*.png"))]
    (tmp_path / "list.txt").write_text("\n".join([*names, names[0]]))
    worked("fit", tmp_path / "list.txt", "--clusters", 3, "--out", tmp_path / "run", *TINY)
    before = state(tmp_path / "run")
    (tmp_path / names[0]).write_bytes(b"no longer a picture")
    worked("update", tmp_path / "run", tmp_path / "list.txt")
    table = Run.open(tmp_path / "run").read_assignments()
    assert (table.clusters[0], table.clusters[-1]) == (-1, -1)
    assert "0 rows removed, 2 restored" in worked("update", tmp_path / "run", "--undo").out
    assert state(tmp_path / "run") == before


def test_an_undo_that_was_broken_off_is_finished_by_the_same_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, first = place / "run", state(place / "run")
    change(place / "photos" / "red" / "00.png")
    pictures(place / "photos" / "later", n=6, seed=2)
    assert counts(updated(run, place / "photos")) == (6, 1, 44, 0)
    for step in ("write_assignments", "drop_update"):
        shutil.copytree(run, place / step)
        with monkeypatch.context() as patch:
            patch.setattr(Run, step, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            assert command("update", place / step, "--undo").status == 130
        worked("update", place / step, "--undo")
        assert state(place / step) == first


def test_an_update_that_was_broken_off_is_not_mistaken_for_the_one_before(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, photos = place / "run", place / "photos"
    updated(run, pictures(place / "more", n=12, seed=1))
    shutil.copytree(run, place / "replaced")
    second = state(run)
    killed(monkeypatch, run, pictures(place / "other", n=3, seed=2), "append_update", nth=2)
    change(photos / "red" / "00.png")
    killed(monkeypatch, place / "replaced", photos, "append_update", nth=2)
    for one, source in ((run, place / "other"), (place / "replaced", photos)):
        assert "an update was interrupted; repeat it, then undo it" in command("update", one, "--undo").complaint
        updated(one, source)
        worked("update", one, "--undo")
        assert state(one) == second


def test_an_update_that_never_reached_the_table_is_no_hindrance(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, first = place / "run", state(place / "run")
    updated(run, pictures(place / "more", n=12, seed=1))
    change(place / "photos" / "red" / "00.png")
    killed(monkeypatch, run, place / "photos", "write_assignments")
    assert (run / "updating.json").exists()
    worked("update", run, "--undo")
    assert state(run) == first
    assert not (run / "updating.json").exists()


@pytest.mark.parametrize("between", [False, True])
def test_the_way_back_of_an_update_that_was_started_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, between: bool
) -> None:
    run, photos = place / "run", place / "photos"
    shutil.copy(photos / "blue" / "02.png", photos / "red" / "00.png")
    first, known = state(run), rows_of(run)["red/00.png"]
    killed(monkeypatch, run, photos, "append_update", nth=2)
    assert (run / "assignments.csv").read_bytes() != first["assignments.csv"]
    if between:
        updated(run, pictures(place / "more", n=3, seed=1))
        first = state(run)
    assert counts(updated(run, photos)) == (0, 1, 44, 0)
    assert "0 rows removed, 1 restored" in worked("update", run, "--undo").out
    assert state(run) == first
    assert rows_of(run)["red/00.png"] == known


def test_corrections_of_its_images_keep_an_update(place: Path) -> None:
    run = place / "run"
    Edits(Run.open(run)).rename(0, "sea")
    updated(run, pictures(place / "more", n=12, seed=1))
    shutil.copytree(run, place / "renamed")
    assert "12 rows removed" in worked("update", place / "renamed", "--undo").out  # no image of the update is named
    before = state(run)
    Edits(Run.open(run)).mark_junk([50])
    assert (
        "corrections by hand of images of that update: to discard them, move"
        in command("update", run, "--undo").complaint
    )
    assert state(run) == before


def test_corrections_that_were_begun_after_an_update_keep_it(place: Path) -> None:
    run = place / "run"
    updated(run, pictures(place / "more", n=12, seed=1))
    Edits(Run.open(run)).rename(0, "sea")
    said = command("update", run, "--undo").complaint
    assert said.startswith(
        f"{run} has corrections by hand that were made after that update: to discard them, move {run}/edits.jsonl"
    )
    (run / "edits.jsonl").rename(place / "edits.jsonl")
    assert "12 rows removed" in worked("update", run, "--undo").out


def test_an_undo_as_json(place: Path) -> None:
    run = place / "run"
    updated(run, pictures(place / "more", n=12, seed=1))
    assert json.loads(worked("update", run, "--undo", "--json").out) == {
        "undone": True, "table": f"{run}/assignments.csv", "source": "more/", "removed": 12, "put_back": 0, "rows": 45,
    }  # fmt: skip


def test_what_has_no_way_back_is_refused(place: Path) -> None:
    run = place / "run"
    assert command("update", run, place / "photos", "--undo").complaint.endswith("omit SOURCE")
    assert command("update", run).complaint == "twincluster update needs SOURCE; see twincluster update --help"
    updated(run, pictures(place / "more", n=6, seed=1))
    (record,) = json_rows(run / "updates.jsonl")
    del record["undo"]
    (run / "updates.jsonl").write_text(json.dumps(record) + "\n")  # as earlier versions wrote it
    assert "cannot be undone" in command("update", run, "--undo").complaint
    broken_off(run)
    assert "an update was interrupted; repeat it, then undo it" in command("update", run, "--undo").complaint
    updated(run, place / "more")
    assert "6 rows removed" in worked("update", run, "--undo").out


def test_an_update_that_finished_an_older_one_has_no_way_back(place: Path) -> None:
    run = place / "run"
    updated(run, pictures(place / "more", n=6, seed=1))
    broken_off(run)
    updated(run, pictures(place / "other", n=3, seed=2))
    updated(run, place / "more")
    assert "update after another one" in command("update", run, "--undo").complaint


def test_a_known_picture_under_a_new_name_follows_its_corrections_until_the_update_is_undone(place: Path) -> None:
    run, more = place / "run", place / "more"
    edits = Edits(Run.open(run))
    paths = list(Run.open(run).read_assignments().paths)
    moved, junked = paths.index("red/00.png"), paths.index("green/01.png")
    target = (int(edits.state.home[moved]) + 1) % 3
    edits.move([moved], target)
    edits.mark_junk([junked])
    before, log = state(run), (run / "edits.jsonl").read_bytes()
    more.mkdir()
    for name in ("red/00.png", "green/01.png", "blue/02.png"):
        shutil.copy(place / "photos" / name, more / name.replace("/", " "))
    said = worked("update", run, more).out
    assert "2 pictures that you have corrected before, under another name: put where you put them" in said
    table = Run.open(run).read_assignments()
    now = Edits(Run.open(run)).state
    found = {Path(path).name: int(now.clusters[row]) for row, path in enumerate(table.paths) if row >= len(paths)}
    assert found["red 00.png"] == target
    assert found["green 01.png"] == -2
    assert found["blue 02.png"] == int(now.clusters[paths.index("blue/02.png")])
    assert json_rows(run / "edits.jsonl")[-1]["copied"]
    worked("update", run, "--undo")
    assert state(run) == before
    assert (run / "edits.jsonl").read_bytes() == log
