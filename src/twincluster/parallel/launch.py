"""Support for commands started by torchrun as several processes: one of them prints, and one reports the end.

Nothing here imports torch before the processes have to connect; their messages during training are in processes.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO, TypeVar

from twincluster.core import InputError

NOTICE = 1.0  # seconds until torchrun has noticed that a process ended
GRACE = 5.0  # seconds after an interrupt before a process is ended

T = TypeVar("T")
_telling = threading.Lock()


def several() -> bool:
    """Return True if torchrun started several processes."""
    return {"RANK", "MASTER_ADDR"} <= os.environ.keys() and os.environ.get("WORLD_SIZE", "1") != "1"


def first() -> bool:
    """Return True in the process that prints and writes."""
    return not several() or os.environ["RANK"] == "0"


def in_turn(device: str, work: Callable[[], T]) -> T:
    """Run `work`, which may download files, in the first process before the others."""
    if not several():
        return work()
    from twincluster.parallel.processes import join

    return join(device).in_turn(work)


def decided(device: str, choose: Callable[[], str]) -> str:
    """Return the first process's choice in all processes."""
    if not several():
        return choose()
    from twincluster.parallel.processes import join

    processes = join(device)
    return str(processes.broadcast_value(choose() if processes.first else None))


def refuse_several(command: str) -> None:
    """Raise InputError if a command for a single process was started by torchrun."""
    if several():
        raise InputError(f"twincluster {command} works in one process: start it without torchrun")


@contextmanager
def silence_others(how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Silence all processes except the first, and let one of them report a signal that ends them all."""
    if not several():
        yield
        return
    if threading.current_thread() is threading.main_thread():
        _watch(sys.stderr, how_to_go_on)
    if first():
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def is_reporter() -> bool:
    """Return True for exactly one process: the one that reports why the run ends."""
    if not several():
        return True
    if (met := _met()) is None:
        return os.environ.get("LOCAL_RANK", "0") == "0"  # one per machine: others may not have started
    return bool(met.is_reporter())


def report_end(how_to_go_on: Callable[[], str], stream: TextIO | None = None) -> None:
    """Print one line for all processes: which of them ended, and how to continue."""
    with _telling:
        met, end = _met(), time.monotonic() + NOTICE
        while not (gone := met.ended_here() if met else []) and time.monotonic() < end:
            time.sleep(0.05)
        if not is_reporter():
            return
        which = f"process{'es' * (len(gone) > 1)} {', '.join(map(str, gone))}"
        what = f"{which} ended" if gone else "a process on another machine ended, or all were stopped"
        print(f"twincluster: {what}, so the run stopped; {how_to_go_on()}", file=stream or sys.stderr, flush=True)


def leave(status: int) -> None:
    """Exit at once if there are other processes: closing torch's connections in order would wait for them."""
    if several():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(status)


def _met() -> Any:
    """Return processes.py once the processes are connected, otherwise None."""
    module = sys.modules.get("twincluster.parallel.processes")
    return module if module and module.have_met() else None


def _watch(stream: TextIO, how_to_go_on: Callable[[], str]) -> None:
    """Report the end when torchrun stops the processes. A thread notices it even while torch waits in C++."""
    heard, speaks = os.pipe()
    os.set_blocking(speaks, False)
    signal.set_wakeup_fd(speaks, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the thread acts

    def listen() -> None:
        for number in iter(lambda: os.read(heard, 1), b""):
            if number[0] == signal.SIGTERM:
                report_end(how_to_go_on, stream)
                os._exit(1)
            if number[0] == signal.SIGINT:
                time.sleep(GRACE)  # meanwhile Python raises KeyboardInterrupt, unless torch blocks it
                os._exit(130)

    threading.Thread(target=listen, daemon=True).start()
