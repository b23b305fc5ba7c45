"""The files of the package that a command runs through, in the order in which they are first called.

A file counts when one of its functions is called in the command's own process. docs/code.md describes these walks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from PIL import Image

import twincluster
from benchmarks.common import python_path
from twincluster.core import InputError

PACKAGE = f"{Path(twincluster.__file__).parent}{os.sep}"
STEP = "Trainer.step"
COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
COUNT, EPOCHS = 60, 2
FEW = 4  # functions named for each file
BESIDE = "lessons"  # the explorer's thread that learns from an edit, while the request goes on
WAIT = 300.0  # seconds for the explorer to be ready


@dataclass(frozen=True)
class Walks:
    """By walk, the functions called in each file, files in the order of their first call."""

    functions: dict[str, dict[str, list[str]]]

    def to_text(self) -> str:
        lines: list[str] = []
        for name, files in self.functions.items():
            lines += [f"{name}: {len(files)} files, {sum(map(len, files.values()))} functions"]
            for number, (file, called) in enumerate(files.items(), 1):
                more = ", ..." if len(called) > FEW else ""
                lines.append(f"{number:4}  {file:32}{', '.join(called[:FEW])}{more}")
            lines.append("")
        return "\n".join(lines[:-1])


def measure() -> Walks:
    """Cluster two small folders, correct a run in the explorer, export it and predict with it."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        _write_images(place / "photos", (300, 240), "jpg")
        _write_images(place / "tiny", (16, 16), "png")
        photos, tiny = (
            _walk(place, "fit", kind, "--epochs", EPOCHS, "--out", f"runs/{kind}") for kind in ("photos", "tiny")
        )
        predict = {
            kind: _walk(place, "predict", f"runs/{kind}", kind, "--out", f"{kind}.csv") for kind in ("photos", "tiny")
        }
        merge = _merge(place, "runs/photos")
        export = _walk(place, "export", "runs/photos", "final.csv", "--to", "csv")
        corrected = _walk(place, "predict", "runs/photos", "photos", "--out", "corrected.csv")
    return Walks(
        {
            "fit of photographs": _by_file(photos),
            "fit of 16-pixel images": _by_file(tiny),
            "one training step on features": _by_file(line for line in photos if line[2]),
            "one training step on images": _by_file(line for line in tiny if line[2]),
            "a merge in the explorer": _by_file(merge),
            "a merge and export to csv": _by_file([*merge, *export]),
            "predict photographs": _by_file(predict["photos"]),
            "predict 16-pixel images": _by_file(predict["tiny"]),
            "predict photographs with a corrected run": _by_file(corrected),
        }
    )


Call = tuple[str, str, bool]  # file, function, whether a training step was running


def _by_file(calls: Iterable[Call]) -> dict[str, list[str]]:
    files: dict[str, dict[str, None]] = {}
    for file, function, _ in calls:
        files.setdefault(file, {})[function] = None
    return {file: list(functions) for file, functions in files.items()}


def _write_images(folder: Path, size: tuple[int, int], suffix: str) -> None:
    """Write images of noise in three colours, which are three clear clusters."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = random.integers(0, 100, (4, 4, 3))
        pixels[..., number % 3] += 150
        Image.fromarray(pixels.astype(np.uint8)).resize(size).save(folder / f"{number:02}.{suffix}")


# -- running a command, here ------------------------------------------------------------------------------------------


def _walk(place: Path, *words: object) -> list[Call]:
    """Run a command to its end."""
    done = subprocess.run(**_child(place, words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise InputError(f"twincluster {words[0]} failed: {done.stderr.strip().splitlines()[-1]}")
    return _read(place)


def _merge(place: Path, run: str) -> list[Call]:
    """Merge two clusters in the explorer; only what this request calls counts."""
    with subprocess.Popen(**_child(place, ("serve", run, "--port", 0)), stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            address = next(line.split()[1] for line in server.stdout if line.startswith("open http"))
            deadline = time.monotonic() + WAIT
            while not _ask(f"{address}api/lesson").get("settled") and time.monotonic() < deadline:
                time.sleep(0.2)
            state = _ask(f"{address}api/state")
            server.send_signal(signal.SIGUSR1)
            while (place / "calls").stat().st_size and time.monotonic() < deadline:
                time.sleep(0.05)
            clusters = [cluster["id"] for cluster in state["clusters"][:2]]
            _ask(f"{address}api/edit", {"kind": "merge", "clusters": clusters, "expected": state["number"]})
            return _read(place)
        finally:
            server.kill()


def _ask(address: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT) as answer:
        return json.load(answer)


def _child(place: Path, words: Iterable[object]) -> dict[str, Any]:
    (place / "calls").unlink(missing_ok=True)
    environment = os.environ | {
        "PYTHONPATH": python_path(), "TWINCLUSTER_CACHE": str(place / "cache"), "CUDA_VISIBLE_DEVICES": "",
        "OMP_WAIT_POLICY": "passive",
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.walk", str(place / "calls"), *map(str, words)]
    return {"args": command, "cwd": place, "env": environment, "text": True}


def _read(place: Path) -> list[Call]:
    lines = (line.split("\t") for line in (place / "calls").read_text(encoding="utf-8").splitlines())
    return [(file, function, stepping == "1") for file, function, stepping in lines]


# -- recording, in the child ------------------------------------------------------------------------------------------


class Recorder:
    """A profiler that writes each function of the package once, and once more when a training step calls it."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", encoding="utf-8", buffering=1)
        self.seen: set[tuple[CodeType, bool]] = set()
        self.stepping = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or threading.current_thread().name == BESIDE:
            return
        if code.co_qualname == STEP:
            self.stepping = event == "call"
        if event == "call" and (code, self.stepping) not in self.seen:
            self.seen.add((code, self.stepping))
            is_function = code.co_flags & CO_OPTIMIZED and code.co_name not in COMPREHENSIONS
            if is_function:
                self.file.write(f"{code.co_filename[len(PACKAGE) :]}\t{code.co_qualname}\t{int(self.stepping)}\n")

    def forget(self) -> None:
        """Begin again with an empty file."""
        self.seen.clear()
        self.file.truncate(0)
        self.file.seek(0)


def _record(path: Path, words: list[str]) -> int:
    recorder = Recorder(path)
    with contextlib.suppress(AttributeError, ValueError):  # Windows has no such signal
        signal.signal(signal.SIGUSR1, lambda *_: recorder.forget())
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    from twincluster.cli import main

    return main(words)


if __name__ == "__main__":
    raise SystemExit(_record(Path(sys.argv[1]), sys.argv[2:]))
