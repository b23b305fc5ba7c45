"""Taking an update back: the run is what it was, byte for byte, and what cannot be taken back is refused."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image
from update_runs import counts, pictures, updated

from command_line import command, worked
from twincluster.edits import Edits
from twincluster.results import Run

FILES = ("assignments.csv", "stamps.csv", "updates.jsonl")


def state(run: Path) -> dict[str, bytes | None]:
    return {name: (run / name).read_bytes() if (run / name).exists() else None for name in FILES}


def change(file: Path) -> None:
    Image.new("RGB", (12, 12), "white").save(file)
    os.utime(file, ns=(0, 0))


def broken_off(run: Path) -> None:
    """As a kill right after the new table leaves a run."""
    (run / "updates.jsonl").write_text("")
    stamps = (run / "stamps.csv").read_text().splitlines(keepends=True)
    (run / "stamps.csv").write_text("".join(line for line in stamps if "/more/" not in line))


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
        "the update with photos/ is undone: 0 rows removed, 1 put back as they were",
        f"57 rows in {run}/assignments.csv",
    ]
    assert state(run) == second
    assert "12 rows removed, 0 put back" in worked("update", run, "--undo").out
    assert state(run) == first
    assert command("update", run, "--undo").complaint == f"{run} has no update to undo"
    assert counts(updated(run, more)) == (12, 0, 0, 0)  # as if it had never been


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


def test_corrections_of_its_images_keep_an_update(place: Path) -> None:
    run = place / "run"
    Edits(Run.open(run)).rename(0, "sea")
    updated(run, pictures(place / "more", n=12, seed=1))
    shutil.copytree(run, place / "renamed")
    assert "12 rows removed" in worked("update", place / "renamed", "--undo").out  # no image of the update is named
    before = state(run)
    Edits(Run.open(run)).mark_junk([50])
    assert "corrections by hand that name images of that update: move" in command("update", run, "--undo").complaint
    assert state(run) == before


def test_what_has_no_way_back_is_refused(place: Path) -> None:
    run = place / "run"
    assert command("update", run, place / "photos", "--undo").complaint.endswith("leave SOURCE out")
    assert command("update", run).complaint == "twincluster update needs SOURCE; see twincluster update --help"
    updated(run, pictures(place / "more", n=6, seed=1))
    records = (run / "updates.jsonl").read_text()
    (run / "updates.jsonl").write_text(records.replace('"undo": {', '"then": {'))  # as earlier versions wrote it
    assert "cannot be undone" in command("update", run, "--undo").complaint
    broken_off(run)
    assert "one was broken off; start it again, then undo it" in command("update", run, "--undo").complaint
    updated(run, place / "more")
    assert "6 rows removed" in worked("update", run, "--undo").out


def test_an_update_that_finished_an_older_one_has_no_way_back(place: Path) -> None:
    run = place / "run"
    updated(run, pictures(place / "more", n=6, seed=1))
    broken_off(run)
    updated(run, pictures(place / "other", n=3, seed=2))
    updated(run, place / "more")
    assert "with another in between" in command("update", run, "--undo").complaint
