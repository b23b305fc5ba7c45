"""What became of every file of a finished store, in one small file: <tag>.json, beside the pixels and the journal.

A start that finds it need not read a journal of a line per image. It counts only while the journal is as it was then.
"""

import json
from contextlib import suppress
from typing import NamedTuple

from twincluster.disk import write_atomically
from twincluster.images.build import Store

VERSION = 1  # of these files and of how a fingerprint is made


class Outcome(NamedTuple):
    status: tuple[str, ...]  # of each row, "ok" or why it is black
    fingerprint: str


def remembered(store: Store) -> Outcome | None:
    """None where nothing is, or where it is of another journal: then the journal has to be read."""
    with suppress(OSError, ValueError, TypeError, KeyError, IndexError):  # not there, or not as it was written
        written = json.loads(store.outcome.read_bytes())
        if store.has_pixels() and written["state"] == _state(store):
            status = ["ok"] * len(store.entries)
            for row, said in written["unreadable"]:
                status[row] = str(said)
            return Outcome(tuple(status), str(written["fingerprint"]))
    return None


def remember(store: Store, outcome: Outcome) -> None:
    """For a store that is complete."""
    unreadable = [(row, said) for row, said in enumerate(outcome.status) if said != "ok"]
    with suppress(OSError):  # without it the next start is only slower
        written = {"state": _state(store), "fingerprint": outcome.fingerprint, "unreadable": unreadable}
        write_atomically(store.outcome, json.dumps(written))


def _state(store: Store) -> list[int]:
    found = store.journal.stat()
    return [VERSION, found.st_size, found.st_mtime_ns]
