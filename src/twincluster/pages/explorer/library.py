"""A run that is shown: its rows, pictures, features and edits, shared by all requests.

Features are computed once, in the background, and cached. Shapes: n rows of the run, m with features, D.

After `twincluster update` the run is opened again in the background; requests go to the new version once its features
are ready. If it cannot be opened, the page and standard error say so once, and it is tried again when its files change.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import numpy as np

from twincluster.clustering import POINTS, Layout, lay_out
from twincluster.core import InputError, unfinished
from twincluster.data import Images, Member, cache_folder
from twincluster.pages.explorer.branches import Branches
from twincluster.pages.explorer.lessons import Lessons
from twincluster.pages.report.material import spread_evenly
from twincluster.run_images import IS_ROWS, Pictures, RunImages, problems_of
from twincluster.runs import REPORT_FILE as REPORT
from twincluster.runs import Edits, Problem, Run, read_stamps, unit

CHUNK = 65_536  # rows compared at once
TABLES = ("assignments.csv", "updates.jsonl", "stamps.csv")  # written by `twincluster update`
Signature = tuple[tuple[int, int], ...]
NOT_YET = "the features are still being computed: try again in a moment"


@dataclass(frozen=True, eq=False)
class Seen:
    """The features of the rows that can be read."""

    rows: np.ndarray  # (m,) sorted
    features: np.ndarray  # (m,D) of unit norm
    places: np.ndarray  # (n,) position of each row in them, -1 for none

    def compare(self, feature: np.ndarray) -> np.ndarray:
        """Return the products (m,) with a feature (D,): cosines, if its norm is 1."""
        parts = [self.features[start : start + CHUNK] @ feature for start in range(0, len(self.rows), CHUNK)]
        return np.concatenate(parts or [np.empty(0, np.float32)])

    def nearest(self, feature: np.ndarray, count: int, without: int = -1) -> list[tuple[int, float]]:
        """Return the rows with the highest cosine to a feature (D,), best first."""
        cosine = self.compare(feature)
        if without >= 0 and self.places[without] >= 0:
            cosine[self.places[without]] = -np.inf
        best = np.argpartition(-cosine, count)[:count] if len(cosine) > count else np.arange(len(cosine))
        best = best[np.argsort(-cosine[best], kind="stable")]
        return [(int(self.rows[at]), float(cosine[at])) for at in best if np.isfinite(cosine[at])]


class Library:
    def __init__(self, run: Run, root: Path | None = None, decoding: Callable[[int, int], None] | None = None) -> None:
        self.run, self.root = run, root
        self.signature = self.read_signature()  # before anything is read
        self.config, self.shape, self.data = run.config, run.shape, run.data
        own = str(self.data.fingerprint)[:12]
        # a browser may cache pictures as long as this does not change
        self.version = f"{own}-{self.signature[0][0]:x}" if run.is_updated and self.signature else own
        self.inputs = RunImages(run, root, decoding=decoding)
        self.assignments = self.inputs.assignments
        part = self.inputs.own
        self.images: Images | None = part.images if part else None
        self.is_rows = not (self.shape.side or self.config.train.frozen)
        # those of the training; later ones are opened with the features, in the background
        self.pictures = Pictures(len(self.assignments.paths), [part]) if part and not self.is_rows else None
        self.no_pictures = "" if self.pictures else IS_ROWS if self.is_rows else self.inputs.absent
        self.files: list[Path | Member] | None = self.inputs.files if self.inputs.knows_files else None
        self.stamps = read_stamps(run.folder)  # of the files when the run read them, by path
        self.seen: Seen | None = None
        self.no_features = NOT_YET
        self.suspects: tuple[Problem, ...] = ()  # images that may not belong, once they have been looked for
        self.no_suspects = "images that may not belong are still being looked for"  # why there are none; "" then
        self.edits = Edits(run, self._features_later, relearn=self.inputs.relearn)
        self.edits.state  # noqa: B018  a file of edits that does not fit is told before the server starts
        self.ready = Event()  # set when everything is ready
        self.lessons = Lessons(self)
        self.branches = Branches(self)
        self._dated: Signature = ()  # of the report that was last marked as outdated
        self._layout: tuple[np.ndarray, Layout] | None = None
        self._no_map = ""  # why there is no map
        self.map_is_coming = False
        self._laying_out = Lock()

    def read_signature(self, *names: str) -> Signature:
        """Return times and sizes of files of the run; by default, of those that every `twincluster update` changes."""
        stats = []
        for name in names or TABLES:
            with suppress(FileNotFoundError):  # `update --undo` may remove it at any moment
                stats.append((self.run.folder / name).stat())
        return tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)

    def has(self, row: int) -> bool:
        return 0 <= row < len(self.assignments.paths)

    def start(self) -> None:
        """Compute the features in the background."""
        Thread(target=self._see, daemon=True, name="features").start()

    def date_report(self) -> None:
        """Mark an older report as outdated after an edit, once."""
        now = self.read_signature(REPORT)
        if now != self._dated:
            self.run.mark_outdated("corrected")
            self._dated = self.read_signature(REPORT)

    def features_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the features (len(rows),D). Raise InputError if some are missing."""
        if self.seen is None:
            raise InputError(self.no_features)
        if len(rows) and rows.max() >= len(self.seen.places):
            raise InputError(
                "twincluster update has just added images: the page shows them in a moment, try again then"
            )
        places = self.seen.places[rows]
        if (places < 0).any():
            lost = self.assignments.paths[rows[np.flatnonzero(places < 0)[0]]]
            raise InputError(f"{lost[:200]} cannot be read again: put it back, or move it to another cluster first")
        return np.asarray(self.seen.features[places])

    def layout(self) -> tuple[np.ndarray, Layout]:
        """Return the rows on the map and their positions. Raise InputError if there is no map, or none yet."""
        if self.seen is None:
            raise InputError(self.no_features)
        with self._laying_out:
            if self._layout is None and not self.map_is_coming:
                self.map_is_coming = True
                Thread(target=self._lay_out, args=(self.seen,), daemon=True, name="map").start()
        if self._layout is None:
            raise InputError(self._no_map or "the map is being made: try again in a moment")
        return self._layout

    def _lay_out(self, seen: Seen) -> None:
        """Compute the map in the background: t-SNE of some thousand images takes a while on a busy machine."""
        chosen = spread_evenly(np.arange(len(seen.rows)), POINTS)
        try:
            if len(chosen) < 2:
                raise InputError("there are too few images for a map")
            self._layout = seen.rows[chosen], lay_out(seen.features[chosen], seed=self.config.seed)
        except Exception as error:  # nobody catches errors of a thread: show them on the page
            self._no_map = " ".join(str(error).split())[:300]

    @property
    def waits_for_map(self) -> bool:
        return not self.ready.is_set() or (self.map_is_coming and self._layout is None and not self._no_map)

    def _features_later(self, rows: np.ndarray) -> np.ndarray | None:
        try:
            return self.features_of(rows)
        except InputError:
            return None

    def _see(self) -> None:
        try:
            rows, features = self._kept() or self._computed()
            if not self.is_rows and (later := self.inputs.pictures()[0]) is not None:
                self.pictures, self.no_pictures = later, ""
            places = np.full(len(self.assignments.paths), -1, np.int64)
            places[rows] = np.arange(len(rows))
            if len(rows):
                self.seen = Seen(rows, features, places)
                self.edits = Edits(
                    self.run, self._features_later, relearn=self.inputs.relearn
                )  # can compare later rows now
            else:
                self.no_features = self.inputs.absent or self.no_pictures or "no image can be read again"
        except Exception as error:  # nobody catches errors of a thread: show them on the page
            self.no_features = f"the features could not be computed ({' '.join(str(error).split())[:300]})"
        self.ready.set()
        if self.seen is not None:
            self.lessons.start()
        try:
            self.suspects, self.no_suspects = problems_of(self.inputs), ""
        except Exception as error:  # the same
            self.no_suspects = f"images that may not belong cannot be shown ({' '.join(str(error).split())[:300]})"

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The first row of each path."""
        return {path: row for row, path in reversed(list(enumerate(self.assignments.paths)))}

    def copies(self) -> np.ndarray:
        """Return (n,) whether a row is a copy of a better one, as far as that is known."""
        mask = np.zeros(len(self.assignments.paths), bool)
        mask[[self.row_of[suspect.path] for suspect in self.suspects if suspect.copy_of]] = True
        return mask

    def _computed(self) -> tuple[np.ndarray, np.ndarray]:
        features, rows = self.inputs.features()
        features = unit(features)
        if self.images is not None and len(rows):
            with suppress(OSError):  # a full disk only makes the next start a minute slower
                path = self._place()
                path.parent.mkdir(parents=True, exist_ok=True)
                with unfinished(path) as partial, partial.open("wb") as file:
                    np.savez(file, rows=rows, features=features)
        return rows, features

    def _kept(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return cached features if they are of this model and these images."""
        if self.images is None or not (path := self._place()).is_file():
            return None
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
                rows, features = kept["rows"], kept["features"]
        except Exception:  # numpy and zipfile raise various errors for a damaged file: compute it again
            return None
        sound = rows.ndim == 1 and features.ndim == 2 and len(rows) == len(features) and len(rows)
        return (rows, features) if sound and rows.max() < len(self.assignments.paths) else None

    def _place(self) -> Path:
        digest = hashlib.sha256((self.run.folder / "model.safetensors").read_bytes())
        digest.update(f"{self.data.fingerprint} {self.assignments.paths} {self.stamps}".encode(errors="surrogatepass"))
        return cache_folder() / "explorer" / f"{digest.hexdigest()[:32]}.npz"


OPENED = (*TABLES, "config.json", "edits.jsonl", "model.safetensors")  # the files that a run is opened from


class Newest:
    """An application that passes every request to the newest library."""

    def __init__(self, library: Library, make: Callable[[Library, Newest], Any]) -> None:
        self.library, self._make = library, make
        self._app = make(library, self)
        self._opening = Lock()  # held while a library is opened
        self._seen = library.signature  # of the run, when it was last looked at
        self._failed: Signature | None = None  # of the files, when the run could not be opened
        self.trouble = ""  # why it could not

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def look(self) -> None:
        """Start to open the run again if its tables have changed, but not since the last look."""
        now, before = self.library.read_signature(), self._seen
        self._seen = now
        if now == self.library.signature:
            self.trouble = ""  # the change that could not be opened has been undone
            return
        if now != before or self.library.read_signature(*OPENED) == self._failed:
            return
        if self._opening.acquire(blocking=False):
            Thread(target=self._open, daemon=True, name="update").start()

    @property
    def busy(self) -> bool:
        library = self.library
        return self._opening.locked() or not library.ready.is_set() or library.waits_for_map or library.lessons.busy

    def _open(self) -> None:
        tried = self.library.read_signature(*OPENED)  # before anything is read
        try:
            library = Library(Run.open(self.library.run.folder), self.library.root)
            library.start()
            library.ready.wait()
            self.library.lessons.stop()
            self._app, self.library = self._make(library, self), library
            self._failed, self.trouble = None, ""
        except OSError as error:  # it may be temporary: try again at the next look
            self._tell(error)
        except Exception as error:  # an update is half done and goes on, or a person has to fix something
            self._failed = tried
            self._tell(error)
        finally:
            self._opening.release()

    def _tell(self, error: Exception) -> None:
        said = f"the run has changed but cannot be opened again: {' '.join(str(error).split())[:500]}"
        if said != self.trouble:
            if not isinstance(error, InputError | OSError):  # a bug, for which a message is not enough
                traceback.print_exception(error)
            print(f"twincluster: {said}", file=sys.stderr, flush=True)
        self.trouble = said
