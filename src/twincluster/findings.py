"""What can be said of a finished run: scores against labels, and, with or without any, sizes, confidence, silhouette.

What needs the images themselves is left out, and said to be, when they cannot be seen again as the run saw them. Rows
that `twincluster update` added count like the others wherever they have labels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twincluster.clustering import Scores, knn_accuracy, score, silhouette
from twincluster.config import Split
from twincluster.core import InputError, strict_json
from twincluster.data import Images, Labels, Listing, labels_of_shards, read_labels
from twincluster.fit import rows_to_score, scores_line, sizes_line
from twincluster.model import Model
from twincluster.run_images import RunImages
from twincluster.runs import Assignments, Run, RunData, kinds_of, within_source
from twincluster.teacher import Trust, trust_of

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
    absent: str | None = None  # why the images cannot be looked at
    added: int = 0  # inputs that came after the training
    unlabelled: int = 0  # inputs that are left out of the scores
    corrections: int = 0  # by hand, which these figures of the model's own clusters know nothing of
    trust: Trust | None = None  # of the corrected clusters, by random questions that a person has answered
    names: Mapping[int, str] = dataclasses.field(default_factory=dict)  # of the corrected clusters

    def to_dict(self) -> dict[str, Any]:
        confidence = self.assignments.confidence
        return {
            "inputs": len(self.assignments.paths),
            "added": self.added,
            "corrections": self.corrections,
            "trust": self.trust.to_dict() if self.trust else None,
            "unreadable": int((self.assignments.clusters < 0).sum()),
            "incomplete": self.assignments.problems()["incomplete"],
            "too_large": self.assignments.problems()["too_large"],
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
        unread = f"{found['unreadable']:,} unreadable{kinds_of(self.assignments.problems())}"
        lines = [f"{found['inputs']:,} inputs, {unread}, {self.n_clusters} clusters"]
        if self.added:
            lines.append(f"{self.added:,} of them were added after the training, by twincluster update")
        if self.corrections:
            many = "1 correction" if self.corrections == 1 else f"{self.corrections:,} corrections"
            lines.append(f"without {many} by hand, which twincluster report counts: these clusters are the model's own")
        if self.trust:
            lines.append(f"with the corrections, {self.trust.to_text()}")
            lines += [
                f"  {self.names[cluster][:LONGEST_NAME]}: {share.to_text()}"
                for cluster, share in self.trust.clusters.items()
            ]
        lines.append(sizes_line(found["sizes"]))
        if found["confidence"] is not None:
            lines.append(f"mean confidence {found['confidence']:.3f}")
        if self.silhouette is not None:
            lines.append(f"silhouette of the features {self.silhouette:.3f}")
        if self.absent:
            lines.append(f"no silhouette, no kNN accuracy: {self.absent}")
        if not self.scores:
            return "\n".join([*lines, "no labels: give --labels folders, or a file, for ACC, NMI and ARI"])
        left_out = f", without {self.unlabelled:,} that have no label" if self.unlabelled else ""
        lines.append(scores_line(self.scores, self.scored_on) + left_out)
        if self.knn is not None:
            lines.append(f"kNN accuracy of the features {self.knn:.4f}")
        return "\n".join([*lines, "", _confusion_table(self.scores, self.class_names)])


def findings_of(
    run: Run, labels: str | None, root: Path | None, decoding: Callable[[int, int], None] | None = None
) -> Findings:
    """`labels` as `twincluster evaluate` takes them; None: those that the source carries, if any."""
    inputs = RunImages(run, root, decoding=decoding)
    assignments, config, data = inputs.assignments, run.config, run.data
    images, absent = inputs.training, inputs.absent or None
    truth, names = truth_of(run, labels, assignments, images.listing if images else None)
    added = len(assignments.paths) - data.inputs
    _, state, corrections = inputs.edited()
    found = Findings(
        assignments, config.n_clusters, None, names, data.split, None, None, absent, added, corrections=corrections,
        trust=trust_of(inputs), names=state.names,
    )  # fmt: skip
    if truth is not None:
        if images is None and data.split != "all":
            raise InputError(
                f"{run.folder} was trained on the {data.split} part of {data.source}, and which images that was "
                f"is known only from {data.location}, which has moved or changed: put it back"
            )
        rows, scored_on = rows_to_score(images.listing if images else None, data.split, len(assignments.paths))
        unlabelled = int((rows & (truth < 0) & (assignments.clusters >= 0)).sum())
        scores = score(truth[rows], assignments.clusters[rows])
        found = dataclasses.replace(found, scores=scores, scored_on=scored_on, unlabelled=unlabelled)
    if images:
        quality, knn = _feature_figures(run, images, assignments, truth)
        found = dataclasses.replace(found, silhouette=quality, knn=knn)
    return found


def truth_of(run: Run, labels: str | None, assignments: Assignments, own: Listing | None) -> Labels | tuple[None, None]:
    """A label for each row, -1 where there is none, and what they are called; None, None without any."""
    data, paths = run.data, assignments.paths
    if labels == "none" or (labels is None and (own is None or own.labels is None)):
        return None, None
    if labels is None and own is not None and own.labels is not None:
        codes, names = own.labels, own.class_names
    elif labels == "folders":
        updates = run.read_updates()
        inside = [within_source(path, updates) for path in paths]
        codes, names = read_labels("folders", data.source, inside, are_files=data.files)
    elif own is not None and (beside := labels_of_shards(own, str(labels))) is not None:
        codes, names = beside
    else:
        codes, names = _from_file(str(labels), data, paths)
    return np.concatenate([codes, np.full(len(paths) - len(codes), -1)]), names


def _from_file(labels: str, data: RunData, paths: Sequence[str]) -> Labels:
    """An array may have a number for each row, or only for those of the training, which come first."""
    try:
        return read_labels(labels, data.source, paths, are_files=data.files)
    except InputError:
        if not labels.endswith(".npy") or len(paths) == data.inputs:
            raise
        return read_labels(labels, data.source, paths[: data.inputs], are_files=data.files)


def _feature_figures(
    run: Run, images: Images, assignments: Assignments, truth: np.ndarray | None
) -> tuple[float | None, float | None]:
    """Silhouette, and kNN accuracy where there are labels, of an even sample of the features."""
    rows = images.usable[:: math.ceil(len(images.usable) / FEATURE_SAMPLE) or 1]
    features = Model.load(run).embed(images, rows)
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
