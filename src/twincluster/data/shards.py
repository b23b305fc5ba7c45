"""Read WebDataset shards: .tar archives in which files with the same name up to the first dot belong together.

A pattern names many shards, as in a shell: s-{000..099}.tar, {train,val}/s-*.tar. Images are decoded from the archive;
nothing is unpacked. The index of a large archive is cached and valid while the archive keeps its size and modification
time. Supports the tar formats of POSIX (ustar, pax) and GNU; Python's tarfile is several times slower and stops
silently at damage.
"""

import glob
import json
import os
import re
import stat
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from twincluster.core import InputError, counted, write_atomically
from twincluster.data.labels import Labels, as_labels
from twincluster.data.listing import IMAGE_SUFFIXES, Listing, Member, cache_folder, printable
from twincluster.data.store import short_hash

BLOCK = 512
LONGEST_HEADER = 1 << 20  # most bytes of a long name or pax record in a valid archive
LARGEST_FILE = 1 << 60

_END = bytes(BLOCK)
_OCTAL = re.compile(rb" *([0-7]*)(?:[ \0].*)?", re.DOTALL)
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
_FILES = (b"0", b"\0", b"7")  # new and old regular files, and contiguous ones
_WITHOUT_BYTES = tuple(b"%d" % kind for kind in range(1, 7))  # links, devices, folders, pipes


class Packed(NamedTuple):
    """An entry of an archive that is not a folder."""

    name: str  # invalid UTF-8 as surrogate escapes
    start: int  # of its bytes
    size: int
    is_file: bool  # not a link, a pipe, ...


class _BrokenError(Exception):
    """The archive cannot be read further; the message says why."""


def read_index(path: Path) -> tuple[list[Packed], str]:
    """Return the entries of an archive in order, up to the first damage, and a description of the damage, or ""."""
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
    extended: dict[bytes, bytes] = {}  # attributes of the next entry, from the headers before it
    while (header := _read(file, at, BLOCK)) != _END:
        if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise _BrokenError("damaged archive" if at else _not_tar(header))
        kind, size, start = header[156:157], _number(header[124:136]), at + BLOCK
        if size < 0:
            raise _BrokenError("damaged archive")
        if kind == b"S":
            raise _BrokenError("archive of sparse files")  # stored in pieces
        if kind in (b"x", b"L"):
            content = _read(file, start, size)
            extended |= _records(content) if kind == b"x" else {b"path": content.rstrip(b"\0")}
        elif kind not in (b"g", b"K"):  # not global attributes or the target of a link
            size = 0 if kind in _WITHOUT_BYTES else int(extended.get(b"size", size))
            name = (extended.get(b"path") or _name(header)).decode("utf-8", "surrogateescape")
            if kind != b"5" and not name.endswith("/"):
                yield Packed(name, start, size, kind in _FILES)
            extended = {}
        at = start + -(-size // BLOCK) * BLOCK


def _read(file: BinaryIO, at: int, count: int) -> bytes:
    if count > LONGEST_HEADER:
        raise _BrokenError("damaged archive")
    file.seek(at)
    content = file.read(count)
    if len(content) < count:  # a complete archive ends with a block of zeros
        raise _BrokenError("truncated archive" if at else _not_tar(content))
    return content


def _not_tar(beginning: bytes) -> str:
    if not beginning:
        return "empty file"
    return "compressed archive" if beginning.startswith(_COMPRESSED) else "not a tar archive"


def _number(field: bytes) -> int:
    """Parse octal digits, or the binary form of larger numbers; -1 if it is neither."""
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
    """Parse pax records: lines of "LENGTH KEY=VALUE", where LENGTH counts the whole line."""
    records, at = {}, 0
    try:
        while at < len(content):
            space = content.index(b" ", at)
            length = int(content[at:space])
            key, equals, value = content[space + 1 : at + length - 1].partition(b"=")
            if length <= 0 or not equals or (key == b"size" and not 0 <= int(value) <= LARGEST_FILE):
                raise ValueError
            records[key] = value
            at += length
    except ValueError:
        raise _BrokenError("damaged archive") from None
    return records


INDEX_VERSION = 1  # of the cached files and of what `read_index` returns
FEWEST = 1000  # entries; smaller archives are read faster than their cache

Index = tuple[list[Packed], str]


def index_of(archive: Path) -> Index:
    """Return `read_index` of an archive, cached if it is large and undamaged."""
    state = _state(archive)
    if state is None:
        return read_index(archive)
    place = cache_folder() / "shards" / f"{short_hash(os.path.realpath(archive))}.json"
    with suppress(OSError, ValueError, TypeError):  # missing or damaged
        cached_state, rows = json.loads(place.read_bytes())
        if cached_state == state:
            return list(_parsed(rows)), ""
    entries, problem = read_index(archive)
    if not problem and len(entries) >= FEWEST and _state(archive) == state:
        with suppress(OSError):  # the cache is optional
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, json.dumps([state, entries]))
    return entries, problem


def _state(archive: Path) -> list[int] | None:
    try:
        status = os.stat(archive)
    except OSError:
        return None
    return [INDEX_VERSION, status.st_size, status.st_mtime_ns]


def _parsed(rows: list[list[object]]) -> Iterator[Packed]:
    for name, start, size, is_file in rows:
        if not (isinstance(name, str) and isinstance(start, int) and isinstance(size, int)):
            raise TypeError("not an index")
        yield Packed(name, start, size, bool(is_file))


MOST_FILES = 1_000_000

_GROUP = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)(?:\.\.([0-9]+))?")


def is_pattern(name: str) -> bool:
    return any(mark in name for mark in "{*?[")


def matching(pattern: str) -> list[str]:
    """Return the files that a pattern names, in its order and without duplicates. Expands braces, * and ?."""
    if os.path.exists(pattern):  # a file name may contain braces
        return [pattern]
    wanted = list(islice(braces(pattern), MOST_FILES + 1))
    if len(wanted) > MOST_FILES:
        raise InputError(f"{printable(pattern)} names more than {MOST_FILES:,} files: check its numbers")
    found: dict[str, None] = {}
    for name in wanted:
        names = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else [name]
        if not names:
            raise InputError(f"{printable(name)}: no file matches; check the pattern")
        found |= dict.fromkeys(names)
    if missing := [name for name in found if not os.path.exists(name)]:
        more = f" and {len(missing) - 1:,} more of {len(found):,} files are missing"
        if len(missing) == 1:
            more = f" (1 of {len(found):,} files) is missing"
        raise InputError(f"{printable(missing[0])}{more}: add the missing files, or change {printable(pattern)}")
    return list(found)


def braces(pattern: str) -> Iterator[str]:
    """Expand {a,b} to a and b, {08..10} to 08, 09 and 10, {0..10..5} to 0, 5 and 10; keep other braces."""
    for group in _GROUP.finditer(pattern):
        if choices := _choices(group.group(1)):
            for choice in choices:
                yield from braces(pattern[: group.start()] + choice + pattern[group.end() :])
            return
    yield pattern


def _choices(inside: str) -> Iterator[str] | None:
    if bounds := _RANGE.fullmatch(inside):
        first, last, step = int(bounds[1]), int(bounds[2]), int(bounds[3] or 1) or 1
        padded = any(len(bound) > 1 and bound.startswith("0") for bound in bounds.group(1, 2))
        width = max(len(bounds[1]), len(bounds[2])) if padded else 0
        numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
        return (str(number).zfill(width) for number in numbers)
    return iter(inside.split(",")) if "," in inside else None


LONGEST_FILE = 1 << 20  # bytes of a .cls or .json
LONGEST_LABEL = 256  # letters; longer texts are captions, not labels

_SAMPLE = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)", re.DOTALL)  # the key of a sample, and the kind of file


def from_shards(pattern: Path) -> Listing:
    """List the images in the shards that a pattern names, shard after shard, in their order there.

    An image is called SHARD/NAME, where SHARD is the archive's path below the folder that contains all shards. A
    damaged shard also has a row of its own, called SHARD, after the images before the damage.
    """
    name = printable(pattern.name)
    shards = [os.path.abspath(shard) for shard in matching(str(pattern))]
    if wrong := [shard for shard in shards if not shard.lower().endswith(".tar") or os.path.isdir(shard)]:
        raise InputError(
            f"{printable(wrong[0])} is not a .tar file: patterns name shards; for images, name their folder"
        )
    above = os.path.commonpath([os.path.dirname(shard) for shard in shards])
    paths: list[str] = []
    files: list[Member] = []
    others = 0
    for shard in shards:
        found = _search(Path(shard), os.path.relpath(shard, above))
        paths += [path for path, _ in found.images]
        files += [file for _, file in found.images]
        others += found.others
    if all(file.problem for file in files):
        why = f"{paths[0]}: {files[0].problem}" if files else counted(others, "other file")
        raise InputError(f"{name} contains no images ({printable(why)}): name shards that contain images")
    root = Path(os.path.abspath(pattern))
    return Listing(name, tuple(printable(path) for path in paths), files=tuple(files), skipped=others, root=root)


def labels_of_shards(listing: Listing, labels: str) -> Labels | None:
    """Read labels stored beside the images, one per sample; None if `labels` names another source.

    "cls" reads the text of NAME.cls, "json:FIELD" a field of NAME.json.
    """
    kind, _, field = labels.partition(":")
    if (kind, bool(field)) not in (("cls", False), ("json", True)):
        return None
    files = [file for file in listing.files or () if isinstance(file, Member)]
    if not files:
        raise InputError(f"labels {printable(labels)} need shards, and {listing.name} is none: choose other labels")
    found: dict[tuple[Path, int], str] = {}  # label by archive and offset of the image
    for shard in dict.fromkeys(file.archive for file in files if not file.problem):
        with suppress(OSError), open(shard, "rb") as opened:
            for start, beside in _beside(index_of(shard)[0], kind):
                opened.seek(beside.start)
                found[shard, start] = _label(opened.read(min(beside.size, LONGEST_FILE)), field)
    texts = [found.get((file.archive, file.start), "") for file in files]
    if not any(texts):
        what = f"field {field} in any .json" if field else "label in any .cls"
        raise InputError(f"{listing.name} has no {printable(what)}: choose other labels")
    return as_labels(np.array(texts), len(texts), f"labels {printable(labels)}")


class _Found(NamedTuple):
    images: list[tuple[str, Member]]
    others: int  # files that are not images


def _search(shard: Path, where: str) -> _Found:
    changed = _changed(shard)  # before reading, so that a later change is noticed
    entries, problem = index_of(shard) if _is_regular(shard) else ([], "not a regular file")
    images: list[tuple[str, Member]] = []
    times: Counter[str] = Counter()
    for entry in entries:
        suffix = os.path.splitext(entry.name)[1].lower()
        if suffix in IMAGE_SUFFIXES:
            name = f"{where}/{entry.name.removeprefix('./')}"
            times[name] += 1
            link = "" if entry.is_file else "link or device in an archive"
            member = Member(shard, entry.start, entry.size, suffix, changed, link)
            images.append((name if times[name] == 1 else _renamed(name, times), member))
    others = len(entries) - len(images)
    if problem:
        images_found = counted(len(images), "image")
        warnings.warn(f"{printable(where)}: {problem}; found {images_found} before the damage", stacklevel=5)
        images.append((where, Member(shard, 0, 0, "", changed, problem)))
    return _Found(images, others)


def _changed(shard: Path) -> int:
    try:
        return os.stat(shard).st_mtime_ns
    except OSError:
        return -1


def _is_regular(shard: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(shard).st_mode)
    except OSError:  # reading it reports the reason
        return True


def _renamed(name: str, times: Counter[str]) -> str:
    """Return a unique name for a file, because an archive may contain several files of one name."""
    while times[f"{name}#{times[name]}"]:
        times[name] += 1
    times[other := f"{name}#{times[name]}"] += 1
    return other


def _beside(entries: Sequence[Packed], kind: str) -> Iterator[tuple[int, Packed]]:
    """Yield the offset of each image and the file of this kind in its sample."""
    parts = [(match[1], match[2].lower(), entry) for entry in entries if (match := _SAMPLE.fullmatch(entry.name))]
    for _, sample in groupby(parts, key=lambda part: part[0]):  # a later sample may reuse the key
        together = list(sample)
        if labels := [entry for _, ending, entry in together if ending == kind and entry.is_file]:
            yield from ((entry.start, labels[0]) for _, _, entry in together)


def _label(content: bytes, field: str) -> str:
    """Return a label as text, "" if there is none."""
    try:
        value = json.loads(content)[field] if field else content.decode("utf-8", "surrogateescape")
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    label = str(value).strip() if isinstance(value, str | int) else ""
    return label if len(label) <= LONGEST_LABEL else ""
