"""metrics.jsonl as a few short lists of numbers: how training went, small enough for a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

POINTS = 200  # of a curve
MOMENTS = 5  # at which the sizes of clusters are shown
BARS = 120  # of a histogram

# Name in metrics.jsonl, title, and what a good curve does.
GROUPS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
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
    kept = [metrics[i] for i in _even(len(metrics), POINTS)]
    groups = []
    for title, note, names in GROUPS:
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
