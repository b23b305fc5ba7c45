"""The tree of clusters as the page needs it: everything, once, so that the page itself groups the fine clusters.

A run without a tree gets one in the background, from the features of the explorer. Shapes: n rows, L leaves.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from twincluster.clustering import Tree
from twincluster.core import InputError
from twincluster.fit import tree_of
from twincluster.runs import Living, State, key_of_tree, read_tree, write_tree

if TYPE_CHECKING:
    from twincluster.pages.explorer.library import Library

ON_LEAF = 6  # images shown of a fine cluster


class Branches:
    """The tree of one library."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.absent = ""  # why there will be none
        self._tree: Tree | None = None
        self._lock = Lock()
        self._growing = False

    @property
    def waits(self) -> bool:
        return self._tree is None and not self.absent

    def tree(self) -> Tree:
        """Return the tree. Raise InputError if there is none, or none yet."""
        with self._lock:
            if self._tree is None and not self.absent:
                self._tree = read_tree(self.library.run)[0]
            if self._tree is None and not self._growing and not self.absent:
                self._start()
        if self._tree is None:
            raise InputError(self.absent or "the tree is being made: try again in a moment")
        return self._tree

    def _start(self) -> None:
        if not self.library.ready.is_set():
            return  # the features are on their way
        if self.library.seen is None:
            self.absent = self.library.no_features
            return
        self._growing = True
        Thread(target=self._grow, daemon=True, name="tree").start()

    def _grow(self) -> None:
        library, seen = self.library, self.library.seen
        try:
            assert seen is not None
            tree = tree_of(seen.features, seen.rows, library.assignments.clusters, library.config.seed)
            with suppress(OSError):
                write_tree(library.run, tree)
            self._tree = tree
        except Exception as error:  # a thread has nobody to tell: the page does
            self.absent = " ".join(str(error).split())[:300] or type(error).__name__
        finally:
            self._growing = False

    def as_json(self) -> dict[str, Any]:
        """Return the tree, the clusters as groups of its leaves, and what is natural."""
        tree, state = self.tree(), self.library.edits.state
        living, natural, best = Living.of(tree, state), tree.natural(), tree.best()
        return {
            "number": state.number, "key": key_of_tree(tree),
            "joins": tree.joins.tolist(),
            "stability": [round(float(value), 3) for value in tree.stability],
            "leaves": self._leaves(living, state),
            "clusters": [
                {"id": cluster, "leaves": np.flatnonzero(leaves).tolist()}
                for cluster, leaves in zip(living.clusters, living.leaves, strict=True)
            ],
            "kept": list(living.kept),
            "natural": [
                {"clusters": level, "agreement": round(value, 3), "best": level in best}
                for level, value in natural.items()
            ],
        }  # fmt: skip

    def _leaves(self, living: Living, state: State) -> list[dict[str, Any]]:
        """Return the size of each leaf, without junk, and its most typical rows."""
        shown = np.flatnonzero((living.leaf >= 0) & ~state.junk & (state.home >= 0))
        shown = shown[shown < len(self.library.assignments.paths)]
        leaf, near = living.leaf[shown], self._nearness(living, shown)
        order = np.lexsort((-near, leaf))
        starts = np.searchsorted(leaf[order], np.arange(living.tree.n_leaves + 1))
        rows = shown[order]
        return [
            {"size": end - start, "rows": rows[start : min(end, start + ON_LEAF)].tolist()}
            for start, end in pairwise(starts.tolist())
        ]

    def _nearness(self, living: Living, rows: np.ndarray) -> np.ndarray:
        """Return the cosine of each row with the centre of its leaf; 0 without features."""
        near, seen = np.zeros(len(rows), np.float32), self.library.seen
        if seen is None or seen.features.shape[1] != living.tree.centres.shape[1]:
            return near
        places = seen.places[rows]
        there = places >= 0
        centres = living.tree.centres / np.maximum(np.linalg.norm(living.tree.centres, axis=1, keepdims=True), 1e-12)
        near[there] = np.einsum("nd,nd->n", seen.features[places[there]], centres[living.leaf[rows[there]]])
        return near
