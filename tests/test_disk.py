"""Files that several processes write at once. Real processes, stopped and killed in the midst of writing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import twincluster
from twincluster.disk import write_atomically

SOURCE = Path(twincluster.__file__).parents[1]

# Writes half of a file, says so, and writes the rest when it is told to.
HALTING = """
import pathlib, sys
from twincluster.disk import write_atomically

def parts():
    yield b"a" * 100_000
    print("half", flush=True)
    sys.stdin.read(1)
    yield b"a" * 100_000

write_atomically(pathlib.Path(sys.argv[1]), parts())
"""


def half_way(path: Path) -> "subprocess.Popen[str]":
    writer = subprocess.Popen(
        [sys.executable, "-c", HALTING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert writer.stdout is not None
    assert writer.stdout.readline() == "half\n"
    return writer


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with half_way(path) as slow:
        write_atomically(path, b"b" * 300_000)
        assert path.read_bytes() == b"b" * 300_000
        slow.communicate("x")
    assert slow.returncode == 0
    assert path.read_bytes() == b"a" * 200_000
    assert os.listdir(tmp_path) == ["page.html"]


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "page[1].html"  # brackets have a meaning in patterns
    others = {"page[1].html.partial", "page[1].htmlx.01234567.partial", "page[1].html.mine.partial"}
    for name in others:
        (tmp_path / name).touch()
    with half_way(path) as dead:
        dead.kill()
    assert len(os.listdir(tmp_path)) == 4
    write_atomically(path, "whole")
    assert set(os.listdir(tmp_path)) == {"page[1].html", *others}


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_atomically(path, "old")

    def parts() -> Iterator[bytes]:
        yield b"half of the new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, parts())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_whoever_may_read_other_new_files_may_read_these(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write_atomically(tmp_path / "page.html", "")
    assert (tmp_path / "page.html").stat().st_mode == (tmp_path / "usual").stat().st_mode
