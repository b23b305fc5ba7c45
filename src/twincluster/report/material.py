"""All that a run offers to look at: assignments, labels, the pictures and features of an even part of them.

Whatever cannot be had again (images that moved, a run made in Python) is left out, with a sentence that says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from twincluster import inference
from twincluster.choose import Choice
from twincluster.config import Config
from twincluster.derive import resolve_device
from twincluster.encoders import load_encoder
from twincluster.errors import InputError
from twincluster.evaluate import Scores, score, silhouette
from twincluster.findings import reopen, truth_of
from twincluster.images.labels import Labels
from twincluster.images.store import Images, open_images
from twincluster.pipeline import Split, rows_to_score
from twincluster.results import Assignments, Run

MOST_FEATURES = 50_000  # inputs whose features are looked at
CPU_FEATURES = 20_000  # the same on a CPU ...
CPU_PIXELS = 10_000 * 32 * 32  # ... and for large images fewer, so that a report takes seconds
FEWEST_FEATURES = 2_000

IS_ROWS = "the inputs are rows of numbers, which have no pictures"

Told = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Material:
    """Arrays of n inputs, of which the first are those of the training, and m of them with features."""

    run: Run
    config: Config
    data: dict[str, Any]  # what config.json says of the source
    assignments: Assignments
    pictures: np.ndarray | None = None  # (inputs of the training,s,s,3) uint8
    no_pictures: str = ""  # why there are none
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (m,) inputs with features, rising
    features: np.ndarray = field(default_factory=lambda: np.empty((0, 1), np.float32))  # (m,D), of length 1
    silhouette: float | None = None
    truth: np.ndarray | None = None  # (n,) class of each input, -1 where unknown
    class_names: tuple[str, ...] | None = None
    scores: Scores | None = None
    scored_on: Split = "all"
    no_scores: str = ""  # why labels could not be used
    choice: Choice | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)

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
    truth: Labels | None = None,
    device: str = "auto",
    decoding: Told | None = None,
) -> Material:
    """`labels` as `twincluster evaluate` takes them; `truth` is what they say, where that is known already."""
    assignments, (config, _, data) = run.read_assignments(), run.read_config()
    images, absent = reopen(run, root, decoding)
    listing = images.listing if images else None
    codes, names = truth or truth_of(run, labels, assignments, listing)
    known: dict[str, Any] = {"choice": run.read_choice(), "metrics": run.read_metrics()}
    if codes is not None:
        codes = np.concatenate([codes, np.full(len(assignments.paths) - len(codes), -1)])
        known |= {"truth": codes, "class_names": names, **_scores(images, codes, assignments, data)}
    if images is None:
        known["no_pictures"] = str(absent)
    else:
        known["pictures"], known["no_pictures"] = pictures_of(config, images)
        known |= _features(run, images, assignments, device)
    return Material(run, config, data, assignments, **known)


def spread_evenly(rows: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of the rows, at even distances, so that every part of the source is there."""
    if len(rows) <= count:
        return rows
    return rows[np.linspace(0, len(rows) - 1, count).round().astype(np.int64)]


def _scores(images: Images | None, truth: np.ndarray, assignments: Assignments, data: dict[str, Any]) -> dict[str, Any]:
    if images is None and data["split"] != "all":
        return {"no_scores": f"which images are the {data['split']} part is known only from the images, which moved"}
    part, scored_on = rows_to_score(images.listing if images else None, data["split"], data["inputs"])
    rows = np.concatenate([part, np.ones(len(truth) - len(part), dtype=bool)])
    try:
        return {"scores": score(truth[rows], assignments.clusters[rows]), "scored_on": scored_on}
    except InputError as error:
        return {"no_scores": str(error)}


def pictures_of(config: Config, images: Images) -> tuple[np.ndarray | None, str]:
    """Pixels as the network saw them, or what an encoder saw before it made features of them."""
    if images.listing.is_rows:
        return None, IS_ROWS
    if not config.train.frozen:
        return images.pixels, ""
    side = load_encoder(config.train.frozen).side
    return open_images(images.listing, side=side, frame=config.train.frame).pixels, ""


def _features(run: Run, images: Images, assignments: Assignments, device: str) -> dict[str, Any]:
    device = resolve_device(device)
    network = run.load_network(device)
    most = MOST_FEATURES
    if device == "cpu":
        most = max(FEWEST_FEATURES, min(CPU_FEATURES, CPU_PIXELS // max(1, network.side) ** 2))
    rows = images.usable[assignments.clusters[images.usable] >= 0]
    rows = spread_evenly(rows, most)
    features = torch.nan_to_num(F.normalize(inference.embed(network, images.pixels, rows), dim=1)).numpy()
    quality = silhouette(features, assignments.clusters[rows]) if len(rows) else float("nan")
    return {"rows": rows, "features": features, "silhouette": quality if np.isfinite(quality) else None}
