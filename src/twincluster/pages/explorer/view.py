"""What the page shows of a run after its edits, as plain data for JSON.

Names are not escaped here; the page sets them as text. Shapes: n rows of the run, K clusters, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, Literal

import numpy as np

import twincluster
from twincluster.clustering import how_many
from twincluster.pages.explorer.library import Library
from twincluster.runs import JUNK, PROBLEM_KINDS, RISING, UNREADABLE, Line, Problem, State, describe

ON_CARDS = 4_000  # images on all cards together; each card shows at least a few
MOST, FEWEST, DOUBTFUL = 8, 4, 3
NEIGHBOURS = 24
PIXELATED = 48  # pixels a side up to which pixels are shown as squares
Order = Literal["typical", "doubtful", "source"]


class View:
    """The current state as JSON, cached until an edit or the features change it."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._lock = Lock()
        self._kept: tuple[tuple[int, bool, int, bool], dict[str, Any], np.ndarray, np.ndarray] | None = None

    def state(self) -> dict[str, Any]:
        return self._current()[0]

    def rows(self, of: str, cluster: int, order: Order, path: str) -> dict[str, Any] | None:
        """Return the rows of a cluster, of all, of junk or of unreadable inputs; None if there is no such cluster."""
        state, clusters, near = self._current()
        if of == "cluster" and all(cluster != one["id"] for one in state["clusters"]):
            return None
        wanted = {"junk": JUNK, "unreadable": UNREADABLE, "cluster": cluster}
        rows = np.flatnonzero(clusters >= 0) if of == "all" else np.flatnonzero(clusters == wanted[of])
        if path:
            paths, letters = self.library.assignments.paths, path.lower()
            rows = np.array([row for row in rows if letters in paths[row].lower()], dtype=np.int64)
        if order == "typical":
            rows = rows[np.argsort(-near[rows], kind="stable")]
        elif order == "doubtful":
            rows = rows[np.argsort(self.library.assignments.confidence[rows], kind="stable")]
        return {"number": state["number"], "rows": rows.tolist()}

    def details(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        _, clusters, _ = self._current()
        known, examples = self.library.assignments, self.library.edits.state.shown
        return [
            {"row": row, "path": known.paths[row], "cluster": int(clusters[row]), "status": known.status[row]}
            | {"confidence": _rounded(known.confidence[row]), "example": row < len(examples) and bool(examples[row])}
            for row in rows
        ]

    def neighbours(self, row: int) -> dict[str, Any]:
        """Return the rows most similar to one, or why there are none."""
        seen = self.library.seen
        if seen is None or seen.places[row] < 0:
            return {"absent": self.library.no_features if seen is None else "this image cannot be read again"}
        near = seen.nearest(seen.features[seen.places[row]], NEIGHBOURS, without=row)
        cosines = {found: round(cosine, 4) for found, cosine in near}
        return {"neighbours": [one | {"cosine": cosines[one["row"]]} for one in self.details(list(cosines))]}

    def suspects(self) -> dict[str, Any]:
        """Return images that may not belong, by kind, most suspicious first, without junk and its copies."""
        library, (state, clusters, _) = self.library, self._current()
        kinds: dict[str, list[Problem]] = {}
        for suspect in library.suspects:
            one, best = library.row_of[suspect.path], library.row_of.get(suspect.copy_of, -1)
            if clusters[one] >= 0 and (best < 0 or clusters[best] >= 0):
                kinds.setdefault(suspect.kind, []).append(suspect)
        found = [
            {"kind": kind, "rising": kind in RISING, "groups": _suspicious(kinds[kind], library.row_of)}
            for kind in PROBLEM_KINDS
            if kind in kinds
        ]
        return {"number": state["number"], "absent": library.no_suspects, "kinds": found}

    def map(self) -> dict[str, Any]:
        """Return the map. Raise InputError if there is none, or none yet."""
        rows, layout = self.library.layout()
        state, clusters, _ = self._current()
        readable = int((self.library.assignments.clusters >= 0).sum())
        seen = self.library.seen
        kind = "rows" if self.library.is_rows else "images"
        note = how_many(len(rows), len(seen.rows) if seen else len(rows), readable, kind)
        shown = np.flatnonzero(clusters[rows] >= 0)  # without junk
        return {
            "number": state["number"], "method": layout.method, "meaning": layout.meaning, "note": note,
            "image": rows[shown].tolist(), "cluster": clusters[rows[shown]].tolist(),
            "x": layout.places[shown, 0].tolist(), "y": layout.places[shown, 1].tolist(),
        }  # fmt: skip

    def _current(self) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
        library = self.library
        with self._lock:
            edits = library.edits
            now = edits.state
            key = (now.number, library.ready.is_set(), len(now.home), not library.no_suspects)
            if self._kept is None or self._kept[0] != key:
                clusters = now.clusters[: len(library.assignments.paths)]  # `update` may have added rows since
                near = _nearness(library, clusters)
                self._kept = key, self._shown(now, edits.history, clusters, near), clusters, near
            return self._kept[1:]

    def _shown(
        self, state: State, history: tuple[list[Line], list[Line]], clusters: np.ndarray, near: np.ndarray
    ) -> dict[str, Any]:
        library, (done, undone) = self.library, history
        data = library.data
        return {
            "number": state.number,
            "run": {
                "source": data.source, "kind": "rows" if library.is_rows else "images",
                "inputs": len(library.assignments.paths), "method": library.config.method,
                "version": twincluster.__version__,
            },
            "clusters": _cards(library, state, clusters, near),
            "junk": int((clusters == JUNK).sum()),
            "unreadable": int((clusters == UNREADABLE).sum()),
            "undo": describe(done[-1], state) if done else None,
            "redo": describe(undone[-1], state) if undone else None,
            "pictures": {
                "absent": library.no_pictures if library.pictures is None and library.files is None else "",
                "version": library.version,
                "pixelated": library.pictures is not None and library.pictures.side <= PIXELATED,
            },
            "features": {"ready": library.seen is not None, "absent": "" if library.seen else library.no_features},
        }  # fmt: skip


def _suspicious(suspects: list[Problem], row_of: dict[str, int]) -> list[dict[str, Any]]:
    """Return groups {best, rows, values}: the copies of an image, or an image alone with best -1."""
    sign = -1 if suspects[0].kind in RISING else 1
    groups: dict[str, list[Problem]] = {}
    for suspect in sorted(suspects, key=lambda each: sign * each.value):
        groups.setdefault(suspect.copy_of or suspect.path, []).append(suspect)
    return [
        {"best": row_of.get(group[0].copy_of, -1), "rows": [row_of[one.path] for one in group],
         "values": [one.value for one in group]}
        for group in groups.values()
    ]  # fmt: skip


def _nearness(library: Library, clusters: np.ndarray) -> np.ndarray:
    """Return the cosine of each row with the mean of its cluster, (n,); without features its confidence - 3."""
    near = np.nan_to_num(library.assignments.confidence) - 3
    if library.seen is None:
        return np.asarray(near)
    rows, features = library.seen.rows, library.seen.features
    found, group = np.unique(clusters[rows], return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(found)))
    middles = np.add.reduceat(features[order], starts, axis=0)
    middles /= np.maximum(np.linalg.norm(middles, axis=1, keepdims=True), 1e-12)
    near[rows] = np.einsum("nd,nd->n", features, middles[group])
    return np.asarray(near)


def _cards(library: Library, state: State, clusters: np.ndarray, near: np.ndarray) -> list[dict[str, Any]]:
    confidence = library.assignments.confidence
    each = max(FEWEST, min(MOST, ON_CARDS // max(1, len(state.names))))
    typical, doubtful = _grouped(clusters, -near + 10 * library.copies()), _grouped(clusters, confidence)
    readable = max(1, int((clusters >= 0).sum()))
    cards = []
    for cluster, name in state.names.items():
        mine = typical.get(cluster, np.empty(0, np.int64))
        size = len(mine)
        shown = mine[: min(each, max(1, size - size // 3))].tolist() if size else []
        unsure = [row for row in doubtful.get(cluster, mine)[: each + DOUBTFUL].tolist() if row not in set(shown)]
        cards.append({
            "id": cluster, "name": name if name != str(cluster) else f"Cluster {cluster}", "size": size,
            "named": name != str(cluster), "share": round(size / readable, 5),
            "confidence": _rounded(np.nanmean(confidence[mine])) if size else None,
            "typical": shown, "doubtful": unsure[:DOUBTFUL] if each == MOST else [],
        })  # fmt: skip
    return cards


def _grouped(clusters: np.ndarray, key: np.ndarray) -> dict[int, np.ndarray]:
    """Return the rows of each cluster, sorted by `key`."""
    order = np.lexsort((key, clusters))
    found, starts = np.unique(clusters[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True)) if len(found) else {}


def _rounded(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None
