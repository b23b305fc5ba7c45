"""A folder of encoded images as a source: the features of an encoder in Parquet shards, by `twincluster encode`.

encoded.json is replaced last, so a folder that it calls complete has all of its shards. Features are unpacked once into
the cache, from where they are mapped into memory; names and hashes are read from the shards when they are needed.
Shapes: n images, D features.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np
from PIL import Image

from twincluster.core import InputError, read_record, write_atomically
from twincluster.data.decoding import Frame, decode
from twincluster.data.listing import (
    File,
    Listing,
    Member,
    as_on_disk,
    cache_folder,
    entry_of,
    printable,
    stamp_of,
)

ENCODED_FILE = "encoded.json"
FORMAT = 1  # of encoded.json and the shards
COLUMNS = {  # name and Arrow type; features and thumbnail depend on the encoder and the command
    "path": "string",  # as in assignments.csv
    "file": "string",  # where the file is, unless that is `path` in the folder `base`; for archives, the archive
    "start": "int64",  # of an image inside an archive, in bytes
    "bytes": "int64",  # size of the file; -1 if there is none
    "stamp": "string",  # changes with the file: size and time of change
    "content": "string",  # hash of the decoded pixels
    "perceptual": "uint64",  # hash whose bits hardly change with size, format and brightness; 0 if unreadable
    "status": "string",  # "ok", or why the features are zeros
}
NEVER_NULL = ("path", "bytes", "stamp", "content", "status", "features")
THUMBNAIL_SIDE = 64  # of those that the shards contain if asked for
PICTURE_SIDE = 128  # of pictures that are decoded again to be shown
PROBED = 64  # files that are looked for to tell whether there are pictures
DTYPES = ("float16", "float32")
AGAIN = "encode again into another folder"


@dataclass(frozen=True)
class Shard:
    """A file of encoded images, as encoded.json lists it."""

    file: str
    rows: int
    digest: str  # of names, stamps, contents, statuses and features


@dataclass(frozen=True)
class EncodedData:
    """The content of encoded.json."""

    format: int
    complete: bool
    source: str  # its name, for messages
    location: str | None  # where it was
    base: str  # the folder that relative paths start in; "" for arrays
    encoder: str  # its name, as --backbone takes it
    version: str  # of its weights
    side: int  # of the squares that it was shown
    frame: Frame
    features: int  # D
    dtype: str
    thumbnails: bool
    rows: int
    readable: int
    widths: tuple[int, ...] = ()  # columns of each, where several encoders are joined
    columns: tuple[str, ...] = ()
    shards: tuple[Shard, ...] = ()

    def check(self) -> None:
        """Raise ValueError if the numbers do not fit together, or a shard lies elsewhere."""
        if self.complete and sum(shard.rows for shard in self.shards) != self.rows:
            raise ValueError(f"its shards have {sum(shard.rows for shard in self.shards):,} rows, not {self.rows:,}")
        if odd := [shard.file for shard in self.shards if os.path.basename(shard.file) != shard.file]:
            raise ValueError(f"{printable(odd[0])} is not in this folder")
        if self.features < 1 or self.dtype not in DTYPES or (self.widths and sum(self.widths) != self.features):
            raise ValueError(f"{self.features} features of type {printable(self.dtype)}")

    @classmethod
    def read(cls, folder: Path) -> EncodedData:
        shown = printable(str(folder / ENCODED_FILE))
        try:
            content = read_record(folder / ENCODED_FILE, cls)
            if content.format == FORMAT:
                content.check()
        except (OSError, ValueError) as error:
            raise InputError(f"{shown} cannot be read ({error}): restore a copy, or {AGAIN}") from None
        if content.format != FORMAT:
            raise InputError(f"{shown} has the format {content.format}, not {FORMAT}: update twincluster, or {AGAIN}")
        return content


@dataclass(frozen=True, eq=False)
class Encoded:
    """An encoded folder, or some of its rows, as a part of a Listing."""

    folder: Path
    data: EncodedData
    rows: np.ndarray | None = field(default=None)  # of the folder; None: all

    def column(self, name: str) -> list[Any]:
        """Return the values of a column, one per row."""
        values = [value for shard in self.data.shards for value in _read(self.folder, shard, [name])[name].to_pylist()]
        return values if self.rows is None else [values[row] for row in self.rows.tolist()]

    @cached_property
    def status(self) -> tuple[str, ...]:
        names: dict[str, str] = {}  # a million equal strings would take a million places
        return tuple(names.setdefault(status, status) for status in self.column("status"))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the encoder and of all rows, wherever the folder is."""
        data = self.data
        known_by = (data.encoder, data.version, data.side, data.frame, *(shard.digest for shard in data.shards))
        some = b"" if self.rows is None else self.rows.astype(np.int64).tobytes()
        return hashlib.sha256(repr(known_by).encode(errors="surrogatepass") + some).hexdigest()

    def part(self, rows: Sequence[int]) -> Encoded:
        chosen = np.asarray(rows, np.int64)
        return replace(self, rows=chosen if self.rows is None else self.rows[chosen])

    def thumbnail(self, row: int) -> np.ndarray | None:
        """Return a picture that the shards contain, or None."""
        if not self.data.thumbnails:
            return None
        row = row if self.rows is None else int(self.rows[row])
        for shard in self.data.shards:
            if row < shard.rows:
                content = _thumbnails(self.folder, shard)[row].as_py()
                return None if content is None else np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
            row -= shard.rows
        return None


class Files(Sequence[File]):
    """Where the images of an encoded folder were, made from their names when they are needed."""

    def __init__(self, encoded: Encoded, paths: Sequence[str]) -> None:
        self._encoded, self._paths = encoded, paths

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, row: int) -> File: ...
    @overload
    def __getitem__(self, row: slice) -> list[File]: ...
    def __getitem__(self, row: int | slice) -> File | list[File]:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        if not self._elsewhere:
            return os.path.join(self._encoded.data.base, as_on_disk(self._paths[row]))
        file, start, size, stamp = (column[row] for column in self._elsewhere)
        whole = os.path.join(self._encoded.data.base, as_on_disk(file or self._paths[row]))
        if start is None:
            return whole
        changed = int(stamp.split("-")[3])
        return Member(Path(whole), start, size, os.path.splitext(self._paths[row])[1], changed)

    @cached_property
    def _elsewhere(self) -> tuple[list[Any], ...]:
        """Columns that tell the place of files that are not named by their paths alone; none if all are."""
        columns = tuple(self._encoded.column(name) for name in ("file", "start", "bytes", "stamp"))
        return columns if any(file is not None for file in columns[0]) else ()


class Originals:
    """Pictures of the rows, (n,s,s,3): their files decoded again while they are unchanged, else thumbnails."""

    def __init__(self, listing: Listing, encoded: Encoded) -> None:
        self._listing, self._encoded = listing, encoded
        side = PICTURE_SIDE if listing.files is not None else THUMBNAIL_SIDE
        self.shape = (len(listing.paths), side, side, 3)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int) -> np.ndarray:
        side, files = self.shape[1], self._listing.files
        if files is not None and self._is_same(row):
            pixels, _ = decode(files[row], side, self._encoded.data.frame)
            if pixels is not None:
                return pixels
        small = self._encoded.thumbnail(row)
        if small is None:
            return np.full((side, side, 3), 128, np.uint8)
        return np.asarray(Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC))

    def any(self) -> bool:
        """Return True if there are thumbnails, or files of a sample of the rows."""
        some = np.unique(np.linspace(0, len(self) - 1, PROBED).astype(np.int64)).tolist()
        return self._encoded.data.thumbnails or any(self._is_same(row) for row in some)

    def _is_same(self, row: int) -> bool:
        if self._listing.files is None:
            return False
        file = self._listing.files[row]
        if isinstance(file, Member):  # opening it compares the time of change
            return os.path.exists(file.archive)
        return stamp_of(file, entry_of("", file)) == self._stamps[row]

    @cached_property
    def _stamps(self) -> list[str]:
        return self._encoded.column("stamp")


def perceptual_hash(pixels: np.ndarray) -> int:
    """Return 64 bits of a picture (s,s,3): whether the brightness rises from left to right in 8 x 8 places."""
    small = np.asarray(Image.fromarray(pixels).convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    return int.from_bytes(np.packbits(np.diff(small, axis=1) > 0).tobytes(), "big")


def is_encoded(folder: Path) -> bool:
    return os.path.isfile(folder / ENCODED_FILE)


def from_encoded(folder: Path) -> Listing:
    """List an encoded folder. Raise InputError if it is incomplete or damaged."""
    name, data = printable(folder.resolve().name) + "/", EncodedData.read(folder)
    if not data.complete:
        raise InputError(f"{name} is not completely encoded: finish it with the same `twincluster encode` command")
    encoded = Encoded(folder.absolute(), data)
    paths = tuple(encoded.column("path"))
    files = Files(encoded, paths) if data.base else None
    return Listing(name, paths, files=files, array=_unpacked(encoded), root=encoded.folder, encoded=encoded)


def _unpacked(encoded: Encoded) -> np.ndarray:
    """Map the features (n,D) into memory from a file in the cache, after writing it if it is missing."""
    data, place = encoded.data, cache_folder() / "encoded"
    shape, path = (data.rows, data.features), place / f"{encoded.fingerprint[:32]}.npy"
    with suppress(OSError, ValueError):
        unpacked: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        if unpacked.shape == shape and unpacked.dtype == data.dtype:
            os.utime(path)  # mark as used
            return unpacked
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(data.dtype))
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})

    def parts() -> Iterator[bytes | memoryview]:
        yield header.getvalue()
        for shard in data.shards:
            yield features_in(encoded.folder, data, shard).data.cast("B")

    try:
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(path, parts())
    except OSError as error:
        megabytes = data.rows * data.features * np.dtype(data.dtype).itemsize / 1e6
        raise InputError(
            f"no room for {megabytes:,.0f} MB of features in {place} ({error.strerror}): free some, or set "
            "TWINCLUSTER_CACHE to another folder"
        ) from None
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def features_in(folder: Path, data: EncodedData, shard: Shard) -> np.ndarray:
    """Return the features (rows,D) of a shard."""
    column = _read(folder, shard, ["features"])["features"].combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False)
    if values.dtype != data.dtype or values.size != shard.rows * data.features or not np.isfinite(values).all():
        raise InputError(
            f"{printable(str(folder / shard.file))} does not hold {data.features} finite {data.dtype} features per "
            f"row: {AGAIN}"
        )
    return np.asarray(values.reshape(shard.rows, data.features))


@lru_cache(maxsize=8)
def _thumbnails(folder: Path, shard: Shard) -> Any:
    """Return the thumbnails of a shard, as bytes; the last few shards stay in memory."""
    return _read(folder, shard, ["thumbnail"])["thumbnail"]


def _read(folder: Path, shard: Shard, columns: list[str]) -> Any:
    """Return some columns of a shard as an Arrow table."""
    with readable(folder / shard.file):
        from pyarrow import parquet

        with parquet.ParquetFile(folder / shard.file, page_checksum_verification=True) as opened:
            if missing := [name for name in columns if name not in opened.schema_arrow.names]:
                raise ValueError(f"it has no column {missing[0]}")
            if opened.metadata.num_rows != shard.rows:
                raise ValueError(f"it has {opened.metadata.num_rows:,} rows, expected {shard.rows:,}")
            table = opened.read(columns=columns)
        for name in columns:
            if name in COLUMNS and str(table[name].type) != COLUMNS[name]:
                raise ValueError(f"its column {name} has the type {table[name].type}, expected {COLUMNS[name]}")
            if name in NEVER_NULL and table[name].null_count:
                raise ValueError(f"its column {name} has empty places")
        return table


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert what pyarrow raises for a missing or damaged shard to one line."""
    try:
        yield
    except ImportError:
        raise InputError("encoded folders need a package: pip install 'twincluster[parquet]'") from None
    except FileNotFoundError:
        raise InputError(
            f"{printable(str(path))} is missing: restore it, or run the same encode command again"
        ) from None
    except Exception as error:  # pyarrow raises many types for damaged files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120].rstrip(".")
        raise InputError(
            f"{printable(str(path))} is damaged ({reason}): delete it, and run the same encode command again"
        ) from None
