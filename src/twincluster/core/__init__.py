"""Errors, files that survive a kill, locks, signals and tuning of the process. Imports no torch.

This module holds what every room needs: errors, suggestions, and doors that import lazily.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

LONGEST_MESSAGE = 2000  # letters
_EXPORT = re.compile(r"^from ([\w.]+) import (\w+) as \w+$", re.MULTILINE)


class InputError(ValueError):
    """Something the user can fix. The command line prints it as one line and exits with status 2."""

    def __init__(self, message: str = "", *more: object) -> None:
        super().__init__(shortened(str(message)), *more)


class ProcessEnded(RuntimeError):  # noqa: N818  (not an error of this process)
    """One of several processes that train together ended, and so does the run. One line, and status 1."""


def shortened(text: str) -> str:
    """Leave the middle out of a text that is too long to be read, such as one that quotes a damaged file."""
    if len(text) <= LONGEST_MESSAGE:
        return text
    return f"{text[: LONGEST_MESSAGE // 2]} ... {text[-LONGEST_MESSAGE // 2 :]}"


def closest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the end of a message that suggests the known name nearest to `name`; "" if none is similar."""
    match = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {prefix + match[0]!r}?" if match else ""


def attach_stub(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose `__init__.pyi` lists what it exports.

    A module is imported when one of its names is first used, so a room costs only what its caller needs.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    homes = {name: home for home, name in _EXPORT.findall(stub)}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        own = home.__name__ == package or not hasattr(home, name)  # a module of that room
        return import_module(f"{home.__name__}.{name}") if own else getattr(home, name)

    return get, lambda: sorted(homes), sorted(homes)


def duration(seconds: float) -> str:
    """Format seconds as text: 90 -> "1 min 30 s"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def counted(count: int, noun: str) -> str:
    """1, "image" -> "1 image"; 2000, "image" -> "2,000 images"; 2, "process" -> "2 processes"."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
__all__ += ["InputError", "ProcessEnded", "attach_stub"]
__all__ += ["available_cores", "closest", "counted", "duration", "shortened"]
