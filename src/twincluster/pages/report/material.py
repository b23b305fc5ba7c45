"""All that a run offers to look at: assignments, labels, pictures, and the features of an even part of them.

Whatever cannot be had again (images that are gone, a run made in Python) is left out, with a sentence that says why.

The clusters a report is about: those of the model or, once a person has corrected them, what they have become.

Inside, clusters are numbered from 0 without gaps, by their place; the page has the ids and names that the explorer and
exports have. Shapes: n rows of the run, K clusters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from twincluster.clustering import Choice, Scores, score
from twincluster.config import Config, Split
from twincluster.core import InputError
from twincluster.data import Listing
from twincluster.findings import truth_of
from twincluster.fit import rows_to_score
from twincluster.resolve import resolve_device
from twincluster.run_images import Pictures, RunImages
from twincluster.runs import Assignments, Run, RunData
from twincluster.teacher import Trust, trust_of

MOST_FEATURES = 50_000  # inputs whose features are looked at
CPU_FEATURES = 20_000  # the same on a CPU ...
CPU_PIXELS = 10_000 * 32 * 32  # ... and for large images fewer, so that a report takes seconds
FEWEST_FEATURES = 2_000

Told = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Material:
    """Arrays of n inputs, of which the first are those of the training, and m of them with features."""

    run: Run
    config: Config
    data: RunData  # what config.json says of the source
    assignments: Assignments  # whose clusters are places in ...
    groups: Groups
    pictures: Pictures | None = None
    no_pictures: str = ""  # why there are none
    visible: int = 0  # inputs that can be seen as the model saw them, of which ...
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # ... (m,) have features, rising
    features: np.ndarray = field(default_factory=lambda: np.empty((0, 1), np.float32))  # (m,D), of length 1
    truth: np.ndarray | None = None  # (n,) class of each input, -1 where unknown
    class_names: tuple[str, ...] | None = None
    scores: Scores | None = None
    scored_on: Split = "all"
    no_scores: str = ""  # why labels could not be used
    choice: Choice | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    trust: Trust | None = None  # by random questions that a person has answered

    @property
    def unseen(self) -> int:
        """RunImages that have a cluster and cannot be seen again."""
        return int((self.clusters >= 0).sum()) - self.visible

    @property
    def clusters(self) -> np.ndarray:
        return self.assignments.clusters

    @property
    def confidence(self) -> np.ndarray:
        return self.assignments.confidence


def open_material(
    run: Run,
    labels: str | None = None,
    root: Path | None = None,
    *,
    source: Listing | None = None,
    device: str = "auto",
    decoding: Told | None = None,
) -> Material:
    """`labels` as `twincluster evaluate` takes them. `source` is what the run was trained on, where that is listed
    already; the labels that it has are taken."""
    inputs = RunImages(run, root, device, decoding)
    if source is not None:
        inputs.listing = source  # else it is listed again
    (assignments, groups), data = corrected_rows(inputs), inputs.data
    known: dict[str, Any] = {"choice": run.read_choice(), "metrics": run.read_metrics()}
    known["pictures"], known["no_pictures"] = inputs.pictures()
    known["trust"] = trust_of(inputs)
    codes, names = (source.labels, source.class_names) if source else (None, None)
    if codes is None:
        codes, names = truth_of(run, labels, inputs.assignments, inputs.source)
    if codes is not None:
        known |= {"truth": codes, "class_names": names, **_scores(inputs.source, codes, assignments, data)}
    return Material(run, inputs.config, data, assignments, groups, **known, **_features(inputs, assignments.clusters))


def spread_evenly(rows: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of the rows, at even distances, so that every part of the source is there."""
    if len(rows) <= count:
        return rows
    return rows[np.linspace(0, len(rows) - 1, count).round().astype(np.int64)]


def _scores(source: Listing | None, truth: np.ndarray, assignments: Assignments, data: RunData) -> dict[str, Any]:
    if source is None and data.split != "all":
        return {"no_scores": f"which images are the {data.split} part is known only from the images, which moved"}
    rows, scored_on = rows_to_score(source, data.split, len(truth))
    try:
        return {"scores": score(truth[rows], assignments.clusters[rows]), "scored_on": scored_on}
    except InputError as error:
        return {"no_scores": str(error)}


def _features(inputs: RunImages, clusters: np.ndarray) -> dict[str, Any]:
    seen = np.sort(np.concatenate([np.empty(0, np.int64), *(part.rows for part in inputs.parts)]))
    seen = seen[clusters[seen] >= 0]  # without junk
    if not len(seen):
        return {}
    most = MOST_FEATURES
    if resolve_device(inputs.device) == "cpu":
        most = max(FEWEST_FEATURES, min(CPU_FEATURES, CPU_PIXELS // max(1, inputs.shape.side) ** 2))
    features, rows = inputs.features(spread_evenly(seen, most))
    features = torch.nan_to_num(F.normalize(torch.from_numpy(features), dim=1)).numpy()
    return {"visible": len(seen), "rows": rows, "features": features}


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


def corrected_rows(inputs: RunImages) -> tuple[Assignments, Groups]:
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
