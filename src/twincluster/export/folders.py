"""One folder per cluster, with links to the images, copies of them, or the images themselves.

First everything is planned, then it is done; no file is ever overwritten, and doing it twice changes nothing.

Names for folders and files: what people call clusters, as every file system takes it, and no name twice.
"""

from __future__ import annotations

import errno
import filecmp
import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image

from twincluster.core import InputError, check_writable, counted, explained
from twincluster.data import Member, open_input, printable
from twincluster.export import moves
from twincluster.export.tables import guesses
from twincluster.run_images import RunImages, is_there
from twincluster.runs import JUNK_STATUS

Mode = Literal["symlink", "copy", "move"]
# what a memory stick says to links, or a share, or Windows to who may not make any
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
VERBS: dict[Mode, tuple[str, str]] = {
    "symlink": ("would link", "linked"), "copy": ("would copy", "copied"), "move": ("would move", "moved"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Picture:
    """An image of an array, to be written as a file."""

    array: np.ndarray
    row: int
    suffix: str = ".png"

    def png(self) -> bytes:
        pixels, written = self.array[self.row], io.BytesIO()
        grey = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
        Image.fromarray(np.ascontiguousarray(grey)).save(written, "PNG")
        return written.getvalue()


Source = Path | Member | Picture


@dataclass(frozen=True)
class Transfer:
    source: Source
    target: Path


@dataclass
class Plan:
    """What is to be done, and what is to be said of it."""

    mode: Mode
    out: Path
    transfers: list[Transfer] = field(default_factory=list)
    sizes: Counter[str] = field(default_factory=Counter)  # images in each folder
    there: int = 0  # that need nothing done
    renamed: int = 0  # because their name is taken
    left_out: int = 0  # unreadable ones that are gone, rows of other arrays
    remark: str = ""

    def describe(self, done: bool) -> str:
        verb = VERBS[self.mode][done]
        count, folders = len(self.transfers), len(self.sizes)
        lines = [f"{verb} {counted(count, 'image')} into {counted(folders, 'folder')} of {self.out}"]
        lines += [f"{size:>9,}  {folder}" for folder, size in sorted(self.sizes.items())]
        if self.there:
            lines.append(f"there already: {self.there:,}")
        if self.renamed:
            lines.append(f"with a number, because a file of that name is there: {self.renamed:,}")
        if self.left_out:
            lines.append(f"left out, because they have no file: {self.left_out:,}")
        return "\n".join(lines) + self.remark


def sort_into_folders(inputs: RunImages, out: Path, mode: Mode = "symlink", *, dry_run: bool = False) -> str:
    """Plan it and, unless it is a dry run, do it."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: name a folder to sort the images into")
    if not dry_run:
        check_writable(out)
    unfinished = mode == "move" and not dry_run and moves.finish(out)
    plan = make_plan(inputs, out, mode)
    if dry_run:
        return plan.describe(done=False) + "\nnothing was done: leave out --dry-run to do it"
    if mode == "move":
        with _told_how_to_go_on():
            moves.move_all([(Path(str(transfer.source)), transfer.target) for transfer in plan.transfers], out)
    else:
        moves.sweep(out)
        for transfer in plan.transfers:
            transfer.target.parent.mkdir(parents=True, exist_ok=True)
            _place(transfer, mode)
    before = "an earlier move was finished first\n" if unfinished else ""
    after = "\nthe same command with --undo moves them back" if mode == "move" else ""
    return before + plan.describe(done=True) + after


@contextmanager
def _told_how_to_go_on() -> Iterator[None]:
    with explained(lambda: "the same command finishes the move, and with --undo it is taken back"):
        yield


def make_plan(inputs: RunImages, out: Path, mode: Mode) -> Plan:
    assignments, state, _ = inputs.edited()
    plan = Plan(mode, out, remark=guesses(state.guessed))
    sources = _sources(inputs, out, mode, plan)
    folders = folder_names(state.names)
    names = _Names()
    seen: set[tuple[str, Source]] = set()
    for row, source in sorted(sources.items()):
        status, cluster = assignments.status[row], int(assignments.clusters[row])
        folder = JUNK_FOLDER if status == JUNK_STATUS else UNREADABLE_FOLDER if cluster < 0 else folders[cluster]
        if ("" if mode == "move" else folder, source) in seen:  # a list may name a file twice
            continue
        seen.add(("" if mode == "move" else folder, source))
        plan.sizes[folder] += 1
        wanted = _file_name(source, assignments.paths[row])
        target, is_there_already = names.free(out / folder, wanted, source, mode)
        plan.there += is_there_already
        if not is_there_already:
            plan.renamed += target.name != wanted
            plan.transfers.append(Transfer(source, target))
    return plan


def _sources(inputs: RunImages, out: Path, mode: Mode, plan: Plan) -> dict[int, Source]:
    """What goes into a folder, by row; InputError where images have moved."""
    assignments = inputs.assignments
    if not inputs.data.files:
        return _pictures(inputs, mode, plan)
    files = inputs.files
    _refuse_inside(inputs, out, mode)
    gone_before = moves.moved_from(out) if mode == "move" else set()
    found: dict[int, Source] = {}
    missing = []
    for row, file in enumerate(files):
        if str(file) in gone_before and not is_there(file):
            plan.there += 1
        elif assignments.clusters[row] < 0 and not _can_be_taken(file):
            plan.left_out += 1
        elif is_there(file):
            found[row] = file
        else:
            missing.append(row)
    if missing:
        first = printable(str(files[missing[0]]))
        raise InputError(
            f"{len(missing):,} of {len(files):,} images are not where they were (the first is {first}): put them back; "
            "nothing was done"
        )
    if any(isinstance(file, Member) for file in found.values()) and mode != "copy":
        raise InputError(f"images inside an archive cannot be {VERBS[mode][1]}: choose --mode copy")
    if mode == "move" and (links := [file for file in found.values() if isinstance(file, Path) and file.is_symlink()]):
        raise InputError(f"{printable(str(links[0]))} is a link, which may break when it is moved: choose --mode copy")
    return found


def _pictures(inputs: RunImages, mode: Mode, plan: Plan) -> dict[int, Source]:
    """PNG files of the images of an array."""
    if mode != "copy":
        raise InputError(f"{inputs.data.source} is an array, which has no files: --mode copy writes PNG files")
    listing = inputs.listing
    if listing is None or listing.array is None or len(listing.array) < inputs.data.inputs:
        raise InputError(f"{inputs.data.source} is not where it was, or not as it was: put it back")
    if listing.is_rows:
        raise InputError(f"{inputs.data.source} holds rows of numbers, not images: choose --to csv or parquet")
    count = inputs.data.inputs
    plan.left_out += len(inputs.assignments.paths) - count  # of other arrays, which update brought
    return {row: Picture(listing.array, row) for row in range(count)}


def _can_be_taken(file: Path | Member) -> bool:
    """Whether what could not be decoded is a file all the same: no pipe, nothing in an archive, nothing forbidden."""
    return isinstance(file, Path) and file.is_file() and os.access(file, os.R_OK)


def _refuse_inside(inputs: RunImages, out: Path, mode: Mode) -> None:
    location = inputs.data.location
    if mode == "move" or not location or not os.path.isdir(location):
        return
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(location)):
        raise InputError(f"{out} lies among the images themselves, which would be found twice: choose another folder")


def _file_name(source: Source, path: str) -> str:
    """The name of a file; an image that has no file of its own gets one from the path of its row."""
    if isinstance(source, Path):
        return source.name
    name = safe_name(path.rpartition("/")[2], longest=200)
    return name if name.lower().endswith(source.suffix.lower()) else name + source.suffix


class _Names:
    """Hands out file names, each once in a folder."""

    def __init__(self) -> None:
        self.used: set[tuple[Path, str]] = set()
        self.next: Counter[tuple[Path, str]] = Counter()

    def free(self, folder: Path, wanted: str, source: Source, mode: Mode) -> tuple[Path, bool]:
        """A target, and whether the very file is there already."""
        while True:
            number = self.next[folder, wanted] = self.next[folder, wanted] + 1
            name = wanted if number == 1 else numbered(wanted, number)
            if (folder, name.casefold()) in self.used:
                continue
            target = folder / name
            there = os.path.lexists(target)
            if there and not _same(target, source, mode):
                continue
            self.used.add((folder, name.casefold()))
            return target, there


def _same(target: Path, source: Source, mode: Mode) -> bool:
    if mode == "symlink":
        return target.is_symlink() and os.readlink(target) == str(source)
    if mode == "move" or target.is_symlink() or not target.is_file():
        return False
    if isinstance(source, Path):
        return filecmp.cmp(source, target, shallow=False)
    with _opened(source) as file:
        return bool(target.read_bytes() == file.read())


def _place(transfer: Transfer, mode: Mode) -> None:
    if mode == "symlink":
        try:
            os.symlink(str(transfer.source), transfer.target)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise InputError(
                f"{transfer.target.parent} takes no links ({error.strerror}): choose --mode copy"
            ) from None
        return
    with _opened(transfer.source) as file:
        moves.write_new(file, transfer.target, like=transfer.source if isinstance(transfer.source, Path) else None)


def _opened(source: Source) -> AbstractContextManager[BinaryIO]:
    if isinstance(source, Picture):
        return io.BytesIO(source.png())
    return open_input(source) if isinstance(source, Member) else source.open("rb")


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
