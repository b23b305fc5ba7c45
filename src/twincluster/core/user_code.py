"""Code of a user's own that a run was asked to use: whether an error comes out of it, and what can be told of that.

The command line needs this before, and without, anything heavy: nothing here imports torch.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from types import FrameType

_asked: dict[str, str] = {}  # methods by the outermost package of the module they are in


def asked(name: str) -> None:
    """From now on the package of "package.module:Class" is a user's own code."""
    if (package := _package(name.partition(":")[0])) != "twincluster":
        _asked[package] = name


def why_not_imported(module: str, error: ImportError | SyntaxError) -> str:
    """The end of a message: what keeps a module from being imported, and what to do about it."""
    if isinstance(error, SyntaxError):
        place = f"{os.path.basename(error.filename)}, line {error.lineno}" if error.filename else module
        return f"({place}): its syntax is wrong, {error.msg}"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"({error}): install its package, or name its folder in PYTHONPATH"
    place = next((place for _, place, _ in _own_lines(error)), module)
    return f"({place}): {_first_line(error)}; install what it imports, or correct that line"


def blame(error: BaseException) -> str | None:
    """One line on the method of a user's own that an error comes out of; None where there is no such method."""
    told = f"{type(error).__name__}: {_first_line(error)}".rstrip(": ")
    if lines := list(_own_lines(error)):
        name, place, _ = lines[0]
        importing = any(function == "<module>" for *_, function in lines)
        return f"the method {name} {'cannot be imported' if importing else 'failed'} ({place}): {told}"
    owners = [frame.f_locals.get("self") for frame, _ in _frames(error)]
    if inherited := _method_among(owners):  # what it lacks, or what it has from its base
        return f"the method {inherited} failed: {told}"
    if trained := _method_among([getattr(owner, "__dict__", {}).get("method") for owner in owners]):
        # as in the backward pass, which has no line of it
        return f"training {trained} failed: {told}; if that is not its doing, please report the lines above"
    return None


def _own_lines(error: BaseException) -> Iterator[tuple[str, str, str]]:
    """Method, place and function of the lines of a user's own that led to an error, the innermost first."""
    for frame, number in _frames(error):
        if name := _asked.get(_package(frame.f_globals.get("__name__", ""))):
            yield name, f"{os.path.basename(frame.f_code.co_filename)}, line {number}", frame.f_code.co_name
    # the compiler of torch runs no code: it names lines of what it read in its words
    for path, number, function in re.findall(r'File "(.+)", line (\d+), in (\w+)', str(error))[::-1]:
        if name := _by_file().get(path):
            yield name, f"{os.path.basename(path)}, line {number}", function


def _by_file() -> dict[str | None, str]:
    """Methods by the files they are in."""
    return {getattr(sys.modules.get(name.partition(":")[0]), "__file__", None): name for name in _asked.values()}


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(error.__traceback__))[::-1]


def _method_among(things: list[object]) -> str | None:
    """The first method of a user's own, in whose package one of these objects has its class."""
    packages = [_package(type(thing).__module__) for thing in things]
    return next((_asked[package] for package in packages if package in _asked), None)


def _package(module: str) -> str:
    return module.partition(".")[0]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")
