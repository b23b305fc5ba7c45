"""Encode the images of a source into a folder of Parquet shards, without a store of pixels.

Images are decoded a few hundred at a time into a small file that is written over and over, and go from there to the
encoder. A shard is written at once and atomically; a later call with the same source and encoder writes only the shards
that are missing, damaged or out of date. encoded.json is replaced last. The folder is read by data/encoded.py.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from twincluster.core import (
    InputError,
    OnProgress,
    available_cores,
    hold,
    is_taken,
    naming,
    unfinished,
    write_json,
)
from twincluster.data import (
    COLUMNS,
    ENCODED_FILE,
    FORMAT,
    THUMBNAIL_SIDE,
    EncodedData,
    Listing,
    Member,
    RowFile,
    Shard,
    as_on_disk,
    decode_many,
    digest_of,
    entry_of,
    is_encoded,
    open_images,
    perceptual_hash,
    printable,
    stamp_of,
)
from twincluster.nn.encoders import Encoder
from twincluster.nn.feature_cache import CHUNK, encode_chunk

SHARD_ROWS = 128 * CHUNK  # images of a shard: what is lost, at most, when the process is killed
IN_FLIGHT = 2 * 24 * 16  # images that workers may be ahead of the encoder: decode_many's most
PIXELS_FILE = ".pixels"  # in the folder while it is written
INSTEAD = "choose another folder"


@dataclass(frozen=True)
class Encoding:
    """What a call of `encode_folder` did."""

    data: EncodedData
    written: int  # shards
    problems: tuple[str, ...]  # statuses of the images that could not be read


class _Row(NamedTuple):
    """What a shard says of an image besides its features."""

    content: str
    perceptual: int
    status: str
    thumbnail: bytes | None


def encode_folder(
    listing: Listing,
    encoder: Encoder,
    out: Path,
    *,
    location: str | None = None,
    device: str = "cpu",
    dtype: str = "float16",
    thumbnails: bool = False,
    shard_rows: int = SHARD_ROWS,
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> Encoding:
    """Write the features of all images of a source into the folder `out`, or the shards that it lacks."""
    if listing.is_rows:
        raise InputError(f"{listing.name} contains rows of numbers, not images: there is nothing to encode")
    if is_taken(out) and not is_encoded(out):
        raise InputError(f"{out} exists and is not an encoded folder: {INSTEAD}")
    with hold(out, "encoding", INSTEAD):
        width = encode_chunk(np.zeros((1, encoder.side, encoder.side, 3), np.uint8), encoder, device)
        plan = EncodedData(
            format=FORMAT, complete=False, source=listing.name, location=location, base=_base_of(listing),
            encoder=encoder.name, version=encoder.version, side=encoder.side, frame="crop",
            features=sum(part.shape[1] for part in width), dtype=dtype, thumbnails=thumbnails,
            rows=len(listing.paths), readable=0,
            widths=tuple(part.shape[1] for part in width) if encoder.parts else (), columns=_columns(thumbnails),
        )  # fmt: skip
        _refuse_other(out, plan)
        return _Writer(listing, encoder, out, plan, device, shard_rows, workers, progress).run()


def _base_of(listing: Listing) -> str:
    """Return the folder that relative paths start in; "" for arrays."""
    if listing.files is None:
        return ""
    root = listing.root or Path.cwd()
    return str(root if root.is_dir() else root.parent)


def _columns(thumbnails: bool) -> tuple[str, ...]:
    return (*COLUMNS, "features", *(("thumbnail",) if thumbnails else ()))


def _refuse_other(out: Path, plan: EncodedData) -> None:
    """Raise InputError if the folder has been encoded in another way."""
    if not is_encoded(out):
        return
    before = EncodedData.read(out)
    for name in ("encoder", "version", "side", "dtype", "thumbnails"):
        then, now = getattr(before, name), getattr(plan, name)
        if then != now:
            what = {"version": "other weights of the encoder"}.get(name, f"{name} {then}, not {now}")
            raise InputError(f"{out} was encoded with {what}: {INSTEAD}, or the same {name}")


class _Writer:
    """The shards of a folder that this process holds."""

    def __init__(
        self, listing: Listing, encoder: Encoder, out: Path, plan: EncodedData, device: str, shard_rows: int,
        workers: int | None, progress: OnProgress | None,
    ) -> None:  # fmt: skip
        self.listing, self.encoder, self.out, self.plan = listing, encoder, out, plan
        self.device, self.workers = device, workers or available_cores()
        self.progress = progress or (lambda done, total: None)
        count = len(listing.paths)
        self.ranges = [range(start, min(start + shard_rows, count)) for start in range(0, count, shard_rows)]

    def run(self) -> Encoding:
        shards = [self._existing(number) for number in range(len(self.ranges))]
        missing = [number for number, shard in enumerate(shards) if shard is None]
        if missing or not self._is_complete(shards):
            self._note(False, [])
        done = sum(len(rows) for rows, shard in zip(self.ranges, shards, strict=True) if shard)
        self.progress(done, self.plan.rows)
        with self._pixels([self.ranges[number] for number in missing]) as chunks:
            for number in missing:
                parts = []
                for _ in range(0, len(self.ranges[number]), CHUNK):
                    parts.append(self._chunk(*next(chunks)))
                    done += len(parts[-1][0])
                    self.progress(done, self.plan.rows)
                shards[number] = self._write(number, parts)
        self._sweep()
        found = [shard for shard in shards if shard]
        statuses = [status for shard in found for status in _problems(self.out / shard.file)]
        data = self._note(True, found, self.plan.rows - len(statuses))
        return Encoding(data, len(missing), tuple(statuses))

    def _existing(self, number: int) -> Shard | None:
        """Return a shard that is there and up to date; None otherwise."""
        with suppress(Exception):  # missing, cut short, or not ours
            from pyarrow import parquet

            with parquet.ParquetFile(self.out / _name(number), page_checksum_verification=True) as opened:
                said = json.loads(opened.schema_arrow.metadata[b"twincluster"])
                opened.read(columns=["status"])
            if said["key"] == self._key(number):
                return Shard(_name(number), len(self.ranges[number]), str(said["digest"]))
        return None

    def _is_complete(self, shards: Sequence[Shard | None]) -> bool:
        if not is_encoded(self.out):
            return False
        before = EncodedData.read(self.out)
        return before.complete and list(before.shards) == list(shards)

    def _key(self, number: int) -> str:
        """Hash what the content of a shard depends on: its inputs as they are now, and the encoder."""
        plan, rows = self.plan, self.ranges[number]
        known_by = (FORMAT, plan.encoder, plan.version, plan.side, plan.frame, plan.dtype, plan.thumbnails, plan.base)
        digest = hashlib.sha256(repr(known_by).encode(errors="surrogatepass"))
        for row in rows:
            digest.update(f"{self.listing.paths[row]}\n{self._stamp(row)}\n".encode())
        return digest.hexdigest()

    def _stamp(self, row: int) -> str:
        if self.listing.files is None:
            assert self.listing.array is not None
            return digest_of(self.listing.array[row])
        file = self.listing.files[row]
        return stamp_of(file, entry_of("", file))

    @contextmanager
    def _pixels(self, ranges: Sequence[range]) -> Iterator[Iterator[tuple[range, np.ndarray, list[tuple[str, str]]]]]:
        """Yield the rows, pixels (m,s,s,3), and status and digest of each, of one chunk of the ranges after another."""
        if not ranges:
            yield iter(())
        elif self.listing.files is None:
            yield self._of_array(ranges)
        else:
            path = self.out / PIXELS_FILE
            try:
                with naming(path):
                    yield self._of_files(ranges, path)
            finally:
                path.unlink(missing_ok=True)

    def _of_array(self, ranges: Sequence[range]) -> Iterator[tuple[range, np.ndarray, list[tuple[str, str]]]]:
        images = open_images(self.listing, side=self.encoder.side).pixels
        for rows in _chunks_of(ranges):
            pixels = np.array(images[rows.start : rows.stop])
            yield rows, pixels, [("ok", digest_of(image)) for image in pixels]

    def _of_files(
        self, ranges: Sequence[range], path: Path
    ) -> Iterator[tuple[range, np.ndarray, list[tuple[str, str]]]]:
        side, files = self.encoder.side, self.listing.files or ()
        size = min(CHUNK + IN_FLIGHT, CHUNK * -(-sum(map(len, ranges)) // CHUNK))
        with naming(path), open(path, "wb", buffering=0) as file:
            for _ in range(size):  # so that a full disk is noticed before decoding
                file.write(bytes(side * side * 3))
        ring = np.memmap(path, np.uint8, "r", shape=(size, side, side, 3))
        tasks = [(place % size, files[row]) for place, row in enumerate(row for rows in ranges for row in rows)]
        statuses, place = decode_many(tasks, RowFile(path, 0, side, self.plan.frame), self.workers), 0
        try:
            for rows in _chunks_of(ranges):
                said = [next(statuses) for _ in rows]
                yield rows, ring[np.arange(place, place + len(rows)) % size], said
                place += len(rows)
        finally:
            statuses.close()

    def _chunk(
        self, rows: range, pixels: np.ndarray, said: list[tuple[str, str]]
    ) -> tuple[list[_Row], np.ndarray]:  # fmt: skip
        features = np.concatenate(encode_chunk(pixels, self.encoder, self.device), 1)
        features[[status != "ok" for status, _ in said]] = 0  # the encoder's answer to a black square
        with np.errstate(over="ignore"):
            stored = features.astype(self.plan.dtype)
        if not np.isfinite(stored).all():
            raise InputError(
                f"{self.encoder.name} gives features up to {np.abs(features).max():.3g}, which {self.plan.dtype} "
                "cannot hold: encode with --float32"
            )
        prefix = f"{pixels.shape[1]}-{self.plan.frame}-"
        found = [
            _Row(f"{prefix}{digest}", perceptual_hash(image), "ok", _thumbnail(image) if self.plan.thumbnails else None)
            if status == "ok"
            else _Row("", 0, status, None)
            for image, (status, digest) in zip(pixels, said, strict=True)
        ]
        return found, stored

    def _write(self, number: int, parts: Sequence[tuple[list[_Row], np.ndarray]]) -> Shard:
        from pyarrow import parquet

        rows, features = [row for part, _ in parts for row in part], np.concatenate([part for _, part in parts])
        table, digest = self._table(number, rows, features)
        path = self.out / _name(number)
        said = json.dumps({"key": self._key(number), "digest": digest})
        with naming(path), unfinished(path) as partial:
            parquet.write_table(
                table.replace_schema_metadata({"twincluster": said}), partial, compression="zstd",
                use_dictionary=["status"], write_page_checksum=True,
            )  # fmt: skip
        return Shard(path.name, len(rows), digest)

    def _table(self, number: int, rows: Sequence[_Row], features: np.ndarray) -> tuple[Any, str]:
        import pyarrow as pa

        places = [self._place(row) for row in self.ranges[number]]
        columns: dict[str, list[Any]] = {
            "path": [self.listing.paths[row] for row in self.ranges[number]],
            **{name: [place[at] for place in places] for at, name in enumerate(("file", "start", "bytes", "stamp"))},
            **{name: [getattr(row, name) for row in rows] for name in ("content", "perceptual", "status")},
        }
        arrays = {name: pa.array(values, COLUMNS[name]) for name, values in columns.items()}
        flat = pa.array(np.ascontiguousarray(features).reshape(-1))
        arrays["features"] = pa.FixedSizeListArray.from_arrays(flat, features.shape[1])
        if self.plan.thumbnails:
            arrays["thumbnail"] = pa.array([row.thumbnail for row in rows], pa.binary())
        digest = hashlib.sha256(np.ascontiguousarray(features).data)
        digest.update(json.dumps([columns[name] for name in ("path", "stamp", "content", "status")]).encode())
        return pa.table(arrays), digest.hexdigest()[:32]

    def _place(self, row: int) -> tuple[str | None, int | None, int, str]:
        """Return the columns file, start, bytes and stamp of an input."""
        if self.listing.files is None:
            assert self.listing.array is not None
            return None, None, self.listing.array[row].nbytes, self._stamp(row)
        file, path = self.listing.files[row], self.listing.paths[row]
        if isinstance(file, Member):
            return printable(str(file.archive)), file.start, file.size, self._stamp(row)
        usual = Path(self.plan.base) / as_on_disk(path)
        elsewhere = None if usual == Path(file) else printable(str(file))
        entry = entry_of("", file)
        return elsewhere, None, entry[1], stamp_of(file, entry)

    def _note(self, complete: bool, shards: Sequence[Shard], readable: int = 0) -> EncodedData:
        data = replace(self.plan, complete=complete, shards=tuple(shards), readable=readable)
        with naming(self.out / ENCODED_FILE):
            write_json(self.out / ENCODED_FILE, asdict(data))
        return data

    def _sweep(self) -> None:
        """Remove shards of an earlier state of the source that had more images."""
        known = {_name(number) for number in range(len(self.ranges))}
        for path in self.out.glob("shard-*.parquet"):
            if path.name not in known:
                path.unlink()


def _chunks_of(ranges: Sequence[range]) -> Iterator[range]:
    for rows in ranges:
        for start in range(rows.start, rows.stop, CHUNK):
            yield range(start, min(start + CHUNK, rows.stop))


def _name(number: int) -> str:
    return f"shard-{number:05}.parquet"


def _problems(path: Path) -> list[str]:
    from pyarrow import parquet

    return [status for status in parquet.read_table(path, columns=["status"])["status"].to_pylist() if status != "ok"]


def _thumbnail(image: np.ndarray) -> bytes:
    written = io.BytesIO()
    side = (THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    Image.fromarray(image).resize(side, Image.Resampling.BOX).save(written, "JPEG", quality=80)
    return written.getvalue()
