"""Taking an update of a run back: the rows it added go, and those it replaced become what they were.

What that takes lies in the update's own line of updates.jsonl. The line is removed last: after a kill at any moment the
same command finishes what it began.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from twincluster.disk import only_one
from twincluster.edit_log import EditLog, Line
from twincluster.edits import FILE as EDITS
from twincluster.errors import InputError
from twincluster.known import read_stamps, write_stamps
from twincluster.report.outdated import mark_outdated
from twincluster.results import Assignments, Run


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
    rows = [
        [row, int(before.clusters[row]), float(before.confidence[row]), before.status[row],
         stamps.get(before.paths[row])]
        for row in replaced
    ]  # fmt: skip
    return {"rows": count, "replaced": rows}


def undo_update(run: Run) -> str:
    """Take the last update back; returns what to tell."""
    with only_one(run.folder / "config.json"):
        table, records = run.read_assignments(), run.read_updates()
        back = _check(run, records)
        count, replaced = int(back["rows"]), back["replaced"]
        stamps = read_stamps(run.folder)
        for path in table.paths[count:]:
            stamps.pop(path, None)
        for row, _, _, _, stamp in replaced:
            if stamp is None:
                stamps.pop(table.paths[row], None)
            else:
                stamps[table.paths[row]] = stamp
        write_stamps(run.folder, stamps)
        mark_outdated(run.folder, f"an update undone, {len(table.paths) - count:,} images fewer")
        run.write_assignments(_as_it_was(table, count, replaced))
        run.drop_update()
    what = f"{len(table.paths) - count:,} rows removed, {len(replaced):,} put back as they were"
    left = f"{count:,} rows in {run.folder / 'assignments.csv'}"
    return f"the update with {records[-1]['source']} is undone: {what}\n{left}"


def _check(run: Run, records: list[dict[str, Any]]) -> dict[str, Any]:
    if not records:
        more = ": one was broken off; start it again, then undo it" if run.is_updated else ""
        raise InputError(f"{run.folder} has no update to undo{more}")
    back: dict[str, Any] | None = records[-1].get("undo")
    if back is None:
        raise InputError(
            f"the last update of {run.folder} cannot be undone: an earlier version made it, or it finished one that "
            "was broken off with another in between"
        )
    if _last_row(EditLog(run.folder / EDITS).read()) >= back["rows"]:
        raise InputError(
            f"{run.folder} has corrections by hand that name images of that update: move {run.folder / EDITS} away to "
            "undo it without them"
        )
    return back


def _last_row(lines: list[Line]) -> int:
    """The largest number of a row that edits name, those that were undone included; -1 without any."""
    parts = [part for line in lines for part in (line, *line.get("parts", ()))]
    named = [int(row) for part in parts for row in part.get("rows", ())]
    return max([-1, *named, *(int(line["inputs"]) - 1 for line in lines if line["kind"] == "start")])


def _as_it_was(
    table: Assignments, count: int, replaced: Iterable[tuple[int, int, float | None, str, str]]
) -> Assignments:
    clusters, confidence, status = table.clusters[:count].copy(), table.confidence[:count].copy(), [*table.status]
    for row, cluster, sure, said, _ in replaced:
        clusters[row], confidence[row] = cluster, math.nan if sure is None else sure
        status[row] = said
    return Assignments(table.paths[:count], clusters, np.asarray(confidence), tuple(status[:count]))
