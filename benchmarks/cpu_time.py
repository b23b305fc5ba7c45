"""Processor time, which on a busy machine says more than the clock."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01  # seconds, the grain of /proc's times


def cpu_seconds() -> float:
    """Of this process and its children so far, ended or not; not a number where /proc does not tell."""
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    for child in multiprocessing.active_children():
        try:
            user, system = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:
            return math.nan
        total += (int(user) + int(system)) * TICK
    return total
