"""Moving many files as if it were one act: a journal is written first, by which a move can be finished or undone.

A failure on the way puts everything back. After a kill the journal says what was meant: the same command finishes it.
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
PARTIAL = ".twincluster"  # name of a copy that is not complete, before its own ending: a long name leaves no room
Pair = tuple[Path, Path]  # from, to


def move_all(pairs: Sequence[Pair], out: Path) -> None:
    """All of them, or, when one cannot be moved, none."""
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
        raise InputError(f"{why}: everything is back where it was") from error
    _write(out, [*before, *pairs])


def finish(out: Path) -> bool:
    """Complete a move that was interrupted; whether there was one."""
    if not (moving := _moving(out)):
        return False
    pairs = read_journal(out)
    sweep(out, pairs)
    for source, target in pairs[-moving:]:  # where one of the others was, there may be another file since
        if os.path.lexists(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            _complete(source, target)
    _write(out, pairs)
    return True


def undo(out: Path) -> str:
    """Move everything back that this folder's journal names."""
    if not (out / JOURNAL).is_file():
        raise InputError(f"{out} has no {JOURNAL}: nothing was moved there")
    pairs = read_journal(out)
    sweep(out, pairs)
    both = [pair for pair in pairs if os.path.lexists(pair[0]) and os.path.lexists(pair[1])]
    if taken := [source for source, target in both if not _is_copy(source, target)]:
        raise InputError(f"{printable(str(taken[0]))} exists again: move it away first; nothing was done")
    back = len({source for source, target in reversed(pairs) if _put_back(source, target)})
    stayed = [pair for pair in pairs if os.path.lexists(pair[1])]  # of two that came from one place, the older
    _write(out, stayed)
    _remove_empty({target.parent for _, target in pairs})
    said = f"moved {counted(back, 'image')} back"
    if stayed:
        taken_by = printable(str(stayed[0][0]))
        said += f"; {len(stayed):,} from a place that is taken again: move {taken_by} away, and repeat it"
    gone = len(pairs) - back - len(stayed)
    return said + (f"; not in {out} any more: {gone:,}" if gone else "")


def moved_from(out: Path) -> set[str]:
    """Where the images that were moved into a folder had been."""
    return {str(source) for source, _ in read_journal(out)}


def read_journal(out: Path) -> list[Pair]:
    content = _content(out)
    try:
        if any(os.path.isabs(target) or ".." in Path(target).parts for _, target in content["pairs"]):
            raise ValueError("a folder that came from elsewhere must not name files outside of it")
        if any("\0" in source + target for source, target in content["pairs"]):
            raise ValueError("no path holds a zero byte")
        return [(Path(source), out / target) for source, target in content["pairs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{out / JOURNAL} is damaged: move it away to do without") from error


def move_one(source: Path, target: Path) -> None:
    """Never over another file, and never without either the old or the new one in place."""
    try:
        rename_new(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with source.open("rb") as file:
            write_new(file, target, like=source)
        source.unlink()


def write_new(file: BinaryIO, target: Path, like: Path | None = None) -> None:
    """A copy of an open file, with the times and rights of `like`. Under its name there is all of it or nothing, and
    never instead of another."""
    partial, to = open_partial(target.with_name(PARTIAL))
    try:
        with naming(target), closing(to):  # closing it writes what is left
            shutil.copyfileobj(file, to)
            to.flush()
            os.fsync(to.fileno())
            if os.name == "nt":
                to.close()  # it renames no open file
            if like is not None:
                shutil.copystat(like, partial)
            rename_new(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def sweep(out: Path, pairs: Iterable[Pair] = ()) -> None:
    """Remove the partial copies that killed processes have left in `out` and at both ends of the moves."""
    folders = {path.parent for pair in pairs for path in pair}
    with suppress(OSError):  # there is no such folder
        folders |= {path for path in out.iterdir() if path.is_dir()}
    for folder in folders:
        sweep_partials(folder / PARTIAL)


def rename_new(source: Path, target: Path) -> None:
    """A rename that fails where there is a file already."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.EXDEV, errno.ENOENT, errno.EACCES, errno.ENOSPC):
            raise
        if os.path.lexists(target):  # no hard links here
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        os.rename(source, target)
        return
    os.unlink(source)


def _complete(source: Path, target: Path) -> None:
    if not os.path.lexists(target):
        move_one(source, target)
    elif _is_copy(source, target):  # the kill came between the two halves of a move
        source.unlink()
    else:
        raise InputError(
            f"{printable(str(source))} cannot be moved on: there is another file at {printable(str(target))}; "
            "move that away, or use --undo"
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
        with suppress(OSError):  # which is how one that is not empty says so
            folder.rmdir()


def _moving(out: Path) -> int:
    """How many pairs, the last of the journal, belong to a move that has not ended."""
    count = _content(out).get("moving")
    return max(0, count) if isinstance(count, int) else 0


def _content(out: Path) -> dict[str, Any]:
    path = out / JOURNAL
    if not path.is_file():
        return {"pairs": []}
    try:
        content = read_json(path)
    except ValueError as error:
        raise InputError(f"{path} is damaged: move it away to do without") from error
    return content if isinstance(content, dict) else {}


def _write(out: Path, pairs: Sequence[Pair], *, moving: int = 0) -> None:
    """Targets relative to the folder, which may be moved as a whole; names that are no UTF-8 survive as escapes."""
    if not pairs:
        (out / JOURNAL).unlink(missing_ok=True)
        return
    listed = [[str(source), os.path.relpath(target, out)] for source, target in pairs]
    write_atomically(out / JOURNAL, json.dumps({"moving": moving, "pairs": listed}) + "\n")
