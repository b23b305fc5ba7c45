"""Write the report of a run as one HTML file with data, pictures, styles and scripts, which works offline.

The page's content security policy allows its script and its style sheet by their digests and forbids all requests, so
that markup in a name cannot do harm.

`gather` collects the content of the page as plain data for JSON; the report and the explorer share it. Names of files
and classes are not escaped here; the page escapes them.

    head        {title, sentences: [text], next: [{text, command?}], facts: [{value, label}], warning?}
    run         {source, kind, inputs, readable, added, unseen, clusters, corrections, junk, folder, method, backbone,
                epochs, seed, version, made: {what: text}, command (None: unknown, or made in Python)}
    confidence  {mean, sure, bins: [20 counts of 0 to 1]}
    images      columns over all images on the page; the other entries refer to images by their index here:
                {path, cluster, confidence, label (-1 unknown), large, small}: the last two are tiles, -1 for none
    clusters    [{id, name, short (a name or a number), named, size, share, confidence, typical: [image],
                doubtful: [image], purity?, classes?}]
    map         {method, meaning, note, image, x, y} with coordinates from 0 to 9999, or {absent}
    tree        the tree of clusters (see tree_data), with commands to cut it, or {absent}
    curves      training curves: metrics.jsonl as a few short lists of numbers
    problems    {unreadable, tiny, empty, alike}, each with a count and its listed entries
    cleanup     a list of {kind, count, more} with groups of {best, copies: [[image, value]]} or rows: [[image, value]]
    labels      {names, acc, nmi, ari, scoredOn, confusion: {clusters, classes, counts, note}}, or {absent}
    thumbnails  {large, small} (see Sheets.to_dict), or {absent}; pixelated: show pixels as squares
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import twincluster
from twincluster.clustering import POINTS, how_many, lay_out
from twincluster.config import BUNDLED, KNOWN, PREFERRED
from twincluster.core import InputError, OnProgress, counted, finite, write_atomically
from twincluster.data import Listing
from twincluster.methods import method_or_base
from twincluster.pages.report.material import (
    CLOSE,
    LISTED,
    MIXED,
    TINY,
    Material,
    Neighbourhood,
    Sheets,
    centres,
    lookalikes,
    make_sheets,
    neighbourhood_of,
    open_material,
    representatives,
    small_clusters,
    spread_evenly,
    unreadable,
)
from twincluster.pages.report.tree import tree_data
from twincluster.pages.web import read_asset
from twincluster.runs import PROBLEM_KINDS, REPORT_FILE, RISING, Living, Problem, Run, provenance
from twincluster.training import health_of

LARGE_BYTES, SMALL_BYTES = 4_500_000, 3_500_000  # of pictures; base64 takes a third more
LARGEST, SMALLER = 160, 64  # pixels a side of a tile on a card and on the map


def write_report(
    run: Run,
    labels: str | None = None,
    root: Path | None = None,
    *,
    source: Listing | None = None,
    decoding: OnProgress | None = None,
    problems: bool = True,
) -> tuple[Path, Material, Gathered]:
    """Write RUN/report.html. `labels`, `root`, `source` and `problems` are as for `open_material`."""
    material = open_material(run, labels, root, source=source, decoding=decoding, problems=problems)
    path = run.folder / REPORT_FILE
    if material.pictures is None and _has_pictures(path):
        raise InputError(
            f"{material.no_pictures}: {path}, which has their pictures, is left as it is. Put the images back, or "
            "delete that page to have one without pictures"
        )
    gathered = gather(material)
    write_atomically(path, page_of(material, gathered))
    return path, material, gathered


def page_of(material: Material, gathered: Gathered) -> str:
    """Return the page as text."""
    sheets = sheets_of(material, gathered)
    data = gathered.data | {
        "thumbnails": gathered.data["thumbnails"] | {name: s.to_dict() for name, s in sheets.items()}
    }
    script, style = read_asset("built/report.js"), read_asset("page.css")
    title = gathered.data["head"]["title"]
    pieces = {
        "policy": f"default-src 'none'; img-src data: blob:; script-src {_digest(script)}; style-src {_digest(style)}",
        "title": html.escape(title),
        "style": style,
        "sentences": html.escape(" ".join(gathered.data["head"]["sentences"])),
        "data": as_json(data),
        "sheets": as_json({name: [_address(s.kind, image) for image in s.images] for name, s in sheets.items()}),
        "script": script,
    }
    text = read_asset("report/report.html")
    before, *rest = text.split("{{")
    return before + "".join(pieces[name] + after for name, _, after in (piece.partition("}}") for piece in rest))


def sheets_of(material: Material, gathered: Gathered) -> dict[str, Sheets]:
    """Return the tiles for cards and for the map, within their budgets."""
    if material.pictures is None:
        return {}
    wanted = (("large", gathered.large, LARGE_BYTES, LARGEST), ("small", gathered.small, SMALL_BYTES, SMALLER))
    return {
        name: make_sheets(material.pictures, np.asarray(rows, dtype=np.int64), budget=budget, largest=side)
        for name, rows, budget, side in wanted
    }


def _has_pictures(path: Path) -> bool:
    return path.is_file() and b'id="sheets">{"large"' in path.read_bytes()


def as_json(value: Any) -> str:
    """Return JSON that is safe inside a script element: names cannot close it, because < is escaped."""
    compact = json.dumps(finite(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    compact = compact.encode("utf-8", "backslashreplace").decode("utf-8")
    return compact.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _address(kind: str, image: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


UNSURE = 0.7  # mean confidence below which the clusters are doubtful


def head_of(material: Material, data: dict[str, Any]) -> dict[str, Any]:
    """Return the head of the page. `data` is the rest of the gathered data."""
    run = data["run"]
    what = run["kind"]
    images, clusters = counted(run["readable"], what[:-1]), counted(run["clusters"], "cluster")
    return {
        "title": f"{images} of {run['source'].rstrip('/')} in {clusters}",
        "sentences": _sentences(material, data, what),
        "facts": _facts(data, what),
        "warning": _warning(material),
        "next": _next(material, data),
    }


def _sentences(material: Material, data: dict[str, Any], what: str) -> list[str]:
    found, confidence, labels = [], data["confidence"], data["labels"]
    if confidence["mean"] is not None:
        ahead = f"One cluster is clearly ahead for {confidence['sure']:.0%} of them"
        found.append(f"{ahead}{_how_firm(material, confidence['mean'])}.")
    if "acc" in labels:
        where = "" if labels["scoredOn"] == "all" else f" on the {labels['scoredOn']} part"
        scores = ", ".join(f"{name.upper()} {_dot(labels[name])}" for name in ("acc", "nmi", "ari"))
        found.append(f"Compared with labels{where}: {scores}.")
    if material.choice:
        said = material.choice.describe()
        found.append(said[0].upper() + said[1:] + ".")
    if data["run"]["added"]:
        were = "were" if data["run"]["added"] > 1 else "was"
        found.append(f"{data['run']['added']:,} of them {were} added after the training.")
    if material.groups.cuts:
        found.append(
            f"The tree of clusters was cut anew; the fit has {counted(material.config.n_clusters, 'cluster')}."
        )
    corrections = data["run"]["corrections"]
    if corrections and data["run"]["readable"]:
        found.append(f"{counted(corrections, 'correction')} by hand {'is' if corrections == 1 else 'are'} in them.")
    if material.trust:
        said = material.trust.to_text()
        found.append(said[0].upper() + said[1:] + ".")
    if junk := data["run"]["junk"]:
        found.append(f"{counted(junk, what[:-1])} marked as junk {'is' if junk == 1 else 'are'} left out.")
    if material.unseen and material.pictures is not None:
        gone = "its image is" if material.unseen == 1 else "their images are"
        found.append(f"{material.unseen:,} of them cannot be shown: {gone} gone or changed since.")
    if material.pictures is None:
        found.append(f"Without pictures: {material.no_pictures}.")
    return found


def _how_firm(material: Material, mean: float) -> str:
    """Return how reliable the clusters are as a whole.

    Some methods scale the head to the same mean confidence for all images. For these, use the agreement of two views.
    """
    if not method_or_base(material.config.method).steady_confidence:
        low = ", which is low: take the clusters as a first draft" if mean < UNSURE else ""
        return f"; the mean confidence is {_dot(mean)}{low}"
    last = material.metrics[-1] if material.metrics else {}
    # if the number of clusters was chosen at the end, training had another one
    if last.get("agreement") is None or len(last.get("histogram") or ()) != material.config.n_clusters:
        return ""
    return f"; in training two views of an image fell into the same one in {last['agreement']:.0%}"


def _facts(data: dict[str, Any], what: str) -> list[dict[str, str]]:
    run, labels, confidence = data["run"], data["labels"], data["confidence"]
    facts = []
    for count, one in ((run["readable"], what[:-1]), (run["clusters"], "cluster")):
        value, _, label = counted(count, one).partition(" ")
        facts.append((value, label))
    if confidence["mean"] is not None:
        facts.append((_dot(confidence["mean"]), "mean confidence"))
    if "acc" in labels:
        facts += [(_dot(labels[name]), name.upper()) for name in ("acc", "nmi", "ari")]
    if unread := data["problems"]["unreadable"]["count"]:
        facts.append((f"{unread:,}", "not readable"))
    return [{"value": value, "label": label} for value, label in facts]


def _warning(material: Material) -> str | None:
    """Return what is wrong with the clusters as a whole, or None."""
    needed = ("histogram", "mean_assignment", "confidence")
    rows = [row for row in material.metrics if all(row.get(name) for name in needed)]
    if not rows or len(rows[-1]["histogram"]) != material.config.n_clusters or material.config.n_clusters < 2:
        return None
    method = material.config.method
    return health_of(rows[-1]).warning(method, method_or_base(method).advice, material.config.train.precision)


def _next(material: Material, data: dict[str, Any]) -> list[dict[str, str]]:
    folder, found = shlex.quote(str(material.run.folder)), []
    problems = data["problems"]
    if alike := problems["alike"]["listed"]:
        called = {cluster["id"]: cluster["short"] for cluster in data["clusters"]}
        one, other = (called[cluster] for cluster in alike[0]["clusters"])
        found.append({"text": f"See whether clusters {one} and {other} belong together: they look most alike."})
    if data["run"]["clusters"] > 2:
        measured = "on five sets of images this order had a rank correlation of .67 with the share of wrong ones"
        found.append({"text": f"Sort the clusters by confidence and start with the least certain: {measured}."})
    if data["cleanup"]:
        found.append({"text": "Look through what may not belong here under Clean up; the explorer removes it."})
    if material.config.train.encoder == BUNDLED:
        better = f"{PREFERRED} ({KNOWN[PREFERRED].megabytes} MB to download, pip install 'twincluster[encoders]')"
        source = shlex.quote(material.data.location or data["run"]["source"])
        out = shlex.quote(f"{material.run.folder}-{PREFERRED}")
        other = f"twincluster fit {source} --backbone {PREFERRED} --out {out}"
        found.append({"text": f"For photographs a better encoder is {better}:", "command": other})
    found.append({"text": "Rename, merge, split and clear up in a browser:", "command": f"twincluster serve {folder}"})
    what = data["run"]["kind"]
    predict = f"twincluster predict {folder} NEW_{what.upper()} --out new.csv"
    found.append({"text": f"Put new {what} into these clusters:", "command": predict})
    if material.scores is None and material.data.files:
        labelled = f"twincluster report {folder} --labels folders"
        found.append({"text": "If the folders are labels, compare with them:", "command": labelled})
    return found


def _dot(value: float) -> str:
    """Format a score as .93, -.02 or 1.00."""
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"


BINS = 20  # of the confidence
SURE = 0.5  # confidence above which a cluster outweighs all others together
WIDEST = 40  # most clusters and classes of a confusion matrix
CLASSES = 3  # classes named on a card
ON_LEAF = 3  # images of a fine cluster
GROUPS, GROUP = 24, 6  # listed groups of copies, and images of each
SUSPECTS = 36  # listed images of each other kind
PIXELATED = 16  # pixels a side up to which pixels are shown as squares
NO_LABELS = "the run was not compared with labels"


@dataclass(eq=False)
class Gathered:
    """The data of a page, and the inputs that need tiles."""

    data: dict[str, Any]
    large: list[int] = field(default_factory=list)  # inputs in the order of their tiles
    small: list[int] = field(default_factory=list)


def gather(material: Material) -> Gathered:
    middle = centres(material)
    shown = _Shown(material)
    around = neighbourhood_of(material)
    data: dict[str, Any] = {
        "version": 1,
        "run": _run(material),
        "confidence": _confidence(material),
        "clusters": _clusters(material, middle, shown),
        "problems": _problems(material, middle, around),
        "cleanup": _cleanup(material, shown),
        "map": _map(material, shown),
        "tree": _tree(material, shown),
        "curves": curves_of(material.metrics),
        "labels": _labels(material),
    }
    data["images"] = shown.columns()
    data["thumbnails"] = {"absent": material.no_pictures} if material.pictures is None else {}
    data["thumbnails"]["pixelated"] = material.pictures is not None and material.pictures.side <= PIXELATED
    return Gathered({"head": head_of(material, data), **data}, list(shown.large), list(shown.small))


class _Shown:
    """Inputs on the page, each once, and their tiles."""

    def __init__(self, material: Material) -> None:
        self.material = material
        self.places: dict[int, int] = {}  # index of each input among the images
        self.large: dict[int, int] = {}  # index of each input among the tiles of a size
        self.small: dict[int, int] = {}

    def add(self, row: int, tiles: dict[int, int]) -> int:
        """Return the index of an input among the images. If it has a picture, add it to `tiles`, large or small."""
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
        "made": made.facts(),
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
    """Return the purity of a cluster and its most common classes, if labels were scored."""
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


def _cleanup(material: Material, shown: _Shown) -> list[dict[str, Any]]:
    """Return the images that may not belong here, by kind, most suspicious first, without junk and what is gone."""
    rows, pictures = material.row_of, material.pictures
    by_kind: dict[str, list[Problem]] = {}
    for suspect in material.suspects:
        shown_rows = [rows[path] for path in (suspect.path, suspect.copy_of) if path]
        is_there = pictures is None or all(row in pictures for row in shown_rows)
        if is_there and material.clusters[shown_rows[0]] >= 0:
            by_kind.setdefault(suspect.kind, []).append(suspect)

    def image(path: str) -> int:
        return shown.add(rows[path], shown.large)

    kinds: list[dict[str, Any]] = []
    for kind, suspects in sorted(by_kind.items(), key=lambda entry: PROBLEM_KINDS.index(entry[0])):
        rising = kind in RISING
        entry: dict[str, Any] = {"kind": kind, "count": len(suspects), "rising": rising}
        if suspects[0].copy_of:
            groups: dict[str, list[Problem]] = {}
            for suspect in suspects:
                groups.setdefault(suspect.copy_of, []).append(suspect)
            largest = sorted(groups.items(), key=lambda group: -len(group[1]))
            entry["groups"] = [
                {
                    "best": image(best),
                    "count": len(copies),
                    "copies": [[image(c.path), c.value] for c in copies[:GROUP]],
                }
                for best, copies in largest[:GROUPS]
            ]
            entry["more"] = max(0, len(groups) - GROUPS)
        else:
            worst = sorted(suspects, key=lambda suspect: -suspect.value if rising else suspect.value)
            entry["rows"] = [[image(suspect.path), suspect.value] for suspect in worst[:SUSPECTS]]
            entry["more"] = max(0, len(suspects) - SUSPECTS)
        kinds.append(entry)
    return kinds


def _problems(material: Material, middle: np.ndarray, around: Neighbourhood) -> dict[str, Any]:
    unread = unreadable(material)
    sizes = np.array(material.assignments.sizes(len(material.groups)))
    tiny, empty = small_clusters(sizes)
    alike = [pair | {"clusters": _ids(material, pair["clusters"])} for pair in lookalikes(material, middle, around)]
    return {
        "unreadable": {"count": len(unread), "listed": unread[: LISTED]},
        "tiny": {"count": len(tiny), "share": TINY, "listed": _ids(material, tiny[: LISTED])},
        "empty": {"count": len(empty), "listed": _ids(material, empty[: LISTED])},
        "alike": {
            "count": len(alike), "mixed": MIXED, "cosine": CLOSE, "compared": len(around.rows),
            "listed": alike[: LISTED // 10],
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


def _tree(material: Material, shown: _Shown) -> dict[str, Any]:
    tree, state, folder = material.tree, material.state, shlex.quote(str(material.run.folder))
    if tree is None or state is None or tree.n_leaves < 2:
        return {"absent": "the run has no tree"}
    data = tree_data(Living.of(tree, state), state, material.rows, material.features, ON_LEAF)
    for leaf in data["leaves"]:
        leaf["rows"] = [shown.add(row, shown.small) for row in leaf["rows"]]
    return data | {"cut": f"twincluster cut {folder}", "serve": f"twincluster serve {folder}"}


def _labels(material: Material) -> dict[str, Any]:
    if material.scores is None:
        return {"absent": material.no_scores or NO_LABELS, "names": list(material.class_names or ())}
    confusion, matching = material.scores.confusion, material.scores.matching
    n_classes = confusion.shape[1]
    names = material.class_names or tuple(map(str, range(n_classes)))
    largest = np.argsort(-confusion.sum(1), kind="stable")[:WIDEST]
    common = np.sort(np.argsort(-confusion.sum(0), kind="stable")[:WIDEST])
    # clusters in the order of their matched classes, those without a match last
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


CURVE_POINTS = 200  # points of a curve
MOMENTS = 5  # epochs at which cluster sizes are shown
BARS = 120  # bars of a histogram

# Name in metrics.jsonl, title, and the shape of a good curve.
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
    """Return {"epochs": [...], "groups": [{"title", "note", "lines": [{"name", "values"}]}], "histograms": [...]}."""
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
    """Return the sizes of clusters, largest first, as shares of all images, at a few epochs."""
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
    """Return evenly spaced positions, including the first and the last."""
    if length <= count:
        return list(range(length))
    return sorted({round(i * (length - 1) / (count - 1)) for i in range(count)})


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")
