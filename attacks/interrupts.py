"""Interrupts at random moments: every command ends with status 130 within seconds, and leaves no process behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attacks.kills import make_places
from attacks.workplace import FIT, end, kill_group, start

COUNT = 500
WITHIN = 10.0  # seconds
STARTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from twincluster.cli import main
print("started", flush=True)
sys.exit(main())
"""  # Python itself starts before it says so: an interrupt until then is not ours to answer
ENDLESS = (*FIT, "--epochs", "1000000", "--out", "run")
WORDS: dict[str, tuple[object, ...]] = {
    "fit": ENDLESS, "resume": (*ENDLESS, "--resume"), "update": ("update", "run", "fresh"), "report": ("report", "run"),
    "predict": ("predict", "run", "fresh", "--out", "new.csv"), "evaluate": ("evaluate", "run"),
    "teach": ("teach", "run", "--answers", "answers.csv"), "export": ("export", "run", "all.csv", "--to", "csv"),
}  # fmt: skip


def attack(seed: int, count: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Interrupt `count` commands; return figures. `tell` is called with every fault."""
    make_places()
    moments = random.Random(seed)
    figures: dict[str, Any] = {"interrupts": 0, "done before": 0, "slowest, s": 0.0, "faults": 0}
    longest = dict.fromkeys(WORDS, 8.0)
    while figures["interrupts"] < count:
        name = moments.choice(list(WORDS))
        shutil.rmtree("run", ignore_errors=True)
        if name != "fit":
            shutil.copytree("finished", "run")
        elif moments.random() < 0.5:
            shutil.rmtree("cache", ignore_errors=True)  # it decodes once more
        mark = f"{moments.getrandbits(64):x}"
        process = start(*WORDS[name], program=("-c", STARTED), env={**os.environ, "MARK": mark})
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(longest[name] * moments.random() ** 2)
        if process.poll() is not None:
            end(process)
            figures["done before"] += 1
            longest[name] *= 0.8
            continue
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        ended = end(process, 60)
        seconds = time.monotonic() - began
        figures["interrupts"] += 1
        figures["slowest, s"] = max(figures["slowest, s"], round(seconds, 1))
        fault = ""
        if ended.status != 130 and not (ended.status == 0 and name not in ("fit", "resume")):
            fault = f"status {ended.status}: {ended.err[-1000:]}"
        elif "Traceback" in ended.err or seconds > WITHIN:
            fault = f"{seconds:.1f} s: {ended.err[-1000:]}"
        elif left := _left(mark):
            fault = f"left {left[0]}"
        if fault:
            figures["faults"] += 1
            tell(f"interrupts seed {seed} number {figures['interrupts']}: {name}: {fault}")
            kill_group(process)
    return figures


def _left(mark: str) -> list[str]:
    until = time.monotonic() + WITHIN
    while (left := list(_marked(mark))) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _marked(mark: str) -> Iterator[str]:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}".encode() in (place / "environ").read_bytes():
                yield (place / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
