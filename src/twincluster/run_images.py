"""Find the images behind the rows of a run, compute their features, and evaluate the run.

Training images come from the run's source or, if that has moved, from the store they were decoded into. Images that
`twincluster update` added or changed come from their own files.

`findings_of` evaluates a finished run: scores against labels, and, with or without labels, sizes, confidence and
silhouette. Figures that need the images are left out, with a note, if the images are gone or have changed. Rows added
by `twincluster update` count if they have labels. Shapes: n rows of the run, m of them, D features.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twincluster.clustering import Head, Lesson, Scores, Space, knn_accuracy, score, silhouette, teach
from twincluster.config import Split
from twincluster.core import SEAL, InputError, OnProgress, check_seal, counted, seal, strict_json, unfinished
from twincluster.data import (
    File,
    Images,
    Labels,
    Listing,
    Looks,
    Member,
    Row,
    Store,
    cache_folder,
    decode,
    fingerprint_of,
    labels_of_shards,
    open_source,
    place_of,
    read_journal,
    read_labels,
    recorded,
)
from twincluster.fit import rows_to_score, scores_line, sizes_line
from twincluster.model import Model, encoder_of, open_for
from twincluster.nn import MODULE, Encoder, encode
from twincluster.resolve import resolve_device
from twincluster.runs import (
    Assignments,
    Edits,
    Inspected,
    Kinds,
    Problem,
    Run,
    RunData,
    State,
    apply_edits,
    base_of,
    content_of,
    content_of_pixels,
    find_problems,
    kinds_of,
    read_contents,
    read_problems,
    read_stamps,
    row_names,
    stamps_of,
    within_source,
    write_problems,
)

if TYPE_CHECKING:
    from twincluster.teacher import Trust

MOVED = "the images have moved or changed since"
IS_ROWS = "the inputs are rows of numbers, which have no pictures"

LOOKS_VERSION = 1  # of the figures of an image
SPACE_VERSION = 2  # of how features become a space: another number, another file in the cache

_ESCAPE = re.compile(r"\\(?:([\\nrt])|x([0-9a-f]{2})|u([0-9a-f]{4}))")
_LETTERS = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a run that were opened together, unchanged since the model assigned them."""

    rows: np.ndarray  # (m,) ascending
    places: np.ndarray  # (m,) index of each row in ...
    images: Images  # ... the network's input, pixels or features of an encoder, ...
    pictures: np.ndarray | None  # ... and in the pixels to show; None for rows of numbers

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
        return Edits(self.run, self._kinds_later, self.features_of, self.relearn)

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
        if any(part.images.is_rows and part.pictures is None for part in self.parts):
            return None, IS_ROWS
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

    def find_problems(self, changed: Container[str] | None = None) -> tuple[Problem, ...]:
        """Write problems.csv, and return its rows. With `changed`, only those of these paths are looked for again.

        The others keep theirs, unless there is no table yet.
        """
        inspected = self._inspected()
        earlier = None if changed is None else read_problems(self.run.folder, self.assignments.paths)
        fresh = None
        if changed is not None and earlier is not None:
            fresh = np.array([path in changed for path in inspected.paths], bool)
        problems = find_problems(inspected, earlier or (), fresh)
        write_problems(self.run.folder, problems)
        return tuple(problems)

    def problems(self) -> tuple[Problem, ...]:
        """Return the rows of problems.csv; runs without it get one."""
        read = read_problems(self.run.folder, self.assignments.paths)
        return self.find_problems() if read is None else read

    def _inspected(self) -> Inspected:
        """Return what can be read again of the rows; a path that a list names twice counts once."""
        contents, paths, named = self.contents(), self.assignments.paths, set[str]()
        rows: list[int] = []
        shown: list[tuple[np.ndarray, list[int], list[File]]] = []
        keys: list[str] = []
        features = []
        for part in self.parts:
            new = [at for at, row in enumerate(part.rows.tolist()) if paths[row] not in named]
            named.update(paths[row] for row in part.rows[new].tolist())
            rows += part.rows[new].tolist()
            places, listing = part.places[new].tolist(), part.images.listing
            if part.pictures is not None:
                files = [listing.files[place] for place in places] if listing.files else []
                stamps = [listing.entries[place] for place in places] if files else places
                keys += [_key_of(stamp, contents.get(row)) for stamp, row in zip(stamps, part.rows[new], strict=True)]
                shown.append((part.pictures, places, files))
            if part.images.is_rows:
                features.append(np.asarray(part.images.pixels[places]))
        is_complete = len(features) == len(self.parts) and len({each.shape[1] for each in features}) == 1
        return Inspected(
            [paths[row] for row in rows], [contents.get(row, str(row)) for row in rows],
            self._looks(shown, keys) if shown and len(shown) == len(self.parts) else None,
            np.concatenate(features) if is_complete else None,
        )  # fmt: skip

    def _looks(self, shown: Sequence[tuple[np.ndarray, list[int], list[File]]], keys: Sequence[str]) -> Looks:
        """Look at the pictures (pixels, places, files) of all parts, but for those in the cache."""
        path = (
            cache_folder()
            / "looks"
            / f"{hashlib.sha256(str(self.data.fingerprint).encode()).hexdigest()[:32]}.safetensors"
        )
        cached, numbers = _read_looks(path)
        looks, at, before = [] if cached is None else [cached], 0, len(numbers)
        for pixels, places, files in shown:
            new = [number for number in range(len(places)) if keys[at + number] not in numbers]
            numbers |= {keys[at + number]: len(numbers) + more for more, number in enumerate(new)}
            looks.append(Looks.of(pixels, [places[number] for number in new], [files[n] for n in new if files]))
            at += len(places)
        together = Looks.joined(looks).part(np.array([numbers[key] for key in keys], np.int64))
        if len(numbers) > before:
            with suppress(OSError):  # without the cache the next start takes a little longer
                _write_looks(path, together, keys)
        return together

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

    def _kinds_later(self, rows: np.ndarray) -> Kinds | None:
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
        """Rows that `update` took from arrays."""
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


def _key_of(stamp: object, content: str | None) -> str:
    """Return 32 letters for the state of a file and its content."""
    return hashlib.sha256(repr((LOOKS_VERSION, stamp, content)).encode(errors="surrogatepass")).hexdigest()[:32]


def _read_looks(path: Path) -> tuple[Looks | None, dict[str, int]]:
    """Read cached looks and their numbers by key; none if the file is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        check_seal(path)
        arrays = load_file(path)
        keys = arrays.pop("keys")
        return Looks(**arrays), {key.tobytes().decode(): number for number, key in enumerate(keys)}
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None, {}


def _write_looks(path: Path, looks: Looks, keys: Sequence[str]) -> None:
    from safetensors.numpy import save

    path.parent.mkdir(parents=True, exist_ok=True)
    table = np.frombuffer("".join(keys).encode(), np.uint8).reshape(len(keys), -1)
    with unfinished(path) as partial:
        partial.write_bytes(
            save({**{name: np.ascontiguousarray(a) for name, a in vars(looks).items()}, "keys": table}, SEAL)
        )
        seal(partial)


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


def pictures_of(images: Images) -> np.ndarray | None:
    """Return the pixels as the network read them, or those that its encoder read."""
    return None if images.listing.is_rows else images.pixels if images.pictures is None else images.pictures


def is_there(file: Path | Member) -> bool:
    return os.path.exists(file.archive if isinstance(file, Member) else file)


def as_on_disk(name: str) -> str:
    """Return a file name as on disk from its escaped form in a table."""
    return _ESCAPE.sub(_unescaped, name)


def _unescaped(found: re.Match[str]) -> str:
    letter, byte, code = found.groups()
    if letter:
        return _LETTERS[letter]
    if byte:  # from 0x80 on invalid UTF-8, as a surrogate escape
        return chr(int(byte, 16) + (0xDC00 if byte >= "80" else 0))
    return chr(int(code, 16))


FEATURE_SAMPLE = 20_000  # most inputs for silhouette and kNN
WIDEST_TABLE = 40  # most classes or clusters of a printed confusion matrix
LONGEST_NAME = 14  # letters of a class name in its header


@dataclass(frozen=True)
class Findings:
    """Scores and label-free figures of one partition."""

    assignments: Assignments
    n_clusters: int
    scores: Scores | None
    class_names: tuple[str, ...] | None
    scored_on: Split
    silhouette: float | None  # None without the images, or with fewer than two clusters that contain any
    knn: float | None
    absent: str | None = None  # why the images are unavailable
    added: int = 0  # inputs added after training
    unlabelled: int = 0  # inputs without a label, left out of the scores
    corrections: int = 0  # number of corrections by hand, which these figures ignore
    trust: Trust | None = None  # of the corrected clusters, by random questions that a person has answered
    names: Mapping[int, str] = field(default_factory=dict)  # of the corrected clusters

    def to_dict(self) -> dict[str, Any]:
        confidence = self.assignments.confidence
        return {
            "inputs": len(self.assignments.paths),
            "added": self.added,
            "corrections": self.corrections,
            "trust": self.trust.to_dict() if self.trust else None,
            "unreadable": int((self.assignments.clusters < 0).sum()),
            "incomplete": self.assignments.problems()["incomplete"],
            "too_large": self.assignments.problems()["too_large"],
            "sizes": self.assignments.sizes(self.n_clusters),
            "confidence": float(confidence[np.isfinite(confidence)].mean()) if np.isfinite(confidence).any() else None,
            "silhouette": self.silhouette,
            "knn": self.knn,
            "scored_on": self.scored_on if self.scores else None,
            **(self.scores.as_dict() if self.scores else {}),
            "class_names": list(self.class_names) if self.class_names and self.scores else None,
        }

    def to_json(self) -> str:
        """Return strict JSON; figures that do not exist are null."""
        return strict_json(self.to_dict(), indent=2)

    def to_text(self) -> str:
        figures = self.to_dict()
        unread = f"{figures['unreadable']:,} unreadable{kinds_of(self.assignments.problems())}"
        lines = [f"{figures['inputs']:,} inputs, {unread}, {self.n_clusters} clusters"]
        if self.added:
            lines.append(f"{self.added:,} of them were added after training, by twincluster update")
        if self.corrections:
            many = counted(self.corrections, "correction")
            lines.append(
                f"these are the model's own clusters, without {many} by hand; twincluster report includes them"
            )
        if self.trust:
            lines.append(f"with the corrections, {self.trust.to_text()}")
            lines += [
                f"  {self.names[cluster][:LONGEST_NAME]}: {share.to_text()}"
                for cluster, share in self.trust.clusters.items()
            ]
        lines.append(sizes_line(figures["sizes"]))
        if figures["confidence"] is not None:
            lines.append(f"mean confidence {figures['confidence']:.3f}")
        if self.silhouette is not None:
            lines.append(f"silhouette of the features {self.silhouette:.3f}")
        if self.absent:
            lines.append(f"no silhouette, no kNN accuracy: {self.absent}")
        if not self.scores:
            return "\n".join([*lines, "no labels: name --labels folders, or a file, for ACC, NMI and ARI"])
        left_out = f", without {self.unlabelled:,} unlabelled" if self.unlabelled else ""
        lines.append(scores_line(self.scores, self.scored_on) + left_out)
        if self.knn is not None:
            lines.append(f"kNN accuracy of the features {self.knn:.4f}")
        return "\n".join([*lines, "", _confusion_table(self.scores, self.class_names)])


def findings_of(
    run: Run,
    labels: str | None,
    root: Path | None,
    decoding: OnProgress | None = None,
    trust_of: Callable[[RunImages], Trust | None] = lambda images: None,
) -> Findings:
    """Evaluate a run. `labels` are as for `twincluster evaluate`; None takes those of the source, if any."""
    inputs = RunImages(run, root, decoding=decoding)
    assignments, config, data = inputs.assignments, run.config, run.data
    images, absent = inputs.training, inputs.absent or None
    truth, names = truth_of(run, labels, assignments, images.listing if images else None)
    added = len(assignments.paths) - data.inputs
    _, state, corrections = inputs.edited()
    findings = Findings(
        assignments, config.n_clusters, None, names, data.split, None, None, absent, added, corrections=corrections,
        trust=trust_of(inputs), names=state.names,
    )  # fmt: skip
    if truth is not None:
        if images is None and data.split != "all":
            raise InputError(
                f"{run.folder} was trained on the {data.split} part of {data.source}; to find out which images these "
                f"are, put {data.location} back, which has moved or changed"
            )
        rows, scored_on = rows_to_score(images.listing if images else None, data.split, len(assignments.paths))
        unlabelled = int((rows & (truth < 0) & (assignments.clusters >= 0)).sum())
        scores = score(truth[rows], assignments.clusters[rows])
        findings = dataclasses.replace(findings, scores=scores, scored_on=scored_on, unlabelled=unlabelled)
    if images:
        quality, knn = _feature_figures(run, images, assignments, truth)
        findings = dataclasses.replace(findings, silhouette=quality, knn=knn)
    return findings


def truth_of(run: Run, labels: str | None, assignments: Assignments, own: Listing | None) -> Labels | tuple[None, None]:
    """Return a label per row, -1 if unknown, and the class names; (None, None) without labels."""
    data, paths = run.data, assignments.paths
    if labels == "none" or (labels is None and (own is None or own.labels is None)):
        return None, None
    if labels is None and own is not None and own.labels is not None:
        codes, names = own.labels, own.class_names
    elif labels == "folders":
        updates = run.read_updates()
        inside = [within_source(path, updates) for path in paths]
        codes, names = read_labels("folders", data.source, inside, are_files=data.files)
    elif own is not None and (beside := labels_of_shards(own, str(labels))) is not None:
        codes, names = beside
    else:
        codes, names = _from_file(str(labels), data, paths)
    return np.concatenate([codes, np.full(len(paths) - len(codes), -1)]), names


def _from_file(labels: str, data: RunData, paths: Sequence[str]) -> Labels:
    """Read labels from a file. An array may have one per row, or only for the training rows, which come first."""
    try:
        return read_labels(labels, data.source, paths, are_files=data.files)
    except InputError:
        if not labels.endswith(".npy") or len(paths) == data.inputs:
            raise
        return read_labels(labels, data.source, paths[: data.inputs], are_files=data.files)


def _feature_figures(
    run: Run, images: Images, assignments: Assignments, truth: np.ndarray | None
) -> tuple[float | None, float | None]:
    """Return silhouette and, with labels, kNN accuracy on an even sample of the features."""
    rows = images.usable[:: math.ceil(len(images.usable) / FEATURE_SAMPLE) or 1]
    features = Model.load(run).embed(images, rows)
    quality = silhouette(features.numpy(), assignments.clusters[rows])
    split, knn = images.listing.split, math.nan
    if truth is not None:
        knn = knn_accuracy(features, truth[rows], split[rows] == 1 if split is not None else None)
    return quality if math.isfinite(quality) else None, knn if math.isfinite(knn) else None


def _confusion_table(scores: Scores, class_names: tuple[str, ...] | None) -> str:
    """Format the confusion matrix: clusters in the order of their matched classes as rows, classes as columns."""
    n_clusters, n_classes = scores.confusion.shape
    if max(n_clusters, n_classes) > WIDEST_TABLE:
        return "the confusion matrix is too wide to print: see --json"
    names = [name[:LONGEST_NAME] for name in class_names or map(str, range(n_classes))][:n_classes]
    widths = [max(len(names[c]), len(str(scores.confusion[:, c].max()))) + 2 for c in range(n_classes)]
    order = sorted(range(n_clusters), key=lambda k: (scores.matching[k] < 0, scores.matching[k]))
    head = "cluster" + "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    rows = [
        f"{k:7d}" + "".join(f"{count:{width}d}" for count, width in zip(scores.confusion[k], widths, strict=True))
        for k in order
    ]
    return "\n".join([head, *rows])
