"""Files that a kill cannot tear, and JSON that every reader takes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Under its name there is the old file or the new one at any moment, and never a part of either."""
    partial = path.with_name(path.name + ".partial")
    parts = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    try:
        with partial.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # where the disk is full it is in the way
        raise


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """All rows up to a half-written last line: the process died while writing it."""
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:
            return
        yield row


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
    """Whether a folder that is to be written is anything but new or empty."""
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Processes that want the same file wait for each other."""
    with open(path, "rb") as file:
        lock(file.fileno())
        yield


def lock(descriptor: int) -> None:
    """Wait until this process alone holds an open file; closing it, or dying, lets the next one have it."""
    with suppress(ImportError, OSError):  # where there are no locks, do without
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)
