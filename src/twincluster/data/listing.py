"""List the inputs of a source before decoding: files, images inside archives, and arrays; search folders for images.

Images in archives are read in place; nothing is unpacked, and no name inside an archive is used as a path. File names
are escaped so that each fits on one line of a text file.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np

from twincluster.core import InputError, uncollected

if TYPE_CHECKING:
    from twincluster.data.decoding import Size
    from twincluster.data.encoded import Encoded

IMAGE_SUFFIXES: frozenset[str] = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif", ".tga", ".heic", ".heif", ".hif"}
)
CHANGED = "archive changed meanwhile"  # as a status has it


class RefusedError(Exception):
    """A file that is left alone; the text says why."""


class Member(NamedTuple):
    """An image inside an archive."""

    archive: Path
    start: int  # of its bytes
    size: int
    suffix: str  # ".jpg"
    changed: int  # modification time of the archive in ns when it was searched
    problem: str = ""  # why it cannot be read


class Content(NamedTuple):
    """The content of an image file in memory."""

    data: bytes
    suffix: str = ""


File = str | Path | Member  # a plain str where there may be a million: it takes a tenth of the time
Input = File | Content


@contextmanager
def open_input(source: Input) -> Iterator[BinaryIO]:
    """Open an input as a non-empty file. Raise RefusedError if it is none of these, and OSError from the system."""
    if isinstance(source, Content):
        _refuse_empty(len(source.data))
        yield io.BytesIO(source.data)
        return
    if isinstance(source, Member) and source.problem:
        raise RefusedError(source.problem)
    place = source.archive if isinstance(source, Member) else source
    found = os.stat(place)
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError("not a regular file")  # opening a named pipe would block
    if not isinstance(source, Member):
        _refuse_empty(found.st_size)
        with open(place, "rb") as file:
            yield file
        return
    if found.st_mtime_ns != source.changed:  # the offset may now hold another image, or parts of two
        raise RefusedError(CHANGED)
    _refuse_empty(source.size)
    with open(place, "rb", buffering=0) as archive:
        yield cast(BinaryIO, io.BufferedReader(_Part(archive, source.start, source.size)))


def suffix_of(source: Input) -> str:
    """Return the suffix in lower case, for example ".jpg"."""
    return (source if isinstance(source, Member | Content) else PurePath(source)).suffix.lower()


def _refuse_empty(size: int) -> None:
    if not size:
        raise RefusedError("empty file")


class _Part(io.RawIOBase):
    """A range of bytes of an open file, as a file of its own."""

    def __init__(self, whole: io.FileIO, start: int, size: int) -> None:
        self.whole, self.start, self.size, self.at = whole, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = max(0, {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence] + offset)
        return self.at

    def readinto(self, buffer: Any) -> int:
        self.whole.seek(self.start + self.at)
        count = self.whole.readinto(memoryview(buffer)[: max(0, self.size - self.at)]) or 0
        self.at += count
        return count


_ENDINGS = tuple(sorted(IMAGE_SUFFIXES))
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\\\]")


def walk(folder: Path, name: str) -> tuple[list[str], int]:
    """Return every image below a folder, relative and sorted, and the number of other files.

    Links are followed after real folders. No folder is entered twice and none above the start, so circular links end
    and each image is found once. Run folders are skipped: their images are plots.
    """
    found, others = [], 0
    pending = deque([""])
    seen = {_identity(above) for above in folder.resolve().parents}
    while pending:
        here = pending.popleft()
        try:
            with os.scandir(folder / here) as entries:
                inside = sorted(entries, key=attrgetter("name"))
        except OSError as error:
            if not here:
                raise InputError(f"{name} cannot be read ({error.strerror}): check its permissions") from None
            warnings.warn(f"{name}{printable(here)} cannot be read ({error.strerror}): left out", stacklevel=5)
            continue
        if (identity := _identity(folder / here)) in seen or (here and _is_run(folder / here)):
            continue
        seen.add(identity)
        for entry in inside:
            path = f"{here}/{entry.name}" if here else entry.name
            if _is_folder(entry):
                pending.append(path) if entry.is_symlink() else pending.appendleft(path)
            elif entry.name.lstrip(".").lower().endswith(_ENDINGS):  # ".jpg" alone is a hidden file
                found.append(path)
            else:
                others += 1
    return sorted(found), others


def _is_run(folder: Path) -> bool:
    return all(os.path.isfile(folder / name) for name in ("metrics.jsonl", "config.json"))


def _identity(folder: Path) -> tuple[int, int]:
    try:
        found = os.stat(folder)
    except OSError:  # it went away, or nothing above it may be looked at
        return -1, -1
    return found.st_dev, found.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def printable(name: str) -> str:
    """Escape a file name reversibly to one line of UTF-8: controls, invalid UTF-8 and backslashes."""
    return _UNWRITABLE.sub(_escape, name)


_ESCAPED = re.compile(r"\\(?:([\\nrt])|x([0-9a-f]{2})|u([0-9a-f]{4}))")
_LETTERS = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}


def as_on_disk(name: str) -> str:
    """Return a file name as on disk from its escaped form, as `printable` makes it."""
    return _ESCAPED.sub(_unescaped, name)


def _unescaped(found: re.Match[str]) -> str:
    letter, byte, code = found.groups()
    if letter:
        return _LETTERS[letter]
    if byte:  # from 0x80 on invalid UTF-8, as a surrogate escape
        return chr(int(byte, 16) + (0xDC00 if byte >= "80" else 0))
    return chr(int(code, 16))


def _escape(found: re.Match[str]) -> str:
    code = ord(char := found.group())
    if char in "\\\n\r\t":
        return {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}[char]
    if 0xDC80 <= code <= 0xDCFF:  # how Python carries a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


FEW = 64  # inputs; decoding so few again takes no noticeable time
EXPECTED = "expected uint8 images (n,h,w[,c]) or float rows (n,d)"
CELLS_AT_ONCE = 2**22  # numbers to check at once
SHARP = 1000  # least range of a column, in units of its float32 error; less loses its differences ...
ROUNDING = 1e-12  # ... unless the range is only the rounding error of float64, relative to the numbers

LONGEST_PATH = 32_767  # letters; Windows takes most. A table with longer fields than 131,072 could not be read again

Entry = tuple[str, int, int]  # path as written, size, modification time in ns; -1 if there is no file


@dataclass(frozen=True, eq=False)
class Listing:
    """The inputs of a source, one entry per input in a stable order, before decoding."""

    name: str  # for messages and config.json, e.g. "digits", "photos/"
    paths: tuple[str, ...]  # as in assignments.csv: relative path, path in a list, or row number of an array
    files: Sequence[File] | None = None  # absolute; None for arrays
    array: np.ndarray | None = None  # uint8 (n,h,w) or (n,h,w,c), or float32 rows (n,d)
    labels: np.ndarray | None = None  # int64 (n,), -1 where unknown
    class_names: tuple[str, ...] | None = None  # names of labels 0, 1, ...
    split: np.ndarray | None = None  # int8 (n,): 0 train, 1 test
    skipped: int = 0  # files without an image suffix
    blurred: str = ""  # the first column of rows whose differences are lost in float32
    root: Path | None = None  # the folder that was searched, the list that was read, or the pattern of shards
    encoded: Encoded | None = None  # if `array` has the features of images that were encoded before

    def __post_init__(self) -> None:
        longest = max(map(len, self.paths), default=0)
        if longest > LONGEST_PATH:
            row = next(row for row, path in enumerate(self.paths) if len(path) == longest)
            raise InputError(
                f"{self.name}: the path in row {row} has {longest:,} letters, more than any system takes: take it out"
            )

    @property
    def is_rows(self) -> bool:
        return self.array is not None and self.array.ndim == 2

    @property
    def is_passing(self) -> bool:
        """True for a few files named one by one, or an array of few images.

        Inputs of 64 images or fewer are not cached.
        """
        return self.root is None and len(self.paths) <= FEW

    def part(self, rows: Sequence[int]) -> Listing:
        """Return some of the inputs.

        If there are many files, they get a store of their own beside that of the whole source.
        """
        return replace(
            self,
            paths=tuple(self.paths[row] for row in rows),
            files=None if self.files is None else tuple(self.files[row] for row in rows),
            array=None if self.array is None else self.array[list(rows)],
            labels=None if self.labels is None else self.labels[list(rows)],
            split=None if self.split is None else self.split[list(rows)],
            root=None,
            encoded=self.encoded.part(rows) if self.encoded else None,
        )

    @cached_property
    def sizes(self) -> list[Size]:
        """Width and height of a sample of the files, from their headers."""
        from twincluster.data.decoding import header_sizes

        return header_sizes(self.files or ())

    @cached_property
    def entries(self) -> list[Entry]:
        """Size and modification time of each file, read once: that is slow on some disks, and later changes are found
        by the next listing.
        """
        with uncollected():
            return [entry_of(path, file) for path, file in zip(self.paths, self.files or (), strict=True)]


def entry_of(path: str, file: File) -> Entry:
    """Return the size and time of change of a file, -1 if there is none."""
    if isinstance(file, Member):
        return path, file.size, file.changed
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return path, -1, -1
    return path, found.st_size, found.st_mtime_ns


def from_array(
    array: np.ndarray,
    name: str,
    *,
    labels: np.ndarray | None = None,
    split: np.ndarray | None = None,
    class_names: tuple[str, ...] | None = None,
) -> Listing:
    is_rows = array.ndim == 2 and array.dtype.kind in "fiub"
    array, given = _rows(array, name) if is_rows else _pictures(array, name), array
    blurred = _blurred(given, array) if is_rows else ""
    if labels is not None:
        from twincluster.data.labels import as_labels

        labels, named = as_labels(labels, len(array), name)
        class_names = class_names or named
    if split is not None:
        split = np.asarray(split)
        if split.shape != (len(array),) or not np.isin(split, (0, 1)).all():
            raise InputError(f"{name}: split must hold 0 (train) or 1 (test) for each of the {len(array)} inputs")
        split = split.astype(np.int8)
    paths = tuple(str(row) for row in range(len(array)))
    return Listing(name, paths, array=array, labels=labels, class_names=class_names, split=split, blurred=blurred)


def load_array(path: Path) -> Any:
    """Load an array memory-mapped, or the arrays of an .npz. Nothing is unpickled."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else {key: loaded[key] for key in loaded.files}
    except Exception:  # numpy raises many types for damaged files
        name = printable(path.name)
        raise InputError(f"{name}: not a readable array of plain numbers; save it again with numpy.save") from None


def _rows(array: np.ndarray, name: str) -> np.ndarray:
    if array.shape[1] == 0:
        raise InputError(f"{name}: rows of shape {array.shape} have no columns; {EXPECTED}")
    with np.errstate(over="ignore"):  # numbers too large for float32 become infinity, which is reported below
        rows = array.astype(np.float32, copy=False)
    some = max(1, CELLS_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), some):
        bad = np.flatnonzero(~np.isfinite(rows[start : start + some]).all(1))
        if len(bad):
            row = start + int(bad[0])
            if np.isfinite(array[row]).all():
                high = np.abs(array[row].astype(np.float64)).max()
                raise InputError(
                    f"{name} contains {high:.3g} in row {row}, which single precision cannot hold: bring that column "
                    "to another unit, or drop the row"
                )
            raise InputError(f"{name} contains NaN or infinity in row {row}: replace it or drop the row")
    return rows


def _blurred(given: np.ndarray, rows: np.ndarray) -> str:
    """Return the first column, and its numbers, whose differences are lost in float32; "" if there is none."""
    if given.dtype == np.float32 or given.dtype.itemsize < 4:
        return ""
    low, high, error = (np.full(rows.shape[1], start) for start in (np.inf, -np.inf, 0.0))
    some = max(1, CELLS_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), some):
        part = given[start : start + some].astype(np.float64)
        low, high = np.minimum(low, part.min(0)), np.maximum(high, part.max(0))
        error = np.maximum(error, np.abs(part - rows[start : start + some]).max(0))
    real = high - low > ROUNDING * np.maximum(np.abs(low), np.abs(high))
    columns = np.flatnonzero(real & (high - low < SHARP * error))
    return f"column {columns[0]} ({low[columns[0]]:.12g} to {high[columns[0]]:.12g})" if len(columns) else ""


def _pictures(array: np.ndarray, name: str) -> np.ndarray:
    shape = array.shape
    got = f"{name}: {EXPECTED}, got {array.dtype} {shape}"
    if array.dtype.kind in "fiub" and array.dtype != np.uint8 and array.ndim in (3, 4):
        sample = array[:256]
        low, high = (sample.min(), sample.max()) if sample.size else (0, 0)
        if not np.isfinite([low, high]).all():
            raise InputError(f"{got} with NaN or infinity: replace those, bring the values to 0 .. 255 and cast")
        if low >= 0 and high <= 1:
            raise InputError(f"{got}: multiply by 255 and cast, (images * 255).astype('uint8')")
        if low < 0 or high > 255:  # a cast alone would wrap around
            factor = 255 / (float(high) - float(low))
            raise InputError(
                f"{got} with values of {low:g} to {high:g}: bring them to 0 .. 255 and cast, "
                f"((images.astype('float32') - {low:g}) * {factor:.4g}).clip(0, 255).astype('uint8')"
            )
        raise InputError(f"{got}: cast the values, images.astype('uint8')")
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or 0 in shape[1:]:
        raise InputError(got)
    if array.ndim == 3 and shape[2] in (3, 4) and shape[1] != shape[2]:
        raise InputError(f"{got}, which looks like one colour image: stack several to (n,h,w,c), or pass images[None]")
    if array.ndim == 4 and shape[3] not in (1, 3, 4):
        turn = ": put the channels last, images.transpose(0, 2, 3, 1)" if shape[1] in (1, 3, 4) else " (c is 1, 3 or 4)"
        raise InputError(got + turn)
    return array


def data_root(root: Path | None) -> Path:
    """Return the folder where named data sets are stored and downloaded to."""
    return _folder(root, "TWINCLUSTER_DATA", "~/.cache/twincluster/data")


def stamp_of(file: File, entry: Entry) -> str:
    """Return a word that changes with a file: its size and time of change; of an image in an archive also its place."""
    if isinstance(file, Member):
        return "-".join(str(part) for part in file[1:])
    return "missing" if entry[1] < 0 else f"{entry[1]}-{entry[2]}"


def cache_folder(cache: Path | None = None) -> Path:
    """Return the folder for decoded images and features."""
    return _folder(cache, "TWINCLUSTER_CACHE", "~/.cache/twincluster/store")


def _folder(given: Path | None, variable: str, usual: str) -> Path:
    folder = os.path.expanduser(given or os.environ.get(variable) or usual)
    if folder.startswith("~"):  # some containers have no home folder
        raise InputError(f"{folder}: there is no such home folder; set {variable} to a folder")
    return Path(folder)


def from_prepared(folder: Path) -> Listing:
    """List a folder with images.npy and optionally labels.npy and split.npy."""
    name = printable(folder.resolve().name) + "/"
    present = [part for part in ("labels", "split") if os.path.exists(folder / f"{part}.npy")]
    parts = {part: load_array(folder / f"{part}.npy") for part in present}
    return from_array(load_array(folder / "images.npy"), name, **parts)


def prepared_set(name: str, kept: Path, class_names: tuple[str, ...] | None) -> Listing | None:
    """Return a named data set from its folder of arrays in `kept`, if there is one."""
    if not os.path.exists(kept / name / "images.npy"):
        return None
    listing = replace(from_prepared(kept / name), name=name)
    if class_names is None:
        return listing
    highest = -1 if listing.labels is None else int(listing.labels.max(initial=-1))
    if highest >= len(class_names):
        raise InputError(
            f"{kept / name / 'labels.npy'} holds the label {highest}, but {name} has {len(class_names)} classes: "
            f"write labels from 0 to {len(class_names) - 1}"
        )
    return replace(listing, class_names=class_names)


def absent(name: str, kept: Path, why: str, what: str) -> InputError:
    """Return the error for a named data set that is not available: `what` has to be put into `kept`."""
    beside = f"; for the {name} in this folder write ./{name}" if os.path.exists(name) else ""
    return InputError(
        f"{name} {why}: put {what}, or a folder {name} with images.npy, labels.npy and split.npy, into {kept} "
        f"(or set TWINCLUSTER_DATA to where they are){beside}"
    )


def digest_of(values: np.ndarray) -> str:
    """Return a checksum of the numbers of an array."""
    return hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=8).hexdigest()
