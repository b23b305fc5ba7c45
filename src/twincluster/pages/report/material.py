"""The content of a report: assignments, labels, features, sheets of pictures, and images that need a second look.

Missing content (images that are gone, a run made in Python) is left out, with a sentence that says why. Clusters are
those of the model or, after corrections by hand, the corrected ones. Inside this module clusters are numbered from 0
without gaps; the page shows the ids and names of the explorer and exports.

Small pictures are combined into sheets of tiles, which are smaller and much faster to decode than one file each.
Shapes: n rows of the run, K clusters.
"""

from __future__ import annotations

import dataclasses
import io
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, features

from twincluster.clustering import Choice, Scores, Tree, score
from twincluster.config import Config, Split
from twincluster.core import InputError, OnProgress
from twincluster.data import Listing
from twincluster.fit import rows_to_score
from twincluster.resolve import resolve_device
from twincluster.run_images import Pictures, RunImages, problems_of, truth_of
from twincluster.runs import JUNK_STATUS, Assignments, Problem, Run, RunData, State, read_tree
from twincluster.teacher import Trust, trust_of

MOST_FEATURES = 50_000  # most inputs to compute features of
CPU_FEATURES = 20_000  # on a CPU ...
CPU_PIXELS = 10_000 * 32 * 32  # ... and fewer for large images, so that a report takes seconds
FEWEST_FEATURES = 2_000


@dataclass(frozen=True, eq=False)
class Material:
    """Arrays of n inputs, those of the training first; m of them have features."""

    run: Run
    config: Config
    data: RunData  # entry of config.json about the source
    assignments: Assignments  # whose clusters are places in ...
    groups: Groups
    pictures: Pictures | None = None
    no_pictures: str = ""  # why there are no pictures
    visible: int = 0  # inputs whose images are unchanged, of which ...
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # ... (m,) have features, ascending
    features: np.ndarray = field(default_factory=lambda: np.empty((0, 1), np.float32))  # (m,D), of length 1
    truth: np.ndarray | None = None  # (n,) class of each input, -1 if unknown
    class_names: tuple[str, ...] | None = None
    scores: Scores | None = None
    scored_on: Split = "all"
    no_scores: str = ""  # why labels could not be used
    choice: Choice | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    trust: Trust | None = None  # by random questions that a person has answered
    state: State | None = None  # of the edits
    tree: Tree | None = None  # of the clusters, if the run has one
    suspects: tuple[Problem, ...] = ()  # images that may not belong here: rows of problems.csv

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The first row of each path."""
        return {path: row for row, path in reversed(list(enumerate(self.assignments.paths)))}

    @cached_property
    def is_copy(self) -> np.ndarray:
        """(n,) whether a row is a copy of a better one."""
        mask = np.zeros(len(self.assignments.paths), bool)
        mask[[self.row_of[suspect.path] for suspect in self.suspects if suspect.copy_of]] = True
        return mask

    @property
    def unseen(self) -> int:
        """Number of inputs with a cluster whose image is missing or has changed."""
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
    decoding: OnProgress | None = None,
    problems: bool = True,
) -> Material:
    """Collect the material of a run. `labels` are as for `twincluster evaluate`.

    `source` is the listing of the training, if the caller has it; its labels are used. `problems` writes problems.csv
    if the run lacks it.
    """
    inputs = RunImages(run, root, device, decoding)
    if source is not None:
        inputs.listing = source  # avoids listing it again
    (assignments, groups), data = corrected_rows(inputs), inputs.data
    known: dict[str, Any] = {"choice": run.read_choice(), "metrics": run.read_metrics()}
    known["pictures"], known["no_pictures"] = inputs.pictures()
    known["trust"] = trust_of(inputs) if groups.corrections else None
    known["suspects"] = problems_of(inputs, write=problems)
    known["state"], known["tree"] = inputs.edits.state, read_tree(run)[0]
    codes, names = (source.labels, source.class_names) if source else (None, None)
    if codes is None and labels != "none" and (labels or source is None):
        codes, names = truth_of(run, labels, inputs.assignments, inputs.source)
    if codes is not None:
        known |= {"truth": codes, "class_names": names, **_scores(inputs.source, codes, assignments, data)}
    return Material(run, inputs.config, data, assignments, groups, **known, **_features(inputs, assignments.clusters))


def spread_evenly(rows: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` of the rows, evenly spaced, so that every part of the source is represented."""
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
    ids: tuple[int, ...]  # (K,) ascending
    names: tuple[str, ...]  # (K,) names given by a person, "" without one
    corrections: int = 0  # edits in force, without cuts of the tree
    cuts: int = 0
    junk: int = 0  # rows marked as junk, which have no cluster

    @classmethod
    def of_model(cls, n_clusters: int) -> Groups:
        return cls(tuple(range(n_clusters)), ("",) * n_clusters)

    def __len__(self) -> int:
        return len(self.ids)

    def short(self, place: int) -> str:
        """Return a name, or a number."""
        return self.names[place] or str(self.ids[place])

    def ids_of(self, places: np.ndarray) -> np.ndarray:
        """-1 stays -1."""
        return np.asarray(np.array([*self.ids, -1], np.int64)[places])


def corrected_rows(inputs: RunImages) -> tuple[Assignments, Groups]:
    """Return the rows of a run with cluster numbers from 0; junk and unreadable rows have -1."""
    assignments, state, corrections = inputs.edited()
    if not corrections:
        return assignments, Groups.of_model(inputs.config.n_clusters)
    ids = sorted(state.names)
    places = np.where(assignments.clusters < 0, -1, np.searchsorted(ids, assignments.clusters))
    names = tuple("" if state.names[cluster] == str(cluster) else state.names[cluster] for cluster in ids)
    junk = int((state.junk & (state.home >= 0)).sum())
    cuts = sum(line["kind"] == "cut" for line in inputs.edits.history[0])
    groups = Groups(tuple(ids), names, corrections - cuts, junk=junk, cuts=cuts)
    return dataclasses.replace(assignments, clusters=places), groups


SIDES = (160, 128, 96, 64, 48, 32)  # of a tile; multiples of 16, so that no codec block covers two tiles
QUALITIES = (78, 60, 40)
SHEET = 2048  # pixels a side of a sheet; phones decode this at full size
SMALLEST = 32  # smaller tiles are enlarged by whole factors, because codecs blur them
PROBED = 96  # sample of tiles to estimate the size of all


@dataclass(frozen=True)
class Sheets:
    """Sheets of tiles: tile t is in sheet t // per_sheet, row by row."""

    count: int  # of tiles
    side: int  # of a tile in pixels
    columns: int
    per_sheet: int
    kind: str  # "image/webp" or "image/jpeg"
    images: tuple[bytes, ...]

    def to_dict(self) -> dict[str, int]:
        return {"count": self.count, "side": self.side, "columns": self.columns, "perSheet": self.per_sheet}


class Squares(Protocol):
    """Pictures by row: an array (n,s,s,3), or a collection of several."""

    def __getitem__(self, row: int, /) -> np.ndarray: ...


def make_sheets(pictures: Squares, rows: np.ndarray, *, budget: int, largest: int) -> Sheets:
    """Return tiles of the given rows of `pictures`, in the best size and quality that `budget` bytes allow."""
    own = len(pictures[int(rows[0])]) if len(rows) else SMALLEST
    sides = [side for side in SIDES if side <= min(largest, own)] or [own * -(-SMALLEST // own)]
    probe = rows[np.linspace(0, len(rows) - 1, min(PROBED, len(rows))).astype(np.int64)] if len(rows) else rows
    for side, quality in ((side, quality) for side in sides for quality in QUALITIES):
        expected = sum(map(len, _encoded(pictures, probe, side, quality))) * len(rows) / max(1, len(probe))
        if expected <= budget or (side, quality) == (sides[-1], QUALITIES[-1]):
            break
    images = _encoded(pictures, rows, side, quality)
    columns = SHEET // side
    return Sheets(len(rows), side, columns, columns * columns, _codec()[1], tuple(images))


def tile(picture: np.ndarray, side: int) -> np.ndarray:
    """Return a square picture as (side,side,3) uint8; small pictures keep their pixels as squares."""
    if len(picture) == side:
        return picture
    how = Image.Resampling.NEAREST if side > len(picture) else Image.Resampling.BOX
    if side < len(picture) < 2 * side:
        how = Image.Resampling.LANCZOS
    return np.asarray(Image.fromarray(np.ascontiguousarray(picture)).resize((side, side), how))


def _encoded(pictures: Squares, rows: np.ndarray, side: int, quality: int) -> list[bytes]:
    columns, found = SHEET // side, []
    for start in range(0, len(rows), columns * columns):
        part = rows[start : start + columns * columns]
        high = -(-len(part) // columns)
        sheet = np.zeros((high * side, columns * side, 3), np.uint8)
        for position, row in enumerate(part):
            top, left = position // columns * side, position % columns * side
            sheet[top : top + side, left : left + side] = tile(pictures[int(row)], side)
        found.append(_encode(sheet, quality))
    return found


def _encode(sheet: np.ndarray, quality: int) -> bytes:
    name, _ = _codec()
    options = {"method": 4} if name == "WEBP" else {"optimize": True}
    written = io.BytesIO()
    Image.fromarray(sheet).save(written, name, quality=quality, **options)
    return written.getvalue()


def _codec() -> tuple[str, str]:
    return ("WEBP", "image/webp") if features.check("webp") else ("JPEG", "image/jpeg")


COMPARED = 20_000  # inputs whose neighbours are looked for; all pairs of more take too long for a report
CHUNK = 1024  # rows compared with all others at once
NEIGHBOURS = 10
TINY = 0.1  # of the average size
CLOSE = 0.8  # cosine between centroids, relative to the mean of all images
MIXED = 0.1  # share of nearest neighbours in the other cluster of a pair
LISTED = 200  # most entries of a list on the page; all are in assignments.csv


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The result of comparing all features with each other."""

    rows: np.ndarray  # (m,) inputs
    nearest: np.ndarray  # (m,k) positions among them


def neighbourhood_of(material: Material) -> Neighbourhood:
    positions = spread_evenly(np.arange(len(material.rows)), COMPARED)
    unit, rows = torch.from_numpy(material.features[positions]), material.rows[positions]
    count = max(0, min(NEIGHBOURS, len(rows) - 1))
    nearest = [np.empty((0, count), np.int64)]
    for start in range(0, len(rows) if count else 0, CHUNK):
        cosine = unit[start : start + CHUNK] @ unit.T  # (chunk,m)
        own = np.arange(start, start + len(cosine))
        cosine[np.arange(len(own)), own] = -2
        nearest.append(cosine.topk(count, dim=1).indices.numpy())
    return Neighbourhood(rows, np.concatenate(nearest))


def lookalikes(material: Material, middle: np.ndarray, around: Neighbourhood) -> list[dict[str, Any]]:
    """Return pairs of clusters with close centroids (K,D) or neighbouring images, most mixed first."""
    clusters = material.clusters[around.rows]
    n_clusters = len(middle)
    met = np.zeros((n_clusters, n_clusters))
    if around.nearest.size:
        np.add.at(met, (np.repeat(clusters, around.nearest.shape[1]), clusters[around.nearest].ravel()), 1)
    held = met.sum(1)
    shared = (met + met.T) / np.maximum(held[:, None] + held[None], 1)
    seen = held > 0
    offset = middle - (middle[seen].mean(0) if seen.any() else 0)
    offset = offset / np.maximum(np.linalg.norm(offset, axis=1, keepdims=True), 1e-12)
    cosine = offset @ offset.T
    wanted = np.triu((shared >= MIXED) | (cosine >= CLOSE), 1) & seen[:, None] & seen[None]
    pairs = [
        {"clusters": [int(i), int(j)], "mixed": round(float(shared[i, j]), 3), "cosine": round(float(cosine[i, j]), 3)}
        for i, j in np.argwhere(wanted)
    ]
    return sorted(pairs, key=lambda pair: (-pair["mixed"], -pair["cosine"]))


def small_clusters(sizes: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the tiny clusters and the empty ones."""
    bound = TINY * sizes.mean()
    return np.flatnonzero((sizes > 0) & (sizes < bound)).tolist(), np.flatnonzero(sizes == 0).tolist()


def unreadable(material: Material) -> list[tuple[str, str]]:
    """Path and reason of every input that could not be read."""
    said = zip(material.assignments.paths, material.assignments.status, strict=True)
    unread = [(path, status) for path, status in said if status not in ("ok", JUNK_STATUS)]
    return [(path, status.removeprefix("unreadable: ")) for path, status in unread]


SHOWN = 700  # images on all cards together, as far as each card has its share
MOST, FEWEST = 18, 4  # on one card
DOUBTFUL_SHARE = 3  # one in three is a doubtful one
ALIKE = 0.995  # cosine above which a second image shows nothing new


def per_card(n_clusters: int) -> tuple[int, int]:
    """Return how many typical and how many doubtful images a card has room for."""
    together = max(FEWEST, min(MOST, SHOWN // max(1, n_clusters)))
    doubtful = together // DOUBTFUL_SHARE
    return together - doubtful, doubtful


def centres(material: Material) -> np.ndarray:
    """Return (K,D) mean features, of length 1; zeros where no image of a cluster has features."""
    sums = np.zeros((len(material.groups), material.features.shape[1]), np.float32)
    np.add.at(sums, material.clusters[material.rows], material.features)
    length = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.asarray(sums / np.maximum(length, 1e-12))


def representatives(material: Material, middle: np.ndarray) -> list[tuple[list[int], list[int]]]:
    """Return for each cluster its typical inputs, best first, and its doubtful ones, most doubtful first.

    `middle` are the centres (K,D). Without features the most certain inputs stand for the typical ones. A card shows
    no input without a picture beside those that have one.
    """
    n_typical, n_doubtful = per_card(len(material.groups))
    near = (material.features * middle[material.clusters[material.rows]]).sum(1)  # (m,)
    with_features = _members(material.clusters[material.rows], len(material.groups))
    everyone = _members(material.clusters, len(material.groups))
    found = []
    for chosen, members in zip(with_features, everyone, strict=True):
        members = _pictured(material, members)
        members = members[np.argsort(material.confidence[members], kind="stable")]  # most doubtful first
        room = min(n_typical, len(members) - len(members) // DOUBTFUL_SHARE)  # a small cluster is shared out, too
        typical = [int(row) for row in members[::-1][:room]]
        if len(chosen):
            order = chosen[np.lexsort((-near[chosen], material.is_copy[material.rows[chosen]]))]
            typical = [int(material.rows[row]) for row in _various(material.features, order, room)]
        shown = set(typical)
        doubtful = [int(row) for row in members[: n_doubtful + n_typical] if int(row) not in shown]
        found.append((typical, doubtful[:n_doubtful]))
    return found


def _pictured(material: Material, members: np.ndarray) -> np.ndarray:
    """Return the members that have a picture; all if none has one."""
    if material.pictures is None or not material.unseen:
        return members
    seen = np.array([row in material.pictures for row in members.tolist()], dtype=bool)
    return members[seen] if seen.any() else members


def _members(clusters: np.ndarray, n_clusters: int) -> list[np.ndarray]:
    """Return the positions of the members of each cluster."""
    order = np.argsort(clusters, kind="stable")
    bounds = np.searchsorted(clusters[order], np.arange(n_clusters + 1))
    return [order[bounds[k] : bounds[k + 1]] for k in range(n_clusters)]


def _various(features: np.ndarray, order: np.ndarray, count: int) -> list[int]:
    """Return the first of `order` without near-copies of images taken before, unless nothing else is left."""
    taken: list[int] = []
    copies: list[int] = []
    for row in order[: 8 * count].tolist():
        if len(taken) == count:
            break
        same = taken and float((features[taken] @ features[row]).max()) > ALIKE
        (copies if same else taken).append(row)
    return (taken + copies)[:count]
