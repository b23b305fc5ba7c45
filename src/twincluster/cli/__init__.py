"""The command line. Imports nothing of ours at the top, so that an interrupt is handled from the start."""

import os
import signal
from contextlib import suppress

__all__ = ["Count", "CountOrNone", "PlainHelp", "Seed", "main", "status_of", "whole"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 2 bad input, 1 a bug, 130 interrupted, 143 SIGTERM.

    Without `arguments`, run the command of this process, which an interrupt ends.
    """
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, _leave)
    from twincluster.cli.app import main as run

    return run(arguments)


def _leave(*_: object) -> None:
    """Exit at once: during the first imports, an exception would print a traceback or abort."""
    with suppress(OSError):
        os.write(2, b"twincluster: interrupted\n")
    os._exit(128 + signal.SIGINT)


def __getattr__(name: str) -> object:
    """Return a name that the stub file exports."""
    from twincluster.core import attach_stub

    return attach_stub(__name__, __file__)[0](name)
