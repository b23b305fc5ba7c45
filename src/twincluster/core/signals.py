"""An interrupt (Ctrl-C), or the SIGTERM of a batch queue, that waits for a moment at which a run can be saved.

A command in a process of its own, which neither an interrupt nor an end of ours leaves behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO


class Terminated(KeyboardInterrupt):
    """SIGTERM. All that an interrupt saves is saved; only the exit status is another."""


class Interrupt:
    """Whether one was asked for, and by which signal."""

    asked = 0

    def unwind(self) -> None:
        raise Terminated if self.asked == signal.SIGTERM else KeyboardInterrupt


_first = Interrupt()  # that a command was ended by


@contextmanager
def terminable() -> Iterator[None]:
    """While this lasts, SIGTERM unwinds the stack as an interrupt does. Whatever has its own way with it keeps that."""
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    _first.asked, usual = 0, signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGTERM, _terminate)
    if usual:  # another one is left alone: what is not Python's could not be put back
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def noted(wanted: bool) -> Iterator[Interrupt]:
    """While this lasts, an interrupt is noted and breaks nothing off; a second one does. Not `wanted`, or outside the
    main thread, which alone hears of signals, nothing changes."""
    interrupt = Interrupt()
    usual = signal.getsignal(signal.SIGINT)
    if not wanted or not _in_main_thread():
        yield interrupt
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interrupt.asked and number == signal.SIGINT and callable(usual):
            usual(number, frame)
        interrupt.asked = _first.asked = interrupt.asked or number

    taken = {signal.SIGINT: usual} if callable(usual) else {}
    if signal.getsignal(signal.SIGTERM) is _terminate:
        taken[signal.SIGTERM] = _terminate
    for number in taken:
        signal.signal(number, note)
    try:
        yield interrupt
    finally:
        for number, before in taken.items():
            signal.signal(number, before)


@contextmanager
def explained(how: Callable[[], str]) -> Iterator[None]:
    """Lets an interrupt say how to go on."""
    try:
        yield
    except KeyboardInterrupt as end:
        raise type(end)(f"{called(end)}; {how()}") from None


def called(end: KeyboardInterrupt) -> str:
    return "ended by SIGTERM" if isinstance(end, Terminated) else "interrupted"


def _terminate(number: int, frame: FrameType | None) -> None:
    """Only the first counts: `timeout` sends it twice, and the child of an interrupted parent has both signals."""
    if not _first.asked:
        _first.asked = number
        raise Terminated


def _interrupt(number: int, frame: FrameType | None) -> None:
    _first.asked = number
    raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def run_child(command: Sequence[str], *, told: str | None = None, log: IO[str] | None = None) -> int:
    """The exit status of a command. It is told `told` by standard input; what it says goes to `log`, or where our
    own words go."""
    stdin = None if told is None else subprocess.PIPE
    with terminable(), subprocess.Popen(command, stdin=stdin, stdout=log, stderr=log, text=True) as process:
        try:
            try:
                process.communicate(told)
            except KeyboardInterrupt:
                if os.name != "nt":  # where this would kill it
                    process.terminate()  # it saves its run first; where Ctrl-C reached it as well, this changes nothing
                process.wait()
                raise
        except BaseException:
            process.kill()
            raise
    return process.returncode
