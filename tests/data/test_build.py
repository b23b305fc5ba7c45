"""Building the store: kills, interrupts, crashes, two builds at once and full disks cost time, never a wrong row."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil
import pytest
from pictures import SIDE, opened, photos, same, spoil
from PIL import Image

from twincluster.core import InputError
from twincluster.data import open_images, open_source
from twincluster.data import store as module

# Interruptions

KILLED = """
import multiprocessing, os, signal, sys
from pathlib import Path
from twincluster.data import open_images, open_source

def stop(done, total):
    if done == 150:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

open_images(open_source(sys.argv[1]), side=8, cache=Path(sys.argv[2]), workers=int(sys.argv[3]), progress=stop)
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
    command = [sys.executable, "-c", code, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_build_goes_on_where_it_stopped(tmp_path: Path, workers: int) -> None:
    folder = photos(tmp_path / "a", 220)
    whole = opened(folder, cache=tmp_path / "whole")
    killed = run(KILLED, folder, tmp_path / "cache", workers)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (journal,) = tmp_path.glob("cache/*/*.jsonl")
    kept = [json.loads(line)[0] for line in journal.read_text().splitlines()]
    assert 64 <= len(kept) < 150
    for row in kept:
        spoil(folder / whole.listing.paths[row])  # what has been decoded must not be decoded again
    told: list[int] = []
    assert same(whole, opened(folder, cache=tmp_path / "cache", progress=lambda done, total: told.append(done)))
    assert told[0] == len(kept)
    workers_left = [int(pid) for pid in killed.stdout.split()]
    assert len(workers_left) == (workers if workers > 1 else 0)
    deadline = time.monotonic() + 60
    while any(psutil.pid_exists(pid) for pid in workers_left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in workers_left)  # nobody is left waiting for a dead parent


def _interrupted(folder: Path, cache: Path, at: int) -> tuple[Path, Path]:
    def stop(done: int, total: int) -> None:
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(folder, cache=cache, progress=stop)
    (pixels,) = cache.glob("*/*.npy")
    return pixels, pixels.with_suffix(".jsonl")


def test_an_interrupt_loses_nothing(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a", 20)
    _interrupted(folder, tmp_path / "cache", at=13)
    told: list[int] = []
    images = opened(folder, cache=tmp_path / "cache", progress=lambda done, total: told.append(done))
    assert told[0] == 13
    assert same(images, opened(folder, cache=tmp_path / "whole"))


@pytest.mark.parametrize(
    "damage", ["torn line", "garbage line", "lost pixels", "short file", "no pixels", "no journal"]
)
def test_what_a_crash_may_leave_behind(tmp_path: Path, damage: str) -> None:
    folder = photos(tmp_path / "a", 20)
    whole = opened(folder, cache=tmp_path / "whole")
    pixels, journal = _interrupted(folder, tmp_path / "cache", at=13)
    lines = journal.read_bytes()
    if damage == "torn line":
        journal.write_bytes(lines[:-9])
    elif damage == "garbage line":
        journal.write_bytes(lines[:300] + b"\0" * 50 + lines[350:])
    elif damage == "lost pixels":
        with open(pixels, "r+b") as file:
            file.seek(-18 * SIDE * SIDE * 3, os.SEEK_END)
            file.write(b"\7" * (5 * SIDE * SIDE * 3))
    elif damage == "short file":
        os.truncate(pixels, 1000)
    else:
        (pixels if damage == "no pixels" else journal).unlink()
    assert same(whole, opened(folder, cache=tmp_path / "cache"))
    for file in folder.iterdir():
        spoil(file)
    assert same(whole, opened(folder, cache=tmp_path / "cache"))  # and now it is complete


def test_a_changed_folder_takes_over_from_an_interrupted_build(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a", 20)
    _interrupted(folder, tmp_path / "cache", at=13)
    Image.new("RGB", (9, 9)).save(folder / "zzz.png")
    told: list[int] = []
    opened(folder, cache=tmp_path / "cache", progress=lambda done, total: told.append(done))
    assert told[0] == 13


def _first(folder: str, cache: str, half_way: Event, other_started: Event, counts: "Queue[int]") -> None:
    told: list[int] = []

    def wait_half_way(done: int, total: int) -> None:
        told.append(done)
        if done == 10:
            half_way.set()
            other_started.wait(60)
            time.sleep(0.5)  # for the other to come to the door

    open_images(open_source(folder), side=SIDE, cache=Path(cache), workers=1, progress=wait_half_way)
    counts.put(len(told))


def test_two_builds_at_once_do_the_work_once(tmp_path: Path) -> None:
    folder = photos(tmp_path / "a", 20)
    context = multiprocessing.get_context("spawn")
    half_way, started, counts = context.Event(), context.Event(), context.Queue()
    first = context.Process(target=_first, args=(str(folder), str(tmp_path / "cache"), half_way, started, counts))
    first.start()
    assert half_way.wait(60)
    started.set()
    told: list[int] = []
    images = opened(folder, cache=tmp_path / "cache", progress=lambda done, total: told.append(done))
    assert told == []  # it waited, and found everything there
    assert counts.get(timeout=60) == 21
    first.join()
    assert same(images, opened(folder, cache=tmp_path / "whole"))


# Places that will not take it

FULL = """
import resource, sys
from pathlib import Path
from twincluster.core import InputError
from twincluster.data import open_images, open_source
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    open_images(open_source(sys.argv[1]), side=8, cache=Path(sys.argv[2]), workers=1)
except InputError as error:
    print(error)
"""


def test_no_room_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the system refuses the room in the same way."""
    folder = photos(tmp_path / "a", 20)
    said = run(FULL, folder, tmp_path / "cache", 2000).stdout
    assert said.startswith("no room for")
    assert "TWINCLUSTER_CACHE" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("cache/*/*.npy"))
    assert same(opened(folder, cache=tmp_path / "cache"), opened(folder, cache=tmp_path / "whole"))


def test_no_room_for_the_journal(tmp_path: Path) -> None:
    """The pixels fit, the lines about them do not: what was written is good to go on from."""
    folder = tmp_path / ("n" * 200)
    photos(folder / ("long" * 50), 100)
    said = run(FULL, folder, tmp_path / "cache", 25_000).stdout
    assert said.startswith("no room for")
    (journal,) = tmp_path.glob("cache/*/*.jsonl")
    assert journal.stat().st_size == 25_000  # torn
    told: list[int] = []
    resumed = opened(folder, cache=tmp_path / "cache", progress=lambda done, total: told.append(done))
    assert told[0] > 50
    assert same(resumed, opened(folder, cache=tmp_path / "whole"))


def test_a_cache_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("x")
    with pytest.raises(InputError, match="cannot be written to .* set TWINCLUSTER_CACHE"):
        opened(photos(tmp_path / "a"), cache=tmp_path / "cache")


def test_a_broken_progress_line_is_not_blamed_on_the_cache(tmp_path: Path) -> None:
    def gone(done: int, total: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        opened(photos(tmp_path / "a"), progress=gone)
