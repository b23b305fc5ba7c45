"""A report that was written before the run went on says so itself, at its top, without being written anew.

A new one would take the images and whatever labels it was made with; `twincluster report` asks for them.
"""

from __future__ import annotations

import html
import re
import shlex
from contextlib import suppress
from pathlib import Path

from twincluster.disk import write_atomically

FILE = "report.html"
_NOTICE = re.compile(rb'<p class="warning" id="since"[^<]*</p>')  # as page.html has it; what is inside is escaped


def mark_outdated(folder: Path, what: str) -> None:
    """Tell the report of a run, if there is one, what has happened since it was written."""
    path = folder / FILE
    command = f"twincluster report {shlex.quote(str(folder))}"
    said = html.escape(f"This page is older than the table of the run ({what} since): {command} writes it again.")
    notice = f'<p class="warning" id="since">{said}</p>'.encode(errors="backslashreplace")
    with suppress(OSError):  # the table, which counts, is written
        page = path.read_bytes() if path.is_file() else b""
        marked = _NOTICE.sub(lambda _: notice, page, count=1)
        if marked != page:
            write_atomically(path, marked)
