"""Features on a flat map: t-SNE by openTSNE where it is installed, else the two principal components."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np

POINTS = 3_000  # on a map; t-SNE takes seconds for so many
FEWEST = 12  # points that t-SNE can make something of
DIRECTIONS = 50  # principal components that t-SNE looks at
PERPLEXITY = 30.0
LARGEST = 9_999  # coordinates are whole numbers from 0 to this one


@dataclass(frozen=True, eq=False)
class Layout:
    """A place for each row."""

    places: np.ndarray  # (m,2) int64, 0 to 9999, the longer side of the map filled
    method: str
    meaning: str  # what distances on this map say


TSNE = ("t-SNE", "neighbours on the map are alike; distances between far groups mean little")
PCA = ("PCA", "the two directions in which the features differ most; groups that differ in others may overlap here")


def lay_out(features: np.ndarray, *, seed: int = 0, method: str | None = None) -> Layout:
    """`method` is "t-SNE" or "PCA"; None takes t-SNE where it can be had. features: (m,D). Fewer than
    three rows, and rows that differ in one direction at most, have no neighbourhoods to keep: they get PCA."""
    if method is None:
        able = importlib.util.find_spec("openTSNE") is not None and len(features) >= FEWEST
        method = "t-SNE" if able else "PCA"
    components = principal(features, DIRECTIONS)
    varied = components[:, components.std(0) > 0]
    if method == "t-SNE" and len(varied) > 2 and varied.shape[1] > 1:
        return Layout(_to_grid(_tsne(varied, seed)), *TSNE)
    return Layout(_to_grid(components[:, :2]), *PCA)


def how_many(shown: int, visible: int, all_: int, what: str = "images") -> str:
    """Which part of all inputs a map shows, where `visible` of them can still be seen."""
    if shown == all_:
        return f"all {all_:,} {what}"
    if visible == all_:
        return f"{shown:,} of {all_:,} {what}, evenly chosen"
    if shown == visible:
        return f"{shown:,} of {all_:,} {what} (the others are gone)"
    return f"{shown:,} of {all_:,} {what}, evenly chosen from the {visible:,} that are still there"


def principal(features: np.ndarray, count: int) -> np.ndarray:
    """The `count` first principal components (m,count), padded with zeros where there are fewer."""
    centred = np.asarray(features, dtype=np.float64) - features.mean(0, dtype=np.float64) if len(features) else features
    _, directions = np.linalg.eigh(centred.T @ centred)  # smallest first
    directions = directions[:, ::-1][:, :count]
    signs = np.sign(directions[np.abs(directions).argmax(0), np.arange(directions.shape[1])])
    components: np.ndarray = centred @ (directions * signs)  # the same way round on every machine
    missing = max(0, count - components.shape[1])
    return np.pad(components, ((0, 0), (0, missing)))


def _tsne(components: np.ndarray, seed: int) -> np.ndarray:
    import openTSNE

    model = openTSNE.TSNE(
        perplexity=min(PERPLEXITY, (len(components) - 1) / 4), metric="euclidean", initialization="pca",
        random_state=seed, n_jobs=2,
    )  # fmt: skip
    return np.asarray(model.fit(components))


def _to_grid(places: np.ndarray) -> np.ndarray:
    if not len(places):
        return np.empty((0, 2), np.int64)
    low, high = places.min(0), places.max(0)
    scale = LARGEST / max(float((high - low).max()), 1e-12)
    offset = (LARGEST - (high - low) * scale) / 2
    grid = (places - low) * scale + offset
    grid[:, 1] = LARGEST - grid[:, 1]  # pages count downwards
    return np.asarray(grid.round().clip(0, LARGEST), dtype=np.int64)
