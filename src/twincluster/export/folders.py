"""Sort images into one folder per cluster: as links, as copies, or by moving them.

Everything is planned before anything is written. No file is overwritten, and a second run changes nothing. Folder and
file names are valid on every file system and unique.
"""

from __future__ import annotations

import errno
import filecmp
import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from twincluster.runs import JUNK_STATUS, State, levels_of

Mode = Literal["symlink", "copy", "move"]
# errors of file systems without symbolic links, and of Windows without the right to create them
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
VERBS: dict[Mode, tuple[str, str]] = {
    "symlink": ("would link", "linked"), "copy": ("would copy", "copied"), "move": ("would move", "moved"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Picture:
    """An image of an array, to be written as a PNG file."""

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
    """The files to write, and the figures of the summary."""

    mode: Mode
    out: Path
    transfers: list[Transfer] = field(default_factory=list)
    sizes: Counter[str] = field(default_factory=Counter)  # images in each folder
    there: int = 0  # in place already
    renamed: int = 0  # numbered because the name is taken
    left_out: int = 0  # missing unreadable files, and rows of other arrays
    remark: str = ""

    def describe(self, done: bool) -> str:
        verb = VERBS[self.mode][done]
        count, folders = len(self.transfers), len(self.sizes)
        lines = [f"{verb} {counted(count, 'image')} into {counted(folders, 'folder')} of {self.out}"]
        lines += [f"{size:>9,}  {folder}" for folder, size in sorted(self.sizes.items())]
        if self.there:
            lines.append(f"already in place: {self.there:,}")
        if self.renamed:
            lines.append(f"renamed, because a file of that name exists: {self.renamed:,}")
        if self.left_out:
            lines.append(f"skipped, because they have no file: {self.left_out:,}")
        return "\n".join(lines) + self.remark


def sort_into_folders(
    inputs: RunImages, out: Path, mode: Mode = "symlink", *, dry_run: bool = False, levels: Sequence[int] = ()
) -> str:
    """Plan the transfers and, unless `dry_run`, carry them out. Return a summary.

    With `levels` of the tree, the folder of a cluster lies in one folder per coarser level and has one per finer level.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: name a folder to sort the images into")
    if not dry_run:
        check_writable(out)
    unfinished = mode == "move" and not dry_run and moves.finish(out)
    plan = make_plan(inputs, out, mode, levels)
    if dry_run:
        return plan.describe(done=False) + "\nthis was a dry run: repeat the command without --dry-run"
    if mode == "move":
        with _hint_how_to_continue():
            moves.move_all([(Path(str(transfer.source)), transfer.target) for transfer in plan.transfers], out)
    else:
        moves.sweep(out)
        for transfer in plan.transfers:
            transfer.target.parent.mkdir(parents=True, exist_ok=True)
            _place(transfer, mode)
    before = "finished an interrupted move first\n" if unfinished else ""
    after = "\nto move them back, repeat the command with --undo" if mode == "move" else ""
    return before + plan.describe(done=True) + after


@contextmanager
def _hint_how_to_continue() -> Iterator[None]:
    with explained(lambda: "repeat the command to finish the move, or add --undo to take it back"):
        yield


def make_plan(inputs: RunImages, out: Path, mode: Mode, levels: Sequence[int] = ()) -> Plan:
    assignments, state, _ = inputs.edited()
    plan = Plan(mode, out, remark=guesses(state.guessed))
    sources = _sources(inputs, out, mode, plan)
    folders, above, below = folder_names(state.names), *_around(inputs, state, levels)
    names = _Names()
    seen: set[tuple[str, Source]] = set()
    for row, source in sorted(sources.items()):
        status, cluster = assignments.status[row], int(assignments.clusters[row])
        folder = JUNK_FOLDER if status == JUNK_STATUS else UNREADABLE_FOLDER if cluster < 0 else folders[cluster]
        if cluster >= 0 and levels:
            folder = "/".join(dict.fromkeys([*(one[row] for one in above), folder, *(one[row] for one in below)]))
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


def _around(inputs: RunImages, state: State, counts: Sequence[int]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the folder of each row on the levels above the clusters, and below them."""
    levels = levels_of(inputs.tree()[0], state, counts) if counts else []
    found = [(level.count <= len(state.names), folder_names(level.names) | {-1: ""}, level.keys) for level in levels]
    above, below = (
        [[names[key] for key in keys.tolist()] for is_above, names, keys in found if is_above is wanted]
        for wanted in (True, False)
    )
    return above, below


def _sources(inputs: RunImages, out: Path, mode: Mode, plan: Plan) -> dict[int, Source]:
    """Return the source of each row that goes into a folder. Raise InputError if images have moved."""
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
            f"{len(missing):,} of {len(files):,} images are missing (the first is {first}): put them back; nothing was "
            "changed"
        )
    if any(isinstance(file, Member) for file in found.values()) and mode != "copy":
        raise InputError(f"images inside an archive cannot be {VERBS[mode][1]}: choose --mode copy")
    if mode == "move" and (links := [file for file in found.values() if isinstance(file, Path) and file.is_symlink()]):
        raise InputError(f"{printable(str(links[0]))} is a link, and moving could break it: choose --mode copy")
    return found


def _pictures(inputs: RunImages, mode: Mode, plan: Plan) -> dict[int, Source]:
    """Return the images of an array, to be written as PNG files."""
    if mode != "copy":
        raise InputError(f"{inputs.data.source} is an array, not files: choose --mode copy to write PNG files")
    listing = inputs.listing
    if listing is None or listing.array is None or len(listing.array) < inputs.data.inputs:
        raise InputError(f"{inputs.data.source} is missing or has changed since training: put it back")
    if listing.is_rows:
        raise InputError(f"{inputs.data.source} holds rows of numbers, not images: choose --to csv or parquet")
    count = inputs.data.inputs
    plan.left_out += len(inputs.assignments.paths) - count  # from other arrays, added by `update`
    return {row: Picture(listing.array, row) for row in range(count)}


def _can_be_taken(file: Path | Member) -> bool:
    """Return True if an input that could not be decoded is still a readable file outside an archive."""
    return isinstance(file, Path) and file.is_file() and os.access(file, os.R_OK)


def _refuse_inside(inputs: RunImages, out: Path, mode: Mode) -> None:
    location = inputs.data.location
    if mode == "move" or not location or not os.path.isdir(location):
        return
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(location)):
        raise InputError(
            f"{out} is inside the folder of the images, so `fit` would find them twice: choose another folder"
        )


def _file_name(source: Source, path: str) -> str:
    """Return the file name of a source. Images without a file get one from the path of their row."""
    if isinstance(source, Path):
        return source.name
    name = safe_name(path.rpartition("/")[2], longest=200)
    return name if name.lower().endswith(source.suffix.lower()) else name + source.suffix


class _Names:
    """Target names, each used once per folder."""

    def __init__(self) -> None:
        self.used: set[tuple[Path, str]] = set()
        self.next: Counter[tuple[Path, str]] = Counter()

    def free(self, folder: Path, wanted: str, source: Source, mode: Mode) -> tuple[Path, bool]:
        """Return a target, and whether it is this very file already."""
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
                f"{transfer.target.parent} does not support links ({error.strerror}): choose --mode copy"
            ) from None
        return
    with _opened(transfer.source) as file:
        moves.write_new(file, transfer.target, like=transfer.source if isinstance(transfer.source, Path) else None)


def _opened(source: Source) -> AbstractContextManager[BinaryIO]:
    if isinstance(source, Picture):
        return io.BytesIO(source.png())
    return open_input(source) if isinstance(source, Member) else source.open("rb")


LONGEST_FOLDER = 120  # bytes; encrypted file systems allow 143
LONGEST_FILE = 255  # bytes
JUNK_FOLDER, UNREADABLE_FOLDER = "_junk", "_unreadable"

_FORBIDDEN = re.compile('[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069/\\\\:*?"<>|%]')
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


def folder_names(clusters: Mapping[int, str]) -> dict[int, str]:
    """Return a folder name per cluster. Names that are equal, ignoring case, get the cluster id."""
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
    """Return a name with all characters that file systems or terminals interpret written as %XX."""
    safe = _FORBIDDEN.sub(lambda match: _escaped(match.group()), name)
    if safe[:1] in (".", "~", "-", " "):  # hidden file, home folder, option, stripped
        safe = _escaped(safe[0]) + safe[1:]
    safe = _cut(safe, longest)
    if safe[-1:] in (".", " "):  # Windows drops them
        safe = _cut(safe[:-1], longest - 3) + _escaped(safe[-1])
    return f"_{safe}" if _RESERVED.fullmatch(safe) or not safe else safe


def numbered(name: str, number: int) -> str:
    """Return `a.jpg` as `a-2.jpg`, within the length that file systems allow."""
    stem, suffix = os.path.splitext(name)
    ending = f"-{number}{suffix}"
    return os.fsdecode(os.fsencode(stem)[: LONGEST_FILE - len(os.fsencode(ending))]) + ending


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())


def _cut(name: str, longest: int) -> str:
    return name.encode()[: max(0, longest)].decode(errors="ignore")
