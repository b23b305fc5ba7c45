"""What can be decoded: a file, an image that lies inside an archive, or bytes that are in memory already.

An image in an archive is read where it lies; nothing is ever unpacked, and no name inside an archive is used as a path.

Search a folder for images, and write file names so that any of them fits on one line of a text file.
"""

import io
import os
import re
import stat
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple, cast

from twincluster.core import InputError

IMAGE_SUFFIXES: frozenset[str] = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif", ".tga", ".heic", ".heif", ".hif"}
)
CHANGED = "archive changed meanwhile"  # as a status has it


class RefusedError(Exception):
    """A file that is left alone; the text says why."""


class Member(NamedTuple):
    """An image inside a larger file."""

    archive: Path
    start: int  # of its bytes
    size: int
    suffix: str  # ".jpg"
    changed: int  # the archive's time of change in ns, when it was searched
    problem: str = ""  # why there is nothing to read


class Content(NamedTuple):
    """An image file that was read already."""

    data: bytes
    suffix: str = ""


File = str | Path | Member  # a plain str where there may be a million: it takes a tenth of the time
Input = File | Content


@contextmanager
def open_input(source: Input) -> Iterator[BinaryIO]:
    """Whatever it is as a file of its own, which is not empty; else RefusedError, or what the system says."""
    if isinstance(source, Content):
        _refuse_empty(len(source.data))
        yield io.BytesIO(source.data)
        return
    if isinstance(source, Member) and source.problem:
        raise RefusedError(source.problem)
    place = source.archive if isinstance(source, Member) else source
    found = os.stat(place)
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError("not a regular file")  # opening a named pipe would wait for ever
    if not isinstance(source, Member):
        _refuse_empty(found.st_size)
        with open(place, "rb") as file:
            yield file
        return
    if found.st_mtime_ns != source.changed:  # what lies there now may be another image, or half of two
        raise RefusedError(CHANGED)
    _refuse_empty(source.size)
    with open(place, "rb", buffering=0) as archive:
        yield cast(BinaryIO, io.BufferedReader(_Part(archive, source.start, source.size)))


def suffix_of(source: Input) -> str:
    """As in ".jpg", in small letters."""
    return (source if isinstance(source, Member | Content) else PurePath(source)).suffix.lower()


def _refuse_empty(size: int) -> None:
    if not size:
        raise RefusedError("empty file")


class _Part(io.RawIOBase):
    """Some bytes of an open file, as if there were no others."""

    def __init__(self, whole: io.FileIO, start: int, size: int) -> None:
        self.whole, self.start, self.size, self.at = whole, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = max(0, {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence] + offset)
        return self.at

    def readinto(self, buffer: Any) -> int:
        self.whole.seek(self.start + self.at)
        count = self.whole.readinto(memoryview(buffer)[: max(0, self.size - self.at)]) or 0
        self.at += count
        return count


_ENDINGS = tuple(sorted(IMAGE_SUFFIXES))
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\\\]")


def walk(folder: Path, name: str) -> tuple[list[str], int]:
    """Every image below a folder, relative and sorted, and the number of other files.

    Links are followed, after everything that is really there; no directory is entered twice, and none above the
    folder, so links in a circle end and each image is found once. Run folders are not entered: what is in them, plots
    for example, was made of the images.
    """
    found, others = [], 0
    pending = deque([""])
    seen = {_identity(above) for above in folder.resolve().parents}
    while pending:
        here = pending.popleft()
        try:
            with os.scandir(folder / here) as entries:
                inside = sorted(entries, key=attrgetter("name"))
        except OSError as error:
            if not here:
                raise InputError(f"{name} cannot be read ({error.strerror}): check its permissions") from None
            warnings.warn(f"{name}{printable(here)} cannot be read ({error.strerror}): left out", stacklevel=5)
            continue
        if (identity := _identity(folder / here)) in seen or (here and _is_run(folder / here)):
            continue
        seen.add(identity)
        for entry in inside:
            path = f"{here}/{entry.name}" if here else entry.name
            if _is_folder(entry):
                pending.append(path) if entry.is_symlink() else pending.appendleft(path)
            elif entry.name.lstrip(".").lower().endswith(_ENDINGS):  # nothing but a suffix is a hidden file
                found.append(path)
            else:
                others += 1
    return sorted(found), others


def _is_run(folder: Path) -> bool:
    return all(os.path.isfile(folder / name) for name in ("metrics.jsonl", "config.json"))


def _identity(folder: Path) -> tuple[int, int]:
    try:
        found = os.stat(folder)
    except OSError:  # it went away, or nothing above it may be looked at
        return -1, -1
    return found.st_dev, found.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def printable(name: str) -> str:
    """A file name as one line of UTF-8, one to one: controls, bytes that are no UTF-8 and backslashes are escaped."""
    return _UNWRITABLE.sub(_escape, name)


def _escape(found: re.Match[str]) -> str:
    code = ord(char := found.group())
    if char in "\\\n\r\t":
        return {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}[char]
    if 0xDC80 <= code <= 0xDCFF:  # how Python carries a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"
