"""What can be said of a finished run: scores against labels, and, with or without any, sizes, confidence, silhouette.

What needs the images themselves is left out when they are no longer where the run found them, or no longer the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twincluster import inference
from twincluster.derive import resolve_device
from twincluster.errors import InputError
from twincluster.evaluate import Scores, knn_accuracy, score, silhouette
from twincluster.images.labels import read_labels
from twincluster.images.sources import open_source
from twincluster.images.store import Images
from twincluster.pipeline import Split, open_for, rows_to_score, scores_line
from twincluster.results import Assignments, Run, strict_json

FEATURE_SAMPLE = 20_000  # inputs that silhouette and kNN look at
WIDEST_TABLE = 40  # classes or clusters of a confusion matrix that is printed
LONGEST_NAME = 14  # letters of a class name in its header


@dataclass(frozen=True)
class Findings:
    """Scores and label-free figures of one partition."""

    assignments: Assignments
    n_clusters: int
    scores: Scores | None
    class_names: tuple[str, ...] | None
    scored_on: Split
    silhouette: float | None  # None without the images, or where fewer than two clusters hold any
    knn: float | None
    images_found: bool

    def to_dict(self) -> dict[str, Any]:
        confidence = self.assignments.confidence
        return {
            "inputs": len(self.assignments.paths),
            "unreadable": int((self.assignments.clusters < 0).sum()),
            "sizes": self.assignments.sizes(self.n_clusters),
            "confidence": float(confidence[np.isfinite(confidence)].mean()) if np.isfinite(confidence).any() else None,
            "silhouette": self.silhouette,
            "knn": self.knn,
            "scored_on": self.scored_on if self.scores else None,
            **(self.scores.as_dict() if self.scores else {}),
            "class_names": list(self.class_names) if self.class_names and self.scores else None,
        }

    def to_json(self) -> str:
        """Strict JSON: a figure that does not exist is null."""
        return strict_json(self.to_dict(), indent=2)

    def to_text(self) -> str:
        found = self.to_dict()
        lines = [f"{found['inputs']:,} inputs, {found['unreadable']:,} unreadable, {self.n_clusters} clusters"]
        lines.append(f"sizes {' '.join(map(str, found['sizes']))}")
        if found["confidence"] is not None:
            lines.append(f"mean confidence {found['confidence']:.3f}")
        if self.silhouette is not None:
            lines.append(f"silhouette of the features {self.silhouette:.3f}")
        if not self.images_found:
            lines.append("the images have moved or changed since: no silhouette, no kNN accuracy")
        if not self.scores:
            return "\n".join([*lines, "no labels: give --labels folders, or a file, for ACC, NMI and ARI"])
        lines.append(scores_line(self.scores, self.scored_on))
        if self.knn is not None:
            lines.append(f"kNN accuracy of the features {self.knn:.4f}")
        return "\n".join([*lines, "", _confusion_table(self.scores, self.class_names)])


def findings_of(
    run: Run, labels: str | None, root: Path | None, decoding: Callable[[int, int], None] | None = None
) -> Findings:
    """`labels` as `twincluster evaluate` takes them; None: those that the source carries, if any."""
    assignments = run.read_assignments()
    config, _, data = run.read_config()
    images = _reopen(run, root, decoding)
    truth, names = None, None
    if labels not in (None, "none"):
        truth, names = read_labels(str(labels), data["source"], assignments.paths, are_files=data["files"])
    elif labels is None and images:
        truth, names = images.listing.labels, images.listing.class_names
    scores, scored_on = None, data["split"]
    if truth is not None:
        if images is None and data["split"] != "all":
            raise InputError(
                f"{run.folder} was trained on the {data['split']} part of {data['source']}, and which images that was "
                f"is known only from {data['location']}, which has moved or changed: put it back"
            )
        rows, scored_on = rows_to_score(images.listing if images else None, data["split"], len(truth))
        scores = score(truth[rows], assignments.clusters[rows])
    quality, knn = _feature_figures(run, images, assignments, truth) if images else (None, None)
    return Findings(assignments, config.n_clusters, scores, names, scored_on, quality, knn, images is not None)


def _reopen(run: Run, root: Path | None, decoding: Callable[[int, int], None] | None) -> Images | None:
    """The run's source, if it is still there and still the same."""
    config, _, data = run.read_config()
    root = root or (Path(data["root"]) if data.get("root") else None)
    try:
        listing = open_source(data["location"], root=root) if data["location"] else None
        if listing is None or len(listing.paths) != data["inputs"]:
            return None
        images = open_for(config, listing, decoding)
    except InputError:
        return None
    return images if images.fingerprint == data["fingerprint"] else None


def _feature_figures(
    run: Run, images: Images, assignments: Assignments, truth: np.ndarray | None
) -> tuple[float | None, float | None]:
    """Silhouette, and kNN accuracy where there are labels, of an even sample of the features."""
    rows = images.usable[:: math.ceil(len(images.usable) / FEATURE_SAMPLE) or 1]
    features = inference.embed(run.load_network(resolve_device("auto")), images.pixels, rows)
    quality = silhouette(features.numpy(), assignments.clusters[rows])
    split, knn = images.listing.split, math.nan
    if truth is not None:
        knn = knn_accuracy(features, truth[rows], split[rows] == 1 if split is not None else None)
    return quality if math.isfinite(quality) else None, knn if math.isfinite(knn) else None


def _confusion_table(scores: Scores, class_names: tuple[str, ...] | None) -> str:
    """Rows are clusters in the order of the classes they match, columns are classes."""
    n_clusters, n_classes = scores.confusion.shape
    if max(n_clusters, n_classes) > WIDEST_TABLE:
        return "the confusion matrix is too wide for a terminal: see --json"
    names = [name[:LONGEST_NAME] for name in class_names or map(str, range(n_classes))][:n_classes]
    widths = [max(len(names[c]), len(str(scores.confusion[:, c].max()))) + 2 for c in range(n_classes)]
    order = sorted(range(n_clusters), key=lambda k: (scores.matching[k] < 0, scores.matching[k]))
    head = "cluster" + "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    rows = [
        f"{k:7d}" + "".join(f"{count:{width}d}" for count, width in zip(scores.confusion[k], widths, strict=True))
        for k in order
    ]
    return "\n".join([head, *rows])
