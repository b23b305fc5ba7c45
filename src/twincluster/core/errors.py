"""The exceptions a user is meant to read, with what to do about them."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user can fix. The command line prints it as one line and exits with status 2."""


class ProcessEnded(RuntimeError):  # noqa: N818  (nothing went wrong here)
    """One of several processes that train together is gone, and the run with it. One line, and status 1."""


def closest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a message that tells which known name was perhaps meant; empty when none is near."""
    match = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {prefix + match[0]!r}?" if match else ""
