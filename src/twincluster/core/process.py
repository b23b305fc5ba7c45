"""The command, interrupts, exit and child processes of this process; garbage collection, memory and threads.

An interrupt (Ctrl-C), or the SIGTERM of a batch queue, waits until a run can be saved. A process that runs one command
ends within seconds of it, whatever it is doing (`end_on_interrupt`).
"""

from __future__ import annotations

import gc
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import IO, Any, NoReturn

from twincluster.core.locks import release_all

OnProgress = Callable[[int, int], None]  # called with how many are done, and of how many

LIMIT = 9.0  # seconds after an interrupt before the process is ended
TOGETHER = 1.0  # seconds in which two interrupts count as one: `timeout` signals the process and its group


class Terminated(KeyboardInterrupt):
    """SIGTERM. It is handled like an interrupt; only the exit status differs."""


class Interrupt:
    """Whether an interrupt was requested, and by which signal."""

    asked = 0
    when = 0.0

    def unwind(self) -> None:
        raise Terminated if self.asked == signal.SIGTERM else KeyboardInterrupt


_first = Interrupt()  # the first interrupt of the command
_hows: list[Callable[[], str]] = []  # hints how to continue, of all running tasks
_farewell: Callable[[str, int], None] | None = None  # set if this process runs a single command
_last_words = threading.Lock()
_typed: ContextVar[str | None] = ContextVar("typed", default=None)  # the command of this context
_children: set[subprocess.Popen[str]] = set()


@contextmanager
def typed(words: Sequence[str]) -> Iterator[None]:
    """Record that whatever is made in this context is made by `twincluster WORDS`."""
    before = _typed.set(shlex.join(("twincluster", *words)))
    try:
        yield
    finally:
        _typed.reset(before)


def typed_command() -> str | None:
    """Return the command that a person typed, quoted for a shell; None in Python."""
    return _typed.get()


def end_on_interrupt(farewell: Callable[[str, int], None]) -> None:
    """End this process within seconds of an interrupt, with status 130, whatever it is doing.

    An interrupt raises KeyboardInterrupt where that is safe. Inside an import it is not (torch aborts), and sometimes a
    library swallows it: then the process ends at once, or after `LIMIT`. Before that, `farewell` is called with a
    message and the exit status. No file is left half-written: files are written atomically, and everything else is
    cleaned up here. Process-wide; call only from the CLI.
    """
    global _farewell
    if not _in_main_thread() or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        return
    _farewell = farewell
    heard, speaks = os.pipe()
    os.set_blocking(speaks, False)
    signal.set_wakeup_fd(speaks, warn_on_full_buffer=False)  # written even while C code blocks Python
    threading.Thread(target=_watch, args=(heard,), daemon=True, name="interrupts").start()
    sys.unraisablehook = _not_raised
    # the helper process of multiprocessing prints warnings about objects that it cleans up
    sys.warnoptions.append("ignore:resource_tracker")
    signal.signal(signal.SIGINT, _interrupt)


def default_interrupts() -> None:
    """Have an interrupt raise KeyboardInterrupt, as Python does. Process-wide; call only from the CLI."""
    if _in_main_thread() and callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_interrupts() -> None:
    """Ignore interrupts from now on: all work is done, and one while Python is taken down would kill the process.

    Process-wide; call only from the CLI.
    """
    if _farewell and _in_main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def leave(number: int) -> NoReturn:
    """End this process at once by a signal, without unwinding the stack."""
    with suppress(BaseException):
        if _farewell and is_last_reporter():
            message = called(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
            _farewell(f"{message}; {_hows[0]()}" if _hows else message, 128 + number)
        for child in _children:
            child.kill()
        release_all()
    leave_quietly(128 + number)


def is_last_reporter() -> bool:
    """Return True for exactly one caller: the thread that reports why this process ends."""
    return _last_words.acquire(blocking=False)


def leave_quietly(status: int) -> NoReturn:
    """End this process at once with a status; an orderly exit after an interrupt may abort in torch."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    if workers := sys.modules.get("multiprocessing.process"):
        with suppress(BaseException):  # one that is just starting would say that this process is gone
            for child in workers.active_children():
                child.kill()
    os._exit(status)


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM unwind the stack like an interrupt while the context lasts. Other handlers are kept."""
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not _farewell:
        _first.asked = 0
    signal.signal(signal.SIGTERM, _terminate)
    if usual:  # other handlers stay: those not set from Python cannot be restored
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def noted(wanted: bool) -> Iterator[Interrupt]:
    """Delay interrupts while the context lasts: the first is only noted, a second one interrupts.

    Changes nothing if not `wanted`, or outside the main thread, which alone receives signals.
    """
    interrupt = Interrupt()
    usual = signal.getsignal(signal.SIGINT)
    if not wanted or not _in_main_thread():
        yield interrupt
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interrupt.asked and number == signal.SIGINT and callable(usual):
            usual(number, frame)
        interrupt.asked = interrupt.asked or number
        _note_first(number)

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
    """Append a hint how to continue to the message of an interrupt."""
    _hows.append(how)
    try:
        yield
    except KeyboardInterrupt as end:
        raise type(end)(f"{called(end)}; {how()}") from None
    finally:
        _hows.remove(how)


def called(end: KeyboardInterrupt) -> str:
    return "ended by SIGTERM" if isinstance(end, Terminated) else "interrupted"


def _terminate(number: int, frame: FrameType | None) -> None:
    """Raise for the first signal only: `timeout` sends it twice, and children of an interrupted parent get both
    signals.
    """
    if not _first.asked:
        _note_first(number)
        _leave_import(number, frame)
        raise Terminated


def _interrupt(number: int, frame: FrameType | None) -> None:
    before, since = _first.asked, time.monotonic() - _first.when
    _note_first(number)
    if _farewell and before:
        if before == signal.SIGINT and since > TOGETHER:
            leave(number)  # a second Ctrl-C, or a library swallowed the first one
        return
    _leave_import(number, frame)
    raise KeyboardInterrupt


def _note_first(number: int) -> None:
    if not _first.asked:
        _first.asked, _first.when = number, time.monotonic()


def _leave_import(number: int, frame: FrameType | None) -> None:
    """End the process if it is inside an import: raising there would leave a library half initialised."""
    while _farewell and frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            leave(number)
        frame = frame.f_back


def _watch(heard: int) -> None:
    """End the process `LIMIT` seconds after the first interrupt."""
    while os.read(heard, 1)[0] != signal.SIGINT:
        pass
    time.sleep(LIMIT)
    leave(signal.SIGINT)


def _not_raised(event: Any) -> None:
    """End the process on an interrupt in a destructor or callback, which Python would only print."""
    if isinstance(event.exc_value, KeyboardInterrupt):
        leave(_first.asked or signal.SIGINT)
    sys.__unraisablehook__(event)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def run_child(command: Sequence[str], *, told: str | None = None, log: IO[str] | None = None) -> int:
    """Run a command and return its exit status.

    `told` is written to its standard input; its output goes to `log`, by default to ours.
    """
    stdin = None if told is None else subprocess.PIPE
    with terminable(), subprocess.Popen(command, stdin=stdin, stdout=log, stderr=log, text=True) as process:
        _children.add(process)
        try:
            try:
                process.communicate(told)
            except KeyboardInterrupt:
                if os.name != "nt":  # on Windows this would kill it
                    process.terminate()  # it saves its run first; no effect if Ctrl-C reached it, too
                process.wait()
                raise
        except BaseException:
            process.kill()
            raise
        finally:
            _children.discard(process)
    return process.returncode


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection while many small objects are made that all stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def torch_for_good() -> Iterator[None]:
    """Wrap the first import of torch: it takes a seventh less time without garbage collection.

    What exists at the end is never collected. Process-wide; call only from the CLI.
    """
    if "torch" in sys.modules:
        yield
        return
    with uncollected():
        yield
        gc.freeze()


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h has them
_LARGEST = 1 << 25  # bytes, the most that glibc allows; blocks that are larger go back as before


def keep_freed() -> None:
    """Keep the memory that one training step frees for the next one, instead of handing it back to the system.

    glibc returns large blocks at once, and the kernel clears every page before it hands them out again: a seventh of
    the processor time where images are small. Process-wide; call only from the CLI. Does nothing without glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, -1)


def return_freed() -> None:
    """Hand the memory that is free back to the system. Does nothing without glibc."""
    if sys.platform.startswith("linux"):
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


FEW = 2**16  # values in a batch of rows up to which one thread is taken; tried with half as many, on two cores


@contextmanager
def one_thread(enough: bool) -> Iterator[None]:
    """Compute with one thread where `enough` is true, then restore the number.

    A step on rows is some hundred small operations; joining threads after each costs more than they save.
    """
    import torch

    before = torch.get_num_threads()
    if enough:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
