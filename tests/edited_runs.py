"""Runs to edit: a network that was never trained, rows as a test wants them, and features that need no images."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from small_runs import images_of, pictures, small_config
from twincluster.fit import describe
from twincluster.methods import METHODS
from twincluster.resolve import data_shape
from twincluster.runs import Assignments, Run

D = 6  # of `features`


def untrained_run(folder: Path, clusters: list[int], n_clusters: int = 3) -> Run:
    """A run folder with a row for each of `clusters`; -1 could not be read."""
    images = images_of(pictures(n=max(2, len(clusters)))[0])
    config = small_config(images, f"n_clusters={n_clusters}", f"tcc.cluster_queue={2 * n_clusters}")
    shape = data_shape(config, images)
    run = Run.create(folder)
    run.write_config(config, shape, replace(describe(images), inputs=len(clusters)))
    torch.manual_seed(0)
    run.save_model(METHODS[config.method].network_type(config, shape))
    run.write_assignments(table(clusters))
    return run


def table(clusters: list[int]) -> Assignments:
    found = np.array(clusters, dtype=np.int64)
    return Assignments(
        tuple(f"{row}.png" for row in range(len(found))),
        found,
        np.where(found < 0, np.nan, 0.75),
        tuple("unreadable: empty file" if cluster < 0 else "ok" for cluster in clusters),
    )


def features(rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The same for a row every time, of different rows different."""
    return np.stack([np.random.default_rng(int(row)).normal(size=D) for row in rows]).astype(np.float32).reshape(-1, D)
