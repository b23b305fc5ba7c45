"""Taking an update of a run back: the rows it added go, and those it replaced become what they were.

What that takes lies in the update's own line of updates.jsonl. The line is removed last: after a kill at any moment the
same command finishes what it began. While an update is under way, the same lies in updating.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twincluster.core import InputError, finite, hold, read_record, settle, strict_json, write_json
from twincluster.runs import EDITS_FILE as EDITS
from twincluster.runs import (
    Assignments,
    EditLog,
    Line,
    Replaced,
    Run,
    UpdateRecord,
    WayBack,
    read_stamps,
    write_stamps,
)

UNDER_WAY = "updating.json"  # there only while an update writes, or after one was broken off
BROKEN_OFF = "one was broken off; start it again, then undo it"


@dataclass(frozen=True)
class _Begun:
    """updating.json."""

    updates: int  # before its own
    replaced: tuple[Replaced, ...]  # as they were
    stamps: dict[str, str]  # that it will write


@dataclass(frozen=True)
class Undone:
    """What taking an update back did."""

    table: Path
    source: str  # of the update
    removed: int  # rows
    put_back: int  # rows
    rows: int  # that are left

    def to_json(self) -> str:
        return strict_json({"undone": True, **asdict(self), "table": str(self.table)}, indent=2)

    def to_text(self) -> str:
        what = f"{self.removed:,} row{'s' * (self.removed != 1)} removed, {self.put_back:,} put back as they were"
        return f"the update with {self.source} is undone: {what}\n{self.rows:,} rows in {self.table}"


def way_back(
    before: Assignments, stamps: Mapping[str, str], added_rows: Iterable[int], replaced: Iterable[int]
) -> dict[str, Any] | None:
    """For the line of an update: how many rows there were, and those it replaces, with their stamps.

    `added_rows` are rows that an update which was broken off has already added. None where they are not the last ones,
    because another update came in between: then there is no way back.
    """
    count = len(before.paths) - len(added := sorted(added_rows))
    if added and added != list(range(count, len(before.paths))):
        return None
    return {"rows": count, "replaced": _as_they_are(before, stamps, replaced)}


def begin(
    run: Run, before: Assignments, stamps: Mapping[str, str], replaced: Iterable[int], found: Mapping[str, str]
) -> None:
    """Before an update changes anything: the rows it replaces as they are now, and the stamps it will write."""
    content = {
        "updates": len(run.read_updates()),  # before its own
        "replaced": _as_they_are(before, stamps, replaced),
        "stamps": dict(found),
    }
    write_json(run.folder / UNDER_WAY, finite(content))


def end(run: Run) -> None:
    (run.folder / UNDER_WAY).unlink(missing_ok=True)


def recover(run: Run) -> None:
    """After an update that was broken off: with its line there, it is finished; else rows it replaced become what they
    were. Rows it added stay, since corrections may name them by now; the next attempt finds them without a stamp."""
    if (begun := _under_way(run)) is None:
        return
    if len(run.read_updates()) > begun.updates:
        write_stamps(run.folder, read_stamps(run.folder) | begun.stamps)
    elif begun.replaced:
        table = run.read_assignments()
        run.write_assignments(_as_it_was(run, table, len(table.paths), begun.replaced))
    end(run)


def undo_update(run: Run) -> Undone:
    """Take the last update back."""
    with hold(run.folder, "undo"):
        settle(run.folder / EDITS)  # an edit that began before may name rows of the update
        table, records = run.read_assignments(), run.read_updates()
        back = _check(run, table, records)
        recover(run)
        count, replaced = back.rows, back.replaced
        stamps = read_stamps(run.folder)
        for path in table.paths[count:]:
            stamps.pop(path, None)
        for row, _, _, _, stamp in replaced:
            if stamp is None:
                stamps.pop(table.paths[row], None)
            else:
                stamps[table.paths[row]] = stamp
        write_stamps(run.folder, stamps)
        run.mark_outdated(f"an update undone, {len(table.paths) - count:,} images fewer")
        run.write_assignments(_as_it_was(run, table, count, replaced))
        run.drop_update()
    removed = len(table.paths) - count
    return Undone(run.folder / "assignments.csv", records[-1].source, removed, len(replaced), count)


def _as_they_are(table: Assignments, stamps: Mapping[str, str], rows: Iterable[int]) -> list[list[Any]]:
    return [
        [row, int(table.clusters[row]), float(table.confidence[row]), table.status[row], stamps.get(table.paths[row])]
        for row in rows
    ]


def _under_way(run: Run) -> _Begun | None:
    path = run.folder / UNDER_WAY
    try:
        return read_record(path, _Begun)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): delete it to do without") from None


def _check(run: Run, table: Assignments, records: list[UpdateRecord]) -> WayBack:
    if not records:
        more = f": {BROKEN_OFF}" if run.is_updated else ""
        raise InputError(f"{run.folder} has no update to undo{more}")
    if len(table.paths) > (records[-1].rows or len(table.paths)) or _is_half_way(run, table, len(records)):
        raise InputError(f"the updates of {run.folder} cannot be undone now: {BROKEN_OFF}")
    back = records[-1].undo
    if back is None:
        raise InputError(
            f"the last update of {run.folder} cannot be undone: an earlier version made it, or it finished one that "
            "was broken off with another in between"
        )
    lines = EditLog(run.folder / EDITS).read()
    without = f"move {run.folder / EDITS} away to undo it without them"
    if _last_row(lines) >= back.rows:
        raise InputError(f"{run.folder} has corrections by hand that name images of that update: {without}")
    # their first line says which rows there were: with fewer, none of them could be read
    if any(line["kind"] == "start" and line["inputs"] > back.rows for line in lines):
        raise InputError(f"the corrections by hand of {run.folder} were begun after that update: {without}")
    return back


def _is_half_way(run: Run, table: Assignments, n_records: int) -> bool:
    """Whether an update that was broken off before it had its line has replaced rows of the table."""
    begun = _under_way(run)
    if begun is None or n_records > begun.updates:
        return False
    then = _as_it_was(run, table, len(table.paths), begun.replaced)
    same_confidence = np.array_equal(then.confidence, table.confidence, equal_nan=True)
    return not (np.array_equal(then.clusters, table.clusters) and then.status == table.status and same_confidence)


def _last_row(lines: list[Line]) -> int:
    """The largest number of a row that edits name, those that were undone included; -1 without any."""
    parts = [part for line in lines for part in (line, *line.get("parts", ()))]
    return max([-1, *(int(row) for part in parts for row in part.get("rows", ()))])


def _as_it_was(run: Run, table: Assignments, count: int, replaced: Iterable[Replaced]) -> Assignments:
    clusters, confidence, status = table.clusters[:count].copy(), table.confidence[:count].copy(), [*table.status]
    for row, cluster, sure, said, _ in replaced:
        if not 0 <= row < len(clusters):
            raise InputError(f"{run.folder}: its updates name row {row}, of {len(clusters):,}: put back a copy")
        clusters[row], confidence[row] = cluster, math.nan if sure is None else sure
        status[row] = said
    return Assignments(table.paths[:count], clusters, np.asarray(confidence), tuple(status[:count]))
