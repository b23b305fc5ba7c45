"""The cache of decoded images. A kill at any moment loses seconds of work, not the whole cache.

A store has <tag>.npy, the pixels, and <tag>.jsonl, the journal, with one line per row that has been written; a finished
store also has <tag>.json, the status of every file. A store is complete when no line is missing, so an interrupted
build is never taken for a complete one; the next build continues it. The journal has a checksum of each row, and
damaged rows are decoded again. The tag is a hash of every name, size and modification time: after a change, a new store
copies the unchanged rows and decodes the others. The last few old stores are kept, because a run whose files have moved
shows images from its store.

If <tag>.json exists, a start need not read the journal. It is valid while journal and pixels keep their size and
modification time, and a sample of rows matches the journal.

Arrays have checksums of their blocks, so that lost pages or changes by other programs cannot alter results. Comparing a
large array takes as long as reading it, so that is done only if its size or modification time has changed; otherwise a
random sample of blocks is compared at each opening.
"""

import errno
import hashlib
import io
import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from twincluster.core import InputError, OnProgress, lock, uncollected, write_atomically
from twincluster.data.decoding import NEEDED, NO_MEMORY, Frame
from twincluster.data.listing import CHANGED, Entry, Input, digest_of
from twincluster.data.pool import RowFile, decode_many

_LINES_HELD = 64  # rows decoded again, at most, after a build was killed
LOCK = "lock"  # who builds here
_SHORT_JOURNAL = 1 << 20  # bytes, some thousand lines
_KEPT = 2  # finished stores of earlier states of a source, beside the newest
# statuses that another attempt may change
_PASSING = ("missing file", "no permission", NO_MEMORY, "input/output error", CHANGED, *NEEDED.values())


class Row(NamedTuple):
    entry: Entry
    status: str
    digest: str  # of the pixels


class Store:
    """The files of one state of a source, and their content."""

    def __init__(self, folder: Path, entries: list[Entry], side: int, frame: Frame = "crop") -> None:
        self.folder, self.entries, self.side, self.frame = folder, entries, side, frame
        self.tag = short_hash(entries)
        self.pixels, self.journal = folder / f"{self.tag}.npy", folder / f"{self.tag}.jsonl"
        self.outcome = folder / f"{self.tag}.json"
        self.header = npy_header((len(entries), side, side, 3))
        self.row_bytes = side * side * 3
        self.nbytes = len(self.header) + len(entries) * self.row_bytes

    def rows(self) -> dict[int, Row]:
        """Return the rows in the journal; none if there are no pixels."""
        if not self.has_pixels():
            return {}
        expected = dict(enumerate(self.entries))
        return {row: kept for row, kept in read_journal(self.journal).items() if kept.entry == expected.get(row)}

    def has_pixels(self) -> bool:
        return self.pixels.exists() and self.pixels.stat().st_size == self.nbytes

    def has_header(self) -> bool:
        with open(self.pixels, "rb") as file:
            return file.read(len(self.header)) == self.header

    def open_pixels(self) -> np.ndarray:
        """Return the rows of the file, without reading its header."""
        shape = (len(self.entries), self.side, self.side, 3)
        return np.memmap(self.pixels, np.uint8, "r", len(self.header), shape)

    def sound(self, rows: dict[int, Row]) -> dict[int, Row]:
        """Return the rows whose pixels match their checksum."""
        pixels = self.open_pixels() if rows else np.empty(0)
        return {row: kept for row, kept in rows.items() if kept.digest == digest_of(pixels[row])}

    def is_complete(self, rows: dict[int, Row]) -> bool:
        return len(rows) == len(self.entries) and not any(may_pass(kept.status) for kept in rows.values())

    def allocate(self) -> None:
        """Allocate the whole file, so that a full disk is noticed before decoding."""
        self.journal.unlink(missing_ok=True)
        if self.has_pixels():  # truncating would kill processes that read them
            self.write_header()
            return
        try:
            with open(self.pixels, "wb") as file:
                file.write(self.header)
                file.flush()
                _reserve(file.fileno(), self.nbytes)
        except OSError:
            self.pixels.unlink(missing_ok=True)
            raise

    def write_header(self) -> None:
        with open(self.pixels, "r+b") as file:
            file.write(self.header)


def build(
    store: Store, files: Sequence[Input], workers: int, progress: OnProgress, checked: bool = False
) -> dict[int, Row]:
    """Decode the missing and damaged rows of a store. Return its rows. `checked` skips the check for damage."""
    store.folder.mkdir(parents=True, exist_ok=True)
    with only_one(store.folder):
        rows = store.rows()  # again: another process may have built it meanwhile
        if not checked and recorded(store) is None:  # after a power failure pixels may be missing
            rows = store.sound(rows)
        if rows and not store.has_header():
            store.write_header()
        if store.is_complete(rows):
            return rows
        if not rows:
            store.allocate()
        settled = {row for row, kept in rows.items() if not may_pass(kept.status)}
        earlier = _earlier(store)
        with _Writer(store, rows) as writer:
            todo = []
            for row in range(len(files)):
                if row not in settled and not writer.copy(row, earlier):
                    todo.append(row)
            done = len(files) - len(todo)
            progress(done, len(files))
            with closing(decode_many([(row, files[row]) for row in todo], writer.pixels, workers)) as results:
                for row, (status, digest) in zip(todo, results, strict=True):
                    writer.note(row, status, digest)
                    done += 1
                    progress(done, len(files))
        _prune(store)
        return store.rows()


def _reserve(file: int, nbytes: int) -> None:
    try:
        os.posix_fallocate(file, 0, nbytes)
    except (AttributeError, OSError) as error:
        # Some systems and file systems cannot; there, a later write may still find the disk full.
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.truncate(file, nbytes)


def read_journal(path: Path) -> dict[int, Row]:
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    try:
        with uncollected():
            parsed = json.loads(b"[%s]" % b",".join(lines[:-1]))  # at once: a third of the time of line by line
            return {row: Row((name, size, changed), said, seen) for row, name, size, changed, said, seen in parsed}
    except (ValueError, TypeError):
        return _sound_lines(lines)


def _sound_lines(lines: list[bytes]) -> dict[int, Row]:
    """Parse a journal up to where it is cut off."""
    rows: dict[int, Row] = {}
    for line in lines:
        try:
            row, name, size, changed, status, digest = json.loads(line)
            rows[row] = Row((name, size, changed), status, digest)
        except (ValueError, TypeError):
            break
    return rows


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Let only one process build in a folder at a time."""
    with open(folder / LOCK, "ab") as handle:
        lock(handle.fileno())
        yield


def _earlier(store: Store) -> dict[Entry, tuple[np.ndarray, int, Row]]:
    """Return rows of other states of the source, finished or not, by their entry."""
    found: dict[Entry, tuple[np.ndarray, int, Row]] = {}
    for journal in sorted(set(store.folder.glob("*.jsonl")) - {store.journal}):
        with suppress(OSError, ValueError, EOFError):  # its pixels are gone or cut short
            pixels = np.load(journal.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
            for row, kept in read_journal(journal).items():
                if not may_pass(kept.status) and row < len(pixels):
                    found[kept.entry] = pixels, row, kept
    return found


def _prune(store: Store) -> None:
    """Delete other states of the source except the newest finished ones."""
    others = [path for path in store.folder.glob("*.jsonl") if path != store.journal and _is_finished(path)]
    kept = sorted(others, key=lambda path: (path.stat().st_mtime_ns, path.name))[-_KEPT:]
    tags = {store.tag, *(path.stem for path in kept)}
    for path in store.folder.iterdir():
        if path.name != LOCK and path.name.partition(".")[0] not in tags:
            with suppress(OSError):  # Windows cannot delete open files
                path.unlink()


def _is_finished(journal: Path) -> bool:
    """Return True if every row was written, including those of missing files."""
    try:
        count = len(np.load(journal.with_suffix(".npy"), mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return False
    return read_journal(journal).keys() == set(range(count))


class _Writer:
    """Writes journal lines after their pixels, and copies rows of earlier stores."""

    def __init__(self, store: Store, rows: dict[int, Row]) -> None:
        self.store, self.rows = store, rows
        self.lines: list[str] = []
        self.pixels = RowFile(store.pixels, len(store.header), store.side, store.frame)
        clean = store.journal.with_suffix(".part")  # without a torn end and without what proved to be lost
        clean.write_text("".join(_line(row, kept) for row, kept in rows.items()))
        os.replace(clean, store.journal)
        self.journal = open(store.journal, "a")  # noqa: SIM115  closed in __exit__
        self.file = open(store.pixels, "r+b")  # noqa: SIM115  whoever writes, this one is told what the disk refused

    def note(self, row: int, status: str, digest: str) -> None:
        """Record that the pixels of a row have been written."""
        kept = Row(self.store.entries[row], status, digest)
        if kept == self.rows.get(row):
            return
        if len(self.lines) >= _LINES_HELD:
            self._flush()
        self.lines.append(_line(row, kept))

    def copy(self, row: int, earlier: dict[Entry, tuple[np.ndarray, int, Row]]) -> bool:
        """Copy a row from another store. Return False if there is none."""
        if (found := earlier.get(self.store.entries[row])) is None:
            return False
        pixels, there, kept = found
        if digest_of(pixels[there]) != kept.digest:
            return False
        self.note(row, *self.pixels.write(row, pixels[there], kept.status))
        return True

    def _flush(self) -> None:
        self.journal.write("".join(self.lines))
        self.journal.flush()
        self.lines.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            os.fsync(self.file.fileno())  # before the last lines make the store complete
            self._flush()
            os.fsync(self.journal.fileno())
        except OSError:
            if kind is None:
                raise
        finally:
            self.file.close()
            with suppress(OSError):  # a full disk has been reported; closing tries to write once more
                self.journal.close()


def _line(row: int, kept: Row) -> str:
    return json.dumps([row, *kept.entry, kept.status, kept.digest]) + "\n"


def may_pass(status: str) -> bool:
    """Return True if a status is temporary (permissions, a missing file), so that another attempt may succeed."""
    return status.replace("unreadable: ", "") in _PASSING


@contextmanager
def explained(folder: Path, nbytes: int) -> Iterator[None]:
    """Convert disk errors while writing `nbytes` to an InputError that says what to do."""
    try:
        yield
    except BrokenPipeError:  # from printing progress
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            why = f"no room for {nbytes / 1e6 + 1:,.0f} MB of decoded images in {folder}: free some"
        else:
            why = f"decoded images cannot be written to {folder} ({error.strerror}): check its permissions"
        raise InputError(f"{why}, or set TWINCLUSTER_CACHE to another folder") from None


def npy_header(shape: tuple[int, ...]) -> bytes:
    """Return what an .npy file of uint8 begins with."""
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return written.getvalue()


def short_hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


OUTCOME_VERSION = 2  # of these files and of how a fingerprint is made


class Outcome(NamedTuple):
    status: tuple[str, ...]  # of each row, "ok" or why it is black
    fingerprint: str


def recorded(store: Store) -> Outcome | None:
    """Return the content of a complete store; None if only comparing all rows could tell."""
    with suppress(OSError, ValueError, TypeError, KeyError, IndexError):  # not there, or not as it was written
        written = json.loads(store.outcome.read_bytes())
        if written.pop("check") != short_hash(written) or written["state"] != _state(store):
            return None
        if store.has_pixels() and store.has_header() and _is_sample_sound(store):
            status = ["ok"] * len(store.entries)
            for row, said in written["unreadable"]:
                status[row] = str(said)
            return Outcome(tuple(status), str(written["fingerprint"]))
    return None


def record(store: Store, outcome: Outcome) -> None:
    """For a store whose rows have all been written, and compared."""
    unreadable = [(row, said) for row, said in enumerate(outcome.status) if said != "ok"]
    with suppress(OSError):  # without it the next start is only slower
        written = {"state": _state(store), "fingerprint": outcome.fingerprint, "unreadable": unreadable}
        write_atomically(store.outcome, json.dumps(written | {"check": short_hash(written)}))


def _state(store: Store) -> list[int]:
    return [OUTCOME_VERSION, *state_of(store.journal), *state_of(store.pixels)]


def _is_sample_sound(store: Store) -> bool:
    pixels = store.open_pixels()
    return all(kept.digest == digest_of(pixels[row]) for row, kept in _some_lines(store))


def _some_lines(store: Store) -> Iterator[tuple[int, Row]]:
    """Return random rows of the journal, so that a long one need not be read whole."""
    if store.journal.stat().st_size <= _SHORT_JOURNAL:
        rows = read_journal(store.journal)
        yield from ((row, rows[row]) for row in sample_of(len(store.entries), store.row_bytes))
        return
    with open(store.journal, "rb") as file:
        for place in sample_of(store.journal.stat().st_size, store.row_bytes):
            file.seek(place)
            file.readline()  # the rest of a line
            if not (line := file.readline()):
                file.seek(0)
                line = file.readline()
            row, name, size, changed, status, digest = json.loads(line)
            yield row, Row((name, size, changed), status, digest)


SAMPLE_BYTES = 1 << 25  # of an array that is compared at each opening, ...
FEWEST = 256  # ... but no fewer blocks than these, and of a larger array no more
_VERSION = 1  # of the files with checksums


def state_of(path: Path) -> list[int]:
    """Return size and modification time of a file."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def sample_of(count: int, block_bytes: int) -> Sequence[int]:
    """Return the blocks to compare at an opening, a different random sample each time."""
    if count * block_bytes <= SAMPLE_BYTES or count <= FEWEST:
        return range(count)
    return random.SystemRandom().sample(range(count), FEWEST)  # leaves the seeded generators alone


class Sums(NamedTuple):
    """Checksums of the blocks of an array, stored in a file beside it."""

    block: int  # rows in each, but for the last
    digests: list[str]
    state: list[int]  # of the array's file when all of it was compared, or written

    def write(self, array: Path) -> None:
        written = {"version": _VERSION, "block": self.block, "state": self.state, "digests": self.digests}
        write_atomically(sums_of(array), json.dumps(written))

    def damaged(self, values: np.ndarray, array: Path) -> list[int]:
        """Return the blocks that do not match their checksum; if the file has not changed, compare a sample first."""
        blocks: Sequence[int] = range(len(self.digests))
        if self.state == state_of(array):
            blocks = sample_of(len(blocks), self.block * values[:1].nbytes)
            if not self._other(values, blocks):
                return []
        return self._other(values, range(len(self.digests)))

    def _other(self, values: np.ndarray, blocks: Sequence[int]) -> list[int]:
        return [
            number
            for number in blocks
            if digest_of(values[number * self.block : (number + 1) * self.block]) != self.digests[number]
        ]


def read_sums(array: Path, rows: int) -> Sums | None:
    """Read the checksums of an array with this many rows; None if there are none."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        written = json.loads(sums_of(array).read_bytes())
        sums = Sums(int(written["block"]), list(map(str, written["digests"])), list(written["state"]))
        if written["version"] == _VERSION and sums.block > 0 and len(sums.digests) == -(-rows // sums.block):
            return sums
    return None


def sums_of(array: Path) -> Path:
    return array.with_suffix(".sums")
