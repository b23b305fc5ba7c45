"""What concerns a command that torchrun started as several processes: one of them speaks, and one says why it ended.

Nothing here imports torch before the processes have to meet; what they say while training is in processes.py.
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

NOTICE = 1.0  # seconds after which torchrun has noticed, and told the system, that a process ended
GRACE = 5.0  # seconds after an interrupt in which a process should be gone by itself

T = TypeVar("T")
_telling = threading.Lock()


def several() -> bool:
    """Whether there are other processes than this: torchrun has set all of what it sets."""
    return {"RANK", "MASTER_ADDR"} <= os.environ.keys() and os.environ.get("WORLD_SIZE", "1") != "1"


def first() -> bool:
    """Whether this process is the one that prints and writes."""
    return not several() or os.environ["RANK"] == "0"


def in_turn(device: str, work: Callable[[], T]) -> T:
    """`work` that may download what the processes after the first then find."""
    if not several():
        return work()
    from twincluster.parallel.processes import join

    return join(device).in_turn(work)


def decided(device: str, choose: Callable[[], str]) -> str:
    """What the first process chooses, in all of them."""
    if not several():
        return choose()
    from twincluster.parallel.processes import join

    processes = join(device)
    return str(processes.tell(choose() if processes.first else None))


def refuse_several(command: str) -> None:
    """For what every process would do once more, into the same files."""
    if several():
        raise InputError(f"twincluster {command} works in one process: start it without torchrun")


@contextmanager
def one_voice(how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Keep all processes but the first quiet, and have a signal that ends them all explained by one of them."""
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


def may_speak() -> bool:
    """Whether it falls to this process to say why the run ends. Asking takes the turn: nobody else will get it."""
    if not several():
        return True
    if (met := _met()) is None:
        return os.environ.get("LOCAL_RANK", "0") == "0"  # each machine for itself: others may not even have started
    return bool(met.may_speak())


def tell_end(how_to_go_on: Callable[[], str], stream: TextIO | None = None) -> None:
    """One line for all processes: which of them is gone, and what to do."""
    with _telling:
        met, end = _met(), time.monotonic() + NOTICE
        while not (gone := met.ended_here() if met else []) and time.monotonic() < end:
            time.sleep(0.05)
        if not may_speak():
            return
        which = f"process{'es' * (len(gone) > 1)} {', '.join(map(str, gone))}"
        what = f"{which} ended" if gone else "a process elsewhere ended, or all were told to"
        print(f"twincluster: {what}, so the run stopped; {how_to_go_on()}", file=stream or sys.stderr, flush=True)


def leave(status: int) -> None:
    """The end of one of several processes, at once: taking torch's connections down in order waits for the others."""
    if several():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(status)


def _met() -> Any:
    """processes.py, once the processes have met."""
    module = sys.modules.get("twincluster.parallel.processes")
    return module if module and module.have_met() else None


def _watch(stream: TextIO, how_to_go_on: Callable[[], str]) -> None:
    """torchrun ends the others when one ends. A thread hears of it even while torch waits for an answer in C++."""
    heard, speaks = os.pipe()
    os.set_blocking(speaks, False)
    signal.set_wakeup_fd(speaks, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the thread acts

    def listen() -> None:
        for number in iter(lambda: os.read(heard, 1), b""):
            if number[0] == signal.SIGTERM:
                tell_end(how_to_go_on, stream)
                os._exit(1)
            if number[0] == signal.SIGINT:
                time.sleep(GRACE)  # in which Python raises KeyboardInterrupt, unless torch keeps it from doing so
                os._exit(130)

    threading.Thread(target=listen, daemon=True).start()
