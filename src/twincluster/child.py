"""A command in a process of its own, which neither an interrupt nor an end of ours leaves behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import IO

from twincluster.interrupts import terminable


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
