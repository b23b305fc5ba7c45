"""How long `twincluster --help` keeps a person waiting, beside an interpreter that does nothing."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

TARGET = 0.5  # seconds
BARE = "python -c pass"
HELP = "twincluster --help"
CACHED = "the same, bytecode kept"


@dataclass(frozen=True)
class Startup:
    """By command, one figure for each run."""

    seconds: dict[str, list[float]]
    cpu: dict[str, list[float]]  # seconds of processor time, which a busy machine changes less

    def to_text(self) -> str:
        runs = len(self.seconds[BARE])
        lines = [
            f"seconds from start to end, median of {runs} runs",
            f"{'':26}{'median':>9}{'fastest':>9}{'slowest':>9}{'CPU':>9}",
        ]
        for name, values in self.seconds.items():
            wall = f"{statistics.median(values):9.2f}{min(values):9.2f}{max(values):9.2f}"
            lines.append(f"{name:26}{wall}{statistics.median(self.cpu[name]):9.2f}")
        if CACHED in self.seconds:
            lines.append("PYTHONDONTWRITEBYTECODE is set: every start compiles each module anew")
        return "\n".join([*lines, f"target: {HELP} under {TARGET} s"])


def measure(runs: int) -> Startup:
    """The commands take turns, so that whatever else the machine does slows all of them."""
    with tempfile.TemporaryDirectory() as cache:
        bare, help_ = [sys.executable, "-c", "pass"], [sys.executable, "-m", "twincluster", "--help"]
        here = dict(os.environ)
        commands = {BARE: (bare, here), HELP: (help_, here)}
        if sys.dont_write_bytecode:
            kept = {name: value for name, value in here.items() if name != "PYTHONDONTWRITEBYTECODE"}
            commands[CACHED] = (help_, kept | {"PYTHONPYCACHEPREFIX": cache})
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        cpu: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(runs + 1):
            for name, (command, environment) in commands.items():
                start, spent = time.perf_counter(), _children_cpu()
                subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
                if turn:  # the first turn fills the file cache and writes bytecode
                    seconds[name].append(time.perf_counter() - start)
                    cpu[name].append(_children_cpu() - spent)
    return Startup(seconds, cpu)


def _children_cpu() -> float:
    """Processor time of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system
