"""Locks on files and folders, which the system releases when their process ends, even if it is killed.

A run folder that is being written contains a lock file, which names the process that holds it. The next process takes
over the lock file of a killed one.
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
Doing = Literal["training", "rows", "undo", "moves", "encoding"]  # what the process that holds a folder writes
QUEUE: tuple[Doing, ...] = ("rows", "undo")  # updates of one run wait for each other
POLL = 0.05  # seconds between two tries
PATIENCE = 2.0  # seconds to wait for a new holder to write its name, or for an undo to end
TRIES = 5  # to create a folder while another process removes its empty parent
LONGEST_COMMAND = 100  # letters of a command in a message
ANOTHER_BYTE = 1 << 30  # a byte beyond the content: on Windows, locked bytes cannot be read


class HeldError(InputError):
    """Another process is writing the folder."""


class Holder(NamedTuple):
    """The content of a lock file; the defaults hold until its process has written it."""

    pid: int = 0
    command: str = ""
    doing: Doing = "training"


class Hold:
    """A folder that only this process writes, until `release`; also a context manager."""

    def __init__(self, folder: Path, file: BinaryIO | None = None, made: list[Path] | None = None) -> None:
        self.folder = folder
        self._file, self._made = file, made or []  # no file: this thread already holds the folder

    def release(self) -> None:
        """Remove the lock file, and the folders created for it that are still empty."""
        if self._file is None:
            return
        _threads.pop(_key(self.folder), None)
        if os.name == "nt":
            self._file.close()  # Windows cannot remove an open file
        with suppress(OSError):
            (self.folder / LOCK_FILE).unlink()  # while locked: after that it may belong to another process
        self._file.close()
        self._file = None
        _holds.discard(self)
        _remove_empty(self._made)

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, *_: object) -> None:
        self.release()


_threads: dict[str, int] = {}  # thread that holds each folder
_holds: set[Hold] = set()


def release_all() -> None:
    """Release all folders that this process holds; call before os._exit."""
    for held in list(_holds):
        held.release()


def hold(folder: Path, doing: Doing, instead: str = "") -> Hold:
    """Lock a folder for writing, and create it if needed. Raise HeldError if another process is writing it.

    Updates of one run wait for each other. A thread may lock a folder again that it holds. `instead` ends the message.
    """
    refuse_zero(folder)
    return Hold(folder) if _is_mine(folder) else _take(folder, doing, instead, _make(folder, instead))


def hold_new(folder: Path, doing: Doing, instead: str = "") -> Hold:
    """Create and lock `folder`, or `folder-2`, `folder-3`, ... if it exists.

    Two processes never get the same folder. A folder that contains only the lock of a dead process counts as new.
    """
    refuse_zero(folder)
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
    """Raise HeldError if another process trains into a folder; first wait briefly if it is undoing an update.

    A process that adds rows does not conflict and is ignored.
    """
    end = time.monotonic() + patience
    while (holder := _holder(folder)) and holder.doing != "rows" and not _is_mine(folder):
        if (holder.pid and holder.doing != "undo") or time.monotonic() >= end:
            raise _refused(folder, holder, instead)
        time.sleep(POLL)


def refuse_zero(path: Path | str) -> None:
    """Raise InputError for a path with a zero byte, which no system accepts."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r} contains a zero byte, which is not allowed in a path: remove it")


def settle(path: Path) -> None:
    """Wait until no process holds a file."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        lock(file.fileno())


def lock(descriptor: int) -> None:
    """Wait for an exclusive lock on an open file. Closing the file, or the end of the process, releases it."""
    with suppress(ImportError, OSError):  # some file systems have no locks
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _take(folder: Path, doing: Doing, instead: str, made: list[Path]) -> Hold:
    try:
        while not (file := _locked(folder, instead)):
            made = made or _wait(folder, doing, instead)
        _threads[_key(folder)] = threading.get_ident()
        with suppress(OSError):  # on a full disk the holder stays unnamed
            file.truncate(0)
            file.write(json.dumps(Holder(os.getpid(), _command(), doing)._asdict()).encode())
        _holds.add(taken := Hold(folder, file, made))
        return taken
    except BaseException:
        _remove_empty(made)
        raise


def _wait(folder: Path, doing: Doing, instead: str) -> list[Path]:
    """Wait until a folder is free, or raise HeldError. Create it again if its holder removed it."""
    end = time.monotonic() + PATIENCE
    while holder := _holder(folder):
        if holder.pid and holder.doing in QUEUE and doing in QUEUE:
            end = time.monotonic() + PATIENCE
        elif holder.pid or time.monotonic() > end:
            raise _refused(folder, holder, instead)
        time.sleep(POLL)
    return _make(folder, instead)


def _locked(folder: Path, instead: str) -> BinaryIO | None:
    """Return the lock file, locked by this process; None if another process holds it."""
    path = folder / LOCK_FILE
    try:
        file = open(path, "a+b", buffering=0)  # noqa: SIM115  closed by Hold
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unwritable(folder, error, instead) from error
    with suppress(OSError):
        # another process may have removed the file before this one locked it
        if _try_lock(file) and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    file.close()
    return None


def _holder(folder: Path) -> Holder | None:
    """Return the process that holds a folder, or None."""
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
    """Return True if this process got the lock. File systems without locks always grant it."""
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
    """Create a folder and its parents. Return those that were created, innermost first."""
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
    with suppress(OSError):  # not empty
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
    return InputError(f"{folder} cannot be created or written to ({reason}): {instead or 'check its permissions'}")


def _refused(folder: Path, holder: Holder, instead: str) -> HeldError:
    which = f"process {holder.pid} ({holder.command})" if holder.pid else "another process"
    return HeldError(f"{folder} is being written by {which}: wait until it ends{instead and f', or {instead}'}")


def _command() -> str:
    """Return the command of this process, shortened, with unprintable letters replaced."""
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
