"""Files that several processes write at once, and folders that none can be written in.

Real processes, stopped and killed in the midst of writing, or of a user without permission.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import twincluster
from twincluster.core import InputError, check_writable, write_atomically

SOURCE = Path(twincluster.__file__).parents[1]

# Writes half of a file, says so, and writes the rest when it is told to.
HALTING = """
import pathlib, sys
from twincluster.core import write_atomically

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


def test_folders_that_can_be_written_or_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to(tmp_path)
    for folder in (tmp_path, tmp_path / "a" / "b", Path("."), Path("a/b"), Path("link"), Path("link/a")):
        check_writable(folder)
    assert os.listdir(tmp_path) == ["link"]


def test_what_stands_where_a_folder_would_have_to_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    for name in ("file", "gone", "circle"):
        for folder in (tmp_path / name, tmp_path / name / "a" / "b"):
            with pytest.raises(InputError) as refused:
                check_writable(folder, "go elsewhere")
            assert str(refused.value) == f"{tmp_path / name} is not a folder: go elsewhere"


# As another user, because root may write everywhere.
CLOSED_TO = """
import os, pathlib, sys
from twincluster.core import check_writable
os.geteuid() or os.setuid(65534)
for folder in sys.argv[1:]:
    try:
        check_writable(pathlib.Path(folder))
        print("ok")
    except ValueError as error:
        print(error)
"""


def test_folders_without_permission() -> None:
    """In a folder that any user may enter, as those of pytest are not. One that may be listed, but not entered, and one
    that is hidden from view are closed as well."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o777)
        place = Path(made).resolve()
        rights = {"free": 0o777, "closed": 0o555, "listed": 0o666, "hidden": 0}
        for name in rights:
            (place / name / "in").mkdir(parents=True)
            (place / name / "in").chmod(0o777)
        for name, mode in rights.items():
            (place / name).chmod(mode)
        folders = ["free/a/b", "closed", "closed/a/b", "closed/in/a", "listed/a", "hidden/in/a", "."]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        done = subprocess.run(
            [sys.executable, "-c", CLOSED_TO, *folders, str(place / "closed" / "a")], capture_output=True, text=True,
            env=environment, cwd=place, check=False,
        )  # fmt: skip
        os.chmod(place, 0o555)
        here = subprocess.run(
            [sys.executable, "-c", CLOSED_TO, "a.csv/.."], capture_output=True, text=True, env=environment, cwd=place,
            check=False,
        )  # fmt: skip
        for path in (place, *(place / name for name in rights)):
            path.chmod(0o755)
    refused = "{} is not writable: check its permissions, or choose another place"
    said = ["ok", "closed", "closed", "ok", "listed", "hidden", "ok", str(place / "closed")]
    assert done.stdout.splitlines() == [word if word == "ok" else refused.format(word) for word in said], done.stderr
    assert here.stdout == refused.format(place) + "\n", here.stderr
