"""Find the images behind the rows of a run, and compute their features.

Training images come from the run's source or, if that has moved, from the store they were decoded into. Images that
`twincluster update` added or changed come from their own files. Shapes: n rows of the run, m of them, D features.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from twincluster.clustering import Head, Lesson, Space, Tree, teach
from twincluster.core import SEAL, InputError, OnProgress, check_seal, seal, unfinished
from twincluster.data import (
    File,
    Images,
    Listing,
    Member,
    Originals,
    Row,
    Store,
    as_on_disk,
    cache_folder,
    decode,
    fingerprint_of,
    open_source,
    place_of,
    read_journal,
    recorded,
)
from twincluster.fit import tree_of
from twincluster.model import Model, encoder_of, open_for
from twincluster.nn import MODULE, Encoder, encode
from twincluster.resolve import resolve_device
from twincluster.runs import (
    TREE_FILE,
    Assignments,
    Edits,
    Kinds,
    Run,
    State,
    apply_edits,
    base_of,
    content_of,
    content_of_pixels,
    read_contents,
    read_stamps,
    read_tree,
    row_names,
    stamps_of,
    write_tree,
)

MOVED = "the images have moved or changed since"
NO_ORIGINALS = "the images are no longer where they were encoded, and there are no thumbnails"
IS_ROWS = "the inputs are rows of numbers, which have no pictures"

SPACE_VERSION = 2  # of how features become a space: another number, another file in the cache


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a run that were opened together, unchanged since the model assigned them."""

    rows: np.ndarray  # (m,) ascending
    places: np.ndarray  # (m,) index of each row in ...
    images: Images  # ... the network's input, pixels or features of an encoder, ...
    pictures: np.ndarray | Originals | None  # ... and in the pixels to show; None for rows of numbers

    def among(self, wanted: np.ndarray) -> Part:
        """Return the part of these rows that are wanted."""
        mask = np.isin(self.rows, wanted)
        return Part(self.rows[mask], self.places[mask], self.images, self.pictures)


class Pictures:
    """Square pictures of rows, uint8 (s,s,3), from all parts of a run; `row in pictures` tells whether a row has
    one.
    """

    def __init__(self, count: int, parts: Sequence[Part]) -> None:
        self._arrays = [part.pictures for part in parts if part.pictures is not None]
        self._array, self._place = np.full(count, -1, np.int64), np.zeros(count, np.int64)
        for number, part in enumerate(part for part in parts if part.pictures is not None):
            self._array[part.rows], self._place[part.rows] = number, part.places

    @property
    def side(self) -> int:
        """Side in pixels of the first part; later parts may have other sizes."""
        return int(self._arrays[0].shape[1]) if self._arrays else 0

    def __contains__(self, row: int) -> bool:
        return bool(row < len(self._array) and self._array[row] >= 0)

    def __getitem__(self, row: int) -> np.ndarray:
        return np.asarray(self._arrays[self._array[row]][self._place[row]])


@dataclass(eq=False)
class RunImages:
    """A run with its rows, and the images they came from."""

    run: Run
    root: Path | None = None  # of named data sets
    device: str = "auto"
    decoding: OnProgress | None = None
    encoding: OnProgress | None = None
    absent: str = field(default="", init=False)  # why images are missing; "" if none are
    source: Listing | None = field(default=None, init=False)  # the training source, if it still exists

    def __post_init__(self) -> None:
        self.config, self.shape, self.data = self.run.config, self.run.shape, self.run.data

    @cached_property
    def assignments(self) -> Assignments:
        """The rows, read on first use: a model can be shared without them."""
        return self.run.read_assignments()

    @cached_property
    def model(self) -> Model:
        return Model.load(self.run, self.device)

    @cached_property
    def edits(self) -> Edits:
        """The edits of the run, with access to the features, so that they can split clusters."""
        return Edits(self.run, self.kinds_later, self.features_of, self.relearn)

    def edited(self) -> tuple[Assignments, State, int]:
        """Return the rows with edits applied, the state of the edits, and how many are in force."""
        state, count = self.edits.state, len(self.edits.history[0])
        return (apply_edits(self.assignments, state) if count else self.assignments), state, count

    @cached_property
    def listing(self) -> Listing | None:
        """The source of the run as it is now; None if it cannot be opened."""
        if not self.data.location:
            return None
        root = self.root or (Path(self.data.root) if self.data.root else None)
        try:
            return open_source(self.data.location, root=root, at_least=1)
        except InputError:
            return None

    @cached_property
    def trained_on(self) -> Listing | None:
        """The training inputs in the run's own source, which may have grown since; None if some are gone."""
        listing, count = self.listing, self.data.inputs
        if listing is None or len(listing.paths) == count:
            return listing
        if not self.run.is_updated:
            return None
        places = {path: row for row, path in enumerate(listing.paths)}
        rows = [places.get(path, -1) for path in self.assignments.paths[:count]]
        return listing.part(rows) if min(rows) >= 0 else None

    @cached_property
    def training(self) -> Images | None:
        """The training images as the network read them; None, with the reason in `absent`, if they are unavailable."""
        frozen = self.config.train.frozen
        if frozen.startswith(MODULE):
            self.absent = f"{frozen.removeprefix(MODULE)} is a module of your own, which a run folder cannot contain"
        elif not self.data.location:
            self.absent = "the images were passed from Python, so their location is unknown"
        elif self.trained_on is None:
            self.absent = MOVED
        else:
            try:
                encoder = encoder_of(self.run.folder, self.config, self.data)
                images = open_for(self.config, self.trained_on, self.decoding, encoder=encoder)
            except InputError as error:
                self.absent = str(error)
                return None
            if images.fingerprint == self.data.fingerprint:
                return images
            self.absent = MOVED
        return None

    @cached_property
    def files(self) -> list[Path | Member]:
        """The path of each row's file, whether it exists or not."""
        listed: dict[str, File] = {}
        if self.listing and self.listing.files is not None:
            listed = dict(zip(self.listing.paths, self.listing.files, strict=True))
        base = base_of(self.data)
        files = [
            listed.get(path) or os.path.abspath(os.path.join(base, as_on_disk(path))) for path in self.assignments.paths
        ]
        return [file if isinstance(file, Member) else Path(file) for file in files]

    @cached_property
    def knows_files(self) -> bool:
        """False for a shared model: it has no location and no stamps, so files named like its rows are others."""
        return bool(self.data.files and (self.data.location or read_stamps(self.run.folder)))

    @cached_property
    def own(self) -> Part | None:
        """Training rows, without those that `update` has changed."""
        if (images := self.training) is not None:
            self.source = images.listing
            usable = images.usable[self.assignments.clusters[images.usable] >= 0]
            return Part(usable, usable, images, pictures_of(images))
        return self._from_store()

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All rows that can be read unchanged since the model assigned them."""
        own = self.own
        rest = np.flatnonzero(self.assignments.clusters >= 0)
        rest = rest if own is None else np.setdiff1d(rest, own.rows)
        parts = (own, *self._from_arrays(rest), self._from_files(rest))
        return tuple(part for part in parts if part is not None and len(part.rows))

    def pictures(self) -> tuple[Pictures | None, str]:
        """Return the pictures to show, or None and the reason."""
        if self.parts and all(part.pictures is None for part in self.parts):
            return None, IS_ROWS if self.parts[0].images.listing.encoded is None else NO_ORIGINALS
        if not self.parts:
            return None, self.absent
        return Pictures(len(self.assignments.paths), self.parts), ""

    def contents(self) -> dict[int, str]:
        """Return a content hash of each row, by row. Compute hashes that the run folder lacks."""
        kept = read_contents(self.run.folder)
        found = {row: kept[path] for row, path in enumerate(self.assignments.paths) if path in kept}
        missing = np.setdiff1d(np.flatnonzero(self.assignments.clusters >= 0), list(found))
        for part in self.parts if len(missing) else ():
            some = part.among(missing)
            for row, place in zip(some.rows.tolist(), some.places.tolist(), strict=True):
                found[row] = content_of(part.images, place, self.config.train.frame)
        return found

    def content_at(self, row: int, size: str) -> str | None:
        """Return the content hash of one image, decoded at another size ("160-crop"); None without a file."""
        side, _, frame = size.partition("-")
        if frame not in ("crop", "letterbox") or not self.knows_files or not is_there(self.files[row]):
            return None
        pixels, _ = decode(self.files[row], int(side), "crop" if frame == "crop" else "letterbox")
        return None if pixels is None else content_of_pixels(pixels, frame)

    def features(self, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the embedding of the rows that can be read, (m,D) float32, and these rows, (m,), ascending."""
        return self._embedded([part if rows is None else part.among(rows) for part in self.parts])

    def features_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the embedding of all of these rows, (m,D), in their order. Raise InputError if one cannot be read."""
        features, readable = self.features(rows)
        if len(missing := np.setdiff1d(rows, readable)):
            lost = self.assignments.paths[int(missing[0])][:200]
            why = f" ({self.absent})" if self.absent else ""
            raise InputError(f"{lost} cannot be read again{why}: put it back, or move it to another cluster first")
        return np.asarray(features[np.searchsorted(readable, rows)])

    def kinds(self) -> tuple[Kinds, np.ndarray]:
        """Return `Model.kinds` of the rows that can be read, each (m,D), and these rows, (m,), ascending."""
        return self._kinds_of(self.parts)

    @cached_property
    def space(self) -> tuple[np.ndarray, Space]:
        """Rows that can be read, (m,), ascending, and the space of their features. Cached on disk."""
        path = self._place_of_space()
        if (cached := _read_space(path)) is not None:
            return cached
        kinds, rows = self.kinds()
        if not len(rows):
            raise InputError(f"there is nothing to learn from: {self.absent or 'no image can be read again'}")
        for kind in kinds:
            if len(odd := np.flatnonzero(~np.isfinite(kind).all(1))):
                path = self.assignments.paths[rows[odd[0]]][:200]
                raise InputError(f"the features of {path} contain NaN or infinity: remove this input, and fit again")
        space = Space.of(kinds[0], kinds[1] if len(kinds) > 1 else None, self.config.seed)
        with suppress(OSError):  # without the cache the next start takes a minute longer
            _write_space(path, rows, space)
        return rows, space

    def tree(self) -> tuple[Tree, str]:
        """Return the tree of the clusters, and a sentence if it had to be made: from the features, which are cached."""
        tree, why = read_tree(self.run)
        if tree is not None:
            return tree, ""
        features, rows = self.features()
        if not len(rows):
            raise InputError(
                f"{self.run.folder} has no usable {TREE_FILE} ({why}), and it cannot be made: "
                f"{self.absent or 'no image can be read again'}; restore a copy of the file, or the images"
            )
        tree = tree_of(features, rows, self.assignments.clusters, self.config.seed)
        with suppress(OSError):  # where nothing can be written it is made each time
            write_tree(self.run, tree)
        return tree, f"made the tree of the clusters from the features, because {why}"

    def learn(self, state: State, examples: np.ndarray | None = None) -> Lesson:
        """Teach a model the examples of a state, or others (n,), and apply it to every row of `space`."""
        return learn(*self.space, state, self.config.seed, examples)

    def relearn(self, edit: int) -> Head:
        """Return the head that an `accept` was made with."""
        return self.learn(self.edits.before(edit)).head

    def _place_of_space(self) -> Path:
        """Return the cache path, which depends on the model, the images and the updates."""
        digest = hashlib.sha256(self.run.model.read_bytes())
        stamps = sorted(read_stamps(self.run.folder).items())
        known_by = (SPACE_VERSION, self.data.fingerprint, self.assignments.paths, stamps, self.config.seed)
        digest.update(repr(known_by).encode(errors="surrogatepass"))
        return cache_folder() / "spaces" / f"{digest.hexdigest()[:32]}.safetensors"

    def kinds_later(self, rows: np.ndarray) -> Kinds | None:
        """Return the features of rows that were added after a split or a lesson; None if one is missing."""
        kinds, readable = self._kinds_of([*self._from_arrays(rows), self._from_files(rows)])
        return kinds if np.array_equal(readable, rows) else None

    def _kinds_of(self, parts: Sequence[Part | None]) -> tuple[Kinds, np.ndarray]:
        some = [part for part in parts if part is not None and len(part.rows)]
        if not some:
            return (), np.empty(0, np.int64)
        rows = np.concatenate([part.rows for part in some])
        order = np.argsort(rows, kind="stable")
        joined = zip(*(self.model.kinds(part.images, part.places) for part in some), strict=True)
        return tuple(np.concatenate(kind)[order] for kind in joined), rows[order]

    def _embedded(self, parts: Sequence[Part | None]) -> tuple[np.ndarray, np.ndarray]:
        some = [part for part in parts if part is not None and len(part.rows)]
        if not some:
            return np.empty((0, 0), np.float32), np.empty(0, np.int64)
        features = np.concatenate([self.model.embed(part.images, part.places).numpy() for part in some])
        rows = np.concatenate([part.rows for part in some])
        order = np.argsort(rows, kind="stable")
        return features[order], rows[order]

    def _from_store(self) -> Part | None:
        """Return training rows from the store they were decoded into, if their files are gone.

        A store counts only if it has the fingerprint of the run: then its pixels are those of the training.
        """
        data, frame = self.data, self.config.train.frame
        if not data.files or not data.location:
            return None
        with suppress(InputError, OSError, ValueError):
            encoder = encoder_of(self.run.folder, self.config, data)
            side = encoder.side if encoder else data.side
            source = Listing(data.source, (), files=(), root=Path(data.location))
            for journal in sorted(place_of(source, side, frame, None).glob("*.jsonl")):
                journalled = read_journal(journal)
                rows = [journalled[row] for row in range(len(journalled)) if row in journalled]
                store = Store(journal.parent, [row.entry for row in rows], side, frame)
                if store.journal == journal and self._is_mine(store, rows):
                    return self._stored(store, rows, encoder)
        return None

    def _is_mine(self, store: Store, rows: list[Row]) -> bool:
        if len(rows) != self.data.inputs or len(store.rows()) != len(rows):
            return False
        return bool(fingerprint_of(store.side, store.frame, dict(enumerate(rows))) == self.data.fingerprint)

    def _stored(self, store: Store, rows: list[Row], encoder: Encoder | None) -> Part:
        """Return the rows of a store with undamaged pixels, except those whose files `update` found changed."""
        listing = Listing(self.data.source, tuple(row.entry[0] for row in rows), files=())
        pixels, fingerprint = store.open_pixels(), self.data.fingerprint
        sound = dict(enumerate(rows))
        if recorded(store) is None and len(sound := store.sound(sound)) < len(rows):
            fingerprint += f" without {len(rows) - len(sound)} rows"  # another key for the feature cache
        status = tuple(row.status for row in rows)
        readable = np.flatnonzero([row in sound and each == "ok" for row, each in enumerate(status)]).astype(np.int64)
        images = Images(listing, pixels, status, readable, fingerprint)
        if encoder:
            images = encode(images, encoder, resolve_device(self.device))
        then, now = [f"{row.entry[1]}-{row.entry[2]}" for row in rows], read_stamps(self.run.folder)
        # an image in an archive has a longer stamp; it changes only with the whole archive
        same = np.array(
            [
                now.get(path, stamp) == stamp or now[path].count("-") > 1
                for path, stamp in zip(listing.paths, then, strict=True)
            ]
        )
        usable = images.usable[same[images.usable] & (self.assignments.clusters[images.usable] >= 0)]
        return Part(usable, usable, images, pixels)

    def _from_files(self, rows: np.ndarray) -> Part | None:
        """Return the rows whose own files exist unchanged."""
        count, paths, stamps = self.data.inputs, self.assignments.paths, read_stamps(self.run.folder)
        there = [row for row in rows.tolist() if self.knows_files or (row >= count and os.path.isabs(paths[row]))]
        there = [row for row in there if is_there(self.files[row])]
        if not there:
            return None
        listing = Listing(
            self.data.source, tuple(paths[row] for row in there), files=tuple(self.files[row] for row in there)
        )
        current = stamps_of(listing)
        same = [at for at, row in enumerate(there) if stamps.get(paths[row], current[at]) == current[at]]
        return self._opened(listing.part(same), np.array(there)[same]) if same else None

    def _from_arrays(self, rows: np.ndarray) -> Iterator[Part]:
        """Return rows that `update` took from arrays."""
        known, stamps = {self.assignments.paths[row]: row for row in rows.tolist()}, read_stamps(self.run.folder)
        records = self.run.read_updates() if known else []
        for location in dict.fromkeys(record.location for record in records if not record.files and record.location):
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
            images = self.model.open(listing, self.decoding, self.encoding)
            return Part(rows[images.usable], images.usable, images, pictures_of(images))
        except InputError as error:
            self.absent = str(error)
            return None


def learn(rows: np.ndarray, space: Space, state: State, seed: int, examples: np.ndarray | None = None) -> Lesson:
    """Teach a model the examples of a state, or others (n,); `rows` (m,), ascending, are those in `space`."""
    given = state.examples if examples is None else examples
    refused = {cluster: np.searchsorted(rows, apart[np.isin(apart, rows)]) for cluster, apart in state.refused.items()}
    return teach(space, state.clusters_before[rows], given[rows], refused, seed)


def _read_space(path: Path) -> tuple[np.ndarray, Space] | None:
    """Read a cached space; None if it is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        check_seal(path)
        arrays = load_file(path)
        return arrays.pop("rows of the run"), Space.from_tensors(arrays)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None


def _write_space(path: Path, rows: np.ndarray, space: Space) -> None:
    from safetensors.numpy import save

    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(array) for name, array in space.tensors().items()}
    with unfinished(path) as partial:
        partial.write_bytes(save(arrays | {"rows of the run": rows}, SEAL))
        seal(partial)


def pictures_of(images: Images) -> np.ndarray | Originals | None:
    """Return the pixels as the network read them, or those that its encoder read."""
    if images.pictures is not None:
        return images.pictures
    return None if images.listing.is_rows else images.pixels


def is_there(file: Path | Member) -> bool:
    return os.path.exists(file.archive if isinstance(file, Member) else file)
