"""Choose the rows of a large source to train on: an even share of every dense region, and the rest in proportion.

A uniform sample of a million rows would leave few of a kind with one row in ten thousand. A coarse k-means divides the
rows into cells; half of the sample is shared out evenly among the cells, and half by their sizes. Shapes: n rows, C
cells, D columns.
"""

from __future__ import annotations

import numpy as np
import torch

from twincluster.clustering.kmeans import nearest, spherical_kmeans

MOST_CELLS, PER_CELL = 256, 64  # of the coarse k-means; rows of the sample per cell, at least
POOL = 16_384  # ... and the rows that it is fitted on
CHUNK = 8_192  # rows in memory at once


def spread_sample(pixels: np.ndarray, rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return `count` of the given rows of `pixels` (N,D), ascending; all of them if there are no more."""
    if len(rows) <= count:
        return rows
    random = np.random.default_rng(seed)
    n_cells = max(1, min(MOST_CELLS, count // PER_CELL))
    cell = _cells(pixels, rows, n_cells, random, seed)
    order = np.lexsort((random.random(len(rows)), cell))  # by cell, at random inside
    sizes = np.bincount(cell, minlength=n_cells)
    wanted = _quotas(sizes, count)
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(rows)) - np.repeat(starts, sizes)
    return np.asarray(rows[np.sort(order[rank < np.repeat(wanted, sizes)])])


def _cells(pixels: np.ndarray, rows: np.ndarray, count: int, random: np.random.Generator, seed: int) -> np.ndarray:
    """Return the cell (n,) of each row: the nearest of C directions of centred rows."""
    pool = np.sort(random.permutation(len(rows))[:POOL])
    sample = torch.from_numpy(np.asarray(pixels[rows[pool]], np.float32))
    mean, std = sample.mean(0), sample.std(0).clamp(min=1e-6)
    found = spherical_kmeans((sample - mean) / std, min(count, len(sample)), seed=seed, n_init=1, n_iter=10)
    cell = np.empty(len(rows), np.int16)
    for start in range(0, len(rows), CHUNK):
        part = torch.from_numpy(np.asarray(pixels[rows[start : start + CHUNK]], np.float32))
        cell[start : start + CHUNK] = nearest((part - mean) / std, found.centres).numpy()
    return cell


def _quotas(sizes: np.ndarray, count: int) -> np.ndarray:
    """Return how many rows to take of each cell, (C,), `count` in all."""
    there = max(1, int((sizes > 0).sum()))
    quotas = np.minimum(sizes, count // (2 * there))
    while (missing := count - int(quotas.sum())) > 0:
        room = sizes - quotas
        more = np.minimum(room, np.floor(missing * room / room.sum()).astype(np.int64))
        if not more.any():  # fewer rows than cells are missing: the largest cells give one each
            more[np.argsort(-room, kind="stable")[:missing]] = 1
        quotas = quotas + more
    return np.asarray(quotas)
