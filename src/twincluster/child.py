"""A command in a process of its own, which neither an interrupt nor an end of ours leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO


def run_child(command: Sequence[str], *, told: str | None = None, log: IO[str] | None = None) -> int:
    """The exit status of a command. It is told `told` by standard input; what it says goes to `log`, or where our
    own words go."""
    stdin = None if told is None else subprocess.PIPE
    with terminable(), subprocess.Popen(command, stdin=stdin, stdout=log, stderr=log, text=True) as process:
        try:
            process.communicate(told)
        except KeyboardInterrupt:
            process.wait()  # an interrupt reaches the child as well, which saves its run first
            raise
        except BaseException:
            process.kill()
            raise
    return process.returncode


@contextmanager
def terminable() -> Iterator[None]:
    """Lets SIGTERM unwind the stack as an interrupt does, so that neither child nor temporary files stay behind."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
