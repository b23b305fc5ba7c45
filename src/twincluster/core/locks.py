"""Locks on files and folders. The system releases them when their process ends, however it ends.

A run folder that is being written has a lock file, which names the process that holds it. What a process that was
killed has left is taken over by the next one.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from twincluster.core import InputError

LOCK_FILE = ".twincluster.lock"
Doing = Literal["training", "rows", "undo", "moves"]  # what the holder of a folder writes
QUEUE: tuple[Doing, ...] = ("rows", "undo")  # updates of one run wait for each other
POLL = 0.05  # seconds between two tries
PATIENCE = 2.0  # seconds in which a new holder has written its name, and most undos are done
TRIES = 5  # to make a folder whose parent another process removes, because it is empty
LONGEST_COMMAND = 100  # letters of a command in a message
ANOTHER_BYTE = 1 << 30  # Windows keeps others from reading a locked byte: this one is never written


class HeldError(InputError):
    """Another process writes the folder."""


class Holder(NamedTuple):
    """What a lock file says of its process, once that has written it."""

    pid: int = 0
    command: str = ""
    doing: Doing = "training"


class Hold:
    """A folder that this process alone writes until `release`; also a context manager."""

    def __init__(self, folder: Path, file: BinaryIO | None = None, made: list[Path] | None = None) -> None:
        self.folder = folder
        self._file, self._made = file, made or []  # no file: this thread held the folder already

    def release(self) -> None:
        """Remove the lock file, and those folders made for it that are still empty."""
        if self._file is None:
            return
        _threads.pop(_key(self.folder), None)
        if os.name == "nt":
            self._file.close()  # it removes no open file
        with suppress(OSError):
            (self.folder / LOCK_FILE).unlink()  # while it is locked: afterwards it may be another process's
        self._file.close()
        self._file = None
        _holds.discard(self)
        _remove_empty(self._made)

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, *_: object) -> None:
        self.release()


_threads: dict[str, int] = {}  # that hold a folder
_holds: set[Hold] = set()


def release_all() -> None:
    """Release what this process holds, before it ends at once."""
    for held in list(_holds):
        held.release()


def hold(folder: Path, doing: Doing, instead: str = "") -> Hold:
    """Take a folder, made where there is none, to write it alone; refuse one that another process writes.

    Updates of one run wait for each other. A thread may take again what it holds. `instead` ends the message.
    """
    return Hold(folder) if _is_mine(folder) else _take(folder, doing, instead, _make(folder, instead))


def hold_new(folder: Path, doing: Doing, instead: str = "") -> Hold:
    """Make and take `folder`, or `folder-2`, `folder-3`, ... where that is there already.

    Two processes never take the same one. A folder with nothing but the lock of a dead process counts as new.
    """
    number, candidate = 1, folder
    while True:
        if not os.path.lexists(candidate) or _is_left_over(candidate):
            made = _make(candidate, instead)
            if candidate in made or _is_left_over(candidate):
                with suppress(HeldError):
                    return _take(candidate, doing, instead, made)
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")


def refuse_held(folder: Path, instead: str = "", patience: float = PATIENCE) -> None:
    """Refuse a folder that another process trains into; wait a moment for one that takes an update back.

    An update that adds rows disturbs nobody: it is left alone.
    """
    end = time.monotonic() + patience
    while (holder := _holder(folder)) and holder.doing != "rows" and not _is_mine(folder):
        if (holder.pid and holder.doing != "undo") or time.monotonic() >= end:
            raise _refused(folder, holder, instead)
        time.sleep(POLL)


def settle(path: Path) -> None:
    """Wait for the process that holds a file, if there is one."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        lock(file.fileno())


def lock(descriptor: int) -> None:
    """Wait until this process alone holds an open file; closing it, or dying, lets the next one have it."""
    with suppress(ImportError, OSError):  # where there are no locks, do without
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _take(folder: Path, doing: Doing, instead: str, made: list[Path]) -> Hold:
    try:
        while not (file := _locked(folder, instead)):
            made = made or _wait(folder, doing, instead)
        _threads[_key(folder)] = threading.get_ident()
        with suppress(OSError):  # on a full disk the holder has no name
            file.truncate(0)
            file.write(json.dumps(Holder(os.getpid(), _command(), doing)._asdict()).encode())
        _holds.add(taken := Hold(folder, file, made))
        return taken
    except BaseException:
        _remove_empty(made)
        raise


def _wait(folder: Path, doing: Doing, instead: str) -> list[Path]:
    """Wait until nobody holds a folder, or refuse it; make it again where its holder has removed it."""
    end = time.monotonic() + PATIENCE
    while holder := _holder(folder):
        if holder.pid and holder.doing in QUEUE and doing in QUEUE:
            end = time.monotonic() + PATIENCE
        elif holder.pid or time.monotonic() > end:
            raise _refused(folder, holder, instead)
        time.sleep(POLL)
    return _make(folder, instead)


def _locked(folder: Path, instead: str) -> BinaryIO | None:
    """The lock file, locked by this process; None where another process holds it."""
    path = folder / LOCK_FILE
    try:
        file = open(path, "a+b", buffering=0)  # noqa: SIM115  closed by Hold
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unwritable(folder, error, instead) from error
    with suppress(OSError):
        # another process may have removed it before it was locked
        if _try_lock(file) and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    file.close()
    return None


def _holder(folder: Path) -> Holder | None:
    """The process that holds a folder; None where none does."""
    try:
        with open(folder / LOCK_FILE, "rb") as file:
            if _try_lock(file, shared=True):
                return None
            content = json.loads(file.read(10_000))
            return Holder(int(content["pid"]), str(content["command"]), content["doing"])
    except OSError:
        return None
    except (ValueError, TypeError, KeyError):
        return Holder()


def _try_lock(file: BinaryIO, *, shared: bool = False) -> bool:
    """Whether no other process holds the file. Where there are no locks, none does."""
    try:
        import fcntl
    except ImportError:
        return _try_lock_on_windows(file)
    try:
        fcntl.flock(file.fileno(), (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True


def _try_lock_on_windows(file: BinaryIO) -> bool:
    import msvcrt

    file.seek(ANOTHER_BYTE)
    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return False
    finally:
        file.seek(0)
    return True


def _make(folder: Path, instead: str) -> list[Path]:
    """Make a folder and its parents; return those that were made, the innermost first."""
    for left in reversed(range(TRIES)):
        missing = [place for place in (folder, *folder.parents) if not os.path.isdir(place)]
        made: list[Path] = []
        try:
            for place in reversed(missing):
                with suppress(FileExistsError):
                    place.mkdir()
                    made.insert(0, place)
            return made
        except OSError as error:
            if not left or not isinstance(error, FileNotFoundError):
                raise _unwritable(folder, error, instead) from error
    raise AssertionError("unreachable")


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):  # which is how a folder that is not empty says so
        for folder in folders:
            folder.rmdir()


def _is_left_over(folder: Path) -> bool:
    try:
        return os.listdir(folder) == [LOCK_FILE]
    except OSError:
        return False


def _unwritable(folder: Path, error: OSError, instead: str) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error
    reason = str(error.strerror or error).lower()
    return InputError(f"{folder} cannot be made or written to ({reason}): {instead or 'check its permissions'}")


def _refused(folder: Path, holder: Holder, instead: str) -> HeldError:
    which = f"process {holder.pid} ({holder.command})" if holder.pid else "another process"
    return HeldError(f"{folder} is being written by {which}: wait until it ends{instead and f', or {instead}'}")


def _command() -> str:
    """What started this process, short, and printable wherever it is shown."""
    program, *words = sys.argv or [""]
    name = os.path.basename(program)
    name = {"__main__.py": "twincluster", "-c": "python", "": "python"}.get(name, name)
    text = shlex.join([name, *words])
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= LONGEST_COMMAND else f"{text[: LONGEST_COMMAND - 3]}..."


def _is_mine(folder: Path) -> bool:
    return _threads.get(_key(folder)) == threading.get_ident()


def _key(folder: Path) -> str:
    return os.path.realpath(folder)
