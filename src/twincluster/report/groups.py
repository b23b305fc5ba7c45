"""The clusters a report is about: those of the model or, once a person has corrected them, what they have become.

Inside, clusters are numbered from 0 without gaps, by their place; the page has the ids and names that the explorer and
exports have. Shapes: n rows of the run, K clusters.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from twincluster.inputs import Inputs
from twincluster.results import Assignments


@dataclass(frozen=True)
class Groups:
    ids: tuple[int, ...]  # (K,) rising
    names: tuple[str, ...]  # (K,) what a person has called them, "" where nobody did
    corrections: int = 0  # edits in force
    junk: int = 0  # rows that were marked as such, and have no cluster

    @classmethod
    def of_model(cls, n_clusters: int) -> Groups:
        return cls(tuple(range(n_clusters)), ("",) * n_clusters)

    def __len__(self) -> int:
        return len(self.ids)

    def short(self, place: int) -> str:
        """A name, or a number."""
        return self.names[place] or str(self.ids[place])

    def ids_of(self, places: np.ndarray) -> np.ndarray:
        """-1 stays -1."""
        return np.asarray(np.array([*self.ids, -1], np.int64)[places])


def corrected_rows(inputs: Inputs) -> tuple[Assignments, Groups]:
    """The rows of a run with the places of their clusters; junk and what is unreadable have -1."""
    assignments, state, corrections = inputs.edited()
    if not corrections:
        return assignments, Groups.of_model(inputs.config.n_clusters)
    ids = sorted(state.names)
    places = np.where(assignments.clusters < 0, -1, np.searchsorted(ids, assignments.clusters))
    names = tuple("" if state.names[cluster] == str(cluster) else state.names[cluster] for cluster in ids)
    junk = int((state.junk & (state.home >= 0)).sum())
    groups = Groups(tuple(ids), names, corrections, junk)
    return dataclasses.replace(assignments, clusters=places), groups
