"""What is remembered of a finished store: the next start believes it only as long as it is of that very store."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pictures import opened, photos, same, spoil
from PIL import Image

from twincluster.data import store as build


def _journal_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> None:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(build, "read_journal", read)
    monkeypatch.setattr(build, "_SHORT_JOURNAL", 0)  # lines of a long one are looked up here and there


def test_a_second_start_leaves_the_journal_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(tmp_path / "a")  # one of them cut short
    (folder / "empty.jpg").touch()
    first = opened(folder, cache=tmp_path / "cache")
    _journal_unread(monkeypatch)
    again = opened(folder, cache=tmp_path / "cache")
    assert same(first, again)
    assert again.status.count("ok") == 5
    assert again.usable.tolist() == first.usable.tolist()


def _write(outcome: Path, written: dict[str, Any]) -> None:
    """With the checksum that belongs to it."""
    written.pop("check")
    outcome.write_text(json.dumps(written | {"check": build.short_hash(written)}))


def _other_version(outcome: Path) -> None:
    written = json.loads(outcome.read_bytes())
    written["state"][0] += 1
    _write(outcome, written | {"fingerprint": "of another kind"})


def _of_another_journal(outcome: Path) -> None:
    written = json.loads(outcome.read_bytes())
    _write(outcome, written | {"fingerprint": "of other files"})
    os.utime(outcome.with_suffix(".jsonl"), ns=(1, 1))


def _no_such_row(outcome: Path) -> None:
    written = json.loads(outcome.read_bytes())
    written["unreadable"].append([99, "unreadable: damaged file"])
    _write(outcome, written)


def _other_content(outcome: Path) -> None:
    written = json.loads(outcome.read_bytes())
    outcome.write_text(json.dumps(written | {"unreadable": []}))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "absent": Path.unlink,
    "empty": lambda outcome: outcome.write_bytes(b""),
    "torn": lambda outcome: outcome.write_bytes(outcome.read_bytes()[:-5]),
    "zeros": lambda outcome: outcome.write_bytes(b"\0" * 100),
    "no table": lambda outcome: outcome.write_text("[1, 2]"),
    "nothing in it": lambda outcome: outcome.write_text("{}"),
    "other version": _other_version,
    "no such row": _no_such_row,
    "of another journal": _of_another_journal,
    "other content": _other_content,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_cannot_be_believed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    folder = photos(tmp_path / "a")
    first = opened(folder, cache=tmp_path / "cache")
    (outcome,) = tmp_path.glob("cache/*/*.json")
    DAMAGE[damage](outcome)
    for file in folder.iterdir():
        spoil(file)  # nothing is decoded again
    assert same(first, opened(folder, cache=tmp_path / "cache"))
    _journal_unread(monkeypatch)
    assert same(first, opened(folder, cache=tmp_path / "cache"))


@pytest.mark.parametrize("damage", ["no pixels", "short file", "no journal"])
def test_a_store_that_is_not_whole_is_built_again(tmp_path: Path, damage: str) -> None:
    folder = photos(tmp_path / "a")
    first = opened(folder, cache=tmp_path / "whole")
    opened(folder, cache=tmp_path / "cache")
    (pixels,) = tmp_path.glob("cache/*/*.npy")
    if damage == "short file":
        os.truncate(pixels, 300)
    else:
        (pixels if damage == "no pixels" else pixels.with_suffix(".jsonl")).unlink()
    assert same(first, opened(folder, cache=tmp_path / "cache"))


def test_a_file_that_may_come_back_is_waited_for(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a")
    (folder / "later.png").symlink_to(tmp_path / "later.png")
    assert opened(folder, cache=tmp_path / "cache").status[-1] == "unreadable: missing file"
    told: list[tuple[int, int]] = []
    opened(folder, cache=tmp_path / "cache", progress=lambda *done: told.append(done))
    assert told[0][0] == told[-1][1] - 1  # the one row is tried again
    Image.new("RGB", (9, 9), (1, 2, 3)).save(tmp_path / "later.png")
    assert opened(folder, cache=tmp_path / "cache").status[-1] == "ok"
    told.clear()
    opened(folder, cache=tmp_path / "cache", progress=lambda *done: told.append(done))
    assert told == []


def test_where_nothing_can_be_written_the_journal_is_read(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a")
    first = opened(folder, cache=tmp_path / "cache")
    (outcome,) = tmp_path.glob("cache/*/*.json")
    outcome.unlink()
    (outcome / "in the way").mkdir(parents=True)
    for _ in range(2):
        assert same(first, opened(folder, cache=tmp_path / "cache"))
