"""Errors from a user's own code, such as a method of theirs: find out whether an error comes from it, and explain it.

The command line needs this before heavy imports, so nothing here imports torch.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from types import FrameType

_asked: dict[str, str] = {}  # methods by the top-level package of their module


def asked(name: str) -> None:
    """Register the package of "package.module:Class" as a user's own code."""
    if (package := _package(name.partition(":")[0])) != "twincluster":
        _asked[package] = name


def why_not_imported(module: str, error: ImportError | SyntaxError) -> str:
    """Return the end of a message: why a module cannot be imported, and what to do about it."""
    if isinstance(error, SyntaxError):
        place = f"{os.path.basename(error.filename)}, line {error.lineno}" if error.filename else module
        return f"({place}): syntax error, {error.msg}"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"({error}): install its package, or add its folder to PYTHONPATH"
    place = next((place for _, place, _ in _own_lines(error)), module)
    return f"({place}): {_first_line(error)}; install the missing package, or correct that line"


def blame(error: BaseException) -> str | None:
    """Return one line about the user's method that raised an error; None if no such method is involved."""
    problem = f"{type(error).__name__}: {_first_line(error)}".rstrip(": ")
    if lines := list(_own_lines(error)):
        name, place, _ = lines[0]
        importing = any(function == "<module>" for *_, function in lines)
        return f"the method {name} {'cannot be imported' if importing else 'failed'} ({place}): {problem}"
    owners = [frame.f_locals.get("self") for frame, _ in _frames(error)]
    if inherited := _method_among(owners):  # in a function that it inherits
        return f"the method {inherited} failed: {problem}"
    if trained := _method_among([getattr(owner, "__dict__", {}).get("method") for owner in owners]):
        # for example in the backward pass, which runs no line of the method
        return f"training {trained} failed: {problem}; if the method is not the cause, please report the lines above"
    return None


def _own_lines(error: BaseException) -> Iterator[tuple[str, str, str]]:
    """Yield method, place and function of the user's lines that led to an error, innermost first."""
    for frame, number in _frames(error):
        if name := _asked.get(_package(frame.f_globals.get("__name__", ""))):
            yield name, f"{os.path.basename(frame.f_code.co_filename)}, line {number}", frame.f_code.co_name
    # torch.compile does not run the code: its message names the lines
    for path, number, function in re.findall(r'File "(.+)", line (\d+), in (\w+)', str(error))[::-1]:
        if name := _by_file().get(path):
            yield name, f"{os.path.basename(path)}, line {number}", function


def _by_file() -> dict[str | None, str]:
    """Return methods by the file of their module."""
    return {getattr(sys.modules.get(name.partition(":")[0]), "__file__", None): name for name in _asked.values()}


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(error.__traceback__))[::-1]


def _method_among(things: list[object]) -> str | None:
    """Return the first user's method whose package defines the class of one of these objects."""
    packages = [_package(type(thing).__module__) for thing in things]
    return next((_asked[package] for package in packages if package in _asked), None)


def _package(module: str) -> str:
    return module.partition(".")[0]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")
