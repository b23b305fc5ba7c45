"""Search a folder for images, and write file names so that any of them fits on one line of a text file."""

import os
import re
import warnings
from collections import deque
from operator import attrgetter
from pathlib import Path

from twincluster.errors import InputError
from twincluster.images.decode import IMAGE_SUFFIXES

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
