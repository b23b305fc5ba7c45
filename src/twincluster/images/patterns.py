"""Names for many files at once, as in a shell: s-{000..099}.tar, {train,val}/s-*.tar."""

import glob
import os
import re
from collections.abc import Iterator
from itertools import islice

from twincluster.errors import InputError
from twincluster.images.folders import printable

MOST_FILES = 1_000_000

_GROUP = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)(?:\.\.([0-9]+))?")


def is_pattern(name: str) -> bool:
    return any(mark in name for mark in "{*?[")


def matching(pattern: str) -> list[str]:
    """The files that a pattern names, in its order, each once: all that braces stand for, and what * and ? find."""
    if os.path.exists(pattern):  # its name may hold any letter
        return [pattern]
    wanted = list(islice(braces(pattern), MOST_FILES + 1))
    if len(wanted) > MOST_FILES:
        raise InputError(f"{printable(pattern)} stands for more than {MOST_FILES:,} files: check its numbers")
    found: dict[str, None] = {}
    for name in wanted:
        names = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else [name]
        if not names:
            raise InputError(f"{printable(name)}: no file has such a name; check the pattern")
        found |= dict.fromkeys(names)
    if missing := [name for name in found if not os.path.exists(name)]:
        more, them = f" and {len(missing) - 1:,} more of {len(found):,} are", "them"
        if len(missing) == 1:
            more, them = f", of {len(found):,}, is", "it"
        raise InputError(
            f"{printable(missing[0])}{more} missing: put {them} there, or change {printable(pattern)} to what is there"
        )
    return list(found)


def braces(pattern: str) -> Iterator[str]:
    """{a,b} as a and b, {08..10} as 08, 09 and 10, {0..10..5} as 0, 5 and 10; other braces stand for themselves."""
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
