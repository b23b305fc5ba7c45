"""Move many files as one operation: a journal is written first, so that the move can be finished or undone.

If a file cannot be moved, all others are moved back. After a kill, the same command finishes the move from the journal.
"""

from __future__ import annotations

import errno
import filecmp
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, BinaryIO

from twincluster.core import InputError, counted, naming, open_partial, read_json, sweep_partials, write_atomically
from twincluster.data import printable

JOURNAL = "twincluster-moves.json"
PARTIAL = ".twincluster"  # name of a partial copy; short, because the target's own name may fill the limit
Pair = tuple[Path, Path]  # from, to


def move_all(pairs: Sequence[Pair], out: Path) -> None:
    """Move all pairs, or none if one of them fails."""
    if not pairs:
        return
    out.mkdir(parents=True, exist_ok=True)
    before = read_journal(out)
    sweep(out, [*before, *pairs])
    _write(out, [*before, *pairs], moving=len(pairs))
    done: list[Pair] = []
    try:
        for source, target in pairs:
            target.parent.mkdir(parents=True, exist_ok=True)
            done.append((source, target))
            move_one(source, target)
    except OSError as error:
        for source, target in reversed(done):
            _put_back(source, target)
        _write(out, before)
        _remove_empty({target.parent for _, target in done})
        why = f"{printable(str(done[-1][0]))} cannot be moved ({str(error.strerror).lower()})"
        raise InputError(f"{why}: all files were moved back") from error
    _write(out, [*before, *pairs])


def finish(out: Path) -> bool:
    """Complete an interrupted move. Return True if there was one."""
    if not (moving := _moving(out)):
        return False
    pairs = read_journal(out)
    sweep(out, pairs)
    for source, target in pairs[-moving:]:  # a new file may have taken the place of an earlier one
        if os.path.lexists(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            _complete(source, target)
    _write(out, pairs)
    return True


def undo(out: Path) -> str:
    """Move everything back that the folder's journal lists. Return a summary."""
    if not (out / JOURNAL).is_file():
        raise InputError(f"{out} has no {JOURNAL}: no files were moved there")
    pairs = read_journal(out)
    sweep(out, pairs)
    both = [pair for pair in pairs if os.path.lexists(pair[0]) and os.path.lexists(pair[1])]
    if taken := [source for source, target in both if not _is_copy(source, target)]:
        raise InputError(f"{printable(str(taken[0]))} exists again: move it away first; nothing was changed")
    back = len({source for source, target in reversed(pairs) if _put_back(source, target)})
    stayed = [pair for pair in pairs if os.path.lexists(pair[1])]  # the older of two files from the same place
    _write(out, stayed)
    _remove_empty({target.parent for _, target in pairs})
    summary = f"moved {counted(back, 'image')} back"
    if stayed:
        taken_by = printable(str(stayed[0][0]))
        summary += f"; {len(stayed):,} not, because their place is taken: move {taken_by} away and repeat --undo"
    gone = len(pairs) - back - len(stayed)
    return summary + (f"; no longer in {out}: {gone:,}" if gone else "")


def moved_from(out: Path) -> set[str]:
    """Return the original paths of the images that were moved into a folder."""
    return {str(source) for source, _ in read_journal(out)}


def read_journal(out: Path) -> list[Pair]:
    content = _content(out)
    try:
        if any(os.path.isabs(target) or ".." in Path(target).parts for _, target in content["pairs"]):
            raise ValueError("the journal of a shared folder must not name files outside it")
        if any("\0" in source + target for source, target in content["pairs"]):
            raise ValueError("a path must not contain a zero byte")
        return [(Path(source), out / target) for source, target in content["pairs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{out / JOURNAL} is damaged: move it away to continue without it") from error


def move_one(source: Path, target: Path) -> None:
    """Move a file without overwriting. At every moment the old or the new one is complete."""
    try:
        rename_new(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with source.open("rb") as file:
            write_new(file, target, like=source)
        source.unlink()


def write_new(file: BinaryIO, target: Path, like: Path | None = None) -> None:
    """Copy an open file to a new path, with the times and permissions of `like`.

    The target appears complete or not at all, and never replaces another file.
    """
    partial, to = open_partial(target.with_name(PARTIAL))
    try:
        with naming(target), closing(to):  # closing it writes what is left
            shutil.copyfileobj(file, to)
            to.flush()
            os.fsync(to.fileno())
            if os.name == "nt":
                to.close()  # Windows cannot rename an open file
            if like is not None:
                shutil.copystat(like, partial)
            rename_new(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def sweep(out: Path, pairs: Iterable[Pair] = ()) -> None:
    """Remove partial copies of killed processes, in `out` and at both ends of the moves."""
    folders = {path.parent for pair in pairs for path in pair}
    with suppress(OSError):  # the folder may not exist
        folders |= {path for path in out.iterdir() if path.is_dir()}
    for folder in folders:
        sweep_partials(folder / PARTIAL)


def rename_new(source: Path, target: Path) -> None:
    """Rename a file; fail if the target exists."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.EXDEV, errno.ENOENT, errno.EACCES, errno.ENOSPC):
            raise
        if os.path.lexists(target):  # the file system has no hard links
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        os.rename(source, target)
        return
    os.unlink(source)


def _complete(source: Path, target: Path) -> None:
    if not os.path.lexists(target):
        move_one(source, target)
    elif _is_copy(source, target):  # killed between copy and delete
        source.unlink()
    else:
        raise InputError(
            f"{printable(str(source))} cannot be moved: {printable(str(target))} is another file; move it away, or use "
            "--undo"
        )


def _put_back(source: Path, target: Path) -> bool:
    if not os.path.lexists(target):
        return os.path.lexists(source)
    if os.path.lexists(source):
        if _is_copy(source, target):
            target.unlink()
            return True
        return False
    source.parent.mkdir(parents=True, exist_ok=True)
    move_one(target, source)
    return True


def _is_copy(source: Path, target: Path) -> bool:
    try:
        return os.path.samefile(source, target) or filecmp.cmp(source, target, shallow=False)
    except OSError:
        return False


def _remove_empty(folders: set[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # not empty
            folder.rmdir()


def _moving(out: Path) -> int:
    """Return how many pairs at the end of the journal belong to an unfinished move."""
    count = _content(out).get("moving")
    return max(0, count) if isinstance(count, int) else 0


def _content(out: Path) -> dict[str, Any]:
    path = out / JOURNAL
    if not path.is_file():
        return {"pairs": []}
    try:
        content = read_json(path)
    except ValueError as error:
        raise InputError(f"{path} is damaged: move it away to continue without it") from error
    return content if isinstance(content, dict) else {}


def _write(out: Path, pairs: Sequence[Pair], *, moving: int = 0) -> None:
    """Write the journal. Targets are relative to the folder, so that it can be moved; invalid UTF-8 is escaped."""
    if not pairs:
        (out / JOURNAL).unlink(missing_ok=True)
        return
    listed = [[str(source), os.path.relpath(target, out)] for source, target in pairs]
    write_atomically(out / JOURNAL, json.dumps({"moving": moving, "pairs": listed}) + "\n")
