"""What can be said of a finished run: scores against labels, and, with or without any, sizes, confidence, silhouette."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twincluster import inference
from twincluster.errors import InputError
from twincluster.evaluate import Scores, knn_accuracy, score, silhouette
from twincluster.images.labels import read_labels
from twincluster.images.sources import Listing, open_source
from twincluster.images.store import open_images
from twincluster.pipeline import rows_to_score, store_side
from twincluster.results import Assignments, Run

FEATURE_SAMPLE = 20_000  # inputs that silhouette and kNN look at


@dataclass(frozen=True)
class Findings:
    """Scores and label-free figures of one partition."""

    assignments: Assignments
    scores: Scores | None
    class_names: tuple[str, ...] | None
    scored_on: str  # "all", "train" or "test"
    silhouette: float | None  # None when the source is no longer where it was
    knn: float | None

    def to_dict(self) -> dict[str, Any]:
        clusters = self.assignments.clusters
        return {
            "inputs": len(clusters),
            "unreadable": int((clusters < 0).sum()),
            "sizes": np.bincount(clusters[clusters >= 0]).tolist(),
            "confidence": float(np.nanmean(self.assignments.confidence)),
            "silhouette": self.silhouette,
            "scored_on": self.scored_on if self.scores else None,
            "knn": self.knn,
            **(self.scores.as_dict() if self.scores else {}),
            "class_names": list(self.class_names) if self.class_names and self.scores else None,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def to_text(self) -> str:
        found = self.to_dict()
        lines = [f"{found['inputs']:,} inputs, {found['unreadable']:,} unreadable, {len(found['sizes'])} clusters"]
        lines.append(f"sizes {' '.join(map(str, found['sizes']))}; mean confidence {found['confidence']:.3f}")
        if self.silhouette is not None:
            lines.append(f"silhouette of the features {self.silhouette:.3f}")
        if not self.scores:
            return "\n".join([*lines, "no labels: give --labels folders, or a file, for ACC, NMI and ARI"])
        where = "the whole set" if self.scored_on == "all" else f"the {self.scored_on} part"
        lines.append(f"ACC {self.scores.acc:.4f}  NMI {self.scores.nmi:.4f}  ARI {self.scores.ari:.4f}  on {where}")
        if self.knn is not None:
            lines.append(f"kNN accuracy of the features {self.knn:.4f}")
        return "\n".join([*lines, "", _confusion_table(self.scores, self.class_names)])


def findings_of(run: Run, labels: str | None, root: Path | None) -> Findings:
    """`labels` as `twincluster evaluate` takes them; None: those that the source carries, if any."""
    assignments = run.read_assignments()
    data = run.read_config()[2]
    listing = _reopen(data, root)
    truth, names = (listing.labels, listing.class_names) if listing else (None, None)
    if labels == "none":
        truth = None
    elif labels is not None:
        truth, names = read_labels(labels, data["source"], assignments.paths, are_files=data["files"])
    rows, scored_on = rows_to_score(listing, data["split"], len(assignments.paths))
    scores = score(truth[rows], assignments.clusters[rows]) if truth is not None else None
    quality, knn = _feature_figures(run, listing, assignments, truth) if listing else (None, None)
    return Findings(assignments, scores, names, scored_on, quality, knn)


def _reopen(data: dict[str, Any], root: Path | None) -> Listing | None:
    """The run's source, if it is still there and still what it was by number."""
    try:
        listing = open_source(data["location"], root=root) if data["location"] else None
    except InputError:
        return None
    return listing if listing and len(listing.paths) == data["inputs"] else None


def _feature_figures(
    run: Run, listing: Listing, assignments: Assignments, truth: np.ndarray | None
) -> tuple[float, float | None]:
    """Silhouette, and kNN accuracy where there are labels, of an even sample of the features."""
    config, _, _ = run.read_config()
    images = open_images(listing, side=store_side(config))
    rows = images.usable[:: max(1, len(images.usable) // FEATURE_SAMPLE)]
    features = inference.embed(run.load_network(), images.pixels, rows)
    quality = silhouette(features.numpy(), assignments.clusters[rows])
    if truth is None:
        return quality, None
    is_test = listing.split[rows] == 1 if listing.split is not None else None
    return quality, knn_accuracy(features, truth[rows], is_test)


def _confusion_table(scores: Scores, class_names: tuple[str, ...] | None) -> str:
    """Rows are clusters in the order of the classes they match, columns are classes."""
    n_clusters, n_classes = scores.confusion.shape
    names = class_names or tuple(str(i) for i in range(n_classes))
    if n_clusters > 40 or n_classes > 40:
        return "the confusion matrix is too wide for a terminal: see --json"
    order = sorted(range(n_clusters), key=lambda k: (scores.matching[k] < 0, scores.matching[k]))
    width = max(6, len(str(scores.confusion.max())) + 1)
    head = "cluster" + "".join(f"{name[: width - 1]:>{width}}" for name in names)
    rows = [f"{k:7d}" + "".join(f"{count:{width}d}" for count in scores.confusion[k]) for k in order]
    return "\n".join([head, *rows])
