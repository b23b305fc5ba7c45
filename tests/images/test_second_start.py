"""Opening a store that is there: what was made faster reads and hashes what it always did."""

import gc
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from twincluster.images.build import Row, read_journal, uncollected
from twincluster.images.sources import open_source
from twincluster.images.store import HASHED_ROWS, fingerprint_of, open_images

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


def test_the_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(ValueError), uncollected():
        raise ValueError
    assert gc.isenabled()
