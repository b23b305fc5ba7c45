"""A served run on pictures of three colours, of which every fourth lies in a wrong cluster, and its lessons."""

import sys
import time
from pathlib import Path
from typing import Any

from explorer_server import Served

sys.path.append(str(Path(__file__).parents[1] / "teach"))

from taught_runs import COUNT, colour_run

__all__ = ["COUNT", "colour_run", "lesson", "teach_some", "wrong"]


def lesson(served: Served) -> dict[str, Any]:
    """What the server has learned, once that is about the newest edit."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found: dict[str, Any] = served.get("/api/lesson").json()
        assert not found["absent"], found["absent"]
        if found["stage"] == "ready" and found["asked"] == served.number:
            return found
        time.sleep(0.02)
    raise AssertionError("no lesson about the newest edit")


def wrong(served: Served) -> list[int]:
    """Rows that lie in the cluster of another colour."""
    rows = {int(Path(path).stem): row for row, path in enumerate(served.library.assignments.paths)}
    clusters = served.library.edits.state.clusters
    return [rows[number] for number in range(COUNT) if clusters[rows[number]] != number % 3]


def teach_some(served: Served) -> dict[str, Any]:
    """Confirm the first images of each colour that lie where they belong."""
    lesson(served)
    apart = set(wrong(served))
    rows = [row for row in range(COUNT) if row not in apart][:12]
    assert served.edit("confirm", rows=rows).status_code == 200
    return lesson(served)
