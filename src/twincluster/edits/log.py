"""edits.jsonl: numbered lines that are only ever appended, by any number of processes at once.

Each line is one JSON object. Writers take turns under a file lock, and a line counts once it is whole and on the disk:
a kill in the midst of writing loses that line alone, and the next writer removes what is left of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from typing import Any

from twincluster.disk import lock, strict_json
from twincluster.errors import InputError

Line = dict[str, Any]


class ConflictError(InputError):
    """Somebody else wrote in between. `last` is the number of their newest line."""

    def __init__(self, last: int, what: str = "") -> None:
        super().__init__(what or f"somebody else has edited meanwhile (edit {last}): look again, and repeat it")
        self.last = last


class EditLog:
    """The lines of one file; what is known of it is kept, and only new lines are read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = RLock()  # threads of one process share this object
        self._lines: list[Line] = []
        self._end = 0  # bytes of the file that the known lines take
        self._last = b""  # the newest of them, to notice a file that was put in the place of this one

    def read(self) -> list[Line]:
        """All whole lines. Whoever is writing one at this moment is not waited for."""
        with self._guard:
            self._catch_up()
            return list(self._lines)

    def append(self, build: Callable[[list[Line]], list[Line]], expected: int | None = None) -> list[Line]:
        """Add what `build` makes of the lines there are, while nobody else can write, and return all lines.

        Lines get a number and a time. `expected` is the number of the newest line the caller knows: if there is a newer
        one, nothing is written.
        """
        with self._guard, _alone(self.path) as descriptor:
            self._catch_up()
            last = self._number()
            if expected is not None and expected != last:
                raise ConflictError(last)
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            added = [
                {"edit": number, "time": now} | line
                for number, line in enumerate(build(list(self._lines)), last + 1 if self._lines else 0)
            ]
            _write(descriptor, self._end, "".join(strict_json(line) + "\n" for line in added).encode())
            self._catch_up()
            return list(self._lines)

    def _number(self) -> int:
        return int(self._lines[-1]["edit"]) if self._lines else 0

    def _catch_up(self) -> None:
        """Read what was appended since the last time; a half-written end stays unread."""
        if not self.path.is_file():
            self._forget()
            return
        with self.path.open("rb") as file:
            file.seek(max(0, self._end - len(self._last)))
            if file.read(len(self._last)) != self._last:  # another file in its place
                self._forget()
                file.seek(0)
            new = file.read()
        rows = new.split(b"\n")[:-1]  # what follows the last line break is not whole
        for position, row in enumerate(rows):
            line = _parsed(row)
            if line is None and position == len(rows) - 1:
                return  # an end that never reached the disk as it was written
            if line is None or line["edit"] != (self._number() + 1 if self._lines else 0):
                where = f"{self.path} is damaged in line {len(self._lines) + 1}"
                raise InputError(f"{where}: put back a copy, or delete it from there on")
            self._lines.append(line)
            self._last = row + b"\n"
            self._end += len(self._last)

    def _forget(self) -> None:
        self._lines, self._end, self._last = [], 0, b""


def _parsed(row: bytes) -> Line | None:
    try:
        line = json.loads(row)
    except (ValueError, RecursionError):
        return None
    sound = isinstance(line, dict) and type(line.get("edit")) is int and isinstance(line.get("kind"), str)
    return line if sound else None


@contextmanager
def _alone(path: Path) -> Iterator[int]:
    """The file, opened to be appended to, while everybody else who wants that waits."""
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)  # network drives lock no file for readers
    try:
        lock(descriptor)
        if is_new:
            _sync_folder(path.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, end: int, content: bytes) -> None:
    """Append after byte `end`, all that is whole; what a killed writer left behind it goes."""
    try:
        os.ftruncate(descriptor, end)
        while content:
            content = content[os.write(descriptor, content) :]
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, end)  # a full disk must not leave half a line
        raise


def _sync_folder(folder: Path) -> None:
    """So that the name of a new file survives a power cut as well."""
    with suppress(OSError):  # folders cannot be opened everywhere
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
