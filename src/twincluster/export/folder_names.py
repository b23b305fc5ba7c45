"""Names for folders and files: what people call clusters, as every file system takes it, and no name twice."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping

LONGEST_FOLDER = 120  # bytes; encrypted file systems take 143
LONGEST_FILE = 255  # bytes
JUNK_FOLDER, UNREADABLE_FOLDER = "_junk", "_unreadable"

_FORBIDDEN = re.compile('[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069/\\\\:*?"<>|%]')
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


def folder_names(clusters: Mapping[int, str]) -> dict[int, str]:
    """A folder for each cluster; those that would share one, if only on a system that takes a for A, add their id."""
    safe = {cluster: safe_name(name) for cluster, name in clusters.items()}
    wanted = Counter(name.casefold() for name in safe.values())
    names, used = {}, {JUNK_FOLDER, UNREADABLE_FOLDER}
    for cluster, name in safe.items():
        candidate, tries = name, 0
        while candidate.casefold() in used or (not tries and wanted[name.casefold()] > 1):
            candidate = _cut(name, LONGEST_FOLDER - 20) + f" ({cluster})" + "'" * tries
            tries += 1
        used.add(candidate.casefold())
        names[cluster] = candidate
    return names


def safe_name(name: str, longest: int = LONGEST_FOLDER) -> str:
    """A name with all that has a meaning to a file system or a terminal written as %XX."""
    safe = _FORBIDDEN.sub(lambda found: _escaped(found.group()), name)
    if safe[:1] in (".", "~", "-", " "):  # hidden, a home, an option, lost
        safe = _escaped(safe[0]) + safe[1:]
    safe = _cut(safe, longest)
    if safe[-1:] in (".", " "):  # which Windows drops
        safe = _cut(safe[:-1], longest - 3) + _escaped(safe[-1])
    return f"_{safe}" if _RESERVED.fullmatch(safe) or not safe else safe


def numbered(name: str, number: int) -> str:
    """`a.jpg` as `a-2.jpg`, within what file systems take."""
    stem, suffix = os.path.splitext(name)
    ending = f"-{number}{suffix}"
    return os.fsdecode(os.fsencode(stem)[: LONGEST_FILE - len(os.fsencode(ending))]) + ending


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())


def _cut(name: str, longest: int) -> str:
    return name.encode()[: max(0, longest)].decode(errors="ignore")
