"""Where the files in a .tar archive lie, remembered beside the decoded images: a large archive is searched once.

What is remembered counts only while the archive has the size and the time of change it had then.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from twincluster.disk import write_atomically
from twincluster.images.build import short_hash
from twincluster.images.kept import cache_folder
from twincluster.images.tar import Packed, read_index

VERSION = 1  # of these files and of what tar.py finds in an archive
FEWEST = 1000  # entries that take longer to search for than to remember

Index = tuple[list[Packed], str]


def index_of(archive: Path) -> Index:
    """As `read_index`, from memory where it can be. An archive that is damaged is searched each time."""
    state = _state(archive)
    if state is None:
        return read_index(archive)
    place = cache_folder() / "shards" / f"{short_hash(os.path.realpath(archive))}.json"
    with suppress(OSError, ValueError, TypeError):  # not there yet, or not as it was written
        known, entries = json.loads(place.read_bytes())
        if known == state:
            return list(_entries(entries)), ""
    found, problem = read_index(archive)
    if not problem and len(found) >= FEWEST and _state(archive) == state:
        with suppress(OSError):  # without memory it is only slower
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, json.dumps([state, found]))
    return found, problem


def _state(archive: Path) -> list[int] | None:
    try:
        found = os.stat(archive)
    except OSError:
        return None
    return [VERSION, found.st_size, found.st_mtime_ns]


def _entries(rows: list[list[object]]) -> Iterator[Packed]:
    for name, start, size, is_file in rows:
        if not (isinstance(name, str) and isinstance(start, int) and isinstance(size, int)):
            raise TypeError("not an index")
        yield Packed(name, start, size, bool(is_file))
