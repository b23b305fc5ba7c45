"""What an epoch leaves behind: sums kept on the device while it runs, read by the host once at its end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clustering import Health, score, steadier
from twincluster.config import Config
from twincluster.core import InputError
from twincluster.methods import Outcome


class Record:
    """Sums over the steps of an epoch. Shapes: N batch, K clusters."""

    def __init__(self) -> None:
        self.totals: dict[str, Tensor] = {}
        self.last: Tensor | None = None  # (N,) clusters of the newest batch

    def add(self, outcome: Outcome) -> None:
        q, other = outcome.assignment, outcome.key_assignment
        clusters = q.argmax(1)
        numbers = {
            "loss": outcome.loss,
            **outcome.metrics,
            "confidence": q.amax(1).mean(),
            "agreement": (clusters == other.argmax(1)).float().mean(),
            "mean_assignment": q.mean(0),
            "histogram": F.one_hot(clusters, q.shape[1]).sum(0).float(),
        }
        if self.last is None:  # the first step of all; a captured graph needs buffers that stay where they are
            self.last = torch.zeros_like(clusters)
        self.last.copy_(clusters)
        for name, value in numbers.items():
            if name not in self.totals:
                self.totals[name] = torch.zeros_like(value, dtype=torch.float32)
            self.totals[name] += value.detach()

    def read(self, steps: int) -> dict[str, Any]:
        """Averages as Python numbers, the histogram as counts; the sums start again.

        A loss that was zero in every step is None: no loss reaches zero, so there was nothing yet to compare.
        """
        flat = torch.cat([total.flatten() for total in self.totals.values()]).cpu()
        row: dict[str, Any] = {}
        for name, total in self.totals.items():
            values, flat = flat[: total.numel()], flat[total.numel() :]
            if name == "histogram":
                row[name] = [int(count) for count in values]
            elif total.dim():
                row[name] = [float(value) / steps for value in values]
            else:
                row[name] = None if name.endswith("loss") and not values else float(values) / steps
            total.zero_()
        return row

    def on_batch_accuracy(self, labels: np.ndarray) -> float | None:
        """ACC of the newest batch alone, as augmented for training: what Fig. 5 of the paper plots, not a result.

        None where no sample of the batch has a label (they are -1).
        """
        assert self.last is not None, "no step was taken"
        return score(labels, self.last.cpu().numpy()).acc if (labels >= 0).any() else None


def refuse_divergence(row: dict[str, Any], config: Config) -> None:
    """An epoch whose loss is nan or infinite ends the run: it stays so."""
    if not math.isfinite(row["loss"] or 0):
        way_out = steadier(config.method, config.train.precision)
        raise InputError(f"the loss is no number any more: training diverged, {way_out}")


def health_of(row: dict[str, Any]) -> Health:
    """Return the label-free health in an epoch's row, which a file may have with None, or without, for some numbers."""
    mean, confidence = np.array(row["mean_assignment"], float), float(np.array(row["confidence"], float))
    entropy = -float((mean * np.log(np.clip(mean, 1e-12, None))).sum()) / float(np.log(len(mean)))
    strain, ended = row.get("strain") or 0.0, (row.get("progress") or 1.0) >= 1
    return Health(
        sizes=row["histogram"], confidence=confidence, marginal_entropy=entropy, agreement=row.get("agreement"),
        strain=strain if ended else 0.0,  # it wavers: one look, at the end
        empty=None if row.get("empty") is None else int(row["empty"]),  # a cluster's few images may all lie elsewhere
    )  # fmt: skip
