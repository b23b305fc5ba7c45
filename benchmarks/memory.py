"""Peak resident memory of `fit`, watched from outside: a child trains, and /proc tells what it and its children hold.

Pages that two processes share count twice. A peak shorter than the time between two looks is noticed in the child
itself, whose high-water mark the kernel keeps, but not in its children.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import write_noise
from twincluster.core import InputError, terminable

TARGET = 2.5  # GB
SIDE, CLUSTERS, BACKBONE = 32, 10, "small"
LOOK_SECONDS = 0.1
IMPORTS = "import twincluster.fit, twincluster.training.progress"  # what `fit` loads before it looks at an image
PROC = Path("/proc")


@dataclass(frozen=True)
class Peak:
    """Of a process and its descendants."""

    resident: int  # bytes
    anonymous: int  # bytes of it that are the processes' own, not pages of files, when their sum was largest
    seconds: float  # that the process ran


@dataclass(frozen=True)
class Memory:
    images: int
    epochs: int
    settings: tuple[str, ...]
    imports: Peak
    fit: Peak

    def to_text(self) -> str:
        changed = "".join(f", {setting}" for setting in self.settings)
        return "\n".join(
            [
                f"peak resident memory of the process tree, {self.images:,} images of {SIDE} px, backbone {BACKBONE}, "
                f"epochs {self.epochs}{changed}",
                f"{'':26}{'GB':>9}{'own':>9}{'files':>9}{'seconds':>9}",
                _row("imports alone", self.imports),
                _row("fit", self.fit),
                f"target: under {TARGET} GB",
            ]
        )


def measure(images: int, epochs: int, settings: Sequence[str]) -> Memory:
    """Train in a child process on `images` made-up images in a temporary folder."""
    if not (PROC / "self/status").is_file():
        raise InputError("the benchmark memory reads /proc, which this system lacks: run it on Linux")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "images.npy"
        write_noise(data, images, SIDE)
        options = ["--clusters", CLUSTERS, "--epochs", epochs, "--device", "cpu", "--out", Path(folder) / "run"]
        chosen = [part for setting in (f"train.backbone={BACKBONE}", *settings) for part in ("--set", setting)]
        imports = watch([sys.executable, "-c", IMPORTS])
        fit = watch([sys.executable, "-m", "twincluster", "fit", str(data), *map(str, options), *chosen])
    return Memory(images, epochs, tuple(settings), imports, fit)


def watch(command: Sequence[str]) -> Peak:
    """Run a command to its end and note the most that it and its descendants held."""
    start = time.monotonic()
    most, own, high_water = 0, 0, 0
    with terminable(), subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:
                held = [_status(pid) for pid in _family(process.pid)]
                resident = sum(status.get("VmRSS", 0) for status in held)
                if resident > most:
                    most, own = resident, sum(status.get("RssAnon", 0) for status in held)
                high_water = max(high_water, held[0].get("VmHWM", 0))
                time.sleep(LOOK_SECONDS)
        except BaseException:
            process.kill()  # whoever interrupts the benchmark means its child too
            raise
    if process.returncode:
        raise InputError(f"the command that was watched ended with status {process.returncode}: {' '.join(command)}")
    return Peak(max(most, high_water), own, time.monotonic() - start)


def _family(root: int) -> list[int]:
    """A process, its children, theirs, and so on; the root first."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := _read(entry / "stat")):
            parent = int(stat.rpartition(")")[2].split()[1])  # the name before the bracket may hold anything
            children.setdefault(parent, []).append(int(entry.name))
    family = [root]
    for pid in family:  # grows while it is walked
        family += children.get(pid, [])
    return family


def _status(pid: int) -> dict[str, int]:
    """The sizes in /proc/PID/status, in bytes; nothing when the process has just ended."""
    lines = [line.split() for line in _read(PROC / str(pid) / "status").splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _row(name: str, peak: Peak) -> str:
    files = peak.resident - peak.anonymous
    return f"{name:26}{peak.resident / 1e9:9.2f}{peak.anonymous / 1e9:9.2f}{files / 1e9:9.2f}{peak.seconds:9.0f}"
