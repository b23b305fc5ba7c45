"""Shards in the store: decoded once, grown, replaced and moved, and a run on them from end to end."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_shards import SIDE, encoded, expected_pixels, opened, pack, write_shards

from command_line import TINY, command, worked
from twincluster.data import Images, Member, location_of, open_images, open_source


def test_the_second_run_decodes_nothing_and_a_new_shard_only_itself(tmp_path: Path) -> None:
    write_shards(tmp_path, 20)
    first = opened(f"{tmp_path}/*.tar")
    told: list[tuple[int, int]] = []

    def again() -> Images:
        told.clear()
        return opened(f"{tmp_path}/*.tar", progress=lambda *call: told.append(call))

    second = again()
    assert told == []
    assert (second.fingerprint, second.status) == (first.fingerprint, first.status)
    shutil.copy(tmp_path / "s-001.tar", tmp_path / "s-002.tar")
    assert len(again().usable) == 30
    assert told[0] == (20, 30)
    os.utime(tmp_path / "s-000.tar", ns=(1, 1))
    assert again().fingerprint != first.fingerprint  # one shard more
    assert told[0] == (20, 30)


def test_an_interrupted_build_goes_on(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path)

    def stop(done: int, total: int) -> None:
        if done == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(pattern, progress=stop)
    told: list[int] = []
    images = opened(pattern, progress=lambda done, total: told.append(done))
    assert told[0] >= 14
    assert np.array_equal(images.pixels, expected_pixels(24))


def test_a_copy_elsewhere_is_the_same_data(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert opened(pattern).fingerprint == opened(pattern.replace("/a/", "/b/")).fingerprint


def test_a_shard_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    """No row shows what lies at that place now, and the next run sees the new shard."""
    listing = open_source(write_shards(tmp_path, 10))
    pack(tmp_path / "s-000.tar", [(f"{number}.png", encoded(number)) for number in range(5)])
    os.utime(tmp_path / "s-000.tar", ns=(5, 5))
    assert set(open_images(listing, side=SIDE, workers=1).status) == {"unreadable: archive changed meanwhile"}
    after = opened(f"{tmp_path}/s-{{000..000}}.tar")
    assert np.array_equal(after.pixels, expected_pixels(5))


def test_several_processes_give_the_same(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, 120)
    alone = opened(pattern, cache=tmp_path / "one")
    together = open_images(open_source(pattern), side=SIDE, workers=2, cache=tmp_path / "two")
    assert np.array_equal(alone.pixels, together.pixels)
    assert alone.fingerprint == together.fingerprint


def test_a_member_is_read_in_place(tmp_path: Path) -> None:
    """What a run holds of an image is where it lies: no bytes are kept."""
    listing = open_source(pack(tmp_path / "a.tar", [("a.png", encoded(0)), ("b.png", encoded(1))]))
    file = (listing.files or ())[1]
    assert isinstance(file, Member)
    whole = (tmp_path / "a.tar").read_bytes()
    assert whole[file.start : file.start + file.size] == encoded(1)


def test_where_to_find_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    location = location_of("s-{000..002}.tar")
    monkeypatch.chdir("/")
    assert len(open_source(location).paths) == 24  # type: ignore[arg-type]


def test_fit_and_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, run = write_shards(tmp_path / "shards", 48), tmp_path / "run"
    done = worked("fit", pattern, "--clusters", 3, "--labels", "cls", "--out", run, *TINY)
    assert "48 inputs in s-{000..004}.tar (144 other files ignored), 3 clusters" in done.out
    assert "ACC " in done.out
    assert json.loads((run / "config.json").read_text())["data"]["location"] == pattern
    shard = tmp_path / "shards" / "s-001.tar"
    shard.write_bytes(shard.read_bytes()[:9000])
    said = worked("predict", run, pattern, "--out", tmp_path / "new.csv")
    assert "warning: s-001.tar: truncated archive;" in said.err
    with open(tmp_path / "new.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["path"] == "s-000.tar/part/0000.png"
    assert {"path": "s-001.tar", "cluster": "", "confidence": "", "status": "unreadable: truncated archive"} in rows
    with open(run / "assignments.csv", newline="") as file:
        trained = {row["path"]: row for row in csv.DictReader(file)}
    unchanged = [row for row in rows if not row["path"].startswith("s-001.tar")]
    assert len(unchanged) == 38
    assert all(row["cluster"] == trained[row["path"]]["cluster"] for row in unchanged)
    monkeypatch.chdir(tmp_path / "shards")
    worked("fit", "s-{000..002}.tar", "--clusters", 3, *TINY)
    assert (tmp_path / "shards" / "runs" / "s" / "config.json").is_file()
    assert (
        "s-005.tar and 4 more of 10 files are missing"
        in command("predict", run, "s-{000..009}.tar", "--out", "x.csv").complaint
    )
