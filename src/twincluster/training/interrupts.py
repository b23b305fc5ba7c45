"""An interrupt (Ctrl-C) that waits for a moment at which a run can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether one was asked for."""

    asked = False


@contextmanager
def noted(wanted: bool) -> Iterator[Interrupt]:
    """While this lasts, an interrupt is noted and breaks nothing off; a second one does. Not `wanted`, or outside the
    main thread, which alone hears of signals, nothing changes."""
    interrupt = Interrupt()
    usual = signal.getsignal(signal.SIGINT)
    if not wanted or threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield interrupt
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            usual(number, frame)
        interrupt.asked = True

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, usual)
