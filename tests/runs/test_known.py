"""Names of rows: one file, one row, by whatever way it is given; two files, two rows, whatever they are called."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twincluster.core import InputError
from twincluster.data import location_of, open_source
from twincluster.runs import RunData, UpdateRecord, read_stamps, row_names, stamps_of, within_source, write_stamps
from twincluster.runs.inputs import STAMPS_FILE as FILE


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(20))
    return folder


def facts(source: Any) -> RunData:
    """What config.json says of a run's own source."""
    listing = open_source(source)
    files = listing.files is not None
    return RunData(listing.name, location_of(source), files, fingerprint="", inputs=0, readable=0, split="all")


def names(source: Any, data: RunData, known: tuple[str, ...] = ()) -> list[str]:
    return row_names(open_source(source, at_least=1), location_of(source), data, known)


def test_the_runs_own_folder_keeps_its_names(tmp_path: Path) -> None:
    photos = touch(tmp_path / "photos", "a/1.png", "2.png")
    data = facts(photos)
    assert names(photos, data) == ["2.png", "a/1.png"]
    assert names(photos / "a", data) == ["a/1.png"]  # a part of it
    (tmp_path / "list.txt").write_text("photos/2.png\nphotos/a/../a/1.png\n")
    assert names(tmp_path / "list.txt", data) == ["2.png", "a/1.png"]  # by another way
    assert names([str(photos / "2.png")], data) == ["2.png"]
    (tmp_path / "link").symlink_to(photos)
    assert names(tmp_path / "link", data) == ["2.png", "a/1.png"]


def test_another_folder_is_known_by_its_whole_path(tmp_path: Path) -> None:
    data = facts(touch(tmp_path / "photos", "a/1.png", "2.png"))
    for place in ("more", "photos-2", "deep/photos"):  # the last has the same name
        other = touch(tmp_path / place, "a/1.png", "2.png")
        assert names(other, data) == [f"{other}/2.png", f"{other}/a/1.png"]
        assert names(other / "a", data) == [f"{other}/a/1.png"]


def test_a_folder_that_moved_is_the_same_as_long_as_none_is_in_its_place(tmp_path: Path) -> None:
    data = facts(touch(tmp_path / "photos", "a/1.png", "2.png"))
    (tmp_path / "new").mkdir()
    (tmp_path / "photos").rename(tmp_path / "new" / "photos")
    assert names(tmp_path / "new" / "photos", data) == ["2.png", "a/1.png"]


def test_lists_and_their_names(tmp_path: Path) -> None:
    touch(tmp_path, "x/1.png", "x/2.png", "y/3.png")
    (tmp_path / "old.txt").write_text("x/1.png\nx/../y/3.png\n")
    data, known = facts(tmp_path / "old.txt"), ("x/1.png", "x/../y/3.png")
    (tmp_path / "new.txt").write_text("x/2.png\ny/3.png\nx/1.png\n/elsewhere/4.png\n")
    assert names(tmp_path / "new.txt", data, known) == ["x/2.png", "x/../y/3.png", "x/1.png", "/elsewhere/4.png"]
    assert names(tmp_path / "old.txt", data, known) == list(known)
    assert names(tmp_path / "y", data, known) == ["x/../y/3.png"]


def test_paths_from_python_start_where_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "x/1.png", "x/2.png")
    monkeypatch.chdir(tmp_path)
    data = RunData("paths", None, True, fingerprint="", inputs=0, readable=0, split="all")
    assert names(tmp_path / "x", data, ("x/1.png",)) == ["x/1.png", "x/2.png"]
    assert names(tmp_path / "x", data, (f"{tmp_path}/x/1.png",)) == [f"{tmp_path}/x/1.png", "x/2.png"]


def test_rows_of_arrays_carry_the_name_of_the_array(tmp_path: Path) -> None:
    for name in ("old", "new"):
        np.save(tmp_path / f"{name}.npy", np.zeros((2, 4, 4), np.uint8))
    data = facts(tmp_path / "old.npy")
    assert names(tmp_path / "old.npy", data) == ["0", "1"]
    assert names(tmp_path / "new.npy", data) == [f"{tmp_path}/new.npy:0", f"{tmp_path}/new.npy:1"]
    assert names("digits", data)[:2] == ["digits:0", "digits:1"]
    assert names("digits", facts("digits"))[:2] == ["0", "1"]
    photos = touch(tmp_path / "photos", "1.png", "2.png")
    assert names(photos, data) == [f"{photos}/1.png", f"{photos}/2.png"]


def test_names_that_cannot_be_written_are_escaped_as_everywhere(tmp_path: Path) -> None:
    photos = touch(tmp_path / "two\nlines", "1.png", "back\\slash.png")
    data = facts(photos)
    assert names(photos, data) == ["1.png", "back\\\\slash.png"]
    (tmp_path / "sub").mkdir()
    assert names([str(photos / "back\\slash.png")], data) == ["back\\\\slash.png"]
    assert names(photos, facts(touch(tmp_path / "own", "1.png", "2.png")))[0] == f"{tmp_path}/two\\nlines/1.png"


def test_names_inside_their_own_source(tmp_path: Path) -> None:
    records = [
        UpdateRecord("/data/more", files=True, source="more"),
        UpdateRecord("/data/lists/new.txt", files=True, source="new"),
        UpdateRecord("/data/new.npy", files=False, source="new"),
        UpdateRecord("digits", files=False, source="digits"),
        UpdateRecord(None, files=True, source="paths"),
    ]
    wanted = {"cat/1.png": "cat/1.png", "/data/more/cat/2.png": "cat/2.png", "/data/lists/cat/3.png": "cat/3.png",
              "/data/new.npy:17": "17", "digits:3": "3", "/elsewhere/cat/4.png": "/elsewhere/cat/4.png"}  # fmt: skip
    assert {name: within_source(name, records) for name in wanted} == wanted


def test_stamps_follow_files_and_rows(tmp_path: Path) -> None:
    photos = touch(tmp_path / "photos", "1.png", "2.png")
    before = stamps_of(open_source(photos))
    assert stamps_of(open_source(photos)) == before
    (photos / "2.png").write_bytes(b"another")
    after = stamps_of(open_source(photos))
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)
    assert stamps_of(open_source([photos / "1.png", "gone.png"])) == [after[0], "missing"]
    rows = np.random.default_rng(0).normal(size=(3, 4))
    first = stamps_of(open_source(rows))
    rows[1, 2] += 1
    assert [one == two for one, two in zip(first, stamps_of(open_source(rows)), strict=True)] == [True, False, True]


def test_stamps_survive_the_disk(tmp_path: Path) -> None:
    assert read_stamps(tmp_path) == {}
    stamps = {"a, b.png": "1-2", 'quoted ".png': "3-4", "é.png": "missing"}
    write_stamps(tmp_path, stamps)
    assert read_stamps(tmp_path) == stamps
    (tmp_path / FILE).write_text("name\n1\n")
    with pytest.raises(InputError, match="delete stamps.csv to continue without it"):
        read_stamps(tmp_path)
