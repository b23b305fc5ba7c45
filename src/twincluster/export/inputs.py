"""The images behind the rows of a run, as far as they can be found again, and what the network makes of them.

Shapes: n rows of the run, m some of them, D features.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from twincluster import inference
from twincluster.corrected import with_edits
from twincluster.derive import resolve_device
from twincluster.edit_replay import State
from twincluster.edits import Edits
from twincluster.errors import InputError
from twincluster.findings import reopen
from twincluster.images.inputs import Member
from twincluster.images.sources import Listing, open_source
from twincluster.opening import open_with
from twincluster.results import Assignments, Run

_ESCAPE = re.compile(r"\\(?:([\\nrt])|x([0-9a-f]{2})|u([0-9a-f]{4}))")
_LETTERS = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
Told = Callable[[int, int], None]


@dataclass(eq=False)
class Inputs:
    """A run with its rows, and where these came from."""

    run: Run
    root: Path | None = None  # of named data sets
    device: str = "auto"
    decoding: Told | None = None
    encoding: Told | None = None
    absent: str = field(default="", init=False)  # why features are missing, where some are

    def __post_init__(self) -> None:
        self.config, self.shape, self.data = self.run.read_config()
        self.assignments = self.run.read_assignments()

    def edited(self) -> tuple[Assignments, State, bool]:
        """The rows as the edits have them, and whether there is an edit; without any the model's own."""
        edits = Edits(self.run, self._features_later)
        state, has_any = edits.state, edits.any
        return (with_edits(self.assignments, state) if has_any else self.assignments), state, has_any

    def listing(self) -> Listing | None:
        """The source of the run, if it can be opened still."""
        if not self.data["location"]:
            return None
        try:
            root = self.root or (Path(self.data["root"]) if self.data.get("root") else None)
            return open_source(self.data["location"], root=root, labels="none", at_least=1)
        except InputError:
            return None

    def files(self) -> list[Path | Member]:
        """Where the file of each row is, or was."""
        listing = self.listing()
        known: dict[str, Path | Member] = {}
        if listing and listing.files is not None:
            known = dict(zip(listing.paths, listing.files, strict=True))
        base = self._base()
        return [
            known.get(path) or Path(os.path.abspath(os.path.join(base, as_on_disk(path))))
            for path in self.assignments.paths
        ]

    def _base(self) -> str:
        location = str(self.data["location"] or os.path.join(os.getcwd(), "paths"))  # handed over in Python
        return location if os.path.isdir(location) else os.path.dirname(location)

    def features(self) -> tuple[np.ndarray, np.ndarray]:
        """The embedding of those rows that can be read again, (m,D) float32, and which these are, (m,), rising."""
        rows = np.flatnonzero(self.assignments.clusters >= 0)
        count = self.data["inputs"]
        images, why = reopen(self.run, self.root, self.decoding)
        if images is None:
            self.absent = str(why)
            return self._embedded_files(rows)
        own = rows[(rows < count) & np.isin(rows, images.usable)]
        features = inference.embed(self._network(), images.pixels, own).numpy()
        later, found = self._embedded_files(rows[rows >= count])
        return (np.concatenate([features, later]) if len(found) else features), np.concatenate([own, found])

    def _features_later(self, rows: np.ndarray) -> np.ndarray | None:
        """For rows that came after a split: all of them, or none where one is missing."""
        features, found = self._embedded_files(rows)
        return features if np.array_equal(found, rows) else None

    def _embedded_files(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for some rows, by their files."""
        none = np.empty((0, 0), np.float32), np.empty(0, np.int64)
        if not self.data["files"] or not len(rows):
            return none
        files = self.files()
        there = np.array([row for row in rows if is_there(files[row])], dtype=np.int64)
        if not len(there):
            return none
        names = tuple(self.assignments.paths[row] for row in there)
        listing = Listing(self.data["source"], names, files=tuple(files[row] for row in there))
        try:
            network, images = open_with(self.run, listing, self.device, self.decoding, self.encoding)
        except InputError as error:
            self.absent = str(error)
            return none
        features = inference.embed(network, images.pixels, images.usable).numpy()
        return features, there[images.usable]

    def _network(self) -> Any:
        return self.run.load_network(resolve_device(self.device))


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
