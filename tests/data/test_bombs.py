"""Small files that are large in memory: decoding one never takes more than 600 MB, and its status says what became of
it; several at once never take more than 2 GB."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from PIL import Image

from bombs import BOMBS
from twincluster.data import decode, decoding, typical_side
from twincluster.data.decoding import header_sizes

PROCESS, TOGETHER = 600_000_000, 2_000_000_000  # bytes
NEAR_THE_LIMIT = ("rgba-100mp.png", "200mp.jpg", "24mp.webp", "100mp.j2k")
QUICK = [name for name, bomb in BOMBS.items() if not bomb.is_slow or name in NEAR_THE_LIMIT]

DECODED = """
import sys
from pathlib import Path
from twincluster.data import decode

def peak():
    return next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]

for name in sys.stdin.read().split():
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    print(decode(Path(name), 96)[1], peak(), sep="\\t", flush=True)
"""
OPENED = """
import sys
from pathlib import Path
from twincluster.data import open_images, open_source
images = open_images(open_source(Path(sys.argv[1])), side=96, workers=int(sys.argv[2]))
print(*(f"{path}\\t{status}" for path, status in zip(images.listing.paths, images.status)), sep="\\n")
"""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(decoding.__file__).parents[2])}


def decoded(folder: Path, names: list[str]) -> dict[str, tuple[str, int]]:
    """Status of each and the peak in bytes of the process that decoded it."""
    for name in names:
        BOMBS[name].write(folder / name)
    run = subprocess.run(
        [sys.executable, "-c", DECODED],
        input="\n".join(str(folder / name) for name in names),
        capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    lines = [line.split("\t") for line in run.stdout.splitlines()]
    return {name: (status, int(peak) * 1024) for name, (status, peak) in zip(names, lines, strict=True)}


def check(found: dict[str, tuple[str, int]]) -> None:
    wrong = {name: status for name, (status, _) in found.items() if status not in BOMBS[name].statuses}
    large = {name: peak for name, (_, peak) in found.items() if peak > PROCESS}
    assert (wrong, large) == ({}, {})


def test_there_are_bombs_of_every_kind() -> None:
    assert len(BOMBS) >= 38
    assert {name.rpartition(".")[2] for name in BOMBS} >= {
        "png", "jpg", "gif", "bmp", "tif", "webp", "j2k", "jp2", "avif", "heic", "ppm", "pgm", "pbm", "tga",
    }  # fmt: skip


@on_linux
def test_a_bomb_takes_less_than_its_process_may(tmp_path: Path) -> None:
    pytest.importorskip("pillow_heif")
    check(decoded(tmp_path, QUICK))


@on_linux
@pytest.mark.stress
def test_every_bomb_takes_less_than_its_process_may(tmp_path: Path) -> None:
    pytest.importorskip("pillow_heif")
    check(decoded(tmp_path, list(BOMBS)))


def most_together(command: list[str]) -> tuple[str, int]:
    """What a command prints, and the most bytes that its child processes had at once."""
    most, parent = 0, subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())

    def watch() -> None:
        nonlocal most
        while parent.poll() is None:
            try:
                children = psutil.Process(parent.pid).children()
                most = max(most, sum(child.memory_info().rss for child in children))
            except psutil.Error:  # one ended meanwhile
                continue
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    printed, _ = parent.communicate()
    watcher.join()
    assert parent.returncode == 0
    return printed, most


@on_linux
@pytest.mark.stress
def test_many_processes_share_what_they_may_take_together(tmp_path: Path) -> None:
    BOMBS["rgba-100mp.png"].write(tmp_path / "large.png")
    for number in range(8):
        os.link(tmp_path / "large.png", tmp_path / f"large-{number}.png")
    Image.new("RGB", (200, 200)).save(tmp_path / "small.png")
    for number in range(150):
        os.link(tmp_path / "small.png", tmp_path / f"small-{number:03d}.png")
    printed, most = most_together([sys.executable, "-c", OPENED, str(tmp_path), "16"])
    assert printed.count("\tok") == 160
    assert 400_000_000 < most < TOGETHER


@on_linux
def test_a_large_image_is_not_decoded_in_the_process_of_the_caller(tmp_path: Path) -> None:
    """Which holds torch and the network: its own memory comes on top."""
    BOMBS["one-strip-16mp.tif"].write(tmp_path / "a.tif")
    Image.new("RGB", (200, 200)).save(tmp_path / "b.png")
    printed, most = most_together([sys.executable, "-c", OPENED, str(tmp_path), "1"])
    assert printed == "a.tif\tok\nb.png\tok\n"
    assert most > 64_000_000


def test_too_large_for_a_network_is_not_too_large_for_a_header(tmp_path: Path) -> None:
    BOMBS["200mp.jpg"].write(tmp_path / "a.jpg")
    assert typical_side(header_sizes([tmp_path / "a.jpg"])) == 14_143
    pixels, status = decode(tmp_path / "a.jpg", 16)
    assert status == "ok"
    assert pixels is not None
    assert (pixels == 128).all()
