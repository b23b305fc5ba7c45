"""Files that survive a kill and reveal damage: atomic writes, checksums, typed JSON, append-only JSON lines."""

from __future__ import annotations

import dataclasses
import errno
import glob
import hashlib
import json
import math
import os
import re
import secrets
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any, BinaryIO, Generic, TypeVar

from twincluster.core import InputError
from twincluster.core.locks import LOCK_FILE, lock, refuse_zero

FULL = (errno.ENOSPC, errno.EDQUOT)
Record = TypeVar("Record")
Row = TypeVar("Row")
LONGEST_SHOWN = 60  # letters of a wrong value in a message


def write_atomically(path: Path, content: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Replace a file atomically: at any moment the path holds the complete old or the complete new content."""
    parts = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    with unfinished(path) as partial, partial.open("wb") as file:
        file.writelines(parts)


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yield the path of a new empty file beside `path`; on success it replaces `path` atomically.

    The writer locks the file. The next writer removes unlocked files, which killed writers left behind.
    """
    sweep_partials(path)
    partial, file = open_partial(path)
    try:
        with closing(file), naming(path):
            yield partial
            with partial.open("r+b") as written:  # Windows flushes only files opened for writing
                os.fsync(written.fileno())
            if os.name == "nt":
                file.close()  # Windows cannot rename an open file
            partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # frees the space on a full disk
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file name to a disk-full error, which has none for a file that is already open."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(path)
        raise


def disk_is_full(error: OSError) -> str | None:
    """Return a line that names the full disk; None for any other error."""
    if error.errno not in FULL:
        return None
    name = error.filename2 or error.filename  # the second is the target of a copy or link
    if not isinstance(name, str | bytes | os.PathLike):
        return "a disk is full: free some space"
    path = Path(os.fsdecode(name))
    place = next(parent for parent in Path(os.path.realpath(path)).parents if os.path.ismount(parent))
    return f"the disk at {place} is full ({path} cannot be written): free some space"


def open_partial(path: Path) -> tuple[Path, BinaryIO]:
    """Create a file beside `path` under a unique name, locked until it is closed."""
    while True:
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
        file = partial.open("xb")
        lock(file.fileno())
        if partial.exists():  # else another writer swept it before it was locked
            return partial, file
        file.close()


def sweep_partials(path: Path) -> None:
    """Remove the partial files beside `path` whose writers were killed."""
    with suppress(ImportError, OSError):  # without locks, all files stay
        import fcntl

        for left in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * 8}.partial"):
            with suppress(OSError), left.open("rb") as file:  # still being written, or not ours
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


CHECKSUM = "checksum"  # entry of a JSON object: half of the SHA-256 of the others
MANIFEST = "checksums.json"  # SHA-256 of the tables in the same folder
SEAL = {"sha256": "0" * 64}  # metadata of a safetensors file, in which `seal` replaces the zeros
MISMATCH = "its checksum does not match: it is damaged"
_SEALED = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_BLOCK = 1 << 20
_BEGUN = re.compile(rb"\{[ -~]*")  # the start of a JSON line: ours are ASCII


def seal(path: Path) -> None:
    """Write the SHA-256 of a safetensors file, saved with the metadata `SEAL`, into its header."""
    with path.open("r+b") as file:
        start, _ = _find_seal(file)
        digest = _digest_without_seal(file, start)
        file.seek(start)
        file.write(digest)


def check_seal(path: Path) -> None:
    """Raise ValueError when a safetensors file has changed since `seal`. Files without a checksum pass."""
    with path.open("rb") as file:
        start, digest = _find_seal(file)
        if digest and digest != _digest_without_seal(file, start):
            raise ValueError(MISMATCH)


def _find_seal(file: BinaryIO) -> tuple[int, bytes]:
    """Return the offset and the digits of the checksum; (0, b"") without one."""
    length = int.from_bytes(file.read(8), "little")
    match = _SEALED.search(file.read(min(length, os.fstat(file.fileno()).st_size)))
    return (8 + match.start(1), match[1]) if match else (0, b"")


def _digest_without_seal(file: BinaryIO, start: int) -> bytes:
    blank = SEAL["sha256"].encode()
    file.seek(0)
    digest = hashlib.sha256(file.read(start) + blank)
    file.seek(start + len(blank))
    while block := file.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest().encode()


def write_table(path: Path, content: str) -> None:
    """Replace a table, and its checksum in checksums.json.

    The manifest lists the old and the new checksum while the table is replaced: after a kill between any two writes,
    the table matches one of them.
    """
    listed, digest = _read_manifest(path.parent), hashlib.sha256(content.encode()).hexdigest()
    before = listed.get(path.name, ())
    if not before and path.is_file():
        before = (hashlib.sha256(path.read_bytes()).hexdigest(),)
    write_json(path.parent / MANIFEST, listed | {path.name: (*before, digest)})
    write_atomically(path, content)
    if before:
        write_json(path.parent / MANIFEST, listed | {path.name: (digest,)})


def read_table(path: Path) -> tuple[str, bool]:
    """Return the text of a table, and True if it matches its checksum or has none.

    Reads again if a concurrent writer has replaced the manifest.
    """
    while True:
        listed = _read_manifest(path.parent).get(path.name)
        content = path.read_bytes()
        if listed is None or hashlib.sha256(content).hexdigest() in listed:
            return content.decode(), True
        if _read_manifest(path.parent).get(path.name) == listed:
            return content.decode(), False


def _read_manifest(folder: Path) -> dict[str, tuple[str, ...]]:
    path = folder / MANIFEST
    try:
        content = read_json(path)
        listed: dict[str, tuple[str, ...]] = _typed(dict[str, tuple[str, ...]], without_checksum(content), "it")
        check_content(content)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): delete it to read the tables without checksums") from None
    return listed


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file and add a checksum to its content."""
    write_atomically(path, json.dumps(with_checksum(content), indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raise ValueError for invalid or too deeply nested JSON."""
    return _parse_json(path.read_bytes())


def _parse_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read a dataclass from a JSON file. Raise ValueError for a wrong type or checksum."""
    content = read_json(path)
    record = record_of(kind, content, path.name)
    check_content(content)
    return record


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum."""
    return {**without_checksum(content), CHECKSUM: _checksum_of(content)}


def without_checksum(content: Any) -> Any:
    """Return a JSON object without its checksum, and anything else as it is."""
    return {k: v for k, v in content.items() if k != CHECKSUM} if isinstance(content, Mapping) else content


def check_content(content: Any) -> None:
    """Raise ValueError when a parsed JSON object does not match its checksum. Objects without one pass."""
    if isinstance(content, dict) and CHECKSUM in content and content[CHECKSUM] != _checksum_of(content):
        raise ValueError(f'{MISMATCH}, or was edited without deleting its entry "{CHECKSUM}"')


def _checksum_of(content: Mapping[str, Any]) -> str:
    try:
        return hashlib.sha256(json.dumps(without_checksum(content)).encode()).hexdigest()[:32]
    except RecursionError:
        raise ValueError("nested too deeply") from None


class JsonLines(Generic[Row]):
    """A file of JSON objects, one per line, to which any number of processes append.

    Each line has a checksum, except in files of older versions. A line counts once it is complete: a kill while writing
    loses only that line, and the next writer removes its rest. Any other damage raises InputError with the file and the
    line, for readers and writers. `parse` turns an object and the number of rows before it into a row, or raises
    ValueError for a wrong type; `remedy` ends the message.
    """

    def __init__(self, path: Path, parse: Callable[[dict[str, Any], int], Row], remedy: str) -> None:
        self.path, self._parse, self._remedy = path, parse, remedy
        self._guard = RLock()  # threads of one process share this object
        self._rows: list[Row] = []
        self._end = 0  # bytes of the file that are parsed
        self._last = b""  # last parsed line, to notice when the file was replaced

    def __reduce__(self) -> Any:  # locks are neither copied nor pickled
        return JsonLines, (self.path, self._parse, self._remedy)

    def read(self) -> list[Row]:
        """Return all rows. Does not block on concurrent writers."""
        with self._guard:
            self._catch_up()
            return list(self._rows)

    def append(self, build: Callable[[list[Row]], Sequence[Mapping[str, Any]]]) -> list[Row]:
        """Append the result of `build(rows)` while other writers wait, and return all rows."""
        with self._guard, _alone(self.path) as descriptor:
            self._catch_up()
            added = "".join(json_line(row) for row in build(list(self._rows)))
            unended = bool(added and self._last and not self._last.endswith(b"\n"))
            _append(descriptor, self._end, ("\n" * unended + added).encode())
            self._catch_up()
            return list(self._rows)

    def rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace all rows."""
        with self._guard:
            write_atomically(self.path, "".join(map(json_line, rows)))
            self._forget()

    def drop_last(self) -> None:
        """Remove the last row; remove the file if it was the only one."""
        with self._guard:
            self._catch_up()
            if rest := self.path.read_bytes()[: self._end - len(self._last)] if self._rows else b"":
                write_atomically(self.path, rest)
            else:
                self.path.unlink(missing_ok=True)
            self._forget()

    def _catch_up(self) -> None:
        """Read what was appended since the last time."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._end - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self._forget()
                    file.seek(0)
                new = file.read()
        except FileNotFoundError:
            self._forget()
            return
        if self._last and not self._last.endswith(b"\n") and new.startswith(b"\n"):
            new, self._last, self._end = new[1:], self._last + b"\n", self._end + 1
        *lines, rest = new.split(b"\n")
        for line in [*(line + b"\n" for line in lines), *([rest] if rest else [])]:
            if _is_half_written(line):
                return
            self._rows.append(self._row_of(line))
            self._last = line
            self._end += len(line)

    def _row_of(self, line: bytes) -> Row:
        try:
            content = _parse_json(line)
            if not isinstance(content, dict):
                raise ValueError(f"it is {_shown(content)}, expected an object")
            row = self._parse(without_checksum(content), len(self._rows))
            check_content(content)
        except (ValueError, OverflowError) as error:
            problem = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            where = f"{self.path} is damaged in line {len(self._rows) + 1}"
            raise InputError(f"{where} ({problem}): restore a copy, or {self._remedy}") from None
        return row

    def _forget(self) -> None:
        self._rows, self._end, self._last = [], 0, b""


def json_line(content: Mapping[str, Any]) -> str:
    """Return a line of a JSON lines file, with its checksum."""
    return json.dumps(with_checksum(finite(content)), allow_nan=False) + "\n"


def _is_half_written(line: bytes) -> bool:
    """Return True for a line without end or complete object, as a killed writer leaves it."""
    if line.endswith(b"\n") or not _BEGUN.fullmatch(line):
        return False
    try:
        json.JSONDecoder().raw_decode(line.decode())
    except RecursionError:
        return False
    except ValueError:
        return True
    return False


@contextmanager
def _alone(path: Path) -> Iterator[int]:
    """Open a file for appending; other writers wait."""
    is_new = not path.exists()
    descriptor = os.open(
        path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666
    )  # not read-only: network drives cannot lock that
    try:
        lock(descriptor)
        if is_new:
            _sync_folder(path.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def _append(descriptor: int, end: int, content: bytes) -> None:
    """Write all of the content after byte `end`, or nothing, over the rest of a killed writer's line."""
    try:
        os.ftruncate(descriptor, end)
        while content:
            content = content[os.write(descriptor, content) :]
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, end)  # a full disk must not leave half a line
        raise


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file survive a power failure."""
    with suppress(OSError):  # folders cannot be opened everywhere
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def record_of(kind: type[Record], value: Any, where: str) -> Record:
    """Build a dataclass from parsed JSON. Raise ValueError that names the field with a wrong type.

    Fields with a default may be missing; unknown entries are ignored.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_shown(value)}, expected an object")
    hints, values = typing.get_type_hints(kind), {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in value:
            values[field.name] = _typed(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} has no {field.name}")
    return kind(**values)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Convert `value` to the type `hint`: lists become tuples, whole numbers floats.

    Raise ValueError if it does not fit.
    """
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return record_of(typing.cast(type[Any], hint), value, where)
    if origin in (typing.Union, types.UnionType):
        if value is None and types.NoneType in inside:
            return None
        return _typed(next(one for one in inside if one is not types.NoneType), value, where)
    if origin is typing.Literal and value in inside:
        return value
    if origin in (tuple, list) and isinstance(value, list):
        return _typed_items(origin, inside, value, where)
    if origin is dict and isinstance(value, dict):
        return {name: _typed(inside[1], item, f"{where}.{_shown(name)[1:-1]}") for name, item in value.items()}
    if hint is float and type(value) in (int, float):
        with suppress(OverflowError):
            return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise ValueError(f"{where} is {_shown(value)}, expected {getattr(hint, '__name__', hint)}")


def _typed_items(kind: Any, inside: tuple[Any, ...], value: list[Any], where: str) -> Any:
    if kind is tuple and inside[-1] is not Ellipsis:
        if len(value) != len(inside):
            raise ValueError(f"{where} has {len(value)} items, expected {len(inside)}")
        return tuple(_typed(inside[i], item, f"{where}[{i}]") for i, item in enumerate(value))
    if inside[0] in (int, float, str) and all(type(item) is inside[0] for item in value):
        return kind(value)  # fast path: an edit may name thousands of rows
    return kind(_typed(inside[0], item, f"{where}[{i}]") for i, item in enumerate(value))


def _shown(value: Any) -> str:
    """Return a value as text for an error, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}, {lines[0]}" if lines else type(error).__name__


def strict_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that every reader accepts: nan and inf become null."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def finite(value: Any) -> Any:
    """Return the value with None in place of nan and inf."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_taken(folder: Path) -> bool:
    """Return True unless a folder is missing or empty. A lock file does not count."""
    return folder.exists() and (not folder.is_dir() or any(path.name != LOCK_FILE for path in folder.iterdir()))


def refuse_taken(out: Path) -> None:
    """Raise InputError if the place for a new run exists already."""
    if is_taken(out):
        state = "exists and is not empty" if out.is_dir() else "is a file"
        hint = ", or continue it with --resume" if (out / "config.json").is_file() else ""
        raise InputError(f"{out} {state}: choose another --out{hint}")


def check_writable(folder: Path, instead: str = "choose another place") -> None:
    """Raise InputError if a folder cannot be created or written to, before any work is done."""
    refuse_zero(folder)
    # a broken link exists, too: no folder can be created in its place
    nearest = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)
    shown = nearest if nearest.name else nearest.absolute()  # instead of "."
    if not os.path.isdir(nearest):
        raise InputError(f"{shown} is not a folder: {instead}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{shown} is not writable: check its permissions, or {instead}")
