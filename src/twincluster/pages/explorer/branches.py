"""The tree of clusters as the page needs it: everything, once, so that the page itself groups the fine clusters.

A run without a tree gets one in the background, from the features of the explorer. Shapes: n rows, L leaves.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from twincluster.clustering import Tree
from twincluster.core import InputError
from twincluster.fit import tree_of
from twincluster.pages.report.tree import tree_data
from twincluster.runs import Living, read_tree, write_tree

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
        tree, library = self.tree(), self.library
        state, count = library.edits.state, len(library.assignments.paths)
        if library.seen is None:
            rows = np.arange(min(count, len(state.home)))
            return tree_data(Living.of(tree, state), state, rows, np.empty((len(rows), 0), np.float32), ON_LEAF)
        return tree_data(Living.of(tree, state), state, library.seen.rows, library.seen.features, ON_LEAF)
