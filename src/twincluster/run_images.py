"""The images behind the rows of a run, as far as they can be found again, and what the network makes of them.

Those of the training come from the run's source or, where that has moved, from the store they were decoded into; what
`twincluster update` has added or changed comes from its own files. Shapes: n rows of the run, m some of them, D.

What a run saw of its files, from the store that they were decoded into, where the files themselves are gone.

A store is taken only if it has the fingerprint of the run: its pixels are then those of the training, wherever the
files are now.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twincluster.config import Config
from twincluster.core import InputError
from twincluster.data import (
    File,
    Images,
    Listing,
    Member,
    Row,
    Store,
    fingerprint_of,
    open_source,
    place_of,
    read_journal,
)
from twincluster.methods import inference
from twincluster.model import encoder_of, load_network, open_for, open_with
from twincluster.nn import MODULE, encode
from twincluster.resolve import resolve_device
from twincluster.runs import Assignments, Edits, Run, State, base_of, read_stamps, row_names, stamps_of, with_edits

MOVED = "the images have moved or changed since"
IS_ROWS = "the inputs are rows of numbers, which have no pictures"

_ESCAPE = re.compile(r"\\(?:([\\nrt])|x([0-9a-f]{2})|u([0-9a-f]{4}))")
_LETTERS = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
Told = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a run that were opened together, each as it was when the model decided about it."""

    rows: np.ndarray  # (m,) rising
    places: np.ndarray  # (m,) of each in ...
    images: Images  # ... what the network sees, pixels or features of an encoder, ...
    pictures: np.ndarray | None  # ... and in the pixels to look at; None for rows of numbers

    def among(self, wanted: np.ndarray) -> Part:
        kept = np.isin(self.rows, wanted)
        return Part(self.rows[kept], self.places[kept], self.images, self.pictures)


class Pictures:
    """Square pictures of rows, uint8 (s,s,3), from all parts of a run; `row in pictures` tells whether there is one."""

    def __init__(self, count: int, parts: Sequence[Part]) -> None:
        self._arrays = [part.pictures for part in parts if part.pictures is not None]
        self._array, self._place = np.full(count, -1, np.int64), np.zeros(count, np.int64)
        for number, part in enumerate(part for part in parts if part.pictures is not None):
            self._array[part.rows], self._place[part.rows] = number, part.places

    @property
    def side(self) -> int:
        """Pixels of the first of them: what came later may have another size."""
        return int(self._arrays[0].shape[1]) if self._arrays else 0

    def __contains__(self, row: int) -> bool:
        return bool(row < len(self._array) and self._array[row] >= 0)

    def __getitem__(self, row: int) -> np.ndarray:
        return np.asarray(self._arrays[self._array[row]][self._place[row]])


@dataclass(eq=False)
class Inputs:
    """A run with its rows, and where these came from."""

    run: Run
    root: Path | None = None  # of named data sets
    device: str = "auto"
    decoding: Told | None = None
    encoding: Told | None = None
    absent: str = field(default="", init=False)  # why images are missing, where some are
    source: Listing | None = field(default=None, init=False)  # what the run was trained on, if it is still there

    def __post_init__(self) -> None:
        self.config, self.shape, self.data = self.run.read_config()
        self.assignments = self.run.read_assignments()

    def edited(self) -> tuple[Assignments, State, int]:
        """The rows as the edits have them, and how many are in force; without any the model's own."""
        edits = Edits(self.run, self._features_later)
        state, count = edits.state, len(edits.history[0])
        return (with_edits(self.assignments, state) if count else self.assignments), state, count

    @cached_property
    def listing(self) -> Listing | None:
        """The source of the run as it is now, if it can be opened still."""
        return own_source(self.run, self.root)

    @cached_property
    def files(self) -> list[Path | Member]:
        """Where the file of each row is, or was."""
        known: dict[str, File] = {}
        if self.listing and self.listing.files is not None:
            known = dict(zip(self.listing.paths, self.listing.files, strict=True))
        base = base_of(self.data)
        found = [
            known.get(path) or os.path.abspath(os.path.join(base, as_on_disk(path))) for path in self.assignments.paths
        ]
        return [file if isinstance(file, Member) else Path(file) for file in found]

    @cached_property
    def knows_files(self) -> bool:
        """A model that was shared has neither a place nor stamps: what is called like its rows is something else."""
        return bool(self.data["files"] and (self.data["location"] or read_stamps(self.run.folder)))

    @cached_property
    def own(self) -> Part | None:
        """Rows of the training, without those that `update` has changed."""
        images, why = reopen(self.run, self.root, self.decoding, self.listing)
        if images is not None:
            self.source = images.listing
            usable = images.usable[self.assignments.clusters[images.usable] >= 0]
            return Part(usable, usable, images, pictures_of(images))
        self.absent = str(why)
        stored = open_stored(self.config, self.data, resolve_device(self.device))
        if stored is None:
            return None
        images, known = stored.images, read_stamps(self.run.folder)
        said = [known.get(path, stamp) for path, stamp in zip(images.listing.paths, stored.stamps, strict=True)]
        # an image in an archive has a longer stamp, and changes only with all of its archive
        same = np.array([now == then or now.count("-") > 1 for now, then in zip(said, stored.stamps, strict=True)])
        usable = images.usable[same[images.usable] & (self.assignments.clusters[images.usable] >= 0)]
        return Part(usable, usable, images, stored.pixels)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All rows that can be seen as they were when the model decided about them."""
        own = self.own
        rest = np.flatnonzero(self.assignments.clusters >= 0)
        rest = rest if own is None else np.setdiff1d(rest, own.rows)
        found = (own, *self._from_arrays(rest), self._from_files(rest))
        return tuple(part for part in found if part is not None and len(part.rows))

    def pictures(self) -> tuple[Pictures | None, str]:
        """To look at; else why there are none."""
        if any(part.images.is_rows and part.pictures is None for part in self.parts):
            return None, IS_ROWS
        if not self.parts:
            return None, self.absent
        return Pictures(len(self.assignments.paths), self.parts), ""

    def features(self, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The embedding of those rows that can be read again, (m,D) float32, and which these are, (m,), rising."""
        return self._embedded([part if rows is None else part.among(rows) for part in self.parts])

    def features_of(self, rows: np.ndarray) -> np.ndarray:
        """The embedding of all of these rows, (m,D), in their order; InputError where one cannot be read again."""
        features, found = self.features(rows)
        if len(missing := np.setdiff1d(rows, found)):
            lost = self.assignments.paths[int(missing[0])][:200]
            why = f" ({self.absent})" if self.absent else ""
            raise InputError(f"{lost} cannot be read again{why}: put it back, or move it to another cluster first")
        return np.asarray(features[np.searchsorted(found, rows)])

    def _features_later(self, rows: np.ndarray) -> np.ndarray | None:
        """For rows that came after a split: all of them, or none where one is missing."""
        features, found = self._embedded([*self._from_arrays(rows), self._from_files(rows)])
        return features if np.array_equal(found, rows) else None

    def _embedded(self, parts: Sequence[Part | None]) -> tuple[np.ndarray, np.ndarray]:
        some = [part for part in parts if part is not None and len(part.rows)]
        if not some:
            return np.empty((0, 0), np.float32), np.empty(0, np.int64)
        network = load_network(self.run, resolve_device(self.device))
        features = np.concatenate([inference.embed(network, part.images.pixels, part.places).numpy() for part in some])
        rows = np.concatenate([part.rows for part in some])
        order = np.argsort(rows, kind="stable")
        return features[order], rows[order]

    def _from_files(self, rows: np.ndarray) -> Part | None:
        """Rows by their own files, as far as these are there and unchanged."""
        count, paths, stamps = self.data["inputs"], self.assignments.paths, read_stamps(self.run.folder)
        there = [row for row in rows.tolist() if self.knows_files or (row >= count and os.path.isabs(paths[row]))]
        there = [row for row in there if is_there(self.files[row])]
        if not there:
            return None
        listing = Listing(
            self.data["source"], tuple(paths[row] for row in there), files=tuple(self.files[row] for row in there)
        )
        said = stamps_of(listing)
        same = [at for at, row in enumerate(there) if stamps.get(paths[row], said[at]) == said[at]]
        return self._opened(listing.part(same), np.array(there)[same]) if same else None

    def _from_arrays(self, rows: np.ndarray) -> Iterator[Part]:
        """Rows that `update` took from arrays."""
        known, stamps = {self.assignments.paths[row]: row for row in rows.tolist()}, read_stamps(self.run.folder)
        places = {record["location"]: None for record in self.run.read_updates() if not record["files"]}
        for location in places if known else ():
            try:
                listing = open_source(location, root=self.root, labels="none", at_least=1)
            except InputError:
                continue
            names = row_names(listing, location, self.data, self.assignments.paths)
            said = stamps_of(listing)
            same = [at for at, name in enumerate(names) if name in known and stamps.get(name, said[at]) == said[at]]
            found = np.array([known.pop(names[at]) for at in same], dtype=np.int64)
            order = np.argsort(found, kind="stable")
            part = self._opened(listing.part(np.array(same)[order].tolist()), found[order]) if same else None
            if part is not None:
                yield part

    def _opened(self, listing: Listing, rows: np.ndarray) -> Part | None:
        try:
            _, images = open_with(self.run, listing, self.device, self.decoding, self.encoding)
            return Part(rows[images.usable], images.usable, images, pictures_of(images))
        except InputError as error:
            self.absent = str(error)
            return None


def pictures_of(images: Images) -> np.ndarray | None:
    """Pixels as the network saw them, or what an encoder saw before it made features of them."""
    return None if images.listing.is_rows else images.pixels if images.pictures is None else images.pictures


def is_there(file: Path | Member) -> bool:
    return os.path.exists(file.archive if isinstance(file, Member) else file)


def as_on_disk(name: str) -> str:
    """A file name as the system has it, from how it is written in a table."""
    return _ESCAPE.sub(_unescaped, name)


def _unescaped(found: re.Match[str]) -> str:
    letter, byte, code = found.groups()
    if letter:
        return _LETTERS[letter]
    if byte:  # from 0x80 on a byte that is no UTF-8, as Python carries it
        return chr(int(byte, 16) + (0xDC00 if byte >= "80" else 0))
    return chr(int(code, 16))


class Stored(NamedTuple):
    images: Images  # what the network saw
    pixels: np.ndarray  # (n,s,s,3) to look at
    stamps: tuple[str, ...]  # of the files when they were decoded, as known.py writes them


def open_stored(config: Config, data: Mapping[str, Any], device: str) -> Stored | None:
    """None where there is no such store. `data` is what config.json says of the source."""
    if not data["files"] or not data["location"]:
        return None
    with suppress(InputError, OSError, ValueError):
        encoder = encoder_of("the run", config, data)
        side = encoder.side if encoder else int(data.get("side") or 0)
        source = Listing(data["source"], (), files=(), root=Path(data["location"]))
        for journal in sorted(place_of(source, side, config.train.frame, None).glob("*.jsonl")):
            rows = read_journal(journal)
            kept = [rows[row] for row in range(len(rows)) if row in rows]
            store = Store(journal.parent, [row.entry for row in kept], side, config.train.frame)
            if store.journal == journal and _is_the_runs(store, kept, data):
                pixels = np.load(store.pixels, mmap_mode="r", allow_pickle=False)
                images = _images(data["source"], kept, pixels, data["fingerprint"])
                stamps = tuple(f"{row.entry[1]}-{row.entry[2]}" for row in kept)
                return Stored(encode(images, encoder, device) if encoder else images, pixels, stamps)
    return None


def _is_the_runs(store: Store, kept: list[Row], data: Mapping[str, Any]) -> bool:
    rows = dict(enumerate(kept))
    if len(kept) != data["inputs"] or len(store.rows()) != len(kept):
        return False
    return bool(fingerprint_of(store.side, store.frame, rows) == data["fingerprint"])


def _images(name: str, kept: list[Row], pixels: np.ndarray, fingerprint: str) -> Images:
    listing = Listing(name, tuple(row.entry[0] for row in kept), files=())
    status = tuple(row.status for row in kept)
    usable = np.flatnonzero([said == "ok" for said in status]).astype(np.int64)
    return Images(listing, pixels, status, usable, fingerprint)


def own_source(run: Run, root: Path | None) -> Listing | None:
    """The source that the run was trained on, as it is now; None where it cannot be opened any more."""
    data = run.read_config()[2]
    if not data["location"]:
        return None
    root = root or (Path(data["root"]) if data.get("root") else None)
    try:
        return open_source(data["location"], root=root, at_least=1)
    except InputError:
        return None


def reopen(
    run: Run, root: Path | None, decoding: Callable[[int, int], None] | None, source: Listing | None = None
) -> tuple[Images | None, str | None]:
    """What the run saw of its source, if it is still there and still the same; else why not. `source` is what
    `own_source` gave, where it was asked already."""
    config, _, data = run.read_config()
    if config.train.frozen.startswith(MODULE):
        return None, f"{config.train.frozen.removeprefix(MODULE)} is a module of your own, which no run folder holds"
    if not data["location"]:
        return None, "the images were handed over in Python, and where they are is not known"
    if (listing := trained_on(run, source or own_source(run, root))) is None:
        return None, MOVED
    try:
        images = open_for(config, listing, decoding, encoder=encoder_of(run.folder, config, data))
    except InputError as error:
        return None, str(error)
    return (images, None) if images.fingerprint == data["fingerprint"] else (None, MOVED)


def trained_on(run: Run, listing: Listing | None) -> Listing | None:
    """The inputs of the training in the run's own source, which may have more of them since `twincluster update`; None
    where some are gone."""
    if listing is None:
        return None
    count = run.read_config()[2]["inputs"]
    if len(listing.paths) == count or not run.is_updated:
        return listing if len(listing.paths) == count else None
    places = {path: row for row, path in enumerate(listing.paths)}
    rows = [places.get(path, -1) for path in run.read_assignments().paths[:count]]
    return listing.part(rows) if min(rows) >= 0 else None
