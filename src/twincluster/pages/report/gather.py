"""What a page shows of a run, as plain data that becomes JSON; a page in one file and a server use the same.

Names of files and classes stand here as they are; whoever writes them into a page escapes them.

    head        {title, sentences: [text], next: [{text, command?}], facts: [{value, label}], warning?}
    run         {source, kind, inputs, readable, added, unseen, clusters, corrections, junk, folder, method, backbone,
                epochs, seed, version, made: {what: text}, command (None: not known, or made in Python)}
    confidence  {mean, sure, bins: [20 counts of 0 to 1]}
    images      columns over the images that are shown anywhere, which the rest names by their place in here:
                {path, cluster, confidence, label (-1 unknown), large, small}: the last two are tiles, -1 for none
    clusters    [{id, name, short (a name or a number), named, size, share, confidence, typical: [image],
                doubtful: [image], purity?, classes?}]
    map         {method, meaning, note, image, x, y} with coordinates from 0 to 9999, or {absent}
    curves      see curves.py
    problems    {unreadable, duplicates, tiny, empty, alike}, each with a count and what is listed of it
    labels      {names, acc, nmi, ari, scoredOn, confusion: {clusters, classes, counts, note}}, or {absent}
    thumbnails  {large, small} (see thumbnails.Sheets.to_dict), or {absent}; pixelated: show pixels as squares

metrics.jsonl as a few short lists of numbers: how training went, small enough for a page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import twincluster
from twincluster.clustering import POINTS, how_many, lay_out
from twincluster.pages.report import head, problems
from twincluster.pages.report.material import Material, spread_evenly
from twincluster.pages.report.problems import centres, representatives
from twincluster.runs import provenance

BINS = 20  # of the confidence
SURE = 0.5  # confidence from which one cluster outweighs all others together
WIDEST = 40  # clusters and classes of a confusion matrix
CLASSES = 3  # that a card names
GROUPS, GROUP = 24, 6  # groups of near-duplicates that are listed, and images of each
PIXELATED = 16  # pixels a side up to which pixels are shown as squares
NO_LABELS = "the run was not compared with labels"


@dataclass(eq=False)
class Gathered:
    """The data of a page, and the inputs whose tiles it needs."""

    data: dict[str, Any]
    large: list[int] = field(default_factory=list)  # inputs in the order of their tiles
    small: list[int] = field(default_factory=list)


def gather(material: Material) -> Gathered:
    middle = centres(material)
    shown = _Shown(material)
    around = problems.neighbourhood_of(material)
    data: dict[str, Any] = {
        "version": 1,
        "run": _run(material),
        "confidence": _confidence(material),
        "clusters": _clusters(material, middle, shown),
        "problems": _problems(material, middle, around, shown),
        "map": _map(material, shown),
        "curves": curves_of(material.metrics),
        "labels": _labels(material),
    }
    data["images"] = shown.columns()
    data["thumbnails"] = {"absent": material.no_pictures} if material.pictures is None else {}
    data["thumbnails"]["pixelated"] = material.pictures is not None and material.pictures.side <= PIXELATED
    return Gathered({"head": head.head_of(material, data), **data}, list(shown.large), list(shown.small))


class _Shown:
    """Inputs that the page shows, each once, and which tiles they have."""

    def __init__(self, material: Material) -> None:
        self.material = material
        self.places: dict[int, int] = {}  # of an input among the images
        self.large: dict[int, int] = {}  # of an input among the tiles of a size
        self.small: dict[int, int] = {}

    def add(self, row: int, tiles: dict[int, int]) -> int:
        """The place of an input among the images; if it has a picture, it gets a tile among `tiles`, large or small."""
        has_picture = self.material.pictures is not None and row in self.material.pictures
        if has_picture and self.material.clusters[row] >= 0:
            tiles.setdefault(row, len(tiles))
        return self.places.setdefault(row, len(self.places))

    def columns(self) -> dict[str, list[Any]]:
        rows, material = list(self.places), self.material
        return {
            "path": [material.assignments.paths[row] for row in rows],
            "cluster": material.groups.ids_of(material.clusters[rows]).tolist(),
            "confidence": [round(float(value), 3) for value in material.confidence[rows]],
            "label": [-1] * len(rows) if material.truth is None else material.truth[rows].tolist(),
            "large": [self.large.get(row, -1) for row in rows],
            "small": [self.small.get(row, -1) for row in rows],
        }


def _run(material: Material) -> dict[str, Any]:
    config, data, made = material.config, material.data, provenance.read(material.run.folder)
    return {
        "source": data.source,
        "kind": _kind(material),
        "inputs": len(material.assignments.paths),
        "readable": int((material.clusters >= 0).sum()),
        "added": len(material.assignments.paths) - data.inputs,
        "unseen": material.unseen,
        "clusters": len(material.groups),
        "corrections": material.groups.corrections,
        "junk": material.groups.junk,
        "folder": str(material.run.folder),
        "method": config.method,
        "backbone": config.train.encoder or config.train.backbone,
        "epochs": int(material.metrics[-1].get("epoch", 0)) + 1 if material.metrics else 0,
        "seed": config.seed,
        "version": twincluster.__version__,
        "made": made.told(),
        "command": made.command(),
    }


def _kind(material: Material) -> str:
    return "images" if material.run.shape.side or material.config.train.frozen else "rows"


def _confidence(material: Material) -> dict[str, Any]:
    known = material.confidence[np.isfinite(material.confidence)]
    counts = np.histogram(known.clip(0, 1), BINS, (0, 1))[0].tolist()
    if not len(known):
        return {"mean": None, "sure": None, "bins": counts}
    return {"mean": round(float(known.mean()), 4), "sure": round(float((known >= SURE).mean()), 4), "bins": counts}


def _clusters(material: Material, middle: np.ndarray, shown: _Shown) -> list[dict[str, Any]]:
    groups = material.groups
    sizes = material.assignments.sizes(len(groups))
    readable, found = max(1, sum(sizes)), []
    for k, (typical, doubtful) in enumerate(representatives(material, middle)):
        mine = material.confidence[material.clusters == k]
        cluster: dict[str, Any] = {
            "id": groups.ids[k],
            "name": groups.names[k] or f"Cluster {groups.ids[k]}",
            "short": groups.short(k),
            "named": bool(groups.names[k]),
            "size": sizes[k],
            "share": round(sizes[k] / readable, 5),
            "confidence": round(float(mine.mean()), 4) if len(mine) else None,
            "typical": [shown.add(row, shown.large) for row in typical],
            "doubtful": [shown.add(row, shown.large) for row in doubtful],
        }
        found.append(cluster | _composition(material, k))
    return found


def _composition(material: Material, cluster: int) -> dict[str, Any]:
    """Purity of a cluster and its most common classes, where labels were scored."""
    if material.scores is None or cluster >= len(material.scores.confusion):
        return {}
    counts = material.scores.confusion[cluster]
    total = int(counts.sum())
    if not total:
        return {}
    order = np.argsort(-counts, kind="stable")[:CLASSES]
    return {
        "purity": round(float(counts.max()) / total, 4),
        "classes": [[int(code), int(counts[code])] for code in order if counts[code]],
        "labelled": total,
    }


def _problems(material: Material, middle: np.ndarray, around: problems.Neighbourhood, shown: _Shown) -> dict[str, Any]:
    unread = problems.unreadable(material)
    groups = problems.duplicates(around)
    sizes = np.array(material.assignments.sizes(len(material.groups)))
    tiny, empty = problems.small_clusters(sizes)
    alike = [
        pair | {"clusters": _ids(material, pair["clusters"])} for pair in problems.lookalikes(material, middle, around)
    ]
    pictured = material.pictures is not None
    return {
        "unreadable": {"count": len(unread), "listed": unread[: problems.LISTED]},
        "duplicates": {
            "count": len(groups),
            "compared": len(around.rows),
            "cosine": problems.COSINE if pictured else problems.COSINE_OF_ROWS,
            "difference": problems.DIFFERENCE if pictured else None,
            "listed": [
                {"count": len(group), "images": [shown.add(row, shown.large) for row in group[:GROUP]]}
                for group in groups[:GROUPS]
            ],
        },
        "tiny": {"count": len(tiny), "share": problems.TINY, "listed": _ids(material, tiny[: problems.LISTED])},
        "empty": {"count": len(empty), "listed": _ids(material, empty[: problems.LISTED])},
        "alike": {
            "count": len(alike), "mixed": problems.MIXED, "cosine": problems.CLOSE, "compared": len(around.rows),
            "listed": alike[: problems.LISTED // 10],
        },
    }  # fmt: skip


def _ids(material: Material, places: Sequence[int]) -> list[int]:
    return [material.groups.ids[place] for place in places]


def _map(material: Material, shown: _Shown) -> dict[str, Any]:
    if len(material.rows) < 2:
        return {"absent": material.no_pictures or "there are too few inputs"}
    chosen = spread_evenly(np.arange(len(material.rows)), POINTS)
    layout = lay_out(material.features[chosen], seed=material.config.seed)
    return {
        "method": layout.method,
        "meaning": layout.meaning,
        "note": how_many(len(chosen), material.visible, int((material.clusters >= 0).sum()), _kind(material)),
        "image": [shown.add(int(row), shown.small) for row in material.rows[chosen]],
        "x": layout.places[:, 0].tolist(),
        "y": layout.places[:, 1].tolist(),
    }


def _labels(material: Material) -> dict[str, Any]:
    if material.scores is None:
        return {"absent": material.no_scores or NO_LABELS, "names": list(material.class_names or ())}
    confusion, matching = material.scores.confusion, material.scores.matching
    n_classes = confusion.shape[1]
    names = material.class_names or tuple(map(str, range(n_classes)))
    largest = np.argsort(-confusion.sum(1), kind="stable")[:WIDEST]
    common = np.sort(np.argsort(-confusion.sum(0), kind="stable")[:WIDEST])
    # along the diagonal: clusters in the order of the classes they match, those that match none at the end
    rows = sorted(largest.tolist(), key=lambda k: (matching[k] < 0, matching[k], -confusion[k].sum()))
    whole = max(confusion.shape) <= WIDEST
    note = "" if whole else f"the {len(rows)} largest clusters and the {len(common)} most common classes"
    return {
        "names": list(names),
        **{name: round(float(getattr(material.scores, name)), 4) for name in ("acc", "nmi", "ari")},
        "scoredOn": material.scored_on,
        "confusion": {
            "clusters": _ids(material, rows), "classes": common.tolist(),
            "counts": confusion[np.ix_(rows, common)].tolist(), "note": note,
        },
    }  # fmt: skip


CURVE_POINTS = 200  # of a curve
MOMENTS = 5  # at which the sizes of clusters are shown
BARS = 120  # of a histogram

# Name in metrics.jsonl, title, and what a good curve does.
CURVES: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Losses",
        "they should fall and level off; terms that start later may lift the sum",
        (
            ("loss", "loss"), ("instance_loss", "instance track"), ("cluster_loss", "cluster track"),
            ("commit_loss", "commitment"),
        ),
    ),
    (
        "Health",
        "confidence and the agreement between two views of an image should rise",
        (("confidence", "mean confidence"), ("agreement", "views agree"), ("relabelled", "changed cluster")),
    ),
    ("DEC loss", "recorded for comparison, never trained on", (("dec_loss", "DEC loss"),)),
    ("Accuracy on batches", "of augmented training batches, by labels that training never sees",
     (("on_batch_acc", "accuracy"),)),
)  # fmt: skip


def curves_of(metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """{"epochs": [...], "groups": [{"title", "note", "lines": [{"name", "values"}]}], "histograms": [...]}."""
    kept = [metrics[i] for i in _even(len(metrics), CURVE_POINTS)]
    groups = []
    for title, note, names in CURVES:
        lines = [{"name": said, "values": [_number(row.get(name)) for row in kept]} for name, said in names]
        lines = [line for line in lines if any(value is not None for value in line["values"])]
        if lines:
            groups.append({"title": title, "note": note, "lines": lines})
    return {
        "epochs": [int(row.get("epoch", position)) + 1 for position, row in enumerate(kept)],
        "seconds": _number(metrics[-1].get("seconds")) if metrics else None,
        "groups": groups,
        "histograms": histograms_of(metrics),
    }


def histograms_of(metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sizes of clusters, largest first, as shares of all images, at a few moments of the training."""
    counted = [row for row in metrics if len(row.get("histogram") or ()) > 1]
    found = []
    for position in _even(len(counted), MOMENTS):
        sizes = np.sort(np.asarray(counted[position]["histogram"], dtype=np.float64))[::-1]
        shares = sizes / max(1.0, sizes.sum())
        bars = shares[_even(len(shares), BARS)]
        epoch = int(counted[position].get("epoch", position)) + 1
        found.append({"epoch": epoch, "clusters": len(sizes), "shares": [round(float(bar), 5) for bar in bars]})
    return found


def _even(length: int, count: int) -> list[int]:
    """Positions at even distances, the first and the last among them."""
    if length <= count:
        return list(range(length))
    return sorted({round(i * (length - 1) / (count - 1)) for i in range(count)})


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")
