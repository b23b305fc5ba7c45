"""What attacks share: a place with a run and its images, commands in processes of their own, and what is a fault."""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
sys.path[:0] = [str(SOURCE)]
sys.path.append(str(ROOT / "tests"))  # mutations.py and bombs.py

SIDE = 12
FIT = (
    "fit", "small", "-k", "4", "--recipe", "digits", "--device", "cpu", "--set", "anchored.hidden=16",
    "--set", "anchored.n_features=8", "--set", "train.batch_size=64", "--set", "train.checkpoint_minutes=0",
)  # fmt: skip
LIMIT = 120.0  # seconds that one command may take
MEMORY = 1_500_000_000  # bytes that one command may take; torch alone takes a third of it


class Ended(NamedTuple):
    """How a command ended."""

    status: int | None  # minus the number of the signal that killed it; None: it did not end
    out: str
    err: str
    memory: int = 0  # bytes at most

    @property
    def fault(self) -> str:
        """What is wrong with the way it ended; empty where it worked, or refused its input in one line."""
        if self.status is None:
            return f"still running after {LIMIT:.0f} s"
        if self.status not in (0, 2) or "Traceback" in self.err:
            return f"status {self.status}: {self.err[-1500:]}"
        said = [line for line in self.err.splitlines() if line and not line.startswith(("warning:", "training:"))]
        if self.status == 2 and (len(said) != 1 or not said[0].startswith("twincluster: ") or len(said[0]) > 2000):
            return f"refused in other than one line: {self.err[:1500]}"
        return f"took {self.memory / 1e6:,.0f} MB" if self.memory > MEMORY else ""


@contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder, made the working folder, with a cache of its own."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as name:
        environment = dict(os.environ)
        os.environ |= {
            "TWINCLUSTER_CACHE": str(Path(name, "cache")), "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(SOURCE), "MPLBACKEND": "Agg",
        }  # fmt: skip
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)


def write_images(folder: str, count: int, seed: int = 0) -> None:
    """Noisy pictures in three colours, one in four of them striped."""
    random = np.random.default_rng(seed)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = random.integers(0, 120, (SIDE, SIDE, 3))
        pixels[..., number % 3] += 120
        if number % 4 == 3:
            pixels[::2] = 255
        Image.fromarray(pixels.astype(np.uint8)).save(Path(folder, f"{number:03d}.png"))


def write_answers(run: str) -> None:
    """Write answers.csv for `twincluster teach`: labels of 40 images of a run."""
    names = [line.partition(",")[0] for line in Path(run, "assignments.csv").read_text().splitlines()[1:]]
    labelled = [f"{name},{'odd' if number % 3 else 'even'}" for number, name in enumerate(names[:40])]
    Path("answers.csv").write_text("\n".join(["path,label", *labelled]) + "\n")


def restore_images(folder: str, count: int) -> None:
    """Put back what has been moved away."""
    if len(list(Path(folder).glob("*.png"))) < count:
        shutil.rmtree(folder, ignore_errors=True)
        write_images(folder, count)


def start(*words: object, program: tuple[str, ...] = ("-m", "twincluster"), **options: Any) -> subprocess.Popen[str]:
    """A command in a process group of its own."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    command = [sys.executable, *program, *map(str, words)]
    return subprocess.Popen(command, text=True, start_new_session=True, **(streams | options))


def end(process: subprocess.Popen[str], limit: float = LIMIT) -> Ended:
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        kill_group(process)
        out, err = process.communicate()
        return Ended(None, out, err)
    return Ended(process.returncode, out, err)


def kill_group(process: subprocess.Popen[Any]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def must(*words: object) -> Ended:
    """A command that has to work."""
    ended = end(start(*words), 600)
    if ended.status != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {ended.err}")
    return ended


def in_fork(act: Callable[[], int], limit: float = LIMIT) -> Ended:
    """Call a function in a copy of this process, which has imported all that it needs already."""
    return Fork(act).end(limit)


class Fork:
    """A function that runs in a copy of this process, the leader of a process group of its own."""

    def __init__(self, act: Callable[[], int]) -> None:
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  `end` closes them
        self.began = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            status = 70
            try:
                os.setsid()
                os.dup2(self._out.fileno(), 1)
                os.dup2(self._err.fileno(), 2)
                sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, errors="backslashreplace") for n in (1, 2))
                signal.signal(signal.SIGINT, signal.default_int_handler)
                status = act()
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                import traceback

                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(status)

    @property
    def is_running(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def printed(self) -> str:
        """What it has printed so far."""
        return "".join(
            os.pread(file.fileno(), 10_000_000, 0).decode(errors="replace") for file in (self._out, self._err)
        )

    def end(self, limit: float = LIMIT) -> Ended:
        """Wait for its end."""
        status, memory = _wait(self.pid, limit)
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        return Ended(status, texts[0], texts[1], memory)

    def kill(self, after: float) -> Ended:
        """Kill it and all that it started `after` seconds from its beginning, unless it has ended before."""
        status, memory = _wait(self.pid, self.began + after - time.monotonic())
        for file in (self._out, self._err):
            file.close()
        return Ended(status, "", "", memory)


def _wait(child: int, limit: float) -> tuple[int | None, int]:
    until = time.monotonic() + limit
    while time.monotonic() < until:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with suppress(ProcessLookupError):  # it may not have begun its group yet
        os.kill(child, signal.SIGKILL)
    os.wait4(child, 0)
    return None, 0


def import_all() -> None:
    """Import what commands need, before forking."""
    import torch

    for path in (SOURCE / "twincluster").rglob("*.py"):
        if path.stem not in ("__main__", "on_ray") and "kernels" not in path.parts:
            importlib.import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"))
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def restore(folder: Path, files: dict[Path, bytes]) -> None:
    """Make a folder what it was; `files` by their paths within it."""
    for path in folder.rglob("*"):
        if not path.is_dir() and path.relative_to(folder) not in files:
            path.unlink()
    for path, content in files.items():
        place = folder / path
        if not (place.is_file() and place.stat().st_size == len(content) and place.read_bytes() == content):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def copy(folder: Path | str, name: str) -> Path:
    shutil.rmtree(name, ignore_errors=True)
    return Path(shutil.copytree(folder, name))
