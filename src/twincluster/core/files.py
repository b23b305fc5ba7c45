"""Files that a kill cannot tear, and JSON that every reader takes."""

from __future__ import annotations

import dataclasses
import glob
import json
import math
import os
import secrets
import types
import typing
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from twincluster.core import InputError
from twincluster.core.locks import LOCK_FILE, lock

LONGEST_SHOWN = 60  # letters of a wrong value in a message


def write_atomically(path: Path, content: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Under its name there is the old file or the new one at any moment, and never a part of either."""
    parts = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    with unfinished(path) as partial, partial.open("wb") as file:
        file.writelines(parts)


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """An empty file beside `path` that nobody else writes to; what is in it at the end becomes `path`, all at once.

    Its writer holds a lock on it. By that the next one knows what a writer that was killed has left, and removes it.
    """
    _sweep(path)
    partial, file = _new_beside(path)
    try:
        with closing(file):
            yield partial
            with partial.open("r+b") as written:  # Windows flushes only what may be written to
                os.fsync(written.fileno())
            if os.name == "nt":
                file.close()  # nor does it rename what is open
            partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # where the disk is full it is in the way
        raise


def _new_beside(path: Path) -> tuple[Path, BinaryIO]:
    while True:
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
        file = partial.open("xb")
        lock(file.fileno())
        if partial.exists():  # else another writer swept it before it was locked
            return partial, file
        file.close()


def _sweep(path: Path) -> None:
    """Remove what writers of this file have left that were killed."""
    with suppress(ImportError, OSError):  # where there are no locks nobody can tell, and all stays
        import fcntl

        for left in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * 8}.partial"):
            with suppress(OSError), left.open("rb") as file:  # still written, or not ours
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """All rows up to a half-written last line: the process died while writing it."""
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:
            return
        yield row


def read_json(path: Path) -> Any:
    """Parse a JSON file; raise ValueError for text that is no JSON or is nested too deeply."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def record_of(kind: type[Record], value: Any, where: str) -> Record:
    """Make a dataclass of parsed JSON; raise ValueError that names the field whose value is of another type.

    Fields with a default may be missing, and what the dataclass does not know is left out.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_shown(value)}, expected an object")
    hints, found = typing.get_type_hints(kind), {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in value:
            found[field.name] = _typed(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} has no {field.name}")
    return kind(**found)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Return `value` as `hint` has it: lists become tuples, whole numbers pass for floats."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return record_of(typing.cast(type[Any], hint), value, where)
    if origin in (typing.Union, types.UnionType):
        if value is None and types.NoneType in inside:
            return None
        return _typed(next(one for one in inside if one is not types.NoneType), value, where)
    if origin is typing.Literal and value in inside:
        return value
    if origin in (tuple, list) and isinstance(value, list):
        items = [_typed(inside[0], item, f"{where}[{place}]") for place, item in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin is dict and isinstance(value, dict):
        return {name: _typed(inside[1], item, f"{where}.{name}") for name, item in value.items()}
    if hint is float and type(value) in (int, float):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise ValueError(f"{where} is {_shown(value)}, expected {getattr(hint, '__name__', hint)}")


def _shown(value: Any) -> str:
    """A value as an error names it, however long it is."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}, {said[0]}" if said else type(error).__name__


def strict_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: numbers that are none (nan, inf) become null."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def finite(value: Any) -> Any:
    """The same with None in the place of nan and inf."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_taken(folder: Path) -> bool:
    """Whether a folder that is to be written is anything but new or empty. A lock is nothing."""
    return folder.exists() and (not folder.is_dir() or any(path.name != LOCK_FILE for path in folder.iterdir()))


def refuse_taken(out: Path) -> None:
    """Refuse a place for a new run where something is already."""
    if is_taken(out):
        state = "exists and is not empty" if out.is_dir() else "is a file"
        hint = ", or continue it with --resume" if (out / "config.json").is_file() else ""
        raise InputError(f"{out} {state}: choose another --out{hint}")


def check_writable(folder: Path, instead: str = "choose another place") -> None:
    """Refuse a folder in which nothing can be written, or which cannot be made, before any work is done."""
    # a link that leads nowhere counts as there, since no folder can be made in its place
    nearest = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)
    told = nearest if nearest.name else nearest.absolute()  # "." says little
    if not os.path.isdir(nearest):
        raise InputError(f"{told} is not a folder: {instead}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{told} cannot be written to: check its permissions, or {instead}")


Record = TypeVar("Record")
