"""Opening a store that is there: what was made faster reads and hashes what it always did."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from twincluster.data import Row, fingerprint_of, open_images, open_source, read_journal
from twincluster.data import store as module
from twincluster.data.images import HASHED_ROWS
from twincluster.runs import stamps_of

LINES = [
    [0, "a.jpg", 10, 5, "ok", "00ff"],
    [1, 'b"\\\\é.png', 11, 6, "unreadable: empty file", "11"],
    [2, "c", 1, 2, "ok", "2"],
]
ROWS = {row: Row((name, size, changed), status, digest) for row, name, size, changed, status, digest in LINES}
TEXT = "".join(json.dumps(line) + "\n" for line in LINES)


@pytest.mark.parametrize(
    "text, rows",
    [
        (TEXT, 3),
        ("", 0),
        (TEXT[:-1], 2),  # killed before the end of the line, which may not have been all
        (TEXT[:-9], 2),
        (TEXT[:80] + "\x00" * 40, 1),
        (TEXT + "\n" + TEXT, 3),  # whatever comes after a broken line is not trusted
        (TEXT + "[3]\n", 3),
    ],
)
def test_a_journal_is_read_as_far_as_it_is_sound(text: str, rows: int, tmp_path: Path) -> None:
    (tmp_path / "journal").write_text(text)
    assert read_journal(tmp_path / "journal") == dict(list(ROWS.items())[:rows])


def test_no_journal_says_nothing(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none") == {}


@pytest.mark.parametrize("count", [0, 3, HASHED_ROWS, HASHED_ROWS + 1])
def test_a_fingerprint_is_the_hash_of_names_statuses_and_digests_as_json(count: int) -> None:
    rows = {row: ROWS[row % 3] for row in range(count)}
    digest = hashlib.sha256(f"files {count} 32 letterbox\n".encode())
    for row in rows.values():
        digest.update(json.dumps([row.entry[0], row.status == "ok", row.digest]).encode())
    assert fingerprint_of(32, "letterbox", rows) == digest.hexdigest()


def test_a_second_start_sees_what_the_first_one_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (9, 7), (40 * number, 0, 255)).save(folder / f"{number}é.png")
    (folder / "empty.jpg").touch()
    first, second = (open_images(open_source(folder), side=8, cache=tmp_path / "cache") for _ in range(2))
    assert first.status == second.status
    assert first.fingerprint == second.fingerprint
    assert np.array_equal(first.usable, second.usable)
    assert np.array_equal(first.pixels, second.pixels)


def test_each_file_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (9, 7), (40 * number, 0, 255)).save(folder / f"{number}.png")
    open_images(open_source(folder), side=8, cache=tmp_path / "cache")
    looked: list[str] = []
    stat = os.stat

    def noted(path: Any, **named: Any) -> os.stat_result:
        looked.append(os.path.basename(path))
        return stat(path, **named)

    monkeypatch.setattr(os, "stat", noted)
    listing = open_source(folder)
    stamps_of(listing)
    open_images(listing, side=8, cache=tmp_path / "cache")
    assert sorted(name for name in looked if name.endswith(".png")) == [f"{number}.png" for number in range(5)]


def test_a_file_that_changes_after_it_was_looked_at_is_decoded_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (9, 7), (40 * number, 0, 255)).save(folder / f"{number}.png")
    listing = open_source(folder)
    before = stamps_of(listing)
    Image.new("RGB", (20, 20), (9, 9, 9)).save(folder / "1.png")
    os.utime(folder / "1.png", ns=(1, 1))
    assert stamps_of(listing) == before
    open_images(listing, side=8, cache=tmp_path / "cache")
    Image.new("RGB", (20, 20), (200, 9, 9)).save(folder / "1.png")
    os.utime(folder / "1.png", ns=(2, 2))
    again = open_source(folder)
    assert stamps_of(again)[1] not in before
    assert open_images(again, side=8, cache=tmp_path / "cache").pixels[:, 0, 0, 0].tolist() == [0, 200, 80]


def test_training_begins_without_what_only_judges_clusters() -> None:
    code = "import sys, twincluster.fit; print([name for name in ('sklearn', 'pandas') if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.strip() == "[]"
