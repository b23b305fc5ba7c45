"""The tree of clusters as plain data for a page, which groups the fine clusters itself. Shapes: m rows, D features."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from twincluster.runs import Living, State, key_of_tree, unit


def tree_data(living: Living, state: State, rows: np.ndarray, features: np.ndarray, each: int) -> dict[str, Any]:
    """Return joins, leaves, clusters and natural cuts.

    A leaf has its size, without junk, and `each` of its typical rows, of those (m,) with features (m,D).
    """
    tree, natural, best = living.tree, living.tree.natural(), living.tree.best()
    return {
        "number": state.number,
        "key": key_of_tree(tree),
        "joins": tree.joins.tolist(),
        "stability": [round(float(value), 3) for value in tree.stability],
        "leaves": _leaves(living, state, rows, features, each),
        "clusters": [
            {"id": cluster, "leaves": np.flatnonzero(leaves).tolist()}
            for cluster, leaves in zip(living.clusters, living.leaves, strict=True)
        ],
        "kept": list(living.kept),
        "natural": [
            {"clusters": level, "agreement": round(value, 3), "best": level in best} for level, value in natural.items()
        ],
    }


def _leaves(living: Living, state: State, rows: np.ndarray, features: np.ndarray, each: int) -> list[dict[str, Any]]:
    count = living.tree.n_leaves
    shown = (living.leaf >= 0) & ~state.junk & (state.home >= 0)
    sizes = np.bincount(living.leaf[shown], minlength=count).tolist()
    there = shown[rows]
    rows, leaf = rows[there], living.leaf[rows[there]]
    near = np.zeros(len(rows), np.float32)
    if features.shape[1] == living.tree.centres.shape[1]:
        near = np.einsum("md,md->m", features[there], unit(living.tree.centres)[leaf])
    order = np.lexsort((-near, leaf))
    starts = np.searchsorted(leaf[order], np.arange(count + 1)).tolist()
    return [
        {"size": size, "rows": rows[order[start : min(end, start + each)]].tolist()}
        for size, (start, end) in zip(sizes, pairwise(starts), strict=True)
    ]
