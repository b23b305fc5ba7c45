"""Which inputs a run knows: what their rows are called, and a stamp of each that tells whether it has changed since.

A row keeps the name that its input has in the run's own source. An input of another source is called by its whole path,
and a row of an array by the array and its number, so that two sources never share a name by chance.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from twincluster.core import MANIFEST, MISMATCH, InputError, read_table, write_table
from twincluster.data import File, Listing, Member, printable
from twincluster.runs.folder import RunData, UpdateRecord, rows_of_table

STAMPS_FILE = "stamps.csv"


def stamps_of(listing: Listing) -> list[str]:
    """One word per input: size and time of change of a file, a digest of a row of an array."""
    if listing.files is None:
        array = listing.array if listing.array is not None else np.empty((0, 0))
        return [hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).hexdigest() for row in array]
    return [_stamp(file, size, at) for file, (_, size, at) in zip(listing.files, listing.entries, strict=True)]


def write_stamps(folder: Path, stamps: Mapping[str, str]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("path", "stamp"), *stamps.items()])
    write_table(folder / STAMPS_FILE, text.getvalue())


def read_stamps(folder: Path) -> dict[str, str]:
    """Stamps by the names of their rows; none for runs that were made before there was such a file."""
    path = folder / STAMPS_FILE
    if not path.is_file():
        return {}
    try:
        text, matches = read_table(path)
        stamps = dict(rows_of_table(text, ("path", "stamp")))
        if not matches:
            raise ValueError(f"{MISMATCH}, or was edited without deleting {MANIFEST}")
        return stamps
    except InputError:
        raise
    except ValueError as error:
        problem = f"{path} cannot be read as a table of path, stamp ({error})"
        raise InputError(f"{problem}: put back a copy, or delete {STAMPS_FILE} to do without") from None


def row_names(listing: Listing, location: str | None, data: RunData, known: Iterable[str]) -> list[str]:
    """What the rows of a listing are called in a run; `data` is what config.json says of the run's own source, `known`
    are the names of the rows it has."""
    own = _is_own(listing, location, data)
    if listing.files is None:
        return [path if own else f"{printable(location or listing.name)}:{path}" for path in listing.paths]
    base = printable(base_of(data)) if data.files else ""
    at = {os.path.normpath(os.path.join(base, name)): name for name in known}
    names = []
    for path, file in zip(listing.paths, listing.files, strict=True):
        whole = _whole(path, file)
        if own and whole not in at:
            names.append(path)
        elif whole not in at and base and whole.startswith(base + os.sep):  # a part of the run's source, by another way
            names.append(whole.removeprefix(base + os.sep))
        else:
            names.append(at.get(whole, whole))
    return names


def base_of(data: RunData) -> str:
    """The folder that the names of a run's own files start in; `data` is what config.json says of its source."""
    location = str(data.location or os.path.join(os.getcwd(), "paths"))  # paths from Python start where we are
    return location if os.path.isdir(location) else os.path.dirname(location)


def within_source(name: str, records: Iterable[UpdateRecord]) -> str:
    """The name of a row inside the source that brought it; `records` are the run's updates."""
    inside = name
    for record in records:
        location = printable(record.location or "")
        starts = (f"{location}:",) if not record.files else (f"{location}/", f"{os.path.dirname(location)}/")
        shorter = next(
            (name.removeprefix(start) for start in starts if len(start) > 1 and name.startswith(start)), name
        )
        inside = min(inside, shorter, key=len)
    return inside


def _stamp(file: File, size: int, changed: int) -> str:
    if isinstance(file, Member):  # an image inside an archive knows its place, its size and its time of change
        return "-".join(str(part) for part in file[1:])
    return "missing" if size < 0 else f"{size}-{changed}"


def _is_own(listing: Listing, location: str | None, data: RunData) -> bool:
    """Whether a source is the one the run was trained on: it lies where that was or, if nothing does, has its name."""
    then = data.location
    if not location or not then or data.files != (listing.files is not None):
        return False
    if os.path.exists(then) and os.path.exists(location):
        return os.path.samefile(then, location)
    return bool(location == then or (listing.name == data.source and not os.path.exists(then)))


def _whole(path: str, file: File) -> str:
    if not isinstance(file, Member):
        return printable(os.path.normpath(file))
    archive = printable(str(file.archive))  # whose name is followed by that of the image inside
    return os.path.normpath(f"{archive}/{path.partition(os.path.basename(archive) + '/')[2]}")
