"""Names for many files at once, as in a shell: s-{000..099}.tar, {train,val}/s-*.tar.

WebDataset shards as a source: .tar archives whose files belong together when their names agree up to the first dot.

Images are decoded from where they lie in the archive; nothing is unpacked.
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
from typing import NamedTuple

import numpy as np

from twincluster.core import InputError
from twincluster.data.files import IMAGE_SUFFIXES, Member, printable
from twincluster.data.labels import Labels, as_labels
from twincluster.data.listing import Listing
from twincluster.data.tar import Packed, index_of

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


LONGEST_FILE = 1 << 20  # bytes of a .cls or .json
LONGEST_LABEL = 256  # letters: what is longer is a text, no label

_SAMPLE = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)", re.DOTALL)  # the key of a sample, and what kind of file this is


def from_shards(pattern: Path) -> Listing:
    """One input per image in the shards that a pattern names, shard after shard, in the order they lie there.

    An image is called SHARD/NAME, where SHARD is the archive's path below the folder that holds all of them. A shard
    that cannot be read to its end has a row too, called SHARD, after those of the images before the damage.
    """
    name = printable(pattern.name)
    shards = [os.path.abspath(shard) for shard in matching(str(pattern))]
    if wrong := [shard for shard in shards if not shard.lower().endswith(".tar") or os.path.isdir(shard)]:
        raise InputError(f"{printable(wrong[0])} is no .tar file: a pattern names shards; for images name their folder")
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
        counted = f"{others} other file" + "s" * (others != 1)
        why = f"{paths[0]}: {files[0].problem}" if files else counted
        raise InputError(f"{name} holds no images ({printable(why)}): name shards with .jpg, .png or the like in them")
    root = Path(os.path.abspath(pattern))
    return Listing(name, tuple(printable(path) for path in paths), files=tuple(files), skipped=others, root=root)


def labels_of_shards(listing: Listing, labels: str) -> Labels | None:
    """Labels that lie beside the images, one per sample; None where `labels` does not ask for such.

    "cls" asks for the text of NAME.cls, "json:FIELD" for a field of NAME.json.
    """
    kind, _, field = labels.partition(":")
    if (kind, bool(field)) not in (("cls", False), ("json", True)):
        return None
    files = [file for file in listing.files or () if isinstance(file, Member)]
    if not files:
        raise InputError(f"labels {printable(labels)} lie in shards, which {listing.name} is not: name other labels")
    found: dict[tuple[Path, int], str] = {}  # by where the image lies
    for shard in dict.fromkeys(file.archive for file in files if not file.problem):
        with suppress(OSError), open(shard, "rb") as opened:
            for start, beside in _beside(index_of(shard)[0], kind):
                opened.seek(beside.start)
                found[shard, start] = _label(opened.read(min(beside.size, LONGEST_FILE)), field)
    texts = [found.get((file.archive, file.start), "") for file in files]
    if not any(texts):
        what = f"field {field} in any .json" if field else "label in any .cls"
        raise InputError(f"{listing.name} has no {printable(what)}: name other labels")
    return as_labels(np.array(texts), len(texts), f"labels {printable(labels)}")


class _Found(NamedTuple):
    images: list[tuple[str, Member]]
    others: int  # files that are no images


def _search(shard: Path, where: str) -> _Found:
    changed = _changed(shard)  # before it is read: what changes later is seen as changed
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
        counted = f"{len(images):,} image" + "s" * (len(images) != 1)
        warnings.warn(f"{printable(where)}: {problem}; {counted} could be found in it", stacklevel=5)
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
    except OSError:  # reading it will say why
        return True


def _renamed(name: str, times: Counter[str]) -> str:
    """A name for a file whose own is taken: an archive may hold several of one name."""
    while times[f"{name}#{times[name]}"]:
        times[name] += 1
    times[other := f"{name}#{times[name]}"] += 1
    return other


def _beside(entries: Sequence[Packed], kind: str) -> Iterator[tuple[int, Packed]]:
    """Where each image begins that has a file of a kind beside it, and that file."""
    parts = [(match[1], match[2].lower(), entry) for entry in entries if (match := _SAMPLE.fullmatch(entry.name))]
    for _, sample in groupby(parts, key=lambda part: part[0]):  # one key may come again, for another sample
        together = list(sample)
        if labels := [entry for _, ending, entry in together if ending == kind and entry.is_file]:
            yield from ((entry.start, labels[0]) for _, _, entry in together)


def _label(content: bytes, field: str) -> str:
    """A label as text, "" where there is none."""
    try:
        found = json.loads(content)[field] if field else content.decode("utf-8", "surrogateescape")
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    label = str(found).strip() if isinstance(found, str | int) else ""
    return label if len(label) <= LONGEST_LABEL else ""
