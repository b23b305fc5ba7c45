"""What goes into a line of edits.jsonl, checked: names, clusters and images a caller gives, and the parts of a split.

Shapes: m images, P parts, D features.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from twincluster.edits.log import Line
from twincluster.edits.replay import LONGEST_NAME, UNREADABLE, State, name_complaint
from twincluster.errors import InputError

DECIMALS = 7  # of a centre's numbers: float32 has little more to say of a unit row


def a_name(name: str) -> str:
    """The name as it is, if it can be one."""
    if complaint := name_complaint(name):
        raise InputError(complaint)
    return name


def a_cluster(state: State, cluster: Any) -> int:
    if isinstance(cluster, bool | np.bool_) or not isinstance(cluster, int | np.integer):
        raise InputError(f"{str(cluster)[:40]!r} is no cluster: give its number")
    if int(cluster) not in state.names:
        raise InputError(f"there is no cluster {cluster}: it may have been merged or split meanwhile")
    return int(cluster)


def some_rows(rows: Iterable[int]) -> np.ndarray:
    """(m,) int64, each once, rising."""
    given = rows if isinstance(rows, np.ndarray) else list(rows)
    array = np.asarray(given)
    if array.ndim != 1 or not array.size:
        raise InputError("select at least one image")
    if array.dtype.kind not in "iu":
        raise InputError("images are given by their row numbers, which are whole")
    return np.unique(array).astype(np.int64)


def readable(state: State, rows: np.ndarray) -> list[int]:
    """The rows as they go into a line; all are images of the run that could be read."""
    if rows[0] < 0 or rows[-1] >= len(state.home):
        odd = rows[0] if rows[0] < 0 else rows[-1]
        raise InputError(f"there is no image {odd}: the run has {len(state.home):,}, counted from 0")
    unread = rows[state.home[rows] == UNREADABLE]
    if len(unread):
        raise InputError(f"image {unread[0]} could not be read, and so is in no cluster: leave it out")
    listed: list[int] = rows.tolist()
    return listed


def next_id(lines: Sequence[Line], n_clusters: int) -> int:
    """An id that no cluster has ever had, not even one of an edit that was undone."""
    used = [n_clusters - 1]
    for line in lines:
        if line["kind"] == "split":
            used += [int(part["id"]) for part in line["parts"]]
        elif line["kind"] == "move":
            used.append(int(line["to"]))
    return max(used) + 1


def a_part(cluster: int, name: str, rows: np.ndarray, centre: np.ndarray | None) -> dict[str, Any]:
    numbers = None if centre is None else [round(float(number), DECIMALS) for number in centre]
    return {"id": cluster, "name": name, "rows": rows.tolist(), "centre": numbers}


def part_name(cluster: int, name: str, number: int) -> str:
    """What a part of a cluster is called, no longer than names may be: "beaches 2", or "8, part 2" without a name."""
    ending = f", part {number}" if name == str(cluster) else f" {number}"
    return name[: LONGEST_NAME - len(ending)] + ending


def unit(features: np.ndarray) -> np.ndarray:
    """(m,D) rows of length one; all zeros stay so."""
    rows = np.asarray(features, dtype=np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(length, np.finfo(np.float32).tiny))


def middle(embedded: np.ndarray) -> np.ndarray:
    """(D,) the direction of unit rows (m,D) taken together."""
    return np.asarray(unit(embedded.mean(0, keepdims=True))[0])


def by_k_means(
    everyone: np.ndarray, embedded: np.ndarray, visible: np.ndarray, parts: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and centre (D,) of each part, the largest first. Junk, which is not visible, follows the centres."""
    import torch

    from twincluster.clusters.assign import spherical_kmeans

    shown = torch.from_numpy(embedded[np.isin(everyone, visible)])
    centres = spherical_kmeans(shown, parts, seed=seed, n_init=10).centres.numpy()
    nearest = (embedded @ centres.T).argmax(1)
    found = [(everyone[nearest == part], centres[part]) for part in range(parts)]
    return sorted((part for part in found if len(part[0])), key=lambda part: len(part[0]), reverse=True)
