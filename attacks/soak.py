"""A long time under load: memory, file descriptors and the time of a training step stay flat."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from attacks.folders import run_command
from attacks.workplace import FIT, Fork, import_all, must, write_images

COUNT = 1_800  # seconds
GROWTH = 1.1  # times as much in the last third as in the second
SLOWER = 2.0  # the machine has other work, too


def attack(seed: int, count: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Train and serve for `count` seconds; return figures. `tell` is called with every fault."""
    write_images("small", 200)
    must(*FIT, "--epochs", 3, "--out", "run")
    import_all()

    from twincluster.pages import listen

    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    server = Fork(lambda: run_command("serve", "run", "--port", port))
    trainer = Fork(lambda: run_command(*FIT, "--epochs", 1_000_000, "--seed", seed, "--out", "endless"))
    taken: dict[str, list[float]] = {}
    until, requests = time.monotonic() + count, 0
    while time.monotonic() < until:
        for path in ("/api/state", "/api/rows?of=all&order=doubtful", f"/api/image/{requests % 200}", "/api/map"):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                answer.read()
                requests += 1
        if requests and requests % 20 == 0:
            for name, process in (("server", server), ("trainer", trainer)):
                for what, value in _taken(process.pid).items():
                    taken.setdefault(f"{name} {what}", []).append(value)
    running = server.is_running and trainer.is_running
    for process in (server, trainer):
        process.kill(0)
    lines = (
        Path("endless/metrics.jsonl").read_bytes().splitlines()[:-1] if Path("endless/metrics.jsonl").exists() else []
    )
    seconds = [json.loads(line)["seconds"] for line in lines]
    taken["trainer seconds an epoch"] = np.diff(seconds).tolist() if len(seconds) > 30 else []
    figures: dict[str, Any] = {"seconds": count, "requests": requests, "epochs": len(lines), "faults": int(not running)}
    if not running:
        tell("soak: a process has ended")
    for name, values in taken.items():
        third = len(values) // 3
        if third < 5:
            continue
        before, after = float(np.median(values[third : 2 * third])), float(np.median(values[2 * third :]))
        figures[name] = f"{before:.4g} then {after:.4g}"
        if after > before * (SLOWER if "seconds" in name else GROWTH) + (5 if "descriptors" in name else 0):
            figures["faults"] += 1
            tell(f"soak: {name} grew from {before:.4g} to {after:.4g}")
    return figures


def _taken(pid: int) -> dict[str, float]:
    """Memory in MB, and file descriptors."""
    with suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return {"MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6, "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}
    return {}
