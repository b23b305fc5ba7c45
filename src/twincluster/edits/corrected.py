"""The model's assignments with a person's edits on top: what `export` and `predict` write.

cluster is the final id, confidence stays the model's own, of the cluster it had chosen; an image marked as junk has no
cluster and the status junk. Where an edit is in force there is a column name. assignments.csv itself never changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from twincluster.edits import FILE, Edits
from twincluster.edits.replay import JUNK, State
from twincluster.images.sources import Listing
from twincluster.known import read_stamps, row_names, stamps_of
from twincluster.results import Assignments, Run

JUNK_STATUS = "junk"


def with_edits(assignments: Assignments, state: State) -> Assignments:
    """All rows of a run where the edits have put them."""
    return _table(assignments, state.clusters, state)


def corrected(
    run: Run, found: Assignments, listing: Listing, location: str | None, embed: Callable[[np.ndarray], np.ndarray]
) -> Assignments:
    """What the model made of the inputs of some source, as a person would have it by the edits of the run.

    Images that the run knows stay where they were put; others follow merges and splits. `embed` gives the embedding of
    rows of the source, (m,D).
    """
    if not (run.folder / FILE).is_file():
        return found
    edits = Edits(run)
    state = edits.state
    if not edits.any:
        return found
    clusters = found.clusters.copy()
    known = _known_rows(run, edits.paths, listing, location)
    settled = np.array([row >= 0 and state.home[row] >= 0 and not state.guessed[row] for row in known], dtype=bool)
    settled &= clusters >= 0
    new = np.flatnonzero((clusters >= 0) & ~settled)
    if len(new):
        clusters[new] = state.route(clusters[new], embed(new) if state.is_split else None)
    clusters[settled] = state.clusters[known[settled]]
    return _table(found, clusters, state)


def _known_rows(run: Run, paths: tuple[str, ...], listing: Listing, location: str | None) -> np.ndarray:
    """(m,) the row in the run of each input, -1 for those it does not know, or that have changed since."""
    names = row_names(listing, location, run.read_config()[2], paths)
    places = {path: row for row, path in reversed(list(enumerate(paths)))}
    stamps = read_stamps(run.folder)
    rows = [
        places.get(name, -1) if stamps.get(name, stamp) == stamp else -1
        for name, stamp in zip(names, stamps_of(listing), strict=True)
    ]
    return np.array(rows, dtype=np.int64)


def _table(assignments: Assignments, clusters: np.ndarray, state: State) -> Assignments:
    junk = clusters == JUNK
    return dataclasses.replace(
        assignments,
        clusters=np.where(junk, -1, clusters),
        confidence=np.where(junk, np.nan, assignments.confidence),
        status=tuple(JUNK_STATUS if out else said for out, said in zip(junk, assignments.status, strict=True)),
        names=tuple(state.names.get(int(cluster), "") for cluster in clusters),
    )
