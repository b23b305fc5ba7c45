"""Where the files in a .tar archive lie, without unpacking any of them.

The tarfile of Python takes several times as long, which counts where an archive holds a million files, and stops at a
damaged place without a word. Read here: the formats of POSIX (ustar, pax) and of GNU tar.

Where the files in a .tar archive lie, remembered beside the decoded images: a large archive is searched once.

What is remembered counts only while the archive has the size and the time of change it had then.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from twincluster.core import write_atomically
from twincluster.data.listing import cache_folder
from twincluster.data.store import short_hash

BLOCK = 512
LONGEST_HEADER = 1 << 20  # bytes of a long name and the like: an honest archive has no more
LARGEST_FILE = 1 << 60

_END = bytes(BLOCK)
_OCTAL = re.compile(rb" *([0-7]*)(?:[ \0].*)?", re.DOTALL)
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
_FILES = (b"0", b"\0", b"7")  # new and old regular files, and contiguous ones
_WITHOUT_BYTES = tuple(b"%d" % kind for kind in range(1, 7))  # links, devices, folders, pipes


class Packed(NamedTuple):
    """An entry of an archive, other than a folder."""

    name: str  # bytes that are no UTF-8 as Python carries them in file names
    start: int  # of its bytes
    size: int
    is_file: bool  # not a link, a pipe, ...


class _BrokenError(Exception):
    """The archive cannot be followed further; the text says why."""


def read_index(path: Path) -> tuple[list[Packed], str]:
    """The entries of an archive in its order, and what is wrong with it, if anything; they end where that begins."""
    entries = []
    try:
        with open(path, "rb", buffering=0) as file:
            for entry in _entries(file):
                entries.append(entry)
    except _BrokenError as error:
        return entries, str(error)
    except FileNotFoundError:
        return entries, "missing file"
    except PermissionError:
        return entries, "no permission"
    except OSError as error:
        return entries, os.strerror(error.errno or 0).lower()
    return entries, ""


def _entries(file: BinaryIO) -> Iterator[Packed]:
    at = 0
    said: dict[bytes, bytes] = {}  # of the next entry, by those before it
    while (header := _read(file, at, BLOCK)) != _END:
        if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise _BrokenError("damaged archive" if at else _not_tar(header))
        kind, size, start = header[156:157], _number(header[124:136]), at + BLOCK
        if size < 0:
            raise _BrokenError("damaged archive")
        if kind == b"S":
            raise _BrokenError("archive of sparse files")  # they lie there in pieces
        if kind in (b"x", b"L"):
            content = _read(file, start, size)
            said |= _records(content) if kind == b"x" else {b"path": content.rstrip(b"\0")}
        elif kind not in (b"g", b"K"):  # what holds for the whole archive, and where a link leads
            size = 0 if kind in _WITHOUT_BYTES else int(said.get(b"size", size))
            name = (said.get(b"path") or _name(header)).decode("utf-8", "surrogateescape")
            if kind != b"5" and not name.endswith("/"):
                yield Packed(name, start, size, kind in _FILES)
            said = {}
        at = start + -(-size // BLOCK) * BLOCK


def _read(file: BinaryIO, at: int, count: int) -> bytes:
    if count > LONGEST_HEADER:
        raise _BrokenError("damaged archive")
    file.seek(at)
    found = file.read(count)
    if len(found) < count:  # a whole archive ends with a block of zeros
        raise _BrokenError("truncated archive" if at else _not_tar(found))
    return found


def _not_tar(beginning: bytes) -> str:
    if not beginning:
        return "empty file"
    return "compressed archive" if beginning.startswith(_COMPRESSED) else "not a tar archive"


def _number(field: bytes) -> int:
    """Octal digits, or, for what is too large for them, the bytes of the number itself; -1 where it is neither."""
    if field[0] == 0x80:
        number = int.from_bytes(field[1:])
    else:
        digits = _OCTAL.fullmatch(field)
        number = int(digits.group(1) or b"0", 8) if digits else -1
    return number if number <= LARGEST_FILE else -1


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    before = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return before + b"/" + name if before else name


def _records(content: bytes) -> dict[bytes, bytes]:
    """What pax writes before an entry: lines of "LENGTH KEY=VALUE", the length being that of the whole line."""
    found, at = {}, 0
    try:
        while at < len(content):
            space = content.index(b" ", at)
            length = int(content[at:space])
            key, equals, value = content[space + 1 : at + length - 1].partition(b"=")
            if length <= 0 or not equals or (key == b"size" and not 0 <= int(value) <= LARGEST_FILE):
                raise ValueError
            found[key] = value
            at += length
    except ValueError:
        raise _BrokenError("damaged archive") from None
    return found


INDEX_VERSION = 1  # of these files and of what tar.py finds in an archive
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
            return list(_remembered(entries)), ""
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
    return [INDEX_VERSION, found.st_size, found.st_mtime_ns]


def _remembered(rows: list[list[object]]) -> Iterator[Packed]:
    for name, start, size, is_file in rows:
        if not (isinstance(name, str) and isinstance(start, int) and isinstance(size, int)):
            raise TypeError("not an index")
        yield Packed(name, start, size, bool(is_file))
