"""edits.jsonl: numbered lines that are only ever appended, by any number of processes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from twincluster.core import HeldError, InputError, JsonLines, disk_is_full, naming, record_of, refuse_held
from twincluster.runs.edit_kinds import KINDS, Line


class ConflictError(InputError):
    """Somebody else wrote in between. `last` is the number of their newest line."""

    def __init__(self, last: int, what: str = "") -> None:
        super().__init__(what or f"somebody else has edited meanwhile (edit {last}): look again, and repeat it")
        self.last = last


class EditLog:
    """The lines of one file. Only new lines are read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = JsonLines(path, _line_of, "delete it from there on")

    def read(self) -> list[Line]:
        """Return all whole lines. Does not block on concurrent writers."""
        return self._lines.read()

    def append(self, build: Callable[[list[Line]], list[Line]], expected: int | None = None) -> list[Line]:
        """Add what `build` makes of the lines, while no other process can write, and return all lines.

        Lines get a number and a time. `expected` is the number of the newest line the caller knows: if there is a newer
        one, nothing is written. Edits of a run that another process writes are refused: its model is being replaced.
        """

        def numbered(lines: list[Line]) -> list[Line]:
            refuse_held(self.path.parent, patience=0)
            last = int(lines[-1]["edit"]) if lines else 0
            if expected is not None and expected != last:
                raise ConflictError(last)
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            return [{"edit": number, "time": now} | line for number, line in enumerate(build(lines), len(lines))]

        with _room(self.path):
            while True:
                refuse_held(self.path.parent)
                with suppress(HeldError):  # by a process that came in between and waits for this file
                    return self._lines.append(numbered)

    def rewrite(self, lines: Sequence[Line]) -> None:
        """Replace the file by other lines."""
        self._lines.rewrite(lines)


def in_force(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """The edits that count, and those that were undone and can be done again, the next one last."""
    done: list[Line] = []
    undone: list[Line] = []
    for line in lines:
        if line["kind"] == "undo" and done:
            undone.append(done.pop())
        elif line["kind"] == "redo" and undone:
            done.append(undone.pop())
        elif line["kind"] not in ("start", "undo", "redo"):
            done.append(line)
            undone = []
    return done, undone


def _line_of(line: Line, place: int) -> Line:
    """Check the number, the kind and the types of a line; a kind of a later version passes."""
    if type(line.get("edit")) is not int or line["edit"] != place:
        raise ValueError(f"its number is {str(line.get('edit'))[:20]}, expected {place}")
    if not isinstance(line.get("kind"), str):
        raise ValueError("it has no kind")
    if line["kind"] in KINDS:
        record_of(KINDS[line["kind"]][0], line, f"edit {place}")
    return line


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Refuse an edit for which the disk has no room."""
    try:
        with naming(path):
            yield
    except OSError as error:
        if full := disk_is_full(error):
            raise InputError(f"{full}; the edit was not made") from error
        raise
