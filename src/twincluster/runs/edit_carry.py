"""Carry edits over to another model: of another run, or of the same run after more training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from twincluster.runs.edit_history import EDITS_FILE, TRAINS_ON, EditHistory, EditLog, digest_of_model
from twincluster.runs.edit_kinds import Line
from twincluster.runs.edit_state import JUNK, NONE, State
from twincluster.runs.folder import Run


@dataclass(frozen=True)
class Carried:
    """Examples, names and junk of one run as an edit of another."""

    line: Line | None  # None if nothing remains
    examples: int
    junk: int
    names: tuple[str, ...]  # of clusters
    homeless: tuple[str, ...]  # names that match no cluster


def carry(old: State, rows: np.ndarray, clusters: np.ndarray, n_clusters: int) -> Carried:
    """Carry examples, names and junk of one run over to another, whose model has clusters (n,) of its own.

    `rows` (n,) are the rows of the old run with the same images, -1 for none. An old cluster becomes the new cluster
    that holds most of its examples, if they outnumber there the examples of other clusters; else it opens a new
    cluster. An old cluster without examples only names the cluster that holds most of its images. Answers to random
    questions stay random answers, because the new model has not seen them.
    """
    there = np.flatnonzero((rows >= 0) & (clusters >= 0))
    given = there[old.shown[rows[there]] & (old.home[rows[there]] >= 0)]
    examples = old.examples[rows[given]]
    homes = _homes(dict(zip(given.tolist(), examples.tolist(), strict=True)), clusters, ())
    free, ids = n_clusters, {}
    for cluster, home in homes.items():
        ids[cluster] = free if home is None else home
        free += home is None
    named = {c: name for c, name in old.names.items() if name != str(c)}
    rest = [row for row in there.tolist() if old.home[rows[row]] in named.keys() - ids.keys()]
    others = _homes({row: int(old.home[rows[row]]) for row in rest}, clusters, tuple(ids.values()))
    ids |= {cluster: home for cluster, home in others.items() if home is not None}
    called = [
        {"cluster": home, "name": named.get(cluster, str(home)), "new": home >= n_clusters}
        for cluster, home in ids.items()
        if cluster in named or home >= n_clusters
    ]
    to = [JUNK if cluster == JUNK else ids[cluster] for cluster in examples.tolist()]
    samples = given[old.sample[rows[given]] != NONE].tolist()
    line = {"kind": "answer", "rows": given.tolist(), "to": to, "names": called, "sample": False, "samples": samples}
    junk = to.count(JUNK)
    return Carried(
        line if to or called else None, len(to) - junk, junk, tuple(named[c] for c in ids if c in named),
        tuple(name for c, name in named.items() if c not in ids),
    )  # fmt: skip


def _homes(belongs: Mapping[int, int], clusters: np.ndarray, taken: Iterable[int]) -> dict[int, int | None]:
    """Return the new cluster of each old one, by where its rows are; None for none."""
    from twincluster.clustering import clusters_for_labels

    labels = {row: str(cluster) for row, cluster in belongs.items() if cluster != JUNK}
    found = clusters_for_labels(labels, {cluster: f"taken {cluster}" for cluster in taken}, clusters)
    return {int(label): home for label, home in found.items()}


def unbind(run: Run) -> State | None:
    """Make the edits of a run valid for any model, before more training. Return their state, None if there are none."""
    log = EditLog(run.folder / EDITS_FILE)
    if not (lines := log.read()) or not run.model.is_file():
        return None
    state = EditHistory(run).state if lines[0].get("clusters") == run.n_clusters else None
    log.rewrite([lines[0] | {"model": TRAINS_ON}, *lines[1:]])
    return state


def carry_over(run: Run, before: State, clusters: np.ndarray, n_clusters: int) -> None:
    """After more training, carry the edits over if the number of clusters has changed."""
    log = EditLog(run.folder / EDITS_FILE)
    start = log.read()[0]
    if start["clusters"] != n_clusters:
        carried = carry(before, np.arange(len(clusters)), clusters, n_clusters)
        log.rewrite(
            [
                start | {"clusters": n_clusters},
                *([{"edit": 1, "time": start["time"]} | carried.line] if carried.line else []),
            ]
        )


def bind(run: Run) -> None:
    """Bind the edits of a run to its model."""
    log = EditLog(run.folder / EDITS_FILE)
    if lines := log.read():
        log.rewrite([lines[0] | {"model": digest_of_model(run)}, *lines[1:]])
