"""What can be decoded: a file, an image that lies inside an archive, or bytes that are in memory already.

An image in an archive is read where it lies; nothing is ever unpacked, and no name inside an archive is used as a path.
"""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple, cast

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
