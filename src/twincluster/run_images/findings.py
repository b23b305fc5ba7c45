"""Evaluate a finished run: scores against labels and, with or without labels, sizes, confidence and silhouette.

Figures that need the images are left out, with a note, if the images are gone or have changed. Rows added by
`twincluster update` count if they have labels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twincluster.clustering import Scores, knn_accuracy, score, silhouette
from twincluster.config import Split
from twincluster.core import InputError, OnProgress, counted, strict_json
from twincluster.data import Images, Labels, Listing, labels_of_shards, read_labels
from twincluster.fit import rows_to_score, scores_line, sizes_line
from twincluster.model import Model
from twincluster.run_images.images import RunImages
from twincluster.runs import Assignments, Run, RunData, kinds_of, within_source

if TYPE_CHECKING:
    from twincluster.teacher import Trust

FEATURE_SAMPLE = 20_000  # most inputs for silhouette and kNN
WIDEST_TABLE = 40  # most classes or clusters of a printed confusion matrix
LONGEST_NAME = 14  # letters of a class name in its header


@dataclass(frozen=True)
class Findings:
    """Scores and label-free figures of one partition."""

    assignments: Assignments
    n_clusters: int
    scores: Scores | None
    class_names: tuple[str, ...] | None
    scored_on: Split
    silhouette: float | None  # None without the images, or with fewer than two clusters that contain any
    knn: float | None
    absent: str | None = None  # why the images are unavailable
    added: int = 0  # inputs added after training
    unlabelled: int = 0  # inputs without a label, left out of the scores
    corrections: int = 0  # number of corrections by hand, which these figures ignore
    trust: Trust | None = None  # of the corrected clusters, by random questions that a person has answered
    names: Mapping[int, str] = field(default_factory=dict)  # of the corrected clusters
    ids: tuple[int, ...] | None = None  # of the clusters, where a cut of the tree made them

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
            "clusters": list(self.ids or range(self.n_clusters)),
            "sizes": self.assignments.sizes(self.n_clusters),
            "confidence": float(confidence[np.isfinite(confidence)].mean()) if np.isfinite(confidence).any() else None,
            "silhouette": self.silhouette,
            "knn": self.knn,
            "scored_on": self.scored_on if self.scores else None,
            **(self.scores.as_dict() if self.scores else {}),
            "class_names": list(self.class_names) if self.class_names and self.scores else None,
        }

    def to_json(self) -> str:
        """Return strict JSON; figures that do not exist are null."""
        return strict_json(self.to_dict(), indent=2)

    def to_text(self) -> str:
        figures = self.to_dict()
        unread = f"{figures['unreadable']:,} unreadable{kinds_of(self.assignments.problems())}"
        lines = [f"{figures['inputs']:,} inputs, {unread}, {self.n_clusters} clusters"]
        if self.added:
            lines.append(f"{self.added:,} of them were added after training, by twincluster update")
        if self.ids:
            lines.append("these are the clusters of the last cut; twincluster cut --undo goes back")
        if self.corrections:
            many = counted(self.corrections, "correction")
            lines.append(
                f"these are the model's own clusters, without {many} by hand; twincluster report includes them"
            )
        if self.trust:
            lines.append(f"with the corrections, {self.trust.to_text()}")
            lines += [
                f"  {self.names[cluster][:LONGEST_NAME]}: {share.to_text()}"
                for cluster, share in self.trust.clusters.items()
            ]
        lines.append(sizes_line(figures["sizes"]))
        if figures["confidence"] is not None:
            lines.append(f"mean confidence {figures['confidence']:.3f}")
        if self.silhouette is not None:
            lines.append(f"silhouette of the features {self.silhouette:.3f}")
        if self.absent:
            lines.append(f"no silhouette, no kNN accuracy: {self.absent}")
        if not self.scores:
            return "\n".join([*lines, "no labels: name --labels folders, or a file, for ACC, NMI and ARI"])
        left_out = f", without {self.unlabelled:,} unlabelled" if self.unlabelled else ""
        lines.append(scores_line(self.scores, self.scored_on) + left_out)
        if self.knn is not None:
            lines.append(f"kNN accuracy of the features {self.knn:.4f}")
        return "\n".join([*lines, "", _confusion_table(self.scores, self.class_names, self.ids)])


def findings_of(
    run: Run,
    labels: str | None,
    root: Path | None,
    decoding: OnProgress | None = None,
    trust_of: Callable[[RunImages], Trust | None] = lambda images: None,
) -> Findings:
    """Evaluate a run. `labels` are as for `twincluster evaluate`; None takes those of the source, if any."""
    inputs = RunImages(run, root, decoding=decoding)
    assignments, config, data = inputs.assignments, run.config, run.data
    images, absent = inputs.training, inputs.absent or None
    truth, names = truth_of(run, labels, assignments, images.listing if images else None)
    added = len(assignments.paths) - data.inputs
    edited, state, corrections = inputs.edited()
    n_clusters, ids = config.n_clusters, None
    kinds = {line["kind"] for line in inputs.edits.history[0]}
    if "cut" in kinds and kinds <= {"cut", "rename"}:
        ids, corrections = tuple(sorted(state.names)), 0  # nobody has said where an image belongs
        n_clusters, places = len(ids), np.searchsorted(ids, edited.clusters)
        assignments = dataclasses.replace(edited, clusters=np.where(edited.clusters >= 0, places, -1))
    findings = Findings(
        assignments, n_clusters, None, names, data.split, None, None, absent, added, corrections=corrections,
        trust=trust_of(inputs), names=state.names, ids=ids,
    )  # fmt: skip
    if truth is not None:
        if images is None and data.split != "all":
            raise InputError(
                f"{run.folder} was trained on the {data.split} part of {data.source}; to find out which images these "
                f"are, put {data.location} back, which has moved or changed"
            )
        rows, scored_on = rows_to_score(images.listing if images else None, data.split, len(assignments.paths))
        unlabelled = int((rows & (truth < 0) & (assignments.clusters >= 0)).sum())
        scores = score(truth[rows], assignments.clusters[rows])
        findings = dataclasses.replace(findings, scores=scores, scored_on=scored_on, unlabelled=unlabelled)
    if images:
        quality, knn = _feature_figures(run, images, assignments, truth)
        findings = dataclasses.replace(findings, silhouette=quality, knn=knn)
    return findings


def truth_of(run: Run, labels: str | None, assignments: Assignments, own: Listing | None) -> Labels | tuple[None, None]:
    """Return a label per row, -1 if unknown, and the class names; (None, None) without labels."""
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
    """Read labels from a file. An array may have one per row, or only for the training rows, which come first."""
    try:
        return read_labels(labels, data.source, paths, are_files=data.files)
    except InputError:
        if not labels.endswith(".npy") or len(paths) == data.inputs:
            raise
        return read_labels(labels, data.source, paths[: data.inputs], are_files=data.files)


def _feature_figures(
    run: Run, images: Images, assignments: Assignments, truth: np.ndarray | None
) -> tuple[float | None, float | None]:
    """Return silhouette and, with labels, kNN accuracy on an even sample of the features."""
    rows = images.usable[:: math.ceil(len(images.usable) / FEATURE_SAMPLE) or 1]
    features = Model.load(run).embed(images, rows)
    quality = silhouette(features.numpy(), assignments.clusters[rows])
    split, knn = images.listing.split, math.nan
    if truth is not None:
        knn = knn_accuracy(features, truth[rows], split[rows] == 1 if split is not None else None)
    return quality if math.isfinite(quality) else None, knn if math.isfinite(knn) else None


def _confusion_table(scores: Scores, class_names: tuple[str, ...] | None, ids: tuple[int, ...] | None) -> str:
    """Format the confusion matrix: clusters in the order of their matched classes as rows, classes as columns."""
    n_clusters, n_classes = scores.confusion.shape
    if max(n_clusters, n_classes) > WIDEST_TABLE:
        return "the confusion matrix is too wide to print: see --json"
    names = [name[:LONGEST_NAME] for name in class_names or map(str, range(n_classes))][:n_classes]
    widths = [max(len(names[c]), len(str(scores.confusion[:, c].max()))) + 2 for c in range(n_classes)]
    order = sorted(range(n_clusters), key=lambda k: (scores.matching[k] < 0, scores.matching[k]))
    head = "cluster" + "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    called = ids or range(n_clusters)
    rows = [
        f"{called[k]:7d}"
        + "".join(f"{count:{width}d}" for count, width in zip(scores.confusion[k], widths, strict=True))
        for k in order
    ]
    return "\n".join([head, *rows])
