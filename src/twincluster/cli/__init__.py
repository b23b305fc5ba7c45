"""The command line. This file imports nothing of ours, so that an interrupt is heard from the first moment on."""

import os
import signal
from contextlib import suppress

__all__ = ["Count", "CountOrNone", "PlainHelp", "Seed", "main", "status_of", "whole"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status is 0 done, 2 bad input, 1 a fault of ours, 130 interrupted, 143 SIGTERM.

    Without `arguments` it is the command of this process, which an interrupt ends.
    """
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # in another thread than the first
            signal.signal(signal.SIGINT, _leave)
    from twincluster.cli.app import main as run

    return run(arguments)


def _leave(*_: object) -> None:
    """End before anything is under way: what an interrupt raises in an import is a traceback, or aborts."""
    with suppress(OSError):
        os.write(2, b"twincluster: interrupted\n")
    os._exit(128 + signal.SIGINT)


def __getattr__(name: str) -> object:
    """Return what the stub beside this file lists."""
    from twincluster.core import attach_stub

    return attach_stub(__name__, __file__)[0](name)
